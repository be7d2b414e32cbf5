//! Passes requests to [`Fs`] and returns its results: selects the thread that works on a request, and contains panics.
//!
//! The session has few threads. For a remote store they only hand requests on, to threads that may wait for the
//! network, so that waiting requests, however many, never delay others. Those threads are started on demand, and end
//! after a time without work.

use std::collections::VecDeque;
use std::io;
use std::ops::Range;
use std::os::fd::{AsFd, OwnedFd};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use fuser::{Errno, INodeNo, Notifier, Request};
use parking_lot::{Condvar, Mutex};
use rustix::event::{PollFd, PollFlags, Timespec, poll};

use super::passthrough::Passthrough;
use super::read_ahead::ReadAhead;
use super::scheduling::{Scheduling, threads};
use crate::mount::fs::{Fs, FsError, OpenedFile};
use npyfs_base::thread;

/// A view of a store in the form that `fuser` expects.
#[derive(Clone)]
pub(super) struct Adapter {
    pub(super) fs: Arc<Fs>,
    /// Whether the kernel allows files opened for direct reads to be mapped (Linux 6.6).
    pub(super) maps_direct: bool,
    link: Arc<Link>,
    /// The threads that answer requests of a remote store.
    waiters: Option<Arc<Waiters>>,
    /// `None` if there are no copies for the kernel to read.
    pub(super) passthrough: Option<Arc<Passthrough>>,
}

/// Connections to the kernel for notifications, and to the threads of the session.
pub(super) struct Link {
    notifier: OnceLock<Notifier>,
    scheduling: Scheduling,
    read_ahead: OnceLock<ReadAhead>,
    /// The inodes of which pages are being put into the page cache, and which.
    storing: Mutex<Vec<(u64, Range<u64>)>>,
    /// The reads that are not answered yet: a number of their own, inode and bytes.
    reading: Mutex<Vec<(u64, u64, Range<u64>)>>,
    reads: AtomicU64,
    /// The descriptor on which requests wait.
    device: OnceLock<OwnedFd>,
}

impl Link {
    /// Sets the connections to the session.
    pub(super) fn set(&self, session: &fuser::Session<Adapter>) -> io::Result<()> {
        let _ = self.notifier.set(session.notifier());
        let _ = self.device.set(session.as_fd().try_clone_to_owned()?);
        self.scheduling
            .set_device(session.as_fd().try_clone_to_owned())
    }

    /// Returns whether a request waits that no thread has taken.
    fn has_waiting(&self) -> bool {
        self.device.get().is_none_or(|device| {
            let mut device = [PollFd::new(device, PollFlags::IN)];
            poll(&mut device, Some(&Timespec::default())) != Ok(0)
        })
    }

    /// Sets how the kernel is told how far to read ahead.
    pub(super) fn set_read_ahead(&self, read_ahead: ReadAhead) {
        let _ = self.read_ahead.set(read_ahead);
    }
}

/// The right to put a range of an inode into the page cache, around the page that a request asks for.
///
/// Putting waits for pages that are being read, uninterruptibly. Those are answered by threads that put nothing: no two
/// threads have the right to overlapping ranges, and one thread of the session puts nothing. But if the daemon were
/// killed meanwhile, nothing would answer them, and neither the daemon nor the reader could end. So nothing is put
/// where a page is known to be read, nor, while requests wait that no thread has taken, for a handle that a program
/// reads by more than one page at once: then several requests for one read can be under way.
pub(super) struct Storing<'a> {
    link: &'a Link,
    notifier: &'a Notifier,
    /// The request, and its inode.
    read: u64,
    ino: u64,
    range: Range<u64>,
}

impl Storing<'_> {
    /// Returns the range.
    pub(super) fn range(&self) -> &Range<u64> {
        &self.range
    }

    /// Returns whether no page in the range is known to be read for another request. `is_mapped`: the request is for a
    /// page that was touched in a map.
    pub(super) fn is_free(&self, is_mapped: bool) -> bool {
        let reading = self.link.reading.lock();
        let meets = |(number, ino, range): &(u64, u64, Range<u64>)| {
            *number != self.read
                && *ino == self.ino
                && range.start < self.range.end
                && self.range.start < range.end
        };
        let is_read = reading.iter().any(meets);
        drop(reading);
        !is_read && (is_mapped || !self.link.has_waiting())
    }

    /// Puts bytes into the page cache. If this fails, the kernel requests them.
    pub(super) fn store(&self, offset: u64, bytes: &[u8]) {
        if !bytes.is_empty() {
            let _ = self.notifier.store(INodeNo(self.ino), offset, bytes);
        }
    }
}

