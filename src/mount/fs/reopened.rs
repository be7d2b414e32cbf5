//! Opens that the kernel retries.
//!
//! Each version of a file has its own inode. An open of an inode that is gone is answered with ESTALE; the kernel then
//! looks the path up and opens again, within the same system call and only once. What a thread finds in this second
//! lookup is therefore kept for the thread until it opens it, even if the name changes meanwhile.
//!
//! An entry belongs to a thread, not to a name: the file may have been renamed or forgotten since the thread found it,
//! while the thread looks up the name that it began with. The second lookup of a name that is to be created may find
//! nothing at first and a file after that.
//!
//! Never waits. Assumes that a thread makes one call at a time. Threads whose number the kernel does not report have
//! entries of one number; at worst, such an entry is kept a little longer.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use parking_lot::Mutex;

use super::Fs;
use super::write::FoundBody;
use npyfs_base::error::{Error, ErrorKind, Result, retry_stale};
use npyfs_core::tree::{Node, VirtualFile};
use npyfs_io::content::Content;

/// The time for which an entry is kept for a thread.
pub(super) const PATIENCE: Duration = Duration::from_secs(10);

/// The number of a thread of another namespace, which the kernel does not report.
const UNKNOWN: u32 = 0;

/// The number of files that a thread may find in its second lookup. The kernel checks the entry that it knows, which is
/// one lookup of the name, and asks again if that was another file. The rest is room for names that change meanwhile.
const LOOKUPS: u32 = 4;

/// What a thread will open.
pub(super) enum KeptOpen {
    /// A file that is read, and its content.
    Content(Arc<dyn VirtualFile>, Arc<dyn Content>),
    /// A file that is written.
    Body(FoundBody),
}

/// The opens that the kernel will retry, and what is kept for them. Any thread may use this table.
pub(super) struct ReopenedFiles<T = KeptOpen> {
    awaited: Mutex<Vec<AwaitedThread<T>>>,
    /// The number of entries, which is nearly always zero.
    count: AtomicUsize,
}

/// A thread that was told to look up again.
struct AwaitedThread<T> {
    thread: u32,
    /// The thread opens the file to write.
    writes: bool,
    since: Instant,
    /// The number of files that the thread may still find.
    lookups: u32,
    /// What the thread found, by inode number.
    found: Vec<(u64, T)>,
}

impl<T> Default for ReopenedFiles<T> {
    fn default() -> Self {
        Self {
            awaited: Mutex::new(Vec::new()),
            count: AtomicUsize::new(0),
        }
    }
}

impl<T> ReopenedFiles<T> {
    fn change<R>(&self, act: impl FnOnce(&mut Vec<AwaitedThread<T>>) -> R) -> R {
        let mut awaited = self.awaited.lock();
        awaited.retain(|one| one.since.elapsed() < PATIENCE);
        let done = act(&mut awaited);
        self.count.store(awaited.len(), Ordering::Release);
        done
    }

    fn is_idle(&self) -> bool {
        self.count.load(Ordering::Acquire) == 0
    }

    /// Returns the error of an open. If the error makes the kernel look up again, the thread is awaited.
    pub(super) fn note(&self, error: Error, thread: u32, writes: bool) -> Error {
        if error.kind == ErrorKind::Stale {
            self.expect(thread, writes);
        }
        error
    }

    /// Notes that a thread was told to look up again.
    fn expect(&self, thread: u32, writes: bool) {
        self.change(|awaited| {
            awaited.retain(|one| one.thread != thread || thread == UNKNOWN);
            awaited.push(AwaitedThread {
                thread,
                writes,
                since: Instant::now(),
                lookups: LOOKUPS,
                found: Vec::new(),
            });
        });
    }

    /// Returns true if a thread that was told to look up again will write, and `None` if the thread was told nothing.
    fn writes(&self, thread: u32) -> Option<bool> {
        if self.is_idle() {
            return None;
        }
        self.change(|awaited| {
            let of_thread = |one: &&AwaitedThread<T>| one.thread == thread && one.lookups > 0;
            let writes = awaited.iter().filter(of_thread).map(|one| one.writes);
            writes.reduce(|a, b| a || b)
        })
    }

