//! A store in a bucket or on a web server, and a prefix of a bucket with stores below it.
//!
//! A prefix is a directory, like a local mirror of it: prefixes below it are subdirectories, each store is a directory,
//! too, and other objects are left out. A bucket may hold many objects, and examining one costs a request. So stores
//! are recognized by the suffixes of their names, and opened when they are first entered. `verdicts` says which of them
//! are none.

mod verdicts;

use std::collections::{BTreeMap, HashMap};
use std::path::Path;
use std::sync::Arc;

use parking_lot::Mutex;
use serde_json::{Value as Json, json};

use self::verdicts::{Verdicts, is_hidden};
use crate::dataset::context::Context;
use crate::dataset::opened::OpenStore;
use crate::formats::{is_called_as_a_store, what_begins_so};
use crate::store::CHECKOUTS_SUFFIX;
use crate::store::format::{FileSet, Registry, StoreRoot, Versions};
use crate::tree::{Directory, Listing as Shown, Node, StoreHandle, Symlink, info};
use npyfs_base::error::{Error, ErrorKind, Result};
use npyfs_io::file::{Ownership, StoreFile, has_hdf5_signature};
use npyfs_io::remote::{Address, Entries, Listing, RemoteObject, Scheme, store_file};

/// Opens the store at an address, or a prefix of a bucket as a directory.
///
/// # Errors
///
/// The reason why it cannot be read, with the address; or it is not an HDF5 file.
pub fn open(
    address: &Address,
    context: &Arc<Context>,
    formats: &Registry,
) -> Result<Arc<dyn Directory>> {
    if address.is_prefix() {
        if address.scheme() == Scheme::Web {
            let why = "a web server does not list its directories: name one of them";
            let why = format!("{address}: {why}");
            return Err(Error::new(ErrorKind::Os(libc::EOPNOTSUPP), why));
        }
        let listing = Listing::new(address, &context.options.remote);
        return Prefix::open(listing, context, formats);
    }
    let root = StoreRoot::over(Object::new(address.clone(), None, context, formats));
    root.current().map_err(|e| match e.kind {
        ErrorKind::NotFound if address.scheme() != Scheme::Web => {
            let why = format!(
                "{}; a directory of objects is named with a / at its end",
                e.message
            );
            Error::new(e.kind, why)
        }
        _ => e,
    })?;
    Ok(Arc::new(root))
}

/// Opens an object as a store; the caller counts its requests.
///
/// # Errors
///
/// The reason why it cannot be read, with the address; or it is not an HDF5 file.
pub fn open_object(
    object: &Arc<RemoteObject>,
    context: &Arc<Context>,
    formats: &Registry,
) -> Result<Arc<dyn Directory>> {
    let store = Object {
        newest: Mutex::new(Some(object.clone())),
        ..Object::new(object.address().clone(), None, context, formats)
    };
    let root = StoreRoot::over(store);
    root.current()?;
    Ok(Arc::new(root))
}

/// The listing in which an object was found.
struct ListedStore {
    listing: Arc<Listing>,
    name: String,
    verdicts: Arc<Verdicts>,
}

/// An object with an HDF5 file.
struct Object {
    address: Address,
    listed: Option<ListedStore>,
    context: Arc<Context>,
    formats: Registry,
    /// The last opened version.
    newest: Mutex<Option<Arc<RemoteObject>>>,
    /// The last reported failure of a server that did not respond.
    lost: Mutex<Option<String>>,
}

/// Returns how a file begins. That was fetched with the first request.
fn head_of(file: &StoreFile) -> Option<Vec<u8>> {
    let len = usize::try_from(file.identity.size).unwrap_or(usize::MAX);
    let mut head = vec![0; len.min(64)];
    file.read_exact_at(&mut head, 0).ok()?;
    Some(head)
}

impl Object {
    fn new(
        address: Address,
        listed: Option<ListedStore>,
        context: &Arc<Context>,
        formats: &Registry,
    ) -> Self {
        Self {
            address,
            listed,
            context: context.clone(),
            formats: formats.clone(),
            newest: Mutex::default(),
            lost: Mutex::default(),
        }
    }

    /// Reports that the server is unreachable, for another reason, or reachable again.
    fn report(&self, lost: Option<String>) {
        let mut told = self.lost.lock();
        if *told != lost {
            let own = format!("{}: ", self.address);
            let now = lost.as_deref().unwrap_or("the server answers again");
            let now = now.trim_start_matches(&own);
            self.context.journal.add(&format!("{own}{now}"));
            *told = lost;
        }
    }

