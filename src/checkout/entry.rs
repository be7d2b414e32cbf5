//! The state that a layer gives an object: stored, deleted, or what it was before some commit.

use super::checkouts::LayerFiles;
use super::index::StoredObject;
use crate::io::dir::Dir;

/// The state that a layer gives the object at a key. It hides what the layers below say of the key and of all below it.
#[derive(Clone, Debug)]
pub enum LayerEntry {
    /// The object is in a file of the layer.
    Stored(StoredObject),
    /// No object is there, whatever is below the layer.
    Deleted,
    /// The object that an earlier layer stored is there again.
    Again(StoredAgain),
    /// The store's own object is there again, since this time (in nanoseconds since 1970): as if no layer had
    /// said anything of the key.
    Uncovered(i64),
}

/// An object of an earlier layer.
#[derive(Clone, Debug)]
pub struct StoredAgain {
    /// The place of that layer, from 0 on, lowest first.
    pub layer: usize,
    /// Its directory.
    pub dir: Dir,
    /// The object in it, with the time since which it is there again.
    pub stored: StoredObject,
}

impl From<Option<StoredObject>> for LayerEntry {
    fn from(stored: Option<StoredObject>) -> Self {
        stored.map_or(Self::Deleted, Self::Stored)
    }
}

impl LayerEntry {
    /// Returns the object, if a layer has it.
    pub fn stored(&self) -> Option<&StoredObject> {
        match self {
            Self::Stored(stored) => Some(stored),
            Self::Again(again) => Some(&again.stored),
            Self::Deleted | Self::Uncovered(_) => None,
        }
    }

    /// Returns the directory that the object's file is in, and the object, if a layer has it. `layer`: the one that says so.
    pub fn file<'a>(&'a self, layer: &'a LayerFiles) -> Option<(&'a Dir, &'a StoredObject)> {
        match self {
            Self::Stored(stored) => Some((&layer.dir, stored)),
            Self::Again(again) => Some((&again.dir, &again.stored)),
            Self::Deleted | Self::Uncovered(_) => None,
        }
    }

    /// Returns whether no object is there.
    pub fn is_deletion(&self) -> bool {
        matches!(self, Self::Deleted)
    }
}
