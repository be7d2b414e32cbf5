//! A directory of a store with layers on top.
//!
//! Layers may change the time or the attributes of its files and arrays: everything else is that of the object itself.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::SystemTime;

use serde_json::{Value as Json, json};

use super::object::{KeyState, Origin};
use super::{View, join, stem};
use crate::store::against;
use crate::store::encode::ucs4;
use crate::tree::array::{ArrayDescription, Presence, StoredArray};
use crate::tree::name::{unescape, visible_with};
use crate::tree::overlay::{self, AddedEntries, Overlay};
use crate::tree::prefix;
use crate::tree::{Directory, Node, Scales, VirtualFile, info};
use npyfs_base::error::{Result, readable};
use npyfs_base::npy::dtype::{DType, Kind};
use npyfs_hdf5::{Attribute, Value};
use npyfs_io::content::Content;
use npyfs_io::file::Ownership;

/// A directory at a path of the view.
pub(super) struct ViewDirectory {
    view: Arc<View>,
    /// The key; empty for the root.
    key: Vec<u8>,
    /// The directory without the changes below it: the store's, or that of a layer's object. `None` if it exists only
    /// because an object is below it.
    below: Option<Arc<dyn Directory>>,
    /// The change that `below` comes from, if it is of a layer.
    origin: Option<Origin>,
    generation: u64,
    /// The number of changes at which this listing becomes outdated, for a caller that caches it.
    changes: Option<u64>,
    /// Whether each change makes it another directory. Otherwise the root stays the same.
    is_fixed: bool,
}

impl ViewDirectory {
    /// Returns the root.
    pub(super) fn root(view: Arc<View>) -> Self {
        Self {
            key: Vec::new(),
            below: Some(view.base.clone()),
            origin: None,
            generation: 0,
            changes: None,
            is_fixed: false,
            view,
        }
    }

    /// Returns the node as it is shown at a key; `origin` is the change that it comes from.
    fn shown(&self, key: Vec<u8>, node: Node, origin: Option<&Origin>) -> Node {
        match node {
            Node::Directory(below) => self.directory(key, Some(below), origin),
            Node::File(inner) if origin.is_some() || self.view.changes_attributes(&key) => {
                Node::File(Arc::new(ChangedFile {
                    view: self.view.clone(),
                    key,
                    origin: origin.cloned(),
                    inner,
                }))
            }
            node => node,
        }
    }

    fn directory(
        &self,
        key: Vec<u8>,
        below: Option<Arc<dyn Directory>>,
        origin: Option<&Origin>,
    ) -> Node {
        Node::Directory(Arc::new(Self {
            view: self.view.clone(),
            key,
            below,
            origin: origin.cloned(),
            generation: self.view.objects.read().generation,
            changes: None,
            is_fixed: true,
        }))
    }

    /// Returns the keys directly below this directory that layers mention.
    fn keys(&self) -> BTreeMap<Vec<u8>, KeyState> {
        let objects = self.view.objects.read();
        let start = self.start();
        let name = start.len();
        prefix::entries(&objects.by_key, start)
            .filter(|(key, _)| !key[name..].contains(&b'/'))
            .map(|(key, said)| (key.clone(), said.clone()))
            .collect()
    }

    /// Returns the names of directories here that exist only because objects are below them.
    fn implied(&self) -> BTreeSet<Vec<u8>> {
        let objects = self.view.objects.read();
        let start = self.start();
        let name = start.len();
        prefix::entries(&objects.by_key, start)
            .filter(|(_, said)| said.object().is_some())
            .filter_map(|(key, _)| {
                let rest = &key[name..];
                let end = rest.iter().position(|&b| b == b'/')?;
                Some(rest[..end].to_vec())
            })
            .collect()
    }

    /// Returns the prefix of the keys of all objects in this directory.
    fn start(&self) -> Vec<u8> {
        match self.key.is_empty() {
            true => Vec::new(),
            false => join(&self.key, b""),
        }
    }