impl Drop for Storing<'_> {
    fn drop(&mut self) {
        let mut storing = self.link.storing.lock();
        storing.retain(|(ino, range)| (*ino, range) != (self.ino, &self.range));
    }
}

/// A read that is answered when this is dropped.
pub(super) struct Reading {
    link: Arc<Link>,
    number: u64,
    ino: u64,
}

impl Drop for Reading {
    fn drop(&mut self) {
        let mut reading = self.link.reading.lock();
        reading.retain(|(number, _, _)| *number != self.number);
    }
}

/// A request that a session thread works on; complete on drop.
pub(super) struct ActiveRequest<'a>(&'a Adapter);

impl Drop for ActiveRequest<'_> {
    fn drop(&mut self) {
        self.0.scheduling().end();
    }
}

impl Adapter {
    pub(super) fn new(fs: Fs) -> Self {
        let far = fs.lies_elsewhere();
        // Replies that wait for a network come from any thread.
        let scheduling = Scheduling::new(fs.stores_quickly() && !far, fs.schedules() && !far);
        let link = Arc::new(Link {
            notifier: OnceLock::new(),
            scheduling,
            read_ahead: OnceLock::new(),
            storing: Mutex::default(),
            reading: Mutex::default(),
            reads: AtomicU64::new(0),
            device: OnceLock::new(),
        });
        let about = link.clone();
        fs.report_serving(Box::new(move || about.scheduling.report()));
        Self {
            passthrough: fs.keeps().then(Arc::default),
            fs: Arc::new(fs),
            maps_direct: false,
            link,
            waiters: far.then(Arc::default),
        }
    }

    /// Returns the connections to the session, once it exists.
    pub(super) fn link(&self) -> &Arc<Link> {
        &self.link
    }

    /// Returns the channel for notifications to the kernel, once the session exists.
    pub(super) fn notifier(&self) -> Option<&Notifier> {
        self.link.notifier.get()
    }

    fn scheduling(&self) -> &Scheduling {
        &self.link.scheduling
    }

    /// Hands a request to a thread that may wait, if the store is remote; otherwise returns it.
    pub(super) fn hand_on<R: Send + 'static>(
        &self,
        reply: R,
        answer: impl FnOnce(&Self, R) + Send + 'static,
    ) -> Option<R> {
        let Some(waiters) = &self.waiters else {
            return Some(reply);
        };
        let own = self.clone();
        waiters.run(move || answer(&own, reply));
        None
    }

    /// Returns whether the store is remote.
    pub(super) fn waits(&self) -> bool {
        self.waiters.is_some()
    }

    /// Begins a request; the result is held until the reply.
    pub(super) fn begin(&self, request: &Request) -> ActiveRequest<'_> {
        self.scheduling().begin(request.pid());
        ActiveRequest(self)
    }

    /// Begins a request that may take more than a moment.
    pub(super) fn begin_slow(&self, request: &Request) -> ActiveRequest<'_> {
        self.scheduling().begin(request.pid());
        self.scheduling().step_up();
        ActiveRequest(self)
    }

    /// Begins a request that closes a file, which may store it: quickly, or not.
    pub(super) fn begin_close(&self, request: &Request) -> ActiveRequest<'_> {
        if self.fs.stores_quickly() || !self.fs.is_writable() {
            self.begin(request)
        } else {
            self.begin_slow(request)
        }
    }

    /// Begins a request that may take long.
    pub(super) fn begin_long(&self, request: &Request) -> ActiveRequest<'_> {
        self.scheduling().begin(request.pid());
        self.scheduling().call_another();
        ActiveRequest(self)
    }

    /// Prepares this thread for work that several threads share.
    pub(super) fn spread(&self) {
        self.scheduling().spread();
    }

    /// Sends a reply for which a program waits.
    pub(super) fn answer<T>(&self, reply: impl FnOnce() -> T) -> T {
        self.scheduling().answer(reply)
    }

    /// Begins a read of an inode; the result is held until the reply.
    pub(super) fn begin_reading(&self, ino: u64, range: Range<u64>) -> Reading {
        let number = self.link.reads.fetch_add(1, Ordering::Relaxed);
        self.link.reading.lock().push((number, ino, range));
        Reading {
            link: self.link.clone(),
            number,
            ino,
        }
    }

    /// Returns the right to put a range into the page cache beside a read, if nothing speaks against it.
    pub(super) fn begin_storing(
        &self,
        reading: &Reading,
        range: Range<u64>,
    ) -> Option<Storing<'_>> {
        let ino = reading.ino;
        let notifier = self.notifier()?;
        let mut storing = self.link.storing.lock();
        let overlaps = |(other, taken): &(u64, Range<u64>)| {
            *other == ino && range.start < taken.end && taken.start < range.end
        };
        if storing.iter().any(overlaps) || storing.len() + 1 >= threads() {
            return None;
        }
        storing.push((ino, range.clone()));
        drop(storing);
        Some(Storing {
            link: &self.link,
            notifier,
            read: reading.number,
            ino,
            range,
        })
    }

    /// Has the kernel read ahead for a handle, or ask for its pages one by one, as its open is about to be answered.
    pub(super) fn read_ahead(&self, opened: &OpenedFile) {
        if let Some(read_ahead) = self.link.read_ahead.get()
            && read_ahead.set(opened.by_page)
        {
            let _ = self.tell(|fs| fs.is_asked_by_page(opened.handle));
        }
    }

    /// Records that several replies are pending at once.
    pub(super) fn apart(&self) {
        self.scheduling().apart();
    }

    /// After a reply: polls for the next request, unless decoders need the processor.
    pub(super) fn look_out(&self) {
        self.scheduling().look_out(|| self.fs.is_decoding());
    }

    /// Calls an operation of `Fs`; the only way to it.
    pub(super) fn ask<'a, T>(
        &'a self,
        operation: impl FnOnce(&'a Fs) -> Result<T, FsError>,
    ) -> Result<T, Errno> {
        match catch_unwind(AssertUnwindSafe(|| operation(&self.fs))) {
            Ok(Ok(answer)) => Ok(answer),
            Ok(Err(refusal)) => Err(Errno::from_i32(refusal.errno)),
            Err(_panic) => Err(Errno::EIO),
        }
    }

    /// Calls an operation that cannot be refused.
    pub(super) fn tell(&self, operation: impl FnOnce(&Fs)) -> Result<(), Errno> {
        self.ask(|fs| {
            operation(fs);
            Ok(())
        })
    }
}

