//! The states of objects after some layers.

use std::collections::BTreeMap;

use crate::checkout::checkouts::LayerFiles;
use crate::checkout::entry::LayerEntry;

/// The state of an object, as the layers say it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ObjectState {
    /// It is in a file of a layer.
    Stored {
        /// The place of the layer, from 0 on.
        layer: usize,
        /// The number of the file.
        file: u64,
    },
    /// It is not there.
    Deleted,
    /// It is what the store itself has.
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
}

/// The states of all objects that layers say something of. What a layer says of a key hides what was said of it, and of all below
/// it, before.
#[derive(Default)]
pub(super) struct ObjectStates(BTreeMap<String, ObjectState>);

impl ObjectStates {
    /// Puts the layer at a place on top.
    pub(super) fn add(&mut self, at: usize, layer: &LayerFiles) {
        for (key, entry) in &layer.entries {
            let below: Vec<String> = self.below(key).map(|(key, _)| key.to_owned()).collect();
            for key in below {
                self.0.remove(&key);
            }
            self.0.insert(key.clone(), ObjectState::of(at, entry));
        }
    }

    /// Returns the state of the object at a key; what no layer says anything of is the store's.
    pub(super) fn at(&self, key: &str) -> ObjectState {
        let said = self.0.get(key).copied();
        said.unwrap_or(ObjectState::OfTheStore)
    }

    /// The objects below a key of which layers say something.
    pub(super) fn below(&self, key: &str) -> impl Iterator<Item = (&str, ObjectState)> {
        let start = format!("{key}/");
        let below = self.0.range(start.clone()..);
        below
            .take_while(move |(key, _)| key.starts_with(&start))
            .map(|(key, &state)| (key.as_str(), state))
    }
}
