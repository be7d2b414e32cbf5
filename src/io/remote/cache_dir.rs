//! The directory in which the bytes of objects are kept, shared by all processes of a user.
//!
//! Each version is a file, on which whoever has it open holds a shared lock: a file is removed only under an exclusive one, and
//! looked up again by whoever opened it meanwhile. One process at a time, the holder of the directory's lock, takes bytes away.

use std::collections::{HashMap, HashSet};
use std::fs::File;
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, LazyLock, Mutex};
use std::thread::sleep;
use std::time::{Duration, Instant, SystemTime};

use rustix::fs::{FlockOperation, OFlags, flock};
use rustix::io::Errno;
use serde_json::Value as Json;

use super::disk::{self, DiskFile};
use crate::io::own_dir::{OwnDir, alone, cache_home};
use crate::options::RemoteSettings;

/// What the file of a version ends with.
const BYTES: &str = ".bytes";

/// The time after which a version that a process has open, and does not read, may lose what is kept of it.
const IDLE: Duration = Duration::from_secs(60);

/// The time for which it is remembered of which objects there are versions.
const LISTED: Duration = Duration::from_secs(10);

/// A directory of versions.
#[derive(Debug)]
pub struct CacheDir {
    dir: OwnDir,
    /// Bytes that this process kept since it last looked how much there is in all.
    since: AtomicU64,
    /// The beginnings of the keys that were there at a time.
    objects: Mutex<(Option<Instant>, HashSet<String>)>,
}

/// A version in a directory.
#[derive(Debug)]
pub struct KeptVersion {
    /// What it is of: "url", "version", "size".
    pub about: Json,
    /// Bytes on disk.
    pub kept: u64,
    /// The time at which it was last used.
    pub used: SystemTime,
    /// A process has it open.
    pub in_use: bool,
    name: String,
}

/// Returns the directory that settings name, or the user's own; `None` for a user without a home.
pub fn cache_path(settings: &RemoteSettings) -> Option<PathBuf> {
    Some(
        settings
            .cache_dir
            .clone()
            .or_else(cache_home)?
            .join("objects"),
    )
}

/// Returns the bytes that a process keeps before it looks how much there is in all.
fn step(limit: u64) -> u64 {
    (limit / 16).clamp(64 << 10, 64 << 20)
}

impl CacheDir {
    /// Opens a directory, which is made for this user alone if it is not there. Within a process each is opened once.
    ///
    /// # Errors
    ///
    /// It is a link, somebody else's, writable for others or on a mount of npyfs.
    pub(super) fn open(path: &Path) -> io::Result<Arc<Self>> {
        static OPEN: LazyLock<Mutex<HashMap<PathBuf, Arc<CacheDir>>>> =
            LazyLock::new(Mutex::default);
        let mut open = OPEN.lock().unwrap_or_else(|e| e.into_inner());
        // By its descriptor: its path may lead into a mount that this process serves by now.
        if let Some(dir) = open.get(path) {
            return Ok(dir.clone());
        }
        let dir = Arc::new(Self::make(path)?);
        open.insert(path.to_owned(), dir.clone());
        Ok(dir)
    }

    fn make(path: &Path) -> io::Result<Self> {
        Ok(Self::of(OwnDir::make(path)?))
    }

    /// Opens a directory that is there.
    pub fn existing(path: &Path) -> io::Result<Self> {
        Ok(Self::of(OwnDir::existing(path)?))
    }

    fn of(dir: OwnDir) -> Self {
        Self {
            dir,
            since: AtomicU64::new(u64::MAX / 2),
            objects: Mutex::default(),
        }
    }

    /// Returns true if what is read from it is to be checked each time: other hosts may write here, and be seen late.
    pub(super) fn is_wary(&self) -> bool {
        self.dir.is_shared()
    }

    /// Returns the bytes that are free on its file system.
    pub(super) fn room(&self) -> u64 {
        self.dir.room()
    }

