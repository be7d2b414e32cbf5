//! A store in a bucket or on a web server.

mod prefix;

use std::sync::{Arc, Mutex};

use serde_json::{Value as Json, json};

use crate::checkout::format::{Registry, StoreRoot, Versions};
use crate::dataset::context::Context;
use crate::dataset::opened::OpenStore;
use crate::error::{Error, ErrorKind, Result};
use crate::io::file::{Ownership, StoreFile, has_hdf5_signature};
use crate::io::remote::{Address, Listing, RemoteObject, Scheme, store_file};
use crate::tree::Directory;
use prefix::Prefix;

/// Opens the store at an address, or the directory that a prefix of a bucket is.
///
/// # Errors
///
/// What keeps it from being read, with the address; it is no HDF5 file.
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

/// Opens the store that an object is, whose requests somebody counts.
///
/// # Errors
///
/// What keeps it from being read, with the address; it is no HDF5 file.
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

/// An object that is an HDF5 file.
struct Object {
    address: Address,
    /// The list that it was found in, and its name there.
    listed: Option<(Arc<Listing>, String)>,
    context: Arc<Context>,
    formats: Registry,
    /// The version that was opened last.
    newest: Mutex<Option<Arc<RemoteObject>>>,
    /// What was said of a server that did not answer.
    lost: Mutex<Option<String>>,
}

impl Object {
    fn new(
        address: Address,
        listed: Option<(Arc<Listing>, String)>,
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

    /// Says that the server is gone, or there again.
    fn tell(&self, lost: Option<String>) {
        let mut told = self.lost.lock().unwrap_or_else(|e| e.into_inner());
        if told.is_some() != lost.is_some() {
            let own = format!("{}: ", self.address);
            let now = lost.as_deref().unwrap_or("the server answers again");
            let now = now.trim_start_matches(&own);
            self.context.journal.add(&format!("{own}{now}"));
            *told = lost;
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
            Ok(true) => {}
            Err(e) if e.kind() != std::io::ErrorKind::UnexpectedEof => {
                let error = Error::from(e);
                // That of a request has the address already.
                return Err(match error.message.starts_with(&self.address.to_string()) {
                    true => error,
                    false => error.about(&self.address),
                });
            }
            // Also one that ends before its signature.
            _ => return Err(Error::damaged("not an HDF5 file").about(&self.address)),
        }
        let store = OpenStore::from_file(&self.context, file)?;
        self.formats.root(&store)
    }

    fn ownership(&self) -> Ownership {
        if let Some((listing, name)) = &self.listed {
            return listing.ownership(Some(name));
        }
        self.file()
            .map_or(Ownership::UNKNOWN, |file| file.ownership)
    }

    fn are_there(&self) -> bool {
        if let Some((listing, name)) = &self.listed {
            // What cannot be asked for is as it was.
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
