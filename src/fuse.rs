//! The kernel's side: translates FUSE requests into calls of [`Fs`] and its answers into replies.
//!
//! Takes no decision about names, bytes or times. Assumes that panics unwind:
//! one that happens inside an operation becomes EIO for that request and nothing else. Never asks
//! for FUSE_OVER_IO_URING: fuser accepts it but serves no such queue, and the mount hangs.

mod awake;
mod crew;
mod reply;
pub mod session;
pub mod table;
pub mod unmount;

use std::ffi::OsStr;
use std::io;
use std::os::fd::AsFd;
use std::os::unix::ffi::OsStrExt;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::Path;
use std::sync::{Arc, OnceLock};
use std::time::{Duration, SystemTime};

use fuser::{
    BsdFileFlags, CopyFileRangeFlags, Errno, FileHandle, Filesystem, FopenFlags, Generation,
    INodeNo, InitFlags, KernelConfig, LockOwner, Notifier, OpenAccMode, OpenFlags, RenameFlags,
    ReplyAttr, ReplyCreate, ReplyData, ReplyDirectory, ReplyDirectoryPlus, ReplyEmpty, ReplyEntry,
    ReplyOpen, ReplyStatfs, ReplyWrite, ReplyXattr, Request, TimeOrNow, WriteFlags,
};

use crate::fs::{Attr, Change, Flags, Fs, FsError, Maker, Replace};

use awake::Awake;
use crew::Crew;
use reply::{NO_ENTRY, done, file_attr, file_type, shown_attr, sized, ttl};

/// How long the kernel may believe a name, a missing name, or attributes.
const TTL: Duration = Duration::from_secs(1);

/// The same for what never changes.
const FOR_EVER: Duration = Duration::from_secs(10 * 365 * 24 * 3600);

/// Requests that the kernel may have under way in the background, read-ahead above all.
const MAX_BACKGROUND: u16 = 64;

/// Preferred size of reads of a directory, which programs take for their buffer. With 32 KiB, what they use
/// otherwise, 200 names come with a request and waiting for requests is a quarter of `ls -l`.
const DIRECTORY_BLOCK: u32 = 256 << 10;

/// Numbers are never used twice within a mount.
const GENERATION: Generation = Generation(0);

/// What the kernel is asked for, each where it has it. Not that it drop pages when a time changes: the
/// content of an inode never does.
const WANTED: [InitFlags; 4] = [
    InitFlags::FUSE_ASYNC_READ,
    InitFlags::FUSE_DO_READDIRPLUS,
    InitFlags::FUSE_PARALLEL_DIROPS,
    InitFlags::FUSE_CACHE_SYMLINKS,
];

/// A view of a store as `fuser` wants to see it.
pub struct Adapter {
    fs: Fs,
    /// The kernel lets files be mapped that are opened for direct reads (Linux 6.6).
    maps_direct: bool,
    link: Arc<OnceLock<Link>>,
    /// Where operations are short.
    crew: Option<Arc<Crew>>,
}

/// A request that a thread of the crew has, until it is answered.
struct Work<'a>(&'a Adapter);

impl Drop for Work<'_> {
    fn drop(&mut self) {
        if let Some(crew) = &self.0.crew
            && crew.rest()
        {
            self.0.stay_awake();
        }
    }
}

/// What leads to the kernel beside answers.
pub struct Link {
    notifier: Notifier,
    awake: Awake,
}

impl Link {
    pub fn new(session: &fuser::Session<Adapter>) -> io::Result<Self> {
        Ok(Self {
            notifier: session.notifier(),
            awake: Awake::new(session.as_fd().try_clone_to_owned()?),
        })
    }
}

impl Adapter {
    pub fn new(fs: Fs) -> Self {
        // It is only about speed.
        let crew = fs.stores_quickly().then(|| Crew::new().ok());
        Self {
            fs,
            crew: crew.flatten(),
            maps_direct: false,
            link: Arc::default(),
        }
    }

    /// Where the session puts its link.
    pub fn link(&self) -> &Arc<OnceLock<Link>> {
        &self.link
    }

