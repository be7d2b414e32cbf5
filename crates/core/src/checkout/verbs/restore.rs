//! Restores objects in a checkout: what was written over or deleted is as it is below the checkout again, or as it was
//! after a commit.
//!
//! Without a commit the changes are forgotten. The state after a commit is a change of the checkout; nothing is copied:
//! the layer names the earlier layer whose object is restored, or says that the store's own object is. The index is
//! replaced at once, so that either all objects are restored or none. Restored objects have the time of the
//! restoration, and objects whose change is forgotten have the time that they have below.
//!
//! `ObjectStates` has the state of each object after a number of layers, and the entry that brings an earlier state
//! back.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::SystemTime;

use crate::checkout::history::checkouts::{Checkouts, OpenCheckout};
use crate::checkout::history::committed_layers::on_top;
use crate::checkout::layer::Layer;
use crate::checkout::records::entry::{LayerEntry, StoredAgain};
use crate::checkout::records::fit::{Misfit, new_misfits};
use crate::checkout::records::index::{
    IndexChanges, LayerBase, RestoredObject, StoredObject, nanoseconds,
};
use crate::checkout::records::layer_files::LayerFiles;
use crate::checkout::view::{View, forms, rules};
use crate::tree::Directory;
use crate::tree::name::SUFFIXES;
use crate::tree::prefix;
use npyfs_base::error::{Error, Result};
use npyfs_hdf5::Creator;
use npyfs_hdf5::program::program;
use npyfs_io::dir::Dir;
use npyfs_io::storage::Storage;

/// The objects to restore.
pub struct RestoreWish<'a> {
    /// The paths of objects and groups in a mount, as they were given.
    pub paths: &'a [String],
    /// The commit whose state is restored, by its number, id or `HEAD~N`; without it, changes are forgotten.
    pub at: Option<&'a str>,
}

/// The result.
#[derive(Debug, Default)]
pub struct Restoration {
    /// The number of changes that were forgotten or made.
    pub changes: usize,
    /// The state of the store at the commit, if an object of the store itself is restored.
    pub base: Option<LayerBase>,
}

/// A reason why nothing was restored.
#[derive(Debug, thiserror::Error)]
pub enum RestoreRefusal {
    /// There is no such object.
    #[error("{path}: {}", match at {
        Some(at) => format!("there was no such object after commit {at}"),
        None => "no such object, neither in the checkout nor below it".to_owned(),
    })]
    NotThere {
        /// The path as it was given.
        path: String,
        /// The commit.
        at: Option<String>,
    },
    /// A group or object that contains it was written or deleted.
    #[error("{path}: it lies in {above}, which was written or deleted later: restore {above}")]
    Hidden {
        /// The path as it was given.
        path: String,
        /// The key of the group.
        above: String,
    },
    /// Objects would no longer fit the store.
    #[error("{} objects would not fit the store", .0.len())]
    Misfits(Vec<Misfit>),
    /// The result would violate these rules.
    #[error("the store would break the rules of its format: {}", .0.join("; "))]
    Broken(Vec<String>),
    /// The restoration could not be attempted, or failed.
    #[error(transparent)]
    Failed(#[from] Error),
}

type Restored<T> = std::result::Result<T, RestoreRefusal>;

/// Shows the store with layers on top, lowest first.
pub type Look<'a> = &'a dyn Fn(&[LayerFiles]) -> Arc<View>;

/// Restores objects in the checkout `name`.
///
/// With a commit the checkout is begun if there is none of this name. Durable on success; on failure nothing has
/// changed. EBUSY if a process writes in the checkout. Refused if other
/// objects would no longer fit the store, or if the store would violate the rules of its format.
pub fn restore(
    checkouts: &Checkouts,
    name: &str,
    wish: &RestoreWish<'_>,
    storage: Arc<dyn Storage>,
    look: Look<'_>,
) -> Restored<Restoration> {
    let number = wish.at.map(|at| checkouts.number_of(at)).transpose()?;
    if number.is_none() {
        checkouts.find(name)?;
    }
    let missing = checkouts.missing(name)?;
    let creator = |dir: &Dir| Creator::worker(program(), &dir.path_of_descriptor());
    let OpenCheckout { layer, below } = checkouts.open(name, storage, creator)?;
    let done = restore_in(&layer, &below, wish, number, look);
    drop(layer);
    if !matches!(done, Ok(Restoration { changes: 1.., .. })) {
        checkouts.take_back(name, &missing)?;
    }
    done
}

