//! The blocks that objects are fetched and kept in.

use std::ops::Range;

use crate::blobs::Bits;

/// Bytes of a block. HDF5 metadata is scattered: larger blocks cost bytes, smaller ones cost requests.
pub(super) const BLOCK: u64 = 8 << 10;

/// Returns the blocks that a byte range overlaps.
pub(super) fn touched(bytes: &Range<u64>) -> Range<u64> {
    match bytes.is_empty() {
        true => 0..0,
        false => bytes.start / BLOCK..bytes.end.div_ceil(BLOCK),
    }
}

/// Returns the byte range of some blocks of an object.
pub(super) fn bytes_of(blocks: &Range<u64>, size: u64) -> Range<u64> {
    let end = blocks.end.saturating_mul(BLOCK).min(size);
    blocks.start.saturating_mul(BLOCK).min(end)..end
}

/// Makes an empty set of the blocks of an object; `None` if it is too large to count them.
pub(super) fn no_blocks(size: u64) -> Option<Bits> {
    Bits::new(size.div_ceil(BLOCK))
}

/// Joins runs of blocks that are at most `gap` blocks apart, and splits runs longer than `most`.
pub(super) fn requests(mut blocks: Vec<u64>, gap: u64, most: u64) -> Vec<Range<u64>> {
    blocks.sort_unstable();
    let mut runs: Vec<Range<u64>> = Vec::new();
    for block in blocks {
        match runs.last_mut() {
            Some(run)
                if block <= run.end.saturating_add(gap)
                    && block.saturating_sub(run.start) < most =>
            {
                run.end = run.end.max(block + 1);
            }
            _ => runs.push(block..block + 1),
        }
    }
    runs
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranges_and_blocks() {
        assert_eq!(touched(&(0..1)), 0..1);
        assert_eq!(touched(&(BLOCK - 1..BLOCK + 1)), 0..2);
        assert!(touched(&(5..5)).is_empty());
        assert_eq!(bytes_of(&(1..3), 2 * BLOCK + 7), BLOCK..2 * BLOCK + 7);
        assert_eq!(bytes_of(&(9..10), 5), 5..5);
    }

    #[test]
    fn near_blocks_are_asked_for_together() {
        assert_eq!(requests(vec![3, 1, 2, 9], 0, 100), [1..4, 9..10]);
        assert_eq!(requests(vec![1, 4, 20], 2, 100), [1..5, 20..21]);
        assert_eq!(requests((0..10).collect(), 0, 4), [0..4, 4..8, 8..10]);
        assert!(requests(Vec::new(), 1, 1).is_empty());
    }
}