    /// Records whether the version that is open is a store, in the listing in which it was found.
    fn judge(&self, file: &StoreFile, is_store: bool) {
        let newest = self.newest.lock();
        let opened = newest.as_ref().map(|object| object.version().clone());
        drop(newest);
        let (Some(listed), Some(version)) = (&self.listed, opened) else {
            return;
        };
        let verdicts = &listed.verdicts;
        if is_store {
            return verdicts.opened(&listed.name, &version, Ok(()));
        }
        if let Some(head) = head_of(file) {
            verdicts.opened(&listed.name, &version, Err(&head));
        }
    }

    /// Returns the newest version as a file.
    fn file(&self) -> Result<StoreFile> {
        let mut newest = self.newest.lock();
        if let Some(object) = newest.as_ref().filter(|object| object.is_current()) {
            self.report(object.lost());
            return Ok(store_file(object));
        }
        let object = RemoteObject::open(&self.address, &self.context.options.remote);
        let object = object.inspect_err(|e| self.report(Some(e.message.clone())))?;
        self.report(None);
        if newest.is_some() {
            let line = format!("{}: another version is there now", self.address);
            self.context.journal.add(&line);
        }
        for note in object.notes() {
            self.context
                .journal
                .add(&format!("{}: {note}", self.address));
        }
        Ok(store_file(newest.insert(object)))
    }
}

impl Versions for Object {
    fn open(&self) -> Result<Arc<dyn Directory>> {
        let file = self.file()?;
        match has_hdf5_signature(&file) {
            Ok(true) => self.judge(&file, true),
            Err(e) if e.kind() != std::io::ErrorKind::UnexpectedEof => {
                let error = Error::from(e);
                // The error of a request already contains the address.
                return Err(match error.message.starts_with(&self.address.to_string()) {
                    true => error,
                    false => error.about(&self.address),
                });
            }
            // Also for a file that ends before its signature.
            _ => {
                self.judge(&file, false);
                let head = head_of(&file);
                let why = head.map_or("not an HDF5 file", |head| what_begins_so(&head));
                return Err(Error::damaged(why).about(&self.address));
            }
        }
        let store = OpenStore::from_file(&self.context, file)?;
        self.formats.root(&store)
    }

    fn ownership(&self) -> Ownership {
        if let Some(ListedStore { listing, name, .. }) = &self.listed {
            return listing.ownership(Some(name));
        }
        self.file()
            .map_or(Ownership::UNKNOWN, |file| file.ownership)
    }

    fn are_there(&self) -> bool {
        if let Some(ListedStore { listing, name, .. }) = &self.listed {
            // If the server does not respond, the last known state is shown.
            let entries = listing.entries();
            return entries.map_or(true, |entries| entries.has_object(name));
        }
        let newest = self.newest.lock();
        newest.is_some()
    }

    fn describe(&self) -> Json {
        let newest = self.newest.lock();
        let remote = newest.as_ref().map(|object| object.describe());
        json!({ "file": self.address.to_string(), "remote": remote })
    }
}

/// A prefix as a directory.
struct Prefix {
    listing: Arc<Listing>,
    context: Arc<Context>,
    formats: Registry,
    verdicts: Arc<Verdicts>,
    /// Whether it is the mounted prefix, which exists even if there are no objects below it.
    is_top: bool,
    /// The nodes created so far, as stores cache information.
    known: Mutex<HashMap<(Sort, String), Node>>,
    /// The store that the whole prefix is, once this was found.
    whole: Mutex<Option<Arc<dyn Directory>>>,
    /// Files that were found to be sets, with the time of the latest change of any part.
    sets: Mutex<HashMap<FileSet, Ownership>>,
}

/// Returns whether the name of a prefix is one of checkouts, which are not shown.
fn is_checkouts(name: &str) -> bool {
    name.ends_with(CHECKOUTS_SUFFIX)
}

/// The kinds of nodes.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
enum Sort {
    Store,
    Prefix,
    Set,
}

