//! Schemas of new columns, by Hangar's rules (`typesystem/*.py`, `backends/*.py`).

use crate::formats::hangar::digest;
pub use crate::formats::hangar::schema::named as dtype_named;
use crate::store::base::invalid;
use npyfs_base::error::Result;
use npyfs_base::npy::dtype::{DType, Kind};
use npyfs_base::npy::literal::Literal;

/// The compression of a column's collections.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ColumnCompression {
    /// Blosc with a codec, a level and a shuffle.
    Blosc {
        /// The name of the codec.
        codec: &'static str,
        /// The level, 0 to 9.
        level: u32,
        /// The shuffle: `none`, `byte` or `bit`.
        shuffle: &'static str,
    },
    /// LZF.
    Lzf {
        /// The bytes of elements are shuffled.
        shuffle: bool,
    },
    /// Gzip with a level of 0 to 9.
    Gzip {
        /// The level, 0 to 9.
        level: u32,
        /// The bytes of elements are shuffled.
        shuffle: bool,
    },
}

/// The codecs of Blosc that Hangar accepts, with their numbers in HDF5's filter.
const CODECS: [(&str, u32); 5] = [
    ("blosclz", 0),
    ("lz4", 1),
    ("lz4hc", 2),
    ("zlib", 4),
    ("zstd", 5),
];

const SHUFFLES: [&str; 3] = ["none", "byte", "bit"];

const FILTER_DEFLATE: i32 = 1;
const FILTER_SHUFFLE: i32 = 2;
const FILTER_LZF: i32 = 32000;
const FILTER_BLOSC: i32 = 32001;

/// The size in bytes up to which samples are too small for Blosc.
const TOO_SMALL_FOR_BLOSC: u64 = 16;

/// The description of a column to be created.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NewColumn {
    /// The column is nested: its samples are sets of samples.
    pub nested: bool,
    /// The kind of the samples.
    pub samples: NewSamples,
}

/// The kind of the samples of a new column.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum NewSamples {
    /// Arrays of one type.
    Arrays {
        /// The type of the elements.
        dtype: DType,
        /// The shape of each sample, or the largest per axis.
        shape: Vec<u64>,
        /// All samples have this shape.
        fixed: bool,
        /// The two digits of the backend; `None` leaves the choice to Hangar's rule.
        backend: Option<String>,
        /// The compression of the collections; `None` leaves the choice to Hangar's rule.
        compression: Option<ColumnCompression>,
    },
    /// Text.
    Text,
    /// Bytes.
    Bytes,
}

impl ColumnCompression {
    /// Parses `blosc:CODEC[:LEVEL[:SHUFFLE]]`, `lzf[:shuffle]` or `gzip[:LEVEL[:shuffle]]`.
    pub fn parse(text: &str) -> Result<Self> {
        let refused = || {
            invalid(format!(
                "{text:?} is no compression: blosc:CODEC[:LEVEL[:SHUFFLE]] with one of blosclz, lz4, lz4hc, zlib, zstd, \
                 a level of 0 to 9 and one of none, byte, bit; lzf[:shuffle]; gzip[:LEVEL[:shuffle]]"
            ))
        };
        let parts: Vec<&str> = text.split(':').collect();
        let level = |at: usize, default: u32| match parts.get(at) {
            None => Ok(default),
            Some(text) => match text.as_bytes() {
                [digit @ b'0'..=b'9'] => Ok(u32::from(digit - b'0')),
                _ => Err(refused()),
            },
        };
        let shuffled = |at: usize| match parts.get(at..).unwrap_or_default() {
            [] => Ok(false),
            ["shuffle"] => Ok(true),
            _ => Err(refused()),
        };
        match parts[0] {
            "blosc" if (2..=4).contains(&parts.len()) => Ok(Self::Blosc {
                codec: CODECS
                    .iter()
                    .find(|(name, _)| *name == parts[1])
                    .ok_or_else(refused)?
                    .0,
                level: level(2, 5)?,
                shuffle: match parts.get(3) {
                    None => "byte",
                    Some(name) => SHUFFLES
                        .into_iter()
                        .find(|s| s == name)
                        .ok_or_else(refused)?,
                },
            }),
            "lzf" => Ok(Self::Lzf {
                shuffle: shuffled(1)?,
            }),
            "gzip" => Ok(Self::Gzip {
                level: level(1, 4)?,
                shuffle: shuffled(2)?,
            }),
            _ => Err(refused()),
        }
    }

