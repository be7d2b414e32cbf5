//! The answers of operations, as plain values close to those of `stat`, `readdir` and `statvfs`.

use std::time::SystemTime;

use npyfs_base::error::Error;

/// The kind of a directory entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FileKind {
    /// A directory.
    Directory,
    /// A regular file.
    File,
    /// A symbolic link.
    Symlink,
}

/// The attributes of an entry, as `stat` shows them.
#[derive(Clone, Debug)]
pub struct Attr {
    /// The number of the inode.
    pub ino: u64,
    /// The inode number that programs see. In a writable mount each version of a file has its own number for the
    /// kernel, while this number stays the same: editors compare it before and after they open a file.
    pub shown: u64,
    /// The kind.
    pub kind: FileKind,
    /// The size in bytes.
    pub size: u64,
    /// The size in units of 512 bytes.
    pub blocks: u64,
    /// The time of the last change.
    pub mtime: SystemTime,
    /// Permission bits, without the file type.
    pub perm: u16,
    /// The number of links.
    pub nlink: u32,
    /// The owner.
    pub uid: u32,
    /// The group.
    pub gid: u32,
    /// The size may change at any time (status files), so the kernel must not cache these attributes.
    pub volatile: bool,
    /// The entry never changes: the kernel may cache its attributes and its name without limit.
    pub lasting: bool,
}

/// An open file.
#[derive(Clone, Copy, Debug)]
pub struct Opened {
    /// The number of the handle.
    pub handle: u64,
    /// The kernel must not cache pages of the file (status files), or need not (samples).
    pub direct_io: bool,
    /// The file is short and was never opened before: the kernel has no page of it and can be given all of them at
    /// once.
    pub fresh: bool,
    /// The kernel should read ahead no more than a page: the file is probably mapped.
    pub by_page: bool,
}

/// One name in a directory.
#[derive(Clone, Debug)]
pub struct DirEntry {
    /// The number of the inode, as programs see it.
    pub ino: u64,
    /// The kind.
    pub kind: FileKind,
    /// The name.
    pub name: Vec<u8>,
    /// The offset at which a listing continues after this entry.
    pub next: u64,
}

/// The volume below the store, as `statvfs` describes it.
#[derive(Clone, Copy, Debug, Default)]
pub struct Statfs {
    /// All blocks, in units of `frsize` bytes.
    pub blocks: u64,
    /// Free blocks.
    pub bfree: u64,
    /// Blocks that are free for unprivileged users.
    pub bavail: u64,
    /// All inodes.
    pub files: u64,
    /// Free inodes.
    pub ffree: u64,
    /// The preferred size of requests, in bytes.
    pub bsize: u32,
    /// Bytes of a block.
    pub frsize: u32,
    /// Bytes of the longest name.
    pub namelen: u32,
}

/// A refused operation: the errno for the kernel and a one-line message for people.
#[derive(Debug, thiserror::Error)]
#[error("{message}")]
pub struct FsError {
    /// The errno.
    pub errno: i32,
    /// The message, which names the path or object concerned.
    pub message: String,
}

impl From<Error> for FsError {
    fn from(error: Error) -> Self {
        Self {
            errno: error.errno(),
            message: error.message,
        }
    }
}

/// A store that cannot be opened; the message names the path and the reason.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub struct OpenError(pub String);
