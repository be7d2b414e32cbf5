//! Arrays without elements, whose dimensions are stored: as files, and as empty directories.

use std::sync::{Arc, OnceLock};

use serde_json::{Value as Json, json};

use super::NAME;
use super::characters::texts;
use super::value::Class;
use crate::formats::plain::array::ArrayFile;
use crate::tree::info;
use crate::tree::{Directory, Listing, VirtualFile};
use npyfs_base::error::{Error, Result};
use npyfs_base::npy;
use npyfs_base::npy::dtype::{DType, integer};
use npyfs_hdf5::Attribute;
use npyfs_io::content::{Content, InMemory};
use npyfs_io::file::Ownership;

/// An array without elements.
pub(super) struct EmptyArray {
    stored: ArrayFile,
    class: Class,
    /// The content of its file: a header, and for text the empty elements.
    made: OnceLock<Vec<u8>>,
}

impl EmptyArray {
    /// Makes the array whose dimensions are in a dataset.
    pub(super) fn new(stored: ArrayFile, class: Class) -> Self {
        Self {
            stored,
            class,
            made: OnceLock::new(),
        }
    }

    /// Reads the dimensions.
    fn shape(&self) -> Result<Vec<u64>> {
        let (DType::Scalar { kind, order, .. }, _) = self.stored.dtype()? else {
            return Err(Error::damaged("dimensions that are no integers"));
        };
        let dims = self.stored.payload()?;
        let rank = self.stored.dataset.shape.iter().product::<u64>();
        let too_large = || Error::damaged("dimensions that are too large");
        let mut bytes = vec![0; usize::try_from(dims.len()).map_err(|_| too_large())?];
        dims.read_at(0, &mut bytes)?;
        let size = bytes.len() / usize::try_from(rank).unwrap_or(1).max(1);
        let dims = bytes.chunks_exact(size.max(1));
        let dims = dims.map(|dim| u64::try_from(integer(dim, kind, order)?).ok());
        dims.collect::<Option<Vec<_>>>().ok_or_else(too_large)
    }

    fn dtype_and_shape(&self) -> Result<(DType, Vec<u64>)> {
        let shape = self.shape()?;
        if !shape.contains(&0) {
            let why = format!("an empty array of the shape {shape:?}, which is not empty");
            return Err(Error::damaged(why));
        }
        Ok(match self.class.dtype() {
            Some(dtype) => (dtype, shape),
            None => texts(&shape),
        })
    }

    fn made(&self) -> Result<&[u8]> {
        /// The most bytes of empty texts.
        const MOST: u64 = 1 << 20;
        if let Some(made) = self.made.get() {
            return Ok(made);
        }
        let (dtype, shape) = self.dtype_and_shape()?;
        let len = npy::payload_len(&dtype, &shape).filter(|&len| len <= MOST);
        let too_many = || Error::damaged("too many texts of nothing");
        let len = len.and_then(|len| usize::try_from(len).ok());
        let mut made = npy::header(&dtype, &shape);
        made.resize(made.len() + len.ok_or_else(too_many)?, 0);
        Ok(self.made.get_or_init(|| made))
    }

    fn describe(&self, shape: Result<(Option<DType>, Vec<u64>)>) -> Json {
        let mut info = json!({
            "kind": NAME,
            "file": self.stored.store.file.path.to_string_lossy(),
            "path": self.stored.path(),
            "class": self.class.name(),
        });
        match shape {
            Ok((dtype, shape)) => {
                info["shape"] = json!(shape);
                if let Some(dtype) = dtype {
                    info["dtype"] = dtype.json();
                }
            }
            Err(e) => info["error"] = json!(e.message),
        }
        match self.stored.attributes() {
            Ok(attributes) => info["attributes"] = info::attributes(&attributes),
            Err(e) => info["error"] = json!(e.message),
        }
        info
    }
}

impl VirtualFile for EmptyArray {
    fn ownership(&self) -> Ownership {
        self.stored.ownership()
    }

    fn size(&self) -> Result<u64> {
        Ok(self.made()?.len() as u64)
    }

    fn open(&self) -> Result<Arc<dyn Content>> {
        Ok(Arc::new(InMemory(self.made()?.to_vec())))
    }

    fn version(&self) -> u64 {
        self.stored.version()
    }

    fn is_current(&self) -> bool {
        self.stored.is_current()
    }

    fn info(&self) -> Result<Json> {
        let shape = self.dtype_and_shape();
        Ok(self.describe(shape.map(|(dtype, shape)| (Some(dtype), shape))))
    }

    fn attributes(&self) -> Result<Vec<Attribute>> {
        self.stored.attributes()
    }
}

/// A cell array without cells, an array of zero structs, or a struct without fields.
pub(super) struct EmptyDirectory(pub EmptyArray);

impl Directory for EmptyDirectory {
    fn ownership(&self) -> Ownership {
        VirtualFile::ownership(&self.0)
    }

    fn list(&self) -> Result<Arc<Listing>> {
        Ok(Arc::default())
    }

    fn is_current(&self) -> bool {
        VirtualFile::is_current(&self.0)
    }

    fn format(&self) -> Result<&'static str> {
        Ok(NAME)
    }

    fn info(&self) -> Result<Json> {
        Ok(self.0.describe(self.0.shape().map(|shape| (None, shape))))
    }

    fn attributes(&self) -> Result<Vec<Attribute>> {
        VirtualFile::attributes(&self.0)
    }
}
