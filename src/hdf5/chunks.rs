//! The chunk table of a dataset: for every place of the current grid where its chunk is stored.
//!
//! libhdf5's list of chunks is checked, not believed: coordinates of extensible arrays are turned back
//! (it lists them with the unlimited dimension in the wrong place), and a table that cannot be true is
//! refused: libhdf5 then reads the dataset, and says what is wrong where it finds something.

use std::ops::{Range, RangeInclusive};

use super::ffi::{self, ChunkIndex, Id, LayoutKind, StoredChunk};
use super::{ChunkTable, H5Error, Slot};

/// Most places of a table, 32 MiB of memory; a dataset with more is read through libhdf5.
pub(super) const MAX_SLOTS: usize = 1 << 21;

/// Bytes of a slot as it crosses to another process: address, size and mask, little-endian.
pub(super) const SLOT_BYTES: usize = 16;

impl Slot {
    /// Returns the slot as it crosses to another process.
    pub fn to_bytes(self) -> [u8; SLOT_BYTES] {
        let mut bytes = [0; SLOT_BYTES];
        bytes[..8].copy_from_slice(&self.addr.to_le_bytes());
        bytes[8..12].copy_from_slice(&self.size.to_le_bytes());
        bytes[12..].copy_from_slice(&self.mask.to_le_bytes());
        bytes
    }

    /// Reads a slot as [`Slot::to_bytes`] makes it.
    pub fn from_bytes(bytes: &[u8; SLOT_BYTES]) -> Self {
        let [a, b, c, d, e, f, g, h, size @ .., m, n, o, p] = *bytes;
        Self {
            addr: u64::from_le_bytes([a, b, c, d, e, f, g, h]),
            size: u32::from_le_bytes(size),
            mask: u32::from_le_bytes([m, n, o, p]),
        }
    }
}

/// Bounds that every stored chunk of a dataset must keep.
#[derive(Clone, Debug)]
pub(super) struct Bounds {
    /// Bytes of a chunk before the filters.
    pub chunk: u64,
    /// Numbers of the filters in HDF5's registry, in the order of writing.
    pub filters: Vec<i32>,
    /// The range of the file that may hold chunks: behind its superblock, before its end.
    pub file: Range<u64>,
}

/// Bytes that no superblock is shorter than (version 2 with the smallest addresses; format
/// specification, section II.A).
pub(super) const MIN_SUPERBLOCK: u64 = 24;

impl Bounds {
    /// Checks place, size and mask of a chunk.
    fn check(&self, chunk: &StoredChunk) -> Result<(), H5Error> {
        let end = chunk.addr.checked_add(chunk.size);
        if chunk.addr < self.file.start || end.is_none_or(|end| end > self.file.end) {
            return Err(damaged("a chunk lies outside the file"));
        }
        let filters = u32::try_from(self.filters.len()).unwrap_or(u32::MAX);
        if chunk.mask.checked_shr(filters).unwrap_or(0) != 0 {
            return Err(damaged("a chunk skips a filter that there is not"));
        }
        if !self.sizes(chunk.mask).contains(&chunk.size) {
            return Err(damaged("a chunk of a size that cannot be"));
        }
        Ok(())
    }

    /// Returns the sizes that a chunk may have which was stored with this mask.
    ///
    /// Compressors add little to data that they cannot compress: the most are lz4's 4 bytes for each block,
    /// of which there may be as many as elements. Twice the size holds for all of them.
    fn sizes(&self, mask: u32) -> RangeInclusive<u64> {
        const SHUFFLE: i32 = 2;
        const FLETCHER32: i32 = 3;
        const CHECKSUM: u64 = 4;
        const SLACK: u64 = 64 << 10;
        let mut exact = self.chunk;
        let applied = |i: usize| i >= 32 || mask >> i & 1 == 0;
        for (_, filter) in self.filters.iter().enumerate().filter(|(i, _)| applied(*i)) {
            match *filter {
                SHUFFLE => {}
                FLETCHER32 => exact = exact.saturating_add(CHECKSUM),
                _ => return 1..=self.chunk.saturating_mul(2).saturating_add(SLACK),
            }
        }
        exact..=exact
    }
}

