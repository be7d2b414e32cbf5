//! A store with layers on top, as one tree.
//!
//! A layer defines keys: each is an object in a file of the layer, or deleted. A key is an object's path in the mount
//! without the suffix of its last name. A layer's file is opened as a store, and those entries of its tree are shown
//! that belong to the object; so every format that reads stores reads layers, too. Nothing is ever written here.
//!
//! Objects of layers that no longer fit the store are not shown (`fits`). The store may change at any time: when it is
//! another version, information about it is read again, and all layers are applied again.
//!
//! A path of the mount leads to a directory, to the object that it belongs to, and to the forms in which that is shown.

mod axis;
pub mod dimensions;
mod directory;
mod fits;
pub mod follow;
mod object;
pub mod rules;

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::Arc;
use std::time::SystemTime;

use parking_lot::{Mutex, RwLock, RwLockWriteGuard};

use super::records::attribute;
use super::records::entry::{LayerEntry, forget_old_attributes};
use super::records::fit::{Misfit, read_entries};
use super::records::index::{self, StoredObject};
use super::records::layer_files::LayerFiles;
use crate::dataset::context::Context;
use crate::store::against::Against;
use crate::store::format::{Format, Registry};
use crate::tree::name::{self, SUFFIXES, unescape};
use crate::tree::path::walk;
use crate::tree::prefix;
use crate::tree::{Directory, Node};
use directory::ViewDirectory;
use fits::Pile;
use npyfs_base::error::{Error, ErrorKind, Result};
use npyfs_hdf5::Attribute;
use npyfs_io::content::Content;
use npyfs_io::dir::Dir;
use npyfs_io::file::time;
use object::{KeyState, OpenFiles};

pub use object::{LayerObject, Origin};

/// A store with layers on top. All methods may be called from any thread.
pub struct View {
    base: Arc<dyn Directory>,
    context: Arc<Context>,
    formats: Registry,
    files: Arc<OpenFiles>,
    /// The layers, lowest first, and cached information about the store. Locked before `objects`.
    pile: Mutex<Pile>,
    objects: RwLock<Objects>,
    /// Keys at which layers begin stores.
    begun: RwLock<Arc<BTreeSet<Vec<u8>>>>,
}

/// The combined objects of all layers.
#[derive(Clone, Default)]
struct Objects {
    /// The state of each key in the layers.
    by_key: BTreeMap<Vec<u8>, KeyState>,
    /// The time of the last change of each directory by a layer.
    times: HashMap<Vec<u8>, SystemTime>,
    /// Counts changes of the objects that directories stand for.
    generation: u64,
    /// Counts all changes.
    changes: u64,
    /// Whether layers change attributes.
    has_attributes: bool,
}

/// Returns the format for a name in a directory at a path. The directory need not exist.
pub type FormatFor<'a> =
    &'a dyn Fn(Option<&dyn Directory>, &[Vec<u8>], &str) -> Result<Arc<dyn Format>>;

impl View {
    /// Shows a store without layers.
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

    /// Returns the root of the tree.
    pub fn root(self: &Arc<Self>) -> Arc<dyn Directory> {
        Arc::new(ViewDirectory::root(self.clone()))
    }

    /// Returns a view of the same store with other layers on top, lowest first.
    pub(in crate::checkout) fn with(&self, layers: Vec<LayerFiles>) -> Arc<Self> {
        Self::over(self.base.clone(), &self.context, &self.formats, layers)
    }

    /// Returns all formats.
    pub fn formats(&self) -> &Registry {
        &self.formats
    }

    /// Shows a store with layers on top, lowest first.
    pub fn over(
        base: Arc<dyn Directory>,
        context: &Arc<Context>,
        formats: &Registry,
        layers: Vec<LayerFiles>,
    ) -> Arc<Self> {
        let view = Self::new(base, context.clone(), formats);
        view.add_layers(layers);
        view
    }

