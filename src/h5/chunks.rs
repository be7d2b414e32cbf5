//! The chunk table of a dataset: for every place of the current grid where its chunk is stored.
//!
//! libhdf5's list of chunks is checked, not believed: coordinates of extensible arrays are turned back
//! (it lists them with the unlimited dimension in the wrong place), and a table that cannot be true is
//! refused.

use super::ffi::{self, Id, StoredChunk};
use super::{ChunkTable, H5Error, Slot};

/// Places of a table, 32 MiB of memory; a dataset with more is read through libhdf5.
const MOST: u64 = 1 << 21;

/// The table of a chunked dataset; `None` if it is too large to hold.
///
/// `shape` and `max` (`u64::MAX`: unlimited) are the dataset's own, `chunk` its chunk shape.
pub fn table(
    dataset: &Id,
    shape: &[u64],
    max: &[u64],
    chunk: &[u64],
) -> Result<Option<ChunkTable>, H5Error> {
    let grid: Vec<u64> = shape
        .iter()
        .zip(chunk)
        .map(|(d, c)| d.div_ceil(*c))
        .collect();
    let places = grid.iter().try_fold(1_u64, |n, &d| n.checked_mul(d));
    let Some(places) = places
        .filter(|&n| n <= MOST)
        .and_then(|n| usize::try_from(n).ok())
    else {
        return Ok(None);
    };
    // Chunks outside the current shape may still be stored: allow for some, refuse a flood.
    let Some(stored) = ffi::stored_chunks(dataset, shape.len(), places.saturating_mul(2) + 4096)?
    else {
        return Ok(None);
    };
    let turned = if ffi::has_extensible_array(dataset)? {
        max.iter().position(|&n| n == u64::MAX).filter(|&u| u > 0)
    } else {
        None
    };
    let mut slots = vec![Slot::default(); places];
    for StoredChunk {
        start,
        addr,
        size,
        mask,
    } in stored
    {
        let mut place: Vec<u64> = start.iter().zip(chunk).map(|(s, c)| s / c).collect();
        if start.iter().zip(chunk).any(|(s, c)| s % c != 0) {
            return Err(damaged("a chunk does not start on the grid"));
        }
        if let Some(unlimited) = turned {
            place = turn_back(&place, unlimited, max, chunk)?;
        }
        if place.iter().zip(&grid).any(|(p, n)| p >= n) {
            continue;
        }
        let at = place.iter().zip(&grid).fold(0, |at, (p, n)| at * n + p);
        let slot = usize::try_from(at)
            .ok()
            .and_then(|at| slots.get_mut(at))
            .ok_or_else(|| damaged("a chunk lies outside the grid"))?;
        if slot.size != 0 {
            return Err(damaged("two chunks in one place of the grid"));
        }
        *slot = Slot {
            addr,
            size: u32::try_from(size).map_err(|_| damaged("a chunk of 4 GiB or more"))?,
            mask,
        };
    }
    check_overlap(&slots)?;
    Ok(Some(ChunkTable { slots }))
}

fn damaged(why: &str) -> H5Error {
    H5Error::Damaged(format!("chunk table: {why}"))
}

/// The true place of a chunk of an extensible array.
///
/// libhdf5 numbers the chunks with the unlimited dimension slowest, but counts its coordinates up as if
/// it were where it is. The number is therefore the row-major one over the maximum grid, in which only the
/// unlimited dimension and those behind it ever move.
fn turn_back(
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

/// No two chunks share a byte.
fn check_overlap(slots: &[Slot]) -> Result<(), H5Error> {
    let mut extents: Vec<(u64, u64)> = slots
        .iter()
        .filter(|slot| slot.size != 0)
        .map(|slot| (slot.addr, slot.addr.saturating_add(u64::from(slot.size))))
        .collect();
    extents.sort_unstable();
    if extents.windows(2).any(|pair| pair[0].1 > pair[1].0) {
        return Err(damaged("two chunks overlap"));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_of_extensible_arrays_are_turned_back() {
        // Maximum grid 3 × unlimited: number 0, 1, 2 is the first column, 3 the top of the second.
        let max = [30, u64::MAX];
        let chunk = [10, 10];
        let turned = |n| turn_back(&[0, n], 1, &max, &chunk).unwrap();
        assert_eq!(turned(0), [0, 0]);
        assert_eq!(turned(2), [2, 0]);
        assert_eq!(turned(3), [0, 1]);
        // 2 × unlimited × 4: libhdf5 counts the last dimension and carries into the middle one.
        let max = [2, u64::MAX, 4];
        let chunk = [1, 1, 1];
        let turned = |m, n| turn_back(&[0, m, n], 1, &max, &chunk).unwrap();
        assert_eq!(turned(0, 3), [0, 0, 3]);
        assert_eq!(turned(1, 0), [1, 0, 0]);
        assert_eq!(turned(2, 1), [0, 1, 1]);
        assert!(turn_back(&[1, 0, 0], 1, &max, &chunk).is_err());
    }

    #[test]
    fn overlapping_chunks_are_refused() {
        let slot = |addr, size| Slot {
            addr,
            size,
            mask: 0,
        };
        assert!(check_overlap(&[slot(0, 10), Slot::default(), slot(10, 5)]).is_ok());
        assert!(check_overlap(&[slot(0, 11), slot(10, 5)]).is_err());
        assert!(check_overlap(&[slot(10, 5), slot(10, 5)]).is_err());
    }
}