    /// Reads the compression from `backend_options` of a schema.
    pub fn from_options(options: &Literal) -> Result<Self> {
        let refused = || invalid(format!("unknown backend_options {}", options.json()));
        let complib = options.get("complib").and_then(Literal::text);
        let level = match options.get("complevel") {
            Some(Literal::Int(level)) => u32::try_from(*level).ok().filter(|level| *level <= 9),
            _ => None,
        };
        let shuffle = options.get("shuffle");
        let flag = match shuffle {
            Some(Literal::Bool(flag)) => Some(*flag),
            _ => None,
        };
        let complib = complib.ok_or_else(refused)?;
        if let Some(codec) = complib.strip_prefix("blosc:") {
            let shuffle = match shuffle {
                Some(Literal::None) => Some("none"),
                Some(Literal::Text(name)) => SHUFFLES.into_iter().find(|s| s == name),
                _ => None,
            };
            let codec = CODECS.iter().find(|(name, _)| *name == codec);
            return Ok(Self::Blosc {
                codec: codec.ok_or_else(refused)?.0,
                level: level.ok_or_else(refused)?,
                shuffle: shuffle.ok_or_else(refused)?,
            });
        }
        let shuffle = flag.ok_or_else(refused)?;
        match complib {
            "lzf" => Ok(Self::Lzf { shuffle }),
            "gzip" => Ok(Self::Gzip {
                level: level.ok_or_else(refused)?,
                shuffle,
            }),
            _ => Err(refused()),
        }
    }

    fn literal(&self) -> Literal {
        let (complib, level, shuffle) = match self {
            Self::Blosc {
                codec,
                level,
                shuffle,
            } => (
                format!("blosc:{codec}"),
                Literal::Int((*level).into()),
                text(shuffle),
            ),
            Self::Lzf { shuffle } => ("lzf".into(), Literal::None, Literal::Bool(*shuffle)),
            Self::Gzip { level, shuffle } => (
                "gzip".into(),
                Literal::Int((*level).into()),
                Literal::Bool(*shuffle),
            ),
        };
        dict([
            ("complib", text(&complib)),
            ("complevel", level),
            ("shuffle", shuffle),
        ])
    }

    /// Returns numbers and parameters of HDF5's filters, which add the parameters that depend on the dataset.
    pub fn filters(&self) -> Vec<(i32, Vec<u32>)> {
        let shuffled = |flag: &bool| flag.then(|| (FILTER_SHUFFLE, Vec::new()));
        match self {
            Self::Blosc {
                codec,
                level,
                shuffle,
            } => {
                let codec = CODECS.iter().find(|(name, _)| name == codec);
                let shuffle = SHUFFLES.iter().position(|name| name == shuffle);
                let shuffle = u32::try_from(shuffle.unwrap_or(0)).unwrap_or(0);
                let codec = codec.map_or(0, |(_, number)| *number);
                vec![(FILTER_BLOSC, vec![0, 0, 0, 0, *level, shuffle, codec])]
            }
            Self::Lzf { shuffle } => shuffled(shuffle)
                .into_iter()
                .chain([(FILTER_LZF, Vec::new())])
                .collect(),
            Self::Gzip { level, shuffle } => shuffled(shuffle)
                .into_iter()
                .chain([(FILTER_DEFLATE, vec![*level])])
                .collect(),
        }
    }
}

fn text(value: &str) -> Literal {
    Literal::Text(value.to_owned())
}

fn dict<'a>(entries: impl IntoIterator<Item = (&'a str, Literal)>) -> Literal {
    let entries = entries.into_iter();
    Literal::Dict(entries.map(|(k, v)| (k.to_owned(), v)).collect())
}

/// Returns NumPy's name of a dtype that Hangar accepts.
pub fn dtype_name(dtype: &DType) -> Option<String> {
    let DType::Scalar { kind, size, .. } = dtype else {
        return None;
    };
    if dtype.name().starts_with('>') {
        return None;
    }
    let name = match (kind, size) {
        (Kind::Bool, 1) => return Some("bool".into()),
        (Kind::Int, 1 | 2 | 4 | 8) => "int",
        (Kind::Uint, 1 | 2 | 4 | 8) => "uint",
        (Kind::Float, 2 | 4 | 8 | 16) => "float",
        _ => return None,
    };
    Some(format!("{name}{}", 8 * size))
}

