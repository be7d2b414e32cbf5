//! The directory of the fetched bytes of objects: a blob for each version of an object.
//!
//! All versions together take no more than a limit. What goes first are the data of versions that are not open, or not
//! read by the process that has them open, then their metadata, then what the process that needs room has itself.

use std::collections::{HashMap, HashSet};
use std::io;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, LazyLock};
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use rustix::fs::OFlags;
use serde_json::Value as Json;

use super::disk::{self, DiskFile};
use crate::blobs::{Blob, Blobs, room, shrink};
use crate::own_dir::{OwnDir, cache_home};
use npyfs_base::options::RemoteSettings;

/// The suffix of the file of a version.
const BYTES: &str = ".bytes";

/// The time after which the cached bytes of a version may be freed although a process has it open, if the process does
/// not read it.
const IDLE: Duration = Duration::from_secs(60);

/// How long the list of objects with cached versions is reused.
const LISTED: Duration = Duration::from_secs(10);

/// The count of bytes added to a directory that this process has not measured yet.
const UNMEASURED: u64 = u64::MAX / 2;

/// A directory of versions.
#[derive(Debug)]
pub struct CacheDir {
    pub(super) blobs: Blobs,
    /// Bytes that this process kept since it last looked how much there is in all.
    since: AtomicU64,
    /// The object keys that were present at a time.
    objects: Mutex<(Option<Instant>, HashSet<String>)>,
}

/// A version in a directory, of an object with "url", "version" and "size".
pub type KeptVersion = Blob<Json>;

/// Returns the directory that the settings name, or the user's default; `None` for a user without a home.
pub fn cache_path(settings: &RemoteSettings) -> Option<PathBuf> {
    let cache = settings.cache_dir.clone().or_else(cache_home)?;
    Some(cache.join("objects"))
}

/// Returns the bytes that a process adds before it measures the directory again.
fn step(limit: u64) -> u64 {
    (limit / 16).clamp(64 << 10, 64 << 20)
}

impl CacheDir {
    /// Opens a directory, which is created for this user alone if it is missing. A process opens each directory once.
    ///
    /// # Errors
    ///
    /// The directory is a symbolic link, belongs to another user, is writable by others or lies on a mount of npyfs.
    pub(super) fn open(path: &Path) -> io::Result<Arc<Self>> {
        static OPEN: LazyLock<Mutex<HashMap<PathBuf, Arc<CacheDir>>>> =
            LazyLock::new(Mutex::default);
        let mut open = OPEN.lock();
        // The descriptor is reused: the path may by now lead into a mount that this process serves.
        if let Some(dir) = open.get(path) {
            return Ok(dir.clone());
        }
        let dir = Arc::new(Self::new(OwnDir::make(path)?));
        open.insert(path.to_owned(), dir.clone());
        Ok(dir)
    }

    /// Opens a directory that is there.
    pub fn existing(path: &Path) -> io::Result<Self> {
        Ok(Self::new(OwnDir::existing(path)?))
    }

    fn new(dir: OwnDir) -> Self {
        Self {
            blobs: Blobs::new(dir, BYTES, BYTES),
            since: AtomicU64::new(UNMEASURED),
            objects: Mutex::default(),
        }
    }

    /// Returns true if a version is there whose key is `beginning` and a hyphen in front of the rest.
    pub(super) fn has_version_of(&self, beginning: &str) -> bool {
        let mut objects = self.objects.lock();
        // Many objects are opened in succession. A version that appeared since then costs a request.
        if objects.0.is_none_or(|seen| seen.elapsed() > LISTED) {
            let names = self.blobs.dir.names().unwrap_or_default();
            let object = |name: &String| Some(name.split_once('-')?.0.to_owned());
            *objects = (
                Some(Instant::now()),
                names.iter().filter_map(object).collect(),
            );
        }
        objects.1.contains(beginning)
    }

    /// Returns the versions in it, the least recently used first.
    pub fn list(&self) -> io::Result<Vec<KeptVersion>> {
        self.blobs.list(|_, file| disk::about(file))
    }

    /// Removes a version that no process has open; false if one has.
    pub fn remove(&self, version: &KeptVersion) -> io::Result<bool> {
        self.blobs.remove(&version.key)
    }

    /// Records that bytes are about to be added, and returns true if it is time to measure the directory.
    pub(super) fn keeps(&self, more: u64, limit: u64) -> bool {
        let since = self.since.fetch_add(more, Ordering::Relaxed);
        since.saturating_add(more) >= step(limit)
    }

    /// Returns true if other threads have added enough bytes since the directory was measured to measure it again.
    /// `own` is what this thread adds.
    pub(super) fn is_due(&self, own: u64, limit: u64) -> bool {
        let since = self.since.load(Ordering::Relaxed);
        since.saturating_sub(own) >= step(limit)
    }

