//! The lock of a layer: a single process on a single host writes in it.
//!
//! The lock is flock(2) on the file `holder`, so it ends with its process. The file names that process
//! (`crate::checkout::records::holder`).
//!
//! On NFS a lock also ends when the server hears nothing of the host for a while, and nothing tells the host. Its
//! client then fails all writes to the locked file. So there a file is named or removed only if a write to `holder` has
//! just succeeded (`LayerLock::fence`), and lines are appended to an index that is locked itself (`RecordLog`).

use std::fs::File;
use std::io;
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use rustix::fs::FlockOperation;
use rustix::time::{ClockId, clock_gettime};

use crate::checkout::mirror::{Lease, Mirror, Upload};
use crate::checkout::records::holder::{self, MOMENT, PATIENCE, lock, lock_soon};
use npyfs_base::error::{Error, ErrorKind, Result};
use npyfs_io::dir::Dir;
use npyfs_io::storage::Storage;

/// The name of the lock file.
pub const NAME: &str = "holder";

/// How long a lock is taken to hold after a write to its file: shorter than a server waits for a host.
const CHECKED: Duration = Duration::from_secs(5);

/// The right to write in a layer; released on drop.
#[derive(Debug)]
pub struct LayerLock {
    held: Arc<LockedFile>,
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
        if !lock_soon(&file).map_err(about)? {
            return Err(busy(dir, &file));
        }
        // A lock on a deleted file excludes no other process.
        if !dir.is_in_place() || !dir.leads_to(NAME, &file) {
            let message = "it was discarded by another process";
            return Err(Error::new(ErrorKind::Stale, message).about(dir.path().display()));
        }
        holder::write(&file).map_err(about)?;
        let lease = match Mirror::find(dir) {
            Some(mirror) => Some(mirror.take(dir, may_begin)?),
            None => None,
        };
        Ok(Self {
            held: Arc::new(LockedFile::new(file)),
            lease,
        })
    }

    /// Returns the storage for the layer in `dir`. Where other hosts can write, no file is created, named or removed
    /// once this host has lost the lock.
    pub fn fence(&self, dir: &Dir, storage: Arc<dyn Storage>) -> Result<Arc<dyn Storage>> {
        let about = |e: io::Error| Error::from(e).about(dir.path().display());
        Ok(match dir.is_shared().map_err(about)? {
            false => storage,
            true => Arc::new(Fenced {
                held: Arc::downgrade(&self.held),
                storage,
            }),
        })
    }

    /// Returns the failure of the last check, if the lock is lost.
    pub fn lost(&self) -> Option<Error> {
        self.held.seen.lock().clone().err()
    }

    /// Fails if this host has lost the lock of the layer in `dir`, as a host does that a server of NFS no longer hears.
    pub fn check(&self, dir: &Dir) -> Result<()> {
        let about = |e: io::Error| Error::from(e).about(dir.path().join(NAME).display());
        match dir.is_shared().map_err(about)? {
            true => self.held.write(clock()).map_err(about),
            false => Ok(()),
        }
    }

    /// Returns the upload of the layer, if it is in a bucket; later calls return `None`.
    pub fn upload(&mut self, dir: &Dir) -> Option<Upload> {
        self.lease.take().map(|lease| Upload::new(lease, dir))
    }

    /// Locks the layer in `dir` against writers, shared with other readers; EBUSY if a process writes in it for a
    /// second, `None` if it was never written to.
    pub fn share(dir: &Dir) -> Result<Option<Self>> {
        let since = Instant::now();
        loop {
            match shared(dir)? {
                None => return Ok(None),
                Some((file, true)) => {
                    return Ok(Some(Self {
                        held: Arc::new(LockedFile::new(file)),
                        lease: None,
                    }));
                }
                Some((file, false)) if since.elapsed() > PATIENCE => return Err(busy(dir, &file)),
                Some(_) => std::thread::sleep(MOMENT),
            }
        }
    }

    /// Returns the name of the process that holds the layer in `dir`; `None` if none does.
    pub fn holder(dir: &Dir) -> Result<Option<String>> {
        match (Self::look_here(dir)?, Mirror::find(dir)) {
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

/// The locked file.
#[derive(Debug)]
struct LockedFile {
    file: File,
    /// When the lock was last known to hold, or why it is lost.
    seen: Mutex<Result<Duration>>,
}

/// Returns the time since the machine was started, asleep or awake.
fn clock() -> Duration {
    let now = clock_gettime(ClockId::Boottime);
    let seconds = u64::try_from(now.tv_sec).unwrap_or(0);
    Duration::new(seconds, u32::try_from(now.tv_nsec).unwrap_or(0))
}

impl LockedFile {
    fn new(file: File) -> Self {
        let seen = Mutex::new(Ok(clock()));
        Self { file, seen }
    }

    /// Fails if the lock is lost, unless it has just been checked.
    fn check(&self) -> io::Result<()> {
        let now = clock();
        let is_fresh = |seen: &Duration| now.saturating_sub(*seen) < CHECKED;
        let is_checked = self.seen.lock().as_ref().is_ok_and(is_fresh);
        match is_checked {
            true => Ok(()),
            false => self.write(now),
        }
    }

    /// Writes the name of this process again, at the time `now`. A server that has ended the lock refuses the write.
    fn write(&self, now: Duration) -> io::Result<()> {
        let seen = match holder::write_again(&self.file) {
            Ok(()) => Ok(now),
            // A full disk says nothing about the lock.
            Err(e) if matches!(e.raw_os_error(), Some(libc::ENOSPC | libc::EDQUOT)) => {
                return Err(e);
            }
            Err(e) => {
                let why = format!("another host may have taken this checkout meanwhile: {e}");
                let errno = e.raw_os_error().unwrap_or(libc::EIO);
                Err(Error::new(ErrorKind::Os(errno), why))
            }
        };
        *self.seen.lock() = seen.clone();
        seen.map(drop).map_err(io::Error::other)
    }
}

/// The storage of a layer in a directory to which other hosts write.
struct Fenced {
    /// Not needed for what is removed after the layer is closed.
    held: Weak<LockedFile>,
    storage: Arc<dyn Storage>,
}

impl Fenced {
    fn check(&self) -> io::Result<()> {
        self.held.upgrade().map_or(Ok(()), |held| held.check())
    }
}

impl Storage for Fenced {
    fn create(&self, dir: &Dir, name: &str) -> io::Result<File> {
        self.check()?;
        self.storage.create(dir, name)
    }

    fn write_at(&self, file: &File, bytes: &[u8], offset: u64) -> io::Result<()> {
        self.storage.write_at(file, bytes, offset)
    }

    fn set_len(&self, file: &File, len: u64) -> io::Result<()> {
        self.storage.set_len(file, len)
    }

    fn begin_sync(&self, file: &File) {
        self.storage.begin_sync(file);
    }

    fn sync(&self, file: &File) -> io::Result<()> {
        self.storage.sync(file)
    }

    fn link(&self, file: &File, dir: &Dir, name: &str) -> io::Result<()> {
        self.check()?;
        self.storage.link(file, dir, name)
    }

    fn name_once(&self, dir: &Dir, from: &str, to: &str) -> io::Result<()> {
        self.check()?;
        self.storage.name_once(dir, from, to)
    }

    fn rename(&self, dir: &Dir, from: &str, to: &str) -> io::Result<()> {
        self.check()?;
        self.storage.rename(dir, from, to)
    }

    fn sync_dir(&self, dir: &Dir) -> io::Result<()> {
        self.storage.sync_dir(dir)
    }

    fn remove(&self, dir: &Dir, name: &str) -> io::Result<()> {
        self.check()?;
        self.storage.remove(dir, name)
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_second_is_told_who_is_first() {
        let top = tempfile::tempdir().unwrap();
        let dir = Dir::own(top.path());
        assert_eq!(LayerLock::holder(&dir).unwrap(), None);
        let first = LayerLock::take(&dir).unwrap();
        let refused = LayerLock::take(&dir).unwrap_err();
        assert_eq!(refused.errno(), libc::EBUSY);
        assert!(
            refused.message.contains(&holder::process_name()),
            "{refused}"
        );
        assert_eq!(
            LayerLock::holder(&dir).unwrap(),
            Some(holder::process_name())
        );
        assert_eq!(LayerLock::share(&dir).unwrap_err().message, refused.message);
        drop(first);
        assert_eq!(LayerLock::holder(&dir).unwrap(), None);
        let readers = [(); 2].map(|()| LayerLock::share(&dir).unwrap());
        let refused = LayerLock::take(&dir).unwrap_err();
        assert_eq!(refused.errno(), libc::EBUSY);
        assert!(refused.message.contains("read-only"), "{refused}");
        drop(readers);
        LayerLock::take(&dir).unwrap();
    }

    #[test]
    fn nothing_changes_once_the_lock_is_lost() {
        use npyfs_io::storage::Disk;

        let top = tempfile::tempdir().unwrap();
        let dir = Dir::own(top.path());
        std::fs::write(top.path().join("there"), "").unwrap();
        // A file that takes no writes, as that of a lock which a server has ended.
        let held = Arc::new(LockedFile::new(
            File::open(top.path().join("there")).unwrap(),
        ));
        let fenced = Fenced {
            held: Arc::downgrade(&held),
            storage: Arc::new(Disk),
        };
        // It was just taken.
        fenced.rename(&dir, "there", "first").unwrap();
        *held.seen.lock() = Ok(Duration::ZERO);
        for _ in 0..2 {
            assert!(fenced.create(&dir, "new").is_err());
            assert!(fenced.rename(&dir, "first", "second").is_err());
            assert!(fenced.remove(&dir, "first").is_err());
            assert!(fenced.name_once(&dir, "first", "second").is_err());
            assert!(held.seen.lock().is_err());
        }
        assert!(top.path().join("first").exists());
        assert_eq!(std::fs::read_dir(top.path()).unwrap().count(), 1);
        drop(held);
        fenced.remove(&dir, "first").unwrap();
    }

    #[test]
    fn a_full_disk_is_no_lost_lock() {
        let full = File::options().write(true).open("/dev/full").unwrap();
        let held = LockedFile::new(full);
        *held.seen.lock() = Ok(Duration::ZERO);
        let refused = held.check().unwrap_err();
        assert_eq!(refused.raw_os_error(), Some(libc::ENOSPC));
        assert!(held.seen.lock().is_ok());
    }

    #[test]
    fn a_lock_that_holds_is_seen() {
        let top = tempfile::tempdir().unwrap();
        let dir = Dir::own(top.path());
        let lock = LayerLock::take(&dir).unwrap();
        *lock.held.seen.lock() = Err(Error::damaged("lost"));
        assert!(lock.lost().is_some());
        lock.held.check().unwrap();
        assert!(lock.lost().is_none());
        assert_eq!(
            LayerLock::holder(&dir).unwrap(),
            Some(holder::process_name())
        );
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
