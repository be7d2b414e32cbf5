//! A prefix of a bucket as a directory, like a mirrored one of this machine: what goes on behind a `/` is a subdirectory, each store is a
//! directory, too, and other objects are left out.
//!
//! A bucket may hold many objects, and to look at one costs a request. So stores are told by the ends of their names, and looked at when
//! somebody enters them.

use std::collections::{BTreeMap, HashMap};
use std::path::Path;
use std::sync::{Arc, Mutex};

use serde_json::{Value as Json, json};

use super::Object;
use crate::checkout::format::{FileSet, Registry, StoreRoot};
use crate::dataset::context::Context;
use crate::error::{Error, ErrorKind, Result};
use crate::io::file::Ownership;
use crate::io::remote::{Entries, Listing};
use crate::tree::info;
use crate::tree::{Directory, Listing as Shown, Node, StoreHandle, Symlink};

/// Ends of names of HDF5 files, in lower case: of HDF5's own programs, netCDF-4, MATLAB, AnnData and MuData, loom, NeXus, and of
/// satellites. Formats have some more.
const ENDINGS: [&str; 16] = [
    ".h5", ".hdf5", ".hdf", ".he5", ".h5ad", ".h5mu", ".h5df", ".h5fs", ".nc", ".nc4", ".cdf",
    ".mat", ".loom", ".nxs", ".nx5", ".nwb",
];

/// A prefix as a directory.
pub(super) struct Prefix {
    listing: Arc<Listing>,
    context: Arc<Context>,
    formats: Registry,
    /// It was mounted, and is there even if nothing is below.
    is_top: bool,
    /// Nodes made so far, so that what a store has learnt is kept.
    known: Mutex<HashMap<(Sort, String), Node>>,
    /// The store that it is as a whole, once it was found to be one.
    whole: Mutex<Option<Arc<dyn Directory>>>,
    /// Files that were found to be sets, by the time of the newest of their parts.
    sets: Mutex<HashMap<FileSet, Ownership>>,
}

/// The kinds of nodes.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
enum Sort {
    Store,
    Prefix,
    Set,
}

impl Prefix {
    /// Opens a prefix that is mounted: the store that it is as a whole, or a directory.
    ///
    /// # Errors
    ///
    /// It is not to be read, or nothing is below it.
    pub(super) fn open(
        listing: Listing,
        context: &Arc<Context>,
        formats: &Registry,
    ) -> Result<Arc<dyn Directory>> {
        let own = Self::new(listing, context, formats, true);
        if own.entries()?.is_empty() {
            let error = Error::new(ErrorKind::NotFound, "no object's name begins so");
            return Err(error.about(own.listing.address()));
        }
        Ok(match own.whole()? {
            Some(store) => store,
            None => Arc::new(own),
        })
    }

    fn new(listing: Listing, context: &Arc<Context>, formats: &Registry, is_top: bool) -> Self {
        Self {
            listing: Arc::new(listing),
            context: context.clone(),
            formats: formats.clone(),
            is_top,
            known: Mutex::default(),
            whole: Mutex::default(),
            sets: Mutex::default(),
        }
    }

    fn entries(&self) -> Result<Arc<Entries>> {
        let entries = self.listing.entries()?;
        for note in self.listing.take_notes() {
            self.context
                .journal
                .add(&format!("{}: {note}", self.listing.address()));
        }
        Ok(entries)
    }

    /// Returns the store that it is as a whole, if it is one: known when somebody enters it.
    fn whole(&self) -> Result<Option<Arc<dyn Directory>>> {
        let mut whole = self.whole.lock().unwrap_or_else(|e| e.into_inner());
        if whole.as_ref().is_none_or(|store| !store.is_current()) {
            *whole = None;
            let entries = self.entries()?;
            for format in self.formats.wanted(self.context.options.kind.as_deref()) {
                *whole = format.open_prefix(&self.listing, &entries, &self.context)?;
                if whole.is_some() {
                    break;
                }
            }
        }
        Ok(whole.clone())
    }

    /// Returns the store that it was found to be as a whole.
    fn known_whole(&self) -> Option<Arc<dyn Directory>> {
        let whole = self.whole.lock().unwrap_or_else(|e| e.into_inner());
        whole.clone()
    }

    /// Returns true if an object of this name is taken for a store.
    fn is_store(&self, name: &str) -> bool {
        let name = name.to_ascii_lowercase();
        let own = self.formats.iter().flat_map(|format| format.endings());
        let mut endings = ENDINGS.iter().chain(own);
        endings.any(|ending| name.len() > ending.len() && name.ends_with(ending))
    }

    /// Returns what a name that others go on behind is shown as.
    fn below(&self, name: &str) -> Node {
        self.kept(Sort::Prefix, name, || {
            let below = self.listing.below(name);
            let below = Self::new(below, &self.context, &self.formats, false);
            Node::Directory(Arc::new(below))
        })
    }

    fn store(&self, name: &str) -> Node {
        self.kept(Sort::Store, name, || {
            let address = self.listing.address().below(name, false);
            let listed = Some((self.listing.clone(), name.to_owned()));
            let object = Object::new(address, listed, &self.context, &self.formats);
            Node::Directory(Arc::new(StoreRoot::of(object)))
        })
    }

