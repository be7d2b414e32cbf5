//! Files with many chunked datasets of one shape, written under SWMR: Hangar's collections.

use hdf5::file::LibraryVersion;
use hdf5::plist::FileAccess;

use super::create::truncated;
use super::*;

/// A filter of HDF5 itself.
const DEFLATE: i32 = 1;
const SHUFFLE: i32 = 2;

/// The value of an attribute.
pub(crate) enum AttributeData<'a> {
    /// A text of variable length.
    Text(&'a str),
    /// Values of a type: one of them, or a 1-D array.
    Values(&'a Id, Option<u64>, &'a [u8]),
}

/// Makes the file at `path` anew and leaves it open. Its format is that of HDF5 1.10, which Hangar's can read.
pub(crate) fn create_collection(path: &[u8]) -> Result<Id> {
    let version = LibraryVersion::V110;
    // Nobody else writes it; readers come with SWMR.
    let access = FileAccess::build()
        .libver_bounds(version, version)
        .file_locking(false)
        .finish()?;
    truncated(path, &access)
}

/// The properties of chunked datasets with filters, each by its number and parameters.
pub(crate) fn chunked(chunk: &[u64], filters: &[FilterSpec]) -> Result<Id> {
    let rank = c_int::try_from(chunk.len()).map_err(|_| Failure("rank".into()))?;
    // SAFETY: plain calls; the chunk has as many dimensions as its rank, and parameters are as many as is said.
    unsafe {
        let plist = id(h5p::H5Pcreate(*h5p::H5P_CLS_DATASET_CREATE), "H5Pcreate")?;
        done(
            h5p::H5Pset_chunk(plist.0, rank, chunk.as_ptr()),
            "H5Pset_chunk",
        )?;
        done(
            h5p::H5Pset_obj_track_times(plist.0, 0),
            "H5Pset_obj_track_times",
        )?;
        for (filter, values) in filters {
            let status = match (*filter, values.first()) {
                (SHUFFLE, _) => h5p::H5Pset_shuffle(plist.0),
                (DEFLATE, Some(&level)) => h5p::H5Pset_deflate(plist.0, level),
                _ => h5p::H5Pset_filter(
                    plist.0,
                    *filter,
                    hdf5_sys::h5z::H5Z_FLAG_OPTIONAL,
                    values.len(),
                    values.as_ptr(),
                ),
            };
            done(status, "H5Pset_filter")?;
        }
        Ok(plist)
    }
}

/// Makes a dataset of the root group.
pub(crate) fn add_dataset(file: &Id, name: &str, ty: &Id, shape: &[u64], plist: &Id) -> Result<()> {
    let name = cstring(name.as_bytes())?;
    // SAFETY: plain calls; the name is a live C string.
    unsafe {
        let space = simple(Some(shape))?;
        id(
            h5d::H5Dcreate2(
                file.0,
                name.as_ptr(),
                ty.0,
                space.0,
                h5p::H5P_DEFAULT,
                plist.0,
                h5p::H5P_DEFAULT,
            ),
            "H5Dcreate2",
        )?;
    }
    Ok(())
}

/// A dataspace of these dimensions; a scalar one without.
fn simple(shape: Option<&[u64]>) -> Result<Id> {
    // SAFETY: the dimensions are as many as the rank.
    unsafe {
        match shape {
            None => id(h5s::H5Screate(h5s::H5S_class_t::H5S_SCALAR), "H5Screate"),
            Some(shape) => {
                let rank = c_int::try_from(shape.len()).map_err(|_| Failure("rank".into()))?;
                id(
                    h5s::H5Screate_simple(rank, shape.as_ptr(), ptr::null()),
                    "H5Screate_simple",
                )
            }
        }
    }
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
            let dims = len.map(|n| [n]);
            let space = simple(dims.as_ref().map(|dims| &dims[..]))?;
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

/// From here on others may read the file while it grows; no object may be open.
pub(crate) fn start_swmr(file: &Id) -> Result<()> {
    // SAFETY: plain call.
    done(unsafe { h5f::H5Fstart_swmr_write(file.0) }, "H5Fstart_swmr")
}

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
    let elements = shape
        .iter()
        .try_fold(1_usize, |n, &d| n.checked_mul(usize::try_from(d).ok()?));
    if elements.and_then(|n| n.checked_mul(size(mem_type))) != Some(bytes.len()) {
        return Err(Failure("block of another size".into()));
    }
    let space = dataset_space(dataset)?;
    let rank = extent(&space)?.map_or(0, |(dims, _)| dims.len());
    if rank != shape.len() || rank != start.len() {
        return Err(Failure("block of another rank".into()));
    }
    let memory = simple(Some(shape))?;
    // SAFETY: the selection has as many dimensions as the dataset, and the buffer the block's bytes: both are
    // checked above.
    unsafe {
        done(
            h5s::H5Sselect_hyperslab(
                space.0,
                h5s::H5S_seloper_t::H5S_SELECT_SET,
                start.as_ptr(),
                ptr::null(),
                shape.as_ptr(),
                ptr::null(),
            ),
            "H5Sselect_hyperslab",
        )?;
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
    // SAFETY: plain call.
    done(
        unsafe { h5f::H5Fflush(file.0, h5f::H5F_scope_t::H5F_SCOPE_GLOBAL) },
        "H5Fflush",
    )
}
