//! The FUSE interface: translates requests of the kernel into calls of [`Fs`], and the results into replies.
//!
//! Makes no decisions about names, bytes or times. Assumes that panics unwind: a panic in an operation becomes EIO for
//! that request and nothing else. Never requests FUSE_OVER_IO_URING: fuser accepts it but serves no such queue, and the
//! mount would hang.

mod adapter;
mod files;
pub mod inherited;
mod passthrough;
mod read_ahead;
mod scheduling;
pub mod session;
pub mod table;

use std::ffi::OsStr;
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use fuser::{
    BsdFileFlags, CopyFileRangeFlags, Errno, FileAttr, FileHandle, FileType, Filesystem,
    FopenFlags, Generation, INodeNo, InitFlags, KernelConfig, LockOwner, OpenFlags, RenameFlags,
    ReplyAttr, ReplyCreate, ReplyData, ReplyDirectory, ReplyDirectoryPlus, ReplyEmpty, ReplyEntry,
    ReplyOpen, ReplyStatfs, ReplyWrite, ReplyXattr, Request, TimeOrNow, WriteFlags,
};

use crate::mount::fs::{Attr, AttrChange, FileKind, Flags, Fs, Replace};
use npyfs_core::checkout::verbs::commit::ATTRIBUTE;
use npyfs_core::store::target::AttributeChange;

use adapter::Adapter;
use files::maker;
use read_ahead::ReadAhead;

/// How long the kernel may cache a name, a missing name, or attributes.
const TTL: Duration = Duration::from_secs(1);

/// How long the kernel may cache entries that never change.
const FOR_EVER: Duration = Duration::from_secs(10 * 365 * 24 * 3600);

/// The most background requests of the kernel in flight, mostly read-ahead.
const MAX_BACKGROUND: u16 = 64;

/// Longer reads through the page cache are those of a sequential reader, for which the kernel reads ahead.
const SHORT_READ: u32 = 128 << 10;

/// The most bytes of a write that counts as short.
const SHORT_WRITE: usize = 64 << 10;

/// The preferred size of directory reads, which programs use for their buffer. With 32 KiB, the default, a request
/// returns 200 names, and waiting for requests is a quarter of `ls -l`.
const DIRECTORY_BLOCK: u32 = 256 << 10;

/// Inode numbers are never reused within a mount.
const GENERATION: Generation = Generation(0);

/// The capabilities to request from the kernel, if it has them. Not the one that drops pages when a time changes: the
/// content of an inode never changes.
const WANTED: [InitFlags; 4] = [
    InitFlags::FUSE_ASYNC_READ,
    InitFlags::FUSE_DO_READDIRPLUS,
    InitFlags::FUSE_PARALLEL_DIROPS,
    InitFlags::FUSE_CACHE_SYMLINKS,
];

/// Operations that are not supported: EROFS on a read-only mount (where the kernel answers itself, unless the mount is
/// remounted writable), the given error on a writable one.
macro_rules! refused {
    ($($error:ident: $operation:ident($($argument:ty),*) -> $reply:ty;)*) => {
        $(fn $operation(&self, request: &Request, $(_: $argument,)* reply: $reply) {
            let _work = self.begin(request);
            reply.error(if self.fs.is_writable() { Errno::$error } else { Errno::EROFS });
        })*
    };
}