    /// A request begins; to be held until it is answered.
    fn work(&self) -> Work<'_> {
        if let Some(crew) = &self.crew {
            crew.begin();
        }
        Work(self)
    }

    /// The same of one that may take long.
    fn long_work(&self) -> Work<'_> {
        let work = self.work();
        if let Some(crew) = &self.crew {
            crew.call_another();
        }
        work
    }

    /// After an answer: stays awake for the next request.
    fn look_out(&self) {
        // A crew sees to that for all requests.
        if self.crew.is_none() {
            self.stay_awake();
        }
    }

    /// Unless decoders need the processor.
    fn stay_awake(&self) {
        if let Some(link) = self.link.get()
            && !self.fs.is_decoding()
        {
            link.awake.look_out();
        }
    }

    /// Puts the bytes of a file that was just opened into the page cache, which spares the kernel a request.
    ///
    /// It waits for pages that somebody is reading. Nobody is: this handle is the first, and others may follow only
    /// while this thread works; of the threads that are here at the same time the last to come waits for nobody.
    fn give(&self, ino: INodeNo, handle: u64) {
        if let Some(link) = self.link.get()
            && let Ok(Some(bytes)) = self.ask(|fs| Ok(fs.whole(handle)))
        {
            // Without it the kernel asks.
            let _ = link.notifier.store(ino, 0, &bytes);
        }
    }

    /// The one door to `Fs`.
    fn ask<'a, T>(
        &'a self,
        operation: impl FnOnce(&'a Fs) -> Result<T, FsError>,
    ) -> Result<T, Errno> {
        match catch_unwind(AssertUnwindSafe(|| operation(&self.fs))) {
            Ok(Ok(answer)) => Ok(answer),
            Ok(Err(refusal)) => Err(Errno::from_i32(refusal.errno)),
            Err(_panic) => Err(Errno::EIO),
        }
    }

    /// Who only writes needs no pages of the kernel's: what is written is not copied there on its way. Kernels that
    /// let such files be mapped keep the pages of others right as well.
    fn written_pages(&self, mode: OpenAccMode) -> FopenFlags {
        if mode == OpenAccMode::O_WRONLY && self.maps_direct {
            FopenFlags::FOPEN_DIRECT_IO
        } else {
            FopenFlags::FOPEN_KEEP_CACHE
        }
    }

    /// For operations that cannot be refused.
    fn tell(&self, operation: impl FnOnce(&Fs)) -> Result<(), Errno> {
        self.ask(|fs| {
            operation(fs);
            Ok(())
        })
    }
}

/// Operations that are never offered: EROFS on a read-only mount (where the kernel answers itself, until
/// somebody remounts it writable), the error that is named on a writable one.
macro_rules! refused {
    ($($error:ident: $operation:ident($($argument:ty),*) -> $reply:ty;)*) => {
        $(fn $operation(&self, _: &Request, $(_: $argument,)* reply: $reply) {
            let _work = self.work();
            reply.error(if self.fs.is_writable() { Errno::$error } else { Errno::EROFS });
        })*
    };
}

impl Filesystem for Adapter {
    fn init(&mut self, _: &Request, config: &mut KernelConfig) -> io::Result<()> {
        for flag in WANTED {
            // An older kernel lacks some; every one of them is only about speed.
            let _ = config.add_capabilities(flag);
        }
        if self.fs.is_writable() {
            // Truncating is a part of opening: what is cut off need not be copied first.
            let _ = config.add_capabilities(InitFlags::FUSE_ATOMIC_O_TRUNC);
        }
        self.maps_direct = config
            .add_capabilities(InitFlags::FUSE_DIRECT_IO_ALLOW_MMAP)
            .is_ok();
        if let Err(largest) = config.set_max_readahead(u32::MAX) {
            let _ = config.set_max_readahead(largest);
        }
        if self.fs.lists_names() {
            // Attributes come with names only to programs that look at them right away.
            let _ = config.add_capabilities(InitFlags::FUSE_READDIRPLUS_AUTO);
        }
        let _ = config.set_max_background(MAX_BACKGROUND);
        let _ = config.set_time_granularity(Duration::from_nanos(1));
        self.fs.warm();
        Ok(())
    }

    fn destroy(&mut self) {
        // Nobody is left to be told of a failure, but for the log that the target keeps.
        let _ = self.ask(Fs::close);
    }

    fn lookup(&self, _: &Request, parent: INodeNo, name: &OsStr, reply: ReplyEntry) {
        let _work = self.work();
        match self.ask(|fs| fs.lookup(parent.0, name)) {
            Ok(attr) => reply.entry(&ttl(&attr), &file_attr(&attr), GENERATION),
            Err(errno) if errno.code() == libc::ENOENT && !self.fs.is_writable() => {
                reply.entry(&TTL, &NO_ENTRY, GENERATION);
            }
            Err(errno) => reply.error(errno),
        }
        self.look_out();
    }

