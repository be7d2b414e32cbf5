//! What can go wrong between a name and its bytes, and the one place that turns it into an errno.

use std::io;

use crate::hdf5::H5Error;
use crate::io::file::RawError;
use crate::io::file::handle::is_shortage;

/// The kind of a failure, as far as a program cares.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ErrorKind {
    NotFound,
    NotDirectory,
    IsDirectory,
    /// The object or its file is damaged, or of a kind that cannot be read.
    Damaged,
    /// Policy forbids it.
    Denied,
    /// The file changed on disk; a new open shows the new content.
    Stale,
    /// Larger than a file can be, or than may be held in memory.
    TooLarge,
    /// An answer of the operating system.
    Os(i32),
}

/// A failure with the line that people read.
#[derive(Clone, Debug, thiserror::Error)]
#[error("{message}")]
pub struct Error {
    pub kind: ErrorKind,
    pub message: String,
}

/// The result of everything that touches a store.
pub type Result<T> = std::result::Result<T, Error>;

impl Error {
    pub fn new(kind: ErrorKind, message: impl Into<String>) -> Self {
        Self {
            kind,
            message: message.into(),
        }
    }

    pub fn damaged(message: impl Into<String>) -> Self {
        Self::new(ErrorKind::Damaged, message)
    }

    /// The errno the kernel is told.
    pub fn errno(&self) -> i32 {
        match self.kind {
            ErrorKind::NotFound => libc::ENOENT,
            ErrorKind::NotDirectory => libc::ENOTDIR,
            ErrorKind::IsDirectory => libc::EISDIR,
            ErrorKind::Damaged => libc::EIO,
            ErrorKind::Denied => libc::EACCES,
            ErrorKind::Stale => libc::ESTALE,
            ErrorKind::TooLarge => libc::EFBIG,
            ErrorKind::Os(errno) => errno,
        }
    }

    /// Whether the machine is short of something: it says nothing about what was asked for, and is not remembered.
    pub fn is_shortage(&self) -> bool {
        matches!(self.kind, ErrorKind::Os(errno) if is_shortage(errno))
    }

    /// The same with the file and object it is about in front.
    pub fn about(self, what: impl std::fmt::Display) -> Self {
        Self {
            kind: self.kind,
            message: format!("{what}: {}", self.message),
        }
    }
}

impl From<io::Error> for Error {
    fn from(error: io::Error) -> Self {
        if let Some(own) = error.get_ref().and_then(|e| e.downcast_ref::<Self>()) {
            return own.clone();
        }
        let kind = match error.raw_os_error() {
            Some(libc::ENOENT) => ErrorKind::NotFound,
            Some(libc::ENOTDIR) => ErrorKind::NotDirectory,
            Some(libc::EACCES | libc::EPERM) => ErrorKind::Denied,
            Some(errno) => ErrorKind::Os(errno),
            None => ErrorKind::Damaged,
        };
        Self::new(kind, error.to_string())
    }
}

impl From<RawError> for Error {
    fn from(error: RawError) -> Self {
        let kind = match &error {
            RawError::Stale(_) => ErrorKind::Stale,
            RawError::Outside { .. } => ErrorKind::Damaged,
            RawError::Io { source, .. } => match source.raw_os_error() {
                Some(errno) => ErrorKind::Os(errno),
                None => ErrorKind::Damaged,
            },
        };
        Self::new(kind, error.to_string())
    }
}

impl From<H5Error> for Error {
    fn from(error: H5Error) -> Self {
        let kind = match &error {
            H5Error::Stale => ErrorKind::Stale,
            H5Error::Machine(errno, _) => ErrorKind::Os(*errno),
            // A size that a file cannot be served at is a fault of the object, like any other.
            H5Error::Damaged(why) => errno_of_system(why).map_or(ErrorKind::Damaged, ErrorKind::Os),
            H5Error::Unsupported(_) | H5Error::TooLarge(_) => ErrorKind::Damaged,
        };
        Self::new(kind, error.to_string())
    }
}

/// What the system answered libhdf5, which says so in words only.
fn errno_of_system(why: &str) -> Option<i32> {
    let (_, answer) = why.split_once(", errno = ")?;
    let (errno, _) = answer.split_once(", error message = '")?;
    errno.parse().ok().filter(|&errno| errno > 0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_full_disk_is_told_from_a_damaged_file() {
        let full = "unable to flush file: file write failed: time = Sun Nov 22 14:00:00 2026, filename = \
                    '/proc/self/fd/5', file descriptor = 5, errno = 28, error message = 'No space left on device', buf";
        let errno = |why: &str| Error::from(H5Error::Damaged(why.into())).errno();
        assert_eq!(errno(full), libc::ENOSPC);
        let full =
            "unable to extend file properly, errno = 28, error message = 'No space left on device'";
        assert_eq!(errno(full), libc::ENOSPC);
        assert_eq!(errno("wrong B-tree signature, errno = 28, "), libc::EIO);
        assert_eq!(errno("failed, errno = x, error message = ''"), libc::EIO);
    }
}
