//! The arrays of a directory of a store.

use crate::npy::dtype::DType;

/// A description of an array, from [`Store::entries`](super::Store::entries).
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Entry {
    /// The path in the store as a mount names it, with `.npy` and without a leading `/`.
    pub path: String,
    /// The type of the elements.
    pub dtype: DType,
    /// The number of entries along each axis; empty for a 0-d array.
    pub shape: Vec<usize>,
}

/// The arrays of one directory, in order of name.
#[derive(Debug)]
pub struct Entries {
    pub(super) entries: std::vec::IntoIter<Entry>,
    pub(super) directories: Vec<String>,
    pub(super) left_out: Vec<(String, String)>,
}

impl Entries {
    /// Returns the paths of the directories beside the arrays.
    pub fn directories(&self) -> &[String] {
        &self.directories
    }

    /// Returns what is not among the entries, and why: objects that `.npy` cannot hold, and damaged ones.
    pub fn left_out(&self) -> &[(String, String)] {
        &self.left_out
    }
}

impl Iterator for Entries {
    type Item = Entry;

    fn next(&mut self) -> Option<Entry> {
        self.entries.next()
    }

    fn size_hint(&self) -> (usize, Option<usize>) {
        self.entries.size_hint()
    }
}

impl ExactSizeIterator for Entries {}
