//! Filter 32008, bitshuffle: transposes the bits of a block's elements, so that bits of equal significance are
//! adjacent, and optionally compresses them with LZ4 or Zstandard.
//!
//! Specification: bitshuffle's own description of its HDF5 filter. Compressed chunks begin with the big-endian sizes of
//! the chunk (8 bytes) and of a block in bytes (4), and each block with its stored length. The last block is cut to a
//! multiple of eight elements; the rest of the chunk follows it uncompressed.

use std::num::NonZeroUsize;
use std::sync::Arc;

use serde::{Deserialize, Serialize};

use super::simd::{Work, weave, wide};
use super::{FilterError, lz4, zstd};
use npyfs_base::buffer::Pool;

/// The smallest number of elements that are shuffled together.
pub(super) const MULTIPLE: usize = 8;

/// The compressor after the shuffle.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) enum BitshuffleCodec {
    /// No compressor: the blocks are only shuffled.
    None,
    /// LZ4.
    Lz4,
    /// Zstandard.
    Zstd,
}

/// The parameters of the filter.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Bitshuffle {
    /// Bytes of an element.
    size: NonZeroUsize,
    /// Elements of a block; 0 stands for the default for the element size.
    block: usize,
    codec: BitshuffleCodec,
}

impl Bitshuffle {
    /// Reads the parameters as stored in a file: version (two), element size, block size, codec.
    pub(super) fn new(parameters: &[u32]) -> Option<Self> {
        let size = NonZeroUsize::new(usize::try_from(*parameters.get(2)?).ok()?)?;
        let block = usize::try_from(parameters.get(3).copied().unwrap_or(0)).ok()?;
        let codec = match parameters.get(4).copied().unwrap_or(0) {
            0 => BitshuffleCodec::None,
            2 => BitshuffleCodec::Lz4,
            3 => BitshuffleCodec::Zstd,
            _ => return None,
        };
        let sane = size.get() <= 1 << 16 && block % MULTIPLE == 0 && block <= 1 << 24;
        sane.then_some(Self { size, block, codec })
    }

    /// Returns true if a compressor follows the shuffle.
    pub(super) fn compresses(self) -> bool {
        self.codec != BitshuffleCodec::None
    }

    fn default_block(self) -> usize {
        /// The default bytes of a block, which fit into the first-level cache, and the fewest elements of one.
        const BYTES: usize = 8192;
        const FEWEST: usize = 128;
        (BYTES / self.size.get() / MULTIPLE * MULTIPLE).max(FEWEST)
    }

    /// Decodes into a buffer, which the blocks must fill.
    pub(super) fn into(
        self,
        stored: &[u8],
        out: &mut [u8],
        pool: &Arc<Pool>,
    ) -> Result<(), FilterError> {
        let mut stored = stored;
        let len = out.len();
        let size = self.size.get();
        let block = if self.compresses() {
            if lz4::long_number(&mut stored)? != len {
                return Err(FilterError::Bitshuffle);
            }
            lz4::number(&mut stored)? / size
        } else if self.block == 0 {
            self.default_block()
        } else {
            self.block
        };
        if block == 0 || !block.is_multiple_of(MULTIPLE) || !len.is_multiple_of(size) {
            return Err(FilterError::Bitshuffle);
        }
        let sorted = len / size / MULTIPLE * MULTIPLE * size;
        let (blocks, tail) = out.split_at_mut(sorted);
        // A buffer for a block as the compressor left it.
        let room = if self.compresses() { sorted } else { 0 };
        let mut buffer = pool.take(room.min(block.saturating_mul(size)));
        for place in blocks.chunks_mut(block.saturating_mul(size)) {
            let data = if self.compresses() {
                let bytes = lz4::number(&mut stored)?;
                let (data, rest) = stored
                    .split_at_checked(bytes)
                    .ok_or(FilterError::Bitshuffle)?;
                stored = rest;
                let place = &mut buffer[..place.len()];
                self.decompress(data, place)?;
                place
            } else {
                let (data, rest) = stored
                    .split_at_checked(place.len())
                    .ok_or(FilterError::Bitshuffle)?;
                stored = rest;
                data
            };
            unsort(data, place, size);
        }
        let rest = stored.get(..tail.len()).ok_or(FilterError::Bitshuffle)?;
        tail.copy_from_slice(rest);
        Ok(())
    }