    fn objects_mut(&self) -> RwLockWriteGuard<'_, Objects> {
        let mut objects = self.objects.write();
        objects.changes += 1;
        objects
    }

    /// Adds layers on top of the present ones, lowest first. Later changes (`put`, `remove`) belong to the uppermost
    /// one.
    pub fn add_layers(&self, layers: impl IntoIterator<Item = LayerFiles>) {
        let mut pile = self.pile.lock();
        pile.layers.extend(layers);
        self.lay(&mut pile);
    }

    /// Shows these layers, lowest first, in the place of the present ones. Later changes belong to the uppermost one.
    pub(in crate::checkout) fn set_layers(&self, layers: Vec<LayerFiles>) {
        let mut pile = self.pile.lock();
        pile.layers = layers;
        self.lay(&mut pile);
    }

    /// Returns the layers, lowest first.
    pub(in crate::checkout) fn layers(&self) -> Vec<LayerFiles> {
        self.pile.lock().layers.clone()
    }

    /// Returns the uppermost layer.
    pub(in crate::checkout) fn last_layer(&self) -> Option<LayerFiles> {
        self.pile.lock().layers.last().cloned()
    }

    /// Returns the objects of layers that do not fit the present store.
    pub fn misfits(&self) -> Vec<Misfit> {
        self.pile.lock().misfits.clone()
    }

    /// Applies all layers again if the store of a directory has changed since they were last applied.
    fn refresh(&self, dir: &[u8]) {
        let mut pile = self.pile.lock();
        if pile.is_outdated(&String::from_utf8_lossy(dir), |key| self.is_there(key)) {
            self.lay(&mut pile);
        }
    }

    /// Returns what an object of the uppermost layer depends on. `file` is its content, if it is an axis; `has_axes`
    /// tells whether objects of its group may lie along axes.
    pub fn against(
        &self,
        key: &str,
        file: Option<&Arc<dyn Content>>,
        has_axes: bool,
    ) -> Result<Against> {
        let mut against = Against::default();
        let (above, name) = key.split_at(key.rfind('/').map_or(0, |at| at + 1));
        if !has_axes {
            // An object that cannot be read may be replaced.
            against.over = self.extent(key).unwrap_or_default();
            return Ok(against);
        }
        let mut pile = self.pile.lock();
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
                against.on = below.find_map(|layer| Some(layer.commit?.to_string()));
            }
            against.entries = Some(entries);
        }
        Ok(against)
    }

    /// Puts an object at a key; it hides everything below the key. `is_directory` tells whether it may be shown as a
    /// directory.
    pub fn put(&self, key: &str, stored: &Arc<StoredObject>, is_directory: bool) {
        let mut pile = self.pile.lock();
        pile.misfits.retain(|misfit| misfit.key != key);
        let Some((_, layer)) = pile.uppermost() else {
            return;
        };
        let entry = LayerEntry::Stored(stored.clone());
        layer.entries.insert(key.to_owned(), entry);
        forget_old_attributes(&mut layer.entries, key);
        if stored.begins.is_some() {
            self.note_begun(&pile);
        }
        let Some((at, layer)) = pile.uppermost() else {
            return;
        };
        let object = self.object_of(layer, (&layer.dir, at), key, stored);
        let time = object.origin.time;
        let mut objects = self.objects_mut();
        let said = KeyState::Object(Arc::new(object));
        objects.set(key.as_bytes(), said, Some(time), is_directory);
    }

    /// Replaces the group at a key of the uppermost layer; the objects below it stay.
    pub fn put_group(&self, key: &str, stored: &Arc<StoredObject>) {
        let mut pile = self.pile.lock();
        if let Some((_, layer)) = pile.uppermost() {
            let entry = LayerEntry::Stored(stored.clone());
            layer.entries.insert(key.to_owned(), entry);
            forget_old_attributes(&mut layer.entries, key);
        }
        self.lay(&mut pile);
    }

    /// Removes the object at a key and everything below it.
    pub fn remove(&self, key: &str) {
        let mut pile = self.pile.lock();
        pile.misfits.retain(|misfit| misfit.key != key);
        let now = SystemTime::now();
        if let Some((_, layer)) = pile.uppermost() {
            layer.delete(key, now);
            forget_old_attributes(&mut layer.entries, key);
        }
        if self.is_begun(key) {
            self.note_begun(&pile);
        }
        let mut objects = self.objects_mut();
        objects.set(key.as_bytes(), KeyState::Deleted, Some(now), true);
    }

    /// Puts an attribute at its key; `None` removes it from its object.
    pub fn put_attribute(&self, key: &str, stored: Option<&Arc<StoredObject>>) {
        let mut pile = self.pile.lock();
        pile.misfits.retain(|misfit| misfit.key != key);
        let Some((at, layer)) = pile.uppermost() else {
            return;
        };
        let (said, time) = match stored {
            Some(stored) => {
                let entry = LayerEntry::Stored(stored.clone());
                layer.entries.insert(key.to_owned(), entry);
                let object = self.object_of(layer, (&layer.dir, at), key, stored);
                (KeyState::Attribute(Arc::new(object)), time(stored.time))
            }
            None => {
                let now = SystemTime::now();
                layer.delete(key, now);
                (KeyState::Deleted, now)
            }
        };
        let mut objects = self.objects_mut();
        objects.has_attributes = true;
        objects.set(key.as_bytes(), said, Some(time), false);
    }

    /// Returns the attributes that layers change of the object at a key, by name.
    fn changed_attributes(&self, key: &[u8]) -> Vec<(Vec<u8>, KeyState)> {
        let objects = self.objects.read();
        let Some(key) = std::str::from_utf8(key)
            .ok()
            .filter(|_| objects.has_attributes)
        else {
            return Vec::new();
        };
        let start = attribute::start(key).into_bytes();
        let name = start.len();
        prefix::entries(&objects.by_key, start)
            .map(|(key, said)| (unescape(&key[name..]), said.clone()))
            .collect()
    }

    /// Returns whether layers change attributes of the object at a key.
    fn changes_attributes(&self, key: &[u8]) -> bool {
        !self.changed_attributes(key).is_empty()
    }

    /// Applies what layers change of the attributes of the object at a key.
    fn with_changes(&self, key: &[u8], mut attributes: Vec<Attribute>) -> Result<Vec<Attribute>> {
        for (name, said) in self.changed_attributes(key) {
            match said {
                KeyState::Attribute(object) => {
                    let new = object.attribute(&name)?;
                    attributes.retain(|attribute| attribute.name != name);
                    attributes.extend(new);
                }
                KeyState::Deleted => attributes.retain(|attribute| attribute.name != name),
                KeyState::Object(_) | KeyState::Uncovered(_) => {}
            }
        }
        attributes.sort_by(|a, b| a.name.cmp(&b.name));
        Ok(attributes)
    }

    /// Returns the object at a key of `layer`, whose index is `at`; its file is in the directory `dir`.
    fn object_of(
        &self,
        layer: &LayerFiles,
        (dir, at): (&Dir, usize),
        key: &str,
        stored: &Arc<StoredObject>,
    ) -> LayerObject {
        LayerObject {
            dir: dir.clone(),
            stored: stored.clone(),
            files: self.files.clone(),
            inside: self.inside(key),
            store: stored.begins.as_ref().and_then(|_| self.shown(key).pop()),
            origin: origin(layer, stored.time),
            at,
            seen: at,
        }
    }

    /// Sets the time of an object of the uppermost layer.
    pub fn set_time(&self, key: &str, time: SystemTime) {
        let mut pile = self.pile.lock();
        if let Some((_, layer)) = pile.uppermost()
            && let Some(LayerEntry::Stored(stored)) = layer.entries.get_mut(key)
        {
            Arc::make_mut(stored).time = index::nanoseconds(time);
        }
        let mut objects = self.objects_mut();
        if let Some(KeyState::Object(object)) = objects.by_key.get_mut(key.as_bytes()) {
            let layer = object.origin.layer.clone();
            *object = Arc::new(LayerObject {
                origin: Origin { time, layer },
                ..LayerObject::clone(object)
            });
            objects.generation += 1;
        }
    }

    /// Returns the state of a key in the layers; `None` if they do not mention it.
    fn object(&self, key: &[u8]) -> Option<KeyState> {
        self.objects.read().by_key.get(key).cloned()
    }

    /// Returns whether the object at a key is in a layer.
    pub fn is_stored(&self, key: &str) -> bool {
        let said = self.object(key.as_bytes());
        said.is_some_and(|said| said.object().is_some())
    }

    /// Returns whether a layer has an object below a key.
    fn has_below(&self, key: &[u8]) -> bool {
        let objects = self.objects.read();
        let mut below = prefix::entries(&objects.by_key, join(key, b""));
        below.any(|(_, said)| said.object().is_some())
    }

    /// Returns the path that leads to an object inside its layer file: the names relative to its store.
    fn inside(&self, key: &str) -> Box<[u8]> {
        let names = self.shown(key);
        let depth = self.store_depth(&names).unwrap_or(0);
        let inside = names.get(depth..).unwrap_or_default();
        inside.join(&b'/').into()
    }

    /// Returns the key of a path without suffix; EILSEQ if it is not UTF-8.
    pub fn key(&self, path: &[Vec<u8>]) -> Result<String> {
        let names: Vec<_> = path.iter().map(|name| self.key_name(name)).collect();
        String::from_utf8(names.join(&b'/')).map_err(|_| {
            let message = "a name that is not UTF-8 cannot be stored";
            Error::new(ErrorKind::Os(libc::EILSEQ), message)
        })
    }

    /// Returns the key spelling of a shown name, in which the separator is `#`.
    pub fn key_name(&self, shown: &[u8]) -> Vec<u8> {
        respell(shown, self.sep(), b'#')
    }

    /// Returns the shown path of a key, without suffix.
    pub fn shown(&self, key: &str) -> Vec<Vec<u8>> {
        let names = key.split('/');
        names.map(|name| self.shown_name(name.as_bytes())).collect()
    }

    /// Returns the shown spelling of a name in a key.
    fn shown_name(&self, name: &[u8]) -> Vec<u8> {
        respell(name, b'#', self.sep())
    }

    /// Returns the separator in shown names.
    pub fn sep(&self) -> u8 {
        self.context.options.sep
    }

    /// Returns how many names of a path lead to its store; `None` if it is in none.
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
        self.begun.read().clone()
    }

    /// Returns whether a layer begins a store at a key.
    pub fn is_begun(&self, key: &str) -> bool {
        self.begun().contains(key.as_bytes())
    }

    /// Finds the stores that layers begin.
    fn note_begun(&self, pile: &Pile) {
        let entries = pile.layers.iter().flat_map(|layer| &layer.entries);
        let begins = |entry: &LayerEntry| entry.stored().is_some_and(|s| s.begins.is_some());
        let begun = entries.filter(|(_, entry)| begins(entry));
        let is_shown = |key: &str| pile.known.begun.get(key).is_none_or(|store| store.is_shown);
        let begun = begun.filter(|(key, _)| is_shown(key));
        let begun = begun.map(|(key, _)| key.clone().into_bytes()).collect();
        *self.begun.write() = Arc::new(begun);
    }

    /// Returns the directory at a path; `None` if it does not exist.
    pub fn directory(self: &Arc<Self>, path: &[Vec<u8>]) -> Result<Option<Arc<dyn Directory>>> {
        Ok(walk(self.root(), path)?.and_then(Node::directory))
    }

    /// Returns how many names of a path lead to the directory of parts that contains it, or that it is; `None` if the
    /// object at the path is a single file, or a group. `suffix` is that of a file at this path; `depth` is the number
    /// of names that lead to the store.
    pub fn composite(
        self: &Arc<Self>,
        depth: usize,
        path: &[Vec<u8>],
        suffix: &str,
        format_for: FormatFor<'_>,
    ) -> Result<Option<usize>> {
        let (store, inside) = path.split_at(depth.min(path.len()));
        if inside.is_empty() {
            return Ok(None);
        }
        let mut dir = self.directory(store)?;
        // The format of the directory that contains a name, and the names below the uppermost directory of that format.
        let mut behind: (&str, Vec<String>) = ("", Vec::new());
        for (at, shown) in inside.iter().enumerate() {
            let name = self.key_name(shown);
            let there = match &dir {
                Some(dir) => dir.lookup(shown)?.and_then(Node::directory),
                None => None,
            };
            if let Ok(name) = std::str::from_utf8(&name) {
                let format = format_for(dir.as_deref(), &path[..depth + at], name)?;
                if format.name() != behind.0 {
                    behind = (format.name(), Vec::new());
                }
                behind
                    .1
                    .push(String::from_utf8_lossy(&name::unescape(name.as_bytes())).into_owned());
                let suffix = if at + 1 == inside.len() { suffix } else { "" };
                if format
                    .objects()
                    .is_object_at(&behind.1, suffix, there.as_deref())?
                {
                    return Ok(Some(depth + at + 1));
                }
            }
            dir = there;
        }
        // Text that is too long for a fixed width is shown as a directory.
        Ok(dir.is_some_and(|dir| dir.is_object()).then_some(path.len()))
    }
}

