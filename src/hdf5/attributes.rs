//! Attributes of objects, and their values as plain data.

use super::describe::shape_bytes;
use super::ffi::{self, Id};
use super::service::bounded;
use super::types::{self, ElementType};
use super::{Attribute, H5Error, TextForm, Value, record, text};
use crate::npy::dtype::DType;

/// Bytes of the largest attribute that is shown.
const MAX_ATTRIBUTE: u64 = 16 << 20;

/// Returns the attributes of an object in order of name, each with its value or the reason why it cannot be shown.
pub(super) fn attributes(id: &Id) -> Result<Vec<Attribute>, H5Error> {
    attributes_named(id, |_| true)
}

/// Returns the attributes of an object with a name that is wanted.
pub(super) fn attributes_named(
    id: &Id,
    wanted: impl Fn(&[u8]) -> bool,
) -> Result<Vec<Attribute>, H5Error> {
    Ok(ffi::attributes(id)?
        .into_iter()
        .filter(|(name, _)| wanted(name))
        .map(|(name, attr)| Attribute {
            name,
            value: value(&attr).map_err(|e| e.to_string()),
        })
        .collect())
}

fn value(attr: &Id) -> Result<Value, H5Error> {
    let stored = ffi::attribute_type(attr)?;
    let element = types::element(&stored)?;
    let Some((mut shape, _)) = ffi::extent(&ffi::attribute_space(attr)?)? else {
        return Err(H5Error::Unsupported("null dataspace".into()));
    };
    let size = ffi::size(&stored);
    let elements = shape_bytes(&shape, 1)
        .filter(|n| n.saturating_mul(size as u64) <= MAX_ATTRIBUTE)
        .and_then(|n| usize::try_from(n).ok())
        .ok_or_else(|| H5Error::TooLarge("attribute too large to show".into()))?;
    match element {
        ElementType::Fixed {
            dtype,
            inner,
            convert,
        } => {
            let mem_type = types::memory_type(&dtype, convert, stored)?;
            shape.extend(inner);
            Ok(Value {
                data: ffi::read_attribute(attr, &mem_type, elements)?,
                dtype,
                shape,
            })
        }
        ElementType::Record { part, inner } => {
            let read = record::of_attribute(attr, &stored, (&part, &inner), elements);
            shape.extend(inner);
            let (dtype, data) = read?;
            Ok(Value { dtype, shape, data })
        }
        ElementType::Text { fixed, utf8 } => {
            let texts = match fixed {
                None => ffi::read_attribute_strings(attr, &ffi::variable_string(utf8)?, elements)?,
                Some(size) => {
                    let mem_type = ffi::null_padded(&stored)?;
                    text::split(&ffi::read_attribute(attr, &mem_type, elements)?, size)
                }
            };
            text_value(&texts, fixed, utf8, shape)
        }
    }
}

/// Makes a value of texts, by the rules for datasets: `<U` for UTF-8, `|S` for the rest.
fn text_value(
    texts: &[Vec<u8>],
    fixed: Option<usize>,
    utf8: bool,
    shape: Vec<u64>,
) -> Result<Value, H5Error> {
    let decoded: Option<Vec<&str>> = texts.iter().map(|t| std::str::from_utf8(t).ok()).collect();
    let ascii = texts.iter().all(|t| t.is_ascii());
    let (dtype, form) = match (decoded, fixed) {
        (Some(decoded), fixed) if utf8 && !(ascii && fixed.is_some()) => {
            let width = decoded
                .iter()
                .map(|t| t.chars().count())
                .max()
                .unwrap_or(0)
                .max(1);
            (DType::text(width), TextForm::Ucs4(width))
        }
        (_, fixed) => {
            let longest = texts.iter().map(Vec::len).max().unwrap_or(0).max(1);
            let width = fixed.unwrap_or(longest);
            (DType::bytes(width), TextForm::Bytes(width))
        }
    };
    let mut data = Vec::new();
    bounded(&shape, dtype.size())?;
    for t in texts {
        text::encode(t, form, &mut data)?;
    }
    Ok(Value { dtype, shape, data })
}
