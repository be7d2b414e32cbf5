//! The axes of a view: their entries, what they take the place of, and which objects lie along them.

use std::sync::Arc;

use super::fits::{StoreAnswers, split};
use super::said::Said;
use super::{LayerObject, Objects, View};
use crate::checkout::against::{Against, AxisEntries};
use crate::checkout::checkouts::LayerFiles;
use crate::checkout::fit::{other_entries, read_entries};
use crate::error::Result;
use crate::tree::Node;
use crate::tree::name::visible_with;

/// States of an axis that are remembered, at most.
const MOST_BEFORE: usize = 64;

/// An axis as a view shows it.
pub(super) struct Axis {
    pub entries: AxisEntries,
    /// The entries that it took the place of, the latest first.
    before: Vec<AxisEntries>,
    /// The place of its layer, and how many layers its writer saw below; `None`: it is the store's.
    layer: Option<(usize, usize)>,
}

impl Axis {
    /// Returns whether an object of the layer at a place, which was written along some entries, lies along these.
    fn takes(&self, entries: &AxisEntries, at: usize) -> bool {
        let seen = self.layer.is_some_and(|(own, seen)| at == own || at < seen);
        *entries == self.entries || (seen && self.before.contains(entries))
    }

    /// Returns what an axis of other entries takes the place of together with this one.
    pub(super) fn with_all_before(self, new: &AxisEntries) -> Vec<AxisEntries> {
        let mut all = self.before;
        all.insert(0, self.entries);
        all.retain(|entries| entries != new);
        all.truncate(MOST_BEFORE);
        all
    }
}

impl View {
    /// The axis at a key, if one is there; `said`: what the layers say of the key.
    pub(super) fn axis(
        &self,
        known: &mut StoreAnswers,
        said: Option<Said>,
        key: &str,
    ) -> Result<Option<Axis>> {
        let name = visible_with(split(key).1.as_bytes(), ".npy", self.sep());
        let object = match said {
            Some(Said::Object(object)) => Some(object),
            Some(Said::Deleted) => return Ok(None),
            Some(Said::Uncovered(_)) | None => None,
        };
        if let Some(object) = object {
            let (entries, before, seen) = match object.against.as_deref() {
                Some(against) if against.entries.is_some() => {
                    let entries = against.entries.clone();
                    (entries, against.instead_of.clone(), object.seen)
                }
                _ => match object.beside(&name)? {
                    Some(file) => (Some(read_entries(&file.open()?)?), Vec::new(), object.seen),
                    None => (None, Vec::new(), 0),
                },
            };
            return Ok(entries.map(|entries| Axis {
                entries,
                before,
                layer: Some((object.at, seen)),
            }));
        }
        let mut dir = self.base.clone();
        let shown = self.shown(key);
        for name in shown.split_last().map_or(&[][..], |(_, above)| above) {
            match dir.lookup(name)? {
                Some(Node::Directory(below)) => dir = below,
                _ => return Ok(None),
            }
        }
        let Some(Node::File(file)) = dir.lookup(&name)? else {
            return Ok(None);
        };
        let version = file.version();
        let entries = match known.entries.get(key) {
            Some((of, entries)) if *of == version => entries.clone(),
            _ => {
                let entries = read_entries(&file.open()?)?;
                known
                    .entries
                    .insert(key.to_owned(), (version, entries.clone()));
                entries
            }
        };
        known.files.insert(key.to_owned(), file);
        Ok(Some(Axis {
            entries,
            before: Vec::new(),
            layer: None,
        }))
    }

    /// Checks an axis of a layer against the one that it takes the place of. Answers it with what it stands for.
    pub(super) fn axis_fits(
        &self,
        known: &mut StoreAnswers,
        objects: &Objects,
        key: &str,
        mut object: LayerObject,
        layers: &[LayerFiles],
    ) -> std::result::Result<LayerObject, String> {
        let Ok(below) = self.axis(known, objects.said(key), key) else {
            // What cannot be read now says nothing.
            return Ok(object);
        };
        let name = split(key).1;
        let Some(against) = object.against.clone() else {
            // An older version did not remember what it replaced: only the length was checked.
            object.seen = object.at;
            let own = self.own_entries(&object, name);
            if let (Some(own), Some(below)) = (own, below) {
                if own.count() != below.entries.count() {
                    return Err(other_entries(name, &own, Some(&below.entries)));
                }
                let against = Against {
                    instead_of: below.with_all_before(&own),
                    entries: Some(own),
                    ..Default::default()
                };
                object.against = Some(Arc::new(against));
            }
            return Ok(object);
        };
        object.seen = seen(layers, object.at, against.on.as_deref());
        let Some((below, own)) = below.zip(against.entries.as_ref()) else {
            return Ok(object);
        };
        if below.entries == *own || against.instead_of.contains(&below.entries) {
            return Ok(object);
        }
        Err(match against.instead_of.first() {
            Some(before) => format!(
                "it was written in the place of an axis with {} entries, and the one there now, with {}, is another",
                before.count(),
                below.entries.count()
            ),
            None => format!(
                "it was written as a new axis, and there is one with {} entries now",
                below.entries.count()
            ),
        })
    }

    /// Checks an object against the axes that it lies along.
    pub(super) fn property_fits(
        &self,
        known: &mut StoreAnswers,
        objects: &Objects,
        key: &str,
        object: &LayerObject,
    ) -> std::result::Result<(), String> {
        let (above, name) = split(key);
        let along: Vec<(String, AxisEntries)> = match &object.against {
            Some(against) => against.along.clone().into_iter().collect(),
            // Files of layers hold a copy of each axis.
            None => self
                .formats
                .along(name)
                .into_iter()
                .filter_map(|axis| Some((axis.clone(), self.own_entries(object, &axis)?)))
                .collect(),
        };
        for (axis, entries) in along {
            let axis_key = format!("{above}{axis}");
            match self.axis(known, objects.said(&axis_key), &axis_key) {
                Ok(Some(now)) if now.takes(&entries, object.at) => {}
                Ok(now) => {
                    let now = now.map(|now| now.entries);
                    return Err(other_entries(&axis, &entries, now.as_ref()));
                }
                // What cannot be read now says nothing.
                Err(_) => {}
            }
        }
        Ok(())
    }

    /// The entries of an axis in the file of an object.
    fn own_entries(&self, object: &LayerObject, axis: &str) -> Option<AxisEntries> {
        let name = visible_with(axis.as_bytes(), ".npy", self.sep());
        let file = object.beside(&name).ok()??;
        read_entries(&file.open().ok()?).ok()
    }
}

/// Returns how many layers who wrote in the layer at a place saw below, if the commit `on` was the uppermost.
fn seen(layers: &[LayerFiles], at: usize, on: Option<&str>) -> usize {
    let below = layers.get(..at).unwrap_or_default();
    let of = below
        .iter()
        .position(|layer| on.is_some() && layer.commit.as_deref() == on);
    of.map_or(0, |of| of + 1)
}
