//! `npyfs checkout diff`: what a checkout makes of the store.

use std::collections::HashSet;

use super::changes::{Changes, Kind};
use super::layers::{Found, Which, line_of, refused, tell_misfits};
use super::seen::{Seen, describe, forms};
use crate::checkout::checkouts::{LayerFiles, Summary, base_files};
use crate::checkout::fit::Misfit;
use crate::checkout::index::{BaseFile, Begun};
use crate::cli::output::Format;
use crate::cli::{CliError, say};

/// Files of the base that are named, at most.
const MOST_FILES: usize = 20;

/// Times that the list is made anew, as somebody writes in the checkout meanwhile.
const TRIES: usize = 10;

pub fn diff(which: &Which, name: Option<&str>, format: Format) -> Result<(), CliError> {
    let found = which.find(name)?;
    let mut tries = 0;
    let (changes, misfits, unread) = loop {
        let summary = found.checkouts.find(found.name()?).map_err(refused)?;
        let listed = list(&found, &summary, format)?;
        tries += 1;
        // What was replaced meanwhile has another file now.
        let now = found.checkouts.find(found.name()?).map_err(refused)?;
        let is_same = now.changes.entries == summary.changes.entries;
        if listed.2 == 0 || tries == TRIES || is_same {
            break listed;
        }
    };
    tell_misfits(&misfits);
    changes.print()?;
    for waiting in &changes.incomplete {
        say(&format!("not complete: {waiting}"));
    }
    tell_base(&changes.changed_below);
    match unread {
        0 => Ok(()),
        n => Err(CliError::object(format!("{n} objects cannot be read"))),
    }
}

/// Returns what a checkout changes, what of it does not fit the store, and of how many objects something cannot be read.
fn list(
    found: &Found,
    summary: &Summary,
    format: Format,
) -> Result<(Changes, Vec<Misfit>, usize), CliError> {
    let checkouts = &found.checkouts;
    let seen = Seen::open(checkouts)?;
    let mut layers = checkouts.committed().map_err(refused)?;
    let below = seen.with(&layers).root();
    layers.push(LayerFiles::of(&summary.dir, summary.changes.clone()));
    let above = seen.with(&layers);
    let misfits = above.misfits();
    let above = above.root();
    let own = misfits
        .iter()
        .filter(|misfit| misfit.layer + 1 == layers.len());
    let own: HashSet<&str> = own.map(|misfit| misfit.key.as_str()).collect();
    let mut changes = Changes::new(format);
    // Those of which something cannot be read: the others are listed all the same.
    let mut unread = 0;
    for (key, stored) in &summary.changes.entries {
        if own.contains(key.as_str()) {
            continue;
        }
        let before = match forms(&below, key) {
            Ok(before) => before,
            Err(e) => {
                unread += 1;
                let kind = match stored {
                    Some(_) => Kind::Modified,
                    None => Kind::Deleted,
                };
                let why = format!("what was there cannot be read: {e}");
                changes.add(kind, key.as_bytes(), Some(why));
                continue;
            }
        };
        let (kind, shown) = match (stored, before.is_empty()) {
            // It was made and deleted here.
            (None, true) => continue,
            (None, false) => (Kind::Deleted, before),
            (Some(_), is_new) => {
                let kind = if is_new { Kind::Added } else { Kind::Modified };
                let file = stored
                    .as_ref()
                    .map(|stored| summary.dir.metadata(&stored.name()));
                let there = file.transpose().map(drop);
                match there.and_then(|()| forms(&above, key)) {
                    Ok(now) => (kind, now),
                    Err(e) => {
                        unread += 1;
                        changes.add(kind, key.as_bytes(), Some(format!("cannot be read: {e}")));
                        continue;
                    }
                }
            }
        };
        if shown.is_empty() {
            changes.add(kind, key.as_bytes(), None);
        }
        for (path, node) in &shown {
            let described = (kind != Kind::Deleted).then(|| describe(node));
            changes.add(kind, path.as_bytes(), described);
        }
    }
    let waiting = found.waiting.clone().unwrap_or_else(|| {
        let kept = summary.changes.incomplete.values();
        kept.map(line_of).collect()
    });
    changes.incomplete = waiting;
    if let Some(begun) = &summary.changes.begun {
        changes.changed_below = changed_base(begun, base_files(checkouts.store()));
    }
    Ok((changes, misfits, unread))
}

/// Files of the base that are not what they were when the checkout was begun.
fn changed_base(begun: &Begun, now: Option<Vec<BaseFile>>) -> Vec<String> {
    let (Some(before), Some(now)) = (&begun.base, now) else {
        return Vec::new();
    };
    let changed = before.iter().filter(|file| !now.contains(file));
    let name = |file: &BaseFile| match file.path.as_str() {
        "" => "the store".to_owned(),
        path => path.to_owned(),
    };
    changed.map(name).collect()
}

fn tell_base(changed: &[String]) {
    for what in changed.iter().take(MOST_FILES) {
        say(&format!("{what} was changed after the checkout was begun"));
    }
    let more = changed.len().saturating_sub(MOST_FILES);
    if more > 0 {
        say(&format!("and {more} more files"));
    }
}
