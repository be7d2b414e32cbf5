//! `npyfs checkout diff`: lists what a checkout changes of the store. `revert --dry-run` and staging areas give such a
//! list as well.

use std::collections::HashSet;
use std::path::{Component, Path};
use std::sync::Arc;

use serde::Serialize;

use super::attr::described;
use super::layers::{
    BEHIND, BaseStore, CheckoutArgs, Selected, describe, line_of, print_misfits, refused,
    writing_mount,
};
use super::mounted::sync_for_a_look;
use crate::cli::output::{Listing, Name, OutputFormat, Report};
use crate::cli::{CliError, say};
use npyfs_base::printable;
use npyfs_core::checkout::history::checkouts::Summary;
use npyfs_core::checkout::records::attribute;
use npyfs_core::checkout::records::entry::LayerEntry;
use npyfs_core::checkout::records::fit::Misfit;
use npyfs_core::checkout::records::index::{BaseFile, LayerBase};
use npyfs_core::checkout::view::forms;
use npyfs_core::tree::Directory;

/// The most files of the store that are named.
const MOST_FILES: usize = 20;

/// The number of times that the list is made: another process may write in the checkout meanwhile.
const TRIES: usize = 10;

/// The part of a store that is listed, by the key of its directory; empty for all.
struct Part(String);

