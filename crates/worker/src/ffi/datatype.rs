//! Datatypes as they are stored, and types to read into memory with or to store; `types.rs` says what they mean.

use hdf5::types::TypeDescriptor;

use super::*;

pub(crate) use h5t::H5T_class_t as Class;
pub(crate) use h5t::H5T_order_t as ByteOrder;

/// Returns the class of a type.
pub(crate) fn class(ty: &Id) -> Class {
    // SAFETY: the type is open as long as it is borrowed. Unknown classes come back as H5T_NO_CLASS.
    unsafe { h5t::H5Tget_class(ty.0) }
}

/// Returns whether elements are, or hold at any depth, references. A type that cannot be looked into holds none.
pub(crate) fn has_references(ty: &Id) -> bool {
    // SAFETY: the identifier is open as long as it is borrowed, and no pointer is passed.
    unsafe { h5t::H5Tdetect_class(ty.0, Class::H5T_REFERENCE) > 0 }
}

/// Returns the type of references to objects: an address in the file.
pub(crate) fn object_reference_type() -> Result<Id> {
    copy(*h5t::H5T_STD_REF_OBJ)
}

/// Returns whether a type is that of references to regions of datasets.
pub(crate) fn is_region_reference(ty: &Id) -> bool {
    // SAFETY: the identifier is open as long as it is borrowed, and no pointer is passed.
    unsafe { h5t::H5Tequal(ty.0, *h5t::H5T_STD_REF_DSETREG) > 0 }
}

/// Returns the bytes of an element of a type; 0 if libhdf5 cannot say.
pub(crate) fn size(ty: &Id) -> usize {
    // SAFETY: the identifier is open as long as it is borrowed, and no pointer is passed.
    unsafe { h5t::H5Tget_size(ty.0) }
}

/// Returns the byte order of a type.
pub(crate) fn order(ty: &Id) -> ByteOrder {
    // SAFETY: the identifier is open as long as it is borrowed, and no pointer is passed.
    unsafe { h5t::H5Tget_order(ty.0) }
}

/// Returns whether an integer type is signed.
pub(crate) fn signed(ty: &Id) -> bool {
    // SAFETY: the identifier is open as long as it is borrowed, and no pointer is passed.
    unsafe { h5t::H5Tget_sign(ty.0) == h5t::H5T_sign_t::H5T_SGN_2 }
}

/// Returns the sizes of exponent and mantissa of a float, in bits.
pub(crate) fn float_fields(ty: &Id) -> Result<(usize, usize)> {
    let mut f = [0_usize; 5];
    let [spos, epos, esize, mpos, msize] = &mut f;
    // SAFETY: five live integers.
    done(
        unsafe { h5t::H5Tget_fields(ty.0, spos, epos, esize, mpos, msize) },
        "H5Tget_fields",
    )?;
    Ok((f[2], f[4]))
}

/// Returns the base type of an array, enum, complex or variable-length type.
pub(crate) fn super_type(ty: &Id) -> Result<Id> {
    // SAFETY: the identifier is open as long as it is borrowed, and no pointer is passed.
    id(unsafe { h5t::H5Tget_super(ty.0) }, "H5Tget_super")
}

/// Returns whether two types are equal to libhdf5.
pub(crate) fn equal(a: &Id, b: &Id) -> bool {
    // SAFETY: the identifier is open as long as it is borrowed, and no pointer is passed.
    unsafe { h5t::H5Tequal(a.0, b.0) > 0 }
}

/// Returns whether a type is a string of variable length.
pub(crate) fn is_variable_string(ty: &Id) -> bool {
    // SAFETY: the identifier is open as long as it is borrowed, and no pointer is passed.
    unsafe { h5t::H5Tis_variable_str(ty.0) > 0 }
}

/// Returns whether a string type is declared UTF-8.
pub(crate) fn is_utf8(ty: &Id) -> bool {
    // SAFETY: the identifier is open as long as it is borrowed, and no pointer is passed.
    unsafe { h5t::H5Tget_cset(ty.0) == h5t::H5T_cset_t::H5T_CSET_UTF8 }
}

/// Returns whether a string type of fixed size is padded with NUL.
pub(crate) fn is_null_padded(ty: &Id) -> bool {
    // SAFETY: the identifier is open as long as it is borrowed, and no pointer is passed.
    unsafe { h5t::H5Tget_strpad(ty.0) == h5t::H5T_str_t::H5T_STR_NULLPAD }
}

/// Returns the tag of an opaque type.
pub(crate) fn tag(ty: &Id) -> String {
    // SAFETY: libhdf5 hands out a C string of its own memory, which is copied and given back.
    unsafe {
        let raw = h5t::H5Tget_tag(ty.0);
        if raw.is_null() {
            return String::new();
        }
        let text = CStr::from_ptr(raw).to_string_lossy().into_owned();
        hdf5_sys::h5::H5free_memory(raw.cast());
        text
    }
}

