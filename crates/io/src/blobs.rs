//! Blobs: files in a directory that all processes of a user share, each with the bytes of one version of something.
//!
//! The key of a blob is a hash of that version, so a blob never goes stale. Blobs of versions that no longer exist are
//! never requested again and are eventually removed, since blobs are removed in the order of their last use.
//!
//! A process holds a shared lock on each blob that it has open. A blob is removed under an exclusive lock; a process
//! that finds a blob removed under it opens the blob again. Only the process with the lock of the directory removes
//! bytes.
//!
//! The users of this module are `kept` (whole arrays) and `remote/cache_dir` (parts of objects). Both have a checksum
//! for each block and trust no byte before a comparison with it. All blobs are safe to delete.

use std::fs::{File, Metadata};
use std::io;
use std::os::unix::fs::MetadataExt;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread::sleep;
use std::time::{Duration, SystemTime};

use rustix::fs::{FlockOperation, OFlags, flock};
use rustix::io::Errno;

use super::own_dir::{OwnDir, Turn, alone};

/// The pause between two attempts to take a lock.
const MOMENT: Duration = Duration::from_millis(5);

/// The number of attempts to take a lock, which another process holds only briefly.
const TRIES: u32 = 200;

/// A directory of blobs.
#[derive(Debug)]
pub(crate) struct Blobs {
    pub(crate) dir: OwnDir,
    /// The suffix of a blob.
    bytes: &'static str,
    /// The suffix of the file whose modification time is the last use of the blob: the blob itself or a file beside it.
    used: &'static str,
}

/// A listed blob. `T` describes the content of the blob.
#[derive(Debug)]
pub struct Blob<T> {
    /// The description of the content, if it can be read.
    pub about: Option<T>,
    /// The number of bytes on disk.
    pub room: u64,
    /// The time of the last use.
    pub used: SystemTime,
    /// A process has the blob open.
    pub in_use: bool,
    pub(crate) key: String,
}

/// Returns the bytes that a file takes on disk.
pub(crate) fn room(meta: &Metadata) -> u64 {
    meta.blocks().saturating_mul(512)
}

impl Blobs {
    pub(crate) fn new(dir: OwnDir, bytes: &'static str, used: &'static str) -> Self {
        Self { dir, bytes, used }
    }

    /// Opens the file of a blob, without a lock.
    pub(crate) fn file(&self, key: &str, flags: OFlags) -> io::Result<File> {
        self.dir.file(&format!("{key}{}", self.bytes), flags)
    }

    /// Opens the file whose modification time is the last use of a blob.
    pub(crate) fn beside(&self, key: &str, flags: OFlags) -> io::Result<File> {
        self.dir.file(&format!("{key}{}", self.used), flags)
    }

    /// Opens a blob with a shared lock, so that it is not removed to make room as long as it is open.
    pub(crate) fn hold(&self, key: &str, flags: OFlags) -> io::Result<File> {
        for _ in 0..TRIES {
            let file = self.file(key, flags)?;
            match flock(&file, FlockOperation::NonBlockingLockShared) {
                // The blob may have been removed before it was locked.
                Ok(()) if file.metadata()?.nlink() > 0 => return Ok(file),
                Ok(()) => {}
                Err(Errno::WOULDBLOCK | Errno::INTR) => sleep(MOMENT),
                Err(e) => return Err(e.into()),
            }
        }
        Err(io::ErrorKind::WouldBlock.into())
    }

    /// Waits for the lock of the directory.
    pub(crate) fn wait_for_turn(&self) -> io::Result<Turn> {
        let turn = (0..TRIES).find_map(|_| {
            let turn = self.dir.turn();
            if turn.is_none() {
                sleep(MOMENT);
            }
            turn
        });
        turn.ok_or_else(|| io::ErrorKind::WouldBlock.into())
    }

    /// Returns all blobs, the least recently used first. `about` reads the description of a blob.
    pub(crate) fn list<T>(
        &self,
        about: impl Fn(&str, &File) -> Option<T>,
    ) -> io::Result<Vec<Blob<T>>> {
        let mut blobs = Vec::new();
        for name in self.dir.names()? {
            let Some(key) = name.strip_suffix(self.bytes) else {
                continue;
            };
            // The blob may be gone by now.
            let Ok(file) = self.file(key, OFlags::empty()) else {
                continue;
            };
            let Ok(meta) = file.metadata() else { continue };
            let beside = self.beside(key, OFlags::empty());
            let used = beside.and_then(|file| file.metadata()?.modified());
            blobs.push(Blob {
                about: about(key, &file),
                room: room(&meta),
                used: used.unwrap_or(SystemTime::UNIX_EPOCH),
                in_use: !alone(&file),
                key: key.to_owned(),
            });
        }
        blobs.sort_by_key(|blob| blob.used);
        Ok(blobs)
    }

