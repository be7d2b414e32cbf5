//! Collections: files with many chunked datasets of one shape, written under SWMR.

use hdf5::file::LibraryVersion;
use hdf5::plist::FileAccess;

use super::create::{dataset_in, truncated};
use super::space::{byte_len, select_block, simple};
use super::*;
use npyfs_hdf5::protocol::FilterSpec;

/// The value of an attribute.
pub(crate) enum AttributeData<'a> {
    /// A text of variable length.
    Text(&'a str),
    /// Values of a type: one of them, or a 1-D array.
    Values(&'a Id, Option<u64>, &'a [u8]),
}

/// Makes the file at `path` anew and leaves it open. Its format is that of HDF5 1.10, for programs with an older
/// library.
pub(crate) fn create_collection(path: &[u8]) -> Result<Id> {
    let version = LibraryVersion::V110;
    // Nobody else writes it; readers come with SWMR.
    let access = FileAccess::build()
        .libver_bounds(version, version)
        .file_locking(false)
        .finish()?;
    truncated(path, &access)
}

/// Makes chunked datasets of one shape in the root group, with the numbers from 0 on as names.
pub(crate) fn add_datasets(
    file: &Id,
    datasets: u32,
    ty: &Id,
    shape: &[u64],
    (chunk, filters): (&[u64], &[FilterSpec]),
) -> Result<()> {
    let plist = chunked(chunk, filters)?;
    // SAFETY: the property list is made here and open until it is dropped, and no pointer is passed.
    done(
        unsafe { h5p::H5Pset_obj_track_times(plist.0, 0) },
        "H5Pset_obj_track_times",
    )?;
    let space = simple(shape)?;
    for number in 0..datasets {
        let name = number.to_string();
        let properties = (&space, h5p::H5P_DEFAULT, plist.0);
        dataset_in(file, name.as_bytes(), ty, properties)?;
    }
    Ok(())
}

/// Sets an attribute of the root group; one that is there keeps its type and shape.
pub(crate) fn set_attribute(file: &Id, name: &str, data: &AttributeData<'_>) -> Result<()> {
    let name = cstring(name.as_bytes())?;
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
    // SAFETY: the buffer holds what type and dataspace say, checked above; a text is a pointer to a live C string.
    unsafe {
        let root = id(
            h5o::H5Oopen(file.0, c"/".as_ptr(), h5p::H5P_DEFAULT),
            "H5Oopen",
        )?;
        let there = h5a::H5Aexists(root.0, name.as_ptr());
        let attribute = if there > 0 {
            id(
                h5a::H5Aopen(root.0, name.as_ptr(), h5p::H5P_DEFAULT),
                "H5Aopen",
            )?
        } else {
            let space = simple(len.as_slice())?;
            id(
                h5a::H5Acreate2(
                    root.0,
                    name.as_ptr(),
                    ty.0,
                    space.0,
                    h5p::H5P_DEFAULT,
                    h5p::H5P_DEFAULT,
                ),
                "H5Acreate2",
            )?
        };
        if len != Some(0) {
            done(h5a::H5Awrite(attribute.0, ty.0, bytes), "H5Awrite")?;
        }
    }
    Ok(())
}

/// Lets others read the file while it grows, from now on; no object may be open.
pub(crate) fn start_swmr(file: &Id) -> Result<()> {
    // SAFETY: the identifier is open as long as it is borrowed, and no pointer is passed.
    done(unsafe { h5f::H5Fstart_swmr_write(file.0) }, "H5Fstart_swmr")
}

/// Opens a dataset of the root group by its name.
pub(crate) fn open_dataset(file: &Id, name: &str) -> Result<Id> {
    let name = cstring(name.as_bytes())?;
    // SAFETY: the name is a live C string.
    let dataset = unsafe { h5d::H5Dopen2(file.0, name.as_ptr(), h5p::H5P_DEFAULT) };
    id(dataset, "H5Dopen2")
}

/// Writes a block at `start` with `shape`, elements as they are stored, in C order.
pub(crate) fn write_block(
    dataset: &Id,
    mem_type: &Id,
    start: &[u64],
    shape: &[u64],
    bytes: &[u8],
) -> Result<()> {
    if byte_len(shape, size(mem_type)) != Some(bytes.len()) {
        return Err(Failure("block of another size".into()));
    }
    let (space, memory) = (dataset_space(dataset)?, simple(shape)?);
    select_block(&space, start, shape)?;
    // SAFETY: selection and memory dataspace have as many elements as the buffer, in the memory type.
    unsafe {
        done(
            h5d::H5Dwrite(
                dataset.0,
                mem_type.0,
                memory.0,
                space.0,
                h5p::H5P_DEFAULT,
                bytes.as_ptr().cast(),
            ),
            "H5Dwrite",
        )
    }
}

/// Writes what is in memory; readers see it from here on.
pub(crate) fn flush(file: &Id) -> Result<()> {
    // SAFETY: the identifier is open as long as it is borrowed, and no pointer is passed.
    done(
        unsafe { h5f::H5Fflush(file.0, h5f::H5F_scope_t::H5F_SCOPE_GLOBAL) },
        "H5Fflush",
    )
}
