//! The element type that HDF5 and NumPy have in common: an HDF5 datatype that `.npy` can hold, in NumPy's terms.
//!
//! A `DType` describes bytes as they are served; it never converts them.

use serde::{Deserialize, Serialize};

use crate::npy::repr;

/// Byte order of a multi-byte element.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum Order {
    /// Least significant byte first, NumPy's `<`.
    Little,
    /// Most significant byte first, NumPy's `>`.
    Big,
    /// Single bytes, text of bytes, raw bytes: NumPy's `|`.
    None,
}

impl Order {
    fn sign(self) -> char {
        match self {
            Self::Little => '<',
            Self::Big => '>',
            Self::None => '|',
        }
    }
}

/// NumPy's kind of a scalar element.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum Kind {
    /// One byte, 0 or 1: `|b1`.
    Bool,
    /// A signed integer.
    Int,
    /// An unsigned integer.
    Uint,
    /// An IEEE float, or the machine's long double.
    Float,
    /// Two floats, the real part first.
    Complex,
    /// Fixed-width bytes, `|S<n>`.
    Bytes,
    /// Fixed-width UCS-4 text, `<U<n>`.
    Text,
    /// Raw bytes, `|V<n>`.
    Void,
    /// A point in time: 64 bits, counted in the unit of the type.
    Datetime,
    /// A span of time: 64 bits, counted in the unit of the type.
    Timedelta,
}

impl Kind {
    fn letter(self) -> char {
        match self {
            Self::Bool => 'b',
            Self::Int => 'i',
            Self::Uint => 'u',
            Self::Float => 'f',
            Self::Complex => 'c',
            Self::Bytes => 'S',
            Self::Text => 'U',
            Self::Void => 'V',
            Self::Datetime => 'M',
            Self::Timedelta => 'm',
        }
    }
}

/// One member of a structured dtype.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Field {
    /// The member's name.
    pub name: String,
    /// Bytes from the start of the element.
    pub offset: usize,
    /// The type of the member, or of an element of a subarray.
    pub dtype: DType,
    /// Shape of a subarray member; empty for a plain one.
    pub shape: Vec<u64>,
}

impl Field {
    /// Returns the number of bytes that the member takes; `None` if that does not fit the address space.
    pub fn size(&self) -> Option<usize> {
        self.shape.iter().try_fold(self.dtype.size(), |size, &n| {
            size.checked_mul(usize::try_from(n).ok()?)
        })
    }
}

/// An element type as `.npy` spells it.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum DType {
    /// A type without members.
    Scalar {
        /// NumPy's kind.
        kind: Kind,
        /// Bytes per element.
        size: usize,
        /// Byte order.
        order: Order,
        /// `[ns]` and the like after a datetime or timedelta; empty for the others.
        unit: String,
    },
    /// Members in order of offset, without overlap; gaps are padding.
    Struct {
        /// The members.
        fields: Vec<Field>,
        /// Bytes per element, with padding.
        size: usize,
    },
}

impl DType {
    /// Creates a scalar type; byte order is dropped where it means nothing.
    pub fn scalar(kind: Kind, size: usize, order: Order) -> Self {
        let order = match kind {
            Kind::Bytes | Kind::Void | Kind::Bool => Order::None,
            Kind::Int | Kind::Uint if size == 1 => Order::None,
            _ => order,
        };
        Self::Scalar {
            kind,
            size,
            order,
            unit: String::new(),
        }
    }

    /// Creates the type `|S<width>`.
    pub fn bytes(width: usize) -> Self {
        Self::scalar(Kind::Bytes, width, Order::None)
    }

    /// Creates the type `<U<width>`; the width is in characters.
    pub fn text(width: usize) -> Self {
        Self::scalar(Kind::Text, width.saturating_mul(4), Order::Little)
    }

    /// Creates a little-endian signed integer of `size` bytes.
    pub fn int(size: usize) -> Self {
        Self::scalar(Kind::Int, size, Order::Little)
    }

    /// Returns the number of bytes per element.
    pub fn size(&self) -> usize {
        match self {
            Self::Scalar { size, .. } | Self::Struct { size, .. } => *size,
        }
    }