/// The most threads; further requests wait for their turn. Most of a thread's memory is never touched.
const MOST_WAITERS: usize = 256;

/// The time after which an unused thread ends.
const WAITERS_REST: Duration = Duration::from_secs(10);

type Job = Box<dyn FnOnce() + Send>;

/// The threads of one session.
#[derive(Default)]
struct Waiters {
    state: Mutex<WaitersState>,
    changed: Condvar,
}

#[derive(Default)]
struct WaitersState {
    jobs: VecDeque<Job>,
    threads: usize,
    /// The number of threads without work.
    idle: usize,
}

impl Waiters {
    /// Runs a job that answers a request.
    pub(super) fn run(self: &Arc<Self>, job: impl FnOnce() + Send + 'static) {
        let mut state = self.state.lock();
        state.jobs.push_back(Box::new(job));
        if state.idle >= state.jobs.len() || state.threads == MOST_WAITERS {
            drop(state);
            self.changed.notify_one();
            return;
        }
        state.threads += 1;
        drop(state);
        let own = self.clone();
        if thread::spawn("waiting", move || own.work()).is_err() {
            let mut state = self.state.lock();
            state.threads -= 1;
            // If there is no other thread to run the job, this one does.
            if state.threads == 0
                && let Some(job) = state.jobs.pop_back()
            {
                drop(state);
                job();
            }
        }
    }

    fn work(&self) {
        let mut state = self.state.lock();
        loop {
            if let Some(job) = state.jobs.pop_front() {
                drop(state);
                // A panic costs the reply to one request.
                let _ = catch_unwind(AssertUnwindSafe(job));
                state = self.state.lock();
                continue;
            }
            state.idle += 1;
            let rested = self.changed.wait_for(&mut state, WAITERS_REST);
            state.idle -= 1;
            if rested.timed_out() && state.jobs.is_empty() {
                state.threads -= 1;
                return;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Barrier;
    use std::sync::mpsc::channel;

    use super::*;

    #[test]
    fn requests_that_wait_hold_up_nobody() {
        let waiters = Arc::<Waiters>::default();
        let together = Arc::new(Barrier::new(40));
        let (send, receive) = channel();
        for number in 0..40 {
            let (together, send) = (together.clone(), send.clone());
            waiters.run(move || {
                // Ends only if all of them are here at once.
                together.wait();
                send.send(number).unwrap();
                assert!(number != 3, "a request that fails");
            });
        }
        drop(send);
        let mut done: Vec<_> = receive.iter().collect();
        done.sort_unstable();
        assert_eq!(done, (0..40).collect::<Vec<_>>());
        assert!(waiters.state.lock().threads <= 40);
    }
}
