//! Detects the access pattern of an open file: sequential, random, or a single sample.
//!
//! There is one detector for each handle, which receives byte ranges, and one for each dataset below it, which receives
//! blocks: a block is to a dataset what a request of the kernel is to a handle. The result is a guess that affects
//! speed only. The detector fetches nothing itself: `prefetch` asks it for the next blocks.

use std::collections::HashMap;
use std::ops::Range;

use parking_lot::Mutex;

use crate::dataset::stream::Stream;
use npyfs_base::tuning::Tuning;

/// The most blocks of which it is recorded how much was read.
const MOST_PARTLY: usize = 1 << 14;

/// One block is fetched ahead for so many that were read. With one for each, 3 MiB out of chunks of 12 KiB (gzip) took a
/// fifth longer.
const PART_AHEAD: u64 = 4;

/// How often the number of blocks fetched ahead is doubled at most: no machine has more bytes.
const MOST_DOUBLED: u32 = 16;

/// A detector of access patterns. Usable from any thread.
#[derive(Debug, Default)]
pub struct AccessPattern {
    state: Mutex<State>,
    /// Sequential reads of remote bytes.
    pub stream: Stream,
}

#[derive(Debug, Default)]
struct State {
    /// The span of the bytes read, if any.
    span: Option<ReadSpan>,
    /// The block at which the reader began or that it jumped to.
    first: u64,
    /// The last block that was read, and how many of its bytes were.
    last: Option<u64>,
    of_last: u64,
    /// The end of the blocks that were requested ahead.
    asked: u64,
    /// Sequential steps since the last jump.
    steps: u32,
    /// Whether the steps began with the first block.
    from_start: bool,
    /// How often the prefetch distance was doubled since the last jump.
    doubled: u32,
    /// Bytes read so far of partly read blocks.
    partly: HashMap<u64, u64>,
    /// The phase at which requests begin, and the number of consecutive requests that did not.
    phase: Option<u64>,
    astray: u32,
}

/// The bytes that were read through one handle: a single range, or several.
#[derive(Clone, Copy, Debug)]
pub struct ReadSpan {
    /// The offset of the first byte.
    pub start: u64,
    /// The end of the last byte.
    pub end: u64,
    /// The end of the last read.
    last: u64,
    /// Whether there were reads outside of a single range.
    scattered: bool,
    /// Whether it began where another handle had stopped.
    follows: bool,
}

impl ReadSpan {
    /// Returns true if it may be a single sample of a file of `len` bytes.
    pub fn is_sample(&self, len: u64) -> bool {
        let short = self.end - self.start <= len / 4;
        self.start > 0 && short && !self.scattered && !self.follows
    }

    /// Returns true if a reader that continues at `at` may have read sequentially through this handle before, in a file
    /// of `len` bytes. Requests of one reader are at most `under_way` bytes apart.
    pub fn leads_to(&self, at: u64, len: u64, under_way: u64) -> bool {
        let within = self.start <= at && at <= self.end.saturating_add(under_way);
        !self.is_sample(len) && (within || at.abs_diff(self.last) <= under_way)
    }
}

/// One step of a reader from block to block, for the prefetcher.
#[derive(Clone, Copy, Debug)]
pub struct ReadStep {
    /// The block that is read.
    pub block: u64,
    /// The number of blocks to fetch ahead of a reader that has read few.
    pub least: u64,
    /// The most blocks to fetch ahead while the reader has not waited for one.
    pub depth: u64,
    /// The most blocks to fetch ahead.
    pub most: u64,
    /// The end of all blocks.
    pub end: u64,
    /// Steps after which a reader that began in the middle counts as sequential.
    pub patience: u32,
    /// How many blocks out of order requests may be.
    pub slack: u64,
    /// Bytes of a block, if no block is returned to for the next row.
    pub bytes: Option<u64>,
}

impl State {
    /// Returns whether a reader has read little of its last block and goes on behind the next: it takes samples.
    fn leaves_out(&self, last: u64, step: &ReadStep) -> bool {
        let most = step.bytes.map_or(0, |bytes| bytes / 2);
        step.block - last > 1 && (1..most).contains(&self.of_last)
    }
}

impl AccessPattern {
    /// Records a read; reads of one range may come in any order. Returns true for the first read.
    pub fn note(&self, offset: u64, len: u64) -> bool {
        let mut state = self.state.lock();
        let end = offset.saturating_add(len);
        let Some(seen) = state.span.as_mut() else {
            state.span = Some(ReadSpan {
                start: offset,
                end,
                last: end,
                scattered: false,
                follows: false,
            });
            return true;
        };
        seen.last = end;
        if offset <= seen.end && end >= seen.start {
            seen.start = seen.start.min(offset);
            seen.end = seen.end.max(end);
        } else {
            seen.scattered = true;
        }
        false
    }

    /// Records that the first read began where another handle had stopped.
    pub fn follows(&self) {
        if let Some(span) = self.state.lock().span.as_mut() {
            span.follows = true;
        }
    }