    fn decompress(self, data: &[u8], out: &mut [u8]) -> Result<(), FilterError> {
        match self.codec {
            BitshuffleCodec::Zstd => zstd::into(data, out),
            BitshuffleCodec::Lz4 | BitshuffleCodec::None => lz4::decode_block(data, out),
        }
    }
}

/// Restores a block's elements from their sorted bits; the number of elements is a multiple of eight.
pub(super) fn unsort(sorted: &[u8], out: &mut [u8], size: usize) {
    match size {
        1 => wide(Unsort::<1> { sorted, out }),
        2 => wide(Unsort::<2> { sorted, out }),
        4 => wide(Unsort::<4> { sorted, out }),
        8 => wide(Unsort::<8> { sorted, out }),
        16 => wide(Unsort::<16> { sorted, out }),
        _ => unsort_rows(sorted, out, size, 0),
    }
}

/// `unsort` for elements of `N` bytes: tiles of bits become planes of bytes, which are then interleaved.
struct Unsort<'a, const N: usize> {
    sorted: &'a [u8],
    out: &'a mut [u8],
}

impl<const N: usize> Work for Unsort<'_, N> {
    #[inline(always)]
    fn run(self) {
        /// Bytes of a row of bits in a tile, and elements of one.
        const ROW: usize = 32;
        const TILE: usize = ROW * 8;
        let Self { sorted, out } = self;
        let row = sorted.len() / N / 8;
        let mut planes = [[0; TILE]; N];
        let mut at = 0;
        for tile in out.chunks_exact_mut(TILE * N) {
            for (byte, plane) in planes.iter_mut().enumerate() {
                let rows = std::array::from_fn(|bit| &sorted[(byte * 8 + bit) * row + at..][..ROW]);
                weave::<8>(rows, plane);
                for eight in plane.as_chunks_mut().0 {
                    *eight = transpose(u64::from_le_bytes(*eight)).to_le_bytes();
                }
            }
            weave(planes.each_ref().map(|plane| &plane[..]), tile);
            at += ROW;
        }
        unsort_rows(sorted, out, N, at);
    }
}

/// Restores the bytes of each bit row from `first` on.
fn unsort_rows(sorted: &[u8], out: &mut [u8], size: usize, first: usize) {
    let row = sorted.len() / size / 8;
    for byte in 0..size {
        let rows = &sorted[byte * 8 * row..(byte + 1) * 8 * row];
        for group in first..row {
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

/// Transposes a matrix of 8 × 8 bits, one byte per row (Hacker's Delight, 7-3).
#[inline(always)]
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
    fn tiles_are_put_together_as_single_rows_are() {
        for size in [1, 2, 4, 8, 16] {
            for groups in [1, 31, 32, 33, 70] {
                let sorted: Vec<u8> = (0..groups * 8 * size)
                    .map(|i| ((i * i * 31) >> 4) as u8)
                    .collect();
                let (mut tiles, mut rows) = (vec![0; sorted.len()], vec![0; sorted.len()]);
                unsort(&sorted, &mut tiles, size);
                unsort_rows(&sorted, &mut rows, size, 0);
                assert_eq!(tiles, rows, "{size} {groups}");
            }
        }
    }

    #[test]
    fn plain_blocks_are_put_together() {
        // Eight elements of two bytes: the first has all bits set, the others none; then one remaining element.
        let filter = Bitshuffle::new(&[0, 4, 2, 0, 0]).unwrap();
        let mut stored = vec![1; 16];
        stored.extend([7, 9]);
        let mut want = vec![0; 16];
        want[..2].fill(255);
        want.extend([7, 9]);
        let mut out = vec![0; 18];
        filter.into(&stored, &mut out, &Arc::default()).unwrap();
        assert_eq!(out, want);
        let cut = filter.into(&stored[..17], &mut out, &Arc::default());
        assert!(cut.is_err());
        assert!(Bitshuffle::new(&[0, 4, 2, 0, 1]).is_none());
    }
}
