//! Kept copies: arrays as finished `.npy` files in a directory that all mounts of a user share.
//!
//! The name of a copy is the hash of all that its bytes come from, so a copy is of one version and never goes stale; nobody
//! asks for those of versions that are gone, and they go out as what was used least. A copy has its name once it is whole. A file beside
//! it has checksums: nothing here is trusted until they were looked at. Whoever reads a copy holds a shared lock on it, whoever makes
//! one an exclusive lock on what has a temporary name so far; what is not locked may be removed under the directory's lock.

mod content;
mod copy;
mod making;
mod sums;

use std::collections::HashSet;
use std::fs::File;
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::thread::sleep;
use std::time::{Duration, SystemTime};

use rustix::fs::{FallocateFlags, FlockOperation, OFlags, fallocate, flock};
use rustix::io::Errno;

use super::own_dir::{OwnDir, alone, cache_home};
use crate::options::RemoteSettings;

pub use content::{KeptContent, OnSpoiled, fill};
pub use copy::{Checked, KeptCopy};
pub use making::Making;
pub use sums::About;
#[cfg(test)]
use sums::BLOCK;
use sums::Sums;

/// The suffix of a finished copy.
const COPY: &str = ".npy";

/// The suffix of the checksums of a copy.
const SUMS: &str = ".sums";

/// The suffix of a copy that is being written.
const PART: &str = ".part";

/// The suffix of checksums that are being written.
const HALF_SUMS: &str = ".sums.part";

/// The time after which a lock is tried again.
const MOMENT: Duration = Duration::from_millis(2);

/// How often the lock of the directory is tried.
const PATIENCE: u32 = 1000;

/// The time for which a copy that is used counts as used just now.
const TOUCHED: Duration = Duration::from_secs(60);

/// A directory of copies.
#[derive(Debug)]
pub struct KeptDir {
    dir: OwnDir,
    path: PathBuf,
    /// Bytes that all copies together may take.
    limit: u64,
}

/// A copy in a directory, for a list.
#[derive(Debug)]
pub struct Listed {
    /// What it is of, if its checksums can be read.
    pub about: Option<About>,
    /// Bytes on disk.
    pub room: u64,
    /// The time at which it was last used.
    pub used: SystemTime,
    /// A process has it open.
    pub in_use: bool,
    key: String,
}

/// The reason why an array is not kept now.
#[derive(Debug, thiserror::Error)]
pub enum NotKept {
    /// It is kept already, or somebody is at it.
    #[error("a mount or another program is making a copy of it")]
    Taken,
    /// There is no room for it.
    #[error("there is no room for it: keep={limit} bytes, of which {in_use} are in use")]
    NoRoom {
        /// Bytes that all copies may take.
        limit: u64,
        /// Bytes of those that are in use.
        in_use: u64,
    },
    /// The system refused.
    #[error("{0}")]
    Io(#[from] io::Error),
}

/// Returns the directory of copies beside the cache of objects; `None` for a user without a home.
pub fn kept_path(settings: &RemoteSettings) -> Option<PathBuf> {
    Some(settings.cache_dir.clone().or_else(cache_home)?.join("kept"))
}

fn room(meta: &std::fs::Metadata) -> u64 {
    meta.blocks().saturating_mul(512)
}

impl KeptDir {
    /// Opens a directory for copies of so many bytes in all; it is made if it is not there.
    pub fn open(path: &Path, limit: u64) -> io::Result<Self> {
        let own = Self::of(OwnDir::make(path)?, path, limit)?;
        // What others left half made is room for nothing.
        if let Some(_turn) = own.dir.turn() {
            let _ = own.sweep();
        }
        Ok(own)
    }

    /// Opens a directory that is there, to list it or to clear it.
    pub fn existing(path: &Path) -> io::Result<Self> {
        Self::of(OwnDir::existing(path)?, path, u64::MAX)
    }

    fn of(dir: OwnDir, path: &Path, limit: u64) -> io::Result<Self> {
        if dir.is_shared() {
            let why = "other hosts may write there: name a directory of this machine";
            return Err(io::Error::new(io::ErrorKind::Unsupported, why));
        }
        Ok(Self {
            dir,
            path: path.to_owned(),
            limit,
        })
    }

