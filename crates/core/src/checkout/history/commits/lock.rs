//! The lock of a directory of checkouts, held briefly while layers are added or removed.
//!
//! It excludes other processes of the same host, and saves committing processes a second attempt. Between hosts it may
//! have no effect: the number of a commit ensures that it happens once, and on top of all others.

use std::fs::File;
use std::thread;
use std::time::{Duration, Instant};

use rustix::fs::{FlockOperation, flock};
use rustix::io::Errno;

use crate::checkout::records::holder;
use npyfs_base::error::{Error, ErrorKind, Result};
use npyfs_io::dir::Dir;

/// The name of the lock file.
pub use crate::store::CHECKOUTS_LOCK as LOCK;

/// The time after which a waiting process reports which process holds the lock.
const PATIENCE: Duration = Duration::from_secs(1);

/// The pause between two attempts to lock.
const PAUSE: Duration = Duration::from_millis(5);

/// Waits for the right to add and remove layers in `dir`; ESTALE if the directory was removed meanwhile. A long wait is
/// logged with the holder's name.
pub fn lock(dir: &Dir) -> Result<File> {
    let path = dir.path().join(LOCK);
    let about = |e: Errno| Error::from(std::io::Error::from(e)).about(path.display());
    loop {
        let file = dir.write_or_create(LOCK)?;
        if !lock_soon(&file).map_err(about)? {
            let who = match holder::all(&file) {
                all if all.is_empty() => "another process".to_owned(),
                all => all.join(", "),
            };
            holder::tell(&format!("{}: waits for {who}", path.display()));
            flock(&file, FlockOperation::LockExclusive).map_err(about)?;
        }
        if !dir.is_in_place() {
            let message = "it was removed by another process";
            return Err(Error::new(ErrorKind::Stale, message).about(dir.path().display()));
        }
        // A lock on a removed file excludes no other process.
        if dir.leads_to(LOCK, &file) {
            return Ok(file);
        }
    }
}

/// Returns whether the lock was taken within `PATIENCE`.
fn lock_soon(file: &File) -> rustix::io::Result<bool> {
    let start = Instant::now();
    loop {
        match flock(file, FlockOperation::NonBlockingLockExclusive) {
            Err(Errno::WOULDBLOCK) if start.elapsed() < PATIENCE => thread::sleep(PAUSE),
            Err(Errno::WOULDBLOCK) => return Ok(false),
            locked => return locked.map(|()| true),
        }
    }
}
