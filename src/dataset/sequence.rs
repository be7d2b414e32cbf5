//! The access pattern of one open file: reads in order or not, and the pieces that have been read to their end.

use std::collections::HashMap;
use std::ops::Range;
use std::sync::{Mutex, MutexGuard};

/// Steps in order after which reading counts as sequential.
const SETTLED: u32 = 2;

/// Pieces of which is remembered how much was read.
const MOST_PARTLY: usize = 1 << 14;

#[derive(Debug, Default)]
struct State {
    /// The piece read last.
    last: Option<u64>,
    /// The end of the pieces that were asked for ahead.
    asked: u64,
    /// Steps in order since the last jump.
    steps: u32,
    /// True if the steps began with the first piece.
    from_start: bool,
    /// Bytes read of pieces that were read in part.
    partly: HashMap<u64, u64>,
    /// The phase at which requests begin, and the number in a row that did not.
    phase: Option<u64>,
    astray: u32,
}

/// The detector of sequential reading, one for each open file.
#[derive(Debug, Default)]
pub struct Sequence {
    state: Mutex<State>,
}

impl Sequence {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(|e| e.into_inner())
    }

    /// Notes that a piece is read, and returns the pieces to fetch now, at most `depth` of them and below `end`.
    ///
    /// Who begins in the middle is believed to go on after `patience` steps only: the kernel reads ahead of
    /// a single sample, too. Pieces may be out of order by `slack`: requests of one reader are served at the same time.
    pub fn reads(&self, piece: u64, depth: u64, end: u64, patience: u32, slack: u64) -> Range<u64> {
        let mut state = self.state();
        match state.last {
            Some(last) if piece <= last && last - piece <= slack => 0..0,
            Some(last) if piece > last && piece - last <= slack => {
                state.last = Some(piece);
                state.steps = state.steps.saturating_add(1);
                if !state.from_start && state.steps < patience {
                    return 0..0;
                }
                let from = state.asked.max(piece + 1);
                let to = (piece + 1).saturating_add(depth).min(end).max(from);
                state.asked = to;
                from..to
            }
            _ => {
                state.last = Some(piece);
                state.asked = piece + 1;
                state.steps = 0;
                state.from_start = piece == 0;
                0..0
            }
        }
    }

    /// Returns the offset at which blocks of `size` bytes should begin, modulo their size, for a reader who asks for
    /// `len` bytes at `at`: where his requests do, so that each is in one block.
    pub fn phase(&self, at: u64, len: u64, size: u64) -> u64 {
        let mut state = self.state();
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

    /// Returns true if the reader has got to a piece, so that nobody need fetch it for him any more.
    pub fn has_reached(&self, piece: u64) -> bool {
        self.state().last.is_some_and(|last| last >= piece)
    }

    /// Returns true if all that was read, if anything, may be the beginning of a pass in order.
    pub fn is_in_order(&self) -> bool {
        let state = self.state();
        state.last.is_none() || state.from_start || state.steps >= SETTLED
    }

    /// Returns true if pieces have been read in order for a while.
    pub fn is_settled(&self) -> bool {
        self.state().steps >= SETTLED
    }

    /// Notes that `read` more bytes of a piece of `len` were read; true once that is all of them.
    ///
    /// Bytes that are read twice count twice: the answer is a guess, and only good for giving up a piece
    /// that could be had again.
    pub fn is_consumed(&self, piece: u64, read: u64, len: u64) -> bool {
        let mut state = self.state();
        if read >= len {
            state.partly.remove(&piece);
            return true;
        }
        if state.partly.len() >= MOST_PARTLY {
            state.partly.clear();
        }
        let sum = state.partly.entry(piece).or_default();
        *sum += read;
        let all = *sum >= len;
        if all {
            state.partly.remove(&piece);
        }
        all
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_second_piece_in_order_starts_it() {
        let s = Sequence::default();
        assert!(s.is_in_order());
        assert!(s.reads(0, 4, 100, 3, 2).is_empty());
        assert!(s.reads(0, 4, 100, 3, 2).is_empty());
        assert!(s.is_in_order());
        assert_eq!(s.reads(1, 4, 100, 3, 2), 2..6);
        assert_eq!(s.reads(2, 4, 100, 3, 2), 6..7);
        assert!(s.is_settled());
        assert!(s.reads(1, 4, 100, 3, 2).is_empty());
        assert!(s.has_reached(2) && !s.has_reached(3));
        // Who begins elsewhere has to go on for longer.
        assert!(s.reads(50, 4, 100, 3, 2).is_empty());
        assert!(!s.is_settled() && !s.is_in_order());
        assert!(s.reads(51, 4, 100, 3, 2).is_empty());
        assert!(s.reads(52, 4, 100, 3, 2).is_empty());
        assert_eq!(s.reads(53, 4, 55, 3, 2), 54..55);
        assert!(s.reads(54, 4, 55, 3, 2).is_empty());
    }

    #[test]
    fn requests_of_one_reader_may_be_served_at_the_same_time() {
        let s = Sequence::default();
        // Two of 16 pieces each, in turn; then rows of a band come back to its first piece.
        for piece in 0..16 {
            s.reads(piece, 4, 100, 3, 20);
            s.reads(16 + piece, 4, 100, 3, 20);
        }
        assert!(s.is_settled() && s.is_in_order());
        assert!(s.reads(12, 4, 100, 3, 20).is_empty());
        assert_eq!(s.reads(32, 4, 100, 3, 20), 36..37);
        // Further off is elsewhere.
        assert!(s.reads(60, 4, 100, 3, 20).is_empty());
        assert!(!s.is_settled());
    }

    #[test]
    fn blocks_begin_where_requests_do() {
        let s = Sequence::default();
        assert_eq!(s.phase(2148, 1000, 1000), 148);
        assert_eq!(s.phase(3148, 1000, 1000), 148);
        assert_eq!(s.phase(4148, 500, 1000), 148);
        // One that does not fit is nothing yet.
        assert_eq!(s.phase(4648, 1000, 1000), 148);
        assert_eq!(s.phase(6148, 1000, 1000), 148);
        assert_eq!(s.phase(7648, 1000, 1000), 148);
        assert_eq!(s.phase(8648, 1000, 1000), 648);
        assert_eq!(s.phase(9000, 10, 1000), 648);
    }

    #[test]
    fn a_piece_is_consumed_when_all_its_bytes_were_read() {
        let s = Sequence::default();
        assert!(s.is_consumed(0, 10, 10));
        assert!(!s.is_consumed(1, 4, 10));
        assert!(!s.is_consumed(2, 9, 10));
        assert!(s.is_consumed(1, 6, 10));
        assert!(!s.is_consumed(1, 4, 10));
    }
}
