//! Encodes chunks as the filters of h5py and of hdf5plugin would: gzip, lzf and Blosc, with shuffle.
//!
//! Bytes that do not become smaller are stored without the filter, which the chunk's mask records; a Blosc frame
//! records it itself. Nothing here knows a file.

mod blosc;
mod lzf;

use libdeflater::{CompressionLvl, Compressor};

use super::{BLOSC, DEFLATE, LZF, SHUFFLE};

pub use blosc::BloscCodec;

/// The compression of a dataset's chunks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Encoding {
    /// Shuffled, then a zlib stream of this level (1 to 9).
    Gzip(u8),
    /// Shuffled, then LibLZF's stream.
    Lzf,
    /// Shuffled bytes in a Blosc 1 frame of this level (1 to 9).
    Blosc {
        /// The compressor.
        codec: BloscCodec,
        /// 1 to 9.
        level: u8,
    },
}

/// A chunk as it is stored.
pub struct Encoded {
    /// The stored bytes.
    pub bytes: Vec<u8>,
    /// Bit `i` set: filter `i` was not applied.
    pub mask: u32,
}

impl Encoding {
    /// Returns the filters as a dataset declares them, number and parameters, for the sizes of an element and of a
    /// chunk in bytes.
    pub fn filters(self, element: usize, chunk: usize) -> Vec<(i32, Vec<u32>)> {
        let number = |n: usize| u32::try_from(n).unwrap_or(u32::MAX);
        let shuffle = (SHUFFLE, vec![number(element)]);
        let shuffled = |filter| match element {
            0 | 1 => vec![filter],
            _ => vec![shuffle, filter],
        };
        match self {
            Self::Gzip(level) => shuffled((DEFLATE, vec![u32::from(level)])),
            // The versions of h5py's filter and of LibLZF; then the chunk size, for the decoder.
            Self::Lzf => shuffled((LZF, vec![4, 0x0105, number(chunk)])),
            Self::Blosc { codec, level } => {
                // The versions of hdf5-blosc and of the frame; then the parameters of the encoder.
                let size = blosc::type_size(element);
                let level = u32::from(level);
                let parameters = [
                    2,
                    2,
                    number(size),
                    number(chunk),
                    level,
                    1,
                    codec.parameter(),
                ];
                vec![(BLOSC, parameters.to_vec())]
            }
        }
    }

    /// Encodes a chunk of elements of this size.
    pub fn encode(self, chunk: &[u8], element: usize) -> Encoded {
        let shuffled = |pack: &dyn Fn(&[u8]) -> Option<Vec<u8>>| {
            let has_shuffle = element > 1;
            let mut bytes = Vec::new();
            if has_shuffle {
                bytes.resize(chunk.len(), 0);
                shuffle(chunk, &mut bytes, element);
            }
            let input = if has_shuffle { &bytes } else { chunk };
            if let Some(bytes) = pack(input).filter(|packed| packed.len() < chunk.len()) {
                return Encoded { bytes, mask: 0 };
            }
            if has_shuffle {
                return Encoded { bytes, mask: 0b10 };
            }
            let bytes = chunk.to_vec();
            Encoded { bytes, mask: 0b1 }
        };
        match self {
            Self::Gzip(level) => shuffled(&|bytes| zlib(bytes, level)),
            Self::Lzf => shuffled(&lzf::encode),
            Self::Blosc { codec, level } => Encoded {
                bytes: blosc::encode(chunk, element, codec, level),
                mask: 0,
            },
        }
    }
}

/// Returns a zlib stream, if it is smaller than `bytes`.
fn zlib(bytes: &[u8], level: u8) -> Option<Vec<u8>> {
    let level = CompressionLvl::new(i32::from(level)).unwrap_or_default();
    let mut out = vec![0; bytes.len()];
    let len = Compressor::new(level).zlib_compress(bytes, &mut out).ok()?;
    out.truncate(len);
    Some(out)
}

/// Writes the first bytes of all elements, then the second ones, and so on. Bytes after the last whole element stay in
/// place.
fn shuffle(from: &[u8], to: &mut [u8], size: usize) {
    let count = from.len() / size.max(1);
    let whole = count * size;
    let (planes, tail) = to.split_at_mut(whole.min(to.len()));
    tail.copy_from_slice(from.get(whole..).unwrap_or_default());
    for (byte, plane) in planes.chunks_exact_mut(count.max(1)).enumerate() {
        let bytes = from.iter().skip(byte).step_by(size.max(1));
        for (place, value) in plane.iter_mut().zip(bytes) {
            *place = *value;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::Pipeline;
    use super::*;
    use proptest::collection::vec;
    use proptest::prelude::*;

    const ALL: [Encoding; 8] = [
        Encoding::Gzip(4),
        Encoding::Gzip(9),
        Encoding::Lzf,
        blosc(BloscCodec::Lz4, 5),
        blosc(BloscCodec::Zstd, 5),
        blosc(BloscCodec::Zstd, 1),
        blosc(BloscCodec::Zlib, 1),
        blosc(BloscCodec::Snappy, 5),
    ];

    const fn blosc(codec: BloscCodec, level: u8) -> Encoding {
        Encoding::Blosc { codec, level }
    }

    fn round(how: Encoding, chunk: &[u8], element: usize) -> usize {
        let encoded = how.encode(chunk, element);
        let filters = how.filters(element, chunk.len());
        let pipeline = Pipeline::new(&filters).unwrap();
        let stored = encoded.bytes.len();
        let back = pipeline.decoded(&encoded.bytes, encoded.mask, chunk.len());
        let back = back.unwrap();
        assert!(back == chunk, "{how:?} {element} {}", chunk.len());
        stored
    }

    #[test]
    fn what_can_be_smaller_is() {
        let ramp: Vec<u8> = (0..200_000_u32)
            .flat_map(|n| (n / 3).to_le_bytes())
            .collect();
        for how in ALL {
            let stored = round(how, &ramp, 4);
            assert!(stored < ramp.len() * 3 / 4, "{how:?}: {stored}");
        }
    }

    proptest! {
        #[test]
        fn every_chunk_comes_back(
            noise in vec(any::<u8>(), 0..3000),
            run in 1..40_usize,
            elements in 1..9000_usize,
            element in 1..20_usize,
        ) {
            let mut chunk = noise.clone();
            chunk.extend(noise.iter().take(60).cycle().take(elements * run % 70_000));
            chunk.truncate((chunk.len() / element).max(1) * element);
            chunk.resize(chunk.len().div_ceil(element).max(1) * element, 7);
            for how in ALL {
                round(how, &chunk, element);
            }
        }
    }
}
