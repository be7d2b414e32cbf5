//! Data location records: the location of a sample, in the spelling of `hash.lmdb`.
//!
//! Source: Hangar 0.5.2 `backends/*.py` (`*_encode`, `*_DataHashSpec`) and the documentation of 0.2 and 0.4 for the
//! older spellings of `00`. An accepted record prints exactly as it was written.

use std::fmt;

/// The largest size in bytes of a record; Hangar's own parser stops at 255.
const LONGEST: usize = 1024;

/// The largest number of dimensions of a sample, as in NumPy.
const MOST_DIMS: usize = 64;

/// The spelling of a record of an HDF5 backend.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Spelling {
    /// `00:<uid>$<dataset> <row>*<shape>`, without a checksum.
    First,
    /// `00:<uid>$<checksum>$<dataset> <row>*<shape>`.
    Second,
    /// `00:<uid>:<checksum>:<dataset>:<row>:<shape>`, since 0.5.
    Today,
}

/// A row of a dataset in a collection file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RowRecord {
    /// `"00"` or `"01"`.
    pub backend: &'static str,
    /// The spelling of the record.
    pub spelling: Spelling,
    /// The name of the collection file.
    pub uid: String,
    /// The xxh64 of the sample's bytes in C order; `None` in the first spelling.
    pub checksum: Option<u64>,
    /// The number of the dataset in the file.
    pub dataset: u32,
    /// The number of the row in the dataset.
    pub row: u64,
    /// The shape of the sample; the dataset's rows may be larger.
    pub shape: Vec<u64>,
}

/// The location of a sample.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Record {
    /// Backends `00` and `01`.
    Hdf5(RowRecord),
    /// A row of an `.npy` file: backend `10`.
    Numpy {
        /// The name of the file.
        uid: String,
        /// The xxh64 of the sample's bytes.
        checksum: u64,
        /// The number of the row in the file.
        row: u64,
        /// The shape of the sample; the file's rows may be larger.
        shape: Vec<u64>,
    },
    /// A value of an LMDB file: backends `30` (text) and `31` (bytes).
    Lmdb {
        /// `"30"` or `"31"`.
        backend: &'static str,
        /// The name of the file.
        uid: String,
        /// The key of the value.
        key: String,
        /// The xxh64 of the sample's bytes.
        checksum: u64,
    },
    /// The sample was not fetched from the remote yet: backend `50`.
    Remote {
        /// The digest of the schema.
        schema: String,
    },
}

/// A text that is no record.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("not a record of Hangar: {0:?}")]
pub struct RecordError(String);

impl Record {
    /// Parses a record.
    pub fn parse(text: &str) -> Result<Self, RecordError> {
        let refused = || RecordError(text.chars().take(300).collect());
        if text.len() > LONGEST {
            return Err(refused());
        }
        let (backend, rest) = text.split_once(':').ok_or_else(refused)?;
        let record = match backend {
            "00" if rest.contains('$') => Self::old_hdf5(rest),
            "00" => Self::hdf5("00", rest),
            "01" => Self::hdf5("01", rest),
            "10" => Self::numpy(rest),
            "30" => Self::lmdb("30", rest),
            "31" => Self::lmdb("31", rest),
            "50" => (rest.len() <= 64
                && rest.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'='))
            .then(|| Self::Remote {
                schema: rest.to_owned(),
            }),
            _ => None,
        };
        record.ok_or_else(refused)
    }

    fn hdf5(backend: &'static str, rest: &str) -> Option<Self> {
        let [uid, checksum, dataset, row, shape] = fields(rest)?;
        Some(Self::Hdf5(RowRecord {
            backend,
            spelling: Spelling::Today,
            uid: parse_uid(uid)?,
            checksum: Some(parse_checksum(checksum)?),
            dataset: u32::try_from(number(dataset)?).ok()?,
            row: number(row)?,
            shape: parse_shape(shape)?,
        }))
    }

    fn old_hdf5(rest: &str) -> Option<Self> {
        let (head, place) = rest.split_once(' ')?;
        let mut parts = head.split('$');
        let (uid, second, third) = (parts.next()?, parts.next()?, parts.next());
        if parts.next().is_some() {
            return None;
        }
        let (checksum, dataset) = match third {
            Some(dataset) => (Some(parse_checksum(second)?), dataset),
            None => (None, second),
        };
        let (row, shape) = place.split_once('*')?;
        Some(Self::Hdf5(RowRecord {
            backend: "00",
            spelling: match checksum {
                Some(_) => Spelling::Second,
                None => Spelling::First,
            },
            uid: parse_uid(uid)?,
            checksum,
            dataset: u32::try_from(number(dataset)?).ok()?,
            row: number(row)?,
            shape: parse_shape(shape)?,
        }))
    }

    fn numpy(rest: &str) -> Option<Self> {
        let [uid, checksum, row, shape] = fields(rest)?;
        Some(Self::Numpy {
            uid: parse_uid(uid)?,
            checksum: parse_checksum(checksum)?,
            row: number(row)?,
            shape: parse_shape(shape)?,
        })
    }

    fn lmdb(backend: &'static str, rest: &str) -> Option<Self> {
        let [uid, key, checksum] = fields(rest)?;
        Some(Self::Lmdb {
            backend,
            uid: parse_uid(uid)?,
            key: parse_uid(key)?,
            checksum: parse_checksum(checksum)?,
        })
    }

    /// Returns the shape of an array sample.
    pub fn shape(&self) -> Option<&[u64]> {
        match self {
            Self::Hdf5(RowRecord { shape, .. }) | Self::Numpy { shape, .. } => Some(shape),
            Self::Lmdb { .. } | Self::Remote { .. } => None,
        }
    }

    /// Returns the name of the data file.
    pub fn uid(&self) -> Option<&str> {
        match self {
            Self::Hdf5(RowRecord { uid, .. })
            | Self::Numpy { uid, .. }
            | Self::Lmdb { uid, .. } => Some(uid),
            Self::Remote { .. } => None,
        }
    }

    /// Returns the two leading digits.
    pub fn backend(&self) -> &'static str {
        match self {
            Self::Hdf5(RowRecord { backend, .. }) | Self::Lmdb { backend, .. } => backend,
            Self::Numpy { .. } => "10",
            Self::Remote { .. } => "50",
        }
    }
}

