//! Opens that the kernel retries.
//!
//! Each version of a file has its own inode. An open of an inode that is gone is answered with ESTALE; the kernel then
//! looks the path up and opens again, within the same system call and only once. The node that a thread finds in this
//! second lookup is therefore kept for the thread until it opens it, even if the name changes meanwhile.
//!
//! Never waits. Assumes that a thread makes one call at a time. Threads whose number the kernel does not report share
//! one entry; at worst, that entry is kept a little longer.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::{Duration, Instant};

use super::Fs;
use super::write::FoundBody;
use npyfs_base::error::{Error, ErrorKind, Result, retry_stale};
use npyfs_core::tree::Node;
use npyfs_io::content::Content;

/// The time for which an entry is kept for a thread.
pub(super) const PATIENCE: Duration = Duration::from_secs(10);

/// The number of a thread of another namespace, which the kernel does not report.
const UNKNOWN: u32 = 0;

/// The node that a thread will open.
#[derive(Clone)]
pub(super) enum KeptOpen {
    /// Nothing yet.
    No,
    /// A content that is read under a number.
    Content(u64, Arc<dyn Content>),
    /// A file that is written.
    Body(FoundBody),
}

/// The opens that the kernel will retry. Any thread may use this table.
#[derive(Default)]
pub(super) struct ReopenedFiles {
    awaited: Mutex<Vec<Awaited>>,
    /// The number of entries, which is nearly always zero.
    count: AtomicUsize,
}

struct Awaited {
    thread: u32,
    parent: u64,
    name: Box<[u8]>,
    /// The thread opens the file to write.
    writes: bool,
    since: Instant,
    kept: KeptOpen,
}

impl ReopenedFiles {
    fn awaited(&self) -> MutexGuard<'_, Vec<Awaited>> {
        self.awaited.lock().unwrap_or_else(|e| e.into_inner())
    }

    fn change<T>(&self, act: impl FnOnce(&mut Vec<Awaited>) -> T) -> T {
        let mut awaited = self.awaited();
        awaited.retain(|one| one.since.elapsed() < PATIENCE);
        let done = act(&mut awaited);
        self.count.store(awaited.len(), Ordering::Release);
        done
    }

    fn is_idle(&self) -> bool {
        self.count.load(Ordering::Acquire) == 0
    }

    /// Notes that a thread was told to look a name up again.
    fn expect(&self, thread: u32, (parent, name): (u64, Box<[u8]>), writes: bool) {
        self.change(|awaited| {
            awaited.retain(|one| one.thread != thread || one.parent != parent || one.name != name);
            awaited.push(Awaited {
                thread,
                parent,
                name,
                writes,
                since: Instant::now(),
                kept: KeptOpen::No,
            });
        });
    }

    /// Returns true if a thread that was told to look a name up again will write, and `None` if the thread was told
    /// nothing.
    fn writes(&self, thread: u32, parent: u64, name: &[u8]) -> Option<bool> {
        if self.is_idle() {
            return None;
        }
        self.change(|awaited| {
            let is =
                |one: &&Awaited| one.thread == thread && one.parent == parent && *one.name == *name;
            awaited.iter().find(is).map(|one| one.writes)
        })
    }

    fn keep(&self, thread: u32, parent: u64, name: &[u8], kept: &KeptOpen) {
        self.change(|awaited| {
            for one in awaited {
                if one.thread == thread && one.parent == parent && *one.name == *name {
                    one.kept = kept.clone();
                }
            }
        });
    }

    /// Removes and returns the entry that is kept for a thread under an inode number. All other entries of the thread
    /// are removed, too.
    pub(super) fn take(&self, thread: u32, ino: u64) -> KeptOpen {
        if self.is_idle() {
            return KeptOpen::No;
        }
        self.change(|awaited| {
            let is = |one: &Awaited| {
                one.thread == thread
                    && match &one.kept {
                        KeptOpen::No => false,
                        KeptOpen::Content(number, _) => *number == ino,
                        KeptOpen::Body(found) => found.number() == ino,
                    }
            };
            let at = awaited.iter().position(is);
            let taken = at.map_or(KeptOpen::No, |at| awaited.swap_remove(at).kept);
            if thread != UNKNOWN {
                awaited.retain(|one| one.thread != thread);
            }
            taken
        })
    }
}

