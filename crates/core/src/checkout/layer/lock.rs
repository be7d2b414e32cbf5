//! The lock of a layer: a single process on a single host writes in it.
//!
//! The lock is flock(2) on the file `holder`, so it ends with its process. The file names that process
//! (`crate::checkout::records::holder`).

use std::fs::File;
use std::io;
use std::time::{Duration, Instant};

use rustix::fs::{FlockOperation, flock};
use rustix::io::Errno;

use crate::checkout::mirror::{Lease, Mirror, Upload};
use crate::checkout::records::holder;
use npyfs_base::error::{Error, ErrorKind, Result};
use npyfs_io::dir::Dir;

/// The name of the lock file.
pub const NAME: &str = "holder";

/// The pause between attempts: `LayerLock::look` briefly holds the lock.
const MOMENT: Duration = Duration::from_millis(50);

/// How long the lock is tried: a process that was unmounted or killed has it until its last write has returned.
const PATIENCE: Duration = Duration::from_secs(1);

/// The right to write in a layer; released on drop.
#[derive(Debug)]
pub struct LayerLock {
    _file: File,
    /// The lease that excludes other hosts, if the layer is in a bucket.
    lease: Option<Lease>,
}

impl LayerLock {
    /// Takes the layer in `dir`; EBUSY, with the name of the holder, if another process has it for a second.
    pub fn take(dir: &Dir) -> Result<Self> {
        Self::locked(dir, true)
    }

    /// Takes the layer in `dir` as `take` does; ENOENT if it was never begun.
    pub fn take_begun(dir: &Dir) -> Result<Self> {
        Self::locked(dir, false)
    }

    fn locked(dir: &Dir, may_begin: bool) -> Result<Self> {
        let path = dir.path().join(NAME);
        let about = |e: io::Error| Error::from(e).about(path.display());
        let file = dir.write_or_create(NAME)?;
        let take = || lock(&file, FlockOperation::NonBlockingLockExclusive).map_err(about);
        let since = Instant::now();
        while !take()? {
            if since.elapsed() > PATIENCE {
                return Err(busy(dir, &file));
            }
            std::thread::sleep(MOMENT);
        }
        // A lock on a deleted file excludes no other process.
        if !dir.is_in_place() || !dir.leads_to(NAME, &file) {
            let message = "it was discarded by another process";
            return Err(Error::new(ErrorKind::Stale, message).about(dir.path().display()));
        }
        holder::write(&file).map_err(about)?;
        let lease = match Mirror::of(dir) {
            Some(mirror) => Some(mirror.take(dir, may_begin)?),
            None => None,
        };
        Ok(Self { _file: file, lease })
    }

    /// Returns the upload of the layer, if it is in a bucket; later calls return `None`.
    pub fn upload(&mut self, dir: &Dir) -> Option<Upload> {
        self.lease.take().map(|lease| Upload::new(lease, dir))
    }

    /// Locks the layer in `dir` against writers, shared with other readers; EBUSY if a process writes in it for a second,
    /// `None` if it was never written to.
    pub fn share(dir: &Dir) -> Result<Option<Self>> {
        let since = Instant::now();
        loop {
            match shared(dir)? {
                None => return Ok(None),
                Some((file, true)) => {
                    return Ok(Some(Self {
                        _file: file,
                        lease: None,
                    }));
                }
                Some((file, false)) if since.elapsed() > PATIENCE => return Err(busy(dir, &file)),
                Some(_) => std::thread::sleep(MOMENT),
            }
        }
    }

    /// Returns the name of the process that holds the layer in `dir`; `None` if none does.
    pub fn look(dir: &Dir) -> Result<Option<String>> {
        match (Self::look_here(dir)?, Mirror::of(dir)) {
            (None, Some(mirror)) => mirror.writer_elsewhere(&dir.name()),
            (here, _) => Ok(here),
        }
    }

    /// Returns the name of the process of this host that holds the layer in `dir`; `None` if none does.
    pub fn look_here(dir: &Dir) -> Result<Option<String>> {
        let found = shared(dir)?.filter(|(_, is_free)| !is_free);
        Ok(found.map(|(file, _)| holder::read(&file)))
    }
}

/// Opens the lock file of a layer, and tries to take a shared lock; `None` if there is no lock file.
fn shared(dir: &Dir) -> Result<Option<(File, bool)>> {
    let path = dir.path().join(NAME);
    let about = |e: io::Error| Error::from(e).about(path.display());
    let file = match dir.read(NAME) {
        Ok(file) => file,
        Err(e) if e.kind == ErrorKind::NotFound => return Ok(None),
        Err(e) => return Err(e),
    };
    let is_locked = lock(&file, FlockOperation::NonBlockingLockShared).map_err(about)?;
    Ok(Some((file, is_locked)))
}

/// Returns the error for a layer that another process holds.
fn busy(dir: &Dir, file: &File) -> Error {
    // Brief shared locks are not reported: the lock table is read before this process takes a shared lock.
    let all = holder::all(file);
    let is_read = lock(file, FlockOperation::NonBlockingLockShared);
    let message = match (is_read, all.as_slice()) {
        (Ok(true), []) => "this checkout is mounted read-only".to_owned(),
        (Ok(true), all) => format!("this checkout is mounted read-only: {}", all.join("; ")),
        _ => format!("{} writes in this checkout", holder::read(file)),
    };
    Error::new(ErrorKind::Os(libc::EBUSY), message).about(dir.path().display())
}

/// Returns whether the lock was available.
fn lock(file: &File, operation: FlockOperation) -> io::Result<bool> {
    match flock(file, operation) {
        Ok(()) => Ok(true),
        Err(Errno::WOULDBLOCK) => Ok(false),
        Err(e) => Err(e.into()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_second_is_told_who_is_first() {
        let top = tempfile::tempdir().unwrap();
        let dir = Dir::own(top.path());
        assert_eq!(LayerLock::look(&dir).unwrap(), None);
        let first = LayerLock::take(&dir).unwrap();
        let refused = LayerLock::take(&dir).unwrap_err();
        assert_eq!(refused.errno(), libc::EBUSY);
        assert!(refused.message.contains(&holder::own()), "{refused}");
        assert_eq!(LayerLock::look(&dir).unwrap(), Some(holder::own()));
        assert_eq!(LayerLock::share(&dir).unwrap_err().message, refused.message);
        drop(first);
        assert_eq!(LayerLock::look(&dir).unwrap(), None);
        let readers = [(); 2].map(|()| LayerLock::share(&dir).unwrap());
        let refused = LayerLock::take(&dir).unwrap_err();
        assert_eq!(refused.errno(), libc::EBUSY);
        assert!(refused.message.contains("read-only"), "{refused}");
        drop(readers);
        LayerLock::take(&dir).unwrap();
    }

    #[test]
    fn the_end_of_the_holder_is_awaited() {
        let top = tempfile::tempdir().unwrap();
        let dir = Dir::own(top.path());
        let waits: [fn(&Dir); 2] = [
            |dir| drop(LayerLock::take(dir).unwrap()),
            |dir| drop(LayerLock::share(dir).unwrap().unwrap()),
        ];
        for wait in waits {
            let first = LayerLock::take(&dir).unwrap();
            std::thread::scope(|scope| {
                scope.spawn(|| {
                    std::thread::sleep(4 * MOMENT);
                    drop(first);
                });
                wait(&dir);
            });
        }
    }
}
