//! A store in a bucket or on a web server.

mod prefix;
mod verdicts;

use std::sync::{Arc, Mutex};

use serde_json::{Value as Json, json};

use crate::dataset::context::Context;
use crate::dataset::opened::OpenStore;
use crate::formats::what_begins_so;
use crate::store::format::{Registry, StoreRoot, Versions};
use crate::tree::Directory;
use npyfs_base::error::{Error, ErrorKind, Result};
use npyfs_io::file::{Ownership, StoreFile, has_hdf5_signature};
use npyfs_io::remote::{Address, Listing, RemoteObject, Scheme, store_file};
use prefix::Prefix;
use verdicts::Verdicts;

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
    let root = StoreRoot::of(Object::new(address.clone(), None, context, formats));
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
    let root = StoreRoot::of(store);
    root.current()?;
    Ok(Arc::new(root))
}

/// The listing in which an object was found.
struct Listed {
    listing: Arc<Listing>,
    name: String,
    verdicts: Arc<Verdicts>,
}

/// An object with an HDF5 file.
struct Object {
    address: Address,
    listed: Option<Listed>,
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
        listed: Option<Listed>,
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
    fn tell(&self, lost: Option<String>) {
        let mut told = self.lost.lock().unwrap_or_else(|e| e.into_inner());
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
        let newest = self.newest.lock().unwrap_or_else(|e| e.into_inner());
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
        let mut newest = self.newest.lock().unwrap_or_else(|e| e.into_inner());
        if let Some(object) = newest.as_ref().filter(|object| object.is_current()) {
            self.tell(object.lost());
            return Ok(store_file(object));
        }
        let object = RemoteObject::open(&self.address, &self.context.options.remote);
        let object = object.inspect_err(|e| self.tell(Some(e.message.clone())))?;
        self.tell(None);
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
        if let Some(Listed { listing, name, .. }) = &self.listed {
            return listing.ownership(Some(name));
        }
        self.file()
            .map_or(Ownership::UNKNOWN, |file| file.ownership)
    }

    fn are_there(&self) -> bool {
        if let Some(Listed { listing, name, .. }) = &self.listed {
            // If the server does not respond, the last known state is shown.
            let entries = listing.entries();
            return entries.map_or(true, |entries| entries.has_object(name));
        }
        let newest = self.newest.lock().unwrap_or_else(|e| e.into_inner());
        newest.is_some()
    }

    fn describe(&self) -> Json {
        let newest = self.newest.lock().unwrap_or_else(|e| e.into_inner());
        let remote = newest.as_ref().map(|object| object.describe());
        json!({ "file": self.address.to_string(), "remote": remote })
    }
}
