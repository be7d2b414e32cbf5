//! Kept copies: arrays as finished `.npy` files in a directory that all mounts of a user share.
//!
//! A copy is a blob. Its key is the hash of the sources of its bytes: versions of files, places in them, and the way in
//! which they are combined. A lookup therefore never finds a copy of the wrong version, whatever options or views led
//! to it.
//!
//! The checksums of a copy are in a separate file, since the kernel may be given the copy itself. A block of 1 MiB is
//! compared with its checksum at its first read; from the first block that differs on, the array is read from the
//! store, even in the middle of a read.
//!
//! A copy gets its name once it is whole. Until then a process holds an exclusive lock on a file with another suffix.
//! Such a file without a lock was left by a process that was killed, and is swept.

mod copy;
mod making;

use std::fs::File;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use rustix::fs::{FallocateFlags, FlockOperation, OFlags, fallocate, flock};
use rustix::io::Errno;

use super::blobs::{Blob, Blobs, room, shrink};
use super::own_dir::{OwnDir, cache_home};
use npyfs_base::options::RemoteSettings;

pub use copy::{About, Checked, KeptContent, KeptCopy, OnSpoiled};
pub use making::{Making, fill};

use copy::Sums;

/// The suffix of a finished copy.
const COPY: &str = ".npy";

/// The suffix of the checksums of a copy, whose modification time is the last use of the copy.
const SUMS: &str = ".sums";

/// The suffix of a copy that is being made.
const PART: &str = ".part";

/// The time for which a used copy is not touched again.
const TOUCHED: Duration = Duration::from_secs(60);

/// A directory of copies.
#[derive(Debug)]
pub struct KeptDir {
    blobs: Blobs,
    path: PathBuf,
    /// The limit of the total size in bytes of all copies.
    limit: u64,
}

/// A copy in a directory.
pub type ListedCopy = Blob<About>;

/// The reason why an array is not kept now.
#[derive(Debug, thiserror::Error)]
pub enum NotKept {
    /// The array is kept already, or another process is making the copy.
    #[error("a mount or another program is making a copy of it")]
    Taken,
    /// There is no room for the copy.
    #[error("there is no room for it: keep={limit} bytes, of which {in_use} are in use")]
    NoRoom {
        /// The limit of the total size in bytes of all copies.
        limit: u64,
        /// The size in bytes of the copies that are in use.
        in_use: u64,
    },
    /// A system error.
    #[error("{0}")]
    Io(#[from] io::Error),
}

/// Returns the directory of copies beside the cache of objects; `None` for a user without a home.
pub fn kept_path(settings: &RemoteSettings) -> Option<PathBuf> {
    Some(settings.cache_dir.clone().or_else(cache_home)?.join("kept"))
}

impl KeptDir {
    /// Opens a directory for copies of at most `limit` bytes in all; creates it if it is missing.
    pub fn open(path: &Path, limit: u64) -> io::Result<Self> {
        let own = Self::of(OwnDir::make(path)?, path, limit)?;
        // Unfinished copies of processes that have ended only take up room.
        if let Some(_turn) = own.blobs.dir.turn() {
            let _ = own.sweep();
        }
        Ok(own)
    }

    /// Opens an existing directory, to list or clear it.
    pub fn existing(path: &Path) -> io::Result<Self> {
        Self::of(OwnDir::existing(path)?, path, u64::MAX)
    }

    fn of(dir: OwnDir, path: &Path, limit: u64) -> io::Result<Self> {
        if dir.is_shared() {
            let why = "other hosts may write there: name a directory of this machine";
            return Err(io::Error::new(io::ErrorKind::Unsupported, why));
        }
        Ok(Self {
            blobs: Blobs::new(dir, COPY, SUMS),
            path: path.to_owned(),
            limit,
        })
    }

    /// Returns the path of the directory.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Returns the limit of the total size in bytes of all copies.
    pub fn limit(&self) -> u64 {
        self.limit
    }

    /// Returns true if the directory is on an overlay file system, which counts towards the stacking depth of FUSE
    /// passthrough.
    pub fn is_overlay(&self) -> bool {
        self.blobs.dir.is_overlay()
    }

    /// Opens a copy, unless there is none of this length. `known` holds the blocks checked so far, and is used if the
    /// file is still the same.
    pub fn find(&self, key: &str, len: u64, known: Option<&Arc<Checked>>) -> Option<KeptCopy> {
        let file = self.blobs.hold(key, OFlags::empty()).ok()?;
        let meta = file.metadata().ok().filter(|meta| meta.len() == len)?;
        let known = known.filter(|known| known.is_of(&meta)).cloned();
        let checked = match known {
            Some(known) => known,
            None => {
                let sums = self.blobs.beside(key, OFlags::empty());
                let sums = Sums::read(&sums.ok()?, len).ok()?;
                Arc::new(Checked::nothing(&meta, sums.blocks)?)
            }
        };
        Some(KeptCopy::new(key, file, len, checked))
    }