    fn key_of(&self, name: &[u8], node: &Node) -> Vec<u8> {
        match node {
            Node::Directory(_) => join(&self.key, &self.view.key_name(name)),
            Node::File(_) | Node::Symlink(_) => join(&self.key, stem(&self.view.key_name(name))),
        }
    }

    /// Changes the list of members in an attribute as an export does: new members are appended in the order of keys,
    /// and deleted ones are removed.
    fn relist(&self, list: &mut Attribute, keys: &BTreeMap<Vec<u8>, KeyState>) -> Result<()> {
        let Some(mut names) = names(list) else {
            return Ok(());
        };
        let listing = self.below.as_ref().map(|below| below.list());
        let listing = listing.transpose()?.unwrap_or_default();
        let there: BTreeSet<Vec<u8>> = listing
            .iter()
            .map(|(name, node)| self.key_of(&name, &node))
            .collect();
        for (key, said) in keys {
            let name = String::from_utf8_lossy(&unescape(super::split(key).1)).into_owned();
            match said {
                KeyState::Deleted => names.retain(|known| *known != name),
                KeyState::Object(_) if !there.contains(key) && !names.contains(&name) => {
                    names.push(name);
                }
                KeyState::Object(_) | KeyState::Attribute(_) | KeyState::Uncovered(_) => {}
            }
        }
        list.value = Ok(value(&names));
        Ok(())
    }
}

impl Overlay for ViewDirectory {
    fn refresh(&self) {
        self.view.refresh(&self.key);
    }

    fn below(&self) -> Result<Option<Arc<dyn Directory>>> {
        Ok(self.below.clone())
    }

    fn is_unchanged(&self) -> bool {
        let objects = self.view.objects.read();
        let mut below = prefix::entries(&objects.by_key, self.start());
        self.origin.is_none() && below.next().is_none()
    }

    fn added(&self, name: &[u8]) -> Result<Option<Node>> {
        let spelled = self.view.key_name(name);
        let whole = join(&self.key, &spelled);
        let stem = join(&self.key, stem(&spelled));
        let is_bare = stem == whole;
        for key in [stem, whole].into_iter().skip(usize::from(is_bare)) {
            if let Some(KeyState::Object(object)) = self.view.object(&key)
                && let Some(node) = object.find(name)?
                && self.key_of(name, &node) == key
            {
                return Ok(Some(self.shown(key, node, Some(&object.origin))));
            }
        }
        Ok(None)
    }

    fn kept(&self, name: &[u8], node: Node) -> Result<Option<Node>> {
        let key = self.key_of(name, &node);
        Ok(match self.view.object(&key) {
            None => Some(self.shown(key, node, self.origin.as_ref())),
            Some(said) => said
                .uncovered()
                .map(|origin| self.shown(key, node, Some(origin))),
        })
    }

    fn implied(&self, name: &[u8]) -> Option<Node> {
        let key = join(&self.key, &self.view.key_name(name));
        let is_above = self.view.has_below(&key);
        is_above.then(|| self.directory(key, None, None))
    }

    fn all_added(&self) -> Result<AddedEntries> {
        let names = self.implied();
        let shown = names.iter().map(|name| self.view.shown_name(name));
        let mut added = AddedEntries {
            implied: shown.collect(),
            ..AddedEntries::default()
        };
        for (key, said) in self.keys() {
            let KeyState::Object(object) = said else {
                continue;
            };
            match object.entries() {
                Ok(own) => added.entries.extend(own.into_iter().map(|(name, node)| {
                    let node = self.shown(key.clone(), node, Some(&object.origin));
                    (name, node)
                })),
                Err(e) => added
                    .left_out
                    .push((super::split(&key).1.to_vec(), e.message)),
            }
        }
        Ok(added)
    }

    fn ownership(&self) -> Ownership {
        let own = match &self.below {
            Some(below) => below.ownership(),
            None => Ownership {
                mtime: SystemTime::UNIX_EPOCH,
                ..self.view.base.ownership()
            },
        };
        let origin = self.origin.as_ref();
        let time = origin.map_or(own.mtime, |origin| origin.time);
        let changed = self.view.objects.read().times.get(&self.key).copied();
        Ownership {
            mtime: changed.map_or(time, |changed| changed.max(time)),
            ..own
        }
    }

