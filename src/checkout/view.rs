//! A store with layers on top, as one tree.
//!
//! A layer says for keys what stands there: an object in a file of its own, or nothing. A key is an object's
//! path in the mount without the suffix of its last name. A layer's file is opened as a store of its own, and
//! of its tree the entries are shown that belong to the object; so whatever reads stores reads layers, too.
//! Nothing is ever written here.
//!
//! Objects of layers that do not fit the store any more are not put in (`fits`). The store may change at any time: what
//! was asked of it is asked again as soon as it is another version, and then all layers are put on anew.

mod axis;
mod directory;
mod fits;
mod laid_axes;
mod member_list;
mod object;
mod said;

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::{Arc, Mutex, MutexGuard, RwLock, RwLockReadGuard, RwLockWriteGuard};
use std::time::SystemTime;

use super::checkouts::LayerFiles;
use super::entry::LayerEntry;
use super::fit::{Misfit, read_entries};
use super::format::Registry;
use super::index::StoredObject;
use super::layer;
use crate::checkout::against::Against;
use crate::dataset::context::Context;
use crate::error::{Error, ErrorKind, Result};
use crate::io::content::Content;
use crate::io::dir::Dir;
use crate::io::file::time;
use crate::tree::name::SUFFIXES;
use crate::tree::{Directory, Node};

use directory::ViewDirectory;
use fits::Pile;
pub use object::LayerObject;
use object::OpenFiles;
pub use said::Origin;
use said::Said;

/// A store with layers on top. All methods may be called from any thread.
pub struct View {
    base: Arc<dyn Directory>,
    context: Arc<Context>,
    formats: Registry,
    files: Arc<OpenFiles>,
    /// The layers, lowest first, and what was asked of the store for them. Locked before `objects`.
    pile: Mutex<Pile>,
    objects: RwLock<Objects>,
    /// Keys at which layers begin stores.
    begun: RwLock<Arc<BTreeSet<Vec<u8>>>>,
}

/// The objects of all layers together.
#[derive(Clone, Default)]
struct Objects {
    /// The word of the layers, by key.
    by_key: BTreeMap<Vec<u8>, Said>,
    /// The time of the last change of a directory through a layer.
    times: HashMap<Vec<u8>, SystemTime>,
    /// Counts changes of what directories stand for.
    generation: u64,
    /// Counts all changes.
    changes: u64,
}

impl View {
    /// A store without layers.
    pub fn new(base: Arc<dyn Directory>, context: Arc<Context>, formats: &Registry) -> Arc<Self> {
        Arc::new(Self {
            base,
            files: Arc::new(OpenFiles::new(&context, formats)),
            context,
            formats: formats.clone(),
            pile: Mutex::default(),
            objects: RwLock::default(),
            begun: RwLock::default(),
        })
    }

    /// The tree.
    pub fn root(self: &Arc<Self>) -> Arc<dyn Directory> {
        Arc::new(ViewDirectory::root(self.clone()))
    }

    /// All formats.
    pub fn formats(&self) -> &Registry {
        &self.formats
    }

