//! A dataset written again, in chunks and through filters. Elements pass through here as they are stored.

use super::*;

/// Bytes of chunks of the old dataset that libhdf5 keeps while it is read.
const CHUNK_CACHE: usize = 64 << 20;

/// Slots of that cache: a prime.
const CHUNK_SLOTS: usize = 10_007;

/// A filter by its number, with its parameters; 1 and 2 (gzip and shuffle) are libhdf5's own.
pub type FilterSpec = (i32, Vec<u32>);

/// Makes a dataset at `to`, where nothing is, with type, extent and properties of that at `from`, but in chunks
/// of this shape and through these filters. It has no elements yet.
pub(crate) fn declare(
    file: &Id,
    from: &[Vec<u8>],
    to: &[Vec<u8>],
    chunk: &[u64],
    filters: &[FilterSpec],
) -> Result<()> {
    let old = open_source_dataset(file, from)?;
    let (ty, space) = (dataset_type(&old)?, dataset_space(&old)?);
    make(file, to, &ty, &space, &old, (chunk, filters)).map(drop)
}

/// Writes the dataset at `from` again at `to`, where nothing is, in chunks of this shape, and gives it the other
/// properties of the old one. `copy` is called for each chunk.
pub(crate) fn recode(
    file: &Id,
    from: &[Vec<u8>],
    to: &[Vec<u8>],
    chunk: &[u64],
    filters: &[FilterSpec],
) -> Result<()> {
    let old = open_source_dataset(file, from)?;
    let ty = dataset_type(&old)?;
    let space = dataset_space(&old)?;
    let Some((shape, _)) = extent(&space)? else {
        return Err(Failure("no elements".into()));
    };
    if shape.len() != chunk.len() || shape.is_empty() || chunk.contains(&0) {
        return Err(Failure("impossible chunks".into()));
    }
    let new = make(file, to, &ty, &space, &old, (chunk, filters))?;
    let elements = chunk.iter().try_fold(1_u64, |n, &d| n.checked_mul(d));
    // SAFETY: plain call.
    let size = unsafe { h5t::H5Tget_size(ty.0) };
    let room = elements.and_then(|n| usize::try_from(n).ok()?.checked_mul(size));
    let mut buf = vec![0_u8; room.ok_or_else(|| Failure("chunks too large".into()))?];
    let mut start = vec![0_u64; shape.len()];
    if shape.contains(&0) {
        return Ok(());
    }
    loop {
        let count: Vec<u64> = (start.iter().zip(chunk).zip(&shape))
            .map(|((start, chunk), len)| (*chunk).min(len - start))
            .collect();
        // SAFETY: the memory space has as many elements as the selection, at most those of a chunk, and the
        // buffer has room for them in the type that both calls name.
        unsafe {
            let rank = c_int::try_from(count.len()).map_err(|_| Failure("rank".into()))?;
            let memory = id(
                h5s::H5Screate_simple(rank, count.as_ptr(), ptr::null()),
                "H5Screate_simple",
            )?;
            done(
                h5s::H5Sselect_hyperslab(
                    space.0,
                    h5s::H5S_seloper_t::H5S_SELECT_SET,
                    start.as_ptr(),
                    ptr::null(),
                    count.as_ptr(),
                    ptr::null(),
                ),
                "H5Sselect_hyperslab",
            )?;
            let plain = h5p::H5P_DEFAULT;
            let data = buf.as_mut_ptr().cast::<c_void>();
            done(
                h5d::H5Dread(old.0, ty.0, memory.0, space.0, plain, data),
                "H5Dread",
            )?;
            done(
                h5d::H5Dwrite(new.0, ty.0, memory.0, space.0, plain, data),
                "H5Dwrite",
            )?;
        }
        // The next chunk, the last dimension first.
        let next = (0..shape.len())
            .rev()
            .find(|&k| start[k] + count[k] < shape[k]);
        let Some(k) = next else { return Ok(()) };
        start[k] += chunk[k];
        start[k + 1..].fill(0);
    }
}

fn open_source_dataset(file: &Id, names: &[Vec<u8>]) -> Result<Id> {
    let path = cstring(&names.join(&b'/'))?;
    let access = hdf5::plist::DatasetAccess::build()
        .chunk_cache(CHUNK_SLOTS, CHUNK_CACHE, 1.0)
        .finish()?;
    // SAFETY: plain call on open identifiers; the path is a live C string.
    id(
        unsafe { h5d::H5Dopen2(file.0, path.as_ptr(), access.id()) },
        "H5Dopen2",
    )
}

fn make(
    file: &Id,
    names: &[Vec<u8>],
    ty: &Id,
    space: &Id,
    old: &Id,
    (chunk, filters): (&[u64], &[FilterSpec]),
) -> Result<Id> {
    const SHUFFLE: i32 = 2;
    let path = cstring(&names.join(&b'/'))?;
    let rank = c_int::try_from(chunk.len()).map_err(|_| Failure("rank".into()))?;
    // Fill value and order of attributes stay what they were.
    let plist = dataset_plist(old)?;
    // SAFETY: plain calls on identifiers made here or open; arrays are as long as is said.
    unsafe {
        done(
            h5p::H5Pset_chunk(plist.0, rank, chunk.as_ptr()),
            "H5Pset_chunk",
        )?;
        done(
            h5p::H5Pset_alloc_time(plist.0, h5d::H5D_alloc_time_t::H5D_ALLOC_TIME_INCR),
            "H5Pset_alloc_time",
        )?;
        done(
            h5p::H5Premove_filter(plist.0, h5z::H5Z_FILTER_ALL),
            "H5Premove_filter",
        )?;
        for (number, parameters) in filters {
            // Where a filter makes a chunk larger, the chunk is stored without it.
            let flags = match *number {
                SHUFFLE => h5z::H5Z_FLAG_MANDATORY,
                _ => h5z::H5Z_FLAG_OPTIONAL,
            };
            done(
                h5p::H5Pset_filter(
                    plist.0,
                    *number,
                    flags,
                    parameters.len(),
                    parameters.as_ptr(),
                ),
                "H5Pset_filter",
            )?;
        }
        id(
            h5d::H5Dcreate2(
                file.0,
                path.as_ptr(),
                ty.0,
                space.0,
                h5p::H5P_DEFAULT,
                plist.0,
                h5p::H5P_DEFAULT,
            ),
            "H5Dcreate2",
        )
    }
}