    fn is_current(&self) -> bool {
        let same = || {
            let objects = self.view.objects.read();
            let is_as_it_was = self.changes.is_none_or(|known| known == objects.changes);
            is_as_it_was && self.generation == objects.generation
        };
        (!self.is_fixed || same()) && self.below.as_ref().is_none_or(|below| below.is_current())
    }

    fn at_present(&self) -> Result<Option<Self>> {
        let (generation, changes) = {
            let objects = self.view.objects.read();
            (objects.generation, objects.changes)
        };
        Ok(Some(Self {
            view: self.view.clone(),
            key: self.key.clone(),
            below: overlay::at_present(&self.below)?,
            origin: self.origin.clone(),
            generation,
            changes: Some(changes),
            is_fixed: true,
        }))
    }

    fn info(&self) -> Result<Json> {
        let mut info = match &self.below {
            Some(below) => below.info()?,
            None => json!({ "kind": "directory" }),
        };
        if info.get("attributes").is_some() {
            info["attributes"] = info::attributes(&Directory::attributes(self)?);
        }
        Ok(match &self.origin {
            Some(origin) => origin.report(info),
            None => info,
        })
    }

    fn attributes(&self, mut attributes: Vec<Attribute>) -> Result<Vec<Attribute>> {
        let keys = self.keys();
        if keys.is_empty() {
            return Ok(attributes);
        }
        for list in self.view.formats().member_lists() {
            let mut found = attributes.iter_mut();
            if let Some(list) = found.find(|a| a.name == list.as_bytes()) {
                self.relist(list, &keys)?;
            }
        }
        self.view.with_changes(&self.key, attributes)
    }

    fn scales(&self, below: Scales) -> Result<Scales> {
        let keys = self.keys();
        if below.is_empty() || keys.is_empty() {
            return Ok(below);
        }
        let mut scales = Vec::with_capacity(below.len());
        for (name, length) in below.iter() {
            let shown = visible_with(name, "", self.view.sep());
            let length = match keys.get(&join(&self.key, &self.view.key_name(&shown))) {
                // A new coordinate says how long its dimension is.
                Some(KeyState::Object(_)) => {
                    match readable(against::shown_shape(self, &shown))?
                        .flatten()
                        .as_deref()
                    {
                        Some([length, ..]) => *length,
                        _ => continue,
                    }
                }
                _ => *length,
            };
            scales.push((name.clone(), length));
        }
        Ok(Arc::new(scales))
    }

    fn array(&self, below: Arc<dyn StoredArray>) -> Arc<dyn StoredArray> {
        marked(&self.view, &self.key, below)
    }
}

/// Returns the names; `None` if the attribute is not a list of texts.
pub(super) fn names(list: &Attribute) -> Option<Vec<String>> {
    let value = list.value.as_ref().ok()?;
    if value.shape == [0] {
        return Some(Vec::new());
    }
    let DType::Scalar {
        kind, size, order, ..
    } = &value.dtype
    else {
        return None;
    };
    if value.shape.len() != 1 {
        return None;
    }
    let name = |element: &[u8]| match kind {
        Kind::Bytes => String::from_utf8(element.to_vec()).ok(),
        Kind::Text => {
            let codes = ucs4::characters(element, *order);
            codes.map(char::from_u32).collect()
        }
        _ => None,
    };
    let names = value.data.chunks_exact((*size).max(1)).map(name);
    let names: Option<Vec<String>> = names.collect();
    let trim = |name: String| name.trim_end_matches('\0').to_owned();
    Some(names?.into_iter().map(trim).collect())
}

/// Returns the value for a list of names.
pub(super) fn value(names: &[String]) -> Value {
    let (dtype, data) = ucs4::elements(names);
    Value {
        dtype,
        shape: vec![names.len() as u64],
        data,
    }
}

/// A file of the store, or of a lower layer, as layers change it: its time, some of its attributes, or both.
struct ChangedFile {
    view: Arc<View>,
    key: Vec<u8>,
    /// The change that the file comes from, if its time is that of a change.
    origin: Option<Origin>,
    inner: Arc<dyn VirtualFile>,
}

