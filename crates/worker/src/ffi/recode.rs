//! Datasets written again in another layout and through other filters. Elements pass through here as they are stored.

use hdf5_sys::h5d::{H5D_alloc_time_t, H5D_fill_time_t, H5D_layout_t};

use super::dataset::{byte_len, dataset_in, select_block, simple};
use super::plist::{add_filter, set_chunk};
use super::*;
use npyfs_hdf5::protocol::FilterSpec;

/// Bytes of chunks of the old dataset that libhdf5 keeps while it is read.
const CHUNK_CACHE: usize = 64 << 20;

/// Slots of that cache: a prime.
const CHUNK_SLOTS: usize = 10_007;

/// Number of the shuffle filter in HDF5's registry.
const SHUFFLE: i32 = 2;

/// A dataset that is made from another, in another layout and through other filters.
pub(crate) struct Recoding<'a> {
    /// Names that lead to the old dataset.
    pub(crate) from: &'a [Vec<u8>],
    /// Names that lead to the new one; nothing is there yet.
    pub(crate) to: &'a [Vec<u8>],
    /// Shape of a chunk; `None`: the new one is contiguous, and does not grow.
    pub(crate) chunk: Option<&'a [u64]>,
    /// Filters, in the order of writing.
    pub(crate) filters: &'a [FilterSpec],
}

impl Recoding<'_> {
    /// Makes the new dataset, with type, extent and other properties of the old one, and without elements; returns
    /// both.
    pub(crate) fn declare(&self, file: &Id) -> Result<(Id, Id)> {
        let old = open_source_dataset(file, self.from)?;
        let (ty, mut space) = (dataset_type(&old)?, dataset_space(&old)?);
        // Fill value and order of attributes stay what they were.
        let plist = dataset_plist(&old)?;
        // SAFETY: the identifiers are made here and open until they are dropped.
        unsafe {
            done(
                h5p::H5Premove_filter(plist.0, h5z::H5Z_FILTER_ALL),
                "H5Premove_filter",
            )?;
            let allocated = match self.chunk {
                Some(chunk) => {
                    set_chunk(&plist, chunk)?;
                    H5D_alloc_time_t::H5D_ALLOC_TIME_INCR
                }
                None => {
                    let layout = H5D_layout_t::H5D_CONTIGUOUS;
                    done(h5p::H5Pset_layout(plist.0, layout), "H5Pset_layout")?;
                    // All elements are written.
                    let never = H5D_fill_time_t::H5D_FILL_TIME_NEVER;
                    done(h5p::H5Pset_fill_time(plist.0, never), "H5Pset_fill_time")?;
                    space = simple(&shape_of(&space)?)?;
                    H5D_alloc_time_t::H5D_ALLOC_TIME_EARLY
                }
            };
            done(
                h5p::H5Pset_alloc_time(plist.0, allocated),
                "H5Pset_alloc_time",
            )?;
        }
        for filter in self.filters {
            // Where a filter makes a chunk larger, the chunk is stored without it.
            let flags = match filter.0 {
                SHUFFLE => h5z::H5Z_FLAG_MANDATORY,
                _ => h5z::H5Z_FLAG_OPTIONAL,
            };
            add_filter(&plist, filter, flags)?;
        }
        let name = self.to.join(&b'/');
        let new = dataset_in(file, &name, &ty, (&space, h5p::H5P_DEFAULT, plist.0))?;
        Ok((old, new))
    }

    /// Makes the new dataset with all elements of the old one, which are read in blocks of the shape `block`; returns
    /// both.
    pub(crate) fn recode(&self, file: &Id, block: &[u64]) -> Result<(Id, Id)> {
        let (old, new) = self.declare(file)?;
        let (ty, space) = (dataset_type(&old)?, dataset_space(&old)?);
        let shape = shape_of(&space)?;
        if shape.len() != block.len() || shape.is_empty() || block.contains(&0) {
            return Err(Failure("impossible blocks".into()));
        }
        let room = byte_len(block, size(&ty)).ok_or_else(|| Failure("blocks too large".into()))?;
        let mut buf = vec![0_u8; room];
        let mut start = vec![0_u64; shape.len()];
        if shape.contains(&0) {
            return Ok((old, new));
        }
        loop {
            let count: Vec<u64> = (start.iter().zip(block).zip(&shape))
                .map(|((start, block), len)| (*block).min(len - start))
                .collect();
            let memory = simple(&count)?;
            select_block(&space, &start, &count)?;
            let plain = h5p::H5P_DEFAULT;
            let data = buf.as_mut_ptr().cast::<c_void>();
            // SAFETY: the memory space has as many elements as the selection, at most those of a block, and the
            // buffer has room for them in the type that both calls name.
            unsafe {
                done(
                    h5d::H5Dread(old.0, ty.0, memory.0, space.0, plain, data),
                    "H5Dread",
                )?;
                done(
                    h5d::H5Dwrite(new.0, ty.0, memory.0, space.0, plain, data),
                    "H5Dwrite",
                )?;
            }
            // The next block, the last dimension first.
            let next = (0..shape.len())
                .rev()
                .find(|&k| start[k] + count[k] < shape[k]);
            let Some(k) = next else {
                return Ok((old, new));
            };
            start[k] += block[k];
            start[k + 1..].fill(0);
        }
    }
}

