//! Attributes of objects, and their values as plain data.

use super::dataset::{bounded, shape_bytes};
use super::ffi::{self, Class, Id};
use super::object_paths::Referrer;
use super::types;
use super::{record, text};
use npyfs_base::npy::dtype::DType;
use npyfs_hdf5::protocol::{
    Attribute, ElementType, H5Error, Reference, References, TextForm, Value, encode_text,
};

/// The size in bytes of the largest attribute that is shown.
const MAX_ATTRIBUTE: u64 = 16 << 20;

/// The largest number of references of an attribute that are followed: a header of a few bytes may claim any number.
const MAX_REFERENCES: usize = 1 << 18;

/// The size in bytes of a reference in memory.
const REFERENCE: usize = 8;

/// Returns the attributes of an object in order of name, each with its value or the reason why it cannot be shown.
pub(super) fn attributes(id: &Id, referrer: &mut Referrer<'_>) -> Result<Vec<Attribute>, H5Error> {
    attributes_named(id, referrer, |_| true)
}

/// Returns the attributes of an object whose names are wanted.
pub(super) fn attributes_named(
    id: &Id,
    referrer: &mut Referrer<'_>,
    wanted: impl Fn(&[u8]) -> bool,
) -> Result<Vec<Attribute>, H5Error> {
    Ok(ffi::attributes(id)?
        .into_iter()
        .filter(|(name, _)| wanted(name))
        .map(|(name, attr)| attribute(name, &attr, referrer))
        .collect())
}

fn attribute(name: Vec<u8>, attr: &Id, referrer: &mut Referrer<'_>) -> Attribute {
    let (value, references) = match references(attr, referrer) {
        Ok(None) => (value(attr).map_err(|e| e.to_string()), None),
        Ok(references) => (Err("references to objects".into()), references),
        Err(e) => (Err(e.to_string()), None),
    };
    Attribute {
        name,
        value,
        references,
    }
}

/// Returns the targets of the references of an attribute; `None` if its elements are no references. A reference that
/// leads nowhere is an error.
pub(super) fn references(
    attr: &Id,
    referrer: &mut Referrer<'_>,
) -> Result<Option<References>, H5Error> {
    let Some((object, sequences)) = reference_type(attr)? else {
        return Ok(None);
    };
    let Some((shape, _)) = ffi::extent(&ffi::attribute_space(attr)?)? else {
        return Err(H5Error::Unsupported("null dataspace".into()));
    };
    let elements = element_count(&shape, ffi::size(&object))?;
    let mut left = MAX_REFERENCES;
    let paths = |addresses: &[u8]| {
        let addresses = addresses.as_chunks().0;
        left = left
            .checked_sub(addresses.len())
            .ok_or_else(|| H5Error::TooLarge("too many references to show".into()))?;
        let paths = addresses.iter();
        let paths = paths.map(|addr| reference(u64::from_le_bytes(*addr), referrer));
        paths.collect::<Result<Vec<_>, H5Error>>()
    };
    let elements = match sequences {
        true => {
            let read = ffi::read_attribute_sequences(attr, &object, elements)?;
            read.iter().map(paths).collect::<Result<_, _>>()?
        }
        false => {
            let read = ffi::read_attribute(attr, &object, elements)?;
            read.chunks(REFERENCE)
                .map(paths)
                .collect::<Result<_, _>>()?
        }
    };
    Ok(Some(References {
        shape,
        sequences,
        elements,
    }))
}

/// Returns the type for reading the references of an attribute, and whether its elements are sequences of them; `None`
/// if its elements are no references.
fn reference_type(attr: &Id) -> Result<Option<(Id, bool)>, H5Error> {
    let stored = ffi::attribute_type(attr)?;
    let sequences = ffi::class(&stored) == Class::H5T_VLEN;
    let single = match sequences {
        true => ffi::super_type(&stored)?,
        false => stored,
    };
    if ffi::class(&single) != Class::H5T_REFERENCE {
        return Ok(None);
    }
    if ffi::is_region_reference(&single) {
        return Err(H5Error::Unsupported("references to regions".into()));
    }
    let object = ffi::object_reference_type()?;
    if !ffi::equal(&single, &object) {
        return Err(H5Error::Unsupported("references of another kind".into()));
    }
    Ok(Some((object, sequences)))
}

/// Returns the first address of each of the `elements` elements of an attribute of references; `None` if its elements
/// are no references. The caller must check the addresses.
pub(super) fn first_addresses(
    attr: &Id,
    elements: usize,
) -> Result<Option<Vec<Option<u64>>>, H5Error> {
    let Some((object, sequences)) = reference_type(attr)? else {
        return Ok(None);
    };
    let first = |bytes: &[u8]| {
        let addr = u64::from_le_bytes(*bytes.first_chunk()?);
        (addr != 0).then_some(addr)
    };
    Ok(Some(match sequences {
        true => {
            let read = ffi::read_attribute_sequences(attr, &object, elements)?;
            read.iter().map(first).collect()
        }
        false => {
            let read = ffi::read_attribute(attr, &object, elements)?;
            read.chunks(REFERENCE).map(first).collect()
        }
    }))
}

/// Returns the path that an address leads to; address 0 is a reference that was never set.
fn reference(addr: u64, referrer: &mut Referrer<'_>) -> Result<Reference, H5Error> {
    match addr {
        0 => Ok(None),
        addr => referrer.target(addr).map(Some),
    }
}

/// Returns the number of elements of an attribute; fails if they are too large to show.
fn element_count(shape: &[u64], size: usize) -> Result<usize, H5Error> {
    shape_bytes(shape, 1)
        .filter(|n| n.saturating_mul(size as u64) <= MAX_ATTRIBUTE)
        .and_then(|n| usize::try_from(n).ok())
        .ok_or_else(|| H5Error::TooLarge("attribute too large to show".into()))
}

fn value(attr: &Id) -> Result<Value, H5Error> {
    let stored = ffi::attribute_type(attr)?;
    let element = types::element(&stored)?;
    let Some((mut shape, _)) = ffi::extent(&ffi::attribute_space(attr)?)? else {
        return Err(H5Error::Unsupported("null dataspace".into()));
    };
    let elements = element_count(&shape, ffi::size(&stored))?;
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
            let texts = text::of_attribute(attr, &stored, elements)?;
            text_value(&texts, fixed, utf8, shape)
        }
    }
}

/// Makes a value of texts, by the rules for datasets: `<U` for UTF-8, otherwise `|S`.
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
        encode_text(t, form, &mut data)?;
    }
    Ok(Value { dtype, shape, data })
}
