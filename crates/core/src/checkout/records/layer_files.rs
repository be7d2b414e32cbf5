//! The files of a layer for readers.

use std::collections::BTreeMap;

use super::entry::{LayerEntry, forget_old_attributes};
use super::fit::StoreIdentity;
use super::index::{IndexChanges, StoredObject};
use super::names::checkout_of;
use npyfs_io::dir::Dir;

/// The files of a layer and the objects in them.
#[derive(Clone, Debug)]
pub struct LayerFiles {
    /// The layer's directory.
    pub dir: Dir,
    /// Every changed object, by its key.
    pub entries: BTreeMap<String, LayerEntry>,
    /// The identities of the stores that objects were written over, by key.
    pub stores: BTreeMap<String, StoreIdentity>,
    /// The id of its commit.
    pub commit: Option<String>,
}

impl LayerFiles {
    /// Returns the layer in `dir` with the objects that its index stores and deletes, without those that it restores.
    pub(in crate::checkout) fn of(dir: &Dir, changes: IndexChanges) -> Self {
        Self {
            stores: changes.stores,
            ..Self::bare(dir, changes.entries)
        }
    }

    /// Returns a layer of which only the objects are known; `None` for a deleted one.
    pub fn bare(dir: &Dir, entries: BTreeMap<String, Option<StoredObject>>) -> Self {
        let entries = entries.into_iter();
        let mut entries = entries.map(|(key, stored)| (key, stored.into())).collect();
        forget_old_attributes(&mut entries, "");
        Self {
            dir: dir.clone(),
            entries,
            stores: BTreeMap::new(),
            commit: None,
        }
    }

    /// Returns the name of its checkout.
    pub fn checkout(&self) -> String {
        checkout_of(&self.dir.name()).to_owned()
    }
}
