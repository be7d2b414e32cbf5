//! Bytes that readers were given, handed on to the copies of their arrays, so that little is decoded a second time.
//!
//! No reader waits for a part to be written. There is room for a few parts; a part that finds no room is dropped, and
//! the copying thread reads it later. Only parts of a version that cannot change without a trace are taken.

use std::collections::VecDeque;
use std::ops::Range;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Condvar, Mutex, MutexGuard};
use std::time::{Duration, Instant};

use super::Reads;
use npyfs_base::buffer::Buffer;
use npyfs_base::thread;
use npyfs_io::content::Data;
use npyfs_io::kept::{KeptDir, Making};

/// Total size in bytes of the parts that wait to be written: a share of the readers' buffers.
const MOST: usize = 4 << 20;

/// Size in bytes of the smallest part, unless it continues the previous part: the kernel splits the requests of
/// programs.
const LEAST: usize = 64 << 10;

/// The longest rest of the thread, as a multiple of its working time: it writes to the disk that others read from.
const REST: u32 = 3;

/// The divisor of the share of an array that must have been read before its parts are taken.
pub(super) const SHARE: u64 = 8;

/// The number of copies that are made of parts at the same time: each takes up the size of its array.
const AT_ONCE: usize = 4;

/// The time after which a copy whose array is no longer read makes way for another copy.
const IDLE: Duration = Duration::from_secs(10);

/// The time after which a copy whose array is no longer read gives back its space.
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
    /// Arrays whose copies take parts, and the time of the last part of each.
    open: Vec<(Arc<Reads>, Instant)>,
    started: bool,
    over: bool,
}

/// The parts of a mount that wait to be written.
pub(super) struct Parts {
    dir: Arc<KeptDir>,
    /// The rest of the thread, as a multiple of its working time.
    rest: u32,
    state: Mutex<State>,
    wake: Condvar,
    /// The number of bytes written.
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
        // Only an allocation can panic under this lock.
        self.state.lock().unwrap_or_else(|e| e.into_inner())
    }

    /// Takes bytes that were read at an offset, if there is room; the reader keeps its reference to them.
    pub(super) fn take(self: &Arc<Self>, reads: &Arc<Reads>, offset: u64, data: &mut Data) {
        let len = data.as_ref().len();
        let end = offset.saturating_add(len as u64);
        if len < LEAST && reads.last.load(Relaxed) != offset {
            return;
        }
        // This does not take the lock of the copy, under which files are created and removed.
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

    /// Ends the thread and discards all unfinished copies.
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

    /// The loop of the thread.
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
            // The buffer is freed now; its room is given to another part only after the rest.
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
            // The copying thread meets the same error and reports it.
            Err(_) => part.reads.close(),
        }
    }

    /// Returns the copy of an array that takes parts. Begins it if necessary and if there is room for another copy.
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

    /// Discards copies that received no part for `after`, the oldest first, until `left` of them remain. The caller
    /// holds no lock of an array.
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
            // Removing an unfinished copy takes time in proportion to its size.
            let _ = reads.making().take();
        }
    }
}
