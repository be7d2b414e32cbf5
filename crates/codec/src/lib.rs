//! Undoes the filter pipeline of a chunk: one module per filter, each with a bound on its output.
//!
//! A pipeline is accepted only if every step is known here; others are left to libhdf5. Sizes are computed from the
//! chunk's own size before anything is decoded, so a damaged chunk cannot request memory.

#![cfg_attr(not(test), deny(clippy::disallowed_methods))]

mod alone;
mod bitshuffle;
pub mod blosc;
mod blosc2;
mod bzip2;
mod deflate;
pub mod encode;
mod fletcher32;
mod lz4;
mod lz77;
mod lzf;
mod shuffle;
mod simd;
pub mod szip;
mod zstd;

use std::num::NonZeroUsize;
use std::sync::Arc;

pub use alone::alone;
pub use encode::Encoding;

use bitshuffle::Bitshuffle;
use serde::{Deserialize, Serialize};

use npyfs_base::buffer::{Buffer, Pool};

/// Numbers of the filters in HDF5's registry.
const DEFLATE: i32 = 1;
const SHUFFLE: i32 = 2;
const FLETCHER32: i32 = 3;
/// Bzip2's number in HDF5's registry of filters.
pub const BZIP2: i32 = 307;
const LZF: i32 = 32000;
const BLOSC: i32 = 32001;
/// LZ4's number in HDF5's registry of filters.
pub const LZ4: i32 = 32004;
/// Bitshuffle's number in HDF5's registry of filters.
pub const BITSHUFFLE: i32 = 32008;
/// Blosc2's number in HDF5's registry of filters.
pub const BLOSC2: i32 = 32026;
/// Szip's number in HDF5's registry of filters. Szip is decoded only where it is the only filter ([`alone()`]).
pub const SZIP: i32 = 4;
/// Zstandard's number in HDF5's registry of filters.
pub const ZSTD: i32 = 32015;

/// Returns true if this crate can undo the filter of this number.
pub fn is_known(id: i32) -> bool {
    matches!(
        id,
        DEFLATE | SHUFFLE | FLETCHER32 | BZIP2 | LZF | BLOSC | LZ4 | BITSHUFFLE | ZSTD | BLOSC2
    )
}

/// One step, in the order of writing.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
enum FilterStep {
    Deflate,
    /// Size of an element.
    Shuffle(NonZeroUsize),
    Fletcher32,
    Lzf,
    Blosc,
    Lz4,
    Bitshuffle(Bitshuffle),
    Zstd,
    Bzip2,
    Blosc2,
}

impl FilterStep {
    fn compresses(self) -> bool {
        match self {
            Self::Deflate
            | Self::Lzf
            | Self::Blosc
            | Self::Lz4
            | Self::Zstd
            | Self::Bzip2
            | Self::Blosc2 => true,
            Self::Bitshuffle(step) => step.compresses(),
            Self::Shuffle(_) | Self::Fletcher32 => false,
        }
    }

    /// Undoes the step on `data`, which must fill `out`.
    fn undo(self, data: &[u8], out: &mut [u8], pool: &Arc<Pool>) -> Result<(), FilterError> {
        match self {
            Self::Deflate => deflate::into(data, out),
            Self::Shuffle(size) => shuffle::into(data, out, size.get()),
            Self::Fletcher32 => copy(fletcher32::check(data)?, out),
            Self::Lzf => lzf::into(data, out),
            Self::Blosc => blosc::into(data, out, pool),
            Self::Lz4 => lz4::into(data, out),
            Self::Bitshuffle(step) => step.into(data, out, pool),
            Self::Zstd => zstd::into(data, out),
            Self::Bzip2 => bzip2::into(data, out),
            Self::Blosc2 => blosc2::into(data, out, pool),
        }
    }
}

/// A pipeline whose every step this crate can undo.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Pipeline {
    steps: Vec<FilterStep>,
}

