//! An array of numbers in MATLAB's order: the stored bytes under a header with the dimensions reversed.

use std::sync::Arc;

use serde_json::{Value as Json, json};

use super::NAME;
use super::value::{Class, shown_as};
use crate::dataset::opened::OpenStore;
use crate::formats::plain::array::{ArrayFile, KnownSize};
use crate::tree::VirtualFile;
use npyfs_base::error::{Error, ErrorKind, Result};
use npyfs_base::npy;
use npyfs_base::npy::dtype::{DType, Kind};
use npyfs_hdf5::{Attribute, Dataset, ElementType};
use npyfs_io::content::{Concat, Content, InMemory};
use npyfs_io::file::Ownership;
use npyfs_io::provenance::Provenance;

/// Returns the file of a dataset as in HDF5.
pub(super) fn as_stored(
    store: &Arc<OpenStore>,
    path: &str,
    addr: u64,
    element: ElementType,
    shape: Vec<u64>,
) -> ArrayFile {
    let (group, name) = path.rsplit_once('/').unwrap_or(("", path));
    ArrayFile {
        store: store.clone(),
        dataset: Dataset {
            addr,
            element,
            shape,
            outside: false,
        },
        group: group.into(),
        name: name.as_bytes().into(),
        kind: NAME,
        size: KnownSize::default(),
        is_remade: false,
    }
}

/// Returns dimensions in MATLAB's order.
pub(super) fn reversed(shape: &[u64]) -> Vec<u64> {
    shape.iter().rev().copied().collect()
}

/// An array.
pub(super) struct MatlabArray {
    stored: ArrayFile,
    dtype: DType,
    shape: Vec<u64>,
    class: Option<Class>,
}

impl MatlabArray {
    /// Makes the file of a dataset with elements of a fixed size.
    pub(super) fn new(stored: ArrayFile, class: Option<Class>) -> Result<Self> {
        let ElementType::Fixed { dtype, .. } = &stored.dataset.element else {
            return Err(Error::damaged("elements of no fixed size"));
        };
        Ok(Self {
            dtype: shown_as(dtype, class),
            shape: reversed(&stored.dataset.shape),
            class,
            stored,
        })
    }

    /// Reinterprets the elements as another type of the same size.
    pub(super) fn with_dtype(self, dtype: DType) -> Self {
        Self { dtype, ..self }
    }

    fn header(&self) -> Vec<u8> {
        npy::fortran_header(&self.dtype, &self.shape)
    }
}

impl VirtualFile for MatlabArray {
    fn ownership(&self) -> Ownership {
        self.stored.ownership()
    }

    fn size(&self) -> Result<u64> {
        let too_large = || Error::new(ErrorKind::TooLarge, "larger than a file can be");
        npy::payload_len(&self.dtype, &self.shape)
            .and_then(|len| len.checked_add(self.header().len() as u64))
            .filter(|&size| i64::try_from(size).is_ok())
            .ok_or_else(too_large)
    }

    fn open(&self) -> Result<Arc<dyn Content>> {
        let elements = self.stored.payload()?;
        let is_logical = matches!(
            self.dtype,
            DType::Scalar {
                kind: Kind::Bool,
                ..
            }
        );
        let elements: Arc<dyn Content> = match is_logical {
            true => Arc::new(Booleans(elements)),
            false => Arc::new(elements),
        };
        Ok(Arc::new(Concat::new([
            Arc::new(InMemory(self.header())) as Arc<dyn Content>,
            elements,
        ])))
    }

    fn version(&self) -> u64 {
        self.stored.version()
    }

    fn is_current(&self) -> bool {
        self.stored.is_current()
    }

    fn info(&self) -> Result<Json> {
        let mut info = self.stored.info()?;
        info["dtype"] = self.dtype.json();
        info["shape"] = json!(self.shape);
        info["fortran_order"] = json!(!npy::is_in_c_order(&self.shape));
        if let Some(class) = self.class {
            info["class"] = json!(class.name());
        }
        for key in ["chunks", "max_shape", "axes"] {
            if let Some(Json::Array(dims)) = info.get_mut(key) {
                dims.reverse();
            }
        }
        if let Json::Object(map) = &mut info {
            // It was counted in rows of the stored array.
            map.remove("row_costs");
            if let Some(Json::Object(reads)) = map.get_mut("reads") {
                let (row, column) = (reads.remove("row"), reads.remove("column"));
                if let ([_, _], Some(row), Some(column)) = (self.shape.as_slice(), row, column) {
                    reads.insert("row".to_owned(), column);
                    reads.insert("column".to_owned(), row);
                }
            }
        }
        Ok(info)
    }

    fn attributes(&self) -> Result<Vec<Attribute>> {
        self.stored.attributes()
    }
}

/// Bytes that are shown as 0 or 1, as NumPy requires of booleans.
struct Booleans<C>(C);

impl<C: Content> Content for Booleans<C> {
    fn len(&self) -> u64 {
        self.0.len()
    }

    fn read_at(&self, offset: u64, buf: &mut [u8]) -> Result<()> {
        self.0.read_at(offset, buf)?;
        for byte in buf {
            *byte = u8::from(*byte != 0);
        }
        Ok(())
    }

    fn tell_provenance(&self, to: &mut Provenance) -> bool {
        to.add("booleans", &[]);
        self.0.tell_provenance(to)
    }

    fn stored(&self, from: u64) -> Option<std::ops::Range<u64>> {
        self.0.stored(from)
    }

    fn repeats(&self, from: u64) -> Option<(u64, u64)> {
        self.0.repeats(from)
    }

    fn is_costly(&self) -> bool {
        self.0.is_costly()
    }
}
