//! Calls that make new files: groups, attributes and datasets with room for their
//! elements; elements themselves are written only as chunks that are encoded already.

use hdf5::dataset::{AllocTime, AttrCreationOrder, DatasetCreateBuilder, FillTime, Layout};
use hdf5::plist::{
    AttributeCreate, CharEncoding, DatasetCreate, FileAccess, FileCreate, LinkCreate,
};
use hdf5::types::TypeDescriptor;

use super::datatype::{copy, described};
use super::space::{byte_len, simple};
use super::*;
use npyfs_hdf5::protocol::FilterSpec;

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

/// Makes the file at `path` anew. What takes `from` bytes or more begins at a multiple of `alignment`.
pub(crate) fn create_file(path: &[u8], from: u64, alignment: u64) -> Result<Id> {
    let access = FileAccess::build()
        .file_locking(false)
        .alignment(from, alignment)
        .finish()?;
    truncated(path, &access)
}

/// Makes the file at `path` anew, empty.
pub(super) fn truncated(path: &[u8], access: &FileAccess) -> Result<Id> {
    truncated_as(path, &FileCreate::build().finish()?, access)
}

/// Makes the file at `path` anew, empty, with properties of its own.
pub(super) fn truncated_as(path: &[u8], creation: &FileCreate, access: &FileAccess) -> Result<Id> {
    let path = cstring(path)?;
    let (flags, creation, access) = (h5f::H5F_ACC_TRUNC, creation.id(), access.id());
    // SAFETY: the property lists are open as long as they are borrowed, and the path is a C string that outlives
    // the call.
    id(
        unsafe { h5f::H5Fcreate(path.as_ptr(), flags, creation, access) },
        "H5Fcreate",
    )
}

/// Opens a file that this program made, to write chunks.
pub(crate) fn open_to_write(path: &[u8]) -> Result<Id> {
    opened_to_write(path, &access_to_write()?)
}

pub(super) fn opened_to_write(path: &[u8], access: &FileAccess) -> Result<Id> {
    let path = cstring(path)?;
    // SAFETY: as above.
    id(
        unsafe { h5f::H5Fopen(path.as_ptr(), h5f::H5F_ACC_RDWR, access.id()) },
        "H5Fopen",
    )
}

/// Returns the properties with which a file is opened that only this process writes: no lock is taken, the layer has
/// one.
pub(super) fn access_to_write() -> Result<FileAccess> {
    Ok(FileAccess::build().file_locking(false).finish()?)
}

/// Closes a file that was written to; it is complete on success.
pub(crate) fn finish(file: Id) -> Result<()> {
    // SAFETY: the identifier is open until the second call, which takes it; no pointer is passed.
    unsafe {
        done(
            h5f::H5Fflush(file.0, h5f::H5F_scope_t::H5F_SCOPE_GLOBAL),
            "H5Fflush",
        )?;
        // Closing would say nothing if it failed: the file must be complete before.
        done(h5f::H5Fclose(into_raw(file)), "H5Fclose")
    }
}

/// Returns the properties of new links: their names are UTF-8, and groups on the way are made as well.
pub(super) fn new_links() -> Result<LinkCreate> {
    let mut links = LinkCreate::build();
    links.create_intermediate_group(true);
    Ok(links.char_encoding(CharEncoding::Utf8).finish()?)
}

/// Opens a group, or makes it if it is not there.
pub(crate) fn require_group(file: &Id, name: &[u8]) -> Result<Id> {
    let name = cstring(name)?;
    let links = new_links()?;
    // SAFETY: the identifiers are open as long as they are borrowed, and the name is a C string that outlives the
    // call.
    unsafe {
        if let Ok(group) = id(
            h5o::H5Oopen(file.0, name.as_ptr(), h5p::H5P_DEFAULT),
            "H5Oopen",
        ) {
            return Ok(group);
        }
        id(
            hdf5_sys::h5g::H5Gcreate2(
                file.0,
                name.as_ptr(),
                links.id(),
                h5p::H5P_DEFAULT,
                h5p::H5P_DEFAULT,
            ),
            "H5Gcreate2",
        )
    }
}

