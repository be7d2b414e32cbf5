//! Decoded blocks: their keys, and what they cost.

use std::sync::Arc;

use crate::io::buffer::Buffer;

/// The key of a block.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Key {
    /// The store file's serial number.
    pub file: u64,
    /// The address of the dataset.
    pub object: u64,
    /// The number of the form in which it is read.
    pub form: u32,
    /// The number of the block in its form.
    pub block: u64,
}

/// The bytes of a block, shared with the readers that still hold them.
pub type Block = Arc<Buffer>;

/// Bytes that an entry costs beside its content.
pub(super) const OVERHEAD: u64 = 200;

/// The memory that decoding a block takes.
#[derive(Clone, Copy, Debug, Default)]
pub struct Need {
    /// Bytes of the block.
    pub len: usize,
    /// Further bytes while it is decoded.
    pub beside: usize,
    /// True if it is only read from the disk, not decoded, and given up soon.
    pub passes: bool,
    /// True if it is made of other blocks, which are asked for meanwhile.
    pub gathers: bool,
}

impl Need {
    pub(super) fn bytes(self) -> u64 {
        (self.len as u64)
            .saturating_add(self.beside as u64)
            .saturating_add(OVERHEAD)
    }
}

/// Returns the bytes that a block takes of the budget while it is kept.
pub(super) fn cost(block: &Block) -> u64 {
    block.capacity() as u64 + OVERHEAD
}
