//! Files and arrays whose time or attributes layers change: everything else is that of the object itself.

use std::sync::Arc;

use serde_json::Value as Json;

use super::View;
use super::key_state::Origin;
use crate::tree::array::{ArrayDescription, Presence, StoredArray};
use crate::tree::{VirtualFile, info};
use npyfs_base::error::Result;
use npyfs_base::npy::dtype::DType;
use npyfs_hdf5::Attribute;
use npyfs_io::content::Content;
use npyfs_io::file::Ownership;

/// A file of the store, or of a lower layer, as layers change it: its time, some of its attributes, or both.
pub(super) struct ChangedFile {
    pub(super) view: Arc<View>,
    pub(super) key: Vec<u8>,
    /// The change that the file comes from, if its time is that of a change.
    pub(super) origin: Option<Origin>,
    pub(super) inner: Arc<dyn VirtualFile>,
}

impl VirtualFile for ChangedFile {
    fn ownership(&self) -> Ownership {
        let own = self.inner.ownership();
        let mtime = self.origin.as_ref().map_or(own.mtime, |origin| origin.time);
        Ownership { mtime, ..own }
    }

    fn size(&self) -> Result<u64> {
        self.inner.size()
    }

    fn open(&self) -> Result<Arc<dyn Content>> {
        self.inner.open()
    }

    fn version(&self) -> u64 {
        self.inner.version()
    }

    fn is_current(&self) -> bool {
        self.inner.is_current()
    }

    fn is_remade(&self) -> bool {
        self.inner.is_remade()
    }

    fn info(&self) -> Result<Json> {
        let mut info = self.inner.info()?;
        if let Some(origin) = &self.origin {
            info = origin.report(info);
        }
        if info.get("attributes").is_some() {
            info["attributes"] = info::attributes(&self.attributes()?);
        }
        let shape = serde_json::from_value(info["shape"].clone());
        if let Ok(shape) = shape.map(|shape: Vec<u64>| shape)
            && let Some(named) = self.view.shown_dimensions(&self.key, &shape)?
            && let Some(map) = info.as_object_mut()
        {
            map.remove("axes");
            info::axes(&Ok(named), map);
        }
        Ok(info)
    }

    fn attributes(&self) -> Result<Vec<Attribute>> {
        let own = self.inner.attributes()?;
        match self.view.changes_attributes(&self.key) {
            true => self.view.with_changes(&self.key, own),
            false => Ok(own),
        }
    }

    fn mode(&self) -> u32 {
        self.inner.mode()
    }

    fn array(self: Arc<Self>) -> Result<Option<Arc<dyn StoredArray>>> {
        let array = self.inner.clone().array()?;
        Ok(array.map(|array| marked(&self.view, &self.key, array)))
    }
}

/// Returns an array with the changed attributes of the object at a key.
pub(super) fn marked(
    view: &Arc<View>,
    key: &[u8],
    inner: Arc<dyn StoredArray>,
) -> Arc<dyn StoredArray> {
    Arc::new(MarkedArray {
        view: view.clone(),
        key: key.to_vec(),
        inner,
    })
}

/// An array some of whose attributes layers change.
struct MarkedArray {
    view: Arc<View>,
    key: Vec<u8>,
    inner: Arc<dyn StoredArray>,
}

impl StoredArray for MarkedArray {
    fn name(&self) -> &[u8] {
        self.inner.name()
    }

    fn dtype(&self) -> Option<&DType> {
        self.inner.dtype()
    }

    fn shape(&self) -> &[u64] {
        self.inner.shape()
    }

    fn has_members(&self) -> bool {
        self.inner.has_members()
    }

    fn version(&self) -> u64 {
        self.inner.version()
    }

    fn is_current(&self) -> bool {
        self.inner.is_current()
    }

    fn describe(&self) -> Result<ArrayDescription> {
        let mut of = self.inner.describe()?;
        let own = std::mem::take(&mut of.details.attributes);
        of.details.attributes = self.view.with_changes(&self.key, own)?;
        if let Some(named) = self.view.shown_dimensions(&self.key, &of.shape)? {
            of.details.dimensions = Ok(named);
        }
        Ok(of)
    }

    fn presence(&self, of: &ArrayDescription) -> Result<Presence> {
        self.inner.presence(of)
    }

    fn chunk_len(&self, of: &ArrayDescription, place: &[u64]) -> Result<u64> {
        self.inner.chunk_len(of, place)
    }

    fn chunk(&self, of: &ArrayDescription, place: &[u64]) -> Result<Arc<dyn Content>> {
        self.inner.chunk(of, place)
    }
}
