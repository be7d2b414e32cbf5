//! Schemas of columns, as `hash.lmdb` keeps them: a Python dictionary without spaces.

use super::digest;
use npyfs_base::error::{Error, Result};
use npyfs_base::npy;
use npyfs_base::npy::dtype::{DType, Kind, Order};
use npyfs_base::npy::literal::{self, Literal};

/// The kind of the samples of a column.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum SampleKind {
    /// Arrays of one type.
    Arrays {
        /// The type of the elements.
        dtype: DType,
        /// The shape of each sample, or the largest per axis.
        shape: Vec<u64>,
        /// All samples have this shape.
        fixed: bool,
    },
    /// Text.
    Text,
    /// Bytes.
    Bytes,
}

/// The schema of a column.
#[derive(Clone, Debug)]
pub struct Schema {
    /// The kind of the samples.
    pub samples: SampleKind,
    literal: Literal,
}

/// The largest size in bytes of a schema record.
const LONGEST: usize = 1 << 16;

impl Schema {
    /// Parses a schema record.
    pub fn parse(text: &[u8]) -> Result<Self> {
        let refused = |why: &str| {
            let shown: String = String::from_utf8_lossy(text).chars().take(300).collect();
            Error::damaged(format!("not a schema of Hangar ({why}): {shown:?}"))
        };
        let literal = std::str::from_utf8(text)
            .ok()
            .filter(|text| text.len() <= LONGEST)
            .and_then(|text| literal::parse(text).ok())
            .ok_or_else(|| refused("no dictionary"))?;
        let field = |name: &str| literal.get(name).and_then(Literal::text);
        let samples = match field("column_type") {
            Some("ndarray") => SampleKind::Arrays {
                dtype: field("dtype")
                    .and_then(named)
                    .ok_or_else(|| refused("unknown dtype"))?,
                shape: literal
                    .get("shape")
                    .and_then(Literal::dims)
                    .ok_or_else(|| refused("no shape"))?,
                fixed: match field("schema_type") {
                    Some("fixed_shape") => true,
                    Some("variable_shape") => false,
                    _ => return Err(refused("unknown schema_type")),
                },
            },
            Some("str") => SampleKind::Text,
            Some("bytes") => SampleKind::Bytes,
            _ => return Err(refused("unknown column_type")),
        };
        Ok(Self { samples, literal })
    }

    /// Returns the suffix of a sample's file.
    pub fn suffix(&self) -> &'static str {
        match self.samples {
            SampleKind::Arrays { .. } => ".npy",
            SampleKind::Text => ".txt",
            SampleKind::Bytes => ".bin",
        }
    }

    /// Returns the letter in front of the samples' digests.
    pub fn kind(&self) -> u8 {
        match self.samples {
            SampleKind::Arrays { .. } => b'0',
            SampleKind::Text => b'2',
            SampleKind::Bytes => b'3',
        }
    }

    /// Returns the type and shape of the samples of a column whose samples are all alike.
    pub fn fixed(&self) -> Option<(&DType, &[u64])> {
        match &self.samples {
            SampleKind::Arrays {
                dtype,
                shape,
                fixed: true,
            } => Some((dtype, shape)),
            _ => None,
        }
    }

    /// Returns the digest that the record should have as its key.
    pub fn digest(&self) -> String {
        digest::of_schema(&self.literal)
    }

    /// Returns the backend for new samples, and its options.
    pub fn backend(&self) -> Option<(&str, &Literal)> {
        let backend = self.literal.get("backend").and_then(Literal::text)?;
        Some((backend, self.literal.get("backend_options")?))
    }

    /// Returns the schema as `info` shows it.
    pub fn json(&self) -> serde_json::Value {
        self.literal.json()
    }
}

/// Returns the dtype with a name of NumPy, if Hangar accepts it.
pub fn named(name: &str) -> Option<DType> {
    let (kind, size) = match name {
        "bool" => (Kind::Bool, 1),
        "int8" => (Kind::Int, 1),
        "int16" => (Kind::Int, 2),
        "int32" => (Kind::Int, 4),
        "int64" => (Kind::Int, 8),
        "uint8" => (Kind::Uint, 1),
        "uint16" => (Kind::Uint, 2),
        "uint32" => (Kind::Uint, 4),
        "uint64" => (Kind::Uint, 8),
        "float16" => (Kind::Float, 2),
        "float32" => (Kind::Float, 4),
        "float64" => (Kind::Float, 8),
        "float128" => (Kind::Float, 16),
        _ => return None,
    };
    Some(DType::scalar(kind, size, Order::Little))
}

/// Returns the dtype of a `descr` in an `.npy` header: a number or a boolean, little-endian.
pub fn described(descr: &str) -> Option<DType> {
    let kinds = [Kind::Bool, Kind::Int, Kind::Uint, Kind::Float];
    let sizes = [1, 2, 4, 8, 16];
    kinds
        .into_iter()
        .flat_map(|kind| sizes.map(|size| DType::scalar(kind, size, Order::Little)))
        .find(|dtype| dtype.name() == descr)
}

/// Returns the size of an `.npy` file; an error if no file can be that large.
pub fn npy_size(dtype: &DType, shape: &[u64]) -> Result<u64> {
    npy::payload_len(dtype, shape)
        .and_then(|len| len.checked_add(npy::header(dtype, shape).len() as u64))
        .filter(|&n| i64::try_from(n).is_ok())
        .ok_or_else(|| {
            Error::new(
                npyfs_base::error::ErrorKind::TooLarge,
                format!("shape {shape:?} is larger than a file can be"),
            )
        })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn records_of_real_hangar_are_read() {
        let text = b"{'column_layout':'flat','column_type':'ndarray','schema_hasher_tcode':'1',\
            'data_hasher_tcode':'0','schema_type':'fixed_shape','shape':(3,2),'dtype':'float64','backend':'01',\
            'backend_options':{'complib':'blosc:lz4hc','complevel':5,'shuffle':'byte'}}";
        let schema = Schema::parse(text).unwrap();
        let (dtype, shape) = schema.fixed().unwrap();
        assert_eq!((dtype.name().as_str(), shape), ("<f8", &[3, 2][..]));
        assert_eq!(schema.digest(), "1=34c8c18ef9da");
        let text = b"{'column_type':'str','schema_type':'variable_shape','dtype':\"<class'str'>\"}";
        assert_eq!(Schema::parse(text).unwrap().samples, SampleKind::Text);
        for wrong in [&b""[..], b"{}", b"{'column_type':'ndarray'}", b"\xff"] {
            assert!(Schema::parse(wrong).is_err());
        }
    }

    #[test]
    fn types_are_known_by_both_their_names() {
        assert_eq!(named("float128").unwrap().name(), "<f16");
        assert_eq!(described("|b1"), named("bool"));
        assert_eq!(described("<f2"), named("float16"));
        assert_eq!(described("<c8"), None);
        assert_eq!(described(">f4"), None);
    }
}
