//! Filter 1, deflate: a zlib stream (RFC 1950) of the whole chunk.

use std::cell::RefCell;

use libdeflater::Decompressor;

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
        static DECOMPRESSOR: RefCell<Decompressor> = RefCell::new(Decompressor::new());
    }
    let want = out.len();
    let have = DECOMPRESSOR
        .with_borrow_mut(|d| d.zlib_decompress(stored, out))
        .map_err(|e| FilterError::Deflate(e.to_string()))?;
    if have == want {
        Ok(())
    } else {
        Err(FilterError::Size { have, want })
    }
}
