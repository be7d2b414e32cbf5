//! Creation properties of datasets, old and new: layout, chunks, filters, fill value, files outside.

use hdf5::dataset::{AllocTime, DatasetCreateBuilder, FillTime, Layout};
use hdf5::plist::DatasetCreate;

use super::*;
use npyfs_hdf5::protocol::FilterSpec;

/// The layout of a dataset.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum LayoutKind {
    Compact,
    Contiguous,
    Chunked,
    Virtual,
}

/// Returns the layout of a dataset.
pub(crate) fn layout(plist: &Id) -> Result<LayoutKind> {
    use h5d::H5D_layout_t::*;
    // SAFETY: the identifier is open as long as it is borrowed, and no pointer is passed.
    match unsafe { h5p::H5Pget_layout(plist.0) } {
        H5D_COMPACT => Ok(LayoutKind::Compact),
        H5D_CONTIGUOUS => Ok(LayoutKind::Contiguous),
        H5D_CHUNKED => Ok(LayoutKind::Chunked),
        H5D_VIRTUAL => Ok(LayoutKind::Virtual),
        _ => Err(failure("H5Pget_layout")),
    }
}

/// Returns the shape of chunks; fails unless it has this rank.
pub(crate) fn chunk_shape(plist: &Id, rank: usize) -> Result<Vec<u64>> {
    let mut dims = vec![0_u64; rank];
    let rank = c_int::try_from(rank).map_err(|_| Failure("rank".into()))?;
    // SAFETY: the buffer has `rank` places.
    let got = unsafe { h5p::H5Pget_chunk(plist.0, rank, dims.as_mut_ptr()) };
    if got != rank {
        return Err(failure("H5Pget_chunk"));
    }
    if dims.contains(&0) {
        return Err(Failure("chunks without elements".into()));
    }
    Ok(dims)
}

/// Returns the filters of a pipeline: number, name, parameters.
pub(crate) fn filters(plist: &Id) -> Result<Vec<(i32, String, Vec<u32>)>> {
    const MAX_PARAMETERS: usize = 64;
    // SAFETY: the buffers have the sizes that are passed.
    unsafe {
        let n = count(h5p::H5Pget_nfilters(plist.0), "H5Pget_nfilters")?;
        let mut out = Vec::with_capacity(n);
        for i in 0..n {
            let (mut flags, mut config) = (0, 0);
            let mut len = MAX_PARAMETERS;
            let mut values = [0_u32; MAX_PARAMETERS];
            let mut name = [0_u8; 128];
            let filter = h5p::H5Pget_filter2(
                plist.0,
                c_uint::try_from(i).map_err(|_| Failure("filter".into()))?,
                &raw mut flags,
                &raw mut len,
                values.as_mut_ptr(),
                name.len() - 1,
                name.as_mut_ptr().cast(),
                &raw mut config,
            );
            if filter < 0 {
                return Err(failure("H5Pget_filter2"));
            }
            let end = name.iter().position(|&b| b == 0).unwrap_or(0);
            out.push((
                filter,
                String::from_utf8_lossy(&name[..end]).into_owned(),
                values[..len.min(MAX_PARAMETERS)].to_vec(),
            ));
        }
        Ok(out)
    }
}

/// Returns whether libhdf5 has a filter, to decode with.
pub(crate) fn filter_available(filter: i32) -> bool {
    // SAFETY: only constants and numbers are passed.
    unsafe { hdf5_sys::h5z::H5Zfilter_avail(filter) > 0 }
}

/// Returns the fill value in `mem_type`; zeros when the file defines none.
pub(crate) fn fill_value(plist: &Id, mem_type: &Id, size: usize) -> Result<Vec<u8>> {
    let mut value = vec![0_u8; size];
    let status = fill_status(plist)?;
    // SAFETY: the buffer has the size of the type, which is checked.
    unsafe {
        if status != h5d::H5D_fill_value_t::H5D_FILL_VALUE_UNDEFINED {
            if h5t::H5Tget_size(mem_type.0) != size {
                return Err(Failure("fill value of another size".into()));
            }
            done(
                h5p::H5Pget_fill_value(plist.0, mem_type.0, value.as_mut_ptr().cast()),
                "H5Pget_fill_value",
            )?;
        }
    }
    Ok(value)
}