    /// Returns NumPy's `dtype.str` of a scalar (`<f4`), or `|V<size>` of a structured type.
    pub fn name(&self) -> String {
        match self {
            Self::Scalar {
                kind,
                size,
                order,
                unit,
            } => {
                let count = if *kind == Kind::Text { size / 4 } else { *size };
                format!("{}{}{count}{unit}", order.sign(), kind.letter())
            }
            Self::Struct { size, .. } => format!("|V{size}"),
        }
    }

    /// Returns the `descr` of an npy header, as Python's `repr` prints NumPy's `dtype.descr`.
    pub fn descr(&self) -> String {
        let Self::Struct { fields, size } = self else {
            return repr::text(&self.name());
        };
        let mut parts = Vec::with_capacity(fields.len());
        let mut offset = 0;
        for field in fields {
            if field.offset > offset {
                parts.push(format!("('', '|V{}')", field.offset - offset));
            }
            let name = repr::text(&field.name);
            let descr = field.dtype.descr();
            parts.push(if field.shape.is_empty() {
                format!("({name}, {descr})")
            } else {
                format!("({name}, {descr}, {})", repr::tuple(&field.shape))
            });
            offset = field.offset.saturating_add(field.size().unwrap_or(0));
        }
        if *size > offset {
            parts.push(format!("('', '|V{}')", size - offset));
        }
        format!("[{}]", parts.join(", "))
    }

    /// Returns the type as JSON shows it: `"<f4"`, or a list of `[name, type]` and `[name, type, shape]`.
    pub fn json(&self) -> serde_json::Value {
        match self {
            Self::Scalar { .. } => self.name().into(),
            Self::Struct { fields, .. } => fields
                .iter()
                .map(|f| {
                    let mut entry = vec![f.name.clone().into(), f.dtype.json()];
                    if !f.shape.is_empty() {
                        entry.push(f.shape.clone().into());
                    }
                    serde_json::Value::Array(entry)
                })
                .collect(),
        }
    }
}

/// Prints the type as NumPy does: `<f4`, or the fields of a structured type.
impl std::fmt::Display for DType {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Scalar { .. } => f.write_str(&self.name()),
            Self::Struct { .. } => f.write_str(&self.descr()),
        }
    }
}

/// Returns the integer of at most 8 bytes that an element is; `None` if an `i64` cannot hold it.
pub fn integer(bytes: &[u8], kind: Kind, order: Order) -> Option<i64> {
    let push = |n: u64, &b: &u8| n << 8 | u64::from(b);
    let wide = match order {
        Order::Big => bytes.iter().fold(0, push),
        Order::Little | Order::None => bytes.iter().rev().fold(0, push),
    };
    if kind == Kind::Int {
        let shift = 64 - 8 * bytes.len().clamp(1, 8);
        return Some((wide << shift).cast_signed() >> shift);
    }
    i64::try_from(wide).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn scalars_are_spelled_as_numpy_spells_them() {
        let le = |kind, size| DType::scalar(kind, size, Order::Little).name();
        assert_eq!(le(Kind::Int, 1), "|i1");
        assert_eq!(le(Kind::Int, 8), "<i8");
        assert_eq!(le(Kind::Bool, 1), "|b1");
        assert_eq!(le(Kind::Complex, 16), "<c16");
        assert_eq!(DType::scalar(Kind::Float, 4, Order::Big).name(), ">f4");
        assert_eq!(DType::bytes(7).name(), "|S7");
        assert_eq!(DType::text(9).name(), "<U9");
        assert_eq!(DType::text(9).size(), 36);
    }

    #[test]
    fn padding_and_subarrays_show_in_the_descr() {
        let field = |name: &str, offset, shape: &[u64]| Field {
            name: name.into(),
            offset,
            dtype: DType::int(4),
            shape: shape.to_vec(),
        };
        let dtype = DType::Struct {
            fields: vec![field("a", 0, &[]), field("b", 8, &[3])],
            size: 24,
        };
        assert_eq!(
            dtype.descr(),
            "[('a', '<i4'), ('', '|V4'), ('b', '<i4', (3,)), ('', '|V4')]"
        );
    }
}
