//! Parses the header of an `.npy` file from an untrusted source.
//!
//! Format: NEP 1 and `numpy.lib.format`, versions 1.0, 2.0 and 3.0. Every length has a limit, and nothing is evaluated.
//! The result is what the file claims; whether a store can hold it is decided elsewhere.

use super::literal::{Literal, quote};
use super::{MAGIC, payload_len};
use crate::error::{Error, ErrorKind};
use crate::npy::dtype::{DType, Field, Kind, Order};

/// The longest text of a header, in bytes; HDF5 stores a datatype in 64 KiB.
const LONGEST: usize = 1 << 20;

/// The most dimensions: NumPy's `NPY_MAXDIMS`.
const MOST_DIMS: usize = 64;

/// The deepest nesting of structured types.
const DEEPEST: usize = 32;

/// The most bytes that a header takes at the start of a file.
pub const LONGEST_HEADER: usize = MAGIC.len() + 6 + LONGEST;

/// The header of an `.npy` file, checked.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Header {
    /// The element type.
    pub dtype: DType,
    /// The dimensions; none for a scalar.
    pub shape: Vec<u64>,
    /// Whether the first axis varies fastest.
    pub fortran_order: bool,
    /// The offset of the payload in the file.
    pub start: u64,
    /// The number of bytes of the payload.
    pub len: u64,
}

/// The reason why a file is not accepted as an `.npy` file.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum NpyError {
    /// The file does not begin with the magic bytes.
    #[error("not an .npy file: it does not begin with \\x93NUMPY")]
    NotNpy,
    /// The version is unknown.
    #[error("version {0}.{1} of the .npy format is not known")]
    Version(u8, u8),
    /// The header claims to be longer than the limit.
    #[error("the .npy header is longer than {LONGEST} bytes")]
    HeaderTooLong,
    /// The file ends inside the header.
    #[error("the file ends within its .npy header")]
    HeaderTruncated,
    /// The header is not UTF-8.
    #[error("the .npy header is not UTF-8")]
    NotText,
    /// The header is not what `numpy.lib.format` writes; the text says why.
    #[error("the .npy header cannot be read: {0}")]
    Syntax(String),
    /// The elements are Python objects.
    #[error(
        "the array holds Python objects (pickled): only arrays of plain values can be stored, \
         as text is after np.save(path, array.astype(str))"
    )]
    Pickled,
    /// npyfs does not support the type.
    #[error("the element type {0} cannot be stored")]
    Unsupported(String),
    /// A structured type has more than `MOST_FIELDS` members.
    #[error("a type of more than {MOST_FIELDS} members")]
    Members,
    /// An element has more bytes than NumPy allows.
    #[error("elements of {0} bytes: NumPy has none of more than 2 GiB")]
    Element(usize),
    /// The array has more empty elements than the limit.
    #[error("{0} elements of no bytes: nothing was sent that could be stored")]
    Empty(u64),
    /// The array is larger than a file can be.
    #[error("an array of this shape is larger than a file can be")]
    TooLarge,
    /// The file is shorter than its header says, in bytes.
    #[error("truncated: {have} bytes where the .npy header asks for {want}")]
    Truncated {
        /// The actual number of bytes.
        have: u64,
        /// The number of bytes according to the header.
        want: u64,
    },
    /// The file is longer than its header says, in bytes.
    #[error("{have} bytes where the .npy header asks for {want}")]
    TooLong {
        /// The actual number of bytes.
        have: u64,
        /// The number of bytes according to the header.
        want: u64,
    },
}

type Result<T> = std::result::Result<T, NpyError>;

fn syntax<T>(why: impl Into<String>) -> Result<T> {
    Err(NpyError::Syntax(why.into()))
}

impl Header {
    /// Checks that a file of `have` bytes consists of exactly the header and the payload.
    pub fn check_len(&self, have: u64) -> Result<()> {
        let want = self.start.saturating_add(self.len);
        match have.cmp(&want) {
            std::cmp::Ordering::Less => Err(NpyError::Truncated { have, want }),
            std::cmp::Ordering::Equal => Ok(()),
            std::cmp::Ordering::Greater => Err(NpyError::TooLong { have, want }),
        }
    }
}

