//! Compares layers with the present store: which objects fit it.
//!
//! An object does not fit if another store has replaced its own, or if the entries of one of its axes have changed,
//! including their order. An axis that a layer puts in place of another one is an exception: objects whose writer saw
//! the old entries lie along the new ones, and so do the store's own objects.
//!
//! An object that replaced one of the store does not fit, either, if the store's object now has other dimensions than
//! then, unless the store has adopted the layer's object at this key, as after an export.
//!
//! A store that a layer begins fits as long as no other file has its name: a file that appears there later is shown,
//! and the layer's store is not.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::sync::Arc;
use std::time::SystemTime;

use super::object::KeyState;
use super::{LayerObject, Objects, View, origin};
use crate::checkout::history::snapshot;
use crate::checkout::records::attribute;
use crate::checkout::records::entry::LayerEntry;
use crate::checkout::records::fit::{KeySpelling, Misfit, StoreIdentity};
use crate::checkout::records::layer_files::LayerFiles;
use crate::store::against::AxisEntries;
use crate::store::against::Extent;
use crate::tree::name::{self, NameError, unescape};
use crate::tree::path::walk;
use crate::tree::{Directory, Node, VirtualFile};
use npyfs_base::error::Result;
use npyfs_base::heap;
use npyfs_io::file::time;

/// The layers of a view, lowest first, and cached information about the store.
#[derive(Default)]
pub(super) struct Pile {
    pub layers: Vec<LayerFiles>,
    pub misfits: Vec<Misfit>,
    pub known: StoreAnswers,
}

/// Cached information about the store.
#[derive(Default)]
pub(super) struct StoreAnswers {
    /// The entries of axes, by key and version of the file.
    pub(super) entries: HashMap<String, (u64, AxisEntries)>,
    /// Files that a later version of the store does not have.
    pub(super) files: HashMap<String, Arc<dyn VirtualFile>>,
    /// Roots of stores that were examined, and the times of their last changes.
    stores: BTreeMap<String, (Arc<dyn Directory>, SystemTime)>,
    /// The stores that layers begin, by key.
    pub(super) begun: BTreeMap<String, BegunStore>,
}

/// A store that a layer begins.
pub(super) struct BegunStore {
    /// Whether the store below the layers has an entry of this name.
    is_there: bool,
    /// Whether the layer's store is shown.
    pub(super) is_shown: bool,
}

impl Pile {
    /// Returns whether cached information about the store of a directory may be outdated.
    pub(super) fn is_outdated(&self, dir: &str, is_there: impl Fn(&str) -> bool) -> bool {
        let begun = self.known.begun.iter();
        let mut begun = begun
            .filter(|(key, _)| is_in_or_at(dir, key) || split(key).0.trim_end_matches('/') == dir);
        if begun.any(|(key, store)| is_there(key) != store.is_there) {
            return true;
        }
        let mut stores = self.known.stores.iter();
        let changed = |(store, (root, time)): (&String, &(Arc<dyn Directory>, SystemTime))| {
            is_in_or_at(dir, store) && root.ownership().mtime != *time
        };
        let mut files = self.known.files.iter();
        let gone = |(key, file): (&String, &Arc<dyn VirtualFile>)| {
            let above = split(key).0.trim_end_matches('/');
            is_in_or_at(dir, above) && !file.is_current()
        };
        stores.any(changed) || files.any(gone)
    }

    /// Puts all entries of layers that come from a snapshot into them.
    fn unfold(&mut self) -> Result<()> {
        let folded = self.layers.iter().take_while(|layer| layer.is_folded);
        let count = folded.count();
        let layers = snapshot::unfolded(&self.layers[..count])?;
        self.layers.splice(..count, layers);
        Ok(())
    }

    /// Returns the layer that is written to, and its index.
    pub(super) fn uppermost(&mut self) -> Option<(usize, &mut LayerFiles)> {
        let at = self.layers.len().checked_sub(1)?;
        Some((at, self.layers.last_mut()?))
    }
}

impl KeySpelling for View {
    fn key(&self, shown: &[u8]) -> Vec<u8> {
        self.key_name(shown)
    }

    fn shown(&self, key: &[u8]) -> Vec<u8> {
        self.shown_name(key)
    }
}

/// Splits a key into the directory, with its slash, and the last name.
pub(super) fn split(key: &str) -> (&str, &str) {
    key.split_at(key.rfind('/').map_or(0, |at| at + 1))
}

