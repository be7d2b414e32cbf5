//! Filter 32015, Zstandard: one frame (RFC 8878) of the whole chunk.

use std::cell::RefCell;

use zstd::bulk::Decompressor;

use super::{FilterError, same_size};

/// Decodes into a buffer, which the frame must fill.
pub(super) fn into(stored: &[u8], out: &mut [u8]) -> Result<(), FilterError> {
    thread_local! {
        static DECOMPRESSOR: RefCell<Option<Decompressor<'static>>> = const { RefCell::new(None) };
    }
    let want = out.len();
    let have = DECOMPRESSOR
        .with_borrow_mut(|slot| match slot {
            Some(decompressor) => decompressor.decompress_to_buffer(stored, out),
            None => slot
                .insert(Decompressor::new()?)
                .decompress_to_buffer(stored, out),
        })
        .map_err(|e| FilterError::Zstd(e.to_string()))?;
    same_size(have, want)
}