impl NewColumn {
    /// Returns the record of the schema and its digest. Fails with EINVAL if Hangar would refuse it.
    pub fn record(&self) -> Result<(String, String)> {
        let layout = text(if self.nested { "nested" } else { "flat" });
        let (kind, hasher, schema_type, rest) = match &self.samples {
            NewSamples::Arrays {
                dtype,
                shape,
                fixed,
                backend,
                compression,
            } => {
                let schema_type = if *fixed {
                    "fixed_shape"
                } else {
                    "variable_shape"
                };
                let rest = arrays(dtype, shape, *fixed, backend.as_deref(), compression)?;
                ("ndarray", "0", schema_type, rest)
            }
            NewSamples::Text => ("str", "2", "variable_shape", lmdb("<class'str'>", "30")),
            NewSamples::Bytes => ("bytes", "3", "variable_shape", lmdb("<class'bytes'>", "31")),
        };
        let mut entries = vec![
            ("column_layout", layout),
            ("column_type", text(kind)),
            ("schema_hasher_tcode", text("1")),
            ("data_hasher_tcode", text(hasher)),
            ("schema_type", text(schema_type)),
        ];
        entries.extend(rest);
        let literal = dict(entries);
        let digest = digest::of_schema(&literal);
        Ok((literal.repr().replace(' ', ""), digest))
    }
}

