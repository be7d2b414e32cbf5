//! Reading ahead: threads that decode the pieces a sequential reader will want next.
//!
//! A job only warms the cache. The reader takes over a piece that nobody has begun, and waits for one that
//! somebody has (the cache decodes each once). A job that fails says nothing: the reader meets the same
//! failure itself.

use std::collections::VecDeque;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Condvar, Mutex};

/// Jobs that may wait; a further one is not taken on.
const MOST_WAITING: usize = 64;

type Job = Box<dyn FnOnce() + Send>;

#[derive(Default)]
struct Queue {
    jobs: Mutex<(VecDeque<Job>, bool)>,
    changed: Condvar,
}

/// As many threads as there are cores; they end when this is dropped.
pub struct Ahead {
    queue: Arc<Queue>,
}

impl Ahead {
    pub fn new() -> Self {
        let queue = Arc::new(Queue::default());
        let threads = std::thread::available_parallelism().map_or(1, std::num::NonZero::get);
        for n in 0..threads {
            let queue = queue.clone();
            // Without a thread readers decode for themselves.
            let _ = std::thread::Builder::new()
                .name(format!("ahead-{n}"))
                .spawn(move || work(&queue));
        }
        Self { queue }
    }

    /// Takes a job on, unless too many wait.
    pub fn submit(&self, job: impl FnOnce() + Send + 'static) {
        let mut jobs = self.queue.jobs.lock().unwrap_or_else(|e| e.into_inner());
        if jobs.0.len() < MOST_WAITING {
            jobs.0.push_back(Box::new(job));
            self.queue.changed.notify_one();
        }
    }
}

impl Default for Ahead {
    fn default() -> Self {
        Self::new()
    }
}

impl Drop for Ahead {
    fn drop(&mut self) {
        self.queue.jobs.lock().unwrap_or_else(|e| e.into_inner()).1 = true;
        self.queue.changed.notify_all();
    }
}

fn work(queue: &Queue) {
    loop {
        let mut jobs = queue.jobs.lock().unwrap_or_else(|e| e.into_inner());
        let job = loop {
            if jobs.1 {
                return;
            }
            if let Some(job) = jobs.0.pop_front() {
                break job;
            }
            jobs = queue.changed.wait(jobs).unwrap_or_else(|e| e.into_inner());
        };
        drop(jobs);
        let _ = catch_unwind(AssertUnwindSafe(job));
    }
}

/// How far requests for pieces may be out of order.
const SWAPPED: u64 = 2;

/// Notices that the pieces of one open file are read one after the other.
#[derive(Debug, Default)]
pub struct Sequence {
    /// The piece read last, and how far ahead pieces were asked for.
    state: Mutex<Option<(u64, u64)>>,
}

impl Sequence {
    /// A piece is read; answers the pieces to fetch now, at most `depth` of them and below `end`.
    pub fn reads(&self, piece: u64, depth: u64, end: u64) -> std::ops::Range<u64> {
        let mut state = self.state.lock().unwrap_or_else(|e| e.into_inner());
        match *state {
            // Two requests of one reader may be served in either order.
            Some((last, _)) if piece <= last && last - piece <= SWAPPED => 0..0,
            Some((last, asked)) if piece > last && piece - last <= SWAPPED => {
                let from = asked.max(piece + 1);
                let to = (piece + 1).saturating_add(depth).min(end).max(from);
                *state = Some((piece, to));
                from..to
            }
            _ => {
                *state = Some((piece, piece + 1));
                0..0
            }
        }
    }
}

impl Sequence {
    /// Whether the reader has got to a piece, so that nobody need fetch it for him any more.
    pub fn has_reached(&self, piece: u64) -> bool {
        let state = self.state.lock().unwrap_or_else(|e| e.into_inner());
        state.is_some_and(|(last, _)| last >= piece)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_second_piece_in_order_starts_it() {
        let s = Sequence::default();
        assert!(s.reads(0, 4, 100).is_empty());
        assert!(s.reads(0, 4, 100).is_empty());
        assert_eq!(s.reads(1, 4, 100), 2..6);
        assert_eq!(s.reads(2, 4, 100), 6..7);
        assert!(s.reads(1, 4, 100).is_empty());
        assert!(s.has_reached(2) && !s.has_reached(3));
        assert!(s.reads(50, 4, 100).is_empty());
        assert_eq!(s.reads(51, 4, 53), 52..53);
        assert!(s.reads(52, 4, 53).is_empty());
    }

    #[test]
    fn jobs_run_and_a_panicking_one_does_no_harm() {
        let ahead = Ahead::new();
        let (send, receive) = std::sync::mpsc::channel();
        for n in 0..8 {
            let send = send.clone();
            ahead.submit(move || {
                assert!(n != 3, "a job that fails");
                send.send(n).unwrap();
            });
        }
        drop(send);
        let mut done: Vec<_> = receive.iter().collect();
        done.sort_unstable();
        assert_eq!(done, [0, 1, 2, 4, 5, 6, 7]);
    }
}
