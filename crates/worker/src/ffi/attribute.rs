//! Attributes of objects: read, made, copied and removed.
//!
//! The caller bounds what is read into memory; a copy is bounded here.

use hdf5::plist::{AttributeCreate, CharEncoding};

use super::dataset::{byte_len, simple};
use super::object::header;
use super::*;

/// The value of an attribute.
pub(crate) enum AttributeData<'a> {
    /// A text of variable length.
    Text(&'a str),
    /// Values of a type: one of them, or a 1-D array.
    Values(&'a Id, Option<u64>, &'a [u8]),
}

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
    match has_attribute(object, name)? {
        true => opened(object, name).map(Some),
        false => Ok(None),
    }
}

/// Returns whether an object has an attribute.
pub(crate) fn has_attribute(object: &Id, name: &[u8]) -> Result<bool> {
    let name = cstring(name)?;
    // SAFETY: the identifiers are open as long as they are borrowed, and the name is a C string that outlives the
    // call.
    let found = unsafe { h5a::H5Aexists(object.0, name.as_ptr()) };
    done(found, "H5Aexists").map(|()| found > 0)
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

/// Returns the bytes that an attribute takes, in an object header or elsewhere.
pub(crate) fn attribute_bytes(object: &Id, name: &[u8]) -> Result<usize> {
    let attribute = opened(object, name)?;
    // SAFETY: the identifier is open as long as it is borrowed, and no pointer is passed.
    let size = unsafe { h5a::H5Aget_storage_size(attribute.0) };
    usize::try_from(size).map_err(|_| Failure("attribute too large".into()))
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

/// Returns the value of an attribute that is one integer; `None` if there is none, or if it is something else.
pub(crate) fn int_attribute(object: &Id, name: &[u8]) -> Result<Option<i64>> {
    let Some(attribute) = attribute(object, name)? else {
        return Ok(None);
    };
    let ty = attribute_type(&attribute)?;
    let space = attribute_space(&attribute)?;
    let mut value = 0_i64;
    // SAFETY: one element is read into a live integer of the type that is said.
    unsafe {
        let is_one = h5s::H5Sget_simple_extent_npoints(space.0) == 1;
        if class(&ty) != Class::H5T_INTEGER || !is_one {
            return Ok(None);
        }
        done(
            h5a::H5Aread(attribute.0, *h5t::H5T_NATIVE_INT64, (&raw mut value).cast()),
            "H5Aread",
        )?;
    }
    Ok(Some(value))
}

/// Gives an object a scalar attribute of 64 bits, in the place of one of that name.
pub(crate) fn set_int_attribute(object: &Id, name: &[u8], value: i64) -> Result<()> {
    if has_attribute(object, name)? {
        remove_attribute(object, name)?;
    }
    let plain = h5p::H5P_DEFAULT;
    let attribute = created(object, name, *h5t::H5T_STD_I64LE, &simple(&[])?, plain)?;
    let value = (&raw const value).cast();
    // SAFETY: the value is a live integer of the type that is said.
    done(
        unsafe { h5a::H5Awrite(attribute.0, *h5t::H5T_NATIVE_INT64, value) },
        "H5Awrite",
    )
}

/// Gives an object an attribute of fixed-size elements, which are `bytes`.
pub(crate) fn add_attribute(
    object: &Id,
    name: &[u8],
    ty: &Id,
    shape: &[u64],
    bytes: &[u8],
) -> Result<()> {
    if byte_len(shape, size(ty)) != Some(bytes.len()) {
        return Err(Failure("an attribute of another size".into()));
    }
    // SAFETY: the buffer holds as many elements of the type as the dataspace has.
    unsafe { write_attribute(object, name, ty, shape, bytes.as_ptr().cast()) }
}

/// Gives an object an attribute of UTF-8 strings of variable length.
pub(crate) fn add_strings(
    object: &Id,
    name: &[u8],
    shape: &[u64],
    strings: &[String],
) -> Result<()> {
    if byte_len(shape, 1) != Some(strings.len()) {
        return Err(Failure("an attribute of another size".into()));
    }
    let ty = variable_string(true)?;
    let strings = strings.iter().map(|text| cstring(text.as_bytes()));
    let strings = strings.collect::<Result<Vec<_>>>()?;
    let pointers: Vec<*const c_char> = strings.iter().map(|text| text.as_ptr()).collect();
    // SAFETY: one pointer per element, each to a C string that outlives the call.
    unsafe { write_attribute(object, name, &ty, shape, pointers.as_ptr().cast()) }
}

/// Sets an attribute of the root group; one that is there keeps its type and shape.
pub(crate) fn set_attribute(file: &Id, name: &str, data: &AttributeData<'_>) -> Result<()> {
    let text_type;
    let text;
    let pointer;
    let (ty, len, bytes): (&Id, Option<u64>, *const c_void) = match data {
        AttributeData::Text(value) => {
            text_type = variable_string(true)?;
            text = cstring(value.as_bytes())?;
            pointer = text.as_ptr();
            (&text_type, None, (&raw const pointer).cast())
        }
        AttributeData::Values(ty, len, bytes) => {
            let elements = usize::try_from(len.unwrap_or(1)).unwrap_or(usize::MAX);
            if elements.checked_mul(size(ty)) != Some(bytes.len()) {
                return Err(Failure("attribute of another size".into()));
            }
            (ty, *len, bytes.as_ptr().cast())
        }
    };
    let root = open_at(file, &[])?;
    let attribute = match attribute(&root, name.as_bytes())? {
        Some(attribute) => attribute,
        None => created(
            &root,
            name.as_bytes(),
            ty.0,
            &simple(len.as_slice())?,
            h5p::H5P_DEFAULT,
        )?,
    };
    if len != Some(0) {
        // SAFETY: the buffer holds what type and dataspace say, checked above; a text is a pointer to a live C string.
        done(
            unsafe { h5a::H5Awrite(attribute.0, ty.0, bytes) },
            "H5Awrite",
        )?;
    }
    Ok(())
}

/// Copies an attribute from one object to another, in the place of one of that name.
pub(crate) fn copy_attribute(from: &Id, to: &Id, name: &[u8]) -> Result<()> {
    /// Most lie in object headers of 64 KiB. Larger ones are objects that a format keeps as attributes.
    const MAX_BYTES: usize = 64 << 20;
    if has_attribute(to, name)? {
        remove_attribute(to, name)?;
    }
    let source = opened(from, name)?;
    let (ty, space) = (attribute_type(&source)?, attribute_space(&source)?);
    // SAFETY: the identifier is open as long as it is borrowed, and no pointer is passed.
    let elements = unsafe { h5s::H5Sget_simple_extent_npoints(space.0) };
    let size = count(elements, "H5Sget_simple_extent_npoints")?.checked_mul(size(&ty));
    let Some(size) = size.filter(|&size| size <= MAX_BYTES) else {
        return Err(Failure("attribute too large".into()));
    };
    let mut buf = vec![0_u64; size.div_ceil(8)];
    // SAFETY: the buffer has room for the elements of the attribute in the type that both calls name. What libhdf5
    // allocates for text of variable length is not given back: the worker ends soon.
    unsafe {
        if size > 0 {
            done(
                h5a::H5Aread(source.0, ty.0, buf.as_mut_ptr().cast()),
                "H5Aread",
            )?;
        }
        let target = created(to, name, ty.0, &space, h5p::H5P_DEFAULT)?;
        if size > 0 {
            done(
                h5a::H5Awrite(target.0, ty.0, buf.as_ptr().cast()),
                "H5Awrite",
            )?;
        }
    }
    Ok(())
}

/// Takes an attribute away.
pub(crate) fn remove_attribute(object: &Id, name: &[u8]) -> Result<()> {
    let name = cstring(name)?;
    // SAFETY: the identifiers are open as long as they are borrowed, and the name is a C string that outlives the
    // call.
    done(
        unsafe { h5a::H5Adelete(object.0, name.as_ptr()) },
        "H5Adelete",
    )
}

/// Gives an object an attribute.
///
/// # Safety
///
/// `buffer` holds the elements of the dataspace in the type, as `H5Awrite` takes them.
pub(super) unsafe fn write_attribute(
    object: &Id,
    name: &[u8],
    ty: &Id,
    shape: &[u64],
    buffer: *const c_void,
) -> Result<()> {
    let utf8 = AttributeCreate::build()
        .char_encoding(CharEncoding::Utf8)
        .finish()?;
    let attribute = created(object, name, ty.0, &simple(shape)?, utf8.id())?;
    if shape.contains(&0) {
        return Ok(());
    }
    // SAFETY: the attribute is made here and open until it is dropped; the caller vouches for the buffer.
    done(
        unsafe { h5a::H5Awrite(attribute.0, ty.0, buffer) },
        "H5Awrite",
    )
}

fn opened(object: &Id, name: &[u8]) -> Result<Id> {
    let name = cstring(name)?;
    // SAFETY: the identifier is open as long as it is borrowed, and the name is a C string that outlives the call.
    let raw = unsafe { h5a::H5Aopen(object.0, name.as_ptr(), h5p::H5P_DEFAULT) };
    id(raw, "H5Aopen")
}

/// Makes an attribute without a value.
fn created(object: &Id, name: &[u8], ty: hid_t, space: &Id, properties: hid_t) -> Result<Id> {
    let name = cstring(name)?;
    // SAFETY: the identifiers are open as long as they are borrowed, `ty` and `properties` by the caller; the name is a
    // C string that outlives the call.
    id(
        unsafe {
            h5a::H5Acreate2(
                object.0,
                name.as_ptr(),
                ty,
                space.0,
                properties,
                h5p::H5P_DEFAULT,
            )
        },
        "H5Acreate2",
    )
}
