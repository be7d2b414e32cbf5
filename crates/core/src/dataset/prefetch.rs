//! Chooses which blocks to fetch ahead of a reader, for all content that is read in blocks.
//!
//! The kernel reads ahead, too. A sequential reader has two of its windows in flight: when the reader reaches the first
//! byte of one, the kernel requests the next. For a program that announces sequential reading (`posix_fadvise`, as
//! `cat`, `cp` and `sha256sum` do) windows are twice as large. The requests of a reader may be served concurrently, in
//! any order.
//!
//! The blocks to fetch follow the last one read. At first there are few: a reader of a slice does not wait for a disk and
//! processors that are busy with what comes behind the slice. Their number grows with what was read to a fixed number of
//! bytes, and beyond while the reader has to wait for blocks in flight, within the room that the cache has beside the
//! blocks being read.

use std::ops::Range;

use crate::dataset::access_pattern::{AccessPattern, ReadStep};
use npyfs_base::tuning::Tuning;

/// The prefetch rule of one mount.
#[derive(Clone, Debug)]
pub struct Prefetcher {
    tuning: Tuning,
    /// Bytes of the cache.
    cache: u64,
}

/// The blocks of a dataset that a reader visits.
#[derive(Clone, Copy, Debug)]
pub struct BlockSequence {
    /// Bytes of a block.
    pub bytes: u64,
    /// The number of blocks.
    pub count: u64,
    /// Blocks that a reader of rows returns to; 1 if none.
    pub row: u64,
    /// Blocks used by requests in flight.
    pub reading: u64,
}

impl Prefetcher {
    /// Creates the rule for a cache of this many bytes.
    pub fn new(tuning: Tuning, cache: u64) -> Self {
        Self { tuning, cache }
    }

    /// Returns the bytes that the kernel should read ahead, a multiple of a KiB.
    pub fn window(&self) -> u64 {
        let (least, most) = (*self.tuning.window.start(), *self.tuning.window.end());
        let bytes = self.cache / self.tuning.window_share / least * least;
        bytes.clamp(least, most)
    }

    /// Returns the most bytes of a file that one reader has in flight.
    pub fn under_way(&self) -> u64 {
        4 * self.window()
    }

    /// Returns how many blocks out of order requests may be.
    fn slack(&self, blocks: BlockSequence) -> u64 {
        (self.under_way() / blocks.bytes.max(1))
            .max(2)
            .max(blocks.row)
    }

    /// Returns how many steps from block to block a single sample may take: its own, and those of the kernel's
    /// read-ahead. A program that reads samples does not announce sequential reading.
    fn patience(&self, blocks: BlockSequence) -> u32 {
        let steps = (2 * self.window() / blocks.bytes.max(1)).max(2);
        u32::try_from(steps).unwrap_or(u32::MAX).saturating_add(2)
    }

    /// Returns the initial and the largest number of blocks to fetch ahead.
    fn depth(&self, blocks: BlockSequence) -> (u64, u64) {
        let bytes = blocks.bytes.max(1);
        let room = (self.cache / bytes).saturating_sub(blocks.reading) / 2;
        let (least, many) = (
            *self.tuning.ahead_blocks.start(),
            *self.tuning.ahead_blocks.end(),
        );
        let depth = (self.tuning.ahead / bytes).clamp(least, many);
        let growth = (self.tuning.most_ahead / self.tuning.ahead.max(1)).max(1);
        (depth.min(room), depth.saturating_mul(growth).min(room))
    }

    /// Records that a block is read, and returns the blocks to fetch now. `is_awaited` is called for a sequential
    /// reader: whether the block is still in flight while the decode pool is idle.
    pub fn reads(
        &self,
        pattern: &AccessPattern,
        blocks: BlockSequence,
        block: u64,
        is_awaited: impl FnOnce() -> bool,
    ) -> Range<u64> {
        if pattern.is_settled() && is_awaited() {
            pattern.waits();
        }
        let (depth, most) = self.depth(blocks);
        pattern.reads(ReadStep {
            block,
            least: *self.tuning.ahead_blocks.start(),
            depth,
            most,
            end: blocks.count,
            patience: self.patience(blocks),
            slack: self.slack(blocks),
            bytes: (blocks.row == 1).then_some(blocks.bytes),
        })
    }

    /// Returns the first blocks, to be fetched for a reader that is about to begin.
    pub fn first(&self, blocks: BlockSequence) -> Range<u64> {
        0..self.depth(blocks).0.min(blocks.count)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn prefetcher(cache: u64) -> Prefetcher {
        Prefetcher::new(Tuning::default(), cache)
    }

    fn blocks(bytes: u64) -> BlockSequence {
        BlockSequence {
            bytes,
            count: 1000,
            row: 1,
            reading: 4,
        }
    }

    #[test]
    fn a_quarter_of_a_small_cache_is_under_way() {
        let under_way = |cache| prefetcher(cache).under_way();
        assert_eq!(under_way(256 << 20), 8 << 20);
        assert_eq!(under_way(32 << 20), 8 << 20);
        assert_eq!(under_way(8 << 20), 2 << 20);
        assert_eq!(under_way(5_000_000), 1 << 20);
        assert_eq!(under_way(1 << 20), 512 << 10);
        assert_eq!(under_way(0), 512 << 10);
    }

    #[test]
    fn small_blocks_may_be_further_out_of_order() {
        let prefetcher = prefetcher(256 << 20);
        let numbers = |bytes| {
            let blocks = blocks(bytes);
            (prefetcher.slack(blocks), prefetcher.patience(blocks))
        };
        assert_eq!(numbers(1 << 20), (8, 6));
        assert_eq!(numbers(64 << 10), (128, 66));
        assert_eq!(numbers(1 << 30), (2, 4));
        assert_eq!(numbers(0), (8 << 20, (4 << 20) + 2));
        let rows = BlockSequence {
            row: 50,
            ..blocks(1 << 20)
        };
        assert_eq!(prefetcher.slack(rows), 50);
    }

    #[test]
    fn no_more_is_fetched_than_there_is_room_for() {
        assert_eq!(prefetcher(256 << 20).depth(blocks(1 << 20)), (8, 64));
        assert_eq!(prefetcher(256 << 20).depth(blocks(8 << 20)), (2, 14));
        assert_eq!(prefetcher(8 << 20).depth(blocks(1 << 20)), (2, 2));
        assert_eq!(prefetcher(8 << 20).depth(blocks(4 << 20)), (0, 0));
        assert_eq!(prefetcher(256 << 20).first(blocks(1 << 10)), 0..32);
    }
}
