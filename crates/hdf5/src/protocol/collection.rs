//! Collections: files of many equal datasets, a row of which is one sample.

use serde::{Deserialize, Serialize};
use serde_bytes::ByteBuf;

use super::create::FilterSpec;
use npyfs_base::npy::dtype::DType;

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
