//! Conflicts: objects of a layer that other commits have changed since. `commit` refuses them unless told which side
//! wins.
//!
//! Two changes conflict if they concern the same object, if one is a group that contains the other (an object hides
//! everything below its key), or if one is an axis of the other's object.

use serde::{Deserialize, Serialize};

use crate::checkout::records::entry::LayerEntry;
use crate::checkout::records::layer_files::LayerEntries;
use crate::tree::prefix;

/// An object of the layer that conflicts with one of a committed layer.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Conflict {
    /// The change in the checkout, for people.
    pub ours: String,
    /// The change in the other commit, for people.
    pub theirs: String,
    /// The index of the committed layer, from 0.
    pub commit: usize,
    /// Whether the object was deleted: in the layer, and in the committed one.
    pub deleted: (bool, bool),
}

/// Returns the conflicts of a layer's objects with those of the committed layer number `commit`.
pub fn conflicts(ours: &LayerEntries, theirs: &LayerEntries, commit: usize) -> Vec<Conflict> {
    let mut found = Vec::new();
    if theirs.is_empty() {
        return found;
    }
    for (key, stored) in ours {
        let mut meet = |other: &str, theirs: &LayerEntry| {
            found.push(Conflict {
                ours: key.clone(),
                theirs: other.to_owned(),
                commit,
                deleted: (stored.is_deletion(), theirs.is_deletion()),
            });
        };
        for above in ancestors(key) {
            if let Some(stored) = theirs.get(above) {
                meet(above, stored);
            }
        }
        if let Some(stored) = theirs.get(key) {
            meet(key, stored);
        }
        for (other, stored) in prefix::entries(theirs, format!("{key}/")) {
            meet(other, stored);
        }
        for axis in axes(key) {
            if let Some(stored) = theirs.get(&axis) {
                meet(&axis, stored);
            }
        }
        if let Some((dir, _)) = axis(key) {
            for (other, stored) in prefix::entries(theirs, dir.to_owned()) {
                if axes(other).any(|used| used == *key) {
                    meet(other, stored);
                }
            }
        }
    }
    found
}

/// Returns the keys of the groups that contain an object, outermost first.
fn ancestors(key: &str) -> impl Iterator<Item = &str> {
    key.match_indices('/').map(|(at, _)| &key[..at])
}

/// Splits a key into the directory, with its slash, and the last name.
fn split(key: &str) -> (&str, &str) {
    key.split_at(key.rfind('/').map_or(0, |at| at + 1))
}

/// Returns the directory and the axis, if the object is an axis: `cell#`.
fn axis(key: &str) -> Option<(&str, &str)> {
    let (dir, name) = split(key);
    let axis = name.strip_suffix('#')?;
    (!axis.is_empty() && !axis.contains(['#', ','])).then_some((dir, axis))
}

/// Returns the keys of the axes of an object: `cell#` and `gene#` for `cell,gene#UMIs`.
fn axes(key: &str) -> impl Iterator<Item = String> {
    let (dir, name) = split(key);
    let along = name.split_once('#').filter(|(_, own)| !own.is_empty());
    let axes = along.map(|(axes, _)| axes.split(','));
    axes.into_iter()
        .flatten()
        .map(move |axis| format!("{dir}{axis}#"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn entries(keys: &[&str]) -> LayerEntries {
        let entry = |key: &&str| ((*key).to_owned(), LayerEntry::Deleted);
        keys.iter().map(entry).collect()
    }

    fn met(ours: &[&str], theirs: &[&str]) -> Vec<(String, String)> {
        let found = conflicts(&entries(ours), &entries(theirs), 0);
        found.into_iter().map(|c| (c.ours, c.theirs)).collect()
    }

    fn pair(ours: &str, theirs: &str) -> Vec<(String, String)> {
        vec![(ours.to_owned(), theirs.to_owned())]
    }

    #[test]
    fn one_object_or_a_group_and_what_is_in_it() {
        assert_eq!(met(&["a", "b"], &["b", "c"]), pair("b", "b"));
        assert_eq!(met(&["g/h/x"], &["g", "gh", "g/i"]), pair("g/h/x", "g"));
        assert_eq!(met(&["g"], &["g/h/x", "g.h", "g0"]), pair("g", "g/h/x"));
        assert!(met(&["g/x", "ga"], &["g/y", "g/xy"]).is_empty());
    }

    #[test]
    fn an_axis_and_what_lies_along_it() {
        assert_eq!(
            met(&["cell#age"], &["cell#", "gene#"]),
            pair("cell#age", "cell#")
        );
        assert_eq!(
            met(&["cell,gene#UMIs"], &["gene#"]),
            pair("cell,gene#UMIs", "gene#")
        );
        assert_eq!(
            met(&["d/gene#"], &["cell,gene#U", "d/cell,gene#U"]),
            pair("d/gene#", "d/cell,gene#U")
        );
        assert!(met(&["cell#"], &["gene#", "e/cell#x", "cells#x"]).is_empty());
    }
}
