//! Files without a dataset: a value in memory, and an object that cannot be read.

use std::sync::Arc;

use serde_json::json;

use crate::dataset::opened::OpenStore;
use crate::tree::VirtualFile;
use crate::tree::array::StoredArray;
use crate::tree::info;
use npyfs_base::error::{Error, ErrorKind, Result};
use npyfs_base::npy;
use npyfs_hdf5::Value;
use npyfs_io::content::{Concat, Content, InMemory};
use npyfs_io::file::Ownership;

/// A small array from an attribute.
pub struct ValueFile {
    /// The name of the format in which it is shown.
    pub kind: &'static str,
    /// The store.
    pub store: Arc<OpenStore>,
    /// The address of the group in which it is shown.
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

/// An object that has a name but no readable bytes: damaged, or denied.
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
