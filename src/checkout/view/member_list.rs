//! The value of an attribute in which a group lists members by their names.

use crate::hdf5::{Attribute, Value};
use crate::npy::dtype::{DType, Kind, Order};

/// Returns the names; `None` if it is no list of texts.
pub(super) fn names(list: &Attribute) -> Option<Vec<String>> {
    let value = list.value.as_ref().ok()?;
    if value.shape == [0] {
        return Some(Vec::new());
    }
    let DType::Scalar {
        kind, size, order, ..
    } = &value.dtype
    else {
        return None;
    };
    if value.shape.len() != 1 {
        return None;
    }
    let name = |element: &[u8]| match kind {
        Kind::Bytes => String::from_utf8(element.to_vec()).ok(),
        Kind::Text => {
            let codes = element.as_chunks::<4>().0.iter();
            let codes = codes.map(|code| match order {
                Order::Big => u32::from_be_bytes(*code),
                Order::Little | Order::None => u32::from_le_bytes(*code),
            });
            codes.map(char::from_u32).collect()
        }
        _ => None,
    };
    let names = value.data.chunks_exact((*size).max(1)).map(name);
    let names: Option<Vec<String>> = names.collect();
    let trim = |name: String| name.trim_end_matches('\0').to_owned();
    Some(names?.into_iter().map(trim).collect())
}

/// Returns the value that lists names.
pub(super) fn value(names: &[String]) -> Value {
    let width = names.iter().map(|name| name.chars().count()).max();
    let width = width.unwrap_or(0).max(1);
    let padded = names.iter().flat_map(|name| {
        let letters = name.chars().chain(std::iter::repeat('\0'));
        letters.take(width).flat_map(|c| u32::from(c).to_le_bytes())
    });
    Value {
        dtype: DType::text(width),
        shape: vec![names.len() as u64],
        data: padded.collect(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_come_back() {
        for names in [vec!["a", "größer", ""], vec![]] {
            let names: Vec<String> = names.into_iter().map(str::to_owned).collect();
            let list = Attribute {
                name: Vec::new(),
                value: Ok(value(&names)),
                references: None,
            };
            assert_eq!(super::names(&list), Some(names));
        }
    }
}
