//! The attributes by which Arkouda marks its objects.
//!
//! Source: Arkouda, `src/HDF5Msg.chpl` lines 389 to 655 and `src/ServerConfig.chpl` lines 25 to 40. All are
//! scalars; numbers are written as 64-bit integers, the version as text of fixed length.

use npyfs_base::npy::dtype::{DType, Kind, integer};
use npyfs_hdf5::{Attribute, Value};

/// Their names.
pub const NAMES: [&str; 12] = [
    "ObjType",
    "isBool",
    "isBigInt",
    "MaxBits",
    "NumLimbs",
    "NumKeys",
    "NumCols",
    "NumIdx",
    "Rank",
    "Shape",
    "File_Format",
    "arkouda_version",
];

/// Name of the group that marks files of version 1.0.
pub(super) const METADATA: &[u8] = b"_arkouda_metadata";

/// Returns whether an attribute is one of Arkouda's.
pub fn is_mark(attribute: &[u8]) -> bool {
    let mut names = NAMES.iter().map(|name| name.as_bytes());
    attribute == b"file_version" || names.any(|name| name == attribute)
}

/// The attributes of an object that determine its kind.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Marks {
    /// The kind of object that it claims to be, or why the claim is invalid.
    pub object_type: Option<Result<i64, String>>,
    /// Whether bytes represent booleans.
    pub is_bool: bool,
    /// Whether a group holds limbs.
    pub is_bigint: bool,
    /// The bits of each number; `None` if unlimited.
    pub max_bits: Option<u64>,
    /// The number of keys, levels or limbs that it claims to have.
    pub members: Option<u64>,
    /// The shape of an array that is stored flat, if `Rank` and `Shape` agree.
    pub shape: Option<Vec<u64>>,
    /// `File_Format` of a root group.
    pub file_format: Option<i64>,
    /// The version of Arkouda that wrote it.
    pub version: Option<String>,
}

impl Marks {
    /// Reads the marks among the attributes of an object.
    pub fn from_attributes(attributes: &[Attribute]) -> Self {
        let find = |name: &str| attributes.iter().find(|a| a.name == name.as_bytes());
        let value = |name: &str| find(name).and_then(|a| a.value.as_ref().ok());
        let number = |name: &str| value(name).and_then(scalar);
        let rank = number("Rank").and_then(|n| usize::try_from(n).ok());
        let dims = value("Shape").and_then(numbers).unwrap_or_default();
        let dims: Option<Vec<u64>> = dims.into_iter().map(|n| u64::try_from(n).ok()).collect();
        Self {
            object_type: find("ObjType").map(|a| match &a.value {
                Ok(value) => scalar(value).ok_or_else(|| "ObjType is not one integer".to_owned()),
                Err(why) => Err(format!("ObjType cannot be read: {why}")),
            }),
            is_bool: number("isBool") == Some(1),
            is_bigint: number("isBigInt") == Some(1),
            max_bits: number("MaxBits").and_then(|n| u64::try_from(n).ok()),
            members: ["NumKeys", "NumIdx", "NumLimbs"]
                .into_iter()
                .find_map(number)
                .and_then(|n| u64::try_from(n).ok()),
            shape: dims.filter(|dims| rank == Some(dims.len())),
            file_format: number("File_Format"),
            version: value("arkouda_version").and_then(text),
        }
    }
}

/// Returns the integers of a value; `None` for other values.
fn numbers(value: &Value) -> Option<Vec<i64>> {
    let DType::Scalar {
        kind: kind @ (Kind::Int | Kind::Uint | Kind::Bool),
        size: size @ 1..=8,
        order,
        ..
    } = value.dtype
    else {
        return None;
    };
    value
        .data
        .chunks_exact(size)
        .map(|bytes| integer(bytes, kind, order))
        .collect()
}

/// Returns the single integer of a value.
pub fn scalar(value: &Value) -> Option<i64> {
    match numbers(value)?.as_slice() {
        &[number] => Some(number),
        _ => None,
    }
}

fn text(value: &Value) -> Option<String> {
    match value.dtype {
        DType::Scalar {
            kind: Kind::Bytes, ..
        } => {
            let end = value.data.iter().position(|&b| b == 0);
            let bytes = &value.data[..end.unwrap_or(value.data.len())];
            Some(String::from_utf8_lossy(bytes).into_owned())
        }
        DType::Scalar {
            kind: Kind::Text, ..
        } => Some(
            value
                .data
                .chunks_exact(4)
                .filter_map(|c| char::from_u32(u32::from_le_bytes([c[0], c[1], c[2], c[3]])))
                .take_while(|&c| c != '\0')
                .collect(),
        ),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use npyfs_base::npy::dtype::Order;

    #[test]
    fn numbers_of_any_width_count_and_others_do_not() {
        let big = DType::scalar(Kind::Int, 4, Order::Big);
        let marks = Marks::from_attributes(&[
            Attribute::new("ObjType", big, &[], &[0, 0, 0, 2]),
            Attribute::new("isBool", DType::int(8), &[], &[0; 8]),
            Attribute::new("MaxBits", DType::int(8), &[], &[255; 8]),
            Attribute::new("arkouda_version", DType::bytes(4), &[], b"v1\0x"),
        ]);
        assert_eq!(marks.object_type, Some(Ok(2)));
        assert!(!marks.is_bool && marks.max_bits.is_none());
        assert_eq!(marks.version.as_deref(), Some("v1"));
        let float = DType::scalar(Kind::Float, 8, Order::Little);
        let marks = Marks::from_attributes(&[Attribute::new("ObjType", float, &[], &[0; 8])]);
        assert!(matches!(marks.object_type, Some(Err(_))));
    }

    #[test]
    fn a_shape_needs_its_rank() {
        let rank = |n: u8| Attribute::new("Rank", DType::int(1), &[], &[n]);
        let shape = Attribute::new("Shape", DType::int(1), &[2], &[2, 3]);
        assert_eq!(
            Marks::from_attributes(&[rank(2), shape.clone()]).shape,
            Some(vec![2, 3])
        );
        assert_eq!(
            Marks::from_attributes(&[rank(3), shape.clone()]).shape,
            None
        );
        assert_eq!(Marks::from_attributes(&[shape]).shape, None);
        assert_eq!(Marks::from_attributes(&[rank(0)]).shape, Some(vec![]));
    }
}
