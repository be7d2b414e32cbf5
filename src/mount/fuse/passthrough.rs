//! Files that the kernel reads itself, from a copy on disk (Linux 6.9, root).
//!
//! The kernel has a single backing file for an inode, and does not mix it with handles that this process answers. So
//! the first open of an inode decides for all, until the last handle is closed. A mapped file counts as open. The
//! kernel finishes with a handle before it reports the close, so the count here is never lower than the kernel's.

use std::collections::HashMap;
use std::io;
use std::os::fd::AsFd;
use std::sync::atomic::{AtomicBool, Ordering};

use fuser::{BackingId, FileHandle, FopenFlags, ReplyOpen};
use parking_lot::Mutex;

/// The open handles of an inode.
struct OpenInode {
    handles: u64,
    /// The file that the kernel reads; `None` if it sends requests.
    backing: Option<BackingId>,
}

/// The open inodes of a mount.
#[derive(Default)]
pub(super) struct Passthrough {
    /// Whether the kernel has passthrough and allows this process to use it.
    usable: AtomicBool,
    inodes: Mutex<HashMap<u64, OpenInode>>,
}

impl Passthrough {
    /// Records that the kernel offers passthrough.
    pub(super) fn offer(&self) {
        self.usable.store(true, Ordering::Release);
    }

    /// Counts an open of an inode, and replies to it if the kernel is to read a copy; otherwise returns the reply.
    /// Before it replies, `noted` is called with `Ok`; if the kernel refuses, with the reason.
    pub(super) fn open(
        &self,
        ino: u64,
        handle: u64,
        copy: Option<&impl AsFd>,
        reply: ReplyOpen,
        noted: impl Fn(Result<(), io::Error>),
    ) -> Option<ReplyOpen> {
        let mut inodes = self.inodes.lock();
        let inode = inodes.entry(ino).or_insert(OpenInode {
            handles: 0,
            backing: None,
        });
        if inode.handles == 0
            && self.usable.load(Ordering::Acquire)
            && let Some(copy) = copy
        {
            match reply.open_backing(copy.as_fd()) {
                Ok(backing) => inode.backing = Some(backing),
                Err(e) => {
                    self.usable.store(false, Ordering::Release);
                    noted(Err(e));
                }
            }
        }
        inode.handles += 1;
        let Some(backing) = &inode.backing else {
            return Some(reply);
        };
        noted(Ok(()));
        // No other flag may be combined with it.
        let flags = FopenFlags::FOPEN_NOFLUSH;
        reply.opened_passthrough(FileHandle(handle), flags, backing);
        None
    }

    /// Counts a close.
    pub(super) fn release(&self, ino: u64) {
        let mut inodes = self.inodes.lock();
        let Some(inode) = inodes.get_mut(&ino) else {
            return;
        };
        inode.handles = inode.handles.saturating_sub(1);
        if inode.handles == 0 {
            inodes.remove(&ino);
        }
    }
}
