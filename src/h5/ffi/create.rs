//! New files: the only calls that write. They make a dataset with room for its elements, and no more.

use super::*;

/// The data of a dataset begins at a multiple of this many bytes, the size of a page.
const ALIGNMENT: u64 = 4096;

/// A fixed-width string of bytes, padded with NUL, in ASCII: what h5py makes of `|S<size>`.
pub fn bytes_type(size: usize) -> Result<Id> {
    let ty = null_padded(&copy_of_c_string()?)?;
    // SAFETY: plain call on a type of our own.
    done(unsafe { h5t::H5Tset_size(ty.0, size) }, "H5Tset_size")?;
    Ok(ty)
}

fn copy_of_c_string() -> Result<Id> {
    // SAFETY: plain call on a library type.
    id(unsafe { h5t::H5Tcopy(*h5t::H5T_C_S1) }, "H5Tcopy")
}

/// Raw bytes with a tag.
pub fn opaque_type(size: usize, tag: &str) -> Result<Id> {
    let tag = cstring(tag.as_bytes())?;
    // SAFETY: plain calls; the tag is a live C string.
    unsafe {
        let ty = id(
            h5t::H5Tcreate(h5t::H5T_class_t::H5T_OPAQUE, size),
            "H5Tcreate",
        )?;
        done(h5t::H5Tset_tag(ty.0, tag.as_ptr()), "H5Tset_tag")?;
        Ok(ty)
    }
}

/// Makes the file at `path` anew, with one dataset at `name`; groups on the way are made as well.
///
/// The dataset is contiguous, its room is part of the file, and nothing is written there. Answers the address of
/// its data; 0 if it has no elements.
pub fn create_dataset(path: &[u8], name: &[u8], ty: &Id, shape: &[u64]) -> Result<u64> {
    let (path, name) = (cstring(path)?, cstring(name)?);
    let rank = c_int::try_from(shape.len()).map_err(|_| Failure("rank".into()))?;
    // SAFETY: plain calls on identifiers made here; names are live C strings, and the dimensions are as
    // many as the rank.
    unsafe {
        let access = id(h5p::H5Pcreate(*h5p::H5P_CLS_FILE_ACCESS), "H5Pcreate")?;
        done(
            h5p::H5Pset_alignment(access.0, ALIGNMENT, ALIGNMENT),
            "H5Pset_alignment",
        )?;
        // The layer has a lock of its own.
        done(
            h5p::H5Pset_file_locking(access.0, 0, 1),
            "H5Pset_file_locking",
        )?;
        let file = id(
            h5f::H5Fcreate(
                path.as_ptr(),
                h5f::H5F_ACC_TRUNC,
                h5p::H5P_DEFAULT,
                access.0,
            ),
            "H5Fcreate",
        )?;
        let space = if shape.is_empty() {
            id(h5s::H5Screate(h5s::H5S_class_t::H5S_SCALAR), "H5Screate")?
        } else {
            id(
                h5s::H5Screate_simple(rank, shape.as_ptr(), ptr::null()),
                "H5Screate_simple",
            )?
        };
        let links = id(h5p::H5Pcreate(*h5p::H5P_CLS_LINK_CREATE), "H5Pcreate")?;
        done(
            h5p::H5Pset_create_intermediate_group(links.0, 1),
            "H5Pset_create_intermediate_group",
        )?;
        done(
            h5p::H5Pset_char_encoding(links.0, h5t::H5T_cset_t::H5T_CSET_UTF8),
            "H5Pset_char_encoding",
        )?;
        let plist = id(h5p::H5Pcreate(*h5p::H5P_CLS_DATASET_CREATE), "H5Pcreate")?;
        done(
            h5p::H5Pset_layout(plist.0, h5d::H5D_layout_t::H5D_CONTIGUOUS),
            "H5Pset_layout",
        )?;
        done(
            h5p::H5Pset_alloc_time(plist.0, h5d::H5D_alloc_time_t::H5D_ALLOC_TIME_EARLY),
            "H5Pset_alloc_time",
        )?;
        done(
            h5p::H5Pset_fill_time(plist.0, h5d::H5D_fill_time_t::H5D_FILL_TIME_NEVER),
            "H5Pset_fill_time",
        )?;
        let dataset = id(
            h5d::H5Dcreate2(
                file.0,
                name.as_ptr(),
                ty.0,
                space.0,
                links.0,
                plist.0,
                h5p::H5P_DEFAULT,
            ),
            "H5Dcreate2",
        )?;
        let addr = if shape.contains(&0) {
            0
        } else {
            contiguous_addr(&dataset).ok_or_else(|| Failure("the data has no room".into()))?
        };
        done(
            h5f::H5Fflush(file.0, h5f::H5F_scope_t::H5F_SCOPE_GLOBAL),
            "H5Fflush",
        )?;
        drop((dataset, space, links, plist));
        // Closing would say nothing if it failed: the file must be complete before.
        done(h5f::H5Fclose(into_raw(file)), "H5Fclose")?;
        Ok(addr)
    }
}

fn into_raw(id: Id) -> hid_t {
    let raw = id.0;
    std::mem::forget(id);
    raw
}
