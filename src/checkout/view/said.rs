//! The word of the layers about a key, and the time and the checkout that what is shown there has from them.

use std::sync::Arc;
use std::time::SystemTime;

use serde_json::{Value as Json, json};

use super::LayerObject;
use crate::error::Result;
use crate::hdf5::Attribute;
use crate::io::content::Content;
use crate::io::file::Ownership;
use crate::tree::array::StoredArray;
use crate::tree::{Node, VirtualFile};

/// The word of the layers about a key.
#[derive(Clone)]
pub(super) enum Said {
    /// An object of a layer is there.
    Object(Arc<LayerObject>),
    /// Nothing is there.
    Deleted,
    /// The object that is there without layers is there again.
    Uncovered(Arc<Origin>),
}

impl Said {
    /// Returns the object, if it is one.
    pub(super) fn object(&self) -> Option<&Arc<LayerObject>> {
        match self {
            Self::Object(object) => Some(object),
            Self::Deleted | Self::Uncovered(_) => None,
        }
    }

    /// Returns since when what is there without layers is there again, if it is.
    pub(super) fn uncovered(&self) -> Option<&Arc<Origin>> {
        match self {
            Self::Uncovered(origin) => Some(origin),
            Self::Object(_) | Self::Deleted => None,
        }
    }
}

/// The change that what is shown at a key goes back to.
#[derive(Clone, Debug)]
pub struct Origin {
    /// The time of the change.
    pub time: SystemTime,
    /// The checkout that it was made in.
    pub layer: Arc<str>,
}

impl Origin {
    /// A file with this time.
    pub(super) fn file(self: &Arc<Self>, inner: Arc<dyn VirtualFile>) -> Node {
        Node::File(Arc::new(ChangedFile {
            origin: self.clone(),
            inner,
        }))
    }

    /// Adds what is known of it to the report on an entry.
    pub(super) fn report(&self, mut info: Json) -> Json {
        if let Json::Object(map) = &mut info {
            map.insert("checkout".to_owned(), json!(&*self.layer));
        }
        info
    }
}

/// A file whose time is that of a change.
struct ChangedFile {
    origin: Arc<Origin>,
    inner: Arc<dyn VirtualFile>,
}

impl VirtualFile for ChangedFile {
    fn ownership(&self) -> Ownership {
        Ownership {
            mtime: self.origin.time,
            ..self.inner.ownership()
        }
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

    fn info(&self) -> Result<Json> {
        Ok(self.origin.report(self.inner.info()?))
    }

    fn attributes(&self) -> Result<Vec<Attribute>> {
        self.inner.attributes()
    }

    fn mode(&self) -> u32 {
        self.inner.mode()
    }

    fn array(self: Arc<Self>) -> Result<Option<Arc<dyn StoredArray>>> {
        self.inner.clone().array()
    }
}
