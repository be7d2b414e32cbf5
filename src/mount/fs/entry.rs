//! What operations answer: plain values, nearly those of `stat`, `readdir` and `statvfs`.

use std::time::SystemTime;

use crate::error::Error;

/// What kind of directory entry something is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FileKind {
    Directory,
    File,
    Symlink,
}

/// What `stat` shows of an entry.
#[derive(Clone, Debug)]
pub struct Attr {
    pub ino: u64,
    /// The number that programs see. Where files are written it stays the same while versions of a file have
    /// numbers of their own for the kernel: editors compare it before and after they open a file.
    pub shown: u64,
    pub kind: FileKind,
    pub size: u64,
    /// In units of 512 bytes.
    pub blocks: u64,
    pub mtime: SystemTime,
    /// Permission bits, without the file type.
    pub perm: u16,
    pub nlink: u32,
    pub uid: u32,
    pub gid: u32,
    /// The size may change at any time (status files): the kernel must not remember this answer.
    pub volatile: bool,
    /// It never changes: the kernel may remember it, and its name, without limit.
    pub lasting: bool,
}

/// An open file.
#[derive(Clone, Copy, Debug)]
pub struct Opened {
    pub handle: u64,
    /// The kernel must not keep pages of it (status files), or need not (samples).
    pub direct_io: bool,
    /// Short, and never opened before: the kernel has no page of it and can be given them all at once.
    pub fresh: bool,
}

/// One name in a directory.
#[derive(Clone, Debug)]
pub struct DirEntry {
    pub ino: u64,
    pub kind: FileKind,
    pub name: Vec<u8>,
    /// The offset that continues after this entry.
    pub next: u64,
}

/// The volume below the store, as `statvfs` describes it.
#[derive(Clone, Copy, Debug, Default)]
pub struct Statfs {
    pub blocks: u64,
    pub bfree: u64,
    pub bavail: u64,
    pub files: u64,
    pub ffree: u64,
    pub bsize: u32,
    pub frsize: u32,
    pub namelen: u32,
}

/// A refused operation: the errno for the kernel and one line for people.
#[derive(Debug, thiserror::Error)]
#[error("{message}")]
pub struct FsError {
    pub errno: i32,
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