/// Returns the table of a chunked dataset; `None` if it is too large to hold.
///
/// `shape` and `max` (`u64::MAX`: unlimited) are the dataset's own, `chunk` its chunk shape. `flat` says where bytes are
/// that libhdf5 says lie at an address.
pub(super) fn table(
    dataset: &Id,
    (shape, max): (&[u64], &[u64]),
    chunk: &[u64],
    bounds: &Bounds,
    flat: &dyn Fn(u64, u64) -> Result<u64, H5Error>,
) -> Result<Option<ChunkTable>, H5Error> {
    let Some(places) = places(&grid(shape, chunk)) else {
        return Ok(None);
    };
    // Chunks outside the current shape may still be stored: allow for some, refuse a flood.
    let Some(mut stored) =
        ffi::stored_chunks(dataset, shape.len(), places.saturating_mul(2) + 4096)?
    else {
        return Ok(None);
    };
    for chunk in &mut stored {
        chunk.addr = flat(chunk.addr, chunk.size)?;
    }
    let index = ffi::chunk_index(dataset)?;
    let turned = if index == ChunkIndex::ExtensibleArray {
        max.iter().position(|&n| n == u64::MAX).filter(|&u| u > 0)
    } else {
        None
    };
    let place = |start: &[u64]| {
        if start.iter().zip(chunk).any(|(s, c)| s % c != 0) {
            return Err(damaged("a chunk does not start on the grid"));
        }
        let place: Vec<u64> = start.iter().zip(chunk).map(|(s, c)| s / c).collect();
        match turned {
            Some(unlimited) => true_place(&place, unlimited, max, chunk),
            None => Ok(place),
        }
    };
    check(&stored, bounds)?;
    let table = fill(&stored, &grid(shape, chunk), place)?;
    if index == ChunkIndex::BTree1 {
        look_up(dataset, &stored, shape)?;
    }
    Ok(Some(table))
}

/// Refuses a B-tree that lists chunks which a look-up does not find: its keys are out of order, or those of a node
/// and of the nodes below it disagree. Reading looks chunks up.
fn look_up(dataset: &Id, stored: &[StoredChunk], shape: &[u64]) -> Result<(), H5Error> {
    let inside = |start: &[u64]| start.iter().zip(shape).all(|(s, n)| s < n);
    for chunk in stored.iter().filter(|chunk| inside(&chunk.start)) {
        ffi::find_chunk(dataset, &chunk.start)
            .map_err(|why| damaged(&format!("a chunk that is listed is not found: {why}")))?;
    }
    Ok(())
}

/// Refuses a dataset of which a part lies behind the end of the file.
pub(super) fn check_ends(dataset: &Id, file_size: u64) -> Result<(), H5Error> {
    let plist = ffi::dataset_plist(dataset)?;
    let space = ffi::extent(&ffi::dataset_space(dataset)?)?;
    let inside = |addr: u64, size| addr.checked_add(size).is_some_and(|end| end <= file_size);
    let complete = match (ffi::layout(&plist)?, space) {
        (LayoutKind::Chunked, Some((shape, _))) => {
            ffi::stored_chunks(dataset, shape.len(), MAX_SLOTS)?
                .is_none_or(|stored| stored.iter().all(|chunk| inside(chunk.addr, chunk.size)))
        }
        (LayoutKind::Contiguous, _) => match ffi::contiguous_addr(dataset)? {
            Some(addr) => inside(addr, ffi::storage_size(dataset)?),
            None => true,
        },
        _ => true,
    };
    if complete {
        Ok(())
    } else {
        Err(H5Error::Damaged("data behind the end of the file".into()))
    }
}

/// Makes an error about a chunk table.
fn damaged(why: &str) -> H5Error {
    H5Error::Damaged(format!("chunk table: {why}"))
}

/// Returns the number of chunks along each dimension.
fn grid(shape: &[u64], chunk: &[u64]) -> Vec<u64> {
    let counts = shape.iter().zip(chunk);
    counts.map(|(d, c)| d.div_ceil(*c)).collect()
}

/// Returns the number of places of a grid, unless a table of them is too large.
fn places(grid: &[u64]) -> Option<usize> {
    let places = grid.iter().try_fold(1_u64, |n, &d| n.checked_mul(d))?;
    usize::try_from(places).ok().filter(|&n| n <= MAX_SLOTS)
}