type SchemaEntries = Vec<(&'static str, Literal)>;

fn lmdb(dtype: &str, backend: &str) -> SchemaEntries {
    vec![
        ("dtype", text(dtype)),
        ("backend", text(backend)),
        ("backend_options", dict([])),
    ]
}

fn arrays(
    dtype: &DType,
    shape: &[u64],
    fixed: bool,
    backend: Option<&str>,
    compression: &Option<ColumnCompression>,
) -> Result<SchemaEntries> {
    let name = dtype_name(dtype)
        .ok_or_else(|| invalid(format!("Hangar cannot hold dtype {}", dtype.name())))?;
    if shape.len() > 31 {
        return Err(invalid("Hangar holds at most 31 dimensions"));
    }
    if shape.contains(&0) {
        return Err(invalid("Hangar cannot hold arrays of no elements"));
    }
    let dims: Option<Vec<Literal>> = shape
        .iter()
        .map(|&d| i64::try_from(d).ok().map(|d| Literal::Int(d.into())))
        .collect();
    let size = dtype.size() as u64;
    let bytes = shape.iter().try_fold(size, |n, d| n.checked_mul(*d));
    let (Some(dims), Some(bytes)) = (dims, bytes) else {
        return Err(invalid("larger than an array can be"));
    };
    if backend.is_none() && compression.is_some() {
        return Err(invalid(
            "compression is only chosen together with a backend",
        ));
    }
    let backend = match (backend, shape) {
        (Some(named), _) => named,
        (None, [n]) if *n < 400 => "10",
        (None, [n]) if *n <= 10_000_000 => "00",
        (None, _) if fixed => "01",
        (None, _) => "00",
    };
    let small = bytes <= TOO_SMALL_FOR_BLOSC;
    let options = match (backend, compression) {
        ("10", None) => dict([]),
        ("10", Some(_)) => return Err(invalid("backend 10 does not compress")),
        ("01", _) if !fixed => {
            return Err(invalid("backend 01 holds arrays of one shape only"));
        }
        ("00" | "01", None) if small => ColumnCompression::Lzf { shuffle: true }.literal(),
        ("00" | "01", None) => ColumnCompression::Blosc {
            codec: "lz4hc",
            level: 5,
            shuffle: "byte",
        }
        .literal(),
        ("00" | "01", Some(ColumnCompression::Blosc { .. })) if small => {
            return Err(invalid("blosc needs samples of more than 16 bytes"));
        }
        ("00" | "01", Some(compression)) => compression.literal(),
        _ => return Err(invalid(format!("no backend {backend:?} for arrays"))),
    };
    Ok(vec![
        ("shape", Literal::Tuple(dims)),
        ("dtype", text(&name)),
        ("backend", text(backend)),
        ("backend_options", options),
    ])
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::formats::hangar::schema::{SampleKind, Schema};

    fn arrays(dtype: &str, shape: &[u64], fixed: bool) -> NewColumn {
        NewColumn {
            nested: false,
            samples: NewSamples::Arrays {
                dtype: crate::formats::hangar::schema::described(dtype).unwrap(),
                shape: shape.to_vec(),
                fixed,
                backend: None,
                compression: None,
            },
        }
    }

    #[test]
    fn records_are_what_hangar_writes() {
        let (record, digest) = arrays("<f8", &[3, 2], true).record().unwrap();
        assert_eq!(
            record,
            "{'column_layout':'flat','column_type':'ndarray','schema_hasher_tcode':'1','data_hasher_tcode':'0',\
             'schema_type':'fixed_shape','shape':(3,2),'dtype':'float64','backend':'01',\
             'backend_options':{'complib':'blosc:lz4hc','complevel':5,'shuffle':'byte'}}"
        );
        assert_eq!(digest, "1=34c8c18ef9da");
        let backend = |column: NewColumn| {
            let record = column.record().unwrap().0;
            let at = record.find("'backend':'").unwrap() + 11;
            record[at..at + 2].to_owned()
        };
        assert_eq!(backend(arrays("|u1", &[399], true)), "10");
        assert_eq!(backend(arrays("|u1", &[400], true)), "00");
        assert_eq!(backend(arrays("|u1", &[10_000_001], true)), "01");
        assert_eq!(backend(arrays("|u1", &[20], false)), "10");
        assert_eq!(backend(arrays("|u1", &[20, 2], false)), "00");
        assert_eq!(backend(arrays("<f8", &[], true)), "01");
        let (small, _) = arrays("|u1", &[4, 4], true).record().unwrap();
        assert!(small.ends_with("{'complib':'lzf','complevel':None,'shuffle':True}}"));
        let text = NewColumn {
            nested: true,
            samples: NewSamples::Text,
        };
        let (record, digest) = text.record().unwrap();
        let schema = Schema::parse(record.as_bytes()).unwrap();
        assert_eq!(schema.samples, SampleKind::Text);
        assert_eq!(schema.digest(), digest);
        assert!(record.contains("'dtype':\"<class'str'>\""), "{record}");
    }

    #[test]
    fn what_hangar_refuses_is_refused() {
        assert!(arrays("<f4", &[2, 0], true).record().is_err());
        assert!(arrays("<f4", &[1; 32], true).record().is_err());
        for (backend, compression, fixed, shape) in [
            (None, Some("gzip"), true, [9, 9]),
            (Some("10"), Some("lzf"), true, [9, 9]),
            (Some("01"), None, false, [9, 9]),
            (Some("01"), Some("blosc:lz4"), true, [2, 2]),
            (Some("30"), None, true, [9, 9]),
        ] {
            let mut column = arrays("<f4", &shape, fixed);
            if let NewSamples::Arrays {
                backend: to,
                compression: options,
                ..
            } = &mut column.samples
            {
                *to = backend.map(str::to_owned);
                *options = compression.map(|text| ColumnCompression::parse(text).unwrap());
            }
            assert!(column.record().is_err(), "{column:?}");
        }
        for text in [
            "blosc",
            "blosc:snappy",
            "blosc:lz4:10",
            "blosc:lz4:5:yes",
            "lzf:5",
            "gzip:x",
            "gzip:5:byte",
            "zip",
        ] {
            assert!(ColumnCompression::parse(text).is_err(), "{text}");
        }
    }

    #[test]
    fn options_are_read_as_they_are_written() {
        for text in [
            "blosc:zstd:9:bit",
            "lzf",
            "lzf:shuffle",
            "gzip:0",
            "gzip:9:shuffle",
        ] {
            let compression = ColumnCompression::parse(text).unwrap();
            assert_eq!(
                ColumnCompression::from_options(&compression.literal()).unwrap(),
                compression
            );
        }
        let filters = ColumnCompression::parse("blosc:zstd:9:bit")
            .unwrap()
            .filters();
        assert_eq!(filters, [(32001, vec![0, 0, 0, 0, 9, 2, 5])]);
    }
}
