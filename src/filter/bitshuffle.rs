//! Filter 32008, bitshuffle: the bits of the elements of a block sorted by their place in the element, with LZ4
//! or Zstandard behind it or nothing.
//!
//! Specification: bitshuffle's own description of its HDF5 filter. Compressed chunks begin with the size of
//! the chunk (8 bytes) and of a block in bytes (4), big end first, and each block with its stored length. The
//! last block is cut to a multiple of eight elements; what is left of the chunk stands behind it as it is.

use serde::{Deserialize, Serialize};

use super::{FilterError, lz4, zstd};

/// Elements that are sorted together at the least.
pub const MULTIPLE: usize = 8;

/// What compresses a block behind the shuffle.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Codec {
    None,
    Lz4,
    Zstd,
}

/// The parameters of the filter.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Bitshuffle {
    /// Bytes of an element.
    size: usize,
    /// Elements of a block; 0: the default for the element.
    block: usize,
    codec: Codec,
}

impl Bitshuffle {
    /// From the parameters as a file lists them: version (two), element size, block size, codec.
    pub fn new(parameters: &[u32]) -> Option<Self> {
        let size = usize::try_from(*parameters.get(2)?).ok()?;
        let block = usize::try_from(parameters.get(3).copied().unwrap_or(0)).ok()?;
        let codec = match parameters.get(4).copied().unwrap_or(0) {
            0 => Codec::None,
            2 => Codec::Lz4,
            3 => Codec::Zstd,
            _ => return None,
        };
        let sane = (1..=1 << 16).contains(&size) && block % MULTIPLE == 0 && block <= 1 << 24;
        sane.then_some(Self { size, block, codec })
    }

    pub fn compresses(self) -> bool {
        self.codec != Codec::None
    }

    fn default_block(self) -> usize {
        /// Bytes of a block that stay in the first cache, and the fewest elements of one.
        const BYTES: usize = 8192;
        const FEWEST: usize = 128;
        (BYTES / self.size / MULTIPLE * MULTIPLE).max(FEWEST)
    }

    /// Decodes to exactly `len` bytes.
    pub fn decode(self, stored: &[u8], len: usize) -> Result<Vec<u8>, FilterError> {
        let mut stored = stored;
        let block = if self.compresses() {
            if lz4::long_number(&mut stored)? != len {
                return Err(FilterError::Bitshuffle);
            }
            lz4::number(&mut stored)? / self.size
        } else if self.block == 0 {
            self.default_block()
        } else {
            self.block
        };
        if block == 0 || !block.is_multiple_of(MULTIPLE) || !len.is_multiple_of(self.size) {
            return Err(FilterError::Bitshuffle);
        }
        let mut out = vec![0; len];
        let sorted = len / self.size / MULTIPLE * MULTIPLE * self.size;
        let (blocks, tail) = out.split_at_mut(sorted);
        let mut buffer = Vec::new();
        for place in blocks.chunks_mut(block.saturating_mul(self.size)) {
            let data = if self.compresses() {
                let size = lz4::number(&mut stored)?;
                let (data, rest) = stored
                    .split_at_checked(size)
                    .ok_or(FilterError::Bitshuffle)?;
                stored = rest;
                buffer.resize(place.len(), 0);
                self.decompress(data, &mut buffer)?;
                &buffer[..]
            } else {
                let (data, rest) = stored
                    .split_at_checked(place.len())
                    .ok_or(FilterError::Bitshuffle)?;
                stored = rest;
                data
            };
            unsort(data, place, self.size);
        }
        let rest = stored.get(..tail.len()).ok_or(FilterError::Bitshuffle)?;
        tail.copy_from_slice(rest);
        Ok(out)
    }

    fn decompress(self, data: &[u8], out: &mut [u8]) -> Result<(), FilterError> {
        match self.codec {
            Codec::Zstd => zstd::into(data, out),
            Codec::Lz4 | Codec::None => lz4::decode_block(data, out),
        }
    }
}

/// Puts the bits of a block's elements together again; the elements are a multiple of eight.
pub fn unsort(sorted: &[u8], out: &mut [u8], size: usize) {
    let row = sorted.len() / size / 8;
    for byte in 0..size {
        let rows = &sorted[byte * 8 * row..(byte + 1) * 8 * row];
        for group in 0..row {
            let mut bits = [0; 8];
            for (bit, slot) in bits.iter_mut().enumerate() {
                *slot = rows[bit * row + group];
            }
            let elements = transpose(u64::from_le_bytes(bits)).to_le_bytes();
            for (i, value) in elements.into_iter().enumerate() {
                out[(group * 8 + i) * size + byte] = value;
            }
        }
    }
}

/// Transposes a matrix of 8 × 8 bits, a byte a row (Hacker's Delight, 7-3).
fn transpose(mut x: u64) -> u64 {
    for (mask, shift) in [
        (0x00aa_00aa_00aa_00aa_u64, 7),
        (0x0000_cccc_0000_cccc, 14),
        (0x0000_0000_f0f0_f0f0, 28),
    ] {
        let swap = (x ^ x >> shift) & mask;
        x ^= swap ^ swap << shift;
    }
    x
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn transposing_twice_changes_nothing() {
        for x in [1, 0x8000_0000_0000_0000, 0x0123_4567_89ab_cdef] {
            assert_eq!(transpose(transpose(x)), x);
        }
        assert_eq!(transpose(0xff), 0x0101_0101_0101_0101);
    }

    #[test]
    fn plain_blocks_are_put_together() {
        // Eight elements of two bytes: the first has all bits set, the others none; then one left over.
        let filter = Bitshuffle::new(&[0, 4, 2, 0, 0]).unwrap();
        let mut stored = vec![1; 16];
        stored.extend([7, 9]);
        let mut want = vec![0; 16];
        want[..2].fill(255);
        want.extend([7, 9]);
        assert_eq!(filter.decode(&stored, 18).unwrap(), want);
        assert!(filter.decode(&stored[..17], 18).is_err());
        assert!(Bitshuffle::new(&[0, 4, 2, 0, 1]).is_none());
    }
}