    /// Returns the set that an object would be part of by its name.
    fn set_of(&self, name: &str) -> Option<FileSet> {
        let kind = self.context.options.kind.as_deref();
        let set = self.formats.set_of(kind, Path::new(""), name.as_bytes())?;
        Some(set.below(&self.listing))
    }

    /// Returns a set under the name that it is shown by, if its parts are one. A part is looked at for that.
    fn set(&self, set: &FileSet) -> Result<Option<(Vec<u8>, Node)>> {
        let format = self.formats.named(set.names.format);
        let external = self.context.options.external;
        let newest = set.ownership(Path::new(""), external);
        if newest == Ownership::UNKNOWN {
            return Ok(None);
        }
        let sets = || self.sets.lock().unwrap_or_else(|e| e.into_inner());
        let is_known = sets().get(set) == Some(&newest);
        if !is_known {
            // Not remembered if it is none: the network may have failed.
            if !format.is_set(set, Path::new(""), &self.context)? {
                return Ok(None);
            }
            sets().insert(set.clone(), newest);
        }
        let Some(root) = format.set_root(set.clone(), Path::new(""), &self.context) else {
            return Ok(None);
        };
        let visible = set.visible();
        let name = String::from_utf8_lossy(&visible).into_owned();
        let node = self.kept(Sort::Set, &name, || Node::Directory(Arc::new(root)));
        Ok(Some((visible, node)))
    }

    /// Returns the node of a name that was made before.
    fn kept(&self, sort: Sort, name: &str, make: impl FnOnce() -> Node) -> Node {
        let mut known = self.known.lock().unwrap_or_else(|e| e.into_inner());
        let node = known.entry((sort, name.to_owned()));
        node.or_insert_with(make).clone()
    }
}

impl Directory for Prefix {
    fn ownership(&self) -> Ownership {
        if let Some(store) = self.known_whole() {
            return store.ownership();
        }
        // Of one below only the name is known before somebody enters it.
        match self.is_top {
            true => self.listing.ownership(None),
            false => self.listing.known_ownership(),
        }
    }

    fn list(&self) -> Result<Arc<Shown>> {
        if let Some(store) = self.whole()? {
            return store.list();
        }
        let entries = self.entries()?;
        let mut shown = Vec::new();
        let left_out: Vec<_> = entries
            .left_out()
            .iter()
            .map(|(name, why)| (name.clone().into_bytes(), why.clone()))
            .collect();
        let (mut names, mut sets) = (Vec::new(), BTreeMap::<FileSet, Vec<_>>::new());
        for name in entries.objects() {
            match self.set_of(name) {
                Some(set) => sets.entry(set).or_default().push(name),
                None => names.push(name),
            }
        }
        for (set, parts) in sets {
            match self.set(&set)? {
                Some(set) => shown.push(set),
                None => names.extend(parts),
            }
        }
        let prefixes = entries.prefixes();
        shown.extend(prefixes.map(|name| (name.as_bytes().to_vec(), self.below(name))));
        let stores = names.into_iter().filter(|name| self.is_store(name));
        shown.extend(stores.map(|name| (name.as_bytes().to_vec(), self.store(name))));
        Ok(Arc::new(Shown::new(shown, left_out, Vec::new())))
    }

    fn lookup(&self, name: &[u8]) -> Result<Option<Node>> {
        if let Some(store) = self.whole()? {
            return store.lookup(name);
        }
        let Ok(name) = std::str::from_utf8(name) else {
            return Ok(None);
        };
        let entries = self.entries()?;
        if entries.has_prefix(name) {
            return Ok(Some(self.below(name)));
        }
        let is_object = entries.has_object(name);
        if is_object
            && let Some(set) = self.set_of(name)
            && let Some((target, _)) = self.set(&set)?
        {
            return Ok(Some(Node::Symlink(Arc::new(Symlink {
                target,
                ownership: self.ownership(),
            }))));
        }
        if is_object {
            return Ok(self.is_store(name).then(|| self.store(name)));
        }
        let kind = self.context.options.kind.as_deref();
        let sets = self
            .formats
            .sets_shown_as(kind, Path::new(""), name.as_bytes());
        for set in sets {
            if let Some((shown, node)) = self.set(&set.below(&self.listing))?
                && shown == name.as_bytes()
            {
                return Ok(Some(node));
            }
        }
        Ok(None)
    }

    fn format(&self) -> Result<&'static str> {
        match self.whole()? {
            Some(store) => store.format(),
            None => Ok("plain"),
        }
    }

    fn handle(&self) -> Option<StoreHandle> {
        self.whole().ok()??.handle()
    }

    fn is_current(&self) -> bool {
        // What cannot be asked for is as it was.
        self.is_top
            || self
                .listing
                .entries()
                .map_or(true, |entries| !entries.is_empty())
    }

    fn info(&self) -> Result<Json> {
        if let Some(store) = self.whole()? {
            return store.info();
        }
        let shown = self.list()?;
        Ok(json!({
            "kind": "directory",
            "file": self.listing.address().to_string(),
            "entries": shown.entries.len(),
            "left_out": info::left_out(&shown.left_out),
        }))
    }
}
