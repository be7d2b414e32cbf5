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
//! The thread that decodes an array makes the copy, and readers contribute the bytes that they read. A copy gets its
//! name once it is whole. Until then a process holds an exclusive lock on a file with another suffix. Such a file
//! without a lock was left by a process that was killed, and is swept.

mod copy;

use std::collections::BTreeMap;
use std::fs::File;
use std::io;
use std::ops::Range;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, SystemTime};

use parking_lot::Mutex;
use rustix::fs::{FallocateFlags, FlockOperation, OFlags, fallocate, flock};
use rustix::io::Errno;
use xxhash_rust::xxh3::xxh3_64;

use super::blobs::{Blob, Blobs, room, shrink};
use super::content::Content;
use super::own_dir::{OwnDir, cache_home};
use npyfs_base::error::Error;
use npyfs_base::options::RemoteSettings;

pub use copy::{About, CheckedBlocks, KeptContent, KeptCopy, OnSpoiled};
use copy::{BLOCK, Sums};

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
        let own = Self::new(OwnDir::make(path)?, path, limit)?;
        // Unfinished copies of processes that have ended only take up room.
        if let Some(_turn) = own.blobs.dir.turn() {
            let _ = own.sweep();
        }
        Ok(own)
    }

    /// Opens an existing directory, to list or clear it.
    pub fn existing(path: &Path) -> io::Result<Self> {
        Self::new(OwnDir::existing(path)?, path, u64::MAX)
    }

    fn new(dir: OwnDir, path: &Path, limit: u64) -> io::Result<Self> {
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
    pub fn find(
        &self,
        key: &str,
        len: u64,
        known: Option<&Arc<CheckedBlocks>>,
    ) -> Option<KeptCopy> {
        let file = self.blobs.hold(key, OFlags::empty()).ok()?;
        let meta = file.metadata().ok().filter(|meta| meta.len() == len)?;
        let known = known.filter(|known| known.is_of(&meta)).cloned();
        let checked = match known {
            Some(known) => known,
            None => {
                let sums = self.blobs.beside(key, OFlags::empty());
                let sums = Sums::read(&sums.ok()?, len).ok()?;
                Arc::new(CheckedBlocks::nothing(&meta, sums.blocks)?)
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
        making.file.set_len(0)?;
        // The space is allocated at once, so that a full disk shows before the work.
        match fallocate(&making.file, FallocateFlags::empty(), 0, len) {
            Ok(()) => {}
            Err(Errno::OPNOTSUPP | Errno::NOSYS) => making.file.set_len(len)?,
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

/// A copy without a name yet. Dropping it discards it.
#[derive(Debug)]
pub struct Making {
    dir: Arc<KeptDir>,
    key: String,
    /// Locked exclusively by this process.
    file: File,
    len: u64,
    done: Mutex<Done>,
    finished: AtomicBool,
}

/// The blocks and parts of blocks that are written.
#[derive(Debug)]
struct Done {
    /// The checksum of each complete block.
    sums: Vec<Option<u64>>,
    /// The written ranges of incomplete blocks: from start to end.
    parts: BTreeMap<u64, u64>,
}

impl Done {
    /// Returns true if all of a part of a block is written.
    fn has(&self, part: &Range<u64>, block: u64) -> bool {
        let at = usize::try_from(block).unwrap_or(usize::MAX);
        let whole = !matches!(self.sums.get(at), Some(None));
        whole || {
            let before = self.parts.range(..=part.start).next_back();
            before.is_some_and(|(_, &end)| end >= part.end)
        }
    }

    /// Records that a part of a block is written; returns true if the block is complete.
    fn add(&mut self, part: Range<u64>, block: &Range<u64>) -> bool {
        let (mut start, mut end) = (part.start, part.end);
        let near = self.parts.range(block.start..block.end);
        let touching: Vec<(u64, u64)> = near
            .map(|(&from, &to)| (from, to))
            .filter(|&(from, to)| from <= end && to >= start)
            .collect();
        for (from, to) in touching {
            self.parts.remove(&from);
            (start, end) = (start.min(from), end.max(to));
        }
        if start <= block.start && end >= block.end {
            return true;
        }
        self.parts.insert(start, end);
        false
    }
}

impl Making {
    fn new(dir: Arc<KeptDir>, key: &str, file: File, len: u64) -> Self {
        let blocks = usize::try_from(len.div_ceil(BLOCK)).unwrap_or(usize::MAX);
        let done = Done {
            sums: vec![None; blocks],
            parts: BTreeMap::new(),
        };
        Self {
            dir,
            key: key.to_owned(),
            file,
            len,
            done: Mutex::new(done),
            finished: AtomicBool::new(false),
        }
    }

    /// Returns the first missing block at or after `from`.
    pub fn missing(&self, from: u64) -> Option<u64> {
        let done = self.done.lock();
        let from = usize::try_from(from)
            .unwrap_or(usize::MAX)
            .min(done.sums.len());
        let found = done.sums[from..].iter().position(Option::is_none)?;
        Some((from + found) as u64)
    }

    /// Returns the length of a block in bytes.
    pub fn bytes_of(&self, block: u64) -> usize {
        let left = self.len.saturating_sub(block.saturating_mul(BLOCK));
        usize::try_from(left.min(BLOCK)).unwrap_or(0)
    }

    fn note(&self, block: u64, sum: u64) {
        let mut done = self.done.lock();
        let at = usize::try_from(block).unwrap_or(usize::MAX);
        if let Some(place) = done.sums.get_mut(at) {
            *place = Some(sum);
        }
        let start = block.saturating_mul(BLOCK);
        let inside = start..start.saturating_add(BLOCK);
        while let Some((&from, _)) = done.parts.range(inside.clone()).next() {
            done.parts.remove(&from);
        }
    }

    /// Writes a complete block.
    pub fn put(&self, block: u64, bytes: &[u8]) -> io::Result<()> {
        if bytes.is_empty() || bytes.len() != self.bytes_of(block) {
            return Err(io::ErrorKind::InvalidInput.into());
        }
        self.file.write_all_at(bytes, block.saturating_mul(BLOCK))?;
        self.note(block, xxh3_64(bytes));
        Ok(())
    }

    /// Writes the missing ones of the bytes from `offset` on. Returns the number of bytes written.
    pub fn add(&self, offset: u64, bytes: &[u8]) -> io::Result<u64> {
        let mut written = 0;
        let mut rest = bytes;
        let mut at = offset;
        while !rest.is_empty() && at < self.len {
            let block = at / BLOCK;
            let whole = block * BLOCK..(block * BLOCK).saturating_add(self.bytes_of(block) as u64);
            let n = usize::try_from(whole.end - at)
                .unwrap_or(usize::MAX)
                .min(rest.len());
            let (part, behind) = rest.split_at(n);
            let range = at..at + n as u64;
            let there = self.done.lock().has(&range, block);
            if !there {
                if range == whole {
                    self.put(block, part)?;
                } else {
                    self.file.write_all_at(part, at)?;
                    let all = self.done.lock().add(range, &whole);
                    if all {
                        // The part was written just now and is in the page cache.
                        let mut read = vec![0; self.bytes_of(block)];
                        self.file.read_exact_at(&mut read, whole.start)?;
                        self.note(block, xxh3_64(&read));
                    }
                }
                written += n as u64;
            }
            at += n as u64;
            rest = behind;
        }
        Ok(written)
    }

    /// Gives the copy its name, if all blocks are written, and opens it.
    pub fn finish(&self, about: About) -> io::Result<KeptCopy> {
        let blocks: Option<Vec<u64>> = self.done.lock().sums.iter().copied().collect();
        let blocks = blocks.ok_or(io::ErrorKind::UnexpectedEof)?;
        let sums = Sums {
            about,
            len: self.len,
            blocks,
        };
        self.dir.finish(&self.key, &self.file, &sums)?;
        self.finished.store(true, Ordering::Release);
        // The clone holds the same lock.
        let file = self.file.try_clone()?;
        let checked = CheckedBlocks::all(&file.metadata()?, sums.blocks);
        let checked = checked.ok_or(io::ErrorKind::OutOfMemory)?;
        Ok(KeptCopy::new(&self.key, file, self.len, Arc::new(checked)))
    }
}

impl Drop for Making {
    fn drop(&mut self) {
        if !self.finished.load(Ordering::Acquire) {
            // The process that makes room next removes the remaining files.
            let _ = self.dir.blobs.dir.remove(&format!("{}{PART}", self.key));
        }
    }
}

/// Reads all blocks that a copy lacks. `goes_on` is called with the bytes of each block, and returns false to stop.
pub fn fill(
    making: &Making,
    content: &dyn Content,
    mut goes_on: impl FnMut(u64) -> bool,
) -> Result<bool, Error> {
    let mut buf = Vec::new();
    let mut at = 0;
    while let Some(block) = making.missing(at) {
        buf.resize(making.bytes_of(block), 0);
        content.read_at(block.saturating_mul(BLOCK), &mut buf)?;
        making.put(block, &buf).map_err(Error::from)?;
        if !goes_on(buf.len() as u64) {
            return Ok(false);
        }
        at = block + 1;
    }
    Ok(true)
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::copy::Spoiled;
    use super::*;
    use crate::content::InMemory;

    const LEN: u64 = 2 * BLOCK + 77;

    fn content() -> Arc<dyn Content> {
        Arc::new(InMemory((0..LEN).map(|n| (n % 251) as u8).collect()))
    }

    fn about() -> About {
        About {
            store: "s.h5".to_owned(),
            path: "a.npy".to_owned(),
        }
    }

    fn dir(limit: u64) -> (tempfile::TempDir, Arc<KeptDir>) {
        let parent = tempfile::tempdir().unwrap();
        let dir = KeptDir::open(&parent.path().join("kept"), limit).unwrap();
        (parent, Arc::new(dir))
    }

    fn keep(dir: &Arc<KeptDir>, key: &str) -> KeptCopy {
        let making = dir.begin(key, LEN).unwrap();
        assert!(fill(&making, &*content(), |_| true).unwrap());
        making.finish(about()).unwrap()
    }

    fn names(dir: &KeptDir) -> Vec<String> {
        let mut names = dir.blobs.dir.names().unwrap();
        names.retain(|name| !name.starts_with('.') && name != "lock");
        names.sort();
        names
    }

    fn bytes(copy: &KeptCopy) -> Result<Vec<u8>, Spoiled> {
        let mut all = vec![0; LEN as usize];
        copy.read_at(0, &mut all).map(|()| all)
    }

    #[test]
    fn a_copy_is_found_and_read_by_others() {
        let (_parent, dir) = dir(1 << 30);
        assert!(dir.find("k", LEN, None).is_none());
        let made = keep(&dir, "k");
        assert!(made.is_whole() && names(&dir) == ["k.npy", "k.sums"]);
        assert!(matches!(dir.begin("k", LEN), Err(NotKept::Taken)));
        assert_eq!(names(&dir), ["k.npy", "k.sums"]);
        let mut want = vec![0; LEN as usize];
        content().read_at(0, &mut want).unwrap();
        assert_eq!(bytes(&made).unwrap(), want);
        // The handle that made the copy knows it as checked; another handle does not.
        let found = dir.find("k", LEN, None).unwrap();
        assert!(!found.is_whole());
        let mut part = [0; 100];
        found.read_at(BLOCK - 50, &mut part).unwrap();
        assert_eq!(part, want[BLOCK as usize - 50..][..100]);
        assert!(!found.is_whole());
        let again = dir.find("k", LEN, Some(found.checked())).unwrap();
        assert_eq!(again.check_next(0, &mut Vec::new()).unwrap(), Some(3));
        assert!(again.is_whole() && found.is_whole());
        assert!(dir.find("k", LEN + 1, None).is_none());
        let path = dir.path().join("k.npy");
        assert_eq!(path.metadata().unwrap().permissions().mode() & 0o777, 0o600);
    }

    #[test]
    fn what_was_read_is_handed_on_in_parts() {
        let (_parent, dir) = dir(1 << 30);
        let mut want = vec![0; LEN as usize];
        content().read_at(0, &mut want).unwrap();
        let making = dir.begin("k", LEN).unwrap();
        let add = |from: u64, to: u64| {
            let (start, end) = (from as usize, to as usize);
            making.add(from, &want[start..end]).unwrap()
        };
        // Across the end of a block, twice, and with a hole.
        assert_eq!(add(BLOCK - 10, BLOCK + 90), 100);
        assert_eq!(add(BLOCK - 10, BLOCK + 90), 0);
        assert_eq!(add(BLOCK + 100, 2 * BLOCK), BLOCK - 100);
        assert_eq!(making.missing(0), Some(0));
        assert_eq!(making.missing(1), Some(1));
        assert!(making.finish(about()).is_err());
        assert_eq!(add(BLOCK + 80, BLOCK + 100), 20);
        assert_eq!(making.missing(1), Some(2));
        // Existing bytes are not written again, and nothing is written past the end.
        assert_eq!(add(0, 2 * BLOCK), BLOCK);
        assert_eq!(
            making
                .add(2 * BLOCK, &[&want[2 * BLOCK as usize..], b"more"].concat())
                .unwrap(),
            77
        );
        assert_eq!(making.missing(0), None);
        assert_eq!(making.add(LEN, b"more").unwrap(), 0);
        let copy = making.finish(about()).unwrap();
        assert_eq!(bytes(&copy).unwrap(), want);
        let found = dir.find("k", LEN, None).unwrap();
        assert_eq!(bytes(&found).unwrap(), want);
    }

    #[test]
    fn a_copy_that_was_changed_or_cut_is_never_read() {
        let (_parent, dir) = dir(1 << 30);
        let checked = keep(&dir, "k").checked().clone();
        let file = File::options()
            .write(true)
            .open(dir.path().join("k.npy"))
            .unwrap();
        file.write_all_at(&[255], LEN - 1).unwrap();
        let found = dir.find("k", LEN, Some(&checked)).unwrap();
        assert!(!found.is_whole());
        let mut first = [0; 10];
        found.read_at(0, &mut first).unwrap();
        assert!(bytes(&found).is_err() && found.is_spoiled());
        assert!(found.read_at(0, &mut first).is_err());
        file.set_len(LEN - 1).unwrap();
        assert!(dir.find("k", LEN, None).is_none());
        // It is made again.
        keep(&dir, "k");
        assert!(dir.find("k", LEN, None).is_some());
        std::fs::write(dir.path().join("k.sums"), b"x").unwrap();
        assert!(dir.find("k", LEN, None).is_none());
        keep(&dir, "k");
    }

    #[test]
    fn what_is_half_made_goes() {
        let (_parent, dir) = dir(1 << 30);
        let making = dir.begin("k", LEN).unwrap();
        assert!(matches!(dir.begin("k", LEN), Err(NotKept::Taken)));
        let other = KeptDir::open(dir.path(), 1 << 30).unwrap();
        assert_eq!(names(&other), ["k.part"]);
        assert!(making.finish(about()).is_err());
        drop(making);
        assert_eq!(names(&dir), Vec::<String>::new());
        // Left by processes that were killed.
        for name in ["a.part", "b.sums", "c.sums.part"] {
            std::fs::write(dir.path().join(name), b"x").unwrap();
        }
        keep(&dir, "a");
        KeptDir::open(dir.path(), 1 << 30).unwrap();
        assert_eq!(names(&dir), ["a.npy", "a.sums"]);
    }

    #[test]
    fn what_was_used_least_goes_first() {
        let (_parent, dir) = dir(8 * BLOCK);
        for key in ["a", "b", "c"] {
            keep(&dir, key);
        }
        for (key, ago) in [("a", 100), ("b", 300), ("c", 200)] {
            let sums = File::options()
                .write(true)
                .open(dir.path().join(format!("{key}.sums")));
            let used = SystemTime::now() - Duration::from_secs(ago);
            sums.unwrap().set_modified(used).unwrap();
        }
        let open = dir.find("c", LEN, None).unwrap();
        dir.touch("b");
        keep(&dir, "d");
        assert_eq!(
            names(&dir),
            ["b.npy", "b.sums", "c.npy", "c.sums", "d.npy", "d.sums"]
        );
        drop(open);
        let all = dir.begin("e", 9 * BLOCK);
        assert!(matches!(all, Err(NotKept::NoRoom { .. })));
        assert_eq!(dir.list().unwrap().len(), 3);
        let listed = dir.list().unwrap();
        assert!(
            listed
                .iter()
                .all(|copy| copy.about == Some(about()) && !copy.in_use)
        );
    }
}