    /// Returns the span of the bytes read; `None` if there were none.
    pub fn span(&self) -> Option<ReadSpan> {
        self.state.lock().span
    }

    /// Records that a block is read, and returns the blocks to fetch now, at most `depth` of them and below `end`.
    ///
    /// The kernel reads ahead of a single sample, too, hence `patience`. Requests of one reader are served
    /// concurrently, hence `slack`.
    pub fn reads(&self, step: ReadStep) -> Range<u64> {
        let mut state = self.state.lock();
        let block = step.block;
        match state.last {
            Some(last) if block <= last && last - block <= step.slack => 0..0,
            Some(last)
                if block > last && block - last <= step.slack && !state.leaves_out(last, &step) =>
            {
                state.last = Some(block);
                state.of_last = 0;
                state.steps = state.steps.saturating_add(1);
                if !state.from_start && state.steps < step.patience {
                    return 0..0;
                }
                let depth = step.depth.saturating_mul(1 << state.doubled);
                // A part of what was read: a reader of a slice does not pay for much behind the slice.
                let part = (block + 1).saturating_sub(state.first) / PART_AHEAD;
                let depth = depth.min(step.most).max(step.depth);
                let depth = depth.min(part.max(step.least));
                let from = state.asked.max(block + 1);
                let to = (block + 1).saturating_add(depth).min(step.end).max(from);
                state.asked = to;
                from..to
            }
            _ => {
                state.first = block;
                state.last = Some(block);
                state.of_last = 0;
                state.asked = block + 1;
                state.steps = 0;
                state.doubled = 0;
                state.from_start = block == 0;
                0..0
            }
        }
    }

    /// Records that `read` bytes of a block were read. Counts those of the last block only.
    pub fn took(&self, block: u64, read: u64) {
        let mut state = self.state.lock();
        if state.last == Some(block) {
            state.of_last = state.of_last.saturating_add(read);
        }
    }

    /// Records that the reader waits for a block in flight while the decode pool is idle: doubles the number of blocks
    /// fetched ahead.
    pub fn waits(&self) {
        let mut state = self.state.lock();
        state.doubled = (state.doubled + 1).min(MOST_DOUBLED);
    }

    /// Returns the offset, modulo their size, at which blocks of `size` bytes should begin for a reader that requests
    /// `len` bytes at `at`: that of its requests, so that each is within one block.
    pub fn phase(&self, at: u64, len: u64, size: u64) -> u64 {
        let mut state = self.state.lock();
        let here = at % size;
        let phase = *state.phase.get_or_insert(here);
        let inside = (here + size - phase) % size;
        if inside.saturating_add(len) <= size {
            state.astray = 0;
            return phase;
        }
        state.astray += 1;
        if state.astray < 2 {
            return phase;
        }
        state.astray = 0;
        *state.phase.insert(here)
    }

    /// Returns true if the reader has reached a block, so that it need not be fetched ahead any more.
    pub fn has_reached(&self, block: u64) -> bool {
        self.state.lock().last.is_some_and(|last| last >= block)
    }

    /// Returns true if the reads so far, if any, may be the beginning of a sequential pass.
    pub fn is_in_order(&self) -> bool {
        let state = self.state.lock();
        state.last.is_none() || state.from_start || state.steps >= Tuning::SETTLED
    }

    /// Returns true if blocks have been read sequentially for a while.
    pub fn is_settled(&self) -> bool {
        self.state.lock().steps >= Tuning::SETTLED
    }

