//! Files that need no dataset: a value in memory, and a name whose object cannot be read.

use std::sync::Arc;

use serde_json::json;

use crate::dataset::opened::OpenStore;
use crate::error::{Error, ErrorKind, Result};
use crate::hdf5::Value;
use crate::io::content::{Concat, Content, InMemory};
use crate::io::file::Ownership;
use crate::npy;
use crate::tree::VirtualFile;
use crate::tree::array::StoredArray;
use crate::tree::info;

/// A small array that came with an attribute.
pub struct ValueFile {
    /// The format by whose rules it is shown.
    pub kind: &'static str,
    /// The store.
    pub store: Arc<OpenStore>,
    /// Address of the group that it is shown in.
    pub group: u64,
    /// The array.
    pub value: Value,
    /// The path of the object in the file, for `info`.
    pub path: String,
    /// Name of the attribute.
    pub attribute: String,
}

impl VirtualFile for ValueFile {
    fn ownership(&self) -> Ownership {
        self.store.ownership(self.group)
    }

    fn size(&self) -> Result<u64> {
        let header = npy::header(&self.value.dtype, &self.value.shape);
        Ok((header.len() + self.value.data.len()) as u64)
    }

    fn open(&self) -> Result<Arc<dyn Content>> {
        let header = npy::header(&self.value.dtype, &self.value.shape);
        Ok(Arc::new(Concat::new([
            Arc::new(InMemory(header)) as Arc<dyn Content>,
            Arc::new(InMemory(self.value.data.clone())),
        ])))
    }

    fn version(&self) -> u64 {
        self.store.file.identity.number()
    }

    fn is_current(&self) -> bool {
        self.store.file.is_current()
    }

    fn info(&self) -> Result<serde_json::Value> {
        Ok(json!({
            "kind": self.kind,
            "file": self.store.file.path.to_string_lossy(),
            "path": self.path,
            "attribute": self.attribute,
            "dtype": self.value.dtype.json(),
            "shape": self.value.shape,
            "value": info::value(&self.value),
        }))
    }
}

/// An object that has a name but no bytes: damaged, or denied.
pub struct BrokenFile {
    /// The store.
    pub store: Arc<OpenStore>,
    /// Path of the object in the file.
    pub path: String,
    /// The reason why there are no bytes.
    pub error: Error,
}

impl VirtualFile for BrokenFile {
    fn ownership(&self) -> Ownership {
        self.store.file.ownership
    }

    fn size(&self) -> Result<u64> {
        Ok(0)
    }

    fn open(&self) -> Result<Arc<dyn Content>> {
        Err(self.error.clone())
    }

    fn version(&self) -> u64 {
        self.store.file.identity.number()
    }

    fn is_current(&self) -> bool {
        self.store.file.is_current()
    }

    fn mode(&self) -> u32 {
        match self.error.kind {
            ErrorKind::Denied => 0,
            _ => 0o666,
        }
    }

    fn array(self: Arc<Self>) -> Result<Option<Arc<dyn StoredArray>>> {
        Err(self.error.clone())
    }

    fn info(&self) -> Result<serde_json::Value> {
        Ok(json!({
            "file": self.store.file.path.to_string_lossy(),
            "path": self.path,
            "error": self.error.message,
        }))
    }
}
