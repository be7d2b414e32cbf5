//! Blosc 1 frames; the decoder describes the format. Blocks have one stream each.

use std::cell::RefCell;

/// Bytes of a block: its input and output fit into a core's own cache.
const BLOCK: usize = 256 << 10;

/// Header version, and the version of every codec's stream.
const VERSIONS: [u8; 2] = [2, 1];

const BYTES_SORTED: u8 = 1;
const AS_IT_IS: u8 = 1 << 1;
const NOT_SPLIT: u8 = 1 << 4;

/// A compressor inside a frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BloscCodec {
    /// LZ4.
    Lz4,
    /// Snappy.
    Snappy,
    /// zlib.
    Zlib,
    /// Zstandard.
    Zstd,
}

impl BloscCodec {
    /// Returns the codec with a number of hdf5-blosc (`BLOSC_LZ4` and so on); `None` for those without an encoder here.
    pub fn from_parameter(parameter: u32) -> Option<Self> {
        let mut all = [Self::Lz4, Self::Snappy, Self::Zlib, Self::Zstd].into_iter();
        all.find(|codec| codec.parameter() == parameter)
    }

    /// Returns the number that hdf5-blosc gives the codec.
    pub fn parameter(self) -> u32 {
        match self {
            Self::Lz4 => 1,
            Self::Snappy => 3,
            Self::Zlib => 4,
            Self::Zstd => 5,
        }
    }

    /// Returns the high three bits of the flags.
    fn flags(self) -> u8 {
        match self {
            Self::Lz4 => 1 << 5,
            Self::Snappy => 2 << 5,
            Self::Zlib => 3 << 5,
            Self::Zstd => 4 << 5,
        }
    }

    fn encode(self, block: &[u8], level: u8) -> Option<Vec<u8>> {
        match self {
            Self::Lz4 => Some(lz4_flex::block::compress(block)),
            Self::Snappy => snap::raw::Encoder::new().compress_vec(block).ok(),
            Self::Zlib => super::zlib(block, level),
            Self::Zstd => {
                type Reused = Option<(i32, zstd::bulk::Compressor<'static>)>;
                thread_local! {
                    static COMPRESSOR: RefCell<Reused> = const { RefCell::new(None) };
                }
                // The rule of c-blosc.
                let level = if level < 9 {
                    i32::from(level) * 2 - 1
                } else {
                    22
                };
                COMPRESSOR.with_borrow_mut(|slot| {
                    if slot.as_ref().is_none_or(|(kept, _)| *kept != level) {
                        *slot = Some((level, zstd::bulk::Compressor::new(level).ok()?));
                    }
                    let (_, compressor) = slot.as_mut()?;
                    compressor.compress(block).ok()
                })
            }
        }
    }
}

/// Returns the element size as stored in a header, where it has one byte.
pub(super) fn type_size(element: usize) -> usize {
    if (1..=255).contains(&element) {
        element
    } else {
        1
    }
}

/// Encodes `chunk`, which is smaller than 2 GiB, as a frame. The frame is at most 16 bytes longer.
pub(super) fn encode(chunk: &[u8], element: usize, codec: BloscCodec, level: u8) -> Vec<u8> {
    let size = type_size(element);
    let block = (BLOCK / size * size).max(size).min(chunk.len()).max(1);
    let number = |n: usize| u32::try_from(n).unwrap_or(u32::MAX).to_le_bytes();
    let sorted = size > 1;
    let flags = codec.flags() | NOT_SPLIT | if sorted { BYTES_SORTED } else { 0 };
    let head = |flags: u8, stored: usize| {
        let [version, codec_version] = VERSIONS;
        let words = [chunk.len(), block, stored].map(number).concat();
        // One byte holds it.
        [&[version, codec_version, flags, size as u8][..], &words].concat()
    };
    let as_it_is = || {
        let head = head(flags | AS_IT_IS, chunk.len().saturating_add(16));
        [&head[..], chunk].concat()
    };
    let blocks = chunk.len().div_ceil(block);
    let mut starts = Vec::with_capacity(blocks * 4);
    let mut streams = Vec::with_capacity(chunk.len() / 2);
    let mut place = vec![0; block];
    for part in chunk.chunks(block) {
        starts.extend(number(16 + blocks * 4 + streams.len()));
        let input = if sorted {
            let place = place.get_mut(..part.len()).unwrap_or_default();
            super::shuffle(part, place, size);
            &*place
        } else {
            part
        };
        let packed = codec.encode(input, level);
        let stream = packed.as_deref().filter(|packed| packed.len() < part.len());
        let stream = stream.unwrap_or(input);
        streams.extend(number(stream.len()));
        streams.extend_from_slice(stream);
    }
    let stored = 16 + starts.len() + streams.len();
    if stored >= chunk.len().saturating_add(16) {
        return as_it_is();
    }
    [head(flags, stored), starts, streams].concat()
}