    /// Returns its path.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Returns the bytes that all copies together may take.
    pub fn limit(&self) -> u64 {
        self.limit
    }

    /// Returns true if its file system lies over others, which counts for those over it.
    pub fn is_overlay(&self) -> bool {
        self.dir.is_overlay()
    }

    /// Opens a copy, unless there is none of this length. `known`: what was checked of it so far, if it is the same file still.
    pub fn find(&self, key: &str, len: u64, known: Option<&Arc<Checked>>) -> Option<KeptCopy> {
        let file = self
            .dir
            .file(&format!("{key}{COPY}"), OFlags::empty())
            .ok()?;
        // Whoever looks whether it is in use, or removes it, has the other lock for a moment.
        let shared = || flock(&file, FlockOperation::NonBlockingLockShared).is_ok();
        if !shared() {
            sleep(MOMENT);
            shared().then_some(())?;
        }
        let meta = file.metadata().ok()?;
        if meta.nlink() == 0 || meta.len() != len {
            return None;
        }
        let known = known.filter(|known| known.is_of(&meta)).cloned();
        let checked = match known {
            Some(known) => known,
            None => {
                let sums = self.dir.file(&format!("{key}{SUMS}"), OFlags::empty());
                let sums = Sums::read(&sums.ok()?, len).ok()?;
                Arc::new(Checked::nothing(&meta, sums.blocks))
            }
        };
        Some(KeptCopy::new(key, file, len, checked))
    }

    /// Notes that a copy is used.
    pub fn touch(&self, key: &str) {
        // It only counts in the order in which copies go.
        let Ok(sums) = self.dir.file(&format!("{key}{SUMS}"), OFlags::empty()) else {
            return;
        };
        let used = sums.metadata().and_then(|meta| meta.modified());
        if !used.is_ok_and(|used| used.elapsed().is_ok_and(|ago| ago < TOUCHED)) {
            let _ = sums.set_modified(SystemTime::now());
        }
    }

