//! A store in a bucket or on a web server.

use std::sync::{Arc, Mutex};

use serde_json::{Value as Json, json};

use crate::checkout::format::{Registry, StoreRoot, Versions};
use crate::dataset::context::Context;
use crate::dataset::opened::OpenStore;
use crate::error::{Error, ErrorKind, Result};
use crate::io::file::{Ownership, StoreFile, has_hdf5_signature};
use crate::io::remote::{Address, RemoteObject, store_file};
use crate::tree::Directory;

/// Opens the store at an address.
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
        let why = format!("{address}: a directory of objects: name one of them");
        return Err(Error::new(ErrorKind::Os(libc::EOPNOTSUPP), why));
    }
    let object = OneObject {
        address: address.clone(),
        context: context.clone(),
        formats: formats.clone(),
        newest: Mutex::default(),
    };
    object.root()
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
    let store = OneObject {
        address: object.address().clone(),
        context: context.clone(),
        formats: formats.clone(),
        newest: Mutex::new(Some(object.clone())),
    };
    store.root()
}

/// An HDF5 file that is one object.
struct OneObject {
    address: Address,
    context: Arc<Context>,
    formats: Registry,
    /// The version that was opened last.
    newest: Mutex<Option<Arc<RemoteObject>>>,
}

impl OneObject {
    /// Returns the root of the store, after a look at its signature.
    fn root(self) -> Result<Arc<dyn Directory>> {
        let file = self.file()?;
        let signed = has_hdf5_signature(&file).map_err(|e| Error::from(e).about(&self.address))?;
        if !signed {
            return Err(Error::damaged("not an HDF5 file").about(&self.address));
        }
        let root = StoreRoot::of(self);
        root.current()?;
        Ok(Arc::new(root))
    }

    /// Returns the newest version as a file.
    fn file(&self) -> Result<StoreFile> {
        let mut newest = self.newest.lock().unwrap_or_else(|e| e.into_inner());
        if let Some(object) = newest.as_ref().filter(|object| object.is_current()) {
            return Ok(store_file(object));
        }
        let object = RemoteObject::open(&self.address, &self.context.options.remote)?;
        for note in object.notes() {
            self.context
                .journal
                .add(&format!("{}: {note}", self.address));
        }
        Ok(store_file(newest.insert(object)))
    }
}

impl Versions for OneObject {
    fn open(&self) -> Result<Arc<dyn Directory>> {
        let store = OpenStore::from_file(&self.context, self.file()?)?;
        self.formats.root(&store)
    }

    fn ownership(&self) -> Ownership {
        self.file()
            .map_or(Ownership::UNKNOWN, |file| file.ownership)
    }

    fn are_there(&self) -> bool {
        let newest = self.newest.lock().unwrap_or_else(|e| e.into_inner());
        newest.is_some()
    }

    fn describe(&self) -> Json {
        let newest = self.newest.lock().unwrap_or_else(|e| e.into_inner());
        let remote = newest.as_ref().map(|object| object.describe());
        json!({ "file": self.address.to_string(), "remote": remote })
    }
}
