//! A directory of a store with layers on top.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::SystemTime;

use serde_json::{Value as Json, json};

use super::said::{Origin, Said};
use super::{View, join, member_list, stem};
use crate::error::{Result, retry_stale};
use crate::hdf5::Attribute;
use crate::io::file::Ownership;
use crate::tree::array::StoredArray;
use crate::tree::info;
use crate::tree::name::unescape;
use crate::tree::{Directory, Listing, Node, StoreHandle};

/// A directory at one path.
pub(super) struct ViewDirectory {
    view: Arc<View>,
    /// Its key; empty for the root.
    key: Vec<u8>,
    /// The directory without the keys below it: the store's, or that of a layer's object. `None`: it is there only
    /// because something is below it.
    below: Option<Arc<dyn Directory>>,
    /// The change that `below` goes back to, if layers made any.
    origin: Option<Arc<Origin>>,
    generation: u64,
    /// The number of changes after which it is no more what it was, for somebody who remembers what is in it.
    changes: Option<u64>,
    /// Any change makes it another one. The root is otherwise the same for ever.
    is_fixed: bool,
}

impl ViewDirectory {
    /// The root.
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

    /// The node as it is shown at a key; `origin`: the change that it goes back to.
    fn shown(&self, key: Vec<u8>, node: Node, origin: Option<&Arc<Origin>>) -> Node {
        match (node, origin) {
            (Node::Directory(below), _) => self.directory(key, Some(below), origin),
            (Node::File(file), Some(origin)) => origin.file(file),
            (node, _) => node,
        }
    }

    fn directory(
        &self,
        key: Vec<u8>,
        below: Option<Arc<dyn Directory>>,
        origin: Option<&Arc<Origin>>,
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

    /// Returns what is below the layers; empty if nothing is.
    fn listing(&self) -> Result<Arc<Listing>> {
        match &self.below {
            Some(below) => below.list(),
            None => Ok(Arc::default()),
        }
    }

    /// Keys right below this directory that layers say something of.
    fn keys(&self) -> BTreeMap<Vec<u8>, Said> {
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

    /// Names of directories here that objects are below.
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

    /// Returns what the keys of everything in this directory begin with.
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

    /// Returns what has a name here, by what the layers say at the moment.
    fn find(&self, name: &[u8]) -> Result<Option<Node>> {
        let whole = join(&self.key, &self.view.key_name(name));
        let stem = join(&self.key, stem(&self.view.key_name(name)));
        let by_stem = (stem != whole).then(|| self.view.object(&stem)).flatten();
        let said = self.view.object(&whole);
        for (key, said) in [(&stem, &by_stem), (&whole, &said)] {
            if let Some(Said::Object(object)) = said
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

    /// Changes the list of members in an attribute as an export does: what is new comes last, in the order of keys, and what is gone
    /// leaves it.
    fn relist(&self, list: &mut Attribute, keys: &BTreeMap<Vec<u8>, Said>) -> Result<()> {
        let Some(mut names) = member_list::names(list) else {
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
                Said::Deleted => names.retain(|known| *known != name),
                Said::Object(_) if !there.contains(key) && !names.contains(&name) => {
                    names.push(name);
                }
                Said::Object(_) | Said::Uncovered(_) => {}
            }
        }
        list.value = Ok(member_list::value(&names));
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
        let mut entries = Vec::with_capacity(listing.len());
        let mut left_out = listing.left_out.clone();
        for (name, node) in listing.iter() {
            let key = self.key_of(&name, &node);
            let origin = match keys.get(&key) {
                None => self.origin.as_ref(),
                Some(Said::Uncovered(origin)) => Some(origin),
                Some(Said::Object(_) | Said::Deleted) => continue,
            };
            let node = self.shown(key, node.into_owned(), origin);
            entries.push((name.into_owned(), node));
        }
        for (key, said) in &keys {
            let Said::Object(object) = said else { continue };
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
        Ok(Arc::new(
            Listing::new(entries, left_out, listing.notes.clone())
                .with_damage(listing.damage.clone()),
        ))
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
        let Some(below) = &self.below else {
            return Ok(Vec::new());
        };
        let mut attributes = below.attributes()?;
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
        Ok(attributes)
    }

    fn array(self: Arc<Self>) -> Result<Option<Arc<dyn StoredArray>>> {
        self.below.clone().map_or(Ok(None), |below| below.array())
    }

    fn handle(&self) -> Option<StoreHandle> {
        self.below.as_ref()?.handle()
    }
}
