//! What a piece is, and what it costs to have one.

use std::sync::Arc;

use crate::io::buffer::Buffer;

/// What a piece is: the store file's serial number, the object, the form it is read in, its number.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Key {
    pub file: u64,
    pub object: u64,
    pub form: u32,
    pub piece: u64,
}

/// The bytes of a piece, shared with the readers that still hold them.
pub type Piece = Arc<Buffer>;

/// Bytes that an entry costs beside its content.
pub(super) const OVERHEAD: u64 = 200;

/// What decoding a piece takes.
#[derive(Clone, Copy, Debug)]
pub struct Need {
    /// Bytes of the piece.
    pub len: usize,
    /// Further bytes while it is decoded.
    pub beside: usize,
    /// It is only read from the disk, not decoded, and given up soon.
    pub passes: bool,
}

impl Need {
    pub(super) fn bytes(self) -> u64 {
        (self.len as u64)
            .saturating_add(self.beside as u64)
            .saturating_add(OVERHEAD)
    }
}

/// Bytes that a piece takes of the budget while it is kept.
pub(super) fn cost(piece: &Piece) -> u64 {
    piece.capacity() as u64 + OVERHEAD
}