    /// Records that `read` more bytes of a block of `len` were read; true once that is all of them.
    ///
    /// Bytes that are read twice count twice. The result is a guess, good enough only to evict a block that could be
    /// decoded again.
    pub fn is_consumed(&self, block: u64, read: u64, len: u64) -> bool {
        let mut state = self.state.lock();
        if read >= len {
            state.partly.remove(&block);
            return true;
        }
        if state.partly.len() >= MOST_PARTLY {
            state.partly.clear();
        }
        let sum = state.partly.entry(block).or_default();
        *sum += read;
        let all = *sum >= len;
        if all {
            state.partly.remove(&block);
        }
        all
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn reads(pattern: &AccessPattern, block: u64, end: u64, slack: u64) -> Range<u64> {
        pattern.reads(ReadStep {
            block,
            least: 2,
            depth: 4,
            most: 16,
            end,
            patience: 3,
            slack,
            bytes: Some(100),
        })
    }

    #[test]
    fn the_second_block_in_order_starts_it() {
        let s = AccessPattern::default();
        assert!(s.is_in_order());
        assert!(reads(&s, 0, 100, 2).is_empty());
        assert!(reads(&s, 0, 100, 2).is_empty());
        assert!(s.is_in_order());
        assert_eq!(reads(&s, 1, 100, 2), 2..4);
        assert_eq!(reads(&s, 2, 100, 2), 4..5);
        assert!(s.is_settled());
        assert!(reads(&s, 1, 100, 2).is_empty());
        assert!(s.has_reached(2) && !s.has_reached(3));
        // A reader that begins elsewhere needs more steps.
        assert!(reads(&s, 50, 100, 2).is_empty());
        assert!(!s.is_settled() && !s.is_in_order());
        assert!(reads(&s, 51, 100, 2).is_empty());
        assert!(reads(&s, 52, 100, 2).is_empty());
        assert_eq!(reads(&s, 53, 55, 2), 54..55);
        assert!(reads(&s, 54, 55, 2).is_empty());
    }

    #[test]
    fn a_part_of_what_was_read_is_fetched_ahead() {
        let s = AccessPattern::default();
        let ahead = |s: &AccessPattern, block| reads(s, block, 1000, 2).end - (block + 1);
        reads(&s, 0, 1000, 2);
        let found: Vec<u64> = (1..20).map(|block| ahead(&s, block)).collect();
        assert_eq!(found[..10], [2; 10]);
        assert_eq!(found[10..], [3, 3, 3, 3, 4, 4, 4, 4, 4]);
        s.waits();
        s.waits();
        let found: Vec<u64> = (20..70).map(|block| ahead(&s, block)).collect();
        assert_eq!(found[..4], [5, 5, 5, 6]);
        assert_eq!(found[43..], [16; 7]);
        // What counts is read since the last jump.
        reads(&s, 500, 1000, 2);
        for block in 501..503 {
            reads(&s, block, 1000, 2);
        }
        assert_eq!(ahead(&s, 503), 2);
    }

    #[test]
    fn more_is_fetched_for_a_reader_who_waits_until_he_jumps() {
        let s = AccessPattern::default();
        for block in 0..100 {
            reads(&s, block, 1000, 2);
        }
        assert_eq!(reads(&s, 100, 1000, 2), 104..105);
        s.waits();
        assert_eq!(reads(&s, 101, 1000, 2), 105..110);
        (0..100).for_each(|_| s.waits());
        assert_eq!(reads(&s, 102, 1000, 2), 110..119);
        reads(&s, 500, 1000, 2);
        for block in 501..525 {
            reads(&s, block, 1000, 2);
        }
        assert_eq!(reads(&s, 525, 1000, 2), 529..530);
    }

    #[test]
    fn requests_of_one_reader_may_be_served_at_the_same_time() {
        let s = AccessPattern::default();
        // Two requests of 16 blocks each, alternating; then the rows of a chunk row return to its first block.
        for block in 0..16 {
            reads(&s, block, 100, 20);
            reads(&s, 16 + block, 100, 20);
        }
        assert!(s.is_settled() && s.is_in_order());
        assert!(reads(&s, 12, 100, 20).is_empty());
        assert_eq!(reads(&s, 32, 100, 20), 36..37);
        // A larger distance is a jump.
        assert!(reads(&s, 60, 100, 20).is_empty());
        assert!(!s.is_settled());
    }

    #[test]
    fn a_reader_that_leaves_out_blocks_takes_samples() {
        let taken = |bytes| {
            let s = AccessPattern::default();
            reads(&s, 0, 100, 8);
            s.took(0, bytes);
            let ahead = reads(&s, 4, 100, 8);
            s.took(4, bytes);
            (ahead, reads(&s, 8, 100, 8))
        };
        assert_eq!(taken(10), (0..0, 0..0));
        assert_eq!(taken(60), (5..7, 9..11));
        assert_eq!(taken(100), (5..7, 9..11));
        // The next block may begin anywhere in the last.
        let s = AccessPattern::default();
        reads(&s, 0, 100, 8);
        s.took(0, 10);
        assert_eq!(reads(&s, 1, 100, 8), 2..4);
    }

    #[test]
    fn blocks_begin_where_requests_do() {
        let s = AccessPattern::default();
        assert_eq!(s.phase(2148, 1000, 1000), 148);
        assert_eq!(s.phase(3148, 1000, 1000), 148);
        assert_eq!(s.phase(4148, 500, 1000), 148);
        // A single request out of phase has no effect yet.
        assert_eq!(s.phase(4648, 1000, 1000), 148);
        assert_eq!(s.phase(6148, 1000, 1000), 148);
        assert_eq!(s.phase(7648, 1000, 1000), 148);
        assert_eq!(s.phase(8648, 1000, 1000), 648);
        assert_eq!(s.phase(9000, 10, 1000), 648);
    }

    #[test]
    fn a_block_is_consumed_when_all_its_bytes_were_read() {
        let s = AccessPattern::default();
        assert!(s.is_consumed(0, 10, 10));
        assert!(!s.is_consumed(1, 4, 10));
        assert!(!s.is_consumed(2, 9, 10));
        assert!(s.is_consumed(1, 6, 10));
        assert!(!s.is_consumed(1, 4, 10));
    }
}