/// Restores objects in an open layer.
fn restore_in(
    layer: &Layer,
    below: &[LayerFiles],
    wish: &RestoreWish<'_>,
    number: Option<usize>,
    look: Look<'_>,
) -> Restored<Restoration> {
    let before = State::read(layer.dir(), layer.recorded(), below, look)?;
    let mut new = before.changes.clone();
    let mut touched = BTreeSet::new();
    let (under, then) = (
        look(below),
        number.map(|number| PastStore::new(below, number, look)),
    );
    let mut found = Vec::new();
    for path in wish.paths {
        let keys = keys_of(&[&before.view, &under], path)?;
        match &then {
            None => {
                let Some(key) = keys.iter().find(|key| before.changes_at(key)) else {
                    check_there(path, &keys, &before, &under)?;
                    continue;
                };
                touched.extend(before.keys_in(key));
                found.push((path, key.clone(), under.root()));
            }
            Some(then) => {
                let keys = keys_of(&[&then.view], path)?;
                let at = || wish.at.map(str::to_owned);
                let gone = || RestoreRefusal::NotThere {
                    path: path.clone(),
                    at: at(),
                };
                let key = then.find(&keys)?.ok_or_else(gone)?;
                if !then.differs(&before.states, &key) {
                    continue;
                }
                touched.extend(before.keys_in(&key));
                found.push((path, key, then.view.root()));
            }
        }
    }
    if found.is_empty() {
        return Ok(Restoration::default());
    }
    touched.iter().for_each(|key| new.forget(key));
    let mut base = None;
    if let Some(then) = &then {
        let time = nanoseconds(SystemTime::now());
        let under = ObjectStates::after(below);
        for (_, key, _) in &found {
            let is_hidden = is_hidden(&before, &touched, key);
            let keys = then.changed(key, &under, is_hidden);
            for key in &keys {
                then.put(&mut new, key, time)?;
            }
            touched.extend(keys);
        }
        if new
            .restored
            .values()
            .any(|restored| restored.layer.is_none())
        {
            base = then.base()?;
        }
    }
    let after = State::read(layer.dir(), new, below, look)?;
    for (path, key, wanted) in &found {
        check_shown(path, key, wanted, &after, &before)?;
    }
    check(&before, &after, &touched)?;
    layer.replace_all(after.changes)?;
    layer.sync()?;
    Ok(Restoration {
        changes: touched.len(),
        base,
    })
}

/// The checkout with certain changes, on top of the commits.
struct State {
    changes: IndexChanges,
    view: Arc<View>,
    /// The states of all objects.
    states: ObjectStates,
}

impl State {
    fn read(
        dir: &Dir,
        changes: IndexChanges,
        below: &[LayerFiles],
        look: Look<'_>,
    ) -> Result<Self> {
        let mut layers = below.to_vec();
        layers.push(on_top(dir, changes.clone(), below)?);
        Ok(Self {
            view: look(&layers),
            states: ObjectStates::after(&layers),
            changes,
        })
    }

    /// Returns the keys that the checkout changes, at a key and below.
    fn keys_in(&self, key: &str) -> Vec<String> {
        let IndexChanges {
            entries,
            restored,
            incomplete,
            ..
        } = &self.changes;
        let all = entries
            .keys()
            .chain(restored.keys())
            .chain(incomplete.keys());
        all.filter(|own| is_in(own, key)).cloned().collect()
    }

    fn changes_at(&self, key: &str) -> bool {
        !self.keys_in(key).is_empty()
    }

    /// Returns whether the checkout itself changes the object at a key.
    fn changes(&self, key: &str) -> bool {
        self.changes.entries.contains_key(key) || self.changes.restored.contains_key(key)
    }
}

/// The store as it was after a commit.
struct PastStore<'a> {
    layers: &'a [LayerFiles],
    view: Arc<View>,
    states: ObjectStates,
}

impl<'a> PastStore<'a> {
    fn new(below: &'a [LayerFiles], number: usize, look: Look<'_>) -> Self {
        let layers = &below[..number.min(below.len())];
        Self {
            view: look(layers),
            states: ObjectStates::after(layers),
            layers,
        }
    }

