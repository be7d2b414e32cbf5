//! The Rust API: arrays of a store as `ndarray`s, without a mount; the error of all of it, and the worker processes of
//! a program that links npyfs.
//!
//! Everything goes the way it goes in a mount, from the tree of virtual files down to the decoders. So what a mount
//! refuses is refused here with the same reason. Nothing is ever written to a store; a checkout takes what is written.

mod array;
mod checkout;
mod element;
mod sparse;
mod store;

use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use npyfs_base::error::ErrorKind;
use npyfs_base::thread;
use npyfs_core::dataset::chunked;
use npyfs_hdf5::program;
use npyfs_hdf5::protocol::argument;

pub use array::{Array, Parts};
pub use checkout::Checkout;
pub use element::{Element, WriteElement};
pub use sparse::{Sparse, SparseOrder};
pub use store::{Attribute, Entries, Entry, File, OpenOptions, Store};

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
    fn about(path: &str, error: npyfs_base::error::Error) -> Self {
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

/// The environment variable that names the program to start workers from.
const WORKER_VARIABLE: &str = "NPYFS_WORKER";

/// Makes the running program its own worker program. Call it first thing in `main`.
///
/// HDF5 runs in sandboxed worker processes. After this call they are started from the running executable: in such a
/// process the function serves until its parent ends, and does not return. In the program itself it returns at once.
///
/// A program that does not call it uses the installed `npyfs` of the same version: the one that
/// [`OpenOptions::worker`] or the variable `NPYFS_WORKER` names, else the first in `PATH`.
/// Without one, opening a store fails with [`Error::NoWorker`]: HDF5 never runs in the process of the program.
///
/// ```no_run
/// fn main() -> Result<(), npyfs::Error> {
///     npyfs::worker_hook();
///     let store = npyfs::Store::open("cells.h5df")?;
///     println!("{} arrays", store.entries("/")?.count());
///     Ok(())
/// }
/// ```
pub fn worker_hook() {
    program::choose_self();
    /// Those that read stores, and those that write for a checkout.
    const KINDS: [&str; 3] = [argument::READER, argument::WRITER, argument::TABLES];
    let first = std::env::args_os().nth(1);
    if let Some(first) = first.filter(|first| KINDS.iter().any(|kind| first == kind))
        && let Some(served) = npyfs_worker::serve(&first, chunked::decode)
    {
        std::process::exit(i32::from(served.is_err()));
    }
}

/// Chooses the program to start workers from, unless there is one; `wanted` comes before all others.
fn ensure_worker(wanted: Option<&Path>) -> Result<(), Error> {
    if program::chosen().is_some() {
        return Ok(());
    }
    let named = wanted
        .map(Path::to_owned)
        .or_else(|| std::env::var_os(WORKER_VARIABLE).map(PathBuf::from));
    let found = match named {
        Some(program) => program,
        None => worker_in_path().ok_or_else(|| Error::NoWorker {
            reason: "there is no npyfs in PATH".to_owned(),
        })?,
    };
    check_version(&found)?;
    program::choose(found);
    Ok(())
}

/// Returns the first executable `npyfs` in `PATH`.
fn worker_in_path() -> Option<PathBuf> {
    let dirs = std::env::var_os("PATH")?;
    let is_executable = |path: &PathBuf| {
        let meta = std::fs::metadata(path);
        meta.is_ok_and(|meta| meta.is_file() && meta.permissions().mode() & 0o111 != 0)
    };
    std::env::split_paths(&dirs)
        .filter(|dir| dir.is_absolute())
        .map(|dir| dir.join("npyfs"))
        .find(is_executable)
}

/// Refuses a program of another version: the protocol between a program and its workers is that of one version.
fn check_version(program: &Path) -> Result<(), Error> {
    let refused = |what: String| Error::NoWorker {
        reason: format!("{}: {what}", program.display()),
    };
    let mut command = Command::new(program);
    command
        .arg("--version")
        .stdin(Stdio::null())
        .stderr(Stdio::null());
    let said = thread::output(&mut command).map_err(|e| refused(e.to_string()))?;
    let said = String::from_utf8_lossy(&said.stdout).trim().to_owned();
    let wanted = concat!("npyfs ", env!("CARGO_PKG_VERSION"));
    if said == wanted {
        return Ok(());
    }
    Err(refused(format!("says {said:?}, not {wanted:?}")))
}
