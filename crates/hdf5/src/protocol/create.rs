//! New files: groups, attributes, and datasets with room for their elements; and collections, files of many equal
//! datasets, a row of which is one sample.

use serde::{Deserialize, Serialize};
use serde_bytes::ByteBuf;

use super::element::Value;
use npyfs_base::npy::dtype::{DType, Kind};
use npyfs_codec::Encoding;

/// Bytes of an attribute that every object has room for: its header holds 64 KiB.
pub const MAX_SMALL_ATTRIBUTE: usize = 60_000;

/// A filter by its number in HDF5's registry, with its parameters.
pub type FilterSpec = (i32, Vec<u32>);

/// A file to be made, without the elements of its datasets. Paths are names from the root group on.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct Outline {
    /// Groups that are empty or have attributes; the root group has an empty path.
    pub groups: Vec<NewGroup>,
    /// The datasets; groups on the way to them are made as well.
    pub datasets: Vec<NewDataset>,
    /// The soft links.
    pub links: Vec<NewLink>,
    /// The alignment of large contiguous datasets, if not that of a page.
    pub large_at: Option<u64>,
}

/// A group.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct NewGroup {
    /// The path; empty for the root group.
    pub path: Vec<String>,
    /// The attributes.
    pub attributes: Vec<NewAttribute>,
}

/// A soft link.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct NewLink {
    /// The path.
    pub path: Vec<String>,
    /// The path that it leads to.
    pub target: Vec<u8>,
}

/// A dataset. Its elements lie as `.npy` has them, in C order.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct NewDataset {
    /// The path.
    pub path: Vec<String>,
    /// Type of its elements.
    pub element: NewElement,
    /// The shape, which is the maximum shape as well.
    pub shape: Vec<u64>,
    /// The layout of its elements.
    pub layout: NewLayout,
    /// The attributes.
    pub attributes: Vec<NewAttribute>,
}

/// The type of the elements of a new dataset.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum NewElement {
    /// A type of NumPy.
    Array(DType),
    /// UTF-8 in as many bytes, padded with NUL.
    Utf8(usize),
}

/// The layout of a new dataset.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum NewLayout {
    /// All elements together, in C order.
    Contiguous,
    /// In chunks.
    Chunked {
        /// Shape of a chunk.
        chunk: Vec<u64>,
        /// Filters, in the order of writing.
        filters: Vec<FilterSpec>,
        /// The daemon's encoding of chunks, which the filters undo.
        #[serde(skip)]
        encoding: Option<Encoding>,
    },
}

/// A new attribute. Text becomes UTF-8 of variable length, bytes that end with NUL a C string.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct NewAttribute {
    /// The name.
    pub name: String,
    /// The value.
    pub value: Value,
}

impl NewDataset {
    /// Makes a contiguous dataset without attributes.
    pub fn new(path: &[String], dtype: DType, shape: &[u64]) -> Self {
        Self {
            path: path.to_vec(),
            element: NewElement::Array(dtype),
            shape: shape.to_vec(),
            layout: NewLayout::Contiguous,
            attributes: Vec::new(),
        }
    }
}

impl NewElement {
    /// Returns the bytes of an element.
    pub fn size(&self) -> usize {
        match self {
            Self::Array(dtype) => dtype.size(),
            Self::Utf8(size) => *size,
        }
    }
}

impl NewAttribute {
    /// Makes an attribute of a type and shape; `data` are its elements in C order.
    pub fn new(name: &str, dtype: DType, shape: &[u64], data: Vec<u8>) -> Self {
        let (name, shape) = (name.to_owned(), shape.to_vec());
        let value = Value { dtype, shape, data };
        Self { name, value }
    }

    /// Returns whether it may be too large for an object header, which has room for 64 KiB.
    pub fn is_large(&self) -> bool {
        /// Bytes that a text of variable length takes there at most.
        const REFERENCE: usize = 16;
        let bytes = match &self.value.dtype {
            DType::Scalar {
                kind: Kind::Text, ..
            } => count(&self.value.shape).saturating_mul(REFERENCE),
            _ => self.value.data.len(),
        };
        bytes > MAX_SMALL_ATTRIBUTE
    }

    /// Makes an attribute that is one integer of 64 bits.
    pub fn int(name: &str, value: i64) -> Self {
        Self::new(name, DType::int(8), &[], value.to_le_bytes().to_vec())
    }
}

/// Encoded chunks of one dataset.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct NewChunks {
    /// The path of the dataset.
    pub path: Vec<String>,
    /// The chunks, in any order.
    pub chunks: Vec<NewChunk>,
}

/// An encoded chunk.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct NewChunk {
    /// Coordinates of the first element.
    pub start: Vec<u64>,
    /// Bit `i` set: filter `i` was not applied.
    pub mask: u32,
    /// The chunk as it is stored.
    pub bytes: ByteBuf,
}

/// Returns the number of elements of a small array.
fn count(shape: &[u64]) -> usize {
    let elements = shape.iter().fold(1, |n: u64, &d| n.saturating_mul(d));
    usize::try_from(elements).unwrap_or(0)
}

/// A collection to be made.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct NewCollection {
    /// Number of datasets, whose names are `0`, `1`, …
    pub datasets: u32,
    /// Type of the elements.
    pub dtype: DType,
    /// Shape of each dataset; rows come first.
    pub shape: Vec<u64>,
    /// Shape of a chunk.
    pub chunk: Vec<u64>,
    /// Filters, in the order of writing.
    pub filters: Vec<FilterSpec>,
    /// Attributes of the root group.
    pub attributes: Vec<(String, AttributeValue)>,
}

/// The value of an attribute, as h5py stores it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum AttributeValue {
    /// UTF-8 of variable length.
    Text(String),
    /// An integer of 64 bits.
    Int(i64),
    /// A 1-D array of integers of 64 bits.
    Ints(Vec<i64>),
    /// h5py's boolean.
    Bool(bool),
    /// A 64-bit float, by its bits.
    Float(u64),
    /// An array of floats without elements: what NumPy makes of an empty tuple.
    Nothing,
}

/// A row of a dataset: one sample.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct CollectionRow {
    /// Number of the dataset.
    pub dataset: u32,
    /// Number of the row.
    pub row: u64,
    /// Shape of the sample, which may be smaller than the row.
    pub shape: Vec<u64>,
    /// Elements in C order.
    pub bytes: ByteBuf,
}

/// A request about a collection.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum CollectionRequest {
    /// Makes the file anew.
    Create(Box<NewCollection>),
    /// Writes rows, sets attributes, and flushes.
    Write {
        /// The rows.
        rows: Vec<CollectionRow>,
        /// Attributes of the root group, by name.
        attributes: Vec<(String, AttributeValue)>,
    },
    /// Closes the file.
    Close,
}