/// Checks that every chunk keeps the bounds, and that no two share a byte.
fn check(stored: &[StoredChunk], bounds: &Bounds) -> Result<(), H5Error> {
    let mut extents = Vec::with_capacity(stored.len());
    for chunk in stored {
        bounds.check(chunk)?;
        extents.push((chunk.addr, chunk.addr.saturating_add(chunk.size)));
    }
    extents.sort_unstable();
    if extents.windows(2).any(|pair| pair[0].1 > pair[1].0) {
        return Err(damaged("two chunks overlap"));
    }
    Ok(())
}

/// Puts each chunk into its place of the current grid; those beyond it are left out.
fn fill(
    stored: &[StoredChunk],
    grid: &[u64],
    place: impl Fn(&[u64]) -> Result<Vec<u64>, H5Error>,
) -> Result<ChunkTable, H5Error> {
    let places = places(grid).ok_or_else(|| damaged("a grid too large"))?;
    let mut slots = vec![Slot::default(); places];
    for chunk in stored {
        let place = place(&chunk.start)?;
        if place.iter().zip(grid).any(|(p, n)| p >= n) {
            continue;
        }
        let at = place.iter().zip(grid).fold(0, |at, (p, n)| at * n + p);
        let slot = usize::try_from(at)
            .ok()
            .and_then(|at| slots.get_mut(at))
            .ok_or_else(|| damaged("a chunk lies outside the grid"))?;
        if slot.size != 0 {
            return Err(damaged("two chunks in one place of the grid"));
        }
        *slot = Slot {
            addr: chunk.addr,
            size: u32::try_from(chunk.size).map_err(|_| damaged("a chunk of 4 GiB or more"))?,
            mask: chunk.mask,
        };
    }
    Ok(ChunkTable { slots, room: None })
}

