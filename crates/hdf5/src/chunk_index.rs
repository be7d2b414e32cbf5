//! The chunk index of a dataset, read without libhdf5, whose calls read the whole index for the address of one chunk.
//!
//! If there are very many chunks, the daemon looks up a few at a time. They must keep the same bounds as those of a
//! table. Whether chunks overlap is left to the caller, which knows those of earlier look-ups. The input may be hostile
//! (`walk::index`); nothing of it is run or trusted.

use std::collections::HashSet;
use std::ops::Range;

use crate::protocol::{
    Bounds, ChunkTable, H5Error, IndexedChunks, LOOKED_UP_FROM, MAX_SLOTS, Slot, damaged_table,
};
use crate::walk::Pages;
use crate::walk::index::{Fault, Index, Places};
use npyfs_base::error::{Error, ErrorKind};
use npyfs_io::file::StoreFile;

pub use crate::walk::index::Entry;

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
        Some(_) => H5Error::not_fetched(error),
        None if error.kind == ErrorKind::Stale => H5Error::Stale,
        None => H5Error::Damaged(error.message),
    }
}

/// The chunks at consecutive places of a grid.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ChunkRun {
    /// The first place.
    pub first: u64,
    /// One chunk for each place.
    pub slots: Vec<Slot>,
}

/// The index of the chunks of a dataset.
pub struct LookUps {
    index: Index,
    bounds: Bounds,
}

impl LookUps {
    /// Opens the index of the chunks of a dataset. Returns `None` if libhdf5 must read it: there are fewer than `least`
    /// chunks, or too many for a table, or the index has an unknown form.
    ///
    /// # Errors
    ///
    /// The file cannot be read, or was written to.
    pub fn open(
        file: &StoreFile,
        chunks: &IndexedChunks,
        least: usize,
    ) -> Result<Option<Self>, H5Error> {
        let held = least as u64..=MAX_SLOTS as u64;
        let places = Places::new(&chunks.shape, &chunks.max, &chunks.chunk);
        let Some(places) = places.filter(|places| held.contains(&places.count())) else {
            return Ok(None);
        };
        let bounds = chunks.bounds.clone();
        let (filtered, size) = (!bounds.filters.is_empty(), file.identity.size);
        let at = (size, chunks.dataset);
        let index = Index::open(&mut FilePages(file), at, places, filtered, bounds.chunk);
        let index = index.map_err(|e| not_read(file, e))?;
        Ok(index.map(|index| Self { index, bounds }))
    }

    /// Returns whether there are so many chunks that they are looked up.
    pub fn is_large(&self) -> bool {
        self.index.count() >= LOOKED_UP_FROM as u64
    }

    /// Returns the whole table, checked as that of libhdf5 is: `table` takes three times as long, as libhdf5 goes
    /// through the index for each of its questions. Returns `None` if libhdf5 must read the index: it is no B-tree of
    /// version 1, it cannot be right, or no chunk was written.
    pub fn whole(&self, file: &StoreFile) -> Result<Option<ChunkTable>, H5Error> {
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
    pub fn find(&self, file: &StoreFile, places: &[u64]) -> Result<Vec<ChunkRun>, H5Error> {
        /// The largest number of chunks that are returned beside the wanted ones.
        const MOST_BESIDE: usize = 2048;
        let known = self.index.find(&mut FilePages(file), places);
        let mut known = known.map_err(|fault| match fault {
            Fault::Pages(e) => not_read(file, e),
            Fault::Damaged(why) => damaged_table(why),
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
                    self.bounds.check(entry.addr, entry.size, entry.mask)?;
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

/// Checks that every chunk keeps the bounds, and that no two share a byte.
///
/// # Errors
///
/// One does not, or two do.
pub fn check(mut stored: Vec<Entry>, bounds: &Bounds) -> Result<(), H5Error> {
    for chunk in &stored {
        bounds.check(chunk.addr, chunk.size, chunk.mask)?;
    }
    stored.sort_unstable_by_key(|chunk| chunk.addr);
    let overlap = |pair: &[Entry]| pair[0].addr.saturating_add(pair[0].size) > pair[1].addr;
    if stored.windows(2).any(overlap) {
        return Err(damaged_table("two chunks overlap"));
    }
    Ok(())
}

/// Returns the slot of a chunk.
///
/// # Errors
///
/// The chunk is stored in 4 GiB or more.
pub fn slot_of(addr: u64, size: u64, mask: u32) -> Result<Slot, H5Error> {
    let size = u32::try_from(size).map_err(|_| damaged_table("a chunk of 4 GiB or more"))?;
    Ok(Slot { addr, size, mask })
}