    fn objects(&self) -> RwLockReadGuard<'_, Objects> {
        self.objects.read().unwrap_or_else(|e| e.into_inner())
    }

    fn pile(&self) -> MutexGuard<'_, Pile> {
        self.pile.lock().unwrap_or_else(|e| e.into_inner())
    }

    fn objects_mut(&self) -> RwLockWriteGuard<'_, Objects> {
        let mut objects = self.objects.write().unwrap_or_else(|e| e.into_inner());
        objects.changes += 1;
        objects
    }

    /// Puts layers on top of those that are there, lowest first. What is put in later (`put`, `remove`) belongs to the
    /// uppermost one.
    pub fn add_layers(&self, layers: impl IntoIterator<Item = LayerFiles>) {
        let mut pile = self.pile();
        pile.layers.extend(layers);
        self.note_begun(&pile);
        self.lay(&mut pile);
    }

    /// Returns the layers, lowest first.
    pub(super) fn layers(&self) -> Vec<LayerFiles> {
        self.pile().layers.clone()
    }

    /// Objects of layers that do not fit the store as it is now.
    pub fn misfits(&self) -> Vec<Misfit> {
        self.pile().misfits.clone()
    }

    /// Puts all layers on anew if the store that a directory is in is not what it was when that was done last.
    fn refresh(&self, dir: &[u8]) {
        let mut pile = self.pile();
        if pile.is_outdated(&String::from_utf8_lossy(dir)) {
            self.lay(&mut pile);
        }
    }

    /// Returns what an object of the uppermost layer is to be written against, whose content is `file` if it is one;
    /// `has_axes`: objects of the group that it is in may lie along others.
    pub fn against(
        &self,
        key: &str,
        file: Option<&Arc<dyn Content>>,
        has_axes: bool,
    ) -> Result<Against> {
        let mut against = Against::default();
        let (above, name) = key.split_at(key.rfind('/').map_or(0, |at| at + 1));
        if !has_axes {
            // What cannot be read says nothing, and may be replaced.
            against.over = self.extent(key).unwrap_or_default();
            return Ok(against);
        }
        let mut pile = self.pile();
        for axis in self.formats.along(name) {
            let key = format!("{above}{axis}");
            let said = self.object(key.as_bytes());
            if let Some(now) = self.axis(&mut pile.known, said, &key)? {
                against.along.insert(axis, now.entries);
            }
        }
        if self.formats.is_axis(name)
            && let Some(file) = file
        {
            let entries = read_entries(file)?;
            let said = self.object(key.as_bytes());
            if let Some(now) = self.axis(&mut pile.known, said, key)? {
                against.instead_of = now.with_all_before(&entries);
                let mut below = pile.layers.iter().rev();
                against.on = below.find_map(|layer| layer.commit.clone());
            }
            against.entries = Some(entries);
        }
        Ok(against)
    }

    /// Puts an object at a key, in the place of all below it. `is_directory`: it may be shown
    /// as a directory.
    pub fn put(&self, key: &str, stored: &StoredObject, is_directory: bool) {
        let mut pile = self.pile();
        pile.misfits.retain(|misfit| misfit.key != key);
        let Some((_, layer)) = pile.uppermost() else {
            return;
        };
        let entry = LayerEntry::Stored(stored.clone());
        layer.entries.insert(key.to_owned(), entry);
        if stored.begins.is_some() {
            self.note_begun(&pile);
        }
        let Some((at, layer)) = pile.uppermost() else {
            return;
        };
        let object = self.object_of(layer, (&layer.dir, at), key, stored);
        let time = object.origin.time;
        let mut objects = self.objects_mut();
        let said = Said::Object(Arc::new(object));
        objects.set(key.as_bytes(), said, time, is_directory);
    }

    /// Puts another group at a key where the uppermost layer has one; what is below it stays.
    pub fn put_group(&self, key: &str, stored: &StoredObject) {
        let mut pile = self.pile();
        if let Some((_, layer)) = pile.uppermost() {
            let entry = LayerEntry::Stored(stored.clone());
            layer.entries.insert(key.to_owned(), entry);
        }
        self.lay(&mut pile);
    }

    /// Removes what stands at a key, and all below it.
    pub fn remove(&self, key: &str) {
        let mut pile = self.pile();
        pile.misfits.retain(|misfit| misfit.key != key);
        if let Some((_, layer)) = pile.uppermost() {
            layer.entries.insert(key.to_owned(), LayerEntry::Deleted);
        }
        if self.is_begun(key) {
            self.note_begun(&pile);
        }
        self.objects_mut()
            .set(key.as_bytes(), Said::Deleted, SystemTime::now(), true);
    }

    /// The object of which `layer` says that it is at a key, in a file of the directory `dir`, that of the layer at the place `at`.
    fn object_of(
        &self,
        layer: &LayerFiles,
        (dir, at): (&Dir, usize),
        key: &str,
        stored: &StoredObject,
    ) -> LayerObject {
        LayerObject {
            dir: dir.clone(),
            file: stored.name(),
            files: self.files.clone(),
            inside: self.inside(key),
            store: stored.begins.as_ref().and_then(|_| self.shown(key).pop()),
            origin: origin(layer, stored.time),
            at,
            seen: at,
            against: stored.against.clone().map(Arc::from),
            size: stored.size,
            unwritten: stored.unwritten.clone(),
        }
    }

    /// Sets the time of an object of the uppermost layer.
    pub fn set_time(&self, key: &str, time: SystemTime) {
        let mut pile = self.pile();
        if let Some((_, layer)) = pile.uppermost()
            && let Some(LayerEntry::Stored(stored)) = layer.entries.get_mut(key)
        {
            stored.time = layer::nanoseconds(time);
        }
        let mut objects = self.objects_mut();
        if let Some(Said::Object(object)) = objects.by_key.get_mut(key.as_bytes()) {
            let layer = object.origin.layer.clone();
            *object = Arc::new(LayerObject {
                origin: Arc::new(Origin { time, layer }),
                ..LayerObject::clone(object)
            });
            objects.generation += 1;
        }
    }

    /// Returns what the layers say of a key: `None` if nothing.
    fn object(&self, key: &[u8]) -> Option<Said> {
        self.objects().by_key.get(key).cloned()
    }

    /// Returns whether a layer's object stands below a key.
    fn has_below(&self, key: &[u8]) -> bool {
        let start = join(key, b"");
        let objects = self.objects();
        let below = objects.by_key.range(start.clone()..);
        let mut below = below.take_while(|(key, _)| key.starts_with(&start));
        below.any(|(_, said)| said.object().is_some())
    }

    /// The names that lead to an object inside its layer file: those behind the store it belongs to.
    fn inside(&self, key: &str) -> Vec<Vec<u8>> {
        let names = self.shown(key);
        let depth = self.store_depth(&names).unwrap_or(0);
        names.get(depth..).unwrap_or_default().to_vec()
    }

    /// The key of a path without suffix; EILSEQ if it is not UTF-8.
    pub fn key(&self, path: &[Vec<u8>]) -> Result<String> {
        let names: Vec<_> = path.iter().map(|name| self.key_name(name)).collect();
        String::from_utf8(names.join(&b'/')).map_err(|_| {
            let message = "a name that is not UTF-8 cannot be stored";
            Error::new(ErrorKind::Os(libc::EILSEQ), message)
        })
    }

    /// A name of the mount as keys spell it: with `#`, whatever is shown in its place.
    pub fn key_name(&self, shown: &[u8]) -> Vec<u8> {
        respell(shown, self.sep(), b'#')
    }

    /// The path of a key as the mount shows it, without suffix.
    pub fn shown(&self, key: &str) -> Vec<Vec<u8>> {
        let names = key.split('/');
        names.map(|name| self.shown_name(name.as_bytes())).collect()
    }

    /// A name of a key as the mount shows it.
    fn shown_name(&self, name: &[u8]) -> Vec<u8> {
        respell(name, b'#', self.sep())
    }

    fn sep(&self) -> u8 {
        self.context.options.sep
    }

    /// Returns how many names of a path lead to the store that it is in; `None` if it is in none.
    pub fn store_depth(&self, names: &[Vec<u8>]) -> Option<usize> {
        let begun = self.begun();
        let mut dir = Some(self.base.clone());
        let mut key = Vec::new();
        for depth in 0..=names.len() {
            if dir.as_ref().is_some_and(|dir| dir.is_store()) || begun.contains(&key) {
                return Some(depth);
            }
            if dir.is_none() && begun.is_empty() {
                return None;
            }
            let name = names.get(depth)?;
            key = join(&key, &self.key_name(name));
            dir = match dir.map(|dir| dir.lookup(name)) {
                Some(Ok(Some(Node::Directory(below)))) => Some(below),
                _ => None,
            };
        }
        None
    }

    fn begun(&self) -> Arc<BTreeSet<Vec<u8>>> {
        self.begun.read().unwrap_or_else(|e| e.into_inner()).clone()
    }

    /// Returns whether a layer begins a store at a key.
    pub fn is_begun(&self, key: &str) -> bool {
        self.begun().contains(key.as_bytes())
    }

    /// Looks for the stores that layers begin.
    fn note_begun(&self, pile: &Pile) {
        let entries = pile.layers.iter().flat_map(|layer| &layer.entries);
        let begins = |entry: &LayerEntry| entry.stored().is_some_and(|s| s.begins.is_some());
        let begun = entries.filter(|(_, entry)| begins(entry));
        let begun = begun.map(|(key, _)| key.clone().into_bytes()).collect();
        *self.begun.write().unwrap_or_else(|e| e.into_inner()) = Arc::new(begun);
    }
}