    /// Begins a copy of `len` bytes, for which there is room then.
    pub fn begin(self: &Arc<Self>, key: &str, len: u64) -> Result<Making, NotKept> {
        let name = format!("{key}{PART}");
        let file = self.dir.file(&name, OFlags::CREATE)?;
        if !self.dir.is_unused(&file) {
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
        // At once, so that a full disk shows before the work.
        match fallocate(making.file(), FallocateFlags::empty(), 0, len) {
            Ok(()) => {}
            Err(Errno::OPNOTSUPP | Errno::NOSYS) => making.file().set_len(len)?,
            Err(e) => return Err(NotKept::Io(e.into())),
        }
        Ok(making)
    }

    /// Returns true if there is a finished copy.
    pub fn has(&self, key: &str) -> bool {
        self.dir
            .file(&format!("{key}{COPY}"), OFlags::empty())
            .is_ok()
    }

    /// Removes a copy, whoever uses it: those go on with what they have open.
    pub fn discard(&self, key: &str) {
        // Where this fails it is found out again.
        let _ = self.dir.remove(&format!("{key}{COPY}"));
        let _ = self.dir.remove(&format!("{key}{SUMS}"));
    }

    /// Returns the copies in it.
    pub fn list(&self) -> io::Result<Vec<Listed>> {
        let mut listed = Vec::new();
        for name in self.dir.names()? {
            let Some(key) = name.strip_suffix(COPY) else {
                continue;
            };
            // It may be gone by now.
            let Ok(file) = self.dir.file(&name, OFlags::empty()) else {
                continue;
            };
            let Ok(meta) = file.metadata() else { continue };
            let sums = self.dir.file(&format!("{key}{SUMS}"), OFlags::empty());
            let used = sums.as_ref().ok().and_then(|sums| sums.metadata().ok());
            let sums = sums.and_then(|sums| Sums::read(&sums, meta.len()));
            listed.push(Listed {
                about: sums.ok().map(|sums| sums.about),
                room: room(&meta),
                used: used
                    .and_then(|meta| meta.modified().ok())
                    .unwrap_or(SystemTime::UNIX_EPOCH),
                in_use: !alone(&file),
                key: key.to_owned(),
            });
        }
        Ok(listed)
    }

    /// Removes a copy of a list that nobody uses; false if somebody does.
    pub fn remove(&self, copy: &Listed) -> io::Result<bool> {
        match self
            .dir
            .file(&format!("{}{COPY}", copy.key), OFlags::empty())
        {
            Ok(file) if !self.dir.is_unused(&file) => Ok(false),
            Ok(_) => {
                self.discard(&copy.key);
                Ok(true)
            }
            Err(e) if e.kind() == io::ErrorKind::NotFound => Ok(true),
            Err(e) => Err(e),
        }
    }

    /// Makes room for so many bytes more: what was used least goes first, and nothing that is in use.
    fn make_room(&self, more: u64) -> Result<(), NotKept> {
        // Whoever has it makes room; then there is some, or this one waits for another time.
        let _turn = self.dir.turn().ok_or(NotKept::Taken)?;
        let halves = self.sweep()?;
        let mut copies = self.list()?;
        copies.sort_by_key(|copy| copy.used);
        let room = |copies: &[Listed], in_use: bool| -> u64 {
            let counted = copies.iter().filter(|copy| copy.in_use || !in_use);
            counted.map(|copy| copy.room).sum()
        };
        let in_use = room(&copies, true).saturating_add(halves);
        let mut taken = room(&copies, false).saturating_add(halves);
        let fits = |taken: u64| taken.saturating_add(more) <= self.limit;
        // Others do not go for one that has no room without them either.
        for copy in copies.iter().filter(|copy| !copy.in_use && fits(in_use)) {
            if fits(taken) {
                break;
            }
            if self.remove(copy).unwrap_or(false) {
                taken = taken.saturating_sub(copy.room);
            }
        }
        match fits(taken) {
            true => Ok(()),
            false => Err(NotKept::NoRoom {
                limit: self.limit,
                in_use,
            }),
        }
    }

    /// Removes what was left half made by processes that are gone. Returns the bytes of what is being made. The lock of
    /// the directory is held.
    fn sweep(&self) -> io::Result<u64> {
        let names: HashSet<String> = self.dir.names()?.into_iter().collect();
        let mut bytes = 0_u64;
        for name in &names {
            let Ok(file) = self.dir.file(name, OFlags::empty()) else {
                continue;
            };
            let made = |key: &str, end: &str| names.contains(&format!("{key}{end}"));
            if let Some(key) = name.strip_suffix(HALF_SUMS) {
                if !made(key, PART) {
                    self.dir.remove(name)?;
                }
            } else if name.ends_with(PART) {
                match self.dir.is_unused(&file) {
                    true => self.dir.remove(name)?,
                    false => bytes = bytes.saturating_add(file.metadata().map_or(0, |m| room(&m))),
                }
            } else if let Some(key) = name.strip_suffix(SUMS)
                && !made(key, COPY)
                && !made(key, PART)
            {
                self.dir.remove(name)?;
            }
        }
        Ok(bytes)
    }

    /// Gives what was made its name. The file is locked.
    fn finish(&self, key: &str, file: &File, sums: &Sums) -> io::Result<()> {
        file.sync_data()?;
        // Nobody sweeps between the two names.
        let turn = (0..PATIENCE).find_map(|tried| {
            if tried > 0 {
                sleep(MOMENT);
            }
            self.dir.turn()
        });
        let _turn = turn.ok_or(io::ErrorKind::WouldBlock)?;
        let (part, name) = (format!("{key}{HALF_SUMS}"), format!("{key}{SUMS}"));
        let beside = self.dir.file(&part, OFlags::CREATE | OFlags::TRUNC)?;
        sums.write(&beside)?;
        self.dir.rename(&part, &name)?;
        self.dir
            .rename(&format!("{key}{PART}"), &format!("{key}{COPY}"))?;
        Ok(flock(file, FlockOperation::LockShared)?)
    }
}

#[cfg(test)]
mod tests;
