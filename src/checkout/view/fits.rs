//! The comparison of layers with the store as it is now: which objects fit it.
//!
//! An object does not fit if its store was replaced by another one, or if an axis that it lies along has other entries
//! than it had, or has them in another order. An axis that a layer puts in the place of another one is different: what its
//! writer saw along the old entries lies along the new ones, and so does what the store itself has.
//!
//! Neither does an object fit that was written in the place of one of the store's with other dimensions than are there now,
//! unless the store has taken over what a layer has at this key, as an export does.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::sync::Arc;
use std::time::SystemTime;

use super::laid_axes::LaidAxes;
use super::said::Said;
use super::{LayerObject, Objects, View, origin};
use crate::checkout::against::AxisEntries;
use crate::checkout::checkouts::LayerFiles;
use crate::checkout::entry::LayerEntry;
use crate::checkout::extent::Extent;
use crate::checkout::fit::{KeySpelling, Misfit};
use crate::error::Result;
use crate::io::file::time;
use crate::tree::name::{self, NameError, unescape};
use crate::tree::{Directory, Node, VirtualFile};

/// The layers of a view, lowest first, and what was asked of the store for them.
#[derive(Default)]
pub(super) struct Pile {
    pub layers: Vec<LayerFiles>,
    pub misfits: Vec<Misfit>,
    pub known: StoreAnswers,
}

/// Answers that the store gave.
#[derive(Default)]
pub(super) struct StoreAnswers {
    /// The entries of axes, by key and version of the file.
    pub(super) entries: HashMap<String, (u64, AxisEntries)>,
    /// Files that a later version of the store does not have.
    pub(super) files: HashMap<String, Arc<dyn VirtualFile>>,
    /// Roots of stores that were looked into, and when they had changed last.
    stores: BTreeMap<String, (Arc<dyn Directory>, SystemTime)>,
}

