//! Converts results of `Fs` into replies to the kernel.

use std::time::{Duration, UNIX_EPOCH};

use fuser::{Errno, FileAttr, FileType, INodeNo, ReplyEmpty, ReplyEntry, ReplyXattr};

use super::{DIRECTORY_BLOCK, FOR_EVER, GENERATION, TTL};
use crate::mount::fs::{Attr, FileKind};

/// An entry with inode number 0 means that the name does not exist, which the kernel may cache.
pub(super) const NO_ENTRY: FileAttr = FileAttr {
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

pub(super) fn file_attr(attr: &Attr) -> FileAttr {
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
pub(super) fn shown_attr(attr: &Attr) -> FileAttr {
    FileAttr {
        ino: INodeNo(attr.shown),
        ..file_attr(attr)
    }
}

pub(super) fn file_type(kind: FileKind) -> FileType {
    match kind {
        FileKind::Directory => FileType::Directory,
        FileKind::File => FileType::RegularFile,
        FileKind::Symlink => FileType::Symlink,
    }
}

pub(super) fn ttl(attr: &Attr) -> Duration {
    match (attr.volatile, attr.lasting) {
        (true, _) => Duration::ZERO,
        (false, true) => FOR_EVER,
        (false, false) => TTL,
    }
}

pub(super) fn done(answer: Result<(), Errno>, reply: ReplyEmpty) {
    match answer {
        Ok(()) => reply.ok(),
        Err(errno) => reply.error(errno),
    }
}

/// The size protocol of extended attributes: with `limit` 0 only the length is returned.
pub(super) fn sized(value: &[u8], limit: u32, reply: ReplyXattr) {
    match u32::try_from(value.len()) {
        Ok(length) if limit == 0 => reply.size(length),
        Ok(length) if length <= limit => reply.data(value),
        _ if limit == 0 => reply.error(Errno::E2BIG),
        _ => reply.error(Errno::ERANGE),
    }
}

/// Replies with the inode of a name.
pub(super) fn entry(answer: Result<Attr, Errno>, reply: ReplyEntry) {
    match answer {
        Ok(attr) => reply.entry(&ttl(&attr), &file_attr(&attr), GENERATION),
        Err(errno) => reply.error(errno),
    }
}
