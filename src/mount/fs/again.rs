//! Opens that the kernel tries once more.
//!
//! Each version of a file is another inode. An open that comes for one that is gone is answered ESTALE; the kernel then
//! looks the path up and opens again, within the same call of the program and only once. So what a thread finds when it
//! looks the path up again is kept for it, whatever becomes of the name until it opens that.
//!
//! Never waits. Assumes that a thread makes one call at a time; threads of which the kernel does not say the number share
//! one, and at worst keep something a little longer.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::{Duration, Instant};

use super::Fs;
use super::write::FoundBody;
use crate::error::{Error, ErrorKind, Result, retry_stale};
use crate::io::content::Content;
use crate::tree::Node;

/// The time for which something is kept for a thread.
pub(super) const PATIENCE: Duration = Duration::from_secs(10);

/// The number of a thread that the kernel does not know: of another namespace.
const UNKNOWN: u32 = 0;

/// The thing that a thread is to find.
#[derive(Clone)]
pub(super) enum KeptOpen {
    /// Nothing yet.
    No,
    /// A content that is read under a number.
    Content(u64, Arc<dyn Content>),
    /// A file that is written.
    Body(FoundBody),
}

/// The opens that will be tried again. Any thread may use it.
#[derive(Default)]
pub(super) struct Again {
    awaited: Mutex<Vec<Awaited>>,
    /// The number of these: hardly ever is there one.
    count: AtomicUsize,
}

struct Awaited {
    thread: u32,
    parent: u64,
    name: Box<[u8]>,
    /// It opens to write.
    writes: bool,
    since: Instant,
    kept: KeptOpen,
}

impl Again {
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

    /// A thread is told to look a name up again.
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

    /// Returns true if a thread that was told to look a name up again will write; `None` if it was told nothing.
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

    /// Returns what is kept for a thread under a number. It is kept no longer, nor is anything else for that thread.
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
    /// Tells a thread to look up again what leads to a number.
    pub(super) fn look_again(&self, ino: u64, thread: u32, writes: bool) -> Error {
        let place = self.inodes().get(ino).map(|e| (e.parent, e.name.clone()));
        if let Some(place) = place {
            self.again.expect(thread, place, writes);
        }
        Error::new(ErrorKind::Stale, "it has another inode now")
    }

    /// Returns true if a thread looks something up again: that may take more than a moment.
    pub fn looks_again(&self, thread: u32) -> bool {
        !self.again.is_idle() && self.again.awaited().iter().any(|one| one.thread == thread)
    }

    /// Returns what has a name for a thread; what it will open is kept for it if it was told to look again.
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
                    // It is said when it is opened.
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

    /// Keeps what a thread found under a number.
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
        let again = Again::default();
        assert_eq!(again.writes(1, 2, b"a"), None);
        again.expect(1, (2, b"a"[..].into()), true);
        again.expect(3, (2, b"a"[..].into()), false);
        assert_eq!(again.writes(1, 2, b"a"), Some(true));
        assert_eq!(again.writes(3, 2, b"a"), Some(false));
        assert_eq!(again.writes(1, 2, b"b"), None);
        assert_eq!(again.writes(4, 2, b"a"), None);
        // It opens something else: what it was told before is of another call.
        assert!(matches!(again.take(1, 7), KeptOpen::No));
        assert_eq!(again.writes(1, 2, b"a"), None);
        assert_eq!(again.writes(3, 2, b"a"), Some(false));
        // Threads without a number share what they were told.
        again.expect(UNKNOWN, (2, b"a"[..].into()), true);
        assert!(matches!(again.take(UNKNOWN, 7), KeptOpen::No));
        assert_eq!(again.writes(UNKNOWN, 2, b"a"), Some(true));
    }
}
