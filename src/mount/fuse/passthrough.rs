//! Files that the kernel reads by itself, from a copy on disk (Linux 6.9, root).
//!
//! The kernel has one backing file for an inode, and none beside handles that this process answers: so whoever opens an
//! inode first decides for all until the last of them closes it. A file that is mapped counts as open. The kernel is done with a handle before
//! it says that it is closed, so what is counted here is never less than what the kernel has.

use std::collections::HashMap;
use std::io;
use std::os::fd::AsFd;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, MutexGuard};

use fuser::{BackingId, FileHandle, FopenFlags, ReplyOpen};

/// The handles of an inode.
struct OpenInode {
    handles: u64,
    /// The file that the kernel reads; `None`: it asks.
    backing: Option<BackingId>,
}

/// The inodes of a mount that are open.
#[derive(Default)]
pub(super) struct Passthrough {
    /// The kernel has it, and lets this process use it.
    usable: AtomicBool,
    inodes: Mutex<HashMap<u64, OpenInode>>,
}

/// The answer to an open.
pub(super) enum Answer {
    /// It was given, and the kernel reads by itself.
    Passed,
    /// It is to be given as if there were no passthrough.
    Usual(ReplyOpen),
}

impl Passthrough {
    fn inodes(&self) -> MutexGuard<'_, HashMap<u64, OpenInode>> {
        // Nothing that can panic runs under it but allocation.
        self.inodes.lock().unwrap_or_else(|e| e.into_inner())
    }

    /// The kernel offers it.
    pub(super) fn offer(&self) {
        self.usable.store(true, Ordering::Release);
    }

    /// Counts an open of an inode, and answers it if the kernel is to read a copy. `refused` is told why it does not.
    pub(super) fn open(
        &self,
        ino: u64,
        handle: u64,
        copy: Option<&impl AsFd>,
        reply: ReplyOpen,
        refused: impl FnOnce(io::Error),
    ) -> Answer {
        let mut inodes = self.inodes();
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
                    refused(e);
                }
            }
        }
        inode.handles += 1;
        match &inode.backing {
            Some(backing) => {
                // No other flag goes with it.
                let flags = FopenFlags::FOPEN_NOFLUSH;
                reply.opened_passthrough(FileHandle(handle), flags, backing);
                Answer::Passed
            }
            None => Answer::Usual(reply),
        }
    }

    /// Counts a close.
    pub(super) fn release(&self, ino: u64) {
        let mut inodes = self.inodes();
        let Some(inode) = inodes.get_mut(&ino) else {
            return;
        };
        inode.handles = inode.handles.saturating_sub(1);
        if inode.handles == 0 {
            inodes.remove(&ino);
        }
    }
}