impl VirtualFile for ChangedFile {
    fn ownership(&self) -> Ownership {
        let own = self.inner.ownership();
        let mtime = self.origin.as_ref().map_or(own.mtime, |origin| origin.time);
        Ownership { mtime, ..own }
    }

    fn size(&self) -> Result<u64> {
        self.inner.size()
    }

    fn open(&self) -> Result<Arc<dyn Content>> {
        self.inner.open()
    }

    fn version(&self) -> u64 {
        self.inner.version()
    }

    fn is_current(&self) -> bool {
        self.inner.is_current()
    }

    fn is_remade(&self) -> bool {
        self.inner.is_remade()
    }

    fn info(&self) -> Result<Json> {
        let mut info = self.inner.info()?;
        if let Some(origin) = &self.origin {
            info = origin.report(info);
        }
        if info.get("attributes").is_some() {
            info["attributes"] = info::attributes(&self.attributes()?);
        }
        let shape = serde_json::from_value(info["shape"].clone());
        if let Ok(shape) = shape.map(|shape: Vec<u64>| shape)
            && let Some(named) = self.view.shown_dimensions(&self.key, &shape)?
            && let Some(map) = info.as_object_mut()
        {
            map.remove("axes");
            info::axes(&Ok(named), map);
        }
        Ok(info)
    }

    fn attributes(&self) -> Result<Vec<Attribute>> {
        let own = self.inner.attributes()?;
        match self.view.changes_attributes(&self.key) {
            true => self.view.with_changes(&self.key, own),
            false => Ok(own),
        }
    }

    fn mode(&self) -> u32 {
        self.inner.mode()
    }

    fn array(self: Arc<Self>) -> Result<Option<Arc<dyn StoredArray>>> {
        let array = self.inner.clone().array()?;
        Ok(array.map(|array| marked(&self.view, &self.key, array)))
    }
}

/// Returns an array with the changed attributes of the object at a key.
fn marked(view: &Arc<View>, key: &[u8], inner: Arc<dyn StoredArray>) -> Arc<dyn StoredArray> {
    Arc::new(MarkedArray {
        view: view.clone(),
        key: key.to_vec(),
        inner,
    })
}

/// An array some of whose attributes layers change.
struct MarkedArray {
    view: Arc<View>,
    key: Vec<u8>,
    inner: Arc<dyn StoredArray>,
}

impl StoredArray for MarkedArray {
    fn name(&self) -> &[u8] {
        self.inner.name()
    }

    fn dtype(&self) -> Option<&DType> {
        self.inner.dtype()
    }

    fn shape(&self) -> &[u64] {
        self.inner.shape()
    }

    fn has_members(&self) -> bool {
        self.inner.has_members()
    }

    fn version(&self) -> u64 {
        self.inner.version()
    }

    fn is_current(&self) -> bool {
        self.inner.is_current()
    }

    fn describe(&self) -> Result<ArrayDescription> {
        let mut of = self.inner.describe()?;
        let own = std::mem::take(&mut of.details.attributes);
        of.details.attributes = self.view.with_changes(&self.key, own)?;
        if let Some(named) = self.view.shown_dimensions(&self.key, &of.shape)? {
            of.details.dimensions = Ok(named);
        }
        Ok(of)
    }

    fn presence(&self, of: &ArrayDescription) -> Result<Presence> {
        self.inner.presence(of)
    }

    fn chunk_len(&self, of: &ArrayDescription, place: &[u64]) -> Result<u64> {
        self.inner.chunk_len(of, place)
    }

    fn chunk(&self, of: &ArrayDescription, place: &[u64]) -> Result<Arc<dyn Content>> {
        self.inner.chunk(of, place)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_come_back() {
        for names in [vec!["a", "größer", ""], vec![]] {
            let names: Vec<String> = names.into_iter().map(str::to_owned).collect();
            let list = Attribute {
                name: Vec::new(),
                value: Ok(value(&names)),
                references: None,
            };
            assert_eq!(super::names(&list), Some(names));
        }
    }
}
