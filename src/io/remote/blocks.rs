//! Which blocks of an object are there: one bit for each.

use std::ops::Range;
use std::sync::atomic::{AtomicU64, Ordering};

/// Bytes of a block. Metadata of HDF5 lies scattered: larger blocks cost bytes, smaller ones requests.
pub(super) const BLOCK: u64 = 8 << 10;

/// Returns the blocks that a range of bytes touches.
pub(super) fn touched(bytes: &Range<u64>) -> Range<u64> {
    match bytes.is_empty() {
        true => 0..0,
        false => bytes.start / BLOCK..bytes.end.div_ceil(BLOCK),
    }
}

/// Returns the bytes of some blocks of an object.
pub(super) fn bytes_of(blocks: &Range<u64>, size: u64) -> Range<u64> {
    let end = blocks.end.saturating_mul(BLOCK).min(size);
    blocks.start.saturating_mul(BLOCK).min(end)..end
}

/// A set of blocks.
pub(super) struct Blocks(Vec<AtomicU64>);

impl Blocks {
    /// Makes an empty set of the blocks of an object; `None` if it is too large to count them.
    pub(super) fn new(size: u64) -> Option<Self> {
        let words = usize::try_from(size.div_ceil(BLOCK).div_ceil(64)).ok()?;
        let mut bits = Vec::new();
        bits.try_reserve_exact(words).ok()?;
        bits.resize_with(words, AtomicU64::default);
        Some(Self(bits))
    }

    fn place(&self, block: u64) -> Option<(&AtomicU64, u64)> {
        let word = self.0.get(usize::try_from(block / 64).ok()?)?;
        Some((word, 1 << (block % 64)))
    }

    /// Returns true if a block is in it.
    pub(super) fn has(&self, block: u64) -> bool {
        self.place(block)
            .is_some_and(|(word, bit)| word.load(Ordering::Acquire) & bit != 0)
    }

    /// Adds a block, whose bytes were written before.
    pub(super) fn add(&self, block: u64) {
        if let Some((word, bit)) = self.place(block) {
            word.fetch_or(bit, Ordering::Release);
        }
    }

    /// Returns the blocks that are in it, in order.
    pub(super) fn all(&self) -> impl Iterator<Item = u64> {
        let words = (0_u64..).zip(&self.0);
        words.flat_map(|(number, word)| {
            let bits = word.load(Ordering::Acquire);
            let set = (0..64).filter(move |bit| bits >> bit & 1 != 0);
            set.map(move |bit| number * 64 + bit)
        })
    }

    /// Takes all out.
    pub(super) fn clear(&self) {
        for word in &self.0 {
            word.store(0, Ordering::Release);
        }
    }
}

/// Joins runs of blocks that lie no further apart than `gap`, and cuts what is longer than `most`.
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
    fn blocks_are_added_and_taken_out() {
        let blocks = Blocks::new(200 * BLOCK).unwrap();
        blocks.add(0);
        blocks.add(130);
        assert!(blocks.has(0) && blocks.has(130) && !blocks.has(1) && !blocks.has(1000));
        assert_eq!(blocks.all().collect::<Vec<_>>(), [0, 130]);
        blocks.clear();
        assert!(!blocks.has(130) && blocks.all().next().is_none());
    }

    #[test]
    fn near_blocks_are_asked_for_together() {
        assert_eq!(requests(vec![3, 1, 2, 9], 0, 100), [1..4, 9..10]);
        assert_eq!(requests(vec![1, 4, 20], 2, 100), [1..5, 20..21]);
        assert_eq!(requests((0..10).collect(), 0, 4), [0..4, 4..8, 8..10]);
        assert!(requests(Vec::new(), 1, 1).is_empty());
    }
}
