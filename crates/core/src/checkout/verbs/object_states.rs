//! The state of each object after a number of layers, and the entry that brings an earlier state back.

use std::collections::BTreeMap;
use std::sync::Arc;

use crate::checkout::records::entry::{LayerEntry, StoredAgain};
use crate::checkout::records::index::StoredObject;
use crate::checkout::records::layer_files::LayerFiles;
use npyfs_base::error::{Error, Result};

/// The state of an object according to the layers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ObjectState {
    /// The object is in a file of a layer.
    Stored {
        /// The index of the layer, from 0.
        layer: usize,
        /// The number of the file.
        file: u64,
    },
    /// The object does not exist.
    Deleted,
    /// The object is the store's own.
    OfTheStore,
}

impl ObjectState {
    fn of(at: usize, entry: &LayerEntry) -> Self {
        match entry {
            LayerEntry::Stored(stored) => Self::Stored {
                layer: at,
                file: stored.file,
            },
            LayerEntry::Again(again) => Self::Stored {
                layer: again.layer,
                file: again.stored.file,
            },
            LayerEntry::Deleted => Self::Deleted,
            LayerEntry::Uncovered(_) => Self::OfTheStore,
        }
    }

    /// Returns the entry that restores this state at a key. `below` are the layers that it is of; `time` is that of the
    /// restoration.
    pub(super) fn entry(self, key: &str, below: &[LayerFiles], time: i64) -> Result<LayerEntry> {
        let Self::Stored { layer, file } = self else {
            return Ok(match self {
                Self::Deleted => LayerEntry::Deleted,
                _ => LayerEntry::Uncovered(time),
            });
        };
        let own = below.get(layer);
        match own.and_then(|own| Some((own, own.entries.get(key)?))) {
            Some((own, LayerEntry::Stored(stored))) if stored.file == file => {
                Ok(LayerEntry::Again(StoredAgain {
                    layer,
                    dir: own.dir.clone(),
                    stored: Arc::new(StoredObject {
                        time,
                        ..(**stored).clone()
                    }),
                }))
            }
            _ => Err(Error::damaged("what it was before is not there").about(key)),
        }
    }
}

/// The states of all objects that layers mention. An entry of a layer hides all earlier entries at its key and below.
#[derive(Default)]
pub(super) struct ObjectStates(BTreeMap<String, ObjectState>);

impl ObjectStates {
    /// Adds the layer with an index on top.
    pub(super) fn add(&mut self, at: usize, layer: &LayerFiles) {
        for (key, entry) in &layer.entries {
            let below: Vec<String> = self.below(key).map(|(key, _)| key.to_owned()).collect();
            for key in below {
                self.0.remove(&key);
            }
            self.0.insert(key.clone(), ObjectState::of(at, entry));
        }
    }

    /// Returns the state of the object at a key. An object that no layer mentions is the store's.
    pub(super) fn at(&self, key: &str) -> ObjectState {
        self.said(key).unwrap_or(ObjectState::OfTheStore)
    }

    /// Returns the state of the object at a key; `None` if no layer mentions it.
    pub(super) fn said(&self, key: &str) -> Option<ObjectState> {
        self.0.get(key).copied()
    }

    /// Returns the objects below a key that layers mention.
    pub(super) fn below(&self, key: &str) -> impl Iterator<Item = (&str, ObjectState)> {
        let start = format!("{key}/");
        let below = self.0.range(start.clone()..);
        below
            .take_while(move |(key, _)| key.starts_with(&start))
            .map(|(key, &state)| (key.as_str(), state))
    }
}