/// Returns the true place of a chunk of an extensible array.
///
/// libhdf5 numbers the chunks with the unlimited dimension slowest, but counts its coordinates up as if
/// it were where it is. The number is therefore the row-major one over the maximum grid, in which only the
/// unlimited dimension and those behind it ever move.
fn true_place(
    place: &[u64],
    unlimited: usize,
    max: &[u64],
    chunk: &[u64],
) -> Result<Vec<u64>, H5Error> {
    let count = |k: usize| max[k].div_ceil(chunk[k]).max(1);
    let overflow = || damaged("a chunk number out of range");
    if place[..unlimited].iter().any(|&p| p != 0) {
        return Err(damaged(
            "a chunk of an extensible array before its first dimension",
        ));
    }
    let mut number = place[unlimited];
    for (k, step) in place.iter().enumerate().skip(unlimited + 1) {
        number = number
            .checked_mul(count(k))
            .and_then(|n| n.checked_add(*step))
            .ok_or_else(overflow)?;
    }
    let mut turned = vec![0; place.len()];
    for k in (0..place.len()).rev().filter(|&k| k != unlimited) {
        turned[k] = number % count(k);
        number /= count(k);
    }
    turned[unlimited] = number;
    Ok(turned)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_of_extensible_arrays_are_turned_back() {
        // Maximum grid 3 × unlimited: number 0, 1, 2 is the first column, 3 the top of the second.
        let max = [30, u64::MAX];
        let chunk = [10, 10];
        let turned = |n| true_place(&[0, n], 1, &max, &chunk).unwrap();
        assert_eq!(turned(0), [0, 0]);
        assert_eq!(turned(2), [2, 0]);
        assert_eq!(turned(3), [0, 1]);
        // 2 × unlimited × 4: libhdf5 counts the last dimension and carries into the middle one.
        let max = [2, u64::MAX, 4];
        let chunk = [1, 1, 1];
        let turned = |m, n| true_place(&[0, m, n], 1, &max, &chunk).unwrap();
        assert_eq!(turned(0, 3), [0, 0, 3]);
        assert_eq!(turned(1, 0), [1, 0, 0]);
        assert_eq!(turned(2, 1), [0, 1, 1]);
        assert!(true_place(&[1, 0, 0], 1, &max, &chunk).is_err());
    }

    const DEFLATE: i32 = 1;
    const SHUFFLE: i32 = 2;
    const FLETCHER32: i32 = 3;

    fn chunk(start: u64, addr: u64, size: u64, mask: u32) -> StoredChunk {
        StoredChunk {
            start: vec![start],
            addr,
            size,
            mask,
        }
    }

    /// Chunks of 1000 bytes in a file of 10 000.
    fn bounds(filters: &[i32]) -> Bounds {
        Bounds {
            chunk: 1000,
            filters: filters.to_vec(),
            file: MIN_SUPERBLOCK..10_000,
        }
    }

    fn refusal(stored: &[StoredChunk], filters: &[i32]) -> Option<String> {
        let refused = check(stored, &bounds(filters)).err()?.to_string();
        refused.strip_prefix("chunk table: ").map(str::to_owned)
    }

    #[test]
    fn overlapping_chunks_are_refused() {
        let deflated = |chunks: &[(u64, u64)]| {
            let stored: Vec<_> = chunks.iter().map(|&(a, n)| chunk(0, a, n, 0)).collect();
            refusal(&stored, &[DEFLATE])
        };
        assert_eq!(deflated(&[(110, 5), (100, 10)]), None);
        let refused = Some("two chunks overlap".into());
        assert_eq!(deflated(&[(110, 5), (100, 11)]), refused);
        assert_eq!(deflated(&[(110, 5), (110, 5)]), refused);
        assert_eq!(deflated(&[(100, 100), (300, 5), (150, 10)]), refused);
    }

    #[test]
    fn chunks_outside_the_file_are_refused() {
        let at = |addr| refusal(&[chunk(0, addr, 1000, 0)], &[]);
        assert_eq!((at(MIN_SUPERBLOCK), at(9000)), (None, None));
        for addr in [
            0,
            MIN_SUPERBLOCK - 1,
            9001,
            10_000,
            u64::MAX - 1000,
            u64::MAX,
        ] {
            assert_eq!(at(addr), Some("a chunk lies outside the file".into()));
        }
    }

    #[test]
    fn sizes_that_cannot_be_are_refused() {
        let refused = |size, mask, filters: &[i32]| {
            let mut bounds = bounds(filters);
            bounds.file.end = u64::MAX;
            check(&[chunk(0, 100, size, mask)], &bounds).is_err()
        };
        // Unfiltered, shuffled and checked chunks have one size; the mask counts.
        for (filters, mask, exact) in [
            (&[][..], 0, 1000),
            (&[SHUFFLE], 0, 1000),
            (&[SHUFFLE, FLETCHER32], 0, 1004),
            (&[SHUFFLE, FLETCHER32], 2, 1000),
            (&[SHUFFLE, DEFLATE, FLETCHER32], 2, 1004),
            (&[DEFLATE], 1, 1000),
        ] {
            for size in [0, exact - 1, exact, exact + 1, u64::MAX] {
                assert_eq!(
                    refused(size, mask, filters),
                    size != exact,
                    "{filters:?} {size}"
                );
            }
        }
        for (size, so) in [
            (0, true),
            (1, false),
            (2000 + (64 << 10), false),
            (2001 + (64 << 10), true),
        ] {
            assert_eq!(refused(size, 0, &[SHUFFLE, DEFLATE]), so);
        }
    }

    #[test]
    fn masks_name_filters_that_there_are() {
        let skips = |mask, filters: &[i32]| refusal(&[chunk(0, 100, 1000, mask)], filters);
        assert_eq!(skips(0b11, &[SHUFFLE, DEFLATE]), None);
        let refused = Some("a chunk skips a filter that there is not".into());
        assert_eq!(skips(0b100, &[SHUFFLE, DEFLATE]), refused);
        assert_eq!(skips(1, &[]), refused);
        assert_eq!(skips(u32::MAX, &[SHUFFLE; 32]), None);
    }

    #[test]
    fn two_chunks_in_one_place_are_refused_and_those_beyond_left_out() {
        let place = |start: &[u64]| Ok(start.iter().map(|s| s / 10).collect());
        let table = |stored: &[StoredChunk]| fill(stored, &[3], place);
        let (a, b, beyond) = (
            chunk(0, 100, 7, 0),
            chunk(20, 200, 8, 0),
            chunk(30, 300, 9, 0),
        );
        let slots = table(&[b.clone(), a.clone(), beyond]).unwrap().slots;
        assert_eq!(slots.iter().map(|s| s.size).collect::<Vec<_>>(), [7, 0, 8]);
        assert!(table(&[a.clone(), b, a]).is_err());
        let huge = chunk(0, 100, 1 << 32, 0);
        assert!(table(&[huge]).is_err());
    }
}
