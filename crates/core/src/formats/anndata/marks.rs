//! The attributes that record the encoding of an element.
//!
//! Source: anndata 0.12, `docs/fileformat-prose`; before 0.7 sparse matrices had the attributes of h5sparse.

use crate::formats::sparse::{SparseOrder, dimensions};
use crate::store::encode::ucs4;
use npyfs_base::npy::dtype::{DType, Kind};
use npyfs_hdf5::{Attribute, Value};

pub(super) const TYPE: &str = "encoding-type";
pub(super) const VERSION: &str = "encoding-version";
/// The name of the column with the names of the rows.
pub(super) const INDEX: &str = "_index";
/// The names of the columns, in order.
pub(super) const COLUMNS: &str = "column-order";
pub(super) const SHAPE: &str = "shape";
pub(super) const ORDERED: &str = "ordered";
const OLD_FORMAT: &str = "h5sparse_format";
const OLD_SHAPE: &str = "h5sparse_shape";

/// All attributes that are read.
pub(super) const NAMES: [&str; 6] = [TYPE, INDEX, COLUMNS, SHAPE, OLD_FORMAT, OLD_SHAPE];

/// Returns whether an attribute only records the encoding of an element.
pub(super) fn is_mark(name: &[u8]) -> bool {
    let all = NAMES.iter().chain(&[VERSION, ORDERED]);
    all.into_iter().any(|mark| mark.as_bytes() == name)
}

/// The attributes of an object.
#[derive(Clone, Copy)]
pub(super) struct Marks<'a>(pub &'a [Attribute]);

impl<'a> Marks<'a> {
    pub(super) fn value(self, name: &str) -> Option<&'a Value> {
        let found = self.0.iter().find(|a| a.name == name.as_bytes())?;
        found.value.as_ref().ok()
    }

    /// Returns an attribute that is one text.
    pub(super) fn text(self, name: &str) -> Option<String> {
        let value = self.value(name).filter(|value| value.shape.is_empty())?;
        texts(value)?.pop()
    }

    /// Returns an attribute that is a list of texts; an empty list may be of any type.
    pub(super) fn texts(self, name: &str) -> Option<Vec<String>> {
        let value = self.value(name)?;
        match value.shape.as_slice() {
            [0] => Some(Vec::new()),
            [_] => texts(value),
            _ => None,
        }
    }

    /// Returns the encoding.
    pub(super) fn encoding(self) -> Option<String> {
        self.text(TYPE)
    }

    pub(super) fn is_categorical(self) -> bool {
        self.encoding().as_deref() == Some("categorical")
    }

    /// Returns the order of a sparse matrix.
    pub(super) fn sparse_order(self) -> Option<SparseOrder> {
        if let Some(encoding) = self.encoding() {
            let name = encoding.strip_suffix("_matrix")?;
            return SparseOrder::named(name.as_bytes());
        }
        SparseOrder::named(self.text(OLD_FORMAT)?.as_bytes())
    }

    /// Returns the shape of a sparse matrix, and its attribute.
    pub(super) fn sparse_shape(self) -> Option<((u64, u64), &'a Value)> {
        let value = self.value(SHAPE).or_else(|| self.value(OLD_SHAPE))?;
        Some((dimensions(value)?, value))
    }
}

/// Returns the elements of a value of text.
fn texts(value: &Value) -> Option<Vec<String>> {
    let DType::Scalar {
        kind, size, order, ..
    } = &value.dtype
    else {
        return None;
    };
    let text = |element: &[u8]| match kind {
        Kind::Bytes => {
            let end = element.iter().rposition(|&b| b != 0).map_or(0, |i| i + 1);
            let element = element.get(..end).unwrap_or_default();
            Some(String::from_utf8_lossy(element).into_owned())
        }
        Kind::Text => {
            let codes = ucs4::characters(element, *order);
            codes.map(char::from_u32).collect()
        }
        _ => None,
    };
    value.data.chunks_exact((*size).max(1)).map(text).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use npyfs_base::npy::dtype::Order;

    #[test]
    fn text_of_any_kind_is_read() {
        let wide: Vec<u8> = "é\0"
            .chars()
            .flat_map(|c| (c as u32).to_le_bytes())
            .collect();
        let all = [
            Attribute::new(TYPE, DType::bytes(12), &[], b"csc_matrix\0\0"),
            Attribute::new(INDEX, DType::text(2), &[], &wide),
            Attribute::new(
                COLUMNS,
                DType::scalar(Kind::Float, 8, Order::Little),
                &[0],
                b"",
            ),
            Attribute::new(
                SHAPE,
                DType::int(8),
                &[2],
                &[1, 0, 0, 0, 0, 0, 0, 0, 2, 0, 0, 0, 0, 0, 0, 0],
            ),
        ];
        let marks = Marks(&all);
        assert_eq!(marks.sparse_order(), Some(SparseOrder::Csc));
        assert_eq!(marks.text(INDEX).as_deref(), Some("é"));
        assert_eq!(marks.texts(COLUMNS), Some(Vec::new()));
        assert_eq!(marks.sparse_shape().map(|(shape, _)| shape), Some((1, 2)));
        assert_eq!(marks.text(SHAPE), None);
    }
}
