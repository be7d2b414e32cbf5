//! The lock of a directory of checkouts, which is held for the moment in which layers come and go.
//!
//! It keeps processes of one host apart, and spares those that commit the work of a second try. Between hosts it may do nothing:
//! that a commit happens once, and on top of all others, is seen to by its number.

use std::fs::File;
use std::thread;
use std::time::{Duration, Instant};

use rustix::fs::{FlockOperation, flock};
use rustix::io::Errno;

use crate::checkout::holder;
use crate::error::{Error, ErrorKind, Result};
use crate::io::dir::Dir;

/// The name of the lock file.
pub const LOCK: &str = ".lock";

/// The time after which whoever waits for the lock is told for whom.
const PATIENCE: Duration = Duration::from_secs(1);

/// Pause between two tries to lock.
const PAUSE: Duration = Duration::from_millis(5);

/// Waits for the right to change which layers there are in `dir`; ESTALE if that was removed meanwhile. Whoever waits for long is
/// told for whom.
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
        // A lock on a file that was removed since keeps nobody out.
        if dir.leads_to(LOCK, &file) {
            return Ok(file);
        }
    }
}

/// Returns whether the lock was to be had before whoever waits should be told for whom.
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
