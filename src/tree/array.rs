//! A dataset behind an entry of the tree, as an array in chunks: what views are made of.

use std::sync::Arc;

use crate::error::Result;
use crate::hdf5::Details;
use crate::io::content::Content;
use crate::npy::dtype::DType;

/// The elements of an array.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Elements {
    /// Elements of one size.
    Fixed(DType),
    /// Text of variable length.
    Text,
}

/// What an array is.
#[derive(Clone, Debug)]
pub struct ArrayDescription {
    /// The elements.
    pub elements: Elements,
    /// The dimensions, with those of an array datatype.
    pub shape: Vec<u64>,
    /// The shape of a chunk, of the same rank, nowhere 0: that in the file, or where it has none, or none that its chunks can be
    /// read by, one that is cheap to read.
    pub chunk: Vec<u64>,
    /// Everything else that the file says.
    pub details: Details,
}

impl ArrayDescription {
    /// Returns the number of chunks along each dimension.
    pub fn counts(&self) -> Vec<u64> {
        let both = self.shape.iter().zip(&self.chunk);
        both.map(|(n, chunk)| n.div_ceil((*chunk).max(1))).collect()
    }
}

/// Returns the place in a grid, of so many chunks along each dimension, of a chunk by its number in C order.
pub fn place_of(number: u64, counts: &[u64]) -> Vec<u64> {
    let mut left = number;
    let mut place = vec![0; counts.len()];
    for (at, count) in place.iter_mut().zip(counts).rev() {
        *at = left % (*count).max(1);
        left /= (*count).max(1);
    }
    place
}

/// Returns whether the chunk at a place in the grid was ever written, at least in part.
pub type IsWritten = Box<dyn Fn(&[u64]) -> bool + Send + Sync>;

/// Which chunks of an array were ever written, at least in part.
pub enum Presence {
    /// All of them, or that takes reading.
    All,
    /// None.
    Nothing,
    /// Those at places in the grid of which this is true.
    Some(IsWritten),
}

/// A dataset as an array in chunks.
pub trait StoredArray: Send + Sync {
    /// Returns the name of the link that leads to it, as it is in the file.
    fn name(&self) -> &[u8];

    /// Returns the type of its elements, if that takes no look at them.
    fn dtype(&self) -> Option<&DType>;

    /// Returns a number of the store's version, as the file of the elements does.
    fn version(&self) -> u64;

    /// Returns whether the store on disk is still the version that the dataset was found in.
    fn is_current(&self) -> bool;

    /// Returns what the array is. It asks a worker.
    fn describe(&self) -> Result<ArrayDescription>;

    /// Returns which chunks were ever written.
    fn presence(&self, of: &ArrayDescription) -> Result<Presence>;

    /// Returns the exact number of bytes of a chunk.
    fn chunk_len(&self, of: &ArrayDescription, place: &[u64]) -> Result<u64>;

    /// Opens the chunk at a place in the grid: its elements in C order, as many as the shape of a chunk says. Those
    /// beyond the array are the fill value, or empty.
    fn chunk(&self, of: &ArrayDescription, place: &[u64]) -> Result<Arc<dyn Content>>;
}