/// Makes a soft link to a path that need not exist.
pub(crate) fn soft_link(file: &Id, name: &[u8], target: &[u8]) -> Result<()> {
    let (name, target) = (cstring(name)?, cstring(target)?);
    let links = new_links()?;
    // SAFETY: the identifiers are open as long as they are borrowed, and the strings outlive the call.
    done(
        unsafe {
            h5l::H5Lcreate_soft(
                target.as_ptr(),
                file.0,
                name.as_ptr(),
                links.id(),
                h5p::H5P_DEFAULT,
            )
        },
        "H5Lcreate_soft",
    )
}

/// Makes a contiguous dataset whose room is part of the file; nothing is written there.
pub(crate) fn contiguous_dataset(file: &Id, name: &[u8], ty: &Id, shape: &[u64]) -> Result<Id> {
    dataset(file, name, ty, shape, contiguous().finish()?.id())
}

/// Makes a contiguous dataset whose attributes may be larger than the 64 KiB that an object header of the first version
/// holds: those of the second version move to a heap. Only objects that track the order of their attributes get one in
/// files that every version of libhdf5 reads.
pub(crate) fn dataset_for_attributes(file: &Id, name: &[u8], ty: &Id, shape: &[u64]) -> Result<Id> {
    let mut plist = contiguous();
    plist.attr_creation_order(AttrCreationOrder::Tracked);
    dataset(file, name, ty, shape, plist.finish()?.id())
}

/// Writes all elements of a small dataset.
pub(crate) fn write_all(dataset: &Id, ty: &Id, shape: &[u64], bytes: &[u8]) -> Result<()> {
    let have = extent(&dataset_space(dataset)?)?.map(|(have, _)| have);
    if have.as_deref() != Some(shape) || byte_len(shape, size(ty)) != Some(bytes.len()) {
        return Err(Failure("data of another size".into()));
    }
    // SAFETY: the buffer holds the elements of the whole dataspace in the type.
    let written = unsafe {
        h5d::H5Dwrite(
            dataset.0,
            ty.0,
            h5s::H5S_ALL,
            h5s::H5S_ALL,
            h5p::H5P_DEFAULT,
            bytes.as_ptr().cast(),
        )
    };
    done(written, "H5Dwrite")
}

/// Returns the properties of contiguous datasets.
fn contiguous() -> DatasetCreateBuilder {
    let mut plist = DatasetCreate::build();
    plist
        .layout(Layout::Contiguous)
        .alloc_time(Some(AllocTime::Early))
        .fill_time(FillTime::Never);
    plist
}

/// Returns the properties of chunked datasets with filters. A filter that fails, or makes a chunk larger, is left out.
pub(crate) fn chunked(chunk: &[u64], filters: &[FilterSpec]) -> Result<Id> {
    // SAFETY: only constants and numbers are passed.
    let plist = id(
        unsafe { h5p::H5Pcreate(*h5p::H5P_CLS_DATASET_CREATE) },
        "H5Pcreate",
    )?;
    set_chunk(&plist, chunk)?;
    for filter in filters {
        add_filter(&plist, filter, h5z::H5Z_FLAG_OPTIONAL)?;
    }
    Ok(plist)
}

/// Sets the shape of chunks.
pub(super) fn set_chunk(plist: &Id, chunk: &[u64]) -> Result<()> {
    let rank = c_int::try_from(chunk.len()).map_err(|_| Failure("rank".into()))?;
    // SAFETY: the chunk has as many dimensions as its rank.
    done(
        unsafe { h5p::H5Pset_chunk(plist.0, rank, chunk.as_ptr()) },
        "H5Pset_chunk",
    )
}