/// The reason why a chunk could not be decoded.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub enum FilterError {
    /// A zlib stream is damaged.
    #[error("deflate: {0}")]
    Deflate(String),
    /// An lzf stream is damaged.
    #[error("lzf: damaged data")]
    Lzf,
    /// A Blosc frame is damaged, or not of Blosc 1.
    #[error("blosc: {0}")]
    Blosc(&'static str),
    /// A chunk of szip is damaged.
    #[error("szip: damaged data")]
    Szip,
    /// A Blosc2 frame is damaged, or of an unsupported kind.
    #[error("blosc2: {0}")]
    Blosc2(&'static str),
    /// A bzip2 stream is damaged.
    #[error("bzip2: {0}")]
    Bzip2(String),
    /// An LZ4 block is damaged.
    #[error("lz4: damaged data")]
    Lz4,
    /// A bitshuffle chunk is damaged.
    #[error("bitshuffle: damaged data")]
    Bitshuffle,
    /// A Zstandard frame is damaged.
    #[error("zstd: {0}")]
    Zstd(String),
    /// The filter of this number is unknown.
    #[error("filter {0} is not known")]
    Unknown(i32),
    /// The checksum does not match the data.
    #[error("fletcher32: checksum does not match")]
    Checksum,
    /// The data has a wrong length, in bytes.
    #[error("{have} bytes after decoding, a chunk has {want}")]
    Size {
        /// The actual number of bytes.
        have: usize,
        /// The expected number of bytes.
        want: usize,
    },
}

impl Pipeline {
    /// Creates the pipeline from filters as a file lists them (number and parameters). `None` if one is unknown here,
    /// or if two of them compress, so that a size in between is unknown.
    pub fn new(filters: &[(i32, Vec<u32>)]) -> Option<Self> {
        let steps: Vec<FilterStep> = filters
            .iter()
            .map(|(id, parameters)| match *id {
                DEFLATE => Some(FilterStep::Deflate),
                SHUFFLE => {
                    let size = usize::try_from(*parameters.first()?).ok()?;
                    NonZeroUsize::new(size).map(FilterStep::Shuffle)
                }
                FLETCHER32 => Some(FilterStep::Fletcher32),
                LZF => Some(FilterStep::Lzf),
                BLOSC => Some(FilterStep::Blosc),
                LZ4 => Some(FilterStep::Lz4),
                BITSHUFFLE => Bitshuffle::new(parameters).map(FilterStep::Bitshuffle),
                ZSTD => Some(FilterStep::Zstd),
                BZIP2 => Some(FilterStep::Bzip2),
                BLOSC2 => Some(FilterStep::Blosc2),
                _ => None,
            })
            .collect::<Option<_>>()?;
        (steps.iter().filter(|step| step.compresses()).count() <= 1).then_some(Self { steps })
    }

    /// Returns true if chunks are stored as they are.
    pub fn is_empty(&self) -> bool {
        self.steps.is_empty()
    }

    /// Returns the number of additional buffers of a chunk's size that decoding uses.
    pub fn buffers(&self) -> usize {
        let of_blocks = |step: &FilterStep| match step {
            // One for a shuffled block, and one for a block in another layout.
            FilterStep::Blosc2 => 2,
            FilterStep::Blosc | FilterStep::Bitshuffle(_) => 1,
            _ => 0,
        };
        let between = self.steps.len().saturating_sub(1).min(2);
        between + self.steps.iter().map(of_blocks).max().unwrap_or(0)
    }

    /// Decodes a stored chunk into a buffer, which it must fill. After an error the content of the buffer is
    /// unspecified. Bit `i` of `mask` set: step `i` was not applied.
    pub fn decode(
        &self,
        pool: &Arc<Pool>,
        stored: &[u8],
        mask: u32,
        out: &mut [u8],
    ) -> Result<(), FilterError> {
        let applied = |i: usize| i >= 32 || mask >> i & 1 == 0;
        // The output of the previous step, initially the stored chunk. Its first `kept` bytes are valid.
        let mut held: Option<Buffer> = None;
        let mut kept = stored.len();
        for (i, step) in self.steps.iter().enumerate().rev() {
            if !applied(i) {
                continue;
            }
            let data = &held.as_deref().unwrap_or(stored)[..kept];
            if *step == FilterStep::Fletcher32 {
                kept = fletcher32::check(data)?.len();
                continue;
            }
            let before = || (0..i).filter(|j| applied(*j)).map(|j| self.steps[j]);
            if before().next().is_none() {
                return step.undo(data, out, pool);
            }
            // The size of this step's input when the chunk was written. Only one step compresses: before it there was
            // the chunk with the checksums added so far. Other steps preserve the length, wherever they are.
            let given = if step.compresses() {
                let checksums = before()
                    .filter(|step| *step == FilterStep::Fletcher32)
                    .count();
                out.len() + checksums * fletcher32::LEN
            } else {
                data.len()
            };
            let mut next = pool.take(given);
            step.undo(data, &mut next, pool)?;
            kept = next.len();
            held = Some(next);
        }
        copy(&held.as_deref().unwrap_or(stored)[..kept], out)
    }
}

/// Copies data that must fill `out`.
fn copy(data: &[u8], out: &mut [u8]) -> Result<(), FilterError> {
    same_size(data.len(), out.len())?;
    out.copy_from_slice(data);
    Ok(())
}

/// Fails unless as many bytes were decoded as a chunk has.
fn same_size(have: usize, want: usize) -> Result<(), FilterError> {
    match have == want {
        true => Ok(()),
        false => Err(FilterError::Size { have, want }),
    }
}

#[cfg(test)]
impl Pipeline {
    /// Decodes a stored chunk to `len` bytes.
    fn decoded(&self, stored: &[u8], mask: u32, len: usize) -> Result<Vec<u8>, FilterError> {
        let (pool, mut out) = (Arc::default(), vec![0; len]);
        self.decode(&pool, stored, mask, &mut out)?;
        Ok(out)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn pipeline(filters: &[(i32, u32)]) -> Option<Pipeline> {
        let filters: Vec<_> = filters.iter().map(|(id, p)| (*id, vec![*p])).collect();
        Pipeline::new(&filters)
    }

    #[test]
    fn unknown_and_doubly_compressing_pipelines_are_left_to_libhdf5() {
        assert!(pipeline(&[(SHUFFLE, 4), (DEFLATE, 4), (FLETCHER32, 0)]).is_some());
        assert!(pipeline(&[(32013, 0)]).is_none());
        assert!(pipeline(&[(LZF, 4), (DEFLATE, 4)]).is_none());
        assert!(pipeline(&[(SHUFFLE, 0)]).is_none());
    }

    #[test]
    fn a_masked_step_is_passed_over() {
        let p = pipeline(&[(SHUFFLE, 2), (LZF, 0)]).unwrap();
        assert_eq!(p.decoded(&[1, 3, 2, 4], 0b10, 4).unwrap(), [1, 2, 3, 4]);
        assert_eq!(p.decoded(&[1, 3, 2, 4], 0b11, 4).unwrap(), [1, 3, 2, 4]);
        let wrong = p.decoded(&[1, 2, 3], 0b11, 4).unwrap_err();
        assert_eq!(wrong, FilterError::Size { have: 3, want: 4 });
    }

    proptest! {
        #[test]
        fn damaged_chunks_end_in_an_error_or_in_the_right_size(
            stored in proptest::collection::vec(any::<u8>(), 0..300),
            kind in 0_usize..8,
            len in 0_usize..2000,
        ) {
            let bits = |codec| vec![(BITSHUFFLE, vec![0, 4, 2, 8, codec])];
            let plain = |steps: &[(i32, u32)]| steps.iter().map(|(id, p)| (*id, vec![*p])).collect::<Vec<_>>();
            let filters = [
                plain(&[(DEFLATE, 6)]),
                plain(&[(SHUFFLE, 4), (LZF, 0)]),
                plain(&[(SHUFFLE, 8), (DEFLATE, 6), (FLETCHER32, 0)]),
                plain(&[(FLETCHER32, 0), (LZF, 0)]),
                plain(&[(LZ4, 0)]),
                plain(&[(ZSTD, 0)]),
                bits(0),
                bits(2),
            ];
            let p = Pipeline::new(&filters[kind]).unwrap();
            if let Ok(data) = p.decoded(&stored, 0, len) {
                prop_assert_eq!(data.len(), len);
            }
        }
    }
}
