//! Opening, making and reading files: which pages the kernel keeps, and who is served how.

use std::ffi::OsStr;

use fuser::{
    FileHandle, FopenFlags, INodeNo, InitFlags, KernelConfig, OpenAccMode, OpenFlags, ReplyCreate,
    ReplyData, ReplyOpen, Request,
};

use super::adapter::Adapter;
use super::passthrough::Answer;
use super::reply::{file_attr, ttl};
use super::{GENERATION, SHORT_READ};
use crate::mount::fs::{Flags, Maker};

impl Adapter {
    pub(super) fn open_file(
        &self,
        request: &Request,
        ino: INodeNo,
        flags: OpenFlags,
        reply: ReplyOpen,
    ) {
        let thread = request.pid();
        if flags.acc_mode() == OpenAccMode::O_RDONLY {
            let reply = self.hand_on(reply, move |own, reply| {
                own.open_to_read(thread, ino, reply)
            });
            if let Some(reply) = reply {
                let _work = self.longer_work(request);
                self.open_to_read(thread, ino, reply);
            }
            return;
        }
        let _work = self.longer_work(request);
        match self.ask(|fs| fs.open_to_write(ino.0, open_flags(request, flags.0))) {
            Ok(opened) => {
                let pages = self.written_pages(flags.acc_mode());
                reply.opened(FileHandle(opened.handle), pages);
            }
            Err(errno) => reply.error(errno),
        }
    }

    fn open_to_read(&self, thread: u32, ino: INodeNo, reply: ReplyOpen) {
        match self.ask(|fs| fs.open_file(ino.0, self.maps_direct, thread)) {
            Ok(opened) => {
                if opened.fresh {
                    self.give(ino, opened.handle);
                }
                let Some(reply) = self.pass_through(ino, opened.handle, reply) else {
                    self.look_out();
                    return;
                };
                let pages = if opened.direct_io {
                    FopenFlags::FOPEN_DIRECT_IO
                } else {
                    FopenFlags::FOPEN_KEEP_CACHE
                };
                let flags = pages | FopenFlags::FOPEN_NOFLUSH;
                self.answer(|| reply.opened(FileHandle(opened.handle), flags));
            }
            Err(errno) => reply.error(errno),
        }
        self.look_out();
    }

    /// Asks the kernel to read copies by itself.
    pub(super) fn ask_for_passthrough(&self, config: &mut KernelConfig) {
        let Some(passthrough) = &self.passthrough else {
            return;
        };
        let asked = config.add_capabilities(InitFlags::FUSE_PASSTHROUGH);
        let depth = config.set_max_stack_depth(self.fs.depth_of_copies());
        match (asked, depth) {
            (Ok(()), Ok(_)) => passthrough.offer(),
            _ => self
                .fs
                .note_passthrough(Err("the kernel has none: it needs Linux 6.9".to_owned())),
        }
    }

    /// Answers an open after which the kernel reads a copy by itself; hands the reply back if it does not.
    fn pass_through(&self, ino: INodeNo, handle: u64, reply: ReplyOpen) -> Option<ReplyOpen> {
        let Some(passthrough) = &self.passthrough else {
            return Some(reply);
        };
        let copy = self.fs.whole_copy(handle);
        let refused = |e: std::io::Error| {
            let why = match e.raw_os_error() {
                Some(libc::EPERM) => "it needs root".to_owned(),
                _ => e.to_string(),
            };
            self.fs.note_passthrough(Err(why));
        };
        match passthrough.open(ino.0, handle, copy.as_deref(), reply, refused) {
            Answer::Passed => {
                self.fs.note_passthrough(Ok(()));
                self.fs.note_passed();
                None
            }
            Answer::Usual(reply) => Some(reply),
        }
    }

    /// A handle of an inode is closed.
    pub(super) fn closed(&self, ino: INodeNo) {
        if let Some(passthrough) = &self.passthrough {
            passthrough.release(ino.0);
        }
    }

    pub(super) fn create_file(
        &self,
        request: &Request,
        (parent, name): (INodeNo, &OsStr),
        mode: u32,
        flags: i32,
        reply: ReplyCreate,
    ) {
        let _work = self.work(request);
        let maker = maker(request, mode);
        let made = self.ask(|fs| fs.create(parent.0, name, maker, open_flags(request, flags)));
        self.answer(|| match made {
            Ok((attr, opened)) => reply.created(
                &ttl(&attr),
                &file_attr(&attr),
                GENERATION,
                FileHandle(opened.handle),
                self.written_pages(OpenFlags(flags).acc_mode()),
            ),
            Err(errno) => reply.error(errno),
        });
        self.look_out();
    }

    pub(super) fn read_file(
        &self,
        request: &Request,
        handle: FileHandle,
        offset: u64,
        size: u32,
        reply: ReplyData,
    ) {
        let reply = self.hand_on(reply, move |own, reply| {
            own.answer_read(handle, offset, size, false, reply);
        });
        let Some(reply) = reply else {
            return;
        };
        let direct = self.fs.is_direct(handle.0);
        let _work = if direct || size <= SHORT_READ {
            self.longer_work(request)
        } else {
            self.apart();
            self.long_work(request)
        };
        if direct {
            // A chunk that is wanted alone is decoded by several threads.
            self.spread();
        }
        self.answer_read(handle, offset, size, direct, reply);
    }

    fn answer_read(
        &self,
        handle: FileHandle,
        offset: u64,
        size: u32,
        direct: bool,
        reply: ReplyData,
    ) {
        let bytes = self.ask(|fs| fs.read(handle.0, offset, size));
        self.answer(|| match &bytes {
            Ok(bytes) => reply.data(bytes.as_ref()),
            Err(errno) => reply.error(*errno),
        });
        // Whoever reads in order through the page cache asks for the next window right away.
        if direct || size > SHORT_READ {
            self.look_out();
        }
    }

    /// Puts the bytes of a file that was just opened into the page cache, which spares the kernel a request.
    ///
    /// It waits for pages that somebody is reading. Nobody is: this handle is the first, and others may follow only
    /// while this thread works; of the threads that are here at the same time the last to come waits for nobody.
    pub(super) fn give(&self, ino: INodeNo, handle: u64) {
        if let Some(notifier) = self.notifier()
            && let Ok(Some(bytes)) = self.ask(|fs| Ok(fs.whole(handle)))
        {
            // Without it the kernel asks.
            let _ = notifier.store(ino, 0, &bytes);
        }
    }

    /// Returns the flags of a file that is written. A program that only writes needs no pages of the kernel's: what is written is not copied there on its way. Kernels that
    /// let such files be mapped keep the pages of others right as well.
    pub(super) fn written_pages(&self, mode: OpenAccMode) -> FopenFlags {
        if mode == OpenAccMode::O_WRONLY && self.maps_direct {
            FopenFlags::FOPEN_DIRECT_IO
        } else {
            FopenFlags::FOPEN_KEEP_CACHE
        }
    }
}

/// Returns the owner and the permissions of what a request makes.
pub(super) fn maker(request: &Request, mode: u32) -> Maker {
    Maker {
        uid: request.uid(),
        gid: request.gid(),
        mode: mode & 0o777,
    }
}

/// Returns how a request opens a file.
pub(super) fn open_flags(request: &Request, flags: i32) -> Flags {
    Flags {
        thread: request.pid(),
        truncate: flags & libc::O_TRUNC != 0,
        exclusive: flags & libc::O_EXCL != 0,
        reads: OpenFlags(flags).acc_mode() == OpenAccMode::O_RDWR,
    }
}
