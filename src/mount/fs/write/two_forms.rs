//! Members that are shown in two forms: `name.npy`, and a directory `name/` of its parts.
//!
//! A program that writes one form means the member. The stored files of the other form are then no part of the object
//! any more. A program that copies both forms (`cp -r`) would find the second form in the place where it is about to
//! create it. Files that an object gained and that no program wrote are therefore hidden in this mount until a program
//! writes them, too.

use std::collections::BTreeSet;
use std::sync::Arc;

use super::Writer;
use super::body::{Body, BodyContent};
use super::pending::{Path, PendingEntry};
use npyfs_base::error::Result;
use npyfs_core::tree::{Directory, Node};
use npyfs_io::content::Content;

/// The number of bytes that are compared at a time.
const STEP: usize = 1 << 20;

/// The suffix of the file form.
const FILE: &[u8] = b".npy";

/// Returns the other forms of the entry at a path, and of the members on the way to it, below the first `depth` names.
pub(super) fn twins(path: &[Vec<u8>], depth: usize) -> impl Iterator<Item = Path> {
    (depth..path.len()).filter_map(move |at| {
        let mut twin = path.get(..=at)?.to_vec();
        let last = twin.last_mut()?;
        if at + 1 < path.len() {
            last.extend_from_slice(FILE);
        } else {
            let stem = last.strip_suffix(FILE).filter(|stem| !stem.is_empty())?;
            *last = stem.to_vec();
        }
        Some(twin)
    })
}

/// Returns true if a stored file is no longer part of its object because its other form was written, at one of
/// `written`.
pub(super) fn is_replaced(path: &[Vec<u8>], depth: usize, written: &BTreeSet<Path>) -> bool {
    twins(path, depth).any(|twin| {
        let mut from = written.range(twin.clone()..);
        from.next().is_some_and(|other| other.starts_with(&twin))
    })
}

/// Returns the file that a directory is another form of.
pub(super) fn file_beside(directory: &[Vec<u8>]) -> Option<Path> {
    let mut file = directory.to_vec();
    file.last_mut()?.extend_from_slice(FILE);
    Some(file)
}

/// Returns all entries of the directory at a path, and the file beside it.
fn forms(
    top: &[Vec<u8>],
    node: Option<Node>,
    look: impl FnOnce(&[Vec<u8>]) -> Result<Option<Node>>,
) -> Result<Vec<Path>> {
    let mut all = Vec::new();
    if let Some(Node::Directory(dir)) = node {
        below(&*dir, &mut top.to_vec(), &mut all)?;
    }
    if let Some(file) = file_beside(top)
        && look(&file)?.is_some()
    {
        all.push(file);
    }
    Ok(all)
}

impl Writer {
    /// Returns the directories that were made at a path or below it and have nothing stored yet.
    pub(super) fn unstored_directories(&self, top: &[Vec<u8>]) -> Result<Vec<Path>> {
        let mut unstored = Vec::new();
        for (path, entry) in self.pending.below(top) {
            if matches!(entry, PendingEntry::Directory(_)) && self.stored(&path)?.is_none() {
                unstored.push(path);
            }
        }
        Ok(unstored)
    }

    /// Returns true if a scratch file is byte for byte equal to the stored file at its path.
    pub(super) fn is_unchanged(&self, path: &[Vec<u8>], body: &Arc<Body>) -> Result<bool> {
        let Some(Node::File(file)) = self.stored(path)? else {
            return Ok(false);
        };
        let Ok(stored) = file.open() else {
            return Ok(false);
        };
        Ok(are_equal(&*stored, &BodyContent::new(body)?).unwrap_or(false))
    }

    /// Returns all shown entries below a path, and the file beside it.
    pub(super) fn shown_below(&self, top: &[Vec<u8>]) -> Result<BTreeSet<Path>> {
        let all = forms(top, self.merged(top)?, |file| self.shown(file))?;
        Ok(all.into_iter().collect())
    }

    /// Hides the stored entries below a path, and the stored file beside it, that were not shown before: they only
    /// follow from the written ones.
    pub(super) fn leave_unseen(&self, top: &[Vec<u8>], before: &BTreeSet<Path>) -> Result<()> {
        let mut all = forms(top, self.stored(top)?, |file| self.stored(file))?;
        all.retain(|path| !before.contains(path));
        let mut entries = self.pending.entries();
        for path in all {
            entries.entry(path).or_insert(PendingEntry::Unwritten);
        }
        Ok(())
    }
}

fn below(dir: &dyn Directory, path: &mut Path, all: &mut Vec<Path>) -> Result<()> {
    for (name, node) in dir.list()?.iter() {
        path.push(name.to_vec());
        all.push(path.clone());
        if let Node::Directory(dir) = &*node {
            below(&**dir, path, all)?;
        }
        path.pop();
    }
    Ok(())
}

fn are_equal(one: &dyn Content, other: &dyn Content) -> Result<bool> {
    if one.len() != other.len() {
        return Ok(false);
    }
    let mut blocks = [vec![0; STEP], vec![0; STEP]];
    let mut at = 0;
    while at < one.len() {
        let size = usize::try_from(one.len() - at).unwrap_or(STEP).min(STEP);
        let [a, b] = &mut blocks;
        let (Some(a), Some(b)) = (a.get_mut(..size), b.get_mut(..size)) else {
            return Ok(false);
        };
        one.read_at(at, a)?;
        other.read_at(at, b)?;
        if a != b {
            return Ok(false);
        }
        at += size as u64;
    }
    Ok(true)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn path(names: &[&str]) -> Path {
        names.iter().map(|name| name.as_bytes().to_vec()).collect()
    }

    #[test]
    fn a_path_has_a_twin_at_each_of_its_names() {
        let found: Vec<_> = twins(&path(&["s", "frame", "c", "codes.npy"]), 2).collect();
        assert_eq!(
            found,
            [
                path(&["s", "frame", "c.npy"]),
                path(&["s", "frame", "c", "codes"])
            ]
        );
        assert_eq!(twins(&path(&["s", "frame", ".npy"]), 2).count(), 0);
    }

    #[test]
    fn what_was_written_replaces_its_twin_and_nothing_else() {
        let written = BTreeSet::from([path(&["o", "c.npy"]), path(&["o", "d", "codes.npy"])]);
        let is = |names: &[&str]| is_replaced(&path(names), 1, &written);
        assert!(is(&["o", "c", "codes.npy"]) && is(&["o", "d.npy"]));
        assert!(!is(&["o", "d", "values.npy"]) && !is(&["o", "cc", "codes.npy"]));
        assert!(!is(&["o", "dd.npy"]) && !is(&["o", "codes.npy"]));
    }
}
