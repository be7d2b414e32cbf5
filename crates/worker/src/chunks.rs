//! The chunk table of a dataset: the location of the chunk for every place of the current grid.
//!
//! Every entry in libhdf5's list of chunks is checked. Coordinates of extensible arrays are corrected (libhdf5 lists
//! them with the unlimited dimension in the wrong place), and an impossible table is refused: libhdf5 then reads the
//! dataset, and reports the errors that it finds.
//!
//! If there are very many chunks, a few at a time are looked up without libhdf5, whose calls read the whole index for
//! the address of one chunk. They must keep the same bounds. Whether chunks overlap is left to the caller, which knows
//! those of earlier look-ups.

use std::collections::HashSet;
use std::ops::{Range, RangeInclusive};

use super::far;
use super::ffi::{self, ChunkIndex, Id, LayoutKind, StoredChunk};
use super::walk::Pages;
use super::walk::index::{Entry, Fault, Index, Places};
use npyfs_base::error::{Error, ErrorKind};
use npyfs_hdf5::protocol::largest_stored;
use npyfs_hdf5::protocol::{ChunkRun, ChunkTable, H5Error, LOOKED_UP_FROM, MAX_SLOTS, Slot};
use npyfs_io::file::StoreFile;

/// The bounds that every stored chunk of a dataset must keep.
#[derive(Clone, Debug)]
pub(super) struct Bounds {
    /// The size in bytes of a chunk before the filters.
    pub chunk: u64,
    /// The numbers of the filters in HDF5's registry, in the order of writing.
    pub filters: Vec<i32>,
    /// The range of the file that may hold chunks: behind its superblock, before its end.
    pub file: Range<u64>,
}

/// The size in bytes of the shortest superblock (version 2 with the smallest addresses; format specification, section
/// II.A).
pub(super) const MIN_SUPERBLOCK: u64 = 24;

impl Bounds {
    /// Checks the address, size and mask of a chunk.
    fn check(&self, chunk: Entry) -> Result<(), H5Error> {
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

    /// Returns the possible sizes of a chunk that was stored with this mask.
    fn sizes(&self, mask: u32) -> RangeInclusive<u64> {
        const SHUFFLE: i32 = 2;
        const FLETCHER32: i32 = 3;
        const CHECKSUM: u64 = 4;
        let mut exact = self.chunk;
        let applied = |i: usize| i >= 32 || mask >> i & 1 == 0;
        for (_, filter) in self.filters.iter().enumerate().filter(|(i, _)| applied(*i)) {
            match *filter {
                SHUFFLE => {}
                FLETCHER32 => exact = exact.saturating_add(CHECKSUM),
                _ => return 1..=largest_stored(self.chunk),
            }
        }
        exact..=exact
    }
}

/// Returns the table of a chunked dataset; `None` if it is too large to hold.
///
/// `shape` and `max` (`u64::MAX`: unlimited) are the dataset's own, `chunk` is its chunk shape. `flat` converts an
/// address of libhdf5 to an offset in the file.
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
    // Chunks outside the current shape may still be stored: the limit allows for some and refuses a flood.
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
    check(stored.iter().map(Entry::from).collect(), bounds)?;
    let table = fill(&stored, &grid(shape, chunk), place)?;
    if index == ChunkIndex::BTree1 {
        look_up(dataset, &stored, shape)?;
    }
    Ok(Some(table))
}

/// Refuses a B-tree that lists chunks which a look-up does not find: its keys are out of order, or the keys of a node
/// disagree with those of the nodes below it. Reading looks chunks up.
fn look_up(dataset: &Id, stored: &[StoredChunk], shape: &[u64]) -> Result<(), H5Error> {
    let inside = |start: &[u64]| start.iter().zip(shape).all(|(s, n)| s < n);
    for chunk in stored.iter().filter(|chunk| inside(&chunk.start)) {
        ffi::find_chunk(dataset, &chunk.start)
            .map_err(|why| damaged(&format!("a chunk that is listed is not found: {why}")))?;
    }
    Ok(())
}

/// The bytes of a file, for look-ups.
struct FilePages<'a>(&'a StoreFile);

impl Pages for FilePages<'_> {
    type Error = Error;

    fn fetch(&mut self, ranges: &[Range<u64>]) -> Result<(), Error> {
        match self.0.far() {
            Some(far) => far.fetch(ranges),
            // From a disk, too, several come together sooner than one after the other.
            None if ranges.len() > 1 => {
                ranges.iter().for_each(|range| self.0.will_need(range));
                Ok(())
            }
            None => Ok(()),
        }
    }

    fn bytes(&mut self, range: Range<u64>) -> Result<Vec<u8>, Error> {
        let len = range.end.saturating_sub(range.start);
        let mut bytes = vec![0; usize::try_from(len).unwrap_or(0)];
        self.0.read_exact_at(&mut bytes, range.start)?;
        Ok(bytes)
    }
}

/// Returns the error for bytes of a file that could not be read.
fn not_read(file: &StoreFile, error: Error) -> H5Error {
    match file.far() {
        Some(_) => far::not_fetched(error),
        None if error.kind == ErrorKind::Stale => H5Error::Stale,
        None => H5Error::Damaged(error.message),
    }
}

/// The index of the chunks of a dataset.
pub(super) struct LookUps {
    index: Index,
    bounds: Bounds,
}