impl Part {
    fn inside(inside: Option<&Path>) -> Self {
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
    let part = Part::inside(inside.as_deref());
    let found = whole.find(name)?;
    let name = found.name_or_only(BEHIND)?;
    // Small arrays may still be in the memory of the mount.
    let mount = found.mount.clone();
    if let Some(mount) = mount.or_else(|| writing_mount(&found.checkouts, &name)) {
        sync_for_a_look(&mount);
    }
    let mut tries = 0;
    let (changes, misfits, unread) = loop {
        let summary = found.checkouts.find(&name).map_err(refused)?;
        let listed = list(&found, &summary, &part)?;
        tries += 1;
        // An object that was replaced meanwhile has another file now.
        let now = found.checkouts.find(&name).map_err(refused)?;
        let changed = |of: &Summary| (of.changes.entries.clone(), of.changes.restored.clone());
        let is_same = changed(&now) == changed(&summary);
        if listed.2 == 0 || tries == TRIES || is_same {
            break listed;
        }
    };
    print_misfits(&misfits);
    format.print(&changes)?;
    for waiting in &changes.incomplete {
        say(&format!("not complete: {waiting}"));
    }
    print_changed_base(&changes.changed_below);
    match unread {
        0 => Ok(()),
        n => Err(CliError::object(format!("{n} objects cannot be read"))),
    }
}

/// Returns the changes of a checkout, its objects that do not fit the store, and the number of objects that cannot be
/// read.
fn list(
    found: &Selected,
    summary: &Summary,
    part: &Part,
) -> Result<(Changes, Vec<Misfit>, usize), CliError> {
    let checkouts = &found.checkouts;
    let base = BaseStore::open(checkouts)?;
    let mut layers = checkouts.committed().map_err(refused)?;
    let below = base.with(&layers).root();
    let own = summary.on_top(&layers).map_err(refused)?;
    layers.push(own.clone());
    let above = base.with(&layers);
    let misfits = above.misfits();
    let above = above.root();
    let unfit = misfits
        .iter()
        .filter(|misfit| misfit.layer + 1 == layers.len());
    let unfit: HashSet<&str> = unfit.map(|misfit| misfit.key.as_str()).collect();
    let mut changes = Changes::default();
    // An object that cannot be read does not hide the others.
    let mut unread = 0;
    let changed = own.entries.iter().filter(|(key, _)| part.concerns(key));
    for (key, entry) in changed {
        if unfit.contains(key.as_str()) {
            continue;
        }
        if let Some((object, attribute)) = attribute::split(key) {
            match attribute_change(&below, &above, object, &attribute) {
                Ok(Some((path, what))) => {
                    changes.add(ChangeKind::Modified, path.as_bytes(), Some(what));
                }
                Ok(None) => {}
                Err(e) => {
                    unread += 1;
                    let why = format!("attribute {attribute}: cannot be read: {e}");
                    changes.add(ChangeKind::Modified, object.as_bytes(), Some(why));
                }
            }
            continue;
        }
        let before = match forms(&below, key) {
            Ok(before) => before,
            Err(e) => {
                unread += 1;
                let kind = match entry.is_deletion() {
                    false => ChangeKind::Modified,
                    true => ChangeKind::Deleted,
                };
                let why = format!("what was there cannot be read: {e}");
                changes.add(kind, key.as_bytes(), Some(why));
                continue;
            }
        };
        let (kind, shown) = match (entry.is_deletion(), before.is_empty()) {
            // The object was made and deleted in this checkout.
            (true, true) => continue,
            (true, false) => (ChangeKind::Deleted, before),
            (false, is_new) => {
                let file = entry.file(&own.dir);
                let there = file.map(|(dir, stored)| dir.metadata(&stored.name()));
                let there = there.transpose().map(drop);
                let now = match there.and_then(|()| forms(&above, key)) {
                    Ok(now) => now,
                    Err(e) => {
                        unread += 1;
                        let kind = written(is_new);
                        changes.add(kind, key.as_bytes(), Some(format!("cannot be read: {e}")));
                        continue;
                    }
                };
                match (entry, now.is_empty(), is_new) {
                    // The store has no object of its own that could be restored.
                    (LayerEntry::Uncovered(_), true, true) => continue,
                    (LayerEntry::Uncovered(_), true, false) => (ChangeKind::Deleted, before),
                    _ => (written(is_new), now),
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

fn written(is_new: bool) -> ChangeKind {
    match is_new {
        true => ChangeKind::Added,
        false => ChangeKind::Modified,
    }
}

/// Describes the change of an attribute, with the path of its object; `None` if it is as it was.
pub(super) fn attribute_change(
    below: &Arc<dyn Directory>,
    above: &Arc<dyn Directory>,
    object: &str,
    name: &str,
) -> npyfs_base::error::Result<Option<(String, String)>> {
    let (_, before) = described(below, object, name)?;
    let (path, now) = described(above, object, name)?;
    // An attribute that was removed is gone with its object.
    let is_gone = now.is_none() && !object.is_empty() && forms(above, object)?.is_empty();
    if before == now || is_gone {
        return Ok(None);
    }
    let what = match now {
        Some(value) => format!("attributes: {name}={value}"),
        None => format!("attributes: no {name} any more"),
    };
    Ok(Some((path, what)))
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

/// The kind of a change.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub(super) enum ChangeKind {
    Added,
    Modified,
    Deleted,
}

impl ChangeKind {
    fn letter(self) -> char {
        match self {
            Self::Added => 'A',
            Self::Modified => 'M',
            Self::Deleted => 'D',
        }
    }
}

/// A change of one object.
#[derive(Serialize)]
struct Change {
    change: ChangeKind,
    #[serde(flatten)]
    name: Name,
    #[serde(skip_serializing_if = "Option::is_none")]
    description: Option<String>,
}

/// The changes of a checkout or staging area.
#[derive(Default, Serialize)]
pub(super) struct Changes {
    changes: Vec<Change>,
    /// Objects that are not complete, a line for each.
    pub(super) incomplete: Vec<String>,
    /// Files of the store that changed after the checkout was begun.
    pub(super) changed_below: Vec<String>,
}

impl Changes {
    /// Adds a change.
    pub(super) fn add(&mut self, change: ChangeKind, name: &[u8], description: Option<String>) {
        self.changes.push(Change {
            change,
            name: Name::new(name),
            description,
        });
    }
}

impl Report for Changes {
    fn text(&self) -> String {
        let mut text = String::new();
        for change in &self.changes {
            text += &format!("{} {}", change.change.letter(), change.name);
            if let Some(description) = &change.description {
                text += &format!("  {}", printable::line(description));
            }
            text.push('\n');
        }
        text
    }
}

impl Listing for Changes {
    /// The letter, a blank and the name of each change.
    fn names(&self) -> Vec<Vec<u8>> {
        let head = |change: &Change| format!("{} ", change.change.letter()).into_bytes();
        let named = |change: &Change| [&*head(change), &*change.name.0].concat();
        self.changes.iter().map(named).collect()
    }
}