/// The bytes at the start of a file that hold the length of its header.
pub const PREAMBLE: usize = MAGIC.len() + 6;

/// Returns the offset of the payload, from the first `PREAMBLE` bytes of a file; `None` if it is not an `.npy` file.
pub fn start(file: &[u8]) -> Option<u64> {
    let rest = file.strip_prefix(MAGIC)?;
    let (&version, rest) = rest.split_first_chunk()?;
    let len = match version {
        [1, 0] => u64::from(u16::from_le_bytes(*rest.first_chunk()?)) + 2,
        [2 | 3, 0] => u64::from(u32::from_le_bytes(*rest.first_chunk()?)) + 4,
        _ => return None,
    };
    Some(MAGIC.len() as u64 + 2 + len)
}

/// Parses the header at the start of `file`, which holds at least `LONGEST_HEADER` bytes or the whole file.
pub fn parse(file: &[u8]) -> Result<Header> {
    let rest = match file.strip_prefix(MAGIC) {
        Some(rest) => rest,
        None if !file.is_empty() && MAGIC.starts_with(file) => {
            return Err(NpyError::HeaderTruncated);
        }
        None => return Err(NpyError::NotNpy),
    };
    let &[major, minor, ref rest @ ..] = rest else {
        return Err(NpyError::HeaderTruncated);
    };
    let (len, rest) = match (major, minor) {
        (1, 0) => rest
            .split_first_chunk()
            .map(|(len, rest)| (usize::from(u16::from_le_bytes(*len)), rest)),
        (2 | 3, 0) => rest.split_first_chunk().map(|(len, rest)| {
            let len = usize::try_from(u32::from_le_bytes(*len)).unwrap_or(usize::MAX);
            (len, rest)
        }),
        _ => return Err(NpyError::Version(major, minor)),
    }
    .ok_or(NpyError::HeaderTruncated)?;
    if len > LONGEST {
        return Err(NpyError::HeaderTooLong);
    }
    let bytes = rest.get(..len).ok_or(NpyError::HeaderTruncated)?;
    let text = if major == 3 {
        String::from_utf8(bytes.to_vec()).map_err(|_| NpyError::NotText)?
    } else {
        // Latin-1: each byte is the code point of its character.
        bytes.iter().map(|&b| char::from(b)).collect()
    };
    let start = file.len() - rest.len() + len;
    header(
        super::literal::parse(&text).map_err(NpyError::Syntax)?,
        start,
    )
}

fn header(literal: Literal, start: usize) -> Result<Header> {
    let Literal::Dict(entries) = literal else {
        return syntax("no dictionary");
    };
    let (mut descr, mut fortran_order, mut shape) = (None, None, None);
    for (key, value) in entries {
        let place = match key.as_str() {
            "descr" => &mut descr,
            "fortran_order" => &mut fortran_order,
            "shape" => &mut shape,
            _ => return syntax(format!("the unknown key {:?}", quote(&key))),
        };
        if place.replace(value).is_some() {
            return syntax(format!("{key} is there twice"));
        }
    }
    let (Some(descr), Some(fortran_order), Some(shape)) = (descr, fortran_order, shape) else {
        return syntax("descr, fortran_order or shape is missing");
    };
    let Literal::Bool(fortran_order) = fortran_order else {
        return syntax("fortran_order is neither True nor False");
    };
    let shape = dims(&shape)?;
    let dtype = dtype(&descr, 0, &mut 0)?;
    check(&dtype, &shape)?;
    let len = payload_len(&dtype, &shape).ok_or(NpyError::TooLarge)?;
    let start = start as u64;
    if start.checked_add(len).is_none_or(|n| n > i64::MAX as u64) {
        return Err(NpyError::TooLarge);
    }
    Ok(Header {
        dtype,
        shape,
        fortran_order,
        start,
        len,
    })
}

