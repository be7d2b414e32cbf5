//! Dimension scales: the attribute that marks one, and its accompanying texts in HDF5.

use super::ffi::{self, Class, Id};
use npyfs_hdf5::protocol::H5Error;

/// The longest text of a scale in bytes that is read.
const MAX_TEXT: usize = 1 << 16;

/// Returns true if a dataset is a dimension scale.
pub(super) fn is_scale(id: &Id) -> Result<bool, H5Error> {
    Ok(text(id, b"CLASS")?.is_some_and(|class| class == b"DIMENSION_SCALE"))
}

/// Returns an attribute that is one text; `None` if there is none, or if it is no text.
pub(super) fn text(id: &Id, name: &[u8]) -> Result<Option<Vec<u8>>, H5Error> {
    let Some(attribute) = ffi::attribute(id, name)? else {
        return Ok(None);
    };
    let shape = ffi::extent(&ffi::attribute_space(&attribute)?)?.map(|(shape, _)| shape);
    let is_one = shape.is_some_and(|shape| shape.iter().all(|&n| n == 1));
    match is_one {
        true => Ok(texts(&attribute, 1)?.pop()),
        false => Ok(None),
    }
}

/// Returns the texts of an attribute of `count` elements, up to the first NUL; empty if the elements are no texts.
pub(super) fn texts(attribute: &Id, count: usize) -> Result<Vec<Vec<u8>>, H5Error> {
    let stored = ffi::attribute_type(attribute)?;
    if ffi::class(&stored) != Class::H5T_STRING {
        return Ok(Vec::new());
    }
    if ffi::is_variable_string(&stored) {
        let mem_type = ffi::variable_string(ffi::is_utf8(&stored))?;
        return Ok(ffi::read_attribute_strings(attribute, &mem_type, count)?);
    }
    let size = ffi::size(&stored);
    if size == 0 || size > MAX_TEXT {
        return Ok(Vec::new());
    }
    let bytes = ffi::read_attribute(attribute, &ffi::null_padded(&stored)?, count)?;
    let texts = bytes.chunks_exact(size).map(|text| {
        let end = text.iter().position(|&b| b == 0).unwrap_or(size);
        text[..end].to_vec()
    });
    Ok(texts.collect())
}