impl Objects {
    /// Returns the state of a key in the layers; `None` if they do not mention it.
    fn state(&self, key: &str) -> Option<KeyState> {
        self.by_key.get(key.as_bytes()).cloned()
    }

    fn set(&mut self, key: &[u8], said: KeyState, time: Option<SystemTime>, dir: bool) {
        prefix::remove(&mut self.by_key, [key, b"/"].concat());
        self.by_key.insert(key.to_vec(), said);
        if let Some(time) = time {
            self.changed(split(key).0, time);
        }
        self.generation += u64::from(dir);
    }

    /// Notes that a directory was changed at a time.
    fn changed(&mut self, key: &[u8], time: SystemTime) {
        let latest = self.times.entry(key.to_vec()).or_insert(time);
        *latest = time.max(*latest);
    }
}

/// Returns the origin of a layer's change at a time.
fn origin(layer: &LayerFiles, nanoseconds: i64) -> Origin {
    Origin {
        time: time(nanoseconds),
        layer: layer.checkout.clone(),
    }
}

/// Splits a key into that of its directory and the last name.
fn split(key: &[u8]) -> (&[u8], &[u8]) {
    match key.iter().rposition(|&b| b == b'/') {
        Some(at) => (&key[..at], &key[at + 1..]),
        None => (b"", key),
    }
}

