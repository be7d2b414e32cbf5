//! The error of requests to libhdf5 and liblmdb, and the errno that follows from it.

use serde::{Deserialize, Serialize};

use npyfs_base::error::{Error, ErrorKind, is_shortage};

/// The reason why a request failed.
#[derive(Clone, Debug, thiserror::Error, Serialize, Deserialize)]
pub enum H5Error {
    /// The file on disk is no longer the one that was asked about.
    #[error("the file changed on disk")]
    Stale,
    /// libhdf5 refuses the file or the object.
    #[error("{0}")]
    Damaged(String),
    /// `.npy` cannot hold it.
    #[error("{0}")]
    Unsupported(String),
    /// More memory than one request may take.
    #[error("{0}")]
    TooLarge(String),
    /// The machine is short of something (memory, processes, descriptors), or a worker was killed: an errno, and what
    /// was to be done. It says nothing about the file.
    #[error("{1}")]
    Machine(i32, String),
    /// Bytes that lie elsewhere did not arrive: an errno, and why. It says nothing about the file, nor about this
    /// machine.
    #[error("{1}")]
    NotFetched(i32, String),
}

/// The errnos that a reply to the kernel may have: FUSE refuses others, and the program would wait for ever. Names in a
/// file stand in libhdf5's messages, so any number may.
const ERRNOS: std::ops::Range<i32> = 1..512;

impl From<H5Error> for Error {
    fn from(error: H5Error) -> Self {
        let kind = match &error {
            H5Error::Stale => ErrorKind::Stale,
            H5Error::Machine(errno, _) if ERRNOS.contains(errno) => ErrorKind::Os(*errno),
            H5Error::NotFetched(errno, _) if ERRNOS.contains(errno) => ErrorKind::Unreached(*errno),
            // A size that a file cannot be served at is a fault of the object, like any other.
            H5Error::Damaged(why) => errno_of_system(why).map_or(ErrorKind::Damaged, ErrorKind::Os),
            H5Error::Unsupported(_)
            | H5Error::TooLarge(_)
            | H5Error::Machine(..)
            | H5Error::NotFetched(..) => ErrorKind::Damaged,
        };
        let message = match (&kind, &error) {
            (ErrorKind::Os(errno), H5Error::Damaged(why)) => without_internals(why, *errno),
            _ => error.to_string(),
        };
        Self::new(kind, message)
    }
}

/// Returns a message of libhdf5's about an error of the system without times, descriptors and addresses of memory.
fn without_internals(why: &str, errno: i32) -> String {
    let what = why.split(", errno = ").next().unwrap_or(why);
    let what = what.split(": time = ").next().unwrap_or(what);
    format!("{what}: {}", std::io::Error::from_raw_os_error(errno))
}

/// Returns the errno that libhdf5 met, which it tells in words only.
fn errno_of_system(why: &str) -> Option<i32> {
    let (_, answer) = why.split_once(", errno = ")?;
    let (errno, _) = answer.split_once(", error message = '")?;
    errno.parse().ok().filter(|errno| ERRNOS.contains(errno))
}

impl H5Error {
    /// Makes the error of a worker that gave the answer to another request.
    pub fn unexpected_answer() -> Self {
        Self::Damaged("answer to another request".into())
    }

    /// Makes the error of bytes that lie elsewhere and did not arrive.
    pub fn not_fetched(failure: Error) -> Self {
        match failure.kind {
            ErrorKind::Stale => Self::Stale,
            _ => Self::NotFetched(failure.errno(), failure.message),
        }
    }

    /// Returns whether it says nothing about the file: what was learnt meanwhile may be wrong.
    pub fn is_passing(&self) -> bool {
        matches!(self, Self::Machine(..) | Self::NotFetched(..))
    }

    /// Makes an error of one of the system that was met on the way to an answer.
    pub fn of_system(what: &str, error: &std::io::Error) -> Self {
        let said = if what.is_empty() {
            error.to_string()
        } else {
            format!("{what}: {error}")
        };
        match error.raw_os_error() {
            Some(libc::ESTALE) => Self::Stale,
            Some(errno) if is_shortage(errno) => Self::Machine(errno, said),
            _ => Self::Damaged(said),
        }
    }
}

impl From<std::io::Error> for H5Error {
    fn from(error: std::io::Error) -> Self {
        Self::of_system("", &error)
    }
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
        assert_eq!(
            Error::from(H5Error::Damaged(full.into())).message,
            "unable to flush file: file write failed: No space left on device (os error 28)"
        );
        let full =
            "unable to extend file properly, errno = 28, error message = 'No space left on device'";
        assert_eq!(errno(full), libc::ENOSPC);
        assert_eq!(errno("wrong B-tree signature, errno = 28, "), libc::EIO);
        assert_eq!(errno("failed, errno = x, error message = ''"), libc::EIO);
        for forged in ["0", "-5", "512", "2147483647"] {
            let forged = format!("failed, errno = {forged}, error message = ''");
            assert_eq!(errno(&forged), libc::EIO);
        }
        let machine = |errno| Error::from(H5Error::Machine(errno, String::new())).errno();
        assert_eq!(
            (machine(libc::EMFILE), machine(4000)),
            (libc::EMFILE, libc::EIO)
        );
    }

    #[test]
    fn what_did_not_arrive_is_no_shortage_of_this_machine() {
        let late = H5Error::NotFetched(libc::ETIMEDOUT, String::new());
        assert!(late.is_passing());
        let late = Error::from(late);
        assert_eq!(late.kind, ErrorKind::Unreached(libc::ETIMEDOUT));
        assert!(late.is_passing() && late.errno() == libc::ETIMEDOUT);
        let forged = H5Error::NotFetched(0, String::new());
        assert_eq!(Error::from(forged).errno(), libc::EIO);
        let denied = Error::new(ErrorKind::Denied, "");
        assert!(!denied.is_passing());
    }
}