fn shape_of(space: &Id) -> Result<Vec<u64>> {
    let extent = extent(space)?;
    extent
        .map(|(shape, _)| shape)
        .ok_or_else(|| Failure("no elements".into()))
}

/// Bytes of elements that are copied at a time.
const WINDOW: u64 = 4 << 20;

/// Rows of a dataset of rank 1 that are copied: where they begin in the old one and in the new one, and how many.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Rows {
    pub(crate) start: u64,
    pub(crate) at: u64,
    pub(crate) count: u64,
}

/// Copies elements of a dataset of rank 1 into another, and adds a number to each; zeros without the other.
pub(crate) fn copy_rows(from: Option<&Id>, to: &Id, rows: Rows, add: i64) -> Result<()> {
    let Rows { start, at, count } = rows;
    let ty = dataset_type(to)?;
    let to_space = dataset_space(to)?;
    let from = match from {
        Some(from) => Some((from, dataset_space(from)?)),
        None => None,
    };
    let ends = std::iter::once((&to_space, at)).chain(from.as_ref().map(|(_, s)| (s, start)));
    for (space, first) in ends {
        let end = first.checked_add(count);
        let len = extent(space)?.and_then(|(dims, _)| match dims[..] {
            [len] => Some(len),
            _ => None,
        });
        if end.zip(len).is_none_or(|(end, len)| end > len) {
            return Err(Failure("elements that are not there".into()));
        }
    }
    // SAFETY: the identifiers are made here and open until they are dropped.
    let is_integer = unsafe { h5t::H5Tget_class(ty.0) == h5t::H5T_class_t::H5T_INTEGER };
    let size = size(&ty) as u64;
    if add != 0 && !is_integer {
        return Err(Failure("a number added to what is none".into()));
    }
    let memory_type = match add {
        0 => ty.0,
        _ => *h5t::H5T_NATIVE_INT64,
    };
    let window = (WINDOW / size.max(8)).max(1);
    let mut buf: Vec<u64> = Vec::new();
    let mut copied = 0;
    while copied < count {
        let rows = window.min(count - copied);
        let words = rows
            .checked_mul(size.max(8))
            .and_then(|bytes| usize::try_from(bytes.div_ceil(8)).ok())
            .ok_or_else(|| Failure("elements too large".into()))?;
        buf.resize(words, 0);
        let memory = simple(&[rows])?;
        select_block(&to_space, &[at + copied], &[rows])?;
        let plain = h5p::H5P_DEFAULT;
        if let Some((from, space)) = &from {
            select_block(space, &[start + copied], &[rows])?;
            let data = buf.as_mut_ptr().cast::<c_void>();
            // SAFETY: the memory space has as many elements as either selection, and the buffer room for them in
            // the type
            // that both calls name: the dataset's own, or 64-bit integers.
            done(
                unsafe { h5d::H5Dread(from.0, memory_type, memory.0, space.0, plain, data) },
                "H5Dread",
            )?;
        }
        if add != 0 {
            for word in &mut buf {
                let sum = word.cast_signed().checked_add(add);
                *word = sum
                    .ok_or_else(|| Failure("a sum that is too large".into()))?
                    .cast_unsigned();
            }
        }
        let data = buf.as_ptr().cast::<c_void>();
        // SAFETY: as above.
        done(
            unsafe { h5d::H5Dwrite(to.0, memory_type, memory.0, to_space.0, plain, data) },
            "H5Dwrite",
        )?;
        copied += rows;
    }
    Ok(())
}

fn open_source_dataset(file: &Id, names: &[Vec<u8>]) -> Result<Id> {
    let path = cstring(&names.join(&b'/'))?;
    let access = hdf5::plist::DatasetAccess::build()
        .chunk_cache(CHUNK_SLOTS, CHUNK_CACHE, 1.0)
        .finish()?;
    // SAFETY: the identifiers are open as long as they are borrowed, and the path is a C string that outlives the
    // call.
    id(
        unsafe { h5d::H5Dopen2(file.0, path.as_ptr(), access.id()) },
        "H5Dopen2",
    )
}