    /// Returns the first of these keys at which there was an object or a group.
    fn find(&self, keys: &[String]) -> Result<Option<String>> {
        let root = self.view.root();
        for key in keys {
            if !forms(&root, key)?.is_empty() {
                return Ok(Some(key.clone()));
            }
        }
        Ok(None)
    }

    /// Returns whether other states say something else about a key or anything below it.
    fn differs(&self, others: &ObjectStates, key: &str) -> bool {
        let below = self.states.below(key).chain(others.below(key));
        let mut keys = below.map(|(key, _)| key).chain([key]);
        keys.any(|key| self.states.shown_at(key) != others.shown_at(key))
    }

    /// Returns the keys of the changes that restore a key and everything below it, on top of other states. With
    /// `is_hidden`, a group that contains the key hides what the other states say.
    fn changed(&self, key: &str, under: &ObjectStates, is_hidden: bool) -> Vec<String> {
        let below = self.states.below(key).chain(under.below(key));
        let all: BTreeSet<&str> = below.map(|(key, _)| key).chain([key]).collect();
        let mut changed: Vec<String> = Vec::new();
        for key in all {
            let mut above = ancestors(key);
            let is_hidden = is_hidden || above.any(|above| changed.iter().any(|key| key == above));
            let is_said = self.states.state(key).is_some() || changed.is_empty();
            if self.states.shown_at(key) != under.shown_at(key) || (is_hidden && is_said) {
                changed.push(key.to_owned());
            }
        }
        changed
    }

    /// Adds the change that restores the object at a key.
    fn put(&self, changes: &mut IndexChanges, key: &str, time: i64) -> Result<()> {
        let state = self.states.shown_at(key);
        let layer = match state.entry(key, self.layers, time)? {
            LayerEntry::Again(again) => {
                for (store, identity) in self.layers[again.layer].stores.iter() {
                    let known = changes.stores.entry(store.clone());
                    known.or_insert_with(|| identity.clone());
                }
                Some(again.dir.name())
            }
            LayerEntry::Uncovered(_) => None,
            LayerEntry::Deleted | LayerEntry::Stored(_) => {
                changes.delete(key);
                return Ok(());
            }
        };
        changes.restore(key, &RestoredObject { time, layer });
        Ok(())
    }

    /// Returns the state of the store on which the commit was begun.
    fn base(&self) -> Result<Option<LayerBase>> {
        match self.layers.last() {
            Some(layer) => Ok(IndexChanges::read(&layer.dir)?.begun),
            None => Ok(None),
        }
    }
}

impl ObjectStates {
    /// Returns the states after these layers.
    fn after(layers: &[LayerFiles]) -> Self {
        let mut states = Self::default();
        for (at, layer) in layers.iter().enumerate() {
            states.add(at, layer);
        }
        states
    }

    /// Returns the state of the object at a key, which a group that was written or deleted may hide.
    fn shown_at(&self, key: &str) -> ObjectState {
        if let Some(said) = self.state(key) {
            return said;
        }
        let mut above = ancestors(key).filter_map(|above| self.state(above));
        match above.next() {
            Some(ObjectState::Stored { .. } | ObjectState::Deleted) => ObjectState::Deleted,
            Some(ObjectState::OfTheStore) | None => ObjectState::OfTheStore,
        }
    }
}

/// Returns the keys that a path may mean in these views: that of the object that contains it, or that of a file and of
/// a directory.
fn keys_of(views: &[&Arc<View>], path: &str) -> Result<Vec<String>> {
    let names = path.split('/').filter(|name| !matches!(*name, "" | "."));
    let names: Vec<Vec<u8>> = names.map(|name| name.as_bytes().to_vec()).collect();
    let (Some((last, above)), Some(view)) = (names.split_last(), views.first()) else {
        return Ok(Vec::new());
    };
    for view in views {
        let format = |dir: Option<&dyn Directory>, _: &[Vec<u8>], _: &str| {
            let name = dir.map_or(Ok(""), Directory::format)?;
            Ok(view.formats().named(name).clone())
        };
        let top = match view.store_depth(above) {
            Some(depth) => view.composite(depth, above, "", &format)?,
            None => None,
        };
        if let Some(top) = top {
            return Ok(vec![view.key(&names[..top])?]);
        }
    }
    let mut keys = Vec::new();
    let whole = view.key(&names)?;
    for suffix in SUFFIXES {
        let Some(stem) = last.strip_suffix(suffix) else {
            continue;
        };
        let key = view.key(&[above, &[stem.to_vec()]].concat())?;
        let mut shown = Vec::new();
        for view in views {
            shown.extend(forms(&view.root(), &key)?);
        }
        // An object that is shown with another suffix is not meant.
        if shown.is_empty() || shown.iter().any(|(path, _)| *path == whole) {
            keys.push(key);
        }
    }
    keys.push(whole);
    Ok(keys)
}