fn dims(literal: &Literal) -> Result<Vec<u64>> {
    let Literal::Tuple(items) = literal else {
        return syntax("a shape that is no tuple");
    };
    if items.len() > MOST_DIMS {
        return syntax(format!("more than {MOST_DIMS} dimensions"));
    }
    match literal.dims() {
        Some(dims) => Ok(dims),
        None => syntax("a dimension that is no integer from 0 on"),
    }
}

/// Returns the type of a `descr`; `members` counts the members of all structured types so far.
fn dtype(descr: &Literal, depth: usize, members: &mut usize) -> Result<DType> {
    match descr {
        Literal::Text(name) => scalar(name),
        Literal::List(items) if depth < DEEPEST => structure(items, depth, members),
        Literal::List(_) => Err(NpyError::Unsupported("(nested too deeply)".into())),
        _ => syntax("a descr that is neither a string nor a list"),
    }
}

/// Parses NumPy's `dtype.descr`: `(name, type)` or `(name, type, shape)`. An unnamed member of raw bytes is padding.
fn structure(items: &[Literal], depth: usize, members: &mut usize) -> Result<DType> {
    *members = members.saturating_add(items.len());
    if *members > MOST_FIELDS {
        return Err(NpyError::Members);
    }
    let mut fields: Vec<Field> = Vec::new();
    let mut names = std::collections::HashSet::new();
    let mut end = 0_usize;
    for item in items {
        let Literal::Tuple(parts) = item else {
            return syntax("a member that is no tuple");
        };
        let (name, descr, shape) = match parts.as_slice() {
            [name, descr] => (name, descr, Vec::new()),
            [name, descr, shape] => (name, descr, dims(shape)?),
            _ => return syntax("a member of neither two nor three parts"),
        };
        let Literal::Text(name) = name else {
            return Err(NpyError::Unsupported("(a member with a title)".into()));
        };
        let field = Field {
            name: name.clone(),
            offset: end,
            dtype: dtype(descr, depth + 1, members)?,
            shape,
        };
        let size = field.size().ok_or(NpyError::TooLarge)?;
        end = end.checked_add(size).ok_or(NpyError::TooLarge)?;
        let raw = matches!(
            field.dtype,
            DType::Scalar {
                kind: Kind::Void,
                ..
            }
        );
        if name.is_empty() && raw && field.shape.is_empty() {
            continue;
        }
        if !names.insert(name.clone()) {
            return syntax(format!("the member {:?} is there twice", quote(name)));
        }
        fields.push(field);
    }
    if fields.is_empty() {
        return Err(NpyError::Unsupported("(no members)".into()));
    }
    Ok(DType::Struct { fields, size: end })
}

/// Parses NumPy's `dtype.str`: byte order, kind, number, and the unit of a time.
pub fn scalar(name: &str) -> Result<DType> {
    let unsupported = || NpyError::Unsupported(quote(name));
    let (order, rest) = match name.split_at_checked(1) {
        Some(("<", rest)) => (Order::Little, rest),
        Some((">", rest)) => (Order::Big, rest),
        Some(("|", rest)) => (Order::None, rest),
        _ => return Err(unsupported()),
    };
    let (letter, rest) = rest.split_at_checked(1).ok_or_else(unsupported)?;
    let digits = rest.bytes().take_while(u8::is_ascii_digit).count();
    let (count, unit) = rest.split_at(digits);
    // `|O` may lack a number.
    if letter == "O" {
        return Err(NpyError::Pickled);
    }
    let count: usize = count.parse().map_err(|_| unsupported())?;
    let (kind, size) = match (letter, count) {
        ("b", 1) => (Kind::Bool, 1),
        ("i", 1 | 2 | 4 | 8) => (Kind::Int, count),
        ("u", 1 | 2 | 4 | 8) => (Kind::Uint, count),
        ("f", 2 | 4 | 8 | 16) => (Kind::Float, count),
        ("c", 8 | 16 | 32) => (Kind::Complex, count),
        ("S", _) => (Kind::Bytes, count),
        ("U", _) => (Kind::Text, count.checked_mul(4).ok_or(NpyError::TooLarge)?),
        ("V", _) => (Kind::Void, count),
        ("M", 8) => (Kind::Datetime, 8),
        ("m", 8) => (Kind::Timedelta, 8),
        _ => return Err(unsupported()),
    };
    let time = matches!(kind, Kind::Datetime | Kind::Timedelta);
    if !(unit.is_empty() || time && is_unit(unit)) {
        return Err(unsupported());
    }
    match DType::scalar(kind, size, order) {
        DType::Scalar {
            order: Order::None, ..
        } if size > 1 && !matches!(kind, Kind::Bytes | Kind::Void) => Err(unsupported()),
        DType::Scalar {
            kind, size, order, ..
        } => Ok(DType::Scalar {
            kind,
            size,
            order,
            unit: unit.to_owned(),
        }),
        DType::Struct { .. } => Err(unsupported()),
    }
}