impl View {
    /// Applies all layers to the present store.
    pub(super) fn lay(&self, pile: &mut Pile) {
        let (mut objects, mut misfits) = self.applied(pile);
        // Below an object that does not fit may be one that a snapshot does not have.
        if misfits
            .iter()
            .any(|misfit| pile.layers[misfit.layer].is_folded)
        {
            match pile.unfold() {
                Ok(()) => (objects, misfits) = self.applied(pile),
                Err(e) => self.context.journal.add(&e.message),
            }
        }
        // Objects that a later layer replaces or deletes are not shown in any case.
        let all: HashSet<(usize, String)> = misfits
            .iter()
            .map(|misfit| (misfit.layer, misfit.key.clone()))
            .collect();
        misfits.retain(|misfit| {
            let later = pile.layers.iter().enumerate().skip(misfit.layer + 1);
            let mut by = later.filter(|(_, layer)| layer.entries.contains_key(&misfit.key));
            !by.any(|(at, _)| !all.contains(&(at, misfit.key.clone())))
        });
        misfits.sort_by(|a, b| (a.layer, &a.key).cmp(&(b.layer, &b.key)));
        self.log_changes(&pile.misfits, &misfits);
        pile.misfits = misfits;
        objects.generation = self.objects.read().generation + 1;
        let mut now = self.objects_mut();
        objects.changes = now.changes;
        // Nodes that were filled one key after the other are half empty.
        objects.by_key = objects.by_key.into_iter().collect();
        let names = objects.by_key.len();
        *now = objects;
        drop(now);
        heap::return_free_memory_of(names);
    }

    /// Returns the objects of all layers on the present store, and those that do not fit it.
    fn applied(&self, pile: &mut Pile) -> (Objects, Vec<Misfit>) {
        pile.known.files.clear();
        pile.known.stores.clear();
        let mut objects = Objects::default();
        for (key, at) in pile.layers.iter().flat_map(|layer| layer.changed.iter()) {
            objects.changed(key.as_bytes(), time(at));
        }
        let mut misfits = Vec::new();
        let mut stores = self.check_stores(pile, &mut misfits);
        self.check_begun(pile, &mut stores, &mut misfits);
        let misspelled = self.check_names(pile, &stores, &mut misfits);
        let is_misspelled = |at: usize, key: &str| {
            !misspelled.is_empty() && misspelled.contains(&(at, key.to_owned()))
        };
        // Axes come first: those of later layers determine the axes of earlier layers' objects.
        let is_attribute = |key: &str| attribute::split(key).is_some();
        let is_along =
            |key: &str| !is_attribute(key) && !self.formats.along(split(key).1).is_empty();
        let mut axes = LaidAxes::wanted_by(&pile.layers);
        for (at, layer) in pile.layers.iter().enumerate() {
            for (key, entry) in &layer.entries {
                if is_along(key) || is_attribute(key) {
                    continue;
                }
                if !stores[at].fits_store(key) || is_misspelled(at, key) {
                    continue;
                }
                let object = match self.entry_object((layer, at), key, entry) {
                    Err(said) => {
                        objects.set(key.as_bytes(), said, entry.time().map(time), true);
                        continue;
                    }
                    Ok(object) => object,
                };
                let fitting = match (self.formats.is_axis(split(key).1), entry) {
                    // What it replaces follows from its position among the layers.
                    (true, LayerEntry::Again(again)) => {
                        axes.restored_axis(again.layer, key, &object)
                    }
                    (true, _) => {
                        let (known, layers) = (&mut pile.known, &pile.layers);
                        let fitting = self.axis_fits(known, &objects, key, object, layers);
                        axes.remember(at, key, &fitting);
                        fitting
                    }
                    (false, _) => self.extent_fits(pile, key, &object).map(|()| object),
                };
                match fitting {
                    Ok(object) => {
                        let said = KeyState::Object(Arc::new(object));
                        objects.set(key.as_bytes(), said, entry.time().map(time), true);
                    }
                    Err(why) => misfits.push(misfit(layer, at, key, why)),
                }
            }
        }
        for (at, layer) in pile.layers.iter().enumerate() {
            for (key, entry) in layer.entries.iter().filter(|(key, _)| is_along(key)) {
                let later = &pile.layers[at + 1..];
                if !stores[at].fits_store(key)
                    || is_misspelled(at, key)
                    || is_below(key, later, &stores[at + 1..])
                {
                    continue;
                }
                let said = match self.entry_object((layer, at), key, entry) {
                    Err(said) => said,
                    Ok(object) => {
                        if let Err(why) = self
                            .property_fits(&mut pile.known, &objects, key, &object)
                            .and_then(|()| self.extent_fits(pile, key, &object))
                        {
                            misfits.push(misfit(layer, at, key, why));
                            continue;
                        }
                        KeyState::Object(Arc::new(object))
                    }
                };
                objects.set(key.as_bytes(), said, entry.time().map(time), true);
            }
        }
        for (at, layer) in pile.layers.iter().enumerate() {
            for (key, entry) in layer.entries.iter().filter(|(key, _)| is_attribute(key)) {
                let later = &pile.layers[at + 1..];
                if !stores[at].fits_store(key) || is_below(key, later, &stores[at + 1..]) {
                    continue;
                }
                let own = misfits.iter().filter(|misfit| misfit.layer == at);
                let of_misfit = own.map(|misfit| misfit.key.as_str()).any(|other| {
                    let object = attribute::object_of(key);
                    other == object || is_in(object, other)
                });
                if of_misfit {
                    let why = "its object does not fit".to_owned();
                    misfits.push(misfit(layer, at, key, why));
                    continue;
                }
                objects.has_attributes = true;
                let said = match self.entry_object((layer, at), key, entry) {
                    Ok(object) => KeyState::Attribute(Arc::new(object)),
                    Err(said) => said,
                };
                objects.set(key.as_bytes(), said, entry.time().map(time), true);
            }
        }
        (objects, misfits)
    }

