//! Filter 1, deflate: a zlib stream (RFC 1950) of the whole chunk.

use std::cell::RefCell;

use libdeflater::Decompressor;

use super::{FilterError, same_size};

/// Decodes into a buffer, which the stream must fill.
pub(super) fn into(stored: &[u8], out: &mut [u8]) -> Result<(), FilterError> {
    thread_local! {
        static DECOMPRESSOR: RefCell<Decompressor> = RefCell::new(Decompressor::new());
    }
    let want = out.len();
    let have = DECOMPRESSOR
        .with_borrow_mut(|d| d.zlib_decompress(stored, out))
        .map_err(|e| FilterError::Deflate(e.to_string()))?;
    same_size(have, want)
}
