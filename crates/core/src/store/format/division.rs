//! The objects of a store divided among the files of a set.

use npyfs_hdf5::EditStep;

/// The files that a store is divided among.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Parts {
    /// One file that is no part of a set.
    Single,
    /// So many files of a set; not 0.
    Set(usize),
}

impl Parts {
    /// Returns the number of files.
    pub fn count(self) -> usize {
        match self {
            Self::Single => 1,
            Self::Set(count) => count.max(1),
        }
    }
}

/// The steps that make each file of a set, and what cannot be divided.
#[derive(Debug)]
pub struct Division {
    /// By file: what puts its share of each object in, whose path is free.
    pub steps: Vec<Vec<EditStep>>,
    /// The keys of objects that are left out, and why.
    pub lost: Vec<(String, String)>,
}