/// Returns the dimensions of an array type.
pub(crate) fn array_dims(ty: &Id) -> Result<Vec<u64>> {
    // SAFETY: the buffer has the rank that libhdf5 reports.
    unsafe {
        let rank = count(h5t::H5Tget_array_ndims(ty.0), "H5Tget_array_ndims")?;
        let mut dims = vec![0_u64; rank];
        if h5t::H5Tget_array_dims2(ty.0, dims.as_mut_ptr()) < 0 {
            return Err(failure("H5Tget_array_dims2"));
        }
        Ok(dims)
    }
}

/// Returns name, offset and type of each member of a compound type.
pub(crate) fn members(ty: &Id) -> Result<Vec<(Vec<u8>, usize, Id)>> {
    // SAFETY: the type is open as long as it is borrowed, and the indices are below the count that libhdf5 reports.
    unsafe {
        let n = h5t::H5Tget_nmembers(ty.0);
        let n = c_uint::try_from(n).map_err(|_| failure("H5Tget_nmembers"))?;
        (0..n)
            .map(|i| {
                Ok((
                    member_name(ty, i)?,
                    h5t::H5Tget_member_offset(ty.0, i),
                    id(h5t::H5Tget_member_type(ty.0, i), "H5Tget_member_type")?,
                ))
            })
            .collect()
    }
}

fn member_name(ty: &Id, i: c_uint) -> Result<Vec<u8>> {
    // SAFETY: as in `tag`.
    unsafe {
        let raw = h5t::H5Tget_member_name(ty.0, i);
        if raw.is_null() {
            return Err(failure("H5Tget_member_name"));
        }
        let name = CStr::from_ptr(raw).to_bytes().to_vec();
        hdf5_sys::h5::H5free_memory(raw.cast());
        Ok(name)
    }
}

/// Returns whether an enum is h5py's boolean: exactly FALSE = 0 and TRUE = 1.
pub(crate) fn is_bool_enum(ty: &Id) -> bool {
    let size = size(ty);
    // SAFETY: the value buffer is as large as the type; larger types are not looked at.
    unsafe {
        if h5t::H5Tget_nmembers(ty.0) != 2 || size > 8 {
            return false;
        }
        (0..2).all(|i| {
            let mut value = [0_u8; 8];
            let Ok(name) = member_name(ty, i) else {
                return false;
            };
            if h5t::H5Tget_member_value(ty.0, i, value.as_mut_ptr().cast()) < 0 {
                return false;
            }
            let one = value.iter().map(|&b| u32::from(b)).sum::<u32>();
            matches!((name.as_slice(), one), (b"FALSE", 0) | (b"TRUE", 1))
        })
    }
}

/// Copies a type by its identifier.
fn copy(ty: hid_t) -> Result<Id> {
    // SAFETY: the type is one of the library's own, which are never closed.
    id(unsafe { h5t::H5Tcopy(ty) }, "H5Tcopy")
}

/// Returns a standard integer of 1, 2, 4 or 8 bytes.
pub(crate) fn int_type(size: usize, signed: bool, big: bool) -> Result<Id> {
    copy(match (size, signed, big) {
        (1, true, _) => *h5t::H5T_STD_I8LE,
        (1, false, _) => *h5t::H5T_STD_U8LE,
        (2, true, false) => *h5t::H5T_STD_I16LE,
        (2, true, true) => *h5t::H5T_STD_I16BE,
        (2, false, false) => *h5t::H5T_STD_U16LE,
        (2, false, true) => *h5t::H5T_STD_U16BE,
        (4, true, false) => *h5t::H5T_STD_I32LE,
        (4, true, true) => *h5t::H5T_STD_I32BE,
        (4, false, false) => *h5t::H5T_STD_U32LE,
        (4, false, true) => *h5t::H5T_STD_U32BE,
        (8, true, false) => *h5t::H5T_STD_I64LE,
        (8, true, true) => *h5t::H5T_STD_I64BE,
        (8, false, false) => *h5t::H5T_STD_U64LE,
        (8, false, true) => *h5t::H5T_STD_U64BE,
        _ => return Err(Failure(format!("no integer of {size} bytes"))),
    })
}

/// Returns an IEEE float of 2, 4 or 8 bytes, or the machine's long double (16, little end first).
pub(crate) fn float_type(size: usize, big: bool) -> Result<Id> {
    copy(match (size, big) {
        (2, _) => return half_type(big),
        (4, false) => *h5t::H5T_IEEE_F32LE,
        (4, true) => *h5t::H5T_IEEE_F32BE,
        (8, false) => *h5t::H5T_IEEE_F64LE,
        (8, true) => *h5t::H5T_IEEE_F64BE,
        (16, false) => *h5t::H5T_NATIVE_LDOUBLE,
        _ => return Err(Failure(format!("no float of {size} bytes"))),
    })
}

