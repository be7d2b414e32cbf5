//! Opening, creating and reading files: which pages the kernel may keep, and how readers are served.

use std::ffi::OsStr;
use std::ops::Range;

use fuser::{
    FileHandle, FopenFlags, INodeNo, InitFlags, KernelConfig, OpenAccMode, OpenFlags, ReplyCreate,
    ReplyData, ReplyOpen, Request,
};

use super::adapter::{Adapter, Reading};
use super::{GENERATION, SHORT_READ, file_attr, ttl};
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
                let _work = self.begin_slow(request);
                self.open_to_read(thread, ino, reply);
            }
            return;
        }
        let _work = self.begin_slow(request);
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
                    self.preload(ino, opened.handle);
                }
                self.read_ahead(&opened);
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

    /// Requests passthrough from the kernel: it then reads copies itself.
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

    /// Answers an open after which the kernel reads a copy itself; otherwise returns the reply.
    fn pass_through(&self, ino: INodeNo, handle: u64, reply: ReplyOpen) -> Option<ReplyOpen> {
        let Some(passthrough) = &self.passthrough else {
            return Some(reply);
        };
        let copy = self.fs.whole_copy(handle);
        passthrough.open(ino.0, handle, copy.as_deref(), reply, |noted| match noted {
            Ok(()) => {
                self.fs.note_passthrough(Ok(()));
                self.fs.note_passed();
            }
            Err(e) => {
                let why = match e.raw_os_error() {
                    Some(libc::EPERM) => "it needs root".to_owned(),
                    _ => e.to_string(),
                };
                self.fs.note_passthrough(Err(why));
            }
        })
    }

    /// Records that a handle of an inode is closed.
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
        let _work = self.begin(request);
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
        (ino, handle): (INodeNo, FileHandle),
        offset: u64,
        size: u32,
        reply: ReplyData,
    ) {
        let asked = offset..offset.saturating_add(u64::from(size));
        let reading = self.begin_reading(ino.0, asked.clone());
        if self.waits() {
            self.hand_on(reply, move |own, reply| {
                own.answer_read(&reading, handle, asked, false, reply);
            });
            return;
        }
        let direct = self.fs.is_direct(handle.0);
        let _work = if direct || size <= SHORT_READ {
            self.begin_slow(request)
        } else {
            self.apart();
            self.begin_long(request)
        };
        if direct {
            // Several threads decode a chunk that is requested alone.
            self.spread();
        }
        self.answer_read(&reading, handle, asked, direct, reply);
    }

    fn answer_read(
        &self,
        reading: &Reading,
        handle: FileHandle,
        asked: Range<u64>,
        direct: bool,
        reply: ReplyData,
    ) {
        let size = asked.end - asked.start;
        // A failure shows when the bytes are read.
        let more = self.ask(|fs| Ok(fs.wanted(handle.0, asked.clone())));
        let storing = match more {
            Ok(Some(more)) => self
                .begin_storing(reading, more.range)
                .map(|storing| (storing, more.is_mapped)),
            _ => None,
        };
        let wanted = match &storing {
            Some((storing, _)) => storing.range().clone(),
            None => asked.clone(),
        };
        let read = self.ask(|fs| fs.read_wanted(handle.0, asked, wanted));
        if let (Ok(read), Some((storing, is_mapped))) = (&read, &storing)
            && storing.is_free(*is_mapped)
        {
            for (offset, bytes) in read.beside() {
                storing.store(offset, bytes);
            }
        }
        drop(storing);
        self.answer(|| match &read {
            Ok(read) => reply.data(read.asked()),
            Err(errno) => reply.error(*errno),
        });
        // A sequential reader through the page cache is followed by the request for the next window at once.
        if direct || size > u64::from(SHORT_READ) {
            self.look_out();
        }
    }

    /// Puts the bytes of a file that was just opened into the page cache, which saves the kernel a request.
    ///
    /// This call waits for pages that are being read. There are none: this handle is the first, and others can follow
    /// only while this thread works. Of concurrent threads here, the last one waits for none.
    pub(super) fn preload(&self, ino: INodeNo, handle: u64) {
        if let Some(notifier) = self.notifier()
            && let Ok(Some(bytes)) = self.ask(|fs| Ok(fs.whole(handle)))
        {
            // If this fails, the kernel requests the bytes.
            let _ = notifier.store(ino, 0, &bytes);
        }
    }

    /// Returns the flags of a file that is written. A program that only writes needs no page cache: its bytes bypass
    /// it. Kernels that allow such files to be mapped also keep the pages of other handles consistent.
    pub(super) fn written_pages(&self, mode: OpenAccMode) -> FopenFlags {
        if mode == OpenAccMode::O_WRONLY && self.maps_direct {
            FopenFlags::FOPEN_DIRECT_IO
        } else {
            FopenFlags::FOPEN_KEEP_CACHE
        }
    }
}

/// Returns the owner and the permissions of a file that a request creates.
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