/// Returns true for a time unit with an optional count, such as `[ns]` or `[25s]`.
fn is_unit(text: &str) -> bool {
    let inner = text.strip_prefix('[').and_then(|t| t.strip_suffix(']'));
    let unit = inner.map(|t| t.trim_start_matches(|c: char| c.is_ascii_digit()));
    unit.is_some_and(|unit| {
        [
            "Y", "M", "W", "D", "h", "m", "s", "ms", "us", "ns", "ps", "fs", "as",
        ]
        .contains(&unit)
    })
}

impl From<NpyError> for Error {
    fn from(error: NpyError) -> Self {
        let kind = match &error {
            NpyError::Pickled | NpyError::Unsupported(_) => ErrorKind::Os(libc::EOPNOTSUPP),
            NpyError::TooLarge => ErrorKind::TooLarge,
            _ => ErrorKind::Os(libc::EINVAL),
        };
        Self::new(kind, error.to_string())
    }
}

/// The most members of structured types in one header, including nested ones. HDF5 stores a datatype in 64 KiB, which
/// holds less than half as many.
pub const MOST_FIELDS: usize = 8192;

/// The most elements of size zero.
const MOST_EMPTY: u64 = 1 << 16;

/// The largest element, in bytes: NumPy's limit.
const LARGEST_ELEMENT: usize = i32::MAX.unsigned_abs() as usize;

/// Rejects an array that NumPy could not represent, and one that would cost more work than its bytes justify.
pub fn check(dtype: &DType, shape: &[u64]) -> Result<()> {
    let size = dtype.size();
    if size > LARGEST_ELEMENT {
        return Err(NpyError::Element(size));
    }
    // Counted as NumPy does: empty axes do not make the others harmless.
    let room = shape.iter().filter(|&&n| n > 0);
    let room = room.copied().try_fold(size.max(1) as u64, u64::checked_mul);
    if room.is_none_or(|n| n > i64::MAX as u64) {
        return Err(NpyError::TooLarge);
    }
    let elements = shape.iter().fold(1_u64, |n, &d| n.saturating_mul(d));
    if size == 0 && elements > MOST_EMPTY {
        return Err(NpyError::Empty(elements));
    }
    Ok(())
}

#[cfg(test)]
mod bounds_tests {
    use super::*;

    #[test]
    fn what_costs_more_than_was_sent_is_refused() {
        const HUGE: u64 = 1_000_000_000_000;
        for size in [0, 1] {
            let dtype = DType::bytes(size);
            assert_eq!(check(&dtype, &[0, HUGE]), Ok(()));
            assert_eq!(check(&dtype, &[0, HUGE, HUGE]), Err(NpyError::TooLarge));
            assert_eq!(check(&dtype, &[u64::MAX, 0]), Err(NpyError::TooLarge));
        }
        for dtype in [DType::bytes(0), DType::text(0)] {
            assert_eq!(check(&dtype, &[3]), Ok(()));
            assert_eq!(check(&dtype, &[HUGE]), Err(NpyError::Empty(HUGE)));
            let shape = [1 << 12, 1 << 12];
            assert_eq!(check(&dtype, &shape), Err(NpyError::Empty(1 << 24)));
        }
        let wide = usize::try_from(HUGE).unwrap();
        let refused = check(&DType::bytes(wide), &[0]);
        assert_eq!(refused, Err(NpyError::Element(wide)));
    }
}

#[cfg(test)]
mod tests;