impl Prefix {
    /// Opens the mounted prefix: as a single store if it is one, otherwise as a directory.
    ///
    /// # Errors
    ///
    /// The prefix cannot be read, or there is nothing below it.
    fn open(
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
        let listing = Arc::new(listing);
        Self {
            verdicts: Arc::new(Verdicts::new(&listing, context)),
            listing,
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

    /// Returns the store that the whole prefix is, if it is one; determined when it is first entered.
    fn whole(&self) -> Result<Option<Arc<dyn Directory>>> {
        let mut whole = self.whole.lock();
        if whole.as_ref().is_none_or(|store| !store.is_current()) {
            *whole = None;
            let entries = self.entries()?;
            let formats = self.formats.wanted(self.context.options.kind.as_deref());
            for stores in formats.filter_map(|format| format.directories()) {
                *whole = stores.open_prefix(&self.listing, &entries, &self.context)?;
                if whole.is_some() {
                    break;
                }
            }
        }
        Ok(whole.clone())
    }

    /// Returns the store that the whole prefix was found to be.
    fn known_whole(&self) -> Option<Arc<dyn Directory>> {
        let whole = self.whole.lock();
        whole.clone()
    }

    /// Returns true if an object of this name is taken for a store.
    fn is_store(&self, name: &str) -> bool {
        is_called_as_a_store(name, &self.formats)
    }

    /// Returns the node for the name of a prefix.
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
            let listed = ListedStore {
                listing: self.listing.clone(),
                name: name.to_owned(),
                verdicts: self.verdicts.clone(),
            };
            let object = Object::new(address, Some(listed), &self.context, &self.formats);
            Node::Directory(Arc::new(StoreRoot::over(object)))
        })
    }

    /// Returns the set of which an object would be a part by its name.
    fn set_of(&self, name: &str) -> Option<FileSet> {
        let kind = self.context.options.kind.as_deref();
        let set = self.formats.set_of(kind, Path::new(""), name.as_bytes())?;
        Some(set.below(&self.listing))
    }

    /// Returns a set under its shown name, if its parts are a set; examines one part.
    fn set(&self, set: &FileSet) -> Result<Option<(Vec<u8>, Node)>> {
        let Some(sets) = self.formats.named(set.names.format).sets() else {
            return Ok(None);
        };
        let external = self.context.options.external;
        let newest = set.ownership(Path::new(""), external);
        if newest == Ownership::UNKNOWN {
            return Ok(None);
        }
        let is_known = self.sets.lock().get(set) == Some(&newest);
        if !is_known {
            // A negative result is not remembered: the network may have failed.
            if !sets.is_set(set, Path::new(""), &self.context)? {
                return Ok(None);
            }
            self.sets.lock().insert(set.clone(), newest);
        }
        let root = sets.set_root(set.clone(), Path::new(""), &self.context);
        let visible = set.visible();
        let name = String::from_utf8_lossy(&visible).into_owned();
        let node = self.kept(Sort::Set, &name, || Node::Directory(Arc::new(root)));
        Ok(Some((visible, node)))
    }

    /// Returns the node of a name, created on first use.
    fn kept(&self, sort: Sort, name: &str, make: impl FnOnce() -> Node) -> Node {
        let mut known = self.known.lock();
        let node = known.entry((sort, name.to_owned()));
        node.or_insert_with(make).clone()
    }
}

impl Directory for Prefix {
    fn ownership(&self) -> Ownership {
        if let Some(store) = self.known_whole() {
            return store.ownership();
        }
        // For a prefix below, only the name is known before it is entered.
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
        let mut left_out: Vec<_> = entries
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
        let prefixes = entries.prefixes().filter(|name| !is_checkouts(name));
        shown.extend(prefixes.map(|name| (name.as_bytes().to_vec(), self.below(name))));
        names.retain(|name| self.is_store(name));
        self.verdicts.look_at(&entries, &names);
        let mut damage = Vec::new();
        for name in names {
            match self.verdicts.damage(&entries, name) {
                None => shown.push((name.as_bytes().to_vec(), self.store(name))),
                Some(_) if is_hidden(name) => {}
                Some(why) => {
                    damage.push(format!("{name}: {why}"));
                    left_out.push((name.as_bytes().to_vec(), why.to_owned()));
                }
            }
        }
        let listing = Shown::new(shown, left_out, Vec::new());
        Ok(Arc::new(listing.with_damage(damage)))
    }

    fn lookup(&self, name: &[u8]) -> Result<Option<Node>> {
        if let Some(store) = self.whole()? {
            return store.lookup(name);
        }
        let Ok(name) = std::str::from_utf8(name) else {
            return Ok(None);
        };
        let entries = self.entries()?;
        if entries.has_prefix(name) && !is_checkouts(name) {
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
            let is_shown = self.is_store(name) && self.verdicts.damage(&entries, name).is_none();
            return Ok(is_shown.then(|| self.store(name)));
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
        // If the server does not respond, the last known state is shown.
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