    /// Keeps what a thread found under an inode number.
    pub(super) fn keep(&self, thread: u32, ino: u64, kept: T) {
        self.change(|awaited| {
            let mut of_thread = awaited.iter_mut().filter(|one| one.thread == thread);
            if let Some(one) = of_thread.find(|one| one.lookups > 0) {
                one.lookups -= 1;
                one.found.push((ino, kept));
            }
        });
    }

    /// Removes and returns what is kept for a thread under an inode number. The open ends what the thread was told.
    pub(super) fn take(&self, thread: u32, ino: u64) -> Option<T> {
        if self.is_idle() {
            return None;
        }
        self.change(|awaited| {
            let is = |(number, _): &(u64, T)| *number == ino;
            let has = |one: &AwaitedThread<T>| one.thread == thread && one.found.iter().any(is);
            let taken = awaited
                .iter()
                .position(has)
                .map(|at| awaited.swap_remove(at));
            if thread != UNKNOWN {
                awaited.retain(|one| one.thread != thread);
            }
            // The last one, if the thread found the inode twice.
            let (_, kept) = taken?.found.into_iter().rfind(is)?;
            Some(kept)
        })
    }
}

impl Fs {
    /// Returns true if a thread is in its second lookup, which may take more than a moment.
    pub fn looks_again(&self, thread: u32) -> bool {
        self.again.writes(thread).is_some()
    }

    /// Returns the node of a name for a thread. If the thread was told to look up again, what it will open is returned,
    /// too.
    pub(super) fn found(
        &self,
        parent: u64,
        name: &[u8],
        thread: u32,
    ) -> Result<(Option<Node>, Option<KeptOpen>)> {
        let Some(writes) = self.again.writes(thread) else {
            return Ok((self.child(parent, name)?, None));
        };
        retry_stale(|| match self.child(parent, name)? {
            Some(Node::File(file)) if writes && !file.volatile() => {
                match self.find_to_write(parent, name, thread) {
                    Ok(found) => Ok((Some(found.node()), Some(KeptOpen::Body(found)))),
                    Err(e) if e.kind == ErrorKind::NotFound => {
                        Err(Error::new(ErrorKind::Stale, "it is gone again"))
                    }
                    // The open reports this error.
                    Err(e) if e.kind != ErrorKind::Stale => Ok((Some(Node::File(file)), None)),
                    Err(e) => Err(e),
                }
            }
            Some(Node::File(file)) if !writes => match file.open() {
                Ok(content) => {
                    let kept = KeptOpen::Content(file.clone(), content);
                    Ok((Some(Node::File(file)), Some(kept)))
                }
                Err(e) if e.kind == ErrorKind::Stale => Err(e),
                Err(_) => Ok((Some(Node::File(file)), None)),
            },
            other => Ok((other, None)),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_thread_that_was_told_opens_what_it_found() {
        let again = ReopenedFiles::<char>::default();
        assert_eq!(again.writes(1), None);
        again.expect(1, true);
        again.expect(3, false);
        assert_eq!(
            (again.writes(1), again.writes(3)),
            (Some(true), Some(false))
        );
        assert_eq!(again.writes(4), None);
        again.keep(1, 7, 'a');
        again.keep(1, 8, 'b');
        again.keep(1, 8, 'c');
        assert_eq!(again.take(3, 8), None);
        assert_eq!(again.take(1, 8), Some('c'));
        // The open ended what the thread was told.
        assert_eq!((again.writes(1), again.writes(3)), (None, None));
        assert_eq!(again.take(1, 7), None);
    }

    #[test]
    fn a_thread_that_opens_nothing_stops_being_awaited() {
        let again = ReopenedFiles::<char>::default();
        again.expect(1, true);
        for ino in 0..u64::from(LOOKUPS) {
            assert_eq!(again.writes(1), Some(true));
            again.keep(1, ino, 'a');
        }
        assert_eq!(again.writes(1), None);
        assert_eq!(again.take(1, 0), Some('a'));
    }

    #[test]
    fn threads_without_a_number_do_not_take_from_each_other() {
        let again = ReopenedFiles::<char>::default();
        again.expect(UNKNOWN, true);
        again.keep(UNKNOWN, 7, 'a');
        again.expect(UNKNOWN, false);
        assert_eq!(again.writes(UNKNOWN), Some(true));
        assert_eq!(again.take(UNKNOWN, 9), None);
        assert_eq!(again.take(UNKNOWN, 7), Some('a'));
        assert_eq!(again.writes(UNKNOWN), Some(false));
    }
}
