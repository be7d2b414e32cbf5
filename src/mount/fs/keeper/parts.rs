//! What readers were given, handed on to the copies of what they read: so that little of it is decoded a second time.
//!
//! Nobody waits for a part to be written: there is room for a few, and what finds none is left to the thread that makes
//! copies. Only parts of a version that cannot change without a trace are taken.

use std::collections::VecDeque;
use std::ops::Range;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Condvar, Mutex, MutexGuard};
use std::time::{Duration, Instant};

use super::Reads;
use crate::io::buffer::Buffer;
use crate::io::content::Data;
use crate::io::kept::{KeptDir, Making};
use crate::io::thread;

/// Bytes of parts that wait to be written: a share of the buffers that readers use.
const MOST: usize = 4 << 20;

/// Bytes of the smallest part, unless it goes on where the last one ended: the kernel divides what programs ask for.
const LEAST: usize = 64 << 10;

/// How many times longer than it works the thread rests, at most: it writes to the disk that others read from.
const REST: u32 = 3;

/// The share of an array that must have been read before parts of it are taken, as a divisor.
pub(super) const SHARE: u64 = 8;

/// Copies that are made of parts at the same time: each takes the room of its array.
const AT_ONCE: usize = 4;

/// The time after which one of which nobody reads any more makes place for another.
const IDLE: Duration = Duration::from_secs(10);

/// The time after which one of which nobody reads any more gives its room back.
const GIVEN_UP: Duration = Duration::from_secs(60);

struct Part {
    reads: Arc<Reads>,
    offset: u64,
    bytes: Arc<Buffer>,
    range: Range<usize>,
}

#[derive(Default)]
struct State {
    waiting: VecDeque<Part>,
    bytes: usize,
    /// Arrays whose copies take parts, and when they last did.
    open: Vec<(Arc<Reads>, Instant)>,
    started: bool,
    over: bool,
}

/// The parts of a mount that wait to be written.
pub(super) struct Parts {
    dir: Arc<KeptDir>,
    /// How many times longer than it works the thread rests.
    rest: u32,
    state: Mutex<State>,
    wake: Condvar,
    /// Bytes that were written.
    pub(super) written: AtomicU64,
}

impl Parts {
    pub(super) fn new(dir: &Arc<KeptDir>, rest: u32) -> Arc<Self> {
        Arc::new(Self {
            dir: dir.clone(),
            rest: rest.min(REST),
            state: Mutex::default(),
            wake: Condvar::new(),
            written: AtomicU64::new(0),
        })
    }

    fn state(&self) -> MutexGuard<'_, State> {
        // Nothing that can panic runs under it but allocation.
        self.state.lock().unwrap_or_else(|e| e.into_inner())
    }

    /// Takes bytes that were read at an offset, if there is room; the reader has them, too.
    pub(super) fn take(self: &Arc<Self>, reads: &Arc<Reads>, offset: u64, data: &mut Data) {
        let len = data.as_ref().len();
        let end = offset.saturating_add(len as u64);
        if len < LEAST && reads.last.load(Relaxed) != offset {
            return;
        }
        // Not the lock of the copy, under which files are made and removed.
        if reads.closed.load(Relaxed) {
            return;
        }
        let mut state = self.state();
        if state.over || state.bytes.saturating_add(len) > MOST {
            return;
        }
        let (bytes, range) = data.shared();
        state.bytes += len;
        state.waiting.push_back(Part {
            reads: reads.clone(),
            offset,
            bytes,
            range,
        });
        reads.last.store(end, Relaxed);
        if !state.started {
            let own = self.clone();
            state.started = thread::spawn_background("keep parts", move || own.work()).is_ok();
        }
        self.wake.notify_one();
    }

    /// Ends the thread, and gives up all that is half made.
    pub(super) fn end(&self) {
        let mut state = self.state();
        state.over = true;
        state.waiting.clear();
        let open = std::mem::take(&mut state.open);
        drop(state);
        for (reads, _) in open {
            reads.close();
        }
        self.wake.notify_all();
    }

    /// The thread.
    fn work(&self) {
        loop {
            let mut state = self.state();
            while state.waiting.is_empty() && !state.over {
                let woken = self.wake.wait_timeout(state, IDLE);
                let (found, timeout) = woken.unwrap_or_else(|e| e.into_inner());
                state = found;
                if timeout.timed_out() {
                    drop(state);
                    self.give_up(GIVEN_UP, 0);
                    state = self.state();
                }
            }
            if state.over {
                return;
            }
            let Some(part) = state.waiting.pop_front() else {
                continue;
            };
            drop(state);
            let since = Instant::now();
            self.write(&part);
            let worked = since.elapsed();
            // Room for another one comes after the rest.
            drop(part.bytes);
            std::thread::sleep(worked * self.rest);
            let mut state = self.state();
            state.bytes = state.bytes.saturating_sub(part.range.len());
        }
    }

    fn write(&self, part: &Part) {
        let Some(making) = self.making(&part.reads) else {
            return;
        };
        let bytes = part.bytes.get(part.range.clone()).unwrap_or_default();
        match making.add(part.offset, bytes) {
            Ok(written) => {
                self.written.fetch_add(written, Relaxed);
            }
            // The thread that makes copies meets it again, and says so.
            Err(_) => part.reads.close(),
        }
    }

    /// Returns the copy of an array that takes parts; it is begun if it was not, and there is place for it.
    fn making(&self, reads: &Arc<Reads>) -> Option<Arc<Making>> {
        if reads.closed.load(Relaxed) {
            return None;
        }
        let known = reads.making().clone();
        let making = match known {
            Some(making) => making,
            None => {
                self.give_up(IDLE, AT_ONCE - 1);
                if self.state().open.len() >= AT_ONCE {
                    return None;
                }
                let begun = reads.begin(&self.dir);
                if begun.is_err() {
                    reads.close();
                }
                begun.ok()?
            }
        };
        let mut state = self.state();
        let now = Instant::now();
        match state
            .open
            .iter_mut()
            .find(|(own, _)| Arc::ptr_eq(own, reads))
        {
            Some((_, last)) => *last = now,
            None => state.open.push((reads.clone(), now)),
        }
        Some(making)
    }

    /// Gives up copies that nobody has handed a part to for so long, the oldest first, until so many are left. No lock of an
    /// array's is held.
    fn give_up(&self, after: Duration, left: usize) {
        let mut state = self.state();
        state.open.retain(|(reads, _)| reads.takes_parts());
        state.open.sort_by_key(|(_, last)| *last);
        let more = state.open.len().saturating_sub(left);
        let idle =
            |(reads, last): &(Arc<Reads>, Instant)| last.elapsed() > after && !reads.is_wanted();
        let (gone, stay) = std::mem::take(&mut state.open)
            .into_iter()
            .partition::<Vec<_>, _>(idle);
        let (gone, spared) = gone.split_at(gone.len().min(more));
        state.open = [spared, &stay].concat();
        drop(state);
        for (reads, _) in gone {
            // What is half made is removed, which takes as long as it is large.
            let _ = reads.making().take();
        }
    }
}
