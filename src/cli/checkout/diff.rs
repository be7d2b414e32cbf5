//! `npyfs checkout diff`: lists what a checkout changes of the store.

use std::collections::HashSet;
use std::path::{Component, Path};

use super::base::{BaseStore, describe, forms};
use super::changes::{ChangeKind, Changes};
use super::layers::{CheckoutArgs, Selected, line_of, print_misfits, refused};
use crate::checkout::checkouts::{LayerFiles, Summary};
use crate::checkout::fit::Misfit;
use crate::checkout::index::{BaseFile, LayerBase};
use crate::cli::output::OutputFormat;
use crate::cli::{CliError, say};

/// The most files of the store that are named.
const MOST_FILES: usize = 20;

/// The number of times that the list is made, as somebody may write in the checkout meanwhile.
const TRIES: usize = 10;

/// The part of a store that is looked at, by the key of its directory; empty for all.
struct Part(String);

impl Part {
    fn of(inside: Option<&Path>) -> Self {
        let path = inside.unwrap_or(Path::new(""));
        let names = path.components().filter_map(|part| match part {
            Component::Normal(name) => Some(name.to_string_lossy()),
            _ => None,
        });
        Self(names.collect::<Vec<_>>().join("/"))
    }

    /// Returns whether a change at a key changes something here: at it, below it, or above it.
    fn concerns(&self, key: &str) -> bool {
        let is_in = |key: &str, above: &str| {
            let rest = key.strip_prefix(above);
            above.is_empty() || rest.is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
        };
        is_in(key, &self.0) || is_in(&self.0, key)
    }
}

/// Runs the command.
pub(super) fn diff(
    which: &CheckoutArgs,
    name: Option<&str>,
    format: OutputFormat,
) -> Result<(), CliError> {
    let (whole, inside) = which.whole();
    let part = Part::of(inside.as_deref());
    let found = whole.find(name)?;
    let mut tries = 0;
    let (changes, misfits, unread) = loop {
        let summary = found.checkouts.find(found.name()?).map_err(refused)?;
        let listed = list(&found, &summary, &part, format)?;
        tries += 1;
        // What was replaced meanwhile has another file now.
        let now = found.checkouts.find(found.name()?).map_err(refused)?;
        let is_same = now.changes.entries == summary.changes.entries;
        if listed.2 == 0 || tries == TRIES || is_same {
            break listed;
        }
    };
    print_misfits(&misfits);
    changes.print()?;
    for waiting in &changes.incomplete {
        say(&format!("not complete: {waiting}"));
    }
    print_changed_base(&changes.changed_below);
    match unread {
        0 => Ok(()),
        n => Err(CliError::object(format!("{n} objects cannot be read"))),
    }
}

/// Returns what a checkout changes, what of it does not fit the store, and of how many objects something cannot be
/// read.
fn list(
    found: &Selected,
    summary: &Summary,
    part: &Part,
    format: OutputFormat,
) -> Result<(Changes, Vec<Misfit>, usize), CliError> {
    let checkouts = &found.checkouts;
    let base = BaseStore::open(checkouts)?;
    let mut layers = checkouts.committed().map_err(refused)?;
    let below = base.with(&layers).root();
    layers.push(LayerFiles::of(&summary.dir, summary.changes.clone()));
    let above = base.with(&layers);
    let misfits = above.misfits();
    let above = above.root();
    let own = misfits
        .iter()
        .filter(|misfit| misfit.layer + 1 == layers.len());
    let own: HashSet<&str> = own.map(|misfit| misfit.key.as_str()).collect();
    let mut changes = Changes::new(format);
    // Those of which something cannot be read: the others are listed all the same.
    let mut unread = 0;
    for (key, stored) in summary
        .changes
        .entries
        .iter()
        .filter(|(key, _)| part.concerns(key))
    {
        if own.contains(key.as_str()) {
            continue;
        }
        let before = match forms(&below, key) {
            Ok(before) => before,
            Err(e) => {
                unread += 1;
                let kind = match stored {
                    Some(_) => ChangeKind::Modified,
                    None => ChangeKind::Deleted,
                };
                let why = format!("what was there cannot be read: {e}");
                changes.add(kind, key.as_bytes(), Some(why));
                continue;
            }
        };
        let (kind, shown) = match (stored, before.is_empty()) {
            // It was made and deleted here.
            (None, true) => continue,
            (None, false) => (ChangeKind::Deleted, before),
            (Some(_), is_new) => {
                let kind = if is_new {
                    ChangeKind::Added
                } else {
                    ChangeKind::Modified
                };
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
            let described = (kind != ChangeKind::Deleted).then(|| describe(node));
            changes.add(kind, path.as_bytes(), described);
        }
    }
    let waiting = found.waiting.clone().unwrap_or_else(|| {
        let kept = summary.changes.incomplete.values();
        kept.filter(|kept| part.concerns(&kept.object))
            .map(line_of)
            .collect()
    });
    changes.incomplete = waiting;
    if let Some(begun) = &summary.changes.begun {
        changes.changed_below = changed_base(begun, checkouts.base_files());
    }
    Ok((changes, misfits, unread))
}

/// Returns the files of the store that are not what they were when the checkout was begun.
pub(super) fn changed_base(begun: &LayerBase, now: Option<Vec<BaseFile>>) -> Vec<String> {
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

/// Prints which files of the store changed.
fn print_changed_base(changed: &[String]) {
    for what in changed.iter().take(MOST_FILES) {
        say(&format!("{what} was changed after the checkout was begun"));
    }
    let more = changed.len().saturating_sub(MOST_FILES);
    if more > 0 {
        say(&format!("and {more} more files"));
    }
}
