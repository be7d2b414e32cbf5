//! The axes of a view: their entries, the axes they replace, and the objects along them.

use super::fits::{StoreAnswers, split};
use super::object::KeyState;
use super::{LayerObject, Objects, View};
use crate::checkout::records::fit::{other_entries, read_entries};
use crate::checkout::records::layer_files::{CommitId, LayerFiles};
use crate::store::against::AxisEntries;
use crate::tree::Node;
use crate::tree::name::visible_with;
use crate::tree::path::walk;
use npyfs_base::error::Result;

/// The most earlier states of an axis that are remembered.
const MOST_BEFORE: usize = 64;

/// An axis as a view shows it.
pub(super) struct Axis {
    pub entries: AxisEntries,
    /// The entries of the axes that it replaced, latest first.
    before: Vec<AxisEntries>,
    /// The index of its layer, and the number of lower layers that its writer saw; `None` for an axis of the store.
    layer: Option<(usize, usize)>,
}

impl Axis {
    /// Returns whether an object of the layer with index `at`, which was written along `entries`, lies along this axis.
    fn fits(&self, entries: &AxisEntries, at: usize) -> bool {
        let seen = self.layer.is_some_and(|(own, seen)| at == own || at < seen);
        *entries == self.entries || (seen && self.before.contains(entries))
    }

    /// Returns the states that an axis with other entries replaces, including this one.
    pub(super) fn with_all_before(self, new: &AxisEntries) -> Vec<AxisEntries> {
        let mut all = self.before;
        all.insert(0, self.entries);
        all.retain(|entries| entries != new);
        all.truncate(MOST_BEFORE);
        all
    }
}

impl View {
    /// Returns the axis at a key, if there is one; `said` is the state of the key in the layers.
    pub(super) fn axis(
        &self,
        known: &mut StoreAnswers,
        said: Option<KeyState>,
        key: &str,
    ) -> Result<Option<Axis>> {
        let name = visible_with(split(key).1.as_bytes(), ".npy", self.sep());
        let object = match said {
            Some(KeyState::Object(object)) => Some(object),
            Some(KeyState::Deleted) => return Ok(None),
            Some(KeyState::Uncovered(_) | KeyState::Attribute(_)) | None => None,
        };
        if let Some(object) = object {
            let (entries, before, seen) = match object.stored.against.as_deref() {
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
        let mut shown = self.shown(key);
        shown.pop();
        shown.push(name);
        let Some(Node::File(file)) = walk(self.base.clone(), shown)? else {
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

    /// Checks an axis of a layer against the axis that it replaces. Returns it with the states that it stands for.
    pub(super) fn axis_fits(
        &self,
        known: &mut StoreAnswers,
        objects: &Objects,
        key: &str,
        mut object: LayerObject,
        layers: &[LayerFiles],
    ) -> std::result::Result<LayerObject, String> {
        let Ok(below) = self.axis(known, objects.state(key), key) else {
            // An axis that cannot be read now is not checked.
            return Ok(object);
        };
        let Some(against) = object.stored.against.clone() else {
            return Ok(object);
        };
        object.seen = layers_seen(layers, object.at, against.on.as_deref());
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

    /// Checks an object against its axes.
    pub(super) fn property_fits(
        &self,
        known: &mut StoreAnswers,
        objects: &Objects,
        key: &str,
        object: &LayerObject,
    ) -> std::result::Result<(), String> {
        let (above, _) = split(key);
        let along = object
            .stored
            .against
            .iter()
            .flat_map(|against| &against.along);
        for (axis, entries) in along {
            let axis_key = format!("{above}{axis}");
            match self.axis(known, objects.state(&axis_key), &axis_key) {
                Ok(Some(now)) if now.fits(entries, object.at) => {}
                Ok(now) => {
                    let now = now.map(|now| now.entries);
                    return Err(other_entries(axis, entries, now.as_ref()));
                }
                // An axis that cannot be read now is not checked.
                Err(_) => {}
            }
        }
        Ok(())
    }
}

/// Returns how many lower layers the writer of a layer saw, if the commit `on` was the uppermost.
fn layers_seen(layers: &[LayerFiles], at: usize, on: Option<&str>) -> usize {
    let Some(on) = on.and_then(CommitId::parse) else {
        return 0;
    };
    let below = layers.get(..at).unwrap_or_default();
    let of = below.iter().position(|layer| layer.commit == Some(on));
    of.map_or(0, |of| of + 1)
}
