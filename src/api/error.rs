//! The error of the Rust API.

use npyfs_base::error::ErrorKind;

/// The reason why a store, an array or a part of one cannot be read. The message names what it is about.
///
/// ```standalone_crate
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # npyfs::worker_hook();
/// # let _directory = npyfs_core::formats::demo::enter()?;
/// use ndarray::Array1;
/// use npyfs::Error;
///
/// let ages = npyfs::Store::open("cells.h5df")?.array("cell#age")?;
/// let ages: Array1<i64> = match ages.read() {
///     Err(Error::WrongType { .. }) => ages.read::<i32, _>()?.mapv(i64::from),
///     read => read?,
/// };
/// assert_eq!(ages.len(), 1000);
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The store cannot be opened, or an object in it is damaged, refused by policy or of a kind that
    /// cannot be read.
    #[error("{message}")]
    Store {
        /// The line that `npyfs` would print.
        message: String,
        /// The errno that a mount would answer with.
        errno: i32,
    },
    /// Nothing has this path in the store.
    #[error("{path}: no such path in the store")]
    NotFound {
        /// The path that was asked for.
        path: String,
    },
    /// The path leads to a directory, a text or raw bytes.
    #[error("{path}: not an array")]
    NotAnArray {
        /// The path that was asked for.
        path: String,
    },
    /// The elements are of another type than the one asked for.
    #[error("{path}: elements of type {found} cannot be read as {wanted}")]
    WrongType {
        /// The array.
        path: String,
        /// Its element type, as NumPy spells it.
        found: String,
        /// The Rust type asked for.
        wanted: &'static str,
    },
    /// The array, or the part of it that was selected, has another number of axes than was asked for.
    #[error("{path}: {found} axes, where {wanted} are wanted")]
    WrongRank {
        /// The array.
        path: String,
        /// The number of axes that are there.
        found: usize,
        /// The number of axes that was asked for.
        wanted: usize,
    },
    /// A selection reaches beyond the array.
    #[error("{path}: {selection} is outside of axis {axis}, which has {len} entries")]
    OutOfRange {
        /// The array.
        path: String,
        /// The selection along that axis.
        selection: String,
        /// The number of the axis, from 0.
        axis: usize,
        /// The number of entries along that axis.
        len: usize,
    },
    /// One element does not fit the type asked for: text that is not UTF-8, for one.
    #[error("{path}: element {index}: {reason}")]
    Element {
        /// The array.
        path: String,
        /// The place of the element in what was read, in C order.
        index: usize,
        /// The reason.
        reason: String,
    },
    /// There is not enough memory for the array.
    #[error("{path}: no memory for {bytes} bytes")]
    TooLarge {
        /// The array.
        path: String,
        /// The number of bytes that it would take.
        bytes: u128,
    },
    /// No program is known to start the sandboxed worker processes from.
    #[error("no worker program: {reason}; call npyfs::worker_hook() first thing in main, or install npyfs {} in PATH", env!("CARGO_PKG_VERSION"))]
    NoWorker {
        /// The program that was looked for, and what is wrong with it.
        reason: String,
    },
}

impl Error {
    /// Returns the errno that a mount would answer with.
    pub fn errno(&self) -> i32 {
        match self {
            Self::Store { errno, .. } => *errno,
            Self::NotFound { .. } => libc::ENOENT,
            Self::TooLarge { .. } => libc::ENOMEM,
            Self::NoWorker { .. } => libc::ENOEXEC,
            _ => libc::EINVAL,
        }
    }

    /// Creates an error with the path of an object in front of what went wrong with it.
    pub(super) fn of(path: &str, error: npyfs_base::error::Error) -> Self {
        match error.kind {
            ErrorKind::NotFound => Self::NotFound {
                path: path.to_owned(),
            },
            _ => Self::Store {
                errno: error.errno(),
                message: format!("{path}: {}", error.message),
            },
        }
    }
}

impl From<Error> for std::io::Error {
    fn from(error: Error) -> Self {
        let kind = Self::from_raw_os_error(error.errno()).kind();
        Self::new(kind, error)
    }
}