    fn forget(&self, _: &Request, ino: INodeNo, count: u64) {
        let _work = self.work();
        // The kernel expects no answer.
        let _ = self.tell(|fs| fs.forget(ino.0, count));
    }

    fn getattr(&self, _: &Request, ino: INodeNo, _: Option<FileHandle>, reply: ReplyAttr) {
        let _work = self.work();
        match self.ask(|fs| fs.getattr(ino.0)) {
            Ok(attr) => reply.attr(&ttl(&attr), &shown_attr(&attr)),
            Err(errno) => reply.error(errno),
        }
        self.look_out();
    }

    fn readlink(&self, _: &Request, ino: INodeNo, reply: ReplyData) {
        let _work = self.long_work();
        match self.ask(|fs| fs.readlink(ino.0)) {
            Ok(target) => reply.data(&target),
            Err(errno) => reply.error(errno),
        }
    }

    fn open(&self, request: &Request, ino: INodeNo, flags: OpenFlags, reply: ReplyOpen) {
        let _work = self.long_work();
        if flags.acc_mode() != OpenAccMode::O_RDONLY {
            return match self.ask(|fs| fs.open_to_write(ino.0, open_flags(request, flags.0))) {
                Ok(opened) => {
                    reply.opened(
                        FileHandle(opened.handle),
                        self.written_pages(flags.acc_mode()),
                    );
                }
                Err(errno) => reply.error(errno),
            };
        }
        match self.ask(|fs| fs.open_file(ino.0, self.maps_direct)) {
            Ok(opened) => {
                if opened.fresh {
                    self.give(ino, opened.handle);
                }
                let pages = if opened.direct_io {
                    FopenFlags::FOPEN_DIRECT_IO
                } else {
                    FopenFlags::FOPEN_KEEP_CACHE
                };
                reply.opened(FileHandle(opened.handle), pages | FopenFlags::FOPEN_NOFLUSH);
            }
            Err(errno) => reply.error(errno),
        }
        self.look_out();
    }

    fn read(
        &self,
        _: &Request,
        _: INodeNo,
        handle: FileHandle,
        offset: u64,
        size: u32,
        _: OpenFlags,
        _: Option<LockOwner>,
        reply: ReplyData,
    ) {
        let _work = self.long_work();
        match self.ask(|fs| fs.read(handle.0, offset, size)) {
            Ok(bytes) => reply.data(bytes.as_ref()),
            Err(errno) => reply.error(errno),
        }
        if self.fs.is_direct(handle.0) {
            self.look_out();
        }
    }

    fn release(
        &self,
        _: &Request,
        _: INodeNo,
        handle: FileHandle,
        _: OpenFlags,
        _: Option<LockOwner>,
        _: bool,
        reply: ReplyEmpty,
    ) {
        let _work = self.work();
        done(self.tell(|fs| fs.release(handle.0)), reply);
        self.look_out();
    }

    fn opendir(&self, _: &Request, ino: INodeNo, _: OpenFlags, reply: ReplyOpen) {
        let _work = self.long_work();
        match self.ask(|fs| fs.open_dir(ino.0)) {
            Ok(handle) => reply.opened(FileHandle(handle), FopenFlags::empty()),
            Err(errno) => reply.error(errno),
        }
    }

    fn readdir(
        &self,
        _: &Request,
        _: INodeNo,
        handle: FileHandle,
        offset: u64,
        mut reply: ReplyDirectory,
    ) {
        let _work = self.long_work();
        let answer = self.ask(|fs| {
            fs.read_dir(handle.0, offset, &mut |entry| {
                !reply.add(
                    INodeNo(entry.ino),
                    entry.next,
                    file_type(entry.kind),
                    OsStr::from_bytes(&entry.name),
                )
            })
        });
        match answer {
            Ok(()) => reply.ok(),
            Err(errno) => reply.error(errno),
        }
    }

    fn readdirplus(
        &self,
        _: &Request,
        _: INodeNo,
        handle: FileHandle,
        offset: u64,
        mut reply: ReplyDirectoryPlus,
    ) {
        let _work = self.long_work();
        let answer = self.ask(|fs| {
            fs.read_dir_plus(handle.0, offset, &mut |entry, attr| {
                let name = OsStr::from_bytes(&entry.name);
                !reply.add(
                    INodeNo(entry.ino),
                    entry.next,
                    name,
                    &ttl(attr),
                    &file_attr(attr),
                    GENERATION,
                )
            })
        });
        match answer {
            Ok(()) => reply.ok(),
            Err(errno) => reply.error(errno),
        }
    }

