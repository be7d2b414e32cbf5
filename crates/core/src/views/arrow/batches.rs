//! The batches of rows that a table is cut into.

use std::ops::Range;

/// The rows that a batch should have.
const WANTED: u64 = 1 << 20;

/// The bytes that the rows of a batch should have at most, where columns lie side by side in them: what one column had
/// decoded is still there for the next.
const WIDEST: u64 = 64 << 20;

/// The largest chunk that is kept whole, in batches.
const LARGEST: u64 = 8;

/// The most batches of a table, and the most columns of all batches: a file may say that it has 2^60 rows.
const MOST: u64 = 4096;
const MOST_PARTS: u64 = 1 << 18;

/// Batches of rows, all but the last of one size.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Batches {
    /// Rows of the table.
    pub(super) rows: u64,
    /// Rows of a batch, at least one.
    size: u64,
}

impl Batches {
    /// Cuts the rows of a table into batches. `chunk`: the rows of a chunk, which a batch should not cut; `row`: the
    /// bytes of a row in which columns lie side by side.
    pub(super) fn new(rows: u64, columns: usize, chunk: Option<u64>, row: u64) -> Self {
        let wanted = (WIDEST / row.max(1)).clamp(1, WANTED);
        let size = match chunk.filter(|&chunk| chunk > 0) {
            Some(chunk) if chunk < wanted => wanted / chunk * chunk,
            Some(chunk) if chunk <= LARGEST * wanted => chunk,
            _ => wanted,
        };
        let most = (MOST_PARTS / (columns as u64).max(1)).clamp(1, MOST);
        let times = rows.div_ceil(size).div_ceil(most).max(1);
        Self {
            rows,
            size: size.saturating_mul(times),
        }
    }

    /// Returns all rows as one batch.
    pub(super) fn one(rows: u64) -> Self {
        Self {
            rows,
            size: rows.max(1),
        }
    }

    /// Returns the rows of each batch.
    pub(super) fn iter(self) -> impl Iterator<Item = Range<u64>> {
        let count = self.rows.div_ceil(self.size);
        (0..count).map(move |number| {
            let start = number * self.size;
            start..start.saturating_add(self.size).min(self.rows)
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn batches_end_where_chunks_end() {
        let first = |rows, chunk| Batches::new(rows, 20, chunk, 0).iter().next();
        assert_eq!(first(10, None), Some(0..10));
        assert_eq!(first(3 << 20, Some(1000)), Some(0..1_048_000));
        assert_eq!(first(3 << 20, Some(2_000_000)), Some(0..2_000_000));
        assert_eq!(first(3 << 30, Some(1 << 30)), Some(0..1 << 20));
        assert_eq!(first(3 << 20, Some(0)), Some(0..1 << 20));
        assert_eq!(first(0, Some(5)), None);
        let wide = Batches::new(1 << 20, 20, Some(1 << 10), 1 << 10);
        assert_eq!(wide.iter().next(), Some(0..1 << 16));
        let ends: Vec<u64> = Batches::new(2_500_000, 20, Some(1_000_000), 8)
            .iter()
            .map(|rows| rows.end)
            .collect();
        assert_eq!(ends, [1_000_000, 2_000_000, 2_500_000]);
        assert_eq!(Batches::new(u64::MAX, 20, None, 0).iter().count(), 4096);
        assert_eq!(Batches::new(1 << 50, 1 << 20, None, 0).iter().count(), 1);
        assert_eq!(Batches::one(7).iter().next(), Some(0..7));
        assert_eq!(Batches::one(0).iter().count(), 0);
    }
}