    /// Opens the file of a version, which is made if it is not there. As long as it is open nobody removes it.
    pub(super) fn version(&self, key: &str) -> io::Result<File> {
        let name = format!("{key}{BYTES}");
        for _ in 0..200 {
            let file = self.dir.file(&name, OFlags::CREATE)?;
            match flock(&file, FlockOperation::NonBlockingLockShared) {
                // It may have been removed before it was locked.
                Ok(()) if file.metadata()?.nlink() > 0 => return Ok(file),
                Ok(()) => {}
                Err(Errno::WOULDBLOCK | Errno::INTR) => sleep(Duration::from_millis(5)),
                Err(e) => return Err(e.into()),
            }
        }
        Err(io::ErrorKind::WouldBlock.into())
    }

    /// Returns true if a version is there whose key is `beginning` and a hyphen in front of the rest.
    pub(super) fn has_version_of(&self, beginning: &str) -> bool {
        let mut objects = self.objects.lock().unwrap_or_else(|e| e.into_inner());
        // Many objects are opened one after the other. What came since costs a request.
        if objects.0.is_none_or(|seen| seen.elapsed() > LISTED) {
            let names = self.dir.names().unwrap_or_default();
            let object = |name: &String| Some(name.split_once('-')?.0.to_owned());
            *objects = (
                Some(Instant::now()),
                names.iter().filter_map(object).collect(),
            );
        }
        objects.1.contains(beginning)
    }

    /// Does what takes bytes away from a file, under the lock of the directory; `None`: another process has it.
    pub(super) fn alone<T>(&self, act: impl FnOnce() -> T) -> Option<T> {
        let _turn = self.dir.turn()?;
        Some(act())
    }

    /// Returns the versions in it.
    pub fn versions(&self) -> io::Result<Vec<KeptVersion>> {
        let mut versions = Vec::new();
        for name in self.dir.names()? {
            if !name.ends_with(BYTES) {
                continue;
            }
            // It may be gone by now.
            let Ok(file) = self.dir.file(&name, OFlags::empty()) else {
                continue;
            };
            let Ok(meta) = file.metadata() else { continue };
            versions.push(KeptVersion {
                about: disk::about(&file).unwrap_or_default(),
                kept: meta.blocks().saturating_mul(512),
                used: meta.modified().unwrap_or(SystemTime::UNIX_EPOCH),
                in_use: !alone(&file),
                name,
            });
        }
        Ok(versions)
    }

    /// Removes a version that nobody has open; false if somebody has.
    pub fn discard(&self, version: &KeptVersion) -> io::Result<bool> {
        let file = match self.dir.file(&version.name, OFlags::empty()) {
            Ok(file) => file,
            Err(e) if e.kind() == io::ErrorKind::NotFound => return Ok(true),
            Err(e) => return Err(e),
        };
        let removed = self.dir.is_unused(&file);
        if removed {
            self.dir.remove(&version.name)?;
        }
        Ok(removed)
    }

    /// Notes that bytes are about to be kept, and returns true if it is time to see how much there is in all.
    pub(super) fn keeps(&self, more: u64, limit: u64) -> bool {
        let since = self.since.fetch_add(more, Ordering::Relaxed);
        since.saturating_add(more) >= step(limit)
    }

    /// Makes room for some bytes more where `limit` holds for all versions together. Returns the bytes that the version `key`,
    /// which this process has open, must give back itself. The metadata of other versions stay, up to `spared` bytes.
    pub(super) fn make_room(
        &self,
        more: u64,
        limit: u64,
        key: &str,
        spared: u64,
    ) -> io::Result<u64> {
        let Some(_turn) = self.dir.turn() else {
            // Whoever has it makes room. The next bytes that are kept look again.
            return Ok(0);
        };
        self.since.store(more, Ordering::Relaxed);
        let mut versions = self.by_use()?;
        let total: u64 = versions.iter().map(|(_, _, kept)| *kept).sum();
        let wanted = limit.saturating_sub(step(limit).max(more));
        versions.retain(|(_, name, _)| !name.starts_with(key));
        let mut others: u64 = versions.iter().map(|(_, _, kept)| *kept).sum();
        let own = total.saturating_sub(others);
        for all in [false, true] {
            for (used, name, _) in &versions {
                let spares = all && others <= spared;
                if own.saturating_add(others) <= wanted || spares {
                    break;
                }
                let idle = used.elapsed().is_ok_and(|idle| idle > IDLE);
                // One that cannot be had does not keep others from being taken.
                let freed = self.take_away(name, idle, all).unwrap_or(0);
                others = others.saturating_sub(freed);
            }
        }
        Ok(own.saturating_add(others).saturating_sub(wanted))
    }

