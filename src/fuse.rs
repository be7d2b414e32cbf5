//! The kernel's side: translates FUSE requests into calls of [`Fs`] and its answers into replies.
//!
//! Holds no state and takes no decision about names, bytes or times. Assumes that panics unwind:
//! one that happens inside an operation becomes EIO for that request and nothing else. Never asks
//! for FUSE_OVER_IO_URING: fuser accepts it but serves no such queue, and the mount hangs.

pub mod session;
pub mod table;
pub mod unmount;

use std::ffi::OsStr;
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::Path;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use fuser::{
    BsdFileFlags, CopyFileRangeFlags, Errno, FileAttr, FileHandle, FileType, Filesystem,
    FopenFlags, Generation, INodeNo, InitFlags, KernelConfig, LockOwner, OpenAccMode, OpenFlags,
    RenameFlags, ReplyAttr, ReplyCreate, ReplyData, ReplyDirectory, ReplyDirectoryPlus, ReplyEmpty,
    ReplyEntry, ReplyOpen, ReplyStatfs, ReplyWrite, ReplyXattr, Request, TimeOrNow, WriteFlags,
};

use crate::fs::{Attr, FileKind, Fs, FsError};

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
}

impl Adapter {
    pub fn new(fs: Fs) -> Self {
        Self {
            fs,
            maps_direct: false,
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

    /// For operations that cannot be refused.
    fn tell(&self, operation: impl FnOnce(&Fs)) -> Result<(), Errno> {
        self.ask(|fs| {
            operation(fs);
            Ok(())
        })
    }
}

/// Each operation is refused with EROFS. The kernel itself refuses them on a read-only mount;
/// these answer after somebody remounts it writable.
macro_rules! read_only {
    ($($operation:ident($($argument:ty),*) -> $reply:ty;)*) => {
        $(fn $operation(&self, _: &Request, $(_: $argument,)* reply: $reply) {
            reply.error(Errno::EROFS);
        })*
    };
}

impl Filesystem for Adapter {
    fn init(&mut self, _: &Request, config: &mut KernelConfig) -> io::Result<()> {
        for flag in WANTED {
            // An older kernel lacks some; every one of them is only about speed.
            let _ = config.add_capabilities(flag);
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
        Ok(())
    }

    fn lookup(&self, _: &Request, parent: INodeNo, name: &OsStr, reply: ReplyEntry) {
        match self.ask(|fs| fs.lookup(parent.0, name)) {
            Ok(attr) => reply.entry(&ttl(&attr), &file_attr(&attr), GENERATION),
            Err(errno) if errno.code() == libc::ENOENT => reply.entry(&TTL, &NO_ENTRY, GENERATION),
            Err(errno) => reply.error(errno),
        }
    }

    fn forget(&self, _: &Request, ino: INodeNo, count: u64) {
        // The kernel expects no answer.
        let _ = self.tell(|fs| fs.forget(ino.0, count));
    }

    fn getattr(&self, _: &Request, ino: INodeNo, _: Option<FileHandle>, reply: ReplyAttr) {
        match self.ask(|fs| fs.getattr(ino.0)) {
            Ok(attr) => reply.attr(&ttl(&attr), &file_attr(&attr)),
            Err(errno) => reply.error(errno),
        }
    }

    fn readlink(&self, _: &Request, ino: INodeNo, reply: ReplyData) {
        match self.ask(|fs| fs.readlink(ino.0)) {
            Ok(target) => reply.data(&target),
            Err(errno) => reply.error(errno),
        }
    }

    fn open(&self, _: &Request, ino: INodeNo, flags: OpenFlags, reply: ReplyOpen) {
        if flags.acc_mode() != OpenAccMode::O_RDONLY {
            return reply.error(Errno::EROFS);
        }
        match self.ask(|fs| fs.open_file(ino.0, self.maps_direct)) {
            Ok(opened) => {
                let pages = if opened.direct_io {
                    FopenFlags::FOPEN_DIRECT_IO
                } else {
                    FopenFlags::FOPEN_KEEP_CACHE
                };
                reply.opened(FileHandle(opened.handle), pages | FopenFlags::FOPEN_NOFLUSH);
            }
            Err(errno) => reply.error(errno),
        }
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
        match self.ask(|fs| fs.read(handle.0, offset, size)) {
            Ok(bytes) => reply.data(bytes.as_ref()),
            Err(errno) => reply.error(errno),
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
        done(self.tell(|fs| fs.release(handle.0)), reply);
    }

    fn opendir(&self, _: &Request, ino: INodeNo, _: OpenFlags, reply: ReplyOpen) {
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
        done(self.tell(|fs| fs.release_dir(handle.0)), reply);
    }

    fn statfs(&self, _: &Request, _: INodeNo, reply: ReplyStatfs) {
        match self.ask(Fs::statfs) {
            Ok(s) => reply.statfs(
                s.blocks, s.bfree, s.bavail, s.files, s.ffree, s.bsize, s.namelen, s.frsize,
            ),
            Err(errno) => reply.error(errno),
        }
    }

    fn getxattr(&self, _: &Request, ino: INodeNo, name: &OsStr, size: u32, reply: ReplyXattr) {
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

    read_only! {
        setattr(
            INodeNo, Option<u32>, Option<u32>, Option<u32>, Option<u64>, Option<TimeOrNow>, Option<TimeOrNow>,
            Option<SystemTime>, Option<FileHandle>, Option<SystemTime>, Option<SystemTime>, Option<SystemTime>,
            Option<BsdFileFlags>
        ) -> ReplyAttr;
        mknod(INodeNo, &OsStr, u32, u32, u32) -> ReplyEntry;
        mkdir(INodeNo, &OsStr, u32, u32) -> ReplyEntry;
        unlink(INodeNo, &OsStr) -> ReplyEmpty;
        rmdir(INodeNo, &OsStr) -> ReplyEmpty;
        symlink(INodeNo, &OsStr, &Path) -> ReplyEntry;
        rename(INodeNo, &OsStr, INodeNo, &OsStr, RenameFlags) -> ReplyEmpty;
        link(INodeNo, INodeNo, &OsStr) -> ReplyEntry;
        create(INodeNo, &OsStr, u32, u32, i32) -> ReplyCreate;
        write(INodeNo, FileHandle, u64, &[u8], WriteFlags, OpenFlags, Option<LockOwner>) -> ReplyWrite;
        fallocate(INodeNo, FileHandle, u64, u64, i32) -> ReplyEmpty;
        copy_file_range(
            INodeNo, FileHandle, u64, INodeNo, FileHandle, u64, u64, CopyFileRangeFlags
        ) -> ReplyWrite;
        setxattr(INodeNo, &OsStr, &[u8], i32, u32) -> ReplyEmpty;
        removexattr(INodeNo, &OsStr) -> ReplyEmpty;
    }
}

/// Inode number 0 in an entry says: no such name, and that may be remembered.
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

/// The size protocol of extended attributes: `limit` 0 asks for the length only.
fn sized(value: &[u8], limit: u32, reply: ReplyXattr) {
    match u32::try_from(value.len()) {
        Ok(length) if limit == 0 => reply.size(length),
        Ok(length) if length <= limit => reply.data(value),
        _ if limit == 0 => reply.error(Errno::E2BIG),
        _ => reply.error(Errno::ERANGE),
    }
}