    /// Returns the object of a layer's entry; without an object, the state that the layer gives the key.
    fn entry_object(
        &self,
        (layer, at): (&LayerFiles, usize),
        key: &str,
        entry: &LayerEntry,
    ) -> std::result::Result<LayerObject, KeyState> {
        match entry {
            LayerEntry::Stored(stored) => Ok(self.object_of(layer, (&layer.dir, at), key, stored)),
            // It lies along the same axes as in its own layer.
            LayerEntry::Again(again) => {
                let place = (&again.dir, again.layer);
                Ok(self.object_of(layer, place, key, &again.stored))
            }
            LayerEntry::Deleted => Err(KeyState::Deleted),
            LayerEntry::Uncovered(time) => Err(KeyState::Uncovered(origin(layer, *time))),
        }
    }

    /// Logs which objects are no longer shown.
    fn log_changes(&self, before: &[Misfit], now: &[Misfit]) {
        for misfit in now.iter().filter(|misfit| !before.contains(misfit)) {
            self.context.journal.add(&misfit.to_string());
        }
    }

    /// Returns, for each layer, the stores that differ from those that it was written over.
    fn check_stores(&self, pile: &mut Pile, misfits: &mut Vec<Misfit>) -> Vec<Stores> {
        let mut all = Vec::new();
        let keys = pile.layers.iter().flat_map(|layer| layer.entries.keys());
        let hidden: HashSet<&String> = keys.collect();
        // Most layers were written over the same store.
        let mut last: HashMap<&String, (&StoreIdentity, bool)> = HashMap::new();
        for (at, layer) in pile.layers.iter().enumerate() {
            let mut stores = Stores::default();
            // What a snapshot has nothing of is nowhere shown.
            let checked = layer.stores.iter();
            let checked = checked.filter(|_| !(layer.is_folded && layer.entries.is_empty()));
            for (store, identity) in checked {
                let known = last.get(store).filter(|(other, _)| *other == identity);
                let is_still = match known {
                    Some((_, is_still)) => *is_still,
                    None => {
                        let Some(dir) = self.store(store) else {
                            continue;
                        };
                        let time = dir.ownership().mtime;
                        pile.known.stores.insert(store.clone(), (dir.clone(), time));
                        let is_hidden = |path: &str| hidden.contains(&below(store, path));
                        identity.is_still(&dir, self, &is_hidden)
                    }
                };
                last.insert(store, (identity, is_still));
                if is_still {
                    continue;
                }
                stores.others.push(below(store, ""));
                let own = layer.entries.iter().filter(|(key, _)| is_in(key, store));
                misfits.extend(own.map(|(key, _)| {
                    let which = match store.as_str() {
                        "" => "the store".to_owned(),
                        store => store.to_owned(),
                    };
                    let why =
                        format!("{which} is not the one that it was written over, but another");
                    misfit(layer, at, key, why)
                }));
            }
            all.push(stores);
        }
        all
    }

