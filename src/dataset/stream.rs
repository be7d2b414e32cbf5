//! How much of what lies elsewhere is fetched ahead of a reader in order.
//!
//! Fetching costs a network's time and its bytes, so that a reader has to show more than one whose store lies on a disk: what was read
//! since the last jump must be most of what lies between its ends. The window begins small and doubles only while the reader
//! comes to bytes that have not arrived; it is asked for again once half of it was read, so that requests are large.

use std::ops::Range;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex, MutexGuard};

use crate::tuning::Tuning;

/// The share of the cache that may be under way ahead of all readers together.
const SHARE: u64 = 4;

/// How one reader goes through the bytes of one dataset. Any thread may use it.
#[derive(Debug, Default)]
pub struct Stream(Mutex<State>);

#[derive(Debug, Default)]
struct State {
    /// The span of what was read since the last jump, and the bytes of it.
    span: Range<u64>,
    read: u64,
    /// The last read, which may come twice.
    last: Range<u64>,
    /// The end of what was asked for ahead.
    asked: u64,
    window: u64,
    stalled: bool,
}

/// What counts as reading in order.
#[derive(Clone, Copy, Debug)]
pub struct Order {
    /// Bytes by which reads may be out of order.
    pub slack: u64,
    /// Bytes that must have been read by one that began with the first byte.
    pub from_start: u64,
    /// Bytes that must have been read by one that began anywhere else.
    pub elsewhere: u64,
}

/// Bytes to fetch now, in parts.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Ahead {
    /// The bytes.
    pub range: Range<u64>,
    /// Bytes of a request.
    pub part: u64,
}

impl Stream {
    fn state(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(|e| e.into_inner())
    }

    /// Notes a read; returns whether the reader goes on in order.
    pub fn reads(&self, read: Range<u64>, order: Order) -> bool {
        let mut state = self.state();
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

    /// Returns whether what was read so far was in order.
    pub fn is_in_order(&self, order: Order) -> bool {
        self.state().is_in_order(order)
    }

    /// Notes that the reader came to bytes that had not arrived.
    pub fn stalls(&self) {
        self.state().stalled = true;
    }

    /// Returns what to fetch now for a reader in order who has got to `at`, if it is time: at most `most` bytes ahead, up to `end`.
    pub fn ahead(&self, at: u64, most: u64, end: u64) -> Option<Ahead> {
        let mut state = self.state();
        if state.window == 0 {
            state.window = Tuning::STREAM_WINDOW;
            // It has waited for what it asked for itself.
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
        Some(Ahead {
            range: from..to,
            part: (state.window / 4).clamp(least, largest),
        })
    }

    /// Notes that from `at` on nothing was asked for, for want of room.
    pub fn stops_at(&self, at: u64) {
        let mut state = self.state();
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

/// The bytes that may be under way ahead of the readers of one mount.
pub struct Fetches {
    most: u64,
    taken: AtomicU64,
}

/// Room for bytes under way, given back when it is dropped.
pub struct Room {
    fetches: Arc<Fetches>,
    bytes: u64,
}

impl Fetches {
    /// Makes room for a share of a cache.
    pub fn new(cache: u64) -> Self {
        Self {
            most: cache / SHARE,
            taken: AtomicU64::new(0),
        }
    }

    /// Returns the bytes that may be under way at all.
    pub fn most(&self) -> u64 {
        self.most
    }

    /// Takes room for so many bytes, if there is.
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
        // The same once more is no progress.
        assert!(!stream.reads(52 * MIB..53 * MIB, ORDER));
        assert!(stream.reads(53 * MIB..54 * MIB, ORDER));
        // Here and there in a small array.
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