/// Splits a text into exactly `N` fields between colons.
fn fields<const N: usize>(text: &str) -> Option<[&str; N]> {
    let mut found = [""; N];
    let mut parts = text.split(':');
    for field in &mut found {
        *field = parts.next()?;
    }
    parts.next().is_none().then_some(found)
}

/// Accepts only letters and digits: the name becomes part of a path.
fn parse_uid(text: &str) -> Option<String> {
    let fits = (1..=64).contains(&text.len());
    (fits && text.bytes().all(|b| b.is_ascii_alphanumeric())).then(|| text.to_owned())
}

/// Parses 16 hexadecimal digits in lower case.
fn parse_checksum(text: &str) -> Option<u64> {
    let digits = |b: u8| b.is_ascii_digit() || (b'a'..=b'f').contains(&b);
    (text.len() == 16 && text.bytes().all(digits)).then(|| u64::from_str_radix(text, 16).ok())?
}

/// Parses a decimal number without sign or leading zeros.
fn number(text: &str) -> Option<u64> {
    let plain = text.bytes().all(|b| b.is_ascii_digit()) && (text == "0" || !text.starts_with('0'));
    plain.then(|| text.parse().ok())?
}

/// Parses numbers separated by one space; empty for a 0-d sample.
fn parse_shape(text: &str) -> Option<Vec<u64>> {
    if text.is_empty() {
        return Some(Vec::new());
    }
    let shape: Vec<u64> = text.split(' ').map(number).collect::<Option<_>>()?;
    (shape.len() <= MOST_DIMS).then_some(shape)
}

struct ShapeText<'a>(&'a [u64]);

impl fmt::Display for ShapeText<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (i, d) in self.0.iter().enumerate() {
            let space = if i > 0 { " " } else { "" };
            write!(f, "{space}{d}")?;
        }
        Ok(())
    }
}

