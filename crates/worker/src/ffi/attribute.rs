//! Attributes of objects.

use super::dataset::take_strings;
use super::*;

/// Opens every attribute in order of name.
pub(crate) fn attributes(object: &Id) -> Result<Vec<(Vec<u8>, Id)>> {
    // SAFETY: the object is open as long as it is borrowed; `sized` passes buffers of the length that it names.
    unsafe {
        let n = header(object, h5o::H5O_INFO_NUM_ATTRS)?.num_attrs;
        (0..n)
            .map(|i| {
                let attr = id(
                    h5a::H5Aopen_by_idx(
                        object.0,
                        c".".as_ptr(),
                        H5_index_t::H5_INDEX_NAME,
                        H5_iter_order_t::H5_ITER_INC,
                        i,
                        h5p::H5P_DEFAULT,
                        h5p::H5P_DEFAULT,
                    ),
                    "H5Aopen_by_idx",
                )?;
                let name = sized("H5Aget_name", |buf, len| h5a::H5Aget_name(attr.0, len, buf))?;
                Ok((name, attr))
            })
            .collect()
    }
}

/// Opens an attribute by its name; `None` if there is none.
pub(crate) fn attribute(object: &Id, name: &[u8]) -> Result<Option<Id>> {
    if !has_attribute(object, name)? {
        return Ok(None);
    }
    let name = cstring(name)?;
    // SAFETY: the identifiers are open as long as they are borrowed, and the name is a C string that outlives the
    // call.
    let raw = unsafe { h5a::H5Aopen(object.0, name.as_ptr(), h5p::H5P_DEFAULT) };
    id(raw, "H5Aopen").map(Some)
}

/// Returns the datatype of an attribute.
pub(crate) fn attribute_type(attr: &Id) -> Result<Id> {
    // SAFETY: the identifier is open as long as it is borrowed, and no pointer is passed.
    id(unsafe { h5a::H5Aget_type(attr.0) }, "H5Aget_type")
}

/// Returns the dataspace of an attribute.
pub(crate) fn attribute_space(attr: &Id) -> Result<Id> {
    // SAFETY: the identifier is open as long as it is borrowed, and no pointer is passed.
    id(unsafe { h5a::H5Aget_space(attr.0) }, "H5Aget_space")
}

/// Reads a whole attribute of `elements` elements; the caller has bounded their number.
pub(crate) fn read_attribute(attr: &Id, mem_type: &Id, elements: usize) -> Result<Vec<u8>> {
    // SAFETY: the buffer has the dataspace's elements times the memory type's size.
    unsafe {
        let size = h5t::H5Tget_size(mem_type.0);
        let len = elements
            .checked_mul(size)
            .ok_or_else(|| Failure("attribute too large".into()))?;
        let mut buf = vec![0_u8; len];
        if len > 0 {
            done(
                h5a::H5Aread(attr.0, mem_type.0, buf.as_mut_ptr().cast()),
                "H5Aread",
            )?;
        }
        Ok(buf)
    }
}

/// Reads a whole attribute of variable-length strings.
pub(crate) fn read_attribute_strings(
    attr: &Id,
    mem_type: &Id,
    elements: usize,
) -> Result<Vec<Vec<u8>>> {
    let buf = read_attribute(attr, mem_type, elements)?;
    // SAFETY: `H5Aread` filled the buffer with one pointer per element.
    unsafe { take_strings(buf, mem_type) }
}