impl Pile {
    /// Returns whether what was asked of the store that a directory is in may have another answer now.
    pub(super) fn is_outdated(&self, dir: &str) -> bool {
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

    /// The layer that is written to, and its place.
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

/// The directory of a key, with its slash, and the last name.
pub(super) fn split(key: &str) -> (&str, &str) {
    key.split_at(key.rfind('/').map_or(0, |at| at + 1))
}

impl View {
    /// Puts all layers on the store as it is now.
    pub(super) fn lay(&self, pile: &mut Pile) {
        pile.known.files.clear();
        pile.known.stores.clear();
        let before = self.objects().generation;
        let mut objects = Objects::default();
        let mut misfits = Vec::new();
        let stores = self.check_stores(pile, &mut misfits);
        let misspelled = self.check_names(pile, &stores, &mut misfits);
        let is_misspelled = |at: usize, key: &str| {
            !misspelled.is_empty() && misspelled.contains(&(at, key.to_owned()))
        };
        // Axes first: those of later layers say where the objects of earlier ones lie.
        let is_along = |key: &str| !self.formats.along(split(key).1).is_empty();
        let mut axes = LaidAxes::wanted_by(&pile.layers);
        for (at, layer) in pile.layers.iter().enumerate() {
            for (key, entry) in layer.entries.iter().filter(|(key, _)| !is_along(key)) {
                if !stores[at].takes(key) || is_misspelled(at, key) {
                    continue;
                }
                let object = match self.entry_object((layer, at), key, entry) {
                    Err(said) => {
                        objects.set(key.as_bytes(), said, time_of(entry), true);
                        continue;
                    }
                    Ok(object) => object,
                };
                let fitting = match (self.formats.is_axis(split(key).1), entry) {
                    // What it takes the place of is told by its place among the layers.
                    (true, LayerEntry::Again(again)) => axes.again(again.layer, key, &object),
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
                        let said = Said::Object(Arc::new(object));
                        objects.set(key.as_bytes(), said, time_of(entry), true);
                    }
                    Err(why) => misfits.push(misfit(layer, at, key, why)),
                }
            }
        }
        for (at, layer) in pile.layers.iter().enumerate() {
            for (key, entry) in layer.entries.iter().filter(|(key, _)| is_along(key)) {
                let later = &pile.layers[at + 1..];
                if !stores[at].takes(key)
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
                        Said::Object(Arc::new(object))
                    }
                };
                objects.set(key.as_bytes(), said, time_of(entry), true);
            }
        }
        // What a later layer replaces or deletes is shown nowhere in any case.
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
        self.tell(&pile.misfits, &misfits);
        pile.misfits = misfits;
        objects.generation = before + 1;
        let mut now = self.objects_mut();
        objects.changes = now.changes;
        *now = objects;
    }

    /// The object that an entry of a layer stands for; without one, what the layer says.
    fn entry_object(
        &self,
        (layer, at): (&LayerFiles, usize),
        key: &str,
        entry: &LayerEntry,
    ) -> std::result::Result<LayerObject, Said> {
        match entry {
            LayerEntry::Stored(stored) => Ok(self.object_of(layer, (&layer.dir, at), key, stored)),
            // It lies along axes as it did in its own layer.
            LayerEntry::Again(again) => {
                let place = (&again.dir, again.layer);
                Ok(self.object_of(layer, place, key, &again.stored))
            }
            LayerEntry::Deleted => Err(Said::Deleted),
            LayerEntry::Uncovered(time) => Err(Said::Uncovered(origin(layer, *time))),
        }
    }

    /// Writes into the log what is not shown from now on.
    fn tell(&self, before: &[Misfit], now: &[Misfit]) {
        for misfit in now.iter().filter(|misfit| !before.contains(misfit)) {
            self.context.journal.add(&misfit.to_string());
        }
    }

    /// For each layer, the stores that are not those that it was written over.
    fn check_stores(&self, pile: &mut Pile, misfits: &mut Vec<Misfit>) -> Vec<Stores> {
        let mut all = Vec::new();
        for (at, layer) in pile.layers.iter().enumerate() {
            let mut stores = Stores::default();
            for (store, identity) in &layer.stores {
                let Some(dir) = self.store(store) else {
                    continue;
                };
                let time = dir.ownership().mtime;
                pile.known.stores.insert(store.clone(), (dir.clone(), time));
                let key = |path: &str| below(store, path);
                let is_hidden = |path: &str| {
                    let layers = pile.layers.iter();
                    layers
                        .into_iter()
                        .any(|layer| layer.entries.contains_key(&key(path)))
                };
                if identity.is_still(&dir, self, &is_hidden) {
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

    /// The places of layers and the keys in them that are spelled as no mount spells them, as version 0.1 stored some: they
    /// would take the place of the object that is called so.
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
                .filter(|(key, _)| stores[at].takes(key))
            {
                let depth = self.store_depth(&self.shown(key)).unwrap_or(0);
                let mut own = key.split('/').skip(depth);
                let Some(why) = own.find_map(|name| spelled(name).err()) else {
                    continue;
                };
                misspelled.insert((at, key.clone()));
                // What no mount shows is not there to be deleted.
                if entry.stored().is_some() {
                    misfits.push(misfit(layer, at, key, why.to_string()));
                }
            }
        }
        misspelled
    }

    /// The store at a key, without layers.
    pub fn store(&self, key: &str) -> Option<Arc<dyn Directory>> {
        let mut dir = self.base.clone();
        for name in self.shown(key).iter().filter(|name| !name.is_empty()) {
            match dir.lookup(name) {
                Ok(Some(Node::Directory(below))) => dir = below,
                _ => return None,
            }
        }
        dir.is_store().then_some(dir)
    }

    /// Returns what the store without layers has at a key, if that has dimensions.
    pub(super) fn extent(&self, key: &str) -> Result<Option<Extent>> {
        let shown = self.shown(key);
        let Some((name, above)) = shown.split_last() else {
            return Ok(None);
        };
        let mut dir = self.base.clone();
        for name in above {
            match dir.lookup(name)? {
                Some(Node::Directory(below)) => dir = below,
                _ => return Ok(None),
            }
        }
        self.formats.of(&*dir)?.extent(&*dir, name)
    }

    /// Checks an object against what the store has in its place. Where nothing is any more, nothing is hidden.
    fn extent_fits(
        &self,
        pile: &Pile,
        key: &str,
        object: &LayerObject,
    ) -> std::result::Result<(), String> {
        let Some(before) = object.against.as_ref().and_then(|a| a.over.as_ref()) else {
            return Ok(());
        };
        // What cannot be read now says nothing.
        let Ok(Some(now)) = self.extent(key) else {
            return Ok(());
        };
        let is_of_a_layer = || {
            let layers = pile.layers.iter().enumerate();
            let mut own = layers.filter_map(|(at, layer)| {
                let (dir, stored) = layer.entries.get(key)?.file(layer)?;
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

/// Checks that a name of a key is spelled as mounts spell it.
fn spelled(name: &str) -> std::result::Result<(), NameError> {
    let own = unescape(name.as_bytes());
    name::check(name.as_bytes(), "", name::visible(&own, ""))
}

/// Stores that a layer was not written over, as keys with a slash behind.
#[derive(Default)]
struct Stores {
    others: Vec<String>,
}

impl Stores {
    /// Returns whether an object was written over the store that is there.
    fn takes(&self, key: &str) -> bool {
        !self
            .others
            .iter()
            .any(|other| key.starts_with(other.as_str()))
    }
}

/// The key of what is below another one.
fn below(store: &str, path: &str) -> String {
    match store {
        "" => path.to_owned(),
        store => format!("{store}/{path}"),
    }
}

/// Returns whether a directory is that one or below it.
fn is_in_or_at(dir: &str, above: &str) -> bool {
    dir == above || is_in(dir, above)
}

fn is_in(key: &str, store: &str) -> bool {
    key.starts_with(&below(store, ""))
}

/// Returns whether a later layer replaced or deleted a group that a key is in.
fn is_below(key: &str, later: &[LayerFiles], stores: &[Stores]) -> bool {
    let mut above = key.match_indices('/').map(|(at, _)| &key[..at]);
    above.any(|above| {
        let mut later = later.iter().zip(stores);
        later.any(|(layer, stores)| layer.entries.contains_key(above) && stores.takes(above))
    })
}

fn misfit(layer: &LayerFiles, at: usize, key: &str, why: String) -> Misfit {
    Misfit {
        checkout: layer.checkout(),
        layer: at,
        key: key.to_owned(),
        is_deletion: layer.entries.get(key).is_some_and(LayerEntry::is_deletion),
        why,
    }
}

fn time_of(entry: &LayerEntry) -> SystemTime {
    match entry {
        LayerEntry::Stored(stored) => time(stored.time),
        LayerEntry::Again(again) => time(again.stored.time),
        LayerEntry::Uncovered(since) => time(*since),
        LayerEntry::Deleted => SystemTime::now(),
    }
}