    /// Removes a blob unless a process has it open; returns false in that case.
    pub(crate) fn remove(&self, key: &str) -> io::Result<bool> {
        match self.file(key, OFlags::empty()) {
            Ok(file) if !self.dir.is_unused(&file) => Ok(false),
            Ok(_) => self.discard(key).map(|()| true),
            Err(e) if e.kind() == io::ErrorKind::NotFound => Ok(true),
            Err(e) => Err(e),
        }
    }

    /// Removes a blob. Processes that have it open continue to use the open file.
    pub(crate) fn discard(&self, key: &str) -> io::Result<()> {
        let removed = self.dir.remove(&format!("{key}{}", self.bytes));
        if self.used != self.bytes {
            // A file that is left without its blob is swept in any case.
            let _ = self.dir.remove(&format!("{key}{}", self.used));
        }
        removed
    }
}

/// Calls `take` on blobs, in order, to free bytes until at most `most` of `total` bytes are left. `take` returns the
/// bytes that it freed. Returns the bytes that are left.
pub(crate) fn shrink<T>(
    blobs: &[Blob<T>],
    mut total: u64,
    most: u64,
    take: impl Fn(&Blob<T>) -> u64,
) -> u64 {
    for blob in blobs {
        if total <= most {
            break;
        }
        total = total.saturating_sub(take(blob));
    }
    total
}

/// A set of numbers below a limit, such as block numbers, with one bit for each.
#[derive(Debug)]
pub(crate) struct Bits(Vec<AtomicU64>);

impl Bits {
    /// Makes an empty set; returns `None` if there is no memory for that many bits.
    pub(crate) fn new(count: u64) -> Option<Self> {
        let words = usize::try_from(count.div_ceil(64)).ok()?;
        let mut bits = Vec::new();
        bits.try_reserve_exact(words).ok()?;
        bits.resize_with(words, AtomicU64::default);
        Some(Self(bits))
    }

    fn place(&self, number: u64) -> Option<(&AtomicU64, u64)> {
        let word = self.0.get(usize::try_from(number / 64).ok()?)?;
        Some((word, 1 << (number % 64)))
    }

    pub(crate) fn has(&self, number: u64) -> bool {
        self.place(number)
            .is_some_and(|(word, bit)| word.load(Ordering::Acquire) & bit != 0)
    }

    /// Adds a number, after the bytes that it stands for were written. Returns true if it was not in the set.
    pub(crate) fn add(&self, number: u64) -> bool {
        self.place(number)
            .is_some_and(|(word, bit)| word.fetch_or(bit, Ordering::AcqRel) & bit == 0)
    }

    /// Returns the numbers in the set, in order.
    pub(crate) fn all(&self) -> impl Iterator<Item = u64> {
        let words = (0_u64..).zip(&self.0);
        words.flat_map(|(at, word)| {
            let bits = word.load(Ordering::Acquire);
            let set = (0..64).filter(move |bit| bits >> bit & 1 != 0);
            set.map(move |bit| at * 64 + bit)
        })
    }

    pub(crate) fn clear(&self) {
        for word in &self.0 {
            word.store(0, Ordering::Release);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_added_and_taken_out() {
        let bits = Bits::new(200).unwrap();
        assert!(bits.add(0) && bits.add(130) && !bits.add(130));
        assert!(bits.has(0) && bits.has(130) && !bits.has(1) && !bits.has(1000));
        assert_eq!(bits.all().collect::<Vec<_>>(), [0, 130]);
        bits.clear();
        assert!(!bits.has(130) && bits.all().next().is_none());
    }

    #[test]
    fn what_is_open_stays() {
        let parent = tempfile::tempdir().unwrap();
        let dir = OwnDir::make(&parent.path().join("blobs")).unwrap();
        let blobs = Blobs::new(dir, ".bytes", ".bytes");
        assert!(blobs.hold("a", OFlags::empty()).is_err());
        let open = blobs.hold("a", OFlags::CREATE).unwrap();
        let list = || blobs.list(|_, _| Some(())).unwrap();
        assert!(list()[0].in_use && !blobs.remove("a").unwrap());
        drop(open);
        assert!(!list()[0].in_use && blobs.remove("a").unwrap());
        assert!(list().is_empty() && blobs.remove("a").unwrap());
    }
}