impl Filesystem for Adapter {
    fn init(&mut self, _: &Request, config: &mut KernelConfig) -> io::Result<()> {
        for flag in WANTED {
            // Older kernels lack some of them; each only affects speed.
            let _ = config.add_capabilities(flag);
        }
        if self.fs.is_writable() {
            // Truncation is part of opening, so that the bytes that are cut off need not be copied first.
            let _ = config.add_capabilities(InitFlags::FUSE_ATOMIC_O_TRUNC);
        }
        self.maps_direct = config
            .add_capabilities(InitFlags::FUSE_DIRECT_IO_ALLOW_MMAP)
            .is_ok();
        if self.fs.keeps() {
            self.ask_for_passthrough(config);
        }
        let by_page = !self.fs.is_writable() && !ReadAhead::is_settable();
        let most = match by_page {
            true => u32::try_from(rustix::param::page_size()).unwrap_or(u32::MAX),
            false => u32::MAX,
        };
        match config.set_max_readahead(most) {
            Ok(_) if by_page => self.fs.asks_by_page(),
            Ok(_) => {}
            Err(largest) => drop(config.set_max_readahead(largest)),
        }
        if self.fs.lists_names() {
            // Names come with attributes only for programs that use them right away.
            let _ = config.add_capabilities(InitFlags::FUSE_READDIRPLUS_AUTO);
        }
        let _ = config.set_max_background(MAX_BACKGROUND);
        let _ = config.set_time_granularity(Duration::from_nanos(1));
        self.fs.warm();
        Ok(())
    }

    fn destroy(&mut self) {
        self.spread();
        // No caller is left to receive an error; the target logs it.
        let _ = self.ask(Fs::close);
    }

    fn lookup(&self, request: &Request, parent: INodeNo, name: &OsStr, reply: ReplyEntry) {
        let thread = request.pid();
        if self.waits() {
            let name = name.to_owned();
            let _ = self.hand_on(reply, move |own, reply| {
                own.look_up(thread, parent, &name, reply);
            });
            return;
        }
        let _work = match self.fs.looks_again(request.pid()) {
            true => self.begin_slow(request),
            false => self.begin(request),
        };
        self.look_up(thread, parent, name, reply);
    }

    fn forget(&self, request: &Request, ino: INodeNo, count: u64) {
        let _work = self.begin(request);
        // The kernel expects no reply.
        let _ = self.tell(|fs| fs.forget(ino.0, count));
    }

    fn getattr(&self, request: &Request, ino: INodeNo, _: Option<FileHandle>, reply: ReplyAttr) {
        let reply = self.hand_on(reply, move |own, reply| own.tell_attributes(ino, reply));
        if let Some(reply) = reply {
            let _work = self.begin(request);
            self.tell_attributes(ino, reply);
        }
    }

    fn readlink(&self, request: &Request, ino: INodeNo, reply: ReplyData) {
        let _work = self.begin_long(request);
        match self.ask(|fs| fs.readlink(ino.0)) {
            Ok(target) => reply.data(&target),
            Err(errno) => reply.error(errno),
        }
    }

    fn open(&self, request: &Request, ino: INodeNo, flags: OpenFlags, reply: ReplyOpen) {
        self.open_file(request, ino, flags, reply);
    }

    fn read(
        &self,
        request: &Request,
        ino: INodeNo,
        handle: FileHandle,
        offset: u64,
        size: u32,
        _: OpenFlags,
        _: Option<LockOwner>,
        reply: ReplyData,
    ) {
        self.read_file(request, (ino, handle), offset, size, reply);
    }

    fn release(
        &self,
        request: &Request,
        ino: INodeNo,
        handle: FileHandle,
        _: OpenFlags,
        _: Option<LockOwner>,
        _: bool,
        reply: ReplyEmpty,
    ) {
        let _work = self.begin_close(request);
        done(self.tell(|fs| fs.release(handle.0)), reply);
        self.closed(ino);
        self.look_out();
    }

    fn opendir(&self, request: &Request, ino: INodeNo, _: OpenFlags, reply: ReplyOpen) {
        let reply = self.hand_on(reply, move |own, reply| own.open_directory(ino, reply));
        if let Some(reply) = reply {
            let _work = self.begin_long(request);
            self.open_directory(ino, reply);
        }
    }

    fn readdir(
        &self,
        request: &Request,
        _: INodeNo,
        handle: FileHandle,
        offset: u64,
        reply: ReplyDirectory,
    ) {
        let reply = self.hand_on(reply, move |own, reply| own.list(handle, offset, reply));
        if let Some(reply) = reply {
            let _work = self.begin_long(request);
            self.list(handle, offset, reply);
        }
    }