/// Fails unless there is an object at one of these keys, which the checkout does not change.
fn check_there(path: &str, keys: &[String], now: &State, under: &Arc<View>) -> Restored<()> {
    let is_in = |view: &Arc<View>| -> Result<bool> {
        let root = view.root();
        for key in keys {
            if !forms(&root, key)?.is_empty() {
                return Ok(true);
            }
        }
        Ok(false)
    };
    if is_in(&now.view)? {
        return Ok(());
    }
    let path = path.to_owned();
    let mut above = keys.iter().flat_map(|key| ancestors(key));
    match (is_in(under)?, above.find(|above| now.changes(above))) {
        (true, Some(above)) => Err(RestoreRefusal::Hidden {
            path,
            above: above.to_owned(),
        }),
        _ => Err(RestoreRefusal::NotThere { path, at: None }),
    }
}

/// Returns whether the checkout still changes a group that contains the key.
fn is_hidden(before: &State, touched: &BTreeSet<String>, key: &str) -> bool {
    let mut above = ancestors(key);
    above.any(|above| before.changes(above) && !touched.contains(above))
}

/// Fails unless an object is shown after the restoration as it is where it comes from.
fn check_shown(
    path: &str,
    key: &str,
    wanted: &Arc<dyn Directory>,
    after: &State,
    before: &State,
) -> Restored<()> {
    let paths = |root: &Arc<dyn Directory>| -> Result<Vec<String>> {
        let forms = forms(root, key)?;
        Ok(forms.into_iter().map(|(path, _)| path).collect())
    };
    if paths(wanted)? == paths(&after.view.root())? {
        return Ok(());
    }
    let said = |above: &&str| before.states.state(above).is_some();
    let above = ancestors(key).find(said).unwrap_or(key).to_owned();
    let path = path.to_owned();
    Err(RestoreRefusal::Hidden { path, above })
}

/// Fails if objects would not fit the store any more, or if the store would violate rules that it does not now.
fn check(before: &State, after: &State, touched: &BTreeSet<String>) -> Restored<()> {
    let misfits = new_misfits(&before.view.misfits(), after.view.misfits());
    if !misfits.is_empty() {
        return Err(RestoreRefusal::Misfits(misfits));
    }
    let broken = |view: &Arc<View>| {
        let keys = touched.iter().map(String::as_str);
        rules::broken(view, view.sep(), keys)
    };
    let mut lines = broken(&after.view)?;
    if !lines.is_empty() {
        let known = broken(&before.view)?;
        lines.retain(|line| !known.contains(line));
    }
    match lines.is_empty() {
        true => Ok(()),
        false => Err(RestoreRefusal::Broken(lines)),
    }
}

/// Returns whether a key is another one, or below it.
fn is_in(key: &str, above: &str) -> bool {
    let rest = key.strip_prefix(above);
    rest.is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
}

/// Returns the keys of the groups that contain an object, innermost first.
fn ancestors(key: &str) -> impl Iterator<Item = &str> {
    key.rmatch_indices('/').map(|(at, _)| &key[..at])
}

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
    fn new(at: usize, entry: &LayerEntry) -> Self {
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
            self.0.insert(key.clone(), ObjectState::new(at, entry));
        }
    }

    /// Returns the state of the object at a key. An object that no layer mentions is the store's.
    pub(super) fn at(&self, key: &str) -> ObjectState {
        self.state(key).unwrap_or(ObjectState::OfTheStore)
    }

    /// Returns the state of the object at a key; `None` if no layer mentions it.
    fn state(&self, key: &str) -> Option<ObjectState> {
        self.0.get(key).copied()
    }

    /// Returns the objects below a key that layers mention.
    pub(super) fn below(&self, key: &str) -> impl Iterator<Item = (&str, ObjectState)> {
        let below = prefix::entries(&self.0, format!("{key}/"));
        below.map(|(key, &state)| (key.as_str(), state))
    }
}