    /// Returns the times of the last use, the names and the bytes of all versions; first what was not used for longest.
    fn by_use(&self) -> io::Result<Vec<(SystemTime, String, u64)>> {
        let mut versions = Vec::new();
        for name in self.dir.names()? {
            if !name.ends_with(BYTES) {
                continue;
            }
            let Ok(meta) = self
                .dir
                .file(&name, OFlags::empty())
                .and_then(|file| file.metadata())
            else {
                continue;
            };
            let used = meta.modified().unwrap_or(SystemTime::UNIX_EPOCH);
            versions.push((used, name, meta.blocks().saturating_mul(512)));
        }
        versions.sort();
        Ok(versions)
    }

    /// Takes the data of a version away that nobody has open or reads, or all of it. Returns the bytes that this frees.
    fn take_away(&self, name: &str, idle: bool, all: bool) -> io::Result<u64> {
        let file = self.dir.file(name, OFlags::empty())?;
        let before = file.metadata()?.blocks().saturating_mul(512);
        let unused = self.dir.is_unused(&file);
        if unused && all {
            self.dir.remove(name)?;
            return Ok(before);
        }
        let size = disk::about(&file).and_then(|about| about["size"].as_u64());
        let Some(size) = size.filter(|_| unused || idle) else {
            return Ok(0);
        };
        let file = DiskFile::new(file, size, "")?;
        let extents = file.extents()?.into_iter().map(|extent| extent.number);
        let used = file.modified();
        file.punch(extents, all)?;
        // This was no use of it.
        file.set_modified(used);
        Ok(before.saturating_sub(file.room()?))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn only(dir: &CacheDir) -> KeptVersion {
        let mut versions = dir.versions().unwrap();
        assert_eq!(versions.len(), 1);
        versions.remove(0)
    }

    #[test]
    fn what_is_open_stays() {
        let parent = tempfile::tempdir().unwrap();
        let path = parent.path().join("objects");
        let dir = CacheDir::open(&path).unwrap();
        let open = dir.version("a").unwrap();
        let version = only(&dir);
        assert!(version.in_use && !dir.discard(&version).unwrap());
        drop(open);
        let version = only(&dir);
        assert!(!version.in_use && dir.discard(&version).unwrap());
        assert!(dir.versions().unwrap().is_empty());
        assert!(dir.discard(&version).unwrap());
    }

    #[test]
    fn versions_that_nobody_has_open_go_first() {
        let parent = tempfile::tempdir().unwrap();
        let dir = CacheDir::open(&parent.path().join("objects")).unwrap();
        let make = |key: &str| {
            let about = r#"{"size":4194304}"#;
            let file = DiskFile::new(dir.version(key).unwrap(), 4 << 20, about).unwrap();
            file.write(0, &vec![1; 4 << 20], false).unwrap();
            file
        };
        let (own, other) = (make("own"), make("other"));
        drop(make("unused"));
        let limit = 10 << 20;
        let excess = dir.make_room(0, limit, "own", limit).unwrap();
        assert_eq!(excess, 0);
        assert!(own.room().unwrap() >= 4 << 20 && other.room().unwrap() >= 4 << 20);
        let unused = DiskFile::new(dir.version("unused").unwrap(), 4 << 20, "").unwrap();
        assert!(unused.room().unwrap() < 1 << 20);
        let excess = dir.make_room(0, 4 << 20, "own", 0).unwrap();
        assert!(excess >= 4 << 20, "{excess}");
    }
}
