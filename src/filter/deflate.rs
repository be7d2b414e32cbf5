//! Filter 1, deflate: a zlib stream (RFC 1950) of the whole chunk.

use std::cell::RefCell;

use libdeflater::Decompressor;

use super::FilterError;

/// Decodes to exactly `len` bytes.
pub fn decode(stored: &[u8], len: usize) -> Result<Vec<u8>, FilterError> {
    thread_local! {
        static DECOMPRESSOR: RefCell<Decompressor> = RefCell::new(Decompressor::new());
    }
    let mut out = vec![0; len];
    let got = DECOMPRESSOR
        .with_borrow_mut(|d| d.zlib_decompress(stored, &mut out))
        .map_err(|e| FilterError::Deflate(e.to_string()))?;
    if got != len {
        return Err(FilterError::Size {
            have: got,
            want: len,
        });
    }
    Ok(out)
}