/// Returns IEEE half precision: 5 bits of exponent, 10 of mantissa. The bindings do not name the library's own.
fn half_type(big: bool) -> Result<Id> {
    let ty = copy(if big {
        *h5t::H5T_IEEE_F32BE
    } else {
        *h5t::H5T_IEEE_F32LE
    })?;
    // SAFETY: the type is made here and open until it is dropped, and no pointer is passed.
    unsafe {
        done(h5t::H5Tset_fields(ty.0, 15, 10, 5, 0, 10), "H5Tset_fields")?;
        done(h5t::H5Tset_size(ty.0, 2), "H5Tset_size")?;
        done(h5t::H5Tset_ebias(ty.0, 15), "H5Tset_ebias")?;
    }
    Ok(ty)
}

/// Creates a type as the `hdf5` crate does.
fn described(descriptor: &TypeDescriptor) -> Result<Id> {
    let ty = hdf5::Datatype::from_descriptor(descriptor)?;
    // The identifier is given up there, and closed here.
    let id = Id(ty.id());
    std::mem::forget(ty);
    Ok(id)
}

/// Returns the type of strings of variable length.
pub(crate) fn variable_string(utf8: bool) -> Result<Id> {
    described(&match utf8 {
        true => TypeDescriptor::VarLenUnicode,
        false => TypeDescriptor::VarLenAscii,
    })
}

/// Returns the type of strings of `size` bytes, padded with NUL: what h5py makes of `|S<size>`, or of its UTF-8 type.
pub(crate) fn bytes_type(size: usize, utf8: bool) -> Result<Id> {
    described(&match utf8 {
        true => TypeDescriptor::FixedUnicode(size),
        false => TypeDescriptor::FixedAscii(size),
    })
}

/// Returns the type of strings of `size` bytes that end with NUL, as C programs write them.
pub(crate) fn c_string_type(size: usize) -> Result<Id> {
    let ty = copy(*h5t::H5T_C_S1)?;
    // SAFETY: the type is made here and open until it is dropped, and no pointer is passed.
    done(unsafe { h5t::H5Tset_size(ty.0, size) }, "H5Tset_size")?;
    Ok(ty)
}

/// Returns an opaque type: raw bytes with a tag.
pub(crate) fn opaque_type(size: usize, tag: &str) -> Result<Id> {
    let tag = cstring(tag.as_bytes())?;
    // SAFETY: the identifiers are open as long as they are borrowed, and the tag is a C string that outlives the
    // call.
    unsafe {
        let ty = id(
            h5t::H5Tcreate(h5t::H5T_class_t::H5T_OPAQUE, size),
            "H5Tcreate",
        )?;
        done(h5t::H5Tset_tag(ty.0, tag.as_ptr()), "H5Tset_tag")?;
        Ok(ty)
    }
}

/// Returns the bytes that a type takes in a file at most.
pub(crate) fn encoded_len(ty: &Id) -> Result<usize> {
    let mut len = 0;
    // SAFETY: without a buffer the call only says how long it would have to be; the pointer is to a live integer.
    done(
        unsafe { h5t::H5Tencode(ty.0, ptr::null_mut(), &raw mut len) },
        "H5Tencode",
    )?;
    Ok(len)
}

/// Copies a string type; the copy pads with NUL.
pub(crate) fn null_padded(ty: &Id) -> Result<Id> {
    let ty = copy(ty.0)?;
    // SAFETY: the type is made here and open until it is dropped, and no pointer is passed.
    unsafe {
        done(
            h5t::H5Tset_strpad(ty.0, h5t::H5T_str_t::H5T_STR_NULLPAD),
            "H5Tset_strpad",
        )?;
    }
    Ok(ty)
}

/// Copies a type.
pub(crate) fn copy_type(ty: &Id) -> Result<Id> {
    copy(ty.0)
}

/// Returns h5py's boolean of one byte.
pub(crate) fn bool_type() -> Result<Id> {
    described(&TypeDescriptor::Boolean)
}

/// Returns a compound of `size` bytes with these members: name, offset, type.
pub(crate) fn compound_type(size: usize, members: &[(Vec<u8>, usize, Id)]) -> Result<Id> {
    // SAFETY: the identifiers are open as long as they are borrowed, and the strings outlive the call.
    unsafe {
        let ty = id(
            h5t::H5Tcreate(h5t::H5T_class_t::H5T_COMPOUND, size),
            "H5Tcreate",
        )?;
        for (name, offset, member) in members {
            let name = cstring(name)?;
            done(
                h5t::H5Tinsert(ty.0, name.as_ptr(), *offset, member.0),
                "H5Tinsert",
            )?;
        }
        Ok(ty)
    }
}

/// Makes an array type.
pub(crate) fn array_type(base: &Id, dims: &[u64]) -> Result<Id> {
    let rank = c_uint::try_from(dims.len()).map_err(|_| Failure("rank".into()))?;
    // SAFETY: the dimensions are as many as the rank.
    id(
        unsafe { h5t::H5Tarray_create2(base.0, rank, dims.as_ptr()) },
        "H5Tarray_create2",
    )
}