impl fmt::Display for Record {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Hdf5(RowRecord {
                backend,
                spelling,
                uid,
                checksum,
                dataset,
                row,
                shape,
            }) => {
                let sum = checksum.unwrap_or(0);
                let shape = ShapeText(shape);
                match spelling {
                    Spelling::First => write!(f, "{backend}:{uid}${dataset} {row}*{shape}"),
                    Spelling::Second => {
                        write!(f, "{backend}:{uid}${sum:016x}${dataset} {row}*{shape}")
                    }
                    Spelling::Today => {
                        write!(f, "{backend}:{uid}:{sum:016x}:{dataset}:{row}:{shape}")
                    }
                }
            }
            Self::Numpy {
                uid,
                checksum,
                row,
                shape,
            } => write!(f, "10:{uid}:{checksum:016x}:{row}:{}", ShapeText(shape)),
            Self::Lmdb {
                backend,
                uid,
                key,
                checksum,
            } => write!(f, "{backend}:{uid}:{key}:{checksum:016x}"),
            Self::Remote { schema } => write!(f, "50:{schema}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn every_spelling_is_read_and_printed() {
        for text in [
            "00:2HvGf9$0 0*10",
            "00:WzUtdu$3 199*20 2 3",
            "00:rlUK3C$8067007c0f05c359$16 105*10 10",
            "01:rlUK3C:8067007c0f05c359:16:105:10 10",
            "00:3hvcns37:2cf85822b9af9b28:0:1:10 10",
            "01:k6x4oipu:e6b2e9fff4717555:0:0:",
            "10:79xri64d:792ce21c3af2af6d:2:12",
            "30:gb1xfqh5:0125:ef46db3751d8e999",
            "31:gb1xfqh5:0Az5:ef46db3751d8e999",
            "50:1=e66e36dffee5",
        ] {
            let record = Record::parse(text).unwrap();
            assert_eq!(record.to_string(), text);
            assert_eq!(record.backend(), &text[..2]);
        }
        let old = Record::parse("00:WzUtdu$3 199*20 2 3").unwrap();
        let Record::Hdf5(old) = old else {
            panic!("not HDF5");
        };
        assert_eq!((old.dataset, old.row, old.checksum), (3, 199, None));
        assert_eq!(old.shape, [20, 2, 3]);
    }

    #[test]
    fn anything_else_is_refused_and_quoted() {
        for text in [
            "",
            "00",
            "02:abc:0123456789abcdef:0:0:1",
            "01:../../etc:0123456789abcdef:0:0:1",
            "01:a:0123456789ABCDEF:0:0:1",
            "01:a:123:0:0:1",
            "01:a:0123456789abcdef:-1:0:1",
            "01:a:0123456789abcdef:0:007:1",
            "01:a:0123456789abcdef:0:0:1  2",
            "01:a:0123456789abcdef:0:0:1:",
            "01:a:0123456789abcdef:0:99999999999999999999:1",
            "01:rlUK3C$8067007c0f05c359$16 105*10 10",
            "30::0125:ef46db3751d8e999",
            "50:a/b",
        ] {
            let error = Record::parse(text).unwrap_err();
            assert!(error.to_string().contains(&format!("{text:?}")), "{error}");
        }
        assert!(Record::parse(&"0".repeat(5000)).is_err());
    }

    fn records() -> impl Strategy<Value = Record> {
        let uid = "[A-Za-z0-9]{1,8}";
        let shape = proptest::collection::vec(any::<u64>(), 0..5);
        let hdf5 = (
            0..4_usize,
            uid,
            any::<u64>(),
            any::<u32>(),
            any::<u64>(),
            shape.clone(),
        );
        prop_oneof![
            hdf5.prop_map(
                |(kind, uid, sum, dataset, row, shape)| Record::Hdf5(RowRecord {
                    backend: if kind == 3 { "01" } else { "00" },
                    spelling: [
                        Spelling::First,
                        Spelling::Second,
                        Spelling::Today,
                        Spelling::Today
                    ][kind],
                    uid,
                    checksum: (kind > 0).then_some(sum),
                    dataset,
                    row,
                    shape,
                })
            ),
            (uid, any::<u64>(), any::<u64>(), shape).prop_map(|(uid, checksum, row, shape)| {
                Record::Numpy {
                    uid,
                    checksum,
                    row,
                    shape,
                }
            }),
            (any::<bool>(), uid, uid, any::<u64>()).prop_map(|(text, uid, key, checksum)| {
                let backend = if text { "30" } else { "31" };
                Record::Lmdb {
                    backend,
                    uid,
                    key,
                    checksum,
                }
            }),
            "[0-9a-f=]{0,20}".prop_map(|schema| Record::Remote { schema }),
        ]
    }

    proptest! {
        #[test]
        fn what_is_printed_is_read_again(record in records()) {
            prop_assert_eq!(Record::parse(&record.to_string()), Ok(record));
        }

        #[test]
        fn what_is_accepted_prints_as_it_was(text in "(00|01|10|30|31|50):[a-z0-9:$* ]{0,40}") {
            if let Ok(record) = Record::parse(&text) {
                prop_assert_eq!(record.to_string(), text);
            }
        }
    }
}