impl Objects {
    /// Returns what the layers say of a key: `None` if nothing.
    fn said(&self, key: &str) -> Option<Said> {
        self.by_key.get(key.as_bytes()).cloned()
    }

    fn set(&mut self, key: &[u8], said: Said, time: SystemTime, dir: bool) {
        let below = [key, b"/"].concat();
        let old: Vec<_> = self
            .by_key
            .range(below.clone()..)
            .map(|(key, _)| key)
            .take_while(|key| key.starts_with(&below))
            .cloned()
            .collect();
        for key in old {
            self.by_key.remove(&key);
        }
        self.by_key.insert(key.to_vec(), said);
        let (parent, _) = split(key);
        let changed = self.times.entry(parent.to_vec()).or_insert(time);
        *changed = time.max(*changed);
        self.generation += u64::from(dir);
    }
}

/// The origin of what a layer has changed at a time.
fn origin(layer: &LayerFiles, nanoseconds: i64) -> Arc<Origin> {
    Arc::new(Origin {
        time: time(nanoseconds),
        layer: layer.checkout().into(),
    })
}

/// Key of the directory that a key is in, and the last name of it.
fn split(key: &[u8]) -> (&[u8], &[u8]) {
    match key.iter().rposition(|&b| b == b'/') {
        Some(at) => (&key[..at], &key[at + 1..]),
        None => (b"", key),
    }
}