impl LookUps {
    /// Finds the index of the chunks of the dataset at an address. Returns `None` if libhdf5 must read it: there are
    /// fewer than `least` chunks, or too many for a table, or the index has an unknown form.
    pub(super) fn new(
        (file, dataset): (&StoreFile, u64),
        (shape, max): (&[u64], &[u64]),
        chunk: &[u64],
        bounds: &Bounds,
        least: usize,
    ) -> Result<Option<Self>, H5Error> {
        let held = least as u64..=MAX_SLOTS as u64;
        let places = Places::new(shape, max, chunk);
        let Some(places) = places.filter(|places| held.contains(&places.count())) else {
            return Ok(None);
        };
        let (filtered, size) = (!bounds.filters.is_empty(), file.identity.size);
        let pages = &mut FilePages(file);
        let index = Index::open(pages, (size, dataset), places, filtered, bounds.chunk);
        let index = index.map_err(|e| not_read(file, e))?;
        let bounds = bounds.clone();
        Ok(index.map(|index| Self { index, bounds }))
    }

    /// Returns whether there are so many chunks that they are looked up.
    pub(super) fn is_large(&self) -> bool {
        self.index.count() >= LOOKED_UP_FROM as u64
    }

    /// Returns the whole table, checked as that of libhdf5 is: `table` takes three times as long, as libhdf5 goes
    /// through the index for each of its questions. Returns `None` if libhdf5 must read the index: it is no B-tree of
    /// version 1, it cannot be right, or no chunk was written.
    pub(super) fn whole(&self, file: &StoreFile) -> Result<Option<ChunkTable>, H5Error> {
        let found = match self.index.all(&mut FilePages(file)) {
            Ok(found) => found,
            Err(Fault::Pages(e)) if e.kind == ErrorKind::Stale => return Err(H5Error::Stale),
            Err(_) => return Ok(None),
        };
        let stored: Vec<Entry> = found.iter().copied().flatten().collect();
        if stored.is_empty() || check(stored, &self.bounds).is_err() {
            return Ok(None);
        }
        let slot = |entry: Option<Entry>| match entry {
            Some(entry) => slot_of(entry.addr, entry.size, entry.mask),
            None => Ok(Slot::default()),
        };
        let slots = found.into_iter().map(slot).collect::<Result<_, _>>()?;
        Ok(Some(ChunkTable {
            slots,
            ..ChunkTable::default()
        }))
    }

    /// Returns the chunks at places of the grid, with others that the same nodes of the index name.
    pub(super) fn find(&self, file: &StoreFile, places: &[u64]) -> Result<Vec<ChunkRun>, H5Error> {
        /// The largest number of chunks that are returned beside the wanted ones.
        const MOST_BESIDE: usize = 2048;
        let known = self.index.find(&mut FilePages(file), places);
        let mut known = known.map_err(|fault| match fault {
            Fault::Pages(e) => not_read(file, e),
            Fault::Damaged(why) => damaged(why),
            Fault::Unknown => H5Error::Unsupported("an index of another form".into()),
        })?;
        if known.len() > places.len().saturating_add(MOST_BESIDE) {
            let wanted: HashSet<u64> = places.iter().copied().collect();
            known.retain(|place, _| wanted.contains(place));
        }
        let mut runs: Vec<ChunkRun> = Vec::new();
        for (place, entry) in known {
            let slot = match entry {
                Some(entry) => {
                    self.bounds.check(entry)?;
                    slot_of(entry.addr, entry.size, entry.mask)?
                }
                None => Slot::default(),
            };
            match runs.last_mut() {
                Some(run) if run.first + run.slots.len() as u64 == place => run.slots.push(slot),
                _ => runs.push(ChunkRun {
                    first: place,
                    slots: vec![slot],
                }),
            }
        }
        Ok(runs)
    }
}

/// Refuses a dataset that extends beyond the end of the file.
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

/// Returns the number of places of a grid; `None` if a table of them is too large.
fn places(grid: &[u64]) -> Option<usize> {
    let places = grid.iter().try_fold(1_u64, |n, &d| n.checked_mul(d))?;
    usize::try_from(places).ok().filter(|&n| n <= MAX_SLOTS)
}

impl From<&StoredChunk> for Entry {
    fn from(chunk: &StoredChunk) -> Self {
        Self {
            addr: chunk.addr,
            size: chunk.size,
            mask: chunk.mask,
        }
    }
}

/// Checks that every chunk keeps the bounds, and that no two share a byte.
fn check(mut stored: Vec<Entry>, bounds: &Bounds) -> Result<(), H5Error> {
    for chunk in &stored {
        bounds.check(*chunk)?;
    }
    stored.sort_unstable_by_key(|chunk| chunk.addr);
    let overlap = |pair: &[Entry]| pair[0].addr.saturating_add(pair[0].size) > pair[1].addr;
    if stored.windows(2).any(overlap) {
        return Err(damaged("two chunks overlap"));
    }
    Ok(())
}

fn slot_of(addr: u64, size: u64, mask: u32) -> Result<Slot, H5Error> {
    let size = u32::try_from(size).map_err(|_| damaged("a chunk of 4 GiB or more"))?;
    Ok(Slot { addr, size, mask })
}

/// Puts each chunk into its place of the current grid; chunks beyond the grid are left out.
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
        *slot = slot_of(chunk.addr, chunk.size, chunk.mask)?;
    }
    Ok(ChunkTable {
        slots,
        ..ChunkTable::default()
    })
}

/// Returns the true place of a chunk of an extensible array.
///
/// libhdf5 numbers the chunks with the unlimited dimension slowest, but increments the coordinates as if that dimension
/// were in its own position. The number is therefore the row-major one over the maximum grid, in which only the
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
mod tests;