/// Returns whether the program that made the dataset set a fill value.
pub(crate) fn fill_is_set(plist: &Id) -> Result<bool> {
    Ok(fill_status(plist)? == h5d::H5D_fill_value_t::H5D_FILL_VALUE_USER_DEFINED)
}

fn fill_status(plist: &Id) -> Result<h5d::H5D_fill_value_t> {
    let mut status = h5d::H5D_fill_value_t::H5D_FILL_VALUE_UNDEFINED;
    // SAFETY: the identifier is open, and the status is written to a place of its own.
    unsafe {
        done(
            h5p::H5Pfill_value_defined(plist.0, &raw mut status),
            "H5Pfill_value_defined",
        )?;
    }
    Ok(status)
}

/// Returns the external raw files: name, offset, length (`u64::MAX`: to the end of the file).
pub(crate) fn external_files(plist: &Id) -> Result<Vec<(Vec<u8>, i64, u64)>> {
    // SAFETY: the buffers have the sizes that are passed; the name is terminated below in any case.
    unsafe {
        let n = count(h5p::H5Pget_external_count(plist.0), "H5Pget_external_count")?;
        let mut out = Vec::with_capacity(n.min(1024));
        for i in 0..n {
            let mut name = vec![0_u8; 4097];
            let (mut offset, mut size) = (0, 0);
            done(
                h5p::H5Pget_external(
                    plist.0,
                    c_uint::try_from(i).map_err(|_| Failure("external".into()))?,
                    name.len() - 1,
                    name.as_mut_ptr().cast(),
                    &raw mut offset,
                    &raw mut size,
                ),
                "H5Pget_external",
            )?;
            let end = name.iter().position(|&b| b == 0).unwrap_or(0);
            name.truncate(end);
            out.push((name, offset, size));
        }
        Ok(out)
    }
}

/// Returns the sources of a virtual dataset: names of file and dataset.
pub(crate) fn virtual_sources(plist: &Id) -> Result<Vec<(Vec<u8>, Vec<u8>)>> {
    let mut n = 0_usize;
    // SAFETY: `sized` passes buffers of the length it names.
    unsafe {
        done(
            h5p::H5Pget_virtual_count(plist.0, &raw mut n),
            "H5Pget_virtual_count",
        )?;
        (0..n)
            .map(|i| {
                Ok((
                    sized("H5Pget_virtual_filename", |buf, len| {
                        h5p::H5Pget_virtual_filename(plist.0, i, buf, len)
                    })?,
                    sized("H5Pget_virtual_dsetname", |buf, len| {
                        h5p::H5Pget_virtual_dsetname(plist.0, i, buf, len)
                    })?,
                ))
            })
            .collect()
    }
}

/// Returns whether chunks that stick out of the dataset are stored without filters.
pub(crate) fn edge_chunks_unfiltered(plist: &Id) -> Result<bool> {
    const DONT_FILTER_PARTIAL_CHUNKS: c_uint = 2;
    let mut options = 0;
    // SAFETY: a live integer.
    done(
        unsafe { h5p::H5Pget_chunk_opts(plist.0, &raw mut options) },
        "H5Pget_chunk_opts",
    )?;
    Ok(options & DONT_FILTER_PARTIAL_CHUNKS != 0)
}

/// Returns the properties of contiguous datasets.
pub(super) fn contiguous() -> DatasetCreateBuilder {
    let mut plist = DatasetCreate::build();
    plist
        .layout(Layout::Contiguous)
        .alloc_time(Some(AllocTime::Early))
        .fill_time(FillTime::Never);
    plist
}

/// Returns the properties of chunked datasets with filters. A filter that fails, or makes a chunk larger, is left out.
pub(super) fn chunked(chunk: &[u64], filters: &[FilterSpec]) -> Result<Id> {
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