/// Returns the key of a name below another key.
fn join(parent: &[u8], name: &[u8]) -> Vec<u8> {
    if parent.is_empty() {
        return name.to_vec();
    }
    [parent, b"/", name].concat()
}

/// Replaces the separator in a visible name; see `tree::name`.
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

/// Returns a file's name without the suffix that a store adds.
pub fn stem(name: &[u8]) -> &[u8] {
    SUFFIXES
        .iter()
        .find_map(|suffix| name.strip_suffix(*suffix))
        .unwrap_or(name)
}

/// Returns all forms in which the object at a key is shown, with their paths: `a/b.npy`, `a/b/`.
pub fn forms(root: &Arc<dyn Directory>, key: &str) -> Result<Vec<(String, Node)>> {
    let (above, last) = key.rsplit_once('/').unwrap_or(("", key));
    let names = above.split('/').filter(|name| !name.is_empty());
    let Some(dir) = walk(root.clone(), names)?.and_then(Node::directory) else {
        return Ok(Vec::new());
    };
    let path = |name: &str| match above {
        "" => name.to_owned(),
        above => format!("{above}/{name}"),
    };
    let mut found = Vec::new();
    for suffix in SUFFIXES {
        let name = format!("{last}{}", String::from_utf8_lossy(suffix));
        match dir.lookup(name.as_bytes())? {
            Some(node @ (Node::File(_) | Node::Symlink(_))) => found.push((path(&name), node)),
            Some(Node::Directory(_)) | None => {}
        }
    }
    match dir.lookup(last.as_bytes())? {
        Some(node @ Node::Directory(_)) => found.push((path(&format!("{last}/")), node)),
        // A link to a group has no suffix.
        Some(node @ Node::Symlink(_)) => found.push((path(last), node)),
        Some(Node::File(_)) | None => {}
    }
    Ok(found)
}

/// Returns whether the object of a layer is a group with nothing in it. `look` shows one layer on top of the store.
pub fn is_empty_group(
    layer: &LayerFiles,
    key: &str,
    look: &dyn Fn(&LayerFiles) -> Arc<View>,
) -> bool {
    let file = layer
        .entries
        .get(key)
        .and_then(|entry| entry.file(&layer.dir));
    let Some((dir, stored)) = file else {
        return false;
    };
    let entries = BTreeMap::from([(key.to_owned(), Some(stored.clone()))]);
    let root = look(&LayerFiles::bare(dir, entries)).root();
    match forms(&root, key).as_deref() {
        Ok([(_, Node::Directory(dir))]) => dir.list().is_ok_and(|listing| listing.is_empty()),
        _ => false,
    }
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
                crate::checkout::records::index::nanoseconds(time(nanoseconds)),
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
