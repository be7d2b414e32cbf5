//! How many remote bytes are fetched ahead of a sequential reader.
//!
//! Fetching costs time and bytes of a network, so a remote reader has to prove more than a local one: it must have read
//! most of the bytes within the span since its last jump. The window begins small and doubles only when the reader
//! reaches bytes that have not arrived. It is refilled once half of it was read, so that requests are large.

use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use npyfs_base::tuning::Tuning;
use parking_lot::Mutex;

/// The share of the cache that may be in flight ahead of all readers together.
const SHARE: u64 = 4;

/// The reading of one dataset by one reader. Usable from any thread.
#[derive(Debug, Default)]
pub struct Stream(Mutex<State>);

#[derive(Debug, Default)]
struct State {
    /// The span of the reads since the last jump, and their bytes.
    span: Range<u64>,
    read: u64,
    /// The last read, which may be repeated.
    last: Range<u64>,
    /// The end of the bytes requested ahead.
    asked: u64,
    window: u64,
    stalled: bool,
}

/// The criteria for sequential reading.
#[derive(Clone, Copy, Debug)]
pub struct Order {
    /// How many bytes out of order reads may be.
    pub slack: u64,
    /// Bytes that a reader must have read if it began with the first byte.
    pub from_start: u64,
    /// Bytes that a reader must have read if it began anywhere else.
    pub elsewhere: u64,
}

/// Bytes to fetch now, in parts.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Readahead {
    /// The bytes.
    pub range: Range<u64>,
    /// Bytes of a request.
    pub part: u64,
}

impl Stream {
    /// Records a read; returns whether the reader is sequential.
    pub fn reads(&self, read: Range<u64>, order: Order) -> bool {
        let mut state = self.0.lock();
        if state.last != read {
            let near = read.start <= state.span.end.saturating_add(order.slack)
                && read.end.saturating_add(order.slack) >= state.span.end
                && state.read > 0;
            if near {
                state.span.start = state.span.start.min(read.start);
                state.span.end = state.span.end.max(read.end);
                state.read = state.read.saturating_add(read.end - read.start);
            } else {
                *state = State {
                    span: read.clone(),
                    read: read.end - read.start,
                    ..State::default()
                };
            }
            state.last = read;
        }
        state.is_in_order(order)
    }

    /// Returns whether the reads so far were sequential.
    pub fn is_in_order(&self, order: Order) -> bool {
        self.0.lock().is_in_order(order)
    }

    /// Records that the reader reached bytes that had not arrived.
    pub fn stalls(&self) {
        self.0.lock().stalled = true;
    }

    /// Returns the bytes to fetch now for a sequential reader at `at`, if any: at most `most` bytes ahead, up to `end`.
    pub fn ahead(&self, at: u64, most: u64, end: u64) -> Option<Readahead> {
        let mut state = self.0.lock();
        if state.window == 0 {
            state.window = Tuning::STREAM_WINDOW;
            // The reader has waited for a request of its own.
            state.stalled = false;
        }
        let from = state.asked.max(at);
        if from - at > state.window / 2 || from >= end {
            return None;
        }
        if std::mem::take(&mut state.stalled) {
            state.window = state.window.saturating_mul(2);
        }
        state.window = state.window.min(most);
        let to = at.saturating_add(state.window).min(end);
        if to <= from {
            return None;
        }
        state.asked = to;
        let (least, largest) = (*Tuning::PARTS.start(), *Tuning::PARTS.end());
        Some(Readahead {
            range: from..to,
            part: (state.window / 4).clamp(least, largest),
        })
    }

    /// Records that nothing was requested from `at` on, for lack of room.
    pub fn stops_at(&self, at: u64) {
        let mut state = self.0.lock();
        state.asked = state.asked.min(at);
    }
}

impl State {
    fn is_in_order(&self, order: Order) -> bool {
        let enough = match self.span.start {
            0 => order.from_start,
            _ => order.elsewhere,
        };
        let most = (self.span.end - self.span.start) / 2;
        self.read >= enough && self.read > most
    }
}

