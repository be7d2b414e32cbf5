//! The error that every layer returns, and its conversion to an errno.

use std::io;

/// The kind of a failure, as far as programs distinguish it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ErrorKind {
    /// The name does not exist.
    NotFound,
    /// A name below something that is not a directory.
    NotDirectory,
    /// A directory where a file is expected.
    IsDirectory,
    /// The object or its file is damaged, or of a kind that cannot be read.
    Damaged,
    /// The policy of the mount, or a permission, forbids it.
    Denied,
    /// The file changed on disk; a new open shows the new content.
    Stale,
    /// Larger than a file can be, or than may be held in memory.
    TooLarge,
    /// Another host did not respond as it should: an errno.
    Unreached(i32),
    /// The data is stored but not durable yet; this is retried. An errno.
    Waits(i32),
    /// An errno of the operating system.
    Os(i32),
}

/// A failure, with the line shown to people.
#[derive(Clone, Debug, thiserror::Error)]
#[error("{message}")]
pub struct Error {
    /// The kind, from which the errno follows.
    pub kind: ErrorKind,
    /// One line that names the object or file.
    pub message: String,
}

/// The result of everything that touches a store.
pub type Result<T> = std::result::Result<T, Error>;

impl Error {
    /// Makes an error of a kind.
    pub fn new(kind: ErrorKind, message: impl Into<String>) -> Self {
        Self {
            kind,
            message: message.into(),
        }
    }

    /// Makes an error about an object or a file that cannot be read.
    pub fn damaged(message: impl Into<String>) -> Self {
        Self::new(ErrorKind::Damaged, message)
    }

    /// Returns the errno for the kernel.
    pub fn errno(&self) -> i32 {
        match self.kind {
            ErrorKind::NotFound => libc::ENOENT,
            ErrorKind::NotDirectory => libc::ENOTDIR,
            ErrorKind::IsDirectory => libc::EISDIR,
            ErrorKind::Damaged => libc::EIO,
            ErrorKind::Denied => libc::EACCES,
            ErrorKind::Stale => libc::ESTALE,
            ErrorKind::TooLarge => libc::EFBIG,
            ErrorKind::Unreached(errno) | ErrorKind::Waits(errno) | ErrorKind::Os(errno) => errno,
        }
    }

    /// Returns whether the failure is temporary: a shortage on this machine, or another host that did not respond. It
    /// says nothing about the requested object, so it is not remembered.
    pub fn is_passing(&self) -> bool {
        match self.kind {
            ErrorKind::Unreached(_) => true,
            ErrorKind::Waits(errno) | ErrorKind::Os(errno) => is_shortage(errno),
            _ => false,
        }
    }

    /// Returns the error from which an [`io::Error`] was made; `None` if it was made otherwise.
    pub fn inside(error: &io::Error) -> Option<&Self> {
        error.get_ref().and_then(|e| e.downcast_ref())
    }

    /// Prefixes the message with the file or object that the error is about.
    pub fn about(self, what: impl std::fmt::Display) -> Self {
        Self {
            kind: self.kind,
            message: format!("{what}: {}", self.message),
        }
    }
}

/// The most attempts on a file that is being replaced.
const MAX_TRIES: u32 = 100;

/// Returns what was read, or nothing if it can never be; fails if it may be read later.
pub fn readable<T>(read: Result<T>) -> Result<Option<T>> {
    match read {
        Ok(read) => Ok(Some(read)),
        Err(e) if e.is_passing() || e.kind == ErrorKind::Stale => Err(e),
        Err(_) => Ok(None),
    }
}

/// Repeats `act` while it fails with [`ErrorKind::Stale`], as it does on a file that is being replaced.
pub fn retry_stale<T>(mut act: impl FnMut() -> Result<T>) -> Result<T> {
    for _ in 0..MAX_TRIES {
        match act() {
            Err(e) if e.kind == ErrorKind::Stale => std::thread::yield_now(),
            done => return done,
        }
    }
    act()
}

impl From<io::Error> for Error {
    fn from(error: io::Error) -> Self {
        if let Some(own) = Self::inside(&error) {
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

impl From<Error> for io::Error {
    fn from(error: Error) -> Self {
        let kind = Self::from_raw_os_error(error.errno()).kind();
        Self::new(kind, error)
    }
}

/// Returns true if an errno means that the machine or this process is short of a resource, and says nothing about a
/// file.
pub fn is_shortage(errno: i32) -> bool {
    matches!(
        errno,
        libc::EMFILE | libc::ENFILE | libc::ENOMEM | libc::EAGAIN
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_stale_is_tried_again_and_nothing_else() {
        let mut tries = 0;
        let done = retry_stale(|| {
            tries += 1;
            match tries {
                ..5 => Err(Error::new(ErrorKind::Stale, "")),
                _ => Ok(tries),
            }
        });
        assert_eq!(done.unwrap(), 5);
        let mut tries = 0;
        let done: Result<()> = retry_stale(|| {
            tries += 1;
            Err(Error::damaged(""))
        });
        assert_eq!((done.unwrap_err().kind, tries), (ErrorKind::Damaged, 1));
    }
}