    /// Finds stores begun by layers at whose keys there is a file by now. The file is shown.
    fn check_begun(&self, pile: &mut Pile, stores: &mut [Stores], misfits: &mut Vec<Misfit>) {
        pile.known.begun.clear();
        for (at, layer) in pile.layers.iter().enumerate() {
            let begins = |entry: &LayerEntry| entry.stored().is_some_and(|s| s.begins.is_some());
            for (key, _) in layer.entries.iter().filter(|(_, entry)| begins(entry)) {
                let is_there = self.is_there(key);
                // A store that was begun in place of an existing one is meant to hide it.
                let is_instead =
                    layer.stores.contains_key(key) && stores[at].fits_store(&below(key, "x"));
                let is_shown = !is_there || is_instead;
                let begun = pile.known.begun.entry(key.clone());
                let begun = begun.or_insert(BegunStore { is_there, is_shown });
                begun.is_shown |= is_shown;
            }
        }
        for (key, _) in pile.known.begun.iter().filter(|(_, store)| !store.is_shown) {
            for (at, layer) in pile.layers.iter().enumerate() {
                // Objects written since the file appeared belong to the file.
                if layer.stores.contains_key(key) && !layer.entries.contains_key(key) {
                    continue;
                }
                stores[at].begun.push(key.clone());
                let own = layer.entries.keys();
                let own = own.filter(|own| *own == key || is_in(own, key));
                misfits.extend(own.map(|own| {
                    let why = format!("{key} was begun in a checkout, and a file is there now");
                    misfit(layer, at, own, why)
                }));
            }
        }
        self.note_begun(pile);
    }

    /// Returns whether the store below the layers has an entry at a key.
    pub(super) fn is_there(&self, key: &str) -> bool {
        let mut dir = self.base.clone();
        let names = self.shown(key);
        for (depth, name) in names.iter().enumerate() {
            dir = match dir.lookup(name) {
                Ok(Some(Node::Directory(below))) => below,
                Ok(Some(_)) => return depth + 1 == names.len(),
                // An entry that cannot be looked up may exist.
                Err(_) => return true,
                Ok(None) => return false,
            };
        }
        true
    }

    /// Finds keys of layers with a spelling that no mount uses, as version 0.1 stored some: such an object would
    /// replace the one whose name it is.
    fn check_names(
        &self,
        pile: &Pile,
        stores: &[Stores],
        misfits: &mut Vec<Misfit>,
    ) -> HashSet<(usize, String)> {
        let mut misspelled = HashSet::new();
        for (at, layer) in pile.layers.iter().enumerate() {
            for (key, entry) in layer
                .entries
                .iter()
                .filter(|(key, _)| stores[at].fits_store(key) && attribute::split(key).is_none())
            {
                let depth = self.store_depth(&self.shown(key)).unwrap_or(0);
                let mut own = key.split('/').skip(depth);
                let Some(why) = own.find_map(|name| spelled(name).err()) else {
                    continue;
                };
                misspelled.insert((at, key.clone()));
                // An object that no mount shows need not be deleted.
                if entry.stored().is_some() {
                    misfits.push(misfit(layer, at, key, why.to_string()));
                }
            }
        }
        misspelled
    }

    /// Returns the store at a key, without layers.
    pub fn store(&self, key: &str) -> Option<Arc<dyn Directory>> {
        let mut path = self.shown(key);
        path.retain(|name| !name.is_empty());
        let dir = self.base_directory(&path).ok()??;
        dir.is_store().then_some(dir)
    }

    /// Returns the dimensions of the store's own object at a key, if it has any.
    pub(super) fn extent(&self, key: &str) -> Result<Option<Extent>> {
        let shown = self.shown(key);
        let Some((name, above)) = shown.split_last() else {
            return Ok(None);
        };
        let Some(dir) = self.base_directory(above)? else {
            return Ok(None);
        };
        self.formats.format_of(&*dir)?.objects().extent(&*dir, name)
    }

