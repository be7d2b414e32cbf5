//! `npyfs checkout gc`: frees the room of what no commit and no checkout names.

use std::fmt::Write as _;
use std::sync::Arc;
use std::time::Duration;

use serde::Serialize;

use super::layers::{CheckoutArgs, MOST_SHOWN, print, refused};
use crate::checkout::gc::{Collected, Garbage, GcWish};
use crate::cli::output::{self, Name, OutputFormat, print_json};
use crate::cli::progress::Progress;
use crate::cli::{CliError, say};
use crate::io::storage::{Disk, Storage};
use crate::printable;

/// A file or directory in JSON.
#[derive(Serialize)]
struct ListedGarbage {
    #[serde(flatten)]
    name: Name,
    bytes: u64,
    why: &'static str,
}

impl ListedGarbage {
    fn of(garbage: &Garbage) -> Self {
        Self {
            name: Name::new(garbage.path.as_bytes()),
            bytes: garbage.bytes,
            why: garbage.why,
        }
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
    let done = checkouts.collect_garbage(wish, &storage);
    drop(progress);
    let done = done.map_err(refused)?;
    if format.json {
        let listed: Vec<_> = done.garbage.iter().map(ListedGarbage::of).collect();
        print_json(&listed)?;
    } else if format.null {
        let mut names = Vec::new();
        for garbage in &done.garbage {
            format.push("", garbage.path.as_bytes(), &mut names);
        }
        output::print(&names)?;
    } else {
        print(&text(&done, wish))?;
    }
    tell(&done)
}

/// Returns what people read: with a dry run all names, and in any case the sum.
fn text(done: &Collected, wish: &GcWish) -> String {
    let mut text = String::new();
    if wish.dry_run {
        for Garbage { path, bytes, why } in &done.garbage {
            let path = printable::line(path);
            let _ = writeln!(text, "{path}  {bytes} bytes  {why}");
        }
    }
    let sum = sum(&done.garbage);
    let _ = match (done.garbage.is_empty(), wish.dry_run) {
        (true, _) => writeln!(text, "nothing to remove"),
        (false, true) => writeln!(text, "would remove {sum}"),
        (false, false) => writeln!(text, "removed {sum}"),
    };
    text
}

/// Returns how many there are, and their size.
fn sum(garbage: &[Garbage]) -> String {
    let bytes = garbage
        .iter()
        .fold(0, |sum: u64, garbage| sum.saturating_add(garbage.bytes));
    format!("{} names, {bytes} bytes", garbage.len())
}

/// Tells what stays for the moment, and what could not be judged.
fn tell(done: &Collected) -> Result<(), CliError> {
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
