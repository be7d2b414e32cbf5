//! Filter 32015, Zstandard: one frame (RFC 8878) of the whole chunk.

use std::cell::RefCell;

use zstd::bulk::Decompressor;

use super::FilterError;

/// Decodes to exactly `len` bytes.
pub fn decode(stored: &[u8], len: usize) -> Result<Vec<u8>, FilterError> {
    let mut out = vec![0; len];
    into(stored, &mut out)?;
    Ok(out)
}

/// The same into a buffer, which it must fill.
pub fn into(stored: &[u8], out: &mut [u8]) -> Result<(), FilterError> {
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
    if have == want {
        Ok(())
    } else {
        Err(FilterError::Size { have, want })
    }
}
