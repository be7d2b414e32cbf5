//! A directory of a store with layers on top.

use std::collections::HashSet;
use std::sync::Arc;
use std::time::SystemTime;

use serde_json::Value as Json;

use super::{LayerObject, View, join, stem};
use crate::error::Result;
use crate::h5::Attribute;
use crate::raw::Ownership;
use crate::tree::{Directory, Listing, Node};

/// A directory at one path.
pub struct ViewDirectory {
    view: Arc<View>,
    /// Its key; empty for the root.
    key: Vec<u8>,
    /// What it is without the keys below it: of the store, or of a layer's object.
    below: Arc<dyn Directory>,
    /// The object that `below` belongs to.
    object: Option<Arc<LayerObject>>,
    generation: u64,
}

impl ViewDirectory {
    /// The root.
    pub fn root(view: Arc<View>) -> Self {
        Self {
            key: Vec::new(),
            below: view.base.clone(),
            object: None,
            generation: 0,
            view,
        }
    }

    /// The node as it is shown at a key; `object`: the one it belongs to.
    fn shown(&self, key: Vec<u8>, node: Node, object: Option<&Arc<LayerObject>>) -> Node {
        match (node, object) {
            (Node::Directory(below), _) => Node::Directory(Arc::new(Self {
                view: self.view.clone(),
                key,
                below,
                object: object.cloned(),
                generation: self.view.objects().generation,
            })),
            (Node::File(file), Some(object)) => object.file(file),
            (node, _) => node,
        }
    }

    /// Keys right below this directory that layers say something of.
    fn keys(&self) -> Vec<(Vec<u8>, Option<Arc<LayerObject>>)> {
        let objects = self.view.objects();
        let start = join(&self.key, b"");
        let start = if self.key.is_empty() {
            Vec::new()
        } else {
            start
        };
        objects
            .by_key
            .range(start.clone()..)
            .take_while(|(key, _)| key.starts_with(&start))
            .filter(|(key, _)| !key[start.len()..].contains(&b'/'))
            .map(|(key, object)| (key.clone(), object.clone()))
            .collect()
    }

    fn key_of(&self, name: &[u8], node: &Node) -> Vec<u8> {
        match node {
            Node::Directory(_) => join(&self.key, &self.view.key_name(name)),
            Node::File(_) | Node::Symlink(_) => join(&self.key, stem(&self.view.key_name(name))),
        }
    }

    fn changed(&self) -> Option<SystemTime> {
        self.view.objects().times.get(&self.key).copied()
    }
}

impl Directory for ViewDirectory {
    fn ownership(&self) -> Ownership {
        let own = self.below.ownership();
        let time = self.object.as_ref().map_or(own.mtime, |object| object.time);
        Ownership {
            mtime: self.changed().map_or(time, |changed| changed.max(time)),
            ..own
        }
    }

    fn list(&self) -> Result<Arc<Listing>> {
        let listing = self.below.list()?;
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
        Ok(Arc::new(Listing::new(
            entries,
            left_out,
            listing.notes.clone(),
        )))
    }

    fn lookup(&self, name: &[u8]) -> Result<Option<Node>> {
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
        let Some(node) = self.below.lookup(name)? else {
            return Ok(None);
        };
        let key = self.key_of(name, &node);
        let hidden = if key == whole {
            said.is_some()
        } else {
            by_stem.is_some()
        };
        Ok((!hidden).then(|| self.shown(key, node, self.object.as_ref())))
    }

    fn is_current(&self) -> bool {
        let same = self.key.is_empty() || self.generation == self.view.objects().generation;
        same && self.below.is_current()
    }

    fn is_store(&self) -> bool {
        self.below.is_store()
    }

    fn info(&self) -> Result<Json> {
        let info = self.below.info()?;
        Ok(match &self.object {
            Some(object) => object.report(info),
            None => info,
        })
    }

    fn attributes(&self) -> Result<Vec<Attribute>> {
        self.below.attributes()
    }

    fn repository(&self) -> Option<Arc<crate::store::hangar::repository::Repository>> {
        self.below.repository()
    }
}