    /// Records a use of a copy.
    pub fn touch(&self, key: &str) {
        // The time only determines the order in which copies are removed.
        let Ok(sums) = self.blobs.beside(key, OFlags::empty()) else {
            return;
        };
        let used = sums.metadata().and_then(|meta| meta.modified());
        if !used.is_ok_and(|used| used.elapsed().is_ok_and(|ago| ago < TOUCHED)) {
            let _ = sums.set_modified(SystemTime::now());
        }
    }

    /// Begins a copy of `len` bytes, after making room for it.
    pub fn begin(self: &Arc<Self>, key: &str, len: u64) -> Result<Making, NotKept> {
        let file = self
            .blobs
            .dir
            .file(&format!("{key}{PART}"), OFlags::CREATE)?;
        if !self.blobs.dir.is_unused(&file) {
            return Err(NotKept::Taken);
        }
        let making = Making::new(self.clone(), key, file, len);
        if self.has(key) {
            if self.find(key, len, None).is_some() {
                return Err(NotKept::Taken);
            }
            self.discard(key);
        }
        self.make_room(len)?;
        making.file().set_len(0)?;
        // The space is allocated at once, so that a full disk shows before the work.
        match fallocate(making.file(), FallocateFlags::empty(), 0, len) {
            Ok(()) => {}
            Err(Errno::OPNOTSUPP | Errno::NOSYS) => making.file().set_len(len)?,
            Err(e) => return Err(NotKept::Io(e.into())),
        }
        Ok(making)
    }

    /// Returns true if a finished copy exists.
    pub fn has(&self, key: &str) -> bool {
        self.blobs.file(key, OFlags::empty()).is_ok()
    }

    /// Removes a copy. Processes that have it open continue to use the open file.
    pub fn discard(&self, key: &str) {
        // A failure shows again at the next use of the copy.
        let _ = self.blobs.discard(key);
    }

    /// Returns the copies in the directory, the least recently used first.
    pub fn list(&self) -> io::Result<Vec<ListedCopy>> {
        self.blobs.list(|key, file| {
            let sums = self.blobs.beside(key, OFlags::empty()).ok()?;
            let sums = Sums::read(&sums, file.metadata().ok()?.len());
            sums.ok().map(|sums| sums.about)
        })
    }

    /// Removes a copy unless a process has it open; returns false in that case.
    pub fn remove(&self, copy: &ListedCopy) -> io::Result<bool> {
        self.blobs.remove(&copy.key)
    }

    /// Makes room for `more` bytes: the least recently used copy goes first, and no copy that is in use.
    fn make_room(&self, more: u64) -> Result<(), NotKept> {
        // The process that has the turn makes room; this process then finds some, or waits for another time.
        let _turn = self.blobs.dir.turn().ok_or(NotKept::Taken)?;
        let halves = self.sweep()?;
        let copies = self.blobs.list(|_, _| Some(()))?;
        let (used, unused): (Vec<_>, Vec<_>) = copies.into_iter().partition(|copy| copy.in_use);
        let total = |copies: &[Blob<()>]| copies.iter().map(|copy| copy.room).sum::<u64>();
        let in_use = total(&used).saturating_add(halves);
        let full = || NotKept::NoRoom {
            limit: self.limit,
            in_use,
        };
        // No copy is removed for a new one that would not fit even then.
        let most = self.limit.checked_sub(in_use.saturating_add(more));
        let most = most.ok_or_else(full)?;
        let left = shrink(&unused, total(&unused), most, |copy| {
            match self.blobs.remove(&copy.key) {
                Ok(true) => copy.room,
                _ => 0,
            }
        });
        if left > most { Err(full()) } else { Ok(()) }
    }

    /// Removes unfinished files of processes that have ended. Returns the bytes of copies being made. The caller holds
    /// the directory's lock.
    fn sweep(&self) -> io::Result<u64> {
        let mut bytes = 0_u64;
        for name in self.blobs.dir.names()? {
            let Ok(file) = self.blobs.dir.file(&name, OFlags::empty()) else {
                continue;
            };
            if name.ends_with(PART) {
                match self.blobs.dir.is_unused(&file) {
                    true => self.blobs.dir.remove(&name)?,
                    false => bytes = bytes.saturating_add(file.metadata().map_or(0, |m| room(&m))),
                }
            } else if let Some(key) = name.strip_suffix(SUMS)
                && !self.has(key)
            {
                self.blobs.dir.remove(&name)?;
            }
        }
        Ok(bytes)
    }

    /// Gives a finished copy its name. The caller holds the lock of the file.
    fn finish(&self, key: &str, file: &File, sums: &Sums) -> io::Result<()> {
        file.sync_data()?;
        // The turn prevents a sweep between the two names. Checksums that a crash truncated are found to be damaged.
        let _turn = self.blobs.wait_for_turn()?;
        let beside = self.blobs.beside(key, OFlags::CREATE | OFlags::TRUNC)?;
        sums.write(&beside)?;
        let dir = &self.blobs.dir;
        dir.rename(&format!("{key}{PART}"), &format!("{key}{COPY}"))?;
        Ok(flock(file, FlockOperation::LockShared)?)
    }
}

#[cfg(test)]
mod tests;
