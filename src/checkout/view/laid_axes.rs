//! The axes of layers as they were found to fit, for commits that restore them.
//!
//! An axis that is restored stands where its own layer put it: what it took the place of then says whether it fits, and what was seen
//! to lie along it. What it takes the place of now does not count.

use std::collections::{HashMap, HashSet};
use std::result::Result;

use super::LayerObject;
use crate::checkout::checkouts::LayerFiles;
use crate::checkout::entry::LayerEntry;

/// The axes that later layers restore, by the places of their own layers and their keys.
pub(super) struct LaidAxes {
    wanted: HashSet<(usize, String)>,
    found: HashMap<(usize, String), Result<LayerObject, String>>,
}

impl LaidAxes {
    /// Collects what the layers restore.
    pub(super) fn wanted_by(layers: &[LayerFiles]) -> Self {
        let entries = layers.iter().flat_map(|layer| &layer.entries);
        let wanted = entries.filter_map(|(key, entry)| match entry {
            LayerEntry::Again(again) => Some((again.layer, key.clone())),
            _ => None,
        });
        Self {
            wanted: wanted.collect(),
            found: HashMap::new(),
        }
    }

    /// Remembers whether the axis of a layer fits, if that is wanted.
    pub(super) fn remember(&mut self, at: usize, key: &str, fitting: &Result<LayerObject, String>) {
        if self.wanted.is_empty() {
            return;
        }
        let place = (at, key.to_owned());
        if self.wanted.contains(&place) {
            self.found.insert(place, fitting.clone());
        }
    }

    /// Returns the axis of the layer at a place, as `again` is shown.
    pub(super) fn again(
        &self,
        at: usize,
        key: &str,
        again: &LayerObject,
    ) -> Result<LayerObject, String> {
        match self.found.get(&(at, key.to_owned())) {
            Some(Ok(axis)) => Ok(LayerObject {
                origin: again.origin.clone(),
                ..axis.clone()
            }),
            Some(Err(why)) => Err(why.clone()),
            None => Err("it was written over another store".to_owned()),
        }
    }
}
