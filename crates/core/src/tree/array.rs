//! A dataset behind an entry of the tree, as an array in chunks: the basis of views.

use std::sync::Arc;

use npyfs_base::error::Result;
use npyfs_base::npy::dtype::DType;
use npyfs_hdf5::Details;
use npyfs_io::content::Content;

/// The elements of an array.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Elements {
    /// Elements of one size.
    Fixed(DType),
    /// Text of variable length.
    Text,
}

/// The description of an array.
#[derive(Clone, Debug)]
pub struct ArrayDescription {
    /// The elements.
    pub elements: Elements,
    /// The dimensions, including those of an array datatype.
    pub shape: Vec<u64>,
    /// The shape of a chunk, of the same rank, with no 0: the chunk shape in the file, or a shape that is cheap to read
    /// if the file has none or its chunks cannot be read individually.
    pub chunk: Vec<u64>,
    /// All other properties in the file.
    pub details: Details,
}

impl ArrayDescription {
    /// Returns the number of chunks along each dimension.
    pub fn counts(&self) -> Vec<u64> {
        let both = self.shape.iter().zip(&self.chunk);
        both.map(|(n, chunk)| n.div_ceil((*chunk).max(1))).collect()
    }
}

/// Returns the position in a grid, with `counts` chunks along each dimension, of the chunk with a number in C order.
pub fn place_of(number: u64, counts: &[u64]) -> Vec<u64> {
    let mut left = number;
    let mut place = vec![0; counts.len()];
    for (at, count) in place.iter_mut().zip(counts).rev() {
        *at = left % (*count).max(1);
        left /= (*count).max(1);
    }
    place
}

/// Returns whether the chunk at a position in the grid was written, at least in part.
pub type IsWritten = Box<dyn Fn(&[u64]) -> bool + Send + Sync>;

/// Which chunks of an array were written, at least in part.
pub enum Presence {
    /// All of them, or it is not known without reading.
    All,
    /// None.
    Nothing,
    /// Those at positions in the grid for which this returns true.
    Some(IsWritten),
}

/// A dataset as an array in chunks.
pub trait StoredArray: Send + Sync {
    /// Returns the name of its link in the file.
    fn name(&self) -> &[u8];

    /// Returns the type of its elements, if it is known without reading them.
    fn dtype(&self) -> Option<&DType>;

    /// Returns the dimensions of what the file or directory shows, without a request to a worker.
    fn shape(&self) -> &[u64];

    /// Returns whether the elements are compounds.
    fn has_members(&self) -> bool {
        matches!(self.dtype(), Some(DType::Struct { .. }))
    }

    /// Returns a number of the store's version, the same as that of the file with the elements.
    fn version(&self) -> u64;

    /// Returns whether the store on disk is still the version that the dataset belongs to.
    fn is_current(&self) -> bool;

    /// Returns the description of the array. Sends a request to a worker.
    fn describe(&self) -> Result<ArrayDescription>;

    /// Returns which chunks were written.
    fn presence(&self, of: &ArrayDescription) -> Result<Presence>;

    /// Returns the exact number of bytes of a chunk.
    fn chunk_len(&self, of: &ArrayDescription, place: &[u64]) -> Result<u64>;

    /// Opens the chunk at a position in the grid: all elements of the chunk's shape, in C order. Those past the end of
    /// the array are the fill value, or empty.
    fn chunk(&self, of: &ArrayDescription, place: &[u64]) -> Result<Arc<dyn Content>>;
}
