//! A metadata file, whose text is in memory.

use std::sync::Arc;

use serde_json::{Value as Json, json};
use xxhash_rust::xxh3::xxh3_64;

use crate::tree::{Node, VirtualFile};
use npyfs_base::error::Result;
use npyfs_io::content::{Content, InMemory};
use npyfs_io::file::Ownership;

/// The text of a file, and a check that its subject is still the version that the text was made from.
pub(super) struct Document {
    text: Arc<Vec<u8>>,
    ownership: Ownership,
    is_current: Box<dyn Fn() -> bool + Send + Sync>,
}

impl Document {
    /// Returns the file of a text.
    pub(super) fn node(
        text: Arc<Vec<u8>>,
        ownership: Ownership,
        is_current: impl Fn() -> bool + Send + Sync + 'static,
    ) -> Node {
        Node::File(Arc::new(Self {
            text,
            ownership,
            is_current: Box::new(is_current),
        }))
    }
}

impl VirtualFile for Document {
    fn ownership(&self) -> Ownership {
        self.ownership
    }

    fn size(&self) -> Result<u64> {
        Ok(self.text.len() as u64)
    }

    fn open(&self) -> Result<Arc<dyn Content>> {
        Ok(Arc::new(InMemory(self.text.to_vec())))
    }

    fn version(&self) -> u64 {
        xxh3_64(&self.text)
    }

    fn is_current(&self) -> bool {
        (self.is_current)()
    }

    fn info(&self) -> Result<Json> {
        Ok(json!({ "kind": "zarr", "bytes": self.text.len() }))
    }
}