    /// Returns true if so many bytes were added while another thread or process makes room that no more may be added.
    pub(super) fn is_overfull(&self, limit: u64) -> bool {
        let since = self.since.load(Ordering::Relaxed);
        (step(limit).saturating_mul(4)..UNMEASURED).contains(&since)
    }

    /// Makes room for additional bytes within `limit`, which holds for all versions together. Returns the bytes that
    /// the version `key`, which this process has open, must free itself; `None` if another thread or process is making
    /// room. Metadata of other versions is kept, up to `spared` bytes.
    pub(super) fn make_room(
        &self,
        more: u64,
        limit: u64,
        key: &str,
        spared: u64,
    ) -> io::Result<Option<u64>> {
        let Some(_turn) = self.blobs.dir.turn() else {
            return Ok(None);
        };
        self.since.store(more, Ordering::Relaxed);
        let mut versions = self.list()?;
        let total = |versions: &[KeptVersion]| versions.iter().map(|version| version.room).sum();
        let all: u64 = total(&versions);
        versions.retain(|version| version.key != key);
        let mut others: u64 = total(&versions);
        let own = all.saturating_sub(others);
        let wanted = limit.saturating_sub(step(limit).max(more));
        let left = wanted.saturating_sub(own);
        for (all, most) in [(false, left), (true, left.max(spared))] {
            // One that cannot be had does not keep others from being taken.
            let take = |version: &KeptVersion| self.take_away(version, all).unwrap_or(0);
            others = shrink(&versions, others, most, take);
        }
        Ok(Some(own.saturating_add(others).saturating_sub(wanted)))
    }

    /// Takes the data of a version away that no process has open or reads, or all of it. Returns the bytes that this
    /// frees.
    fn take_away(&self, version: &KeptVersion, all: bool) -> io::Result<u64> {
        let file = self.blobs.file(&version.key, OFlags::empty())?;
        let unused = self.blobs.dir.is_unused(&file);
        let file = match disk::about(&file).and_then(|about| about["size"].as_u64()) {
            _ if unused && all => {
                let freed = file.metadata().map(|meta| room(&meta))?;
                return self.blobs.discard(&version.key).map(|()| freed);
            }
            Some(size) => DiskFile::new(file, size, "")?,
            None => return Ok(0),
        };
        if !unused && !version.used.elapsed().is_ok_and(|idle| idle > IDLE) {
            return Ok(0);
        }
        let before = file.room()?;
        let extents = file.extents()?.into_iter().map(|extent| extent.number);
        file.punch(extents, all)?;
        // This was no use of it.
        file.set_modified(version.used);
        Ok(before.saturating_sub(file.room()?))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions_that_nobody_has_open_go_first() {
        let parent = tempfile::tempdir().unwrap();
        let dir = CacheDir::open(&parent.path().join("objects")).unwrap();
        let make = |key: &str| {
            let about = r#"{"size":4194304}"#;
            let file = DiskFile::new(dir.blobs.hold(key, OFlags::CREATE).unwrap(), 4 << 20, about)
                .unwrap();
            file.write(0, &vec![1; 4 << 20], false).unwrap();
            file
        };
        let (own, other) = (make("own"), make("other"));
        drop(make("unused"));
        let limit = 10 << 20;
        let excess = dir.make_room(0, limit, "own", limit).unwrap();
        assert_eq!(excess, Some(0));
        assert!(own.room().unwrap() >= 4 << 20 && other.room().unwrap() >= 4 << 20);
        let unused = DiskFile::new(
            dir.blobs.hold("unused", OFlags::CREATE).unwrap(),
            4 << 20,
            "",
        )
        .unwrap();
        assert!(unused.room().unwrap() < 1 << 20);
        let excess = dir.make_room(0, 4 << 20, "own", 0).unwrap();
        assert!(excess.is_some_and(|excess| excess >= 4 << 20), "{excess:?}");
    }

    #[test]
    fn the_thread_that_makes_room_sees_what_others_add_meanwhile() {
        let parent = tempfile::tempdir().unwrap();
        let dir = CacheDir::open(&parent.path().join("objects")).unwrap();
        let limit = 16 << 20;
        let own = 2 << 20;
        assert!(dir.keeps(own, limit));
        // A directory that was never measured may hold little.
        assert!(!dir.is_overfull(limit));
        assert_eq!(dir.make_room(own, limit, "own", 0).unwrap(), Some(0));
        assert!(!dir.is_due(own, limit));
        let turn = dir.blobs.dir.turn().unwrap();
        assert!(dir.keeps(1 << 20, limit));
        assert_eq!(dir.make_room(1 << 20, limit, "other", 0).unwrap(), None);
        assert!(!dir.is_overfull(limit));
        assert!(dir.keeps(1 << 20, limit));
        assert!(dir.is_overfull(limit));
        drop(turn);
        assert!(dir.is_due(own, limit));
    }
}
