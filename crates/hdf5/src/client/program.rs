//! The program that worker processes are started from.
//!
//! libhdf5 runs in processes of its own, under a sandbox, and they need an executable. The command
//! `npyfs` is one: it starts itself again. Any other program says which one to take before it opens its
//! first store. Nothing here ever runs libhdf5 in the calling process.

use std::path::{Path, PathBuf};
use std::sync::OnceLock;

/// The running executable, whatever became of its path.
const SELF: &str = "/proc/self/exe";

static CHOSEN: OnceLock<PathBuf> = OnceLock::new();

/// Returns the program to start workers from.
pub fn program() -> &'static Path {
    CHOSEN.get().map_or(Path::new(SELF), PathBuf::as_path)
}

/// Starts workers from `program` from now on; the first choice of a process holds.
pub fn choose(program: PathBuf) {
    let _ = CHOSEN.set(program);
}

/// Returns the choice that was made, if one was.
pub fn chosen() -> Option<&'static Path> {
    CHOSEN.get().map(PathBuf::as_path)
}

/// Starts workers from the running executable, which must call `worker_hook` of npyfs first thing in `main`.
pub fn choose_self() {
    choose(PathBuf::from(SELF));
}
