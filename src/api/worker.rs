//! The worker processes of a program that links npyfs.

use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use super::error::Error;
use npyfs_base::thread;
use npyfs_core::dataset::chunked;
use npyfs_hdf5::program;
use npyfs_hdf5::protocol::argument;

/// The environment variable that names the program to start workers from.
const VARIABLE: &str = "NPYFS_WORKER";

/// Makes the running program its own worker program. Call it first thing in `main`.
///
/// HDF5 runs in sandboxed worker processes. After this call they are started from the running executable: in such a
/// process the function serves until its parent ends, and does not return. In the program itself it returns at once.
///
/// A program that does not call it uses the installed `npyfs` of the same version: the one that
/// [`OpenOptions::worker`](super::OpenOptions::worker) or the variable `NPYFS_WORKER` names, else the first in `PATH`.
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
pub(super) fn ensure(wanted: Option<&Path>) -> Result<(), Error> {
    if program::chosen().is_some() {
        return Ok(());
    }
    let named = wanted
        .map(Path::to_owned)
        .or_else(|| std::env::var_os(VARIABLE).map(PathBuf::from));
    let found = match named {
        Some(program) => program,
        None => in_path().ok_or_else(|| Error::NoWorker {
            reason: "there is no npyfs in PATH".to_owned(),
        })?,
    };
    check_version(&found)?;
    program::choose(found);
    Ok(())
}

/// Returns the first executable `npyfs` in `PATH`.
fn in_path() -> Option<PathBuf> {
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