    /// Returns the directory of the store at a path, without layers; `None` if it does not exist.
    pub(super) fn base_directory(&self, path: &[Vec<u8>]) -> Result<Option<Arc<dyn Directory>>> {
        Ok(walk(self.base.clone(), path)?.and_then(Node::directory))
    }

    /// Checks an object against the store's object in its place. If there is none any more, nothing is hidden.
    fn extent_fits(
        &self,
        pile: &Pile,
        key: &str,
        object: &LayerObject,
    ) -> std::result::Result<(), String> {
        let Some(before) = object.stored.against.as_ref().and_then(|a| a.over.as_ref()) else {
            return Ok(());
        };
        // An object that cannot be read now is not checked.
        let Ok(Some(now)) = self.extent(key) else {
            return Ok(());
        };
        let is_of_a_layer = || {
            let layers = pile.layers.iter().enumerate();
            let mut own = layers.filter_map(|(at, layer)| {
                let (dir, stored) = layer.entries.get(key)?.file(&layer.dir)?;
                let object = self.object_of(layer, (dir, at), key, stored);
                object.extent().ok()?
            });
            own.any(|own| own == now)
        };
        if *before == now || is_of_a_layer() {
            return Ok(());
        }
        Err(format!(
            "it was written in the place of {before}, and {now} is there now"
        ))
    }
}

/// Checks that a name in a key is spelled as mounts spell it.
fn spelled(name: &str) -> std::result::Result<(), NameError> {
    let own = unescape(name.as_bytes());
    name::check(name.as_bytes(), "", name::visible(&own, ""))
}

/// Stores that a layer was not written over, as keys with a trailing slash.
#[derive(Default)]
struct Stores {
    others: Vec<String>,
    /// Keys of stores that the layer begins or writes to, where there is a file now.
    begun: Vec<String>,
}

impl Stores {
    /// Returns whether an object was written over the present store.
    fn fits_store(&self, key: &str) -> bool {
        let is_of_another = |other: &String| key.starts_with(other.as_str());
        let is_replaced = |begun: &String| key == begun || is_in(key, begun);
        !self.others.iter().any(is_of_another) && !self.begun.iter().any(is_replaced)
    }
}

/// Returns the key of a path below another key.
fn below(store: &str, path: &str) -> String {
    match store {
        "" => path.to_owned(),
        store => format!("{store}/{path}"),
    }
}

/// Returns whether a directory is `above` or below it.
fn is_in_or_at(dir: &str, above: &str) -> bool {
    dir == above || is_in(dir, above)
}

fn is_in(key: &str, store: &str) -> bool {
    key.starts_with(&below(store, ""))
}

/// Returns whether a later layer replaced or deleted a group that contains a key.
fn is_below(key: &str, later: &[LayerFiles], stores: &[Stores]) -> bool {
    let mut above = key.match_indices('/').map(|(at, _)| &key[..at]);
    above.any(|above| {
        let mut later = later.iter().zip(stores);
        later.any(|(layer, stores)| layer.entries.contains_key(above) && stores.fits_store(above))
    })
}

fn misfit(layer: &LayerFiles, at: usize, key: &str, why: String) -> Misfit {
    Misfit {
        checkout: layer.checkout.to_string(),
        layer: at,
        key: key.to_owned(),
        is_deletion: layer.entries.get(key).is_some_and(LayerEntry::is_deletion),
        why,
    }
}

/// The axes that later layers restore, by the indices of their own layers and their keys.
struct LaidAxes {
    wanted: HashSet<(usize, String)>,
    found: HashMap<(usize, String), std::result::Result<LayerObject, String>>,
}

impl LaidAxes {
    /// Collects the axes that the layers restore.
    fn wanted_by(layers: &[LayerFiles]) -> Self {
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

    /// Remembers whether the axis of a layer fits, if a later layer restores it.
    fn remember(
        &mut self,
        at: usize,
        key: &str,
        fitting: &std::result::Result<LayerObject, String>,
    ) {
        if self.wanted.is_empty() {
            return;
        }
        let place = (at, key.to_owned());
        if self.wanted.contains(&place) {
            self.found.insert(place, fitting.clone());
        }
    }

    /// Returns the axis of the layer with an index as the restored one.
    fn restored_axis(
        &self,
        at: usize,
        key: &str,
        again: &LayerObject,
    ) -> std::result::Result<LayerObject, String> {
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
