//! The state that a layer gives an object: stored, deleted, or restored to an earlier state.

use std::collections::BTreeMap;
use std::sync::Arc;

use super::attribute;
use super::index::{PathState, StoredObject};
use crate::tree::prefix;
use npyfs_io::dir::Dir;

/// The state that a layer gives the object at a key. It hides everything in lower layers at the key and below it.
#[derive(Clone, Debug)]
pub enum LayerEntry {
    /// The object is in a file of the layer.
    Stored(Arc<StoredObject>),
    /// No object is there, whatever the lower layers have.
    Deleted,
    /// An object of an earlier layer is restored.
    Again(StoredAgain),
    /// The store's own object is restored, since this time (in nanoseconds since 1970): as if no layer had mentioned
    /// the key.
    Uncovered(i64),
}

/// A restored object of an earlier layer.
#[derive(Clone, Debug)]
pub struct StoredAgain {
    /// The index of that layer, from 0, lowest first.
    pub layer: usize,
    /// Its directory.
    pub dir: Dir,
    /// The object in it, with the time of its restoration.
    pub stored: Arc<StoredObject>,
}

impl From<PathState> for LayerEntry {
    fn from(stored: PathState) -> Self {
        stored.map_or(Self::Deleted, Self::Stored)
    }
}

impl LayerEntry {
    /// Returns the object, if it is in a layer.
    pub fn stored(&self) -> Option<&Arc<StoredObject>> {
        match self {
            Self::Stored(stored) => Some(stored),
            Self::Again(again) => Some(&again.stored),
            Self::Deleted | Self::Uncovered(_) => None,
        }
    }

    /// Returns the object and the directory of its file, if it is in a layer. `layer` is the directory of the layer
    /// with this entry.
    pub fn file<'a>(&'a self, layer: &'a Dir) -> Option<(&'a Dir, &'a Arc<StoredObject>)> {
        match self {
            Self::Stored(stored) => Some((layer, stored)),
            Self::Again(again) => Some((&again.dir, &again.stored)),
            Self::Deleted | Self::Uncovered(_) => None,
        }
    }

    /// Returns the time of the change, in nanoseconds since 1970; `None` for a deletion.
    pub fn time(&self) -> Option<i64> {
        match self {
            Self::Stored(stored) => Some(stored.time),
            Self::Again(again) => Some(again.stored.time),
            Self::Uncovered(since) => Some(*since),
            Self::Deleted => None,
        }
    }

    /// Returns whether the entry deletes the object.
    pub fn is_deletion(&self) -> bool {
        matches!(self, Self::Deleted)
    }
}

/// Removes attributes of objects at and below a key that the layer has stored anew or deleted since.
pub fn forget_old_attributes(entries: &mut BTreeMap<String, LayerEntry>, key: &str) {
    let below = match key {
        "" => String::new(),
        key => format!("{key}/"),
    };
    let is_old = |(key, entry): (&String, &LayerEntry)| {
        let LayerEntry::Stored(stored) = entry else {
            return None;
        };
        let (object, _) = attribute::split(key)?;
        let file = |key: &str| match entries.get(key)? {
            LayerEntry::Stored(stored) => Some(Some(stored.file)),
            _ => Some(None),
        };
        (attribute::nearest(object, file) != stored.of).then(|| key.clone())
    };
    let old: Vec<String> = prefix::entries(entries, below).filter_map(is_old).collect();
    for key in old {
        entries.remove(&key);
    }
}
