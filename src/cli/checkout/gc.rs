//! `npyfs checkout gc`: removes files and directories that no commit and no checkout names.

use std::sync::Arc;
use std::time::Duration;

use serde::Serialize;

use super::layers::{CheckoutArgs, MOST_SHOWN, refused};
use crate::cli::output::{Listing, Name, OutputFormat, Report};
use crate::cli::progress::Progress;
use crate::cli::{CliError, say};
use npyfs_base::printable;
use npyfs_core::checkout::verbs::gc::{Collected, Garbage, GcWish, collect};
use npyfs_io::storage::{Disk, Storage};

/// A file or directory that no commit and no checkout names.
#[derive(Serialize)]
struct ListedGarbage {
    #[serde(flatten)]
    name: Name,
    bytes: u64,
    why: &'static str,
}

/// The files and directories that `gc` removes, or with a dry run would remove.
#[derive(Serialize)]
#[serde(transparent)]
struct GarbageList {
    garbage: Vec<ListedGarbage>,
    #[serde(skip)]
    dry_run: bool,
    /// How many there are, and their size.
    #[serde(skip)]
    sum: String,
}

impl GarbageList {
    fn new(garbage: &[Garbage], dry_run: bool) -> Self {
        let listed = |garbage: &Garbage| ListedGarbage {
            name: Name::new(garbage.path.as_bytes()),
            bytes: garbage.bytes,
            why: garbage.why,
        };
        Self {
            garbage: garbage.iter().map(listed).collect(),
            dry_run,
            sum: sum(garbage),
        }
    }
}

impl Report for GarbageList {
    /// With a dry run all names; always the sum.
    fn text(&self) -> String {
        let Self { garbage, sum, .. } = self;
        if garbage.is_empty() {
            return "nothing to remove\n".to_owned();
        }
        if !self.dry_run {
            return format!("removed {sum}\n");
        }
        let line = |listed: &ListedGarbage| {
            let path = printable::line(&String::from_utf8_lossy(&listed.name.0));
            format!("{path}  {} bytes  {}\n", listed.bytes, listed.why)
        };
        let lines: String = garbage.iter().map(line).collect();
        format!("{lines}would remove {sum}\n")
    }
}

impl Listing for GarbageList {
    fn names(&self) -> Vec<Vec<u8>> {
        self.garbage
            .iter()
            .map(|listed| listed.name.0.clone())
            .collect()
    }
}

/// Parses an age: a number with a unit, or 0.
pub(super) fn age(text: &str) -> Result<Duration, String> {
    let split = text.find(|c: char| !c.is_ascii_digit());
    let (number, unit) = text.split_at(split.unwrap_or(text.len()));
    let seconds = match unit {
        "s" => Some(1),
        "m" => Some(60),
        "h" => Some(3600),
        "d" => Some(24 * 3600),
        "w" => Some(7 * 24 * 3600),
        "" if number.bytes().all(|b| b == b'0') => Some(0),
        _ => None,
    };
    let number: Option<u64> = number.parse().ok();
    let seconds = number
        .zip(seconds)
        .and_then(|(number, unit)| number.checked_mul(unit));
    let seconds = seconds.ok_or("expected an age such as 7d, 12h, 30m or 0")?;
    Ok(Duration::from_secs(seconds))
}

/// Runs `gc`.
pub(super) fn gc(
    which: &CheckoutArgs,
    wish: &GcWish,
    format: OutputFormat,
) -> Result<(), CliError> {
    let checkouts = which.find(None)?.checkouts;
    let progress = Progress::waiting("looking for what nobody names");
    let storage: Arc<dyn Storage> = Arc::new(Disk);
    let done = collect(&checkouts, wish, &storage);
    drop(progress);
    let done = done.map_err(refused)?;
    format.print(&GarbageList::new(&done.garbage, wish.dry_run))?;
    report(&done)
}

/// Returns how many there are, and their size.
fn sum(garbage: &[Garbage]) -> String {
    let bytes = garbage
        .iter()
        .fold(0, |sum: u64, garbage| sum.saturating_add(garbage.bytes));
    format!("{} names, {bytes} bytes", garbage.len())
}

/// Reports what stays for the moment, and what could not be judged.
fn report(done: &Collected) -> Result<(), CliError> {
    if !done.young.is_empty() {
        say(&format!(
            "too young: {}; --older-than says how old it must be",
            sum(&done.young)
        ));
    }
    for name in &done.in_use {
        say(&format!(
            "{}: a process writes in it, and clears it up",
            printable::line(name)
        ));
    }
    done.left.iter().take(MOST_SHOWN).for_each(|line| say(line));
    match done.left.len() {
        0 => Ok(()),
        n => Err(CliError::object(format!("{n} names were left as they are"))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_age_has_a_unit() {
        for (text, seconds) in [
            ("0", 0),
            ("0s", 0),
            ("90s", 90),
            ("3m", 180),
            ("2h", 7200),
            ("7d", 604_800),
            ("1w", 604_800),
        ] {
            assert_eq!(age(text), Ok(Duration::from_secs(seconds)), "{text}");
        }
        for text in [
            "",
            "d",
            "7",
            "-1d",
            "7 d",
            "7y",
            "1.5h",
            "+7d",
            "99999999999999999999d",
            "18446744073709551615w",
        ] {
            assert!(age(text).is_err(), "{text}");
        }
    }
}