    fn readdirplus(
        &self,
        request: &Request,
        _: INodeNo,
        handle: FileHandle,
        offset: u64,
        reply: ReplyDirectoryPlus,
    ) {
        let reply = self.hand_on(reply, move |own, reply| {
            own.list_with_attributes(handle, offset, reply);
        });
        if let Some(reply) = reply {
            let _work = self.begin_long(request);
            self.list_with_attributes(handle, offset, reply);
        }
    }

    fn releasedir(
        &self,
        request: &Request,
        _: INodeNo,
        handle: FileHandle,
        _: OpenFlags,
        reply: ReplyEmpty,
    ) {
        let _work = self.begin(request);
        done(self.tell(|fs| fs.release_dir(handle.0)), reply);
    }

    fn statfs(&self, request: &Request, _: INodeNo, reply: ReplyStatfs) {
        let _work = self.begin(request);
        match self.ask(Fs::statfs) {
            Ok(s) => reply.statfs(
                s.blocks, s.bfree, s.bavail, s.files, s.ffree, s.bsize, s.namelen, s.frsize,
            ),
            Err(errno) => reply.error(errno),
        }
    }

    fn getxattr(
        &self,
        request: &Request,
        ino: INodeNo,
        name: &OsStr,
        size: u32,
        reply: ReplyXattr,
    ) {
        if self.waits() {
            let name = name.to_owned();
            let _ = self.hand_on(reply, move |own, reply| {
                own.attribute(ino, &name, size, reply);
            });
            return;
        }
        let _work = self.begin(request);
        self.attribute(ino, name, size, reply);
    }