/// Adds a filter to the end of a pipeline.
pub(super) fn add_filter(
    plist: &Id,
    (number, parameters): &FilterSpec,
    flags: c_uint,
) -> Result<()> {
    // SAFETY: parameters are as many as is said.
    done(
        unsafe {
            h5p::H5Pset_filter(
                plist.0,
                *number,
                flags,
                parameters.len(),
                parameters.as_ptr(),
            )
        },
        "H5Pset_filter",
    )
}

/// Makes a dataset without chunks; its filters are declared, not run.
pub(crate) fn chunked_dataset(
    file: &Id,
    name: &[u8],
    ty: &Id,
    shape: &[u64],
    chunk: &[u64],
    filters: &[FilterSpec],
) -> Result<Id> {
    if chunk.len() != shape.len() {
        return Err(Failure("chunks of another rank".into()));
    }
    dataset(file, name, ty, shape, chunked(chunk, filters)?.0)
}

fn dataset(file: &Id, name: &[u8], ty: &Id, shape: &[u64], plist: hid_t) -> Result<Id> {
    dataset_in(file, name, ty, (&simple(shape)?, new_links()?.id(), plist))
}

/// Makes a dataset with a dataspace, properties of its link, and its own properties.
pub(super) fn dataset_in(
    file: &Id,
    name: &[u8],
    ty: &Id,
    (space, links, plist): (&Id, hid_t, hid_t),
) -> Result<Id> {
    let name = cstring(name)?;
    // SAFETY: the identifiers are open as long as they are borrowed, and the name is a C string that outlives the
    // call.
    id(
        unsafe {
            h5d::H5Dcreate2(
                file.0,
                name.as_ptr(),
                ty.0,
                space.0,
                links,
                plist,
                h5p::H5P_DEFAULT,
            )
        },
        "H5Dcreate2",
    )
}

/// Opens an object of a file that this program made.
pub(crate) fn open_by_name(file: &Id, name: &[u8]) -> Result<Id> {
    let name = cstring(name)?;
    // SAFETY: the identifiers are open as long as they are borrowed, and the name is a C string that outlives the
    // call.
    id(
        unsafe { h5o::H5Oopen(file.0, name.as_ptr(), h5p::H5P_DEFAULT) },
        "H5Oopen",
    )
}

/// Writes a chunk that is encoded already; `start` is the place of its first element.
pub(crate) fn write_chunk(dataset: &Id, start: &[u64], mask: u32, bytes: &[u8]) -> Result<()> {
    // SAFETY: the buffer has the length that is passed, and `start` the dataset's rank, which is checked.
    unsafe {
        let space = dataset_space(dataset)?;
        let rank = h5s::H5Sget_simple_extent_ndims(space.0);
        if usize::try_from(rank) != Ok(start.len()) {
            return Err(Failure("a chunk of another rank".into()));
        }
        done(
            h5d::H5Dwrite_chunk(
                dataset.0,
                h5p::H5P_DEFAULT,
                mask,
                start.as_ptr(),
                bytes.len(),
                bytes.as_ptr().cast(),
            ),
            "H5Dwrite_chunk",
        )
    }
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
    let name = cstring(name)?;
    let space = simple(shape)?;
    let utf8 = AttributeCreate::build()
        .char_encoding(CharEncoding::Utf8)
        .finish()?;
    // SAFETY: the identifiers are made here and open until they are dropped; the caller vouches for the buffer.
    unsafe {
        let attribute = id(
            h5a::H5Acreate2(
                object.0,
                name.as_ptr(),
                ty.0,
                space.0,
                utf8.id(),
                h5p::H5P_DEFAULT,
            ),
            "H5Acreate2",
        )?;
        if shape.contains(&0) {
            return Ok(());
        }
        done(h5a::H5Awrite(attribute.0, ty.0, buffer), "H5Awrite")
    }
}

fn into_raw(id: Id) -> hid_t {
    let raw = id.0;
    std::mem::forget(id);
    raw
}