    fn releasedir(
        &self,
        _: &Request,
        _: INodeNo,
        handle: FileHandle,
        _: OpenFlags,
        reply: ReplyEmpty,
    ) {
        let _work = self.work();
        done(self.tell(|fs| fs.release_dir(handle.0)), reply);
    }

    fn statfs(&self, _: &Request, _: INodeNo, reply: ReplyStatfs) {
        let _work = self.work();
        match self.ask(Fs::statfs) {
            Ok(s) => reply.statfs(
                s.blocks, s.bfree, s.bavail, s.files, s.ffree, s.bsize, s.namelen, s.frsize,
            ),
            Err(errno) => reply.error(errno),
        }
    }

    fn getxattr(&self, _: &Request, ino: INodeNo, name: &OsStr, size: u32, reply: ReplyXattr) {
        let _work = self.work();
        if !self.fs.xattrs_enabled() {
            return reply.error(Errno::ENOSYS);
        }
        match self.ask(|fs| fs.get_xattr(ino.0, name)) {
            Ok(Some(value)) => sized(&value, size, reply),
            Ok(None) => reply.error(Errno::ENODATA),
            Err(errno) => reply.error(errno),
        }
    }

    fn listxattr(&self, _: &Request, ino: INodeNo, size: u32, reply: ReplyXattr) {
        let _work = self.work();
        if !self.fs.xattrs_enabled() {
            return reply.error(Errno::ENOSYS);
        }
        match self.ask(|fs| fs.list_xattr(ino.0)) {
            Ok(names) => {
                let list: Vec<u8> = names
                    .into_iter()
                    .flat_map(|name| name.into_iter().chain([0]))
                    .collect();
                sized(&list, size, reply);
            }
            Err(errno) => reply.error(errno),
        }
    }

    fn create(
        &self,
        request: &Request,
        parent: INodeNo,
        name: &OsStr,
        mode: u32,
        umask: u32,
        flags: i32,
        reply: ReplyCreate,
    ) {
        let _work = self.work();
        let maker = maker(request, mode & !umask);
        match self.ask(|fs| fs.create(parent.0, name, maker, open_flags(request, flags))) {
            Ok((attr, opened)) => reply.created(
                &ttl(&attr),
                &file_attr(&attr),
                GENERATION,
                FileHandle(opened.handle),
                self.written_pages(OpenFlags(flags).acc_mode()),
            ),
            Err(errno) => reply.error(errno),
        }
        self.look_out();
    }

    fn mknod(
        &self,
        request: &Request,
        parent: INodeNo,
        name: &OsStr,
        mode: u32,
        umask: u32,
        _: u32,
        reply: ReplyEntry,
    ) {
        let _work = self.long_work();
        if mode & libc::S_IFMT != libc::S_IFREG {
            return reply.error(Errno::EPERM);
        }
        let maker = maker(request, mode & !umask);
        let flags = Flags {
            thread: request.pid(),
            exclusive: true,
            truncate: false,
        };
        let made = self.ask(|fs| {
            let (attr, opened) = fs.create(parent.0, name, maker, flags)?;
            fs.release(opened.handle);
            Ok(attr)
        });
        entry(made, reply);
    }

    fn write(
        &self,
        _: &Request,
        _: INodeNo,
        handle: FileHandle,
        offset: u64,
        data: &[u8],
        _: WriteFlags,
        _: OpenFlags,
        _: Option<LockOwner>,
        reply: ReplyWrite,
    ) {
        let _work = self.work();
        match self.ask(|fs| fs.write(handle.0, offset, data)) {
            // Requests are far below 4 GiB.
            Ok(()) => reply.written(u32::try_from(data.len()).unwrap_or(u32::MAX)),
            Err(errno) => reply.error(errno),
        }
        self.look_out();
    }

    fn flush(
        &self,
        request: &Request,
        _: INodeNo,
        handle: FileHandle,
        _: LockOwner,
        reply: ReplyEmpty,
    ) {
        let _work = self.work();
        done(self.ask(|fs| fs.flush(handle.0, request.pid())), reply);
        self.look_out();
    }

    fn fsync(&self, _: &Request, _: INodeNo, handle: FileHandle, _: bool, reply: ReplyEmpty) {
        let _work = self.long_work();
        done(self.ask(|fs| fs.fsync(handle.0)), reply);
    }

    fn fsyncdir(&self, _: &Request, _: INodeNo, _: FileHandle, _: bool, reply: ReplyEmpty) {
        let _work = self.long_work();
        done(self.ask(Fs::sync_dir), reply);
    }

