//! Filter 32004, LZ4: the size of the chunk (8 bytes) and of a block (4 bytes), then each block after its stored
//! length (4 bytes), all big-endian. A block that did not shrink is stored raw.
//!
//! Specification: the HDF Group's registered filter 32004, and the LZ4 block format.

use super::FilterError;

/// Consumes a big-endian 32-bit number from the front.
pub(super) fn number(bytes: &mut &[u8]) -> Result<usize, FilterError> {
    let (head, rest) = bytes.split_first_chunk::<4>().ok_or(FilterError::Lz4)?;
    *bytes = rest;
    usize::try_from(u32::from_be_bytes(*head)).map_err(|_| FilterError::Lz4)
}

/// Consumes a big-endian 64-bit number from the front.
pub(super) fn long_number(bytes: &mut &[u8]) -> Result<usize, FilterError> {
    let (head, rest) = bytes.split_first_chunk::<8>().ok_or(FilterError::Lz4)?;
    *bytes = rest;
    usize::try_from(u64::from_be_bytes(*head)).map_err(|_| FilterError::Lz4)
}

/// Decodes into a buffer, which the blocks must fill.
pub(super) fn into(mut stored: &[u8], out: &mut [u8]) -> Result<(), FilterError> {
    if long_number(&mut stored)? != out.len() {
        return Err(FilterError::Lz4);
    }
    let block = number(&mut stored)?;
    if block == 0 && !out.is_empty() {
        return Err(FilterError::Lz4);
    }
    for place in out.chunks_mut(block.max(1)) {
        let size = number(&mut stored)?;
        let (data, rest) = stored.split_at_checked(size).ok_or(FilterError::Lz4)?;
        stored = rest;
        if size == place.len() {
            place.copy_from_slice(data);
        } else {
            decode_block(data, place)?;
        }
    }
    Ok(())
}

/// Decodes one block of LZ4, which must fill `out`.
pub(super) fn decode_block(data: &[u8], out: &mut [u8]) -> Result<(), FilterError> {
    let got = lz4_flex::block::decompress_into(data, out);
    let filled = got.ok() == Some(out.len());
    filled.then_some(()).ok_or(FilterError::Lz4)
}