    fn listxattr(&self, request: &Request, ino: INodeNo, size: u32, reply: ReplyXattr) {
        let reply = self.hand_on(reply, move |own, reply| own.attributes(ino, size, reply));
        if let Some(reply) = reply {
            let _work = self.begin(request);
            self.attributes(ino, size, reply);
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
        self.create_file(request, (parent, name), mode & !umask, flags, reply);
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
        let _work = self.begin_long(request);
        if mode & libc::S_IFMT != libc::S_IFREG {
            return reply.error(Errno::EPERM);
        }
        let maker = maker(request, mode & !umask);
        let flags = Flags {
            thread: request.pid(),
            exclusive: true,
            truncate: false,
            reads: false,
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
        request: &Request,
        _: INodeNo,
        handle: FileHandle,
        offset: u64,
        data: &[u8],
        _: WriteFlags,
        _: OpenFlags,
        _: Option<LockOwner>,
        reply: ReplyWrite,
    ) {
        let _work = if data.len() <= SHORT_WRITE {
            self.begin(request)
        } else {
            self.begin_slow(request)
        };
        let written = self.ask(|fs| fs.write(handle.0, offset, data));
        self.answer(|| match written {
            // Requests are far below 4 GiB.
            Ok(()) => reply.written(u32::try_from(data.len()).unwrap_or(u32::MAX)),
            Err(errno) => reply.error(errno),
        });
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
        let _work = self.begin_close(request);
        let flushed = self.ask(|fs| fs.flush(handle.0, request.pid()));
        self.answer(|| done(flushed, reply));
        self.look_out();
    }

    fn fsync(&self, request: &Request, _: INodeNo, handle: FileHandle, _: bool, reply: ReplyEmpty) {
        let _work = self.begin_long(request);
        done(self.ask(|fs| fs.fsync(handle.0)), reply);
    }

    fn fsyncdir(&self, request: &Request, _: INodeNo, _: FileHandle, _: bool, reply: ReplyEmpty) {
        let _work = self.begin_long(request);
        done(self.ask(Fs::sync_dir), reply);
    }

    fn fallocate(
        &self,
        request: &Request,
        _: INodeNo,
        handle: FileHandle,
        offset: u64,
        length: u64,
        mode: i32,
        reply: ReplyEmpty,
    ) {
        let _work = self.begin_long(request);
        let allocated = self.ask(|fs| fs.fallocate(handle.0, offset, length, mode));
        done(allocated, reply);
    }

    fn setattr(
        &self,
        request: &Request,
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
        let _work = self.begin_long(request);
        let change = AttrChange {
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
        match self.ask(|fs| fs.setattr(ino.0, handle, change, request.pid())) {
            Ok(attr) => reply.attr(&ttl(&attr), &shown_attr(&attr)),
            Err(errno) => reply.error(errno),
        }
    }

    fn mkdir(
        &self,
        request: &Request,
        parent: INodeNo,
        name: &OsStr,
        _: u32,
        _: u32,
        reply: ReplyEntry,
    ) {
        let _work = self.begin_long(request);
        entry(self.ask(|fs| fs.make_directory(parent.0, name)), reply);
    }

    fn unlink(&self, request: &Request, parent: INodeNo, name: &OsStr, reply: ReplyEmpty) {
        let _work = self.begin_long(request);
        done(self.ask(|fs| fs.unlink(parent.0, name)), reply);
    }

    fn rmdir(&self, request: &Request, parent: INodeNo, name: &OsStr, reply: ReplyEmpty) {
        let _work = self.begin_long(request);
        done(self.ask(|fs| fs.remove_directory(parent.0, name)), reply);
    }

    fn rename(
        &self,
        request: &Request,
        parent: INodeNo,
        name: &OsStr,
        new_parent: INodeNo,
        new_name: &OsStr,
        flags: RenameFlags,
        reply: ReplyEmpty,
    ) {
        let _work = self.begin_long(request);
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
        request: &Request,
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
        let _work = self.begin(request);
        // The kernel then reads and writes itself.
        reply.error(Errno::ENOSYS);
    }

    fn setxattr(
        &self,
        request: &Request,
        ino: INodeNo,
        name: &OsStr,
        value: &[u8],
        flags: i32,
        _: u32,
        reply: ReplyEmpty,
    ) {
        let _work = self.begin_long(request);
        if ino == INodeNo::ROOT && name == ATTRIBUTE {
            return done(self.ask(|fs| fs.commit(request.uid(), value)), reply);
        }
        let change = match flags {
            libc::XATTR_CREATE => AttributeChange::Add(value),
            libc::XATTR_REPLACE => AttributeChange::Replace(value),
            _ => AttributeChange::Set(value),
        };
        done(self.ask(|fs| fs.set_xattr(ino.0, name, change)), reply);
    }

    fn removexattr(&self, request: &Request, ino: INodeNo, name: &OsStr, reply: ReplyEmpty) {
        let _work = self.begin_long(request);
        let change = AttributeChange::Remove;
        done(self.ask(|fs| fs.set_xattr(ino.0, name, change)), reply);
    }

    refused! {
        EPERM: symlink(INodeNo, &OsStr, &Path) -> ReplyEntry;
        EPERM: link(INodeNo, INodeNo, &OsStr) -> ReplyEntry;
    }
}

impl Adapter {
    fn look_up(&self, thread: u32, parent: INodeNo, name: &OsStr, reply: ReplyEntry) {
        let found = self.ask(|fs| fs.lookup(parent.0, name, thread));
        self.answer(|| match found {
            Ok(attr) => reply.entry(&ttl(&attr), &file_attr(&attr), GENERATION),
            Err(errno) if errno.code() == libc::ENOENT && !self.fs.is_writable() => {
                reply.entry(&TTL, &NO_ENTRY, GENERATION);
            }
            Err(errno) => reply.error(errno),
        });
        self.look_out();
    }

    fn tell_attributes(&self, ino: INodeNo, reply: ReplyAttr) {
        let attr = self.ask(|fs| fs.getattr(ino.0));
        self.answer(|| match attr {
            Ok(attr) => reply.attr(&ttl(&attr), &shown_attr(&attr)),
            Err(errno) => reply.error(errno),
        });
        self.look_out();
    }

    fn open_directory(&self, ino: INodeNo, reply: ReplyOpen) {
        match self.ask(|fs| fs.open_dir(ino.0)) {
            Ok(handle) => reply.opened(FileHandle(handle), FopenFlags::empty()),
            Err(errno) => reply.error(errno),
        }
    }

    fn list(&self, handle: FileHandle, offset: u64, mut reply: ReplyDirectory) {
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

    fn list_with_attributes(&self, handle: FileHandle, offset: u64, mut reply: ReplyDirectoryPlus) {
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

    fn attribute(&self, ino: INodeNo, name: &OsStr, size: u32, reply: ReplyXattr) {
        if !self.fs.xattrs_enabled() {
            return reply.error(Errno::ENOSYS);
        }
        match self.ask(|fs| fs.get_xattr(ino.0, name)) {
            Ok(Some(value)) => sized(&value, size, reply),
            Ok(None) => reply.error(Errno::ENODATA),
            Err(errno) => reply.error(errno),
        }
    }

    fn attributes(&self, ino: INodeNo, size: u32, reply: ReplyXattr) {
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
}

/// An entry with inode number 0 means that the name does not exist, which the kernel may cache.
const NO_ENTRY: FileAttr = FileAttr {
    ino: INodeNo(0),
    size: 0,
    blocks: 0,
    atime: UNIX_EPOCH,
    mtime: UNIX_EPOCH,
    ctime: UNIX_EPOCH,
    crtime: UNIX_EPOCH,
    kind: FileType::RegularFile,
    perm: 0,
    nlink: 0,
    uid: 0,
    gid: 0,
    rdev: 0,
    blksize: 4096,
    flags: 0,
};

fn file_attr(attr: &Attr) -> FileAttr {
    FileAttr {
        ino: INodeNo(attr.ino),
        size: attr.size,
        blocks: attr.blocks,
        atime: attr.mtime,
        mtime: attr.mtime,
        ctime: attr.mtime,
        kind: file_type(attr.kind),
        perm: attr.perm,
        nlink: attr.nlink,
        uid: attr.uid,
        gid: attr.gid,
        blksize: match attr.kind {
            FileKind::Directory => DIRECTORY_BLOCK,
            FileKind::File | FileKind::Symlink => NO_ENTRY.blksize,
        },
        ..NO_ENTRY
    }
}

/// Returns the attributes that programs see; replies that identify an inode must set its number instead.
fn shown_attr(attr: &Attr) -> FileAttr {
    FileAttr {
        ino: INodeNo(attr.shown),
        ..file_attr(attr)
    }
}

fn file_type(kind: FileKind) -> FileType {
    match kind {
        FileKind::Directory => FileType::Directory,
        FileKind::File => FileType::RegularFile,
        FileKind::Symlink => FileType::Symlink,
    }
}

fn ttl(attr: &Attr) -> Duration {
    match (attr.volatile, attr.lasting) {
        (true, _) => Duration::ZERO,
        (false, true) => FOR_EVER,
        (false, false) => TTL,
    }
}

fn done(answer: Result<(), Errno>, reply: ReplyEmpty) {
    match answer {
        Ok(()) => reply.ok(),
        Err(errno) => reply.error(errno),
    }
}

/// The size protocol of extended attributes: with `limit` 0 only the length is returned.
fn sized(value: &[u8], limit: u32, reply: ReplyXattr) {
    match u32::try_from(value.len()) {
        Ok(length) if limit == 0 => reply.size(length),
        Ok(length) if length <= limit => reply.data(value),
        _ if limit == 0 => reply.error(Errno::E2BIG),
        _ => reply.error(Errno::ERANGE),
    }
}

/// Replies with the inode of a name.
fn entry(answer: Result<Attr, Errno>, reply: ReplyEntry) {
    match answer {
        Ok(attr) => reply.entry(&ttl(&attr), &file_attr(&attr), GENERATION),
        Err(errno) => reply.error(errno),
    }
}
