//! The chunk table of a dataset: the location of the chunk for every place of the current grid.
//!
//! Every entry in libhdf5's list of chunks is checked. Coordinates of extensible arrays are corrected (libhdf5 lists
//! them with the unlimited dimension in the wrong place), and an impossible table is refused: libhdf5 then reads the
//! dataset, and reports the errors that it finds.

use super::ffi::{self, ChunkIndex, Id, LayoutKind, StoredChunk};
use npyfs_hdf5::chunk_index::{Entry, check, slot_of};
use npyfs_hdf5::protocol::{ChunkTable, H5Error, IndexedChunks, MAX_SLOTS, Slot, damaged_table};

/// Returns the table of a chunked dataset; `None` if it is too large to hold. `flat` converts an address of libhdf5 to an
/// offset in the file.
pub(super) fn table(
    dataset: &Id,
    chunks: &IndexedChunks,
    flat: &dyn Fn(u64, u64) -> Result<u64, H5Error>,
) -> Result<Option<ChunkTable>, H5Error> {
    let (shape, max, chunk) = (&*chunks.shape, &*chunks.max, &*chunks.chunk);
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
            return Err(damaged_table("a chunk does not start on the grid"));
        }
        let place: Vec<u64> = start.iter().zip(chunk).map(|(s, c)| s / c).collect();
        match turned {
            Some(unlimited) => true_place(&place, unlimited, max, chunk),
            None => Ok(place),
        }
    };
    check(stored.iter().map(entry).collect(), &chunks.bounds)?;
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
            .map_err(|why| damaged_table(&format!("a chunk that is listed is not found: {why}")))?;
    }
    Ok(())
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

fn entry(chunk: &StoredChunk) -> Entry {
    Entry {
        addr: chunk.addr,
        size: chunk.size,
        mask: chunk.mask,
    }
}

/// Puts each chunk into its place of the current grid; chunks beyond the grid are left out.
fn fill(
    stored: &[StoredChunk],
    grid: &[u64],
    place: impl Fn(&[u64]) -> Result<Vec<u64>, H5Error>,
) -> Result<ChunkTable, H5Error> {
    let places = places(grid).ok_or_else(|| damaged_table("a grid too large"))?;
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
            .ok_or_else(|| damaged_table("a chunk lies outside the grid"))?;
        if slot.size != 0 {
            return Err(damaged_table("two chunks in one place of the grid"));
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
    let overflow = || damaged_table("a chunk number out of range");
    if place[..unlimited].iter().any(|&p| p != 0) {
        return Err(damaged_table(
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
