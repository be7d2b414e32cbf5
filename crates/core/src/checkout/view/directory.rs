//! A directory of a store with layers on top.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::SystemTime;

use serde_json::{Value as Json, json};

use super::View;
use super::join;
use super::key_state::{KeyState, Origin};
use super::marked::{ChangedFile, marked};
use super::stem;
use crate::store::extent;
use crate::tree::array::StoredArray;
use crate::tree::info;
use crate::tree::name::{unescape, visible_with};
use crate::tree::{Directory, Listing, Node, Scales, Seer, StoreHandle};
use npyfs_base::error::{Result, readable, retry_stale};
use npyfs_base::npy::dtype::DType;
use npyfs_base::npy::dtype::Kind;
use npyfs_base::npy::dtype::Order;
use npyfs_hdf5::{Attribute, Value};
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
            generation: self.view.objects().generation,
            changes: None,
            is_fixed: true,
        }))
    }

    /// Returns the listing below the layers; empty if there is none.
    fn listing(&self) -> Result<Arc<Listing>> {
        match &self.below {
            Some(below) => below.list(),
            None => Ok(Arc::default()),
        }
    }

    /// Returns the keys directly below this directory that layers mention.
    fn keys(&self) -> BTreeMap<Vec<u8>, KeyState> {
        let objects = self.view.objects();
        let start = self.start();
        objects
            .by_key
            .range(start.clone()..)
            .take_while(|(key, _)| key.starts_with(&start))
            .filter(|(key, _)| !key[start.len()..].contains(&b'/'))
            .map(|(key, said)| (key.clone(), said.clone()))
            .collect()
    }

    /// Returns whether no layer mentions anything below this directory, and its files are shown as they are.
    fn is_untouched(&self) -> bool {
        let objects = self.view.objects();
        let start = self.start();
        let mut below = objects.by_key.range(start.clone()..);
        self.origin.is_none() && below.next().is_none_or(|(key, _)| !key.starts_with(&start))
    }

    /// Returns the names of directories here that exist only because objects are below them.
    fn implied(&self) -> BTreeSet<Vec<u8>> {
        let objects = self.view.objects();
        let start = self.start();
        objects
            .by_key
            .range(start.clone()..)
            .take_while(|(key, _)| key.starts_with(&start))
            .filter(|(_, said)| said.object().is_some())
            .filter_map(|(key, _)| {
                let rest = &key[start.len()..];
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

    /// Returns the node with a name, according to the present state of the layers.
    fn find(&self, name: &[u8]) -> Result<Option<Node>> {
        let whole = join(&self.key, &self.view.key_name(name));
        let stem = join(&self.key, stem(&self.view.key_name(name)));
        let by_stem = (stem != whole).then(|| self.view.object(&stem)).flatten();
        let said = self.view.object(&whole);
        for (key, said) in [(&stem, &by_stem), (&whole, &said)] {
            if let Some(KeyState::Object(object)) = said
                && let Some(node) = object.find(name)?
                && self.key_of(name, &node) == *key
            {
                return Ok(Some(self.shown(key.clone(), node, Some(&object.origin))));
            }
        }
        let below = match &self.below {
            Some(below) => below.lookup(name)?,
            None => None,
        };
        if let Some(node) = below {
            let key = self.key_of(name, &node);
            let said = if key == whole { said } else { by_stem };
            let origin = match &said {
                None => Some(self.origin.as_ref()),
                Some(said) => said.uncovered().map(Some),
            };
            if let Some(origin) = origin {
                return Ok(Some(self.shown(key, node, origin)));
            }
        }
        let implied = self.view.has_below(&whole);
        Ok(implied.then(|| self.directory(whole, None, None)))
    }

    /// Changes the list of members in an attribute as an export does: new members are appended in the order of keys,
    /// and deleted ones are removed.
    fn relist(&self, list: &mut Attribute, keys: &BTreeMap<Vec<u8>, KeyState>) -> Result<()> {
        let Some(mut names) = names(list) else {
            return Ok(());
        };
        let listing = self.listing()?;
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

    fn changed(&self) -> Option<SystemTime> {
        self.view.objects().times.get(&self.key).copied()
    }
}

impl Directory for ViewDirectory {
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
        Ownership {
            mtime: self.changed().map_or(time, |changed| changed.max(time)),
            ..own
        }
    }

    fn list(&self) -> Result<Arc<Listing>> {
        self.view.refresh(&self.key);
        let listing = self.listing()?;
        let keys = self.keys();
        let many = listing.files_on_demand().filter(|_| self.is_untouched());
        let mut entries = Vec::new();
        let mut left_out = listing.left_out.clone();
        for (name, node) in listing.others(many.as_deref()) {
            let key = self.key_of(&name, &node);
            let origin = match keys.get(&key) {
                None => self.origin.as_ref(),
                Some(KeyState::Uncovered(origin)) => Some(origin),
                Some(KeyState::Object(_) | KeyState::Attribute(_) | KeyState::Deleted) => continue,
            };
            let node = self.shown(key, node.into_owned(), origin);
            entries.push((name.into_owned(), node));
        }
        for (key, said) in &keys {
            let KeyState::Object(object) = said else {
                continue;
            };
            match object.entries() {
                Ok(own) => entries.extend(own.into_iter().map(|(name, node)| {
                    let node = self.shown(key.clone(), node, Some(&object.origin));
                    (name, node)
                })),
                Err(e) => left_out.push((super::split(key).1.to_vec(), e.message)),
            }
        }
        for name in self.implied() {
            let shown = self.view.shown_name(&name);
            if !entries.iter().any(|(known, _)| *known == shown) {
                entries.push((shown, self.directory(join(&self.key, &name), None, None)));
            }
        }
        let mut shown = Listing::new(entries, left_out, listing.notes.clone())
            .with_damage(listing.damage.clone());
        shown.many = many;
        Ok(Arc::new(shown))
    }

    fn each(&self, see: &mut Seer<'_>) -> Result<Vec<String>> {
        self.view.refresh(&self.key);
        if let Some(below) = &self.below
            && self.keys().is_empty()
            && self.implied().is_empty()
        {
            return below.each(&mut |name, node| {
                let key = self.key_of(name, node);
                see(name, &self.shown(key, node.clone(), self.origin.as_ref()))
            });
        }
        let listing = self.list()?;
        listing.show(see);
        Ok(listing.damage.clone())
    }

    fn lookup(&self, name: &[u8]) -> Result<Option<Node>> {
        self.view.refresh(&self.key);
        retry_stale(|| self.find(name))
    }

    fn is_current(&self) -> bool {
        let same = || {
            let objects = self.view.objects();
            let is_as_it_was = self.changes.is_none_or(|known| known == objects.changes);
            is_as_it_was && self.generation == objects.generation
        };
        (!self.is_fixed || same()) && self.below.as_ref().is_none_or(|below| below.is_current())
    }

    fn at_present(&self) -> Result<Option<Arc<dyn Directory>>> {
        self.view.refresh(&self.key);
        let (generation, changes) = {
            let objects = self.view.objects();
            (objects.generation, objects.changes)
        };
        let below = match &self.below {
            Some(below) => Some(below.at_present()?.unwrap_or_else(|| below.clone())),
            None => None,
        };
        Ok(Some(Arc::new(Self {
            view: self.view.clone(),
            key: self.key.clone(),
            below,
            origin: self.origin.clone(),
            generation,
            changes: Some(changes),
            is_fixed: true,
        })))
    }

    fn is_store(&self) -> bool {
        self.below.as_ref().is_some_and(|below| below.is_store())
    }

    fn is_object(&self) -> bool {
        self.below.as_ref().is_some_and(|below| below.is_object())
    }

    fn format(&self) -> Result<&'static str> {
        self.below
            .as_ref()
            .map_or(Ok("plain"), |below| below.format())
    }

    fn info(&self) -> Result<Json> {
        let mut info = match &self.below {
            Some(below) => below.info()?,
            None => json!({ "kind": "directory" }),
        };
        if info.get("attributes").is_some() {
            info["attributes"] = info::attributes(&self.attributes()?);
        }
        Ok(match &self.origin {
            Some(origin) => origin.report(info),
            None => info,
        })
    }

    fn attributes(&self) -> Result<Vec<Attribute>> {
        let mut attributes = match &self.below {
            Some(below) => below.attributes()?,
            None => Vec::new(),
        };
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

    fn scales(&self) -> Result<Scales> {
        let below = self
            .below
            .as_ref()
            .map_or(Ok(Arc::default()), |below| below.scales())?;
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
                    match readable(extent::shape(self, &shown))?.flatten().as_deref() {
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

    fn array(self: Arc<Self>) -> Result<Option<Arc<dyn StoredArray>>> {
        let array = self.below.clone().map_or(Ok(None), |below| below.array())?;
        Ok(array.map(|array| marked(&self.view, &self.key, array)))
    }

    fn handle(&self) -> Option<StoreHandle> {
        self.below.as_ref()?.handle()
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
            let codes = element.as_chunks::<4>().0.iter();
            let codes = codes.map(|code| match order {
                Order::Big => u32::from_be_bytes(*code),
                Order::Little | Order::None => u32::from_le_bytes(*code),
            });
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
    let width = names.iter().map(|name| name.chars().count()).max();
    let width = width.unwrap_or(0).max(1);
    let padded = names.iter().flat_map(|name| {
        let letters = name.chars().chain(std::iter::repeat('\0'));
        letters.take(width).flat_map(|c| u32::from(c).to_le_bytes())
    });
    Value {
        dtype: DType::text(width),
        shape: vec![names.len() as u64],
        data: padded.collect(),
    }
}

#[cfg(test)]
mod member_list_tests {
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
