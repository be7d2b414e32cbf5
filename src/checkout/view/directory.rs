//! A directory of a store with layers on top.

use std::collections::{BTreeSet, HashSet};
use std::sync::Arc;
use std::time::SystemTime;

use serde_json::{Value as Json, json};

use super::{LayerObject, View, join, stem};
use crate::error::{Result, retry_stale};
use crate::hdf5::Attribute;
use crate::io::file::Ownership;
use crate::tree::{Directory, Listing, Node, StoreHandle};

/// A directory at one path.
pub(super) struct ViewDirectory {
    view: Arc<View>,
    /// Its key; empty for the root.
    key: Vec<u8>,
    /// The directory without the keys below it: the store's, or that of a layer's object. `None`: it is there only
    /// because something is below it.
    below: Option<Arc<dyn Directory>>,
    /// The object that `below` belongs to.
    object: Option<Arc<LayerObject>>,
    generation: u64,
}

impl ViewDirectory {
    /// The root.
    pub(super) fn root(view: Arc<View>) -> Self {
        Self {
            key: Vec::new(),
            below: Some(view.base.clone()),
            object: None,
            generation: 0,
            view,
        }
    }

    /// The node as it is shown at a key; `object`: the one it belongs to.
    fn shown(&self, key: Vec<u8>, node: Node, object: Option<&Arc<LayerObject>>) -> Node {
        match (node, object) {
            (Node::Directory(below), _) => self.directory(key, Some(below), object),
            (Node::File(file), Some(object)) => object.file(file),
            (node, _) => node,
        }
    }

    fn directory(
        &self,
        key: Vec<u8>,
        below: Option<Arc<dyn Directory>>,
        object: Option<&Arc<LayerObject>>,
    ) -> Node {
        Node::Directory(Arc::new(Self {
            view: self.view.clone(),
            key,
            below,
            object: object.cloned(),
            generation: self.view.objects().generation,
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
    fn keys(&self) -> Vec<(Vec<u8>, Option<Arc<LayerObject>>)> {
        let objects = self.view.objects();
        let start = self.start();
        objects
            .by_key
            .range(start.clone()..)
            .take_while(|(key, _)| key.starts_with(&start))
            .filter(|(key, _)| !key[start.len()..].contains(&b'/'))
            .map(|(key, object)| (key.clone(), object.clone()))
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
            .filter(|(_, object)| object.is_some())
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
            if let Some(Some(object)) = said
                && let Some(node) = object.find(name)?
                && self.key_of(name, &node) == *key
            {
                return Ok(Some(self.shown(key.clone(), node, Some(object))));
            }
        }
        let below = match &self.below {
            Some(below) => below.lookup(name)?,
            None => None,
        };
        if let Some(node) = below {
            let key = self.key_of(name, &node);
            let hidden = match key == whole {
                true => said.is_some(),
                false => by_stem.is_some(),
            };
            if !hidden {
                return Ok(Some(self.shown(key, node, self.object.as_ref())));
            }
        }
        let implied = self.view.has_below(&whole);
        Ok(implied.then(|| self.directory(whole, None, None)))
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
        let time = self.object.as_ref().map_or(own.mtime, |object| object.time);
        Ownership {
            mtime: self.changed().map_or(time, |changed| changed.max(time)),
            ..own
        }
    }

    fn list(&self) -> Result<Arc<Listing>> {
        self.view.refresh(&self.key);
        let listing = self.listing()?;
        let keys = self.keys();
        let said: HashSet<&[u8]> = keys.iter().map(|(key, _)| key.as_slice()).collect();
        let mut entries = Vec::with_capacity(listing.len());
        let mut left_out = listing.left_out.clone();
        for (name, node) in listing.iter() {
            let key = self.key_of(&name, &node);
            if !said.contains(key.as_slice()) {
                let node = self.shown(key, node.into_owned(), self.object.as_ref());
                entries.push((name.into_owned(), node));
            }
        }
        for (key, object) in &keys {
            let Some(object) = object else { continue };
            match object.entries() {
                Ok(own) => entries.extend(own.into_iter().map(|(name, node)| {
                    let node = self.shown(key.clone(), node, Some(object));
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
        let same = self.key.is_empty() || self.generation == self.view.objects().generation;
        same && self.below.as_ref().is_none_or(|below| below.is_current())
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
        let info = match &self.below {
            Some(below) => below.info()?,
            None => json!({ "kind": "directory" }),
        };
        Ok(match &self.object {
            Some(object) => object.report(info),
            None => info,
        })
    }

    fn attributes(&self) -> Result<Vec<Attribute>> {
        match &self.below {
            Some(below) => below.attributes(),
            None => Ok(Vec::new()),
        }
    }

    fn handle(&self) -> Option<StoreHandle> {
        self.below.as_ref()?.handle()
    }
}