impl Fs {
    /// Tells a thread to look up again the name that leads to an inode.
    pub(super) fn look_again(&self, ino: u64, thread: u32, writes: bool) -> Error {
        let place = self.inodes().place_of(ino);
        if let Some(place) = place {
            self.again.expect(thread, place, writes);
        }
        Error::new(ErrorKind::Stale, "it has another inode now")
    }

    /// Returns true if a thread is in its second lookup, which may take more than a moment.
    pub fn looks_again(&self, thread: u32) -> bool {
        !self.again.is_idle() && self.again.awaited().iter().any(|one| one.thread == thread)
    }

    /// Returns the node of a name for a thread. If the thread was told to look again, the content that it will open is
    /// kept for it.
    pub(super) fn found(
        &self,
        parent: u64,
        name: &[u8],
        thread: u32,
    ) -> Result<(Option<Node>, KeptOpen)> {
        let Some(writes) = self.again.writes(thread, parent, name) else {
            return Ok((self.child(parent, name)?, KeptOpen::No));
        };
        retry_stale(|| match self.child(parent, name)? {
            Some(Node::File(file)) if writes && !file.volatile() => {
                match self.find_to_write(parent, name, thread) {
                    Ok(found) => Ok((Some(found.node()), KeptOpen::Body(found))),
                    Err(e) if e.kind == ErrorKind::NotFound => {
                        Err(Error::new(ErrorKind::Stale, "it is gone again"))
                    }
                    // The open reports this error.
                    Err(e) if e.kind != ErrorKind::Stale => {
                        Ok((Some(Node::File(file)), KeptOpen::No))
                    }
                    Err(e) => Err(e),
                }
            }
            Some(Node::File(file)) if !writes => match file.open() {
                Ok(content) => Ok((Some(Node::File(file)), KeptOpen::Content(0, content))),
                Err(e) if e.kind == ErrorKind::Stale => Err(e),
                Err(_) => Ok((Some(Node::File(file)), KeptOpen::No)),
            },
            other => Ok((other, KeptOpen::No)),
        })
    }

    /// Keeps the node that a thread found under an inode number.
    pub(super) fn keep_found(&self, place: (u64, &[u8]), thread: u32, ino: u64, kept: KeptOpen) {
        let kept = match kept {
            KeptOpen::No => return,
            KeptOpen::Content(_, content) => KeptOpen::Content(ino, content),
            body => body,
        };
        self.again.keep(thread, place.0, place.1, &kept);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_is_awaited_by_the_thread_that_was_told() {
        let again = ReopenedFiles::default();
        assert_eq!(again.writes(1, 2, b"a"), None);
        again.expect(1, (2, b"a"[..].into()), true);
        again.expect(3, (2, b"a"[..].into()), false);
        assert_eq!(again.writes(1, 2, b"a"), Some(true));
        assert_eq!(again.writes(3, 2, b"a"), Some(false));
        assert_eq!(again.writes(1, 2, b"b"), None);
        assert_eq!(again.writes(4, 2, b"a"), None);
        // The thread opens another file: its earlier entry belongs to another call.
        assert!(matches!(again.take(1, 7), KeptOpen::No));
        assert_eq!(again.writes(1, 2, b"a"), None);
        assert_eq!(again.writes(3, 2, b"a"), Some(false));
        // Threads without a number share their entries.
        again.expect(UNKNOWN, (2, b"a"[..].into()), true);
        assert!(matches!(again.take(UNKNOWN, 7), KeptOpen::No));
        assert_eq!(again.writes(UNKNOWN, 2, b"a"), Some(true));
    }
}
