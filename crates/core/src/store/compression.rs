//! The compression of an exported file: `gzip`, `lzf` or `blosc:CODEC`, and the pipeline of filters that follows from
//! it.
//!
//! Filters have the numbers that the HDF Group registered; parameters are those of h5py and hdf5plugin.

use std::fmt::{self, Display, Formatter};
use std::str::FromStr;

use npyfs_codec::Encoding;
use npyfs_codec::encode::BloscCodec;
use npyfs_hdf5::FilterSpec;

/// Bytes of a chunk, or a little less.
pub const CHUNK: u64 = 1 << 20;

/// Datasets of fewer bytes stay as they are: chunks would take more room than they save.
pub const SMALLEST: u64 = 4096;

/// Blosc's codecs in the order of their numbers.
const CODECS: [&str; 6] = ["blosclz", "lz4", "lz4hc", "snappy", "zlib", "zstd"];

/// Codecs that exporting has.
const KNOWN: [&str; 5] = ["blosclz", "lz4", "lz4hc", "zlib", "zstd"];

/// A method and its level.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Compression {
    /// Deflate, with its level.
    Gzip(u32),
    /// LZF.
    Lzf,
    /// Blosc.
    Blosc {
        /// Number of the codec.
        codec: u32,
        /// 0 to 9.
        level: u32,
    },
}

impl FromStr for Compression {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let wrong = || {
            let codecs = KNOWN.join(", ");
            format!(
                "{text:?}: expected gzip, lzf or blosc:CODEC (one of {codecs}), and :LEVEL from 1 to 9"
            )
        };
        let level = |level: Option<&str>, usual| match level {
            None => Ok(usual),
            Some(level) => match level.parse() {
                Ok(level @ 1..=9) => Ok(level),
                _ => Err(wrong()),
            },
        };
        let mut words = text.split(':');
        let method = words.next().unwrap_or_default();
        let found = match method {
            "gzip" => Self::Gzip(level(words.next(), 4)?),
            "lzf" => Self::Lzf,
            "blosc" => {
                let codec = words.next().filter(|codec| KNOWN.contains(codec));
                let codec = CODECS
                    .iter()
                    .zip(0..)
                    .find(|(name, _)| Some(**name) == codec);
                let (_, codec) = codec.ok_or_else(wrong)?;
                let level = level(words.next(), 5)?;
                Self::Blosc { codec, level }
            }
            _ => return Err(wrong()),
        };
        match words.next() {
            None => Ok(found),
            Some(_) => Err(wrong()),
        }
    }
}

impl Display for Compression {
    /// Writes it as [`FromStr`] reads it.
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        match self {
            Self::Gzip(level) => write!(f, "gzip:{level}"),
            Self::Lzf => f.write_str("lzf"),
            Self::Blosc { codec, level } => {
                let codec = usize::try_from(*codec)
                    .ok()
                    .and_then(|at| CODECS.get(at).copied());
                write!(f, "blosc:{}:{level}", codec.unwrap_or("?"))
            }
        }
    }
}

impl Compression {
    /// Returns the encoding of chunks here; `None` where only a library does it.
    pub fn encoding(self) -> Option<Encoding> {
        let small = |level: u32| u8::try_from(level).ok();
        Some(match self {
            Self::Gzip(level) => Encoding::Gzip(small(level)?),
            Self::Lzf => Encoding::Lzf,
            Self::Blosc { codec, level } => Encoding::Blosc {
                codec: BloscCodec::from_parameter(codec)?,
                level: small(level)?,
            },
        })
    }

    /// The filters in the order in which they are applied.
    pub fn filters(self) -> Vec<FilterSpec> {
        const GZIP: i32 = 1;
        const SHUFFLE: i32 = 2;
        const LZF: i32 = 32000;
        const BLOSC: i32 = 32001;
        match self {
            Self::Gzip(level) => vec![(SHUFFLE, vec![]), (GZIP, vec![level])],
            Self::Lzf => vec![(SHUFFLE, vec![]), (LZF, vec![])],
            // The first four are the filter's own; it sorts bytes itself.
            Self::Blosc { codec, level } => vec![(BLOSC, vec![0, 0, 0, 0, level, 1, codec])],
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn methods_codecs_and_levels() {
        let of = |text: &str| text.parse::<Compression>();
        assert_eq!(of("gzip"), Ok(Compression::Gzip(4)));
        assert_eq!(of("gzip:9"), Ok(Compression::Gzip(9)));
        assert_eq!(of("lzf"), Ok(Compression::Lzf));
        let zstd = of("blosc:zstd:3").unwrap();
        for text in ["gzip:9", "lzf", "blosc:zstd:3", "blosc:lz4:5"] {
            assert_eq!(of(text).unwrap().to_string(), text);
        }
        assert_eq!(zstd.filters(), [(32001, vec![0, 0, 0, 0, 3, 1, 5])]);
        for bad in [
            "",
            "none:",
            "gzip:0",
            "gzip:10",
            "lzf:1",
            "blosc",
            "blosc:snappy",
            "blosc:lz4:5:6",
        ] {
            assert!(of(bad).is_err(), "{bad:?}");
        }
    }
}
