//! A private directory of this process below the directory for temporary files. It is removed when the process ends. If
//! the process was killed, the next process that creates one removes it.

use std::fs::{File, Permissions};
use std::io;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};

use parking_lot::Mutex;
use rustix::fs::{FlockOperation, flock};
use tempfile::{Builder, NamedTempFile, TempDir};

/// The private directories of this process.
static MADE: Mutex<Vec<PathBuf>> = Mutex::new(Vec::new());

/// The file that the directory's process keeps locked.
const LOCK: &str = "lock";

/// A directory that no other user may enter.
pub struct PrivateDir {
    dir: TempDir,
    _lock: File,
}

impl PrivateDir {
    /// Creates a directory with a name prefix, and removes those of killed processes.
    pub fn new(prefix: &str) -> io::Result<Self> {
        Self::below(&std::env::temp_dir(), prefix)
    }

    fn below(top: &Path, prefix: &str) -> io::Result<Self> {
        remove_left(top, prefix);
        let mut builder = Builder::new();
        let builder = builder.prefix(prefix);
        let dir = builder
            .permissions(Permissions::from_mode(0o700))
            .tempdir_in(top)?;
        // The lock file gets its name after it is locked: an unlocked one counts as that of a dead process.
        let lock = NamedTempFile::new_in(dir.path())?;
        flock(lock.as_file(), FlockOperation::NonBlockingLockExclusive)?;
        let lock = lock.persist(dir.path().join(LOCK)).map_err(|e| e.error)?;
        MADE.lock().push(dir.path().to_owned());
        Ok(Self { dir, _lock: lock })
    }

    /// Returns its path.
    pub fn path(&self) -> &Path {
        self.dir.path()
    }
}

impl Drop for PrivateDir {
    fn drop(&mut self) {
        MADE.lock().retain(|made| made != self.path());
    }
}

/// Removes this process's remaining directories: called at exit, when detached threads may still hold some.
pub fn remove_all() {
    for dir in MADE.lock().drain(..) {
        // The process that creates the next one removes the rest.
        let _ = std::fs::remove_dir_all(dir);
    }
}

/// Removes directories of this user whose processes have ended. Failures are ignored.
fn remove_left(top: &Path, prefix: &str) {
    let own = rustix::process::geteuid().as_raw();
    for entry in std::fs::read_dir(top).into_iter().flatten().flatten() {
        let is_named = entry.file_name().to_string_lossy().starts_with(prefix);
        let is_own = || {
            let meta = entry.path().symlink_metadata();
            meta.is_ok_and(|meta| meta.is_dir() && meta.uid() == own)
        };
        if !is_named || !is_own() {
            continue;
        }
        if let Ok(lock) = File::open(entry.path().join(LOCK))
            && flock(&lock, FlockOperation::NonBlockingLockExclusive).is_ok()
        {
            let _ = std::fs::remove_dir_all(entry.path());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_the_dead_left_goes_and_what_the_living_have_stays() {
        let top = tempfile::tempdir().unwrap();
        let names = || std::fs::read_dir(top.path()).unwrap().count();
        let first = PrivateDir::below(top.path(), "x-").unwrap();
        let mode = first.path().metadata().unwrap().permissions().mode();
        assert_eq!(mode & 0o777, 0o700);
        // As if its process had been killed.
        let left = top.path().join("x-dead");
        std::fs::create_dir(&left).unwrap();
        std::fs::write(left.join(LOCK), "").unwrap();
        std::fs::write(left.join("copy"), "bytes").unwrap();
        std::fs::create_dir(top.path().join("x-other")).unwrap();
        let second = PrivateDir::below(top.path(), "x-").unwrap();
        assert!(!left.exists() && first.path().exists() && second.path().exists());
        assert_eq!(names(), 3);
        drop((first, second));
        assert_eq!(names(), 1);
    }
}