    fn fallocate(
        &self,
        _: &Request,
        _: INodeNo,
        handle: FileHandle,
        offset: u64,
        length: u64,
        mode: i32,
        reply: ReplyEmpty,
    ) {
        let _work = self.long_work();
        let allocated = self.ask(|fs| fs.fallocate(handle.0, offset, length, mode));
        done(allocated, reply);
    }

    fn setattr(
        &self,
        _: &Request,
        ino: INodeNo,
        mode: Option<u32>,
        uid: Option<u32>,
        gid: Option<u32>,
        size: Option<u64>,
        _: Option<TimeOrNow>,
        mtime: Option<TimeOrNow>,
        _: Option<SystemTime>,
        handle: Option<FileHandle>,
        _: Option<SystemTime>,
        _: Option<SystemTime>,
        _: Option<SystemTime>,
        _: Option<BsdFileFlags>,
        reply: ReplyAttr,
    ) {
        let _work = self.long_work();
        let change = Change {
            size,
            mode,
            uid,
            gid,
            mtime: mtime.map(|time| match time {
                TimeOrNow::SpecificTime(time) => time,
                TimeOrNow::Now => SystemTime::now(),
            }),
        };
        let handle = handle.map(|handle| handle.0);
        match self.ask(|fs| fs.setattr(ino.0, handle, change)) {
            Ok(attr) => reply.attr(&ttl(&attr), &shown_attr(&attr)),
            Err(errno) => reply.error(errno),
        }
    }

    fn mkdir(&self, _: &Request, parent: INodeNo, name: &OsStr, _: u32, _: u32, reply: ReplyEntry) {
        let _work = self.long_work();
        entry(self.ask(|fs| fs.make_directory(parent.0, name)), reply);
    }

    fn unlink(&self, _: &Request, parent: INodeNo, name: &OsStr, reply: ReplyEmpty) {
        let _work = self.long_work();
        done(self.ask(|fs| fs.unlink(parent.0, name)), reply);
    }

    fn rmdir(&self, _: &Request, parent: INodeNo, name: &OsStr, reply: ReplyEmpty) {
        let _work = self.long_work();
        done(self.ask(|fs| fs.remove_directory(parent.0, name)), reply);
    }

    fn rename(
        &self,
        _: &Request,
        parent: INodeNo,
        name: &OsStr,
        new_parent: INodeNo,
        new_name: &OsStr,
        flags: RenameFlags,
        reply: ReplyEmpty,
    ) {
        let _work = self.long_work();
        let replace = match flags {
            RenameFlags::RENAME_NOREPLACE => Replace::No,
            flags if flags.is_empty() => Replace::Yes,
            _ => return reply.error(Errno::EINVAL),
        };
        let (from, to) = ((parent.0, name), (new_parent.0, new_name));
        done(self.ask(|fs| fs.rename(from, to, replace)), reply);
    }

    fn copy_file_range(
        &self,
        _: &Request,
        _: INodeNo,
        _: FileHandle,
        _: u64,
        _: INodeNo,
        _: FileHandle,
        _: u64,
        _: u64,
        _: CopyFileRangeFlags,
        reply: ReplyWrite,
    ) {
        let _work = self.work();
        // The kernel then reads and writes.
        reply.error(Errno::ENOSYS);
    }

    refused! {
        EPERM: symlink(INodeNo, &OsStr, &Path) -> ReplyEntry;
        EPERM: link(INodeNo, INodeNo, &OsStr) -> ReplyEntry;
        // What `cp -p` takes for: there are no access control lists here.
        EOPNOTSUPP: setxattr(INodeNo, &OsStr, &[u8], i32, u32) -> ReplyEmpty;
        EOPNOTSUPP: removexattr(INodeNo, &OsStr) -> ReplyEmpty;
    }
}

fn maker(request: &Request, mode: u32) -> Maker {
    Maker {
        uid: request.uid(),
        gid: request.gid(),
        mode: mode & 0o777,
    }
}

fn open_flags(request: &Request, flags: i32) -> Flags {
    Flags {
        thread: request.pid(),
        truncate: flags & libc::O_TRUNC != 0,
        exclusive: flags & libc::O_EXCL != 0,
    }
}

fn entry(answer: Result<Attr, Errno>, reply: ReplyEntry) {
    match answer {
        Ok(attr) => reply.entry(&ttl(&attr), &file_attr(&attr), GENERATION),
        Err(errno) => reply.error(errno),
    }
}