/// A key below another.
fn join(parent: &[u8], name: &[u8]) -> Vec<u8> {
    if parent.is_empty() {
        return name.to_vec();
    }
    [parent, b"/", name].concat()
}

/// A visible name with one separator as it is with another; see `tree::name`.
fn respell(name: &[u8], from: u8, to: u8) -> Vec<u8> {
    if from == to {
        return name.to_vec();
    }
    let escape = |byte: u8| format!("%{byte:02X}").into_bytes();
    let mut out = Vec::with_capacity(name.len());
    let mut rest = name;
    while let Some((&byte, tail)) = rest.split_first() {
        rest = tail;
        if byte == from {
            out.push(to);
        } else if from != b'#' && byte == b'%' && tail.starts_with(&escape(from)[1..]) {
            out.push(from);
            rest = &tail[2..];
        } else if to != b'#' && byte == to {
            out.extend(escape(to));
        } else {
            out.push(byte);
        }
    }
    out
}

/// A file's name without the suffix that a store adds.
pub fn stem(name: &[u8]) -> &[u8] {
    SUFFIXES
        .iter()
        .find_map(|suffix| name.strip_suffix(*suffix))
        .unwrap_or(name)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tree::name::visible_with;
    use proptest::prelude::*;

    #[test]
    fn times_of_the_index_are_times() {
        for nanoseconds in [i64::MIN, -7, 0, 1_234_567_890_123_456_789, i64::MAX] {
            assert_eq!(
                super::super::layer::nanoseconds(time(nanoseconds)),
                nanoseconds
            );
        }
    }

    proptest! {
        #[test]
        fn keys_are_spelled_with_a_hash_whatever_is_shown(own in "[a-c#@%/ 0-9A-F.]{1,20}", sep in "[@:,#]") {
            let sep = sep.as_bytes()[0];
            let (key, shown) = (visible_with(own.as_bytes(), "", b'#'), visible_with(own.as_bytes(), "", sep));
            prop_assert_eq!(respell(&shown, sep, b'#'), key.clone());
            prop_assert_eq!(respell(&key, b'#', sep), shown);
        }
    }
}
