//! `npyfs checkout diff`: what a checkout makes of the store.

use std::fmt::Write as _;

use super::layers::{Which, line_of, print, refused};
use super::seen::{Seen, describe, forms};
use crate::checkout::checkouts::{LayerFiles, base_files};
use crate::checkout::index::{BaseFile, Begun};
use crate::cli::{CliError, say};

/// Files of the base that are named, at most.
const MOST_FILES: usize = 20;

pub fn diff(which: &Which, name: Option<&str>) -> Result<(), CliError> {
    let found = which.find(name)?;
    let checkouts = &found.checkouts;
    let summary = checkouts.find(found.name()?).map_err(refused)?;
    let seen = Seen::open(checkouts)?;
    let mut layers = checkouts.committed().map_err(refused)?;
    let below = seen.with(&layers).root();
    layers.push(LayerFiles {
        dir: summary.dir.clone(),
        entries: summary.changes.entries.clone(),
    });
    let above = seen.with(&layers).root();
    let mut text = String::new();
    for (key, stored) in &summary.changes.entries {
        let before = forms(&below, key).map_err(refused)?;
        let (letter, shown) = match (stored, before.is_empty()) {
            // It was made and deleted here.
            (None, true) => continue,
            (None, false) => ('D', before),
            (Some(_), is_new) => {
                let now = forms(&above, key).map_err(refused)?;
                (if is_new { 'A' } else { 'M' }, now)
            }
        };
        // Writing to a String cannot fail.
        let _ = match shown.first() {
            None => writeln!(text, "{letter} {key}"),
            Some(_) if letter == 'D' => {
                let paths: Vec<_> = shown.iter().map(|(path, _)| path.as_str()).collect();
                writeln!(text, "{letter} {}", paths.join(", "))
            }
            Some(_) => {
                for (path, node) in &shown {
                    let _ = writeln!(text, "{letter} {path}  {}", describe(node));
                }
                Ok(())
            }
        };
    }
    print(&text)?;
    let waiting = found.waiting.unwrap_or_else(|| {
        let kept = summary.changes.incomplete.values();
        kept.map(line_of).collect()
    });
    for waiting in &waiting {
        say(&format!("not complete: {waiting}"));
    }
    if let Some(begun) = &summary.changes.begun {
        tell_base(begun, base_files(checkouts.store()));
    }
    Ok(())
}

/// Says which files of the base are not what they were when the checkout was begun.
fn tell_base(begun: &Begun, now: Option<Vec<BaseFile>>) {
    let (Some(before), Some(now)) = (&begun.base, now) else {
        return;
    };
    let changed = before.iter().filter(|file| !now.contains(file));
    for file in changed.clone().take(MOST_FILES) {
        let what = if file.path.is_empty() {
            "the store"
        } else {
            &file.path
        };
        say(&format!("{what} was changed after the checkout was begun"));
    }
    let more = changed.count().saturating_sub(MOST_FILES);
    if more > 0 {
        say(&format!("and {more} more files"));
    }
}