/// The limit of bytes in flight ahead of all readers of one mount.
pub struct Fetches {
    most: u64,
    taken: AtomicU64,
}

/// Room for bytes in flight; released on drop.
pub struct Room {
    fetches: Arc<Fetches>,
    bytes: u64,
}

impl Fetches {
    /// Creates the limit from the size of a cache.
    pub fn new(cache: u64) -> Self {
        Self {
            most: cache / SHARE,
            taken: AtomicU64::new(0),
        }
    }

    /// Returns the limit in bytes.
    pub fn most(&self) -> u64 {
        self.most
    }

    /// Takes room for this many bytes, if there is enough.
    pub fn take(self: &Arc<Self>, bytes: u64) -> Option<Room> {
        let more = |taken: u64| taken.checked_add(bytes).filter(|&sum| sum <= self.most);
        self.taken.fetch_update(Relaxed, Relaxed, more).ok()?;
        Some(Room {
            fetches: self.clone(),
            bytes,
        })
    }
}

impl Drop for Room {
    fn drop(&mut self) {
        self.fetches.taken.fetch_sub(self.bytes, Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: u64 = 1 << 20;
    const ORDER: Order = Order {
        slack: 8 * MIB,
        from_start: 256 << 10,
        elsewhere: 4 * MIB,
    };

    #[test]
    fn a_reader_in_order_is_told_from_one_at_random() {
        let stream = Stream::default();
        assert!(!stream.reads(0..4096, ORDER));
        assert!(stream.reads(4096..MIB, ORDER));
        assert!(stream.reads(2 * MIB..3 * MIB, ORDER));
        assert!(!stream.reads(50 * MIB..51 * MIB, ORDER));
        for at in 51..53 {
            assert!(!stream.reads(at * MIB..(at + 1) * MIB, ORDER));
        }
        // A repeated read is no progress.
        assert!(!stream.reads(52 * MIB..53 * MIB, ORDER));
        assert!(stream.reads(53 * MIB..54 * MIB, ORDER));
        // Scattered reads in a small array.
        let stream = Stream::default();
        for at in [0, 70, 31, 90, 12, 55, 63, 40] {
            let at = at * (64 << 10);
            assert!(!stream.reads(at..at + (64 << 10), ORDER));
        }
    }

    #[test]
    fn more_is_fetched_for_a_reader_who_waits() {
        let stream = Stream::default();
        let first = stream.ahead(MIB, 64 * MIB, 1 << 40).unwrap();
        assert_eq!(first.range, MIB..MIB + Tuning::STREAM_WINDOW);
        assert!(stream.ahead(2 * MIB, 64 * MIB, 1 << 40).is_none());
        let at = MIB + Tuning::STREAM_WINDOW / 2;
        let next = stream.ahead(at, 64 * MIB, 1 << 40).unwrap();
        assert_eq!(next.range, first.range.end..at + Tuning::STREAM_WINDOW);
        stream.stalls();
        let next = stream.ahead(next.range.end, 64 * MIB, 1 << 40).unwrap();
        assert_eq!(next.range.end - next.range.start, 2 * Tuning::STREAM_WINDOW);
        let mut at = next.range.end;
        for _ in 0..10 {
            stream.stalls();
            at = stream.ahead(at, 64 * MIB, 1 << 40).unwrap().range.end;
        }
        let last = stream.ahead(at, 64 * MIB, 1 << 40).unwrap();
        assert_eq!(last.range, at..at + 64 * MIB);
        assert_eq!(last.part, 8 * MIB);
        stream.stops_at(at);
        let rest = stream.ahead(at, 64 * MIB, at + 5).unwrap();
        assert_eq!(rest.range, at..at + 5);
    }

    #[test]
    fn what_is_under_way_is_bounded() {
        let fetches = Arc::new(Fetches::new(64 * MIB));
        let room = fetches.take(12 * MIB).unwrap();
        assert!(fetches.take(5 * MIB).is_none());
        drop(room);
        assert!(fetches.take(16 * MIB).is_some());
    }
}
