//! Dataspaces: the shape of a dataset, an attribute or a buffer, and blocks of it.

use super::*;

/// Makes a dataspace of this shape; a scalar one if the shape is empty.
pub(super) fn simple(shape: &[u64]) -> Result<Id> {
    let rank = c_int::try_from(shape.len()).map_err(|_| Failure("rank".into()))?;
    // SAFETY: the dimensions are as many as the rank.
    unsafe {
        if shape.is_empty() {
            return id(h5s::H5Screate(h5s::H5S_class_t::H5S_SCALAR), "H5Screate");
        }
        id(
            h5s::H5Screate_simple(rank, shape.as_ptr(), ptr::null()),
            "H5Screate_simple",
        )
    }
}

/// Selects the block of a dataspace at `start` with `shape`; both have its rank, which is not 0.
pub(super) fn select_block(space: &Id, start: &[u64], shape: &[u64]) -> Result<()> {
    let rank = extent(space)?.map_or(0, |(dims, _)| dims.len());
    if rank == 0 || rank != shape.len() || rank != start.len() {
        return Err(Failure("block of another rank".into()));
    }
    // SAFETY: start and shape have the rank of the dataspace, checked above.
    done(
        unsafe {
            h5s::H5Sselect_hyperslab(
                space.0,
                h5s::H5S_seloper_t::H5S_SELECT_SET,
                start.as_ptr(),
                ptr::null(),
                shape.as_ptr(),
                ptr::null(),
            )
        },
        "H5Sselect_hyperslab",
    )
}

/// Returns the current shape and the maximum one (`u64::MAX`: unlimited); `None` for a null dataspace.
pub(crate) fn extent(space: &Id) -> Result<Option<(Vec<u64>, Vec<u64>)>> {
    // SAFETY: the buffers have the rank that libhdf5 itself reports.
    unsafe {
        match h5s::H5Sget_simple_extent_type(space.0) {
            h5s::H5S_class_t::H5S_NULL => return Ok(None),
            h5s::H5S_class_t::H5S_NO_CLASS => return Err(failure("H5Sget_simple_extent_type")),
            _ => {}
        }
        let rank = count(
            h5s::H5Sget_simple_extent_ndims(space.0),
            "H5Sget_simple_extent_ndims",
        )?;
        let (mut dims, mut max) = (vec![0; rank], vec![0; rank]);
        done(
            h5s::H5Sget_simple_extent_dims(space.0, dims.as_mut_ptr(), max.as_mut_ptr()),
            "H5Sget_simple_extent_dims",
        )?;
        Ok(Some((dims, max)))
    }
}

/// Returns the bytes of an array of this shape, with elements of `element` bytes; `None` if they are too many.
pub(super) fn byte_len(shape: &[u64], element: usize) -> Option<usize> {
    let times = |n: usize, &d: &u64| n.checked_mul(usize::try_from(d).ok()?);
    shape.iter().try_fold(element, times)
}
