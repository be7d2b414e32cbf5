//! A store file: its identity, and reads at an offset that notice when the file changed.
//!
//! The bytes lie on a local disk (`handle`), in several files (`members`), or in remote storage ([`Far`]). A file on a
//! disk counts as unchanged as long as its device, inode, size, mtime and ctime are the same. Nothing here writes or
//! locks a file.

pub mod handle;
pub mod members;
mod superblock;

use std::fmt::Debug;
use std::fs::{File, Metadata};
use std::io;
use std::ops::Range;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use xxhash_rust::xxh3::{Xxh3, xxh3_64};

use crate::blobs::Bits;
use handle::{Direct, Handle, Shared, with_room};
use members::{Layout, Members};
use npyfs_base::buffer::ALIGNMENT;
use npyfs_base::error::{Error, ErrorKind};
use npyfs_base::tuning::Tuning;
use superblock::signature;
pub use superblock::{SIGNATURE, has_hdf5_signature, missing_end, signature_places, user_block};

/// The bits of `SeenPlaces`: a power of two. With chunks of 1 MiB, half of the bits cover 32 GiB.
const BITS: u64 = 1 << 16;

/// A read is slow if it takes longer than this plus the same again for each `SLOW_BYTES` bytes.
const SLOW: Duration = Tuning::SLOW_READ;
const SLOW_BYTES: u64 = 1 << 20;

/// A slow read outweighs this many fast ones. Several slow reads mean a slow disk.
const SLOW_WEIGHT: u32 = 4;
const SLOW_ENOUGH: u32 = 16;

/// The identity of one version of a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, serde::Serialize, serde::Deserialize)]
pub struct Identity {
    /// The device.
    pub dev: u64,
    /// The inode.
    pub ino: u64,
    /// The size in bytes.
    pub size: u64,
    mtime: (i64, i64),
    ctime: (i64, i64),
}

impl Identity {
    /// Returns the identity in a file's metadata.
    pub fn from_metadata(meta: &Metadata) -> Self {
        Self {
            dev: meta.dev(),
            ino: meta.ino(),
            size: meta.size(),
            mtime: (meta.mtime(), meta.mtime_nsec()),
            ctime: (meta.ctime(), meta.ctime_nsec()),
        }
    }

    /// Returns the identity of a version in remote storage: its number, size and time of change.
    pub fn elsewhere(number: u64, size: u64, modified: SystemTime) -> Self {
        let since = modified.duration_since(UNIX_EPOCH).unwrap_or_default();
        let seconds = i64::try_from(since.as_secs()).unwrap_or(i64::MAX);
        let time = (seconds, i64::from(since.subsec_nanos()));
        Self {
            dev: 0,
            ino: number,
            size,
            mtime: time,
            ctime: time,
        }
    }

    /// Returns the time of the last modification, in nanoseconds since 1970.
    pub fn modified(&self) -> i64 {
        self.mtime
            .0
            .saturating_mul(1_000_000_000)
            .saturating_add(self.mtime.1)
    }

    /// Returns the times of the last modification and of the last change: seconds and nanoseconds since 1970.
    pub fn times(&self) -> [(i64, i64); 2] {
        [self.mtime, self.ctime]
    }

    /// Returns a number that stays the same across remounts (device numbers may change, so they do not count).
    pub fn number(&self) -> u64 {
        let mut hash = Xxh3::new();
        for part in [self.ino, self.size] {
            hash.update(&part.to_le_bytes());
        }
        for part in [self.mtime.0, self.mtime.1, self.ctime.0, self.ctime.1] {
            hash.update(&part.to_le_bytes());
        }
        hash.digest()
    }
}

/// Returns the time that lies this many nanoseconds after 1970 began.
pub fn time(nanoseconds: i64) -> SystemTime {
    let distance = Duration::from_nanos(nanoseconds.unsigned_abs());
    if nanoseconds >= 0 {
        UNIX_EPOCH + distance
    } else {
        UNIX_EPOCH - distance
    }
}

/// Owner, permissions and time that entries of a store inherit from its file or directory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ownership {
    /// The owner.
    pub uid: u32,
    /// The group.
    pub gid: u32,
    /// Permission bits.
    pub mode: u32,
    /// The time of the last modification.
    pub mtime: SystemTime,
}

impl Ownership {
    /// The ownership shown for a file whose metadata cannot be read: it grants no permission.
    pub const UNKNOWN: Self = Self {
        uid: 0,
        gid: 0,
        mode: 0,
        mtime: UNIX_EPOCH,
    };

    /// Returns the ownership of several files shown as one: the first file's owner, the latest time, and only the
    /// permissions that every file grants.
    pub fn joined(files: impl IntoIterator<Item = Self>) -> Self {
        let mut files = files.into_iter();
        let first = files.next().unwrap_or(Self::UNKNOWN);
        files.fold(first, |own, file| {
            let others = file.mode & 0o007;
            let bits_if = |same: bool, shift: u32| match same {
                true => file.mode >> shift & 0o007,
                false => others,
            };
            let user = bits_if(file.uid == own.uid, 6);
            let group = bits_if(file.gid == own.gid, 3);
            Self {
                mode: own.mode & (user << 6 | group << 3 | others),
                mtime: own.mtime.max(file.mtime),
                ..own
            }
        })
    }

    /// Returns the ownership of bytes in remote storage: only the reader's own user has access, as others may have no
    /// credentials for them.
    pub(crate) fn elsewhere(mtime: SystemTime) -> Self {
        Self {
            uid: rustix::process::getuid().as_raw(),
            gid: rustix::process::getgid().as_raw(),
            mode: 0o400,
            mtime,
        }
    }

    /// Returns the ownership in a file's metadata.
    pub fn from_metadata(meta: &Metadata) -> Self {
        let nanos = u32::try_from(meta.mtime_nsec()).unwrap_or(0);
        let mtime = match u64::try_from(meta.mtime()) {
            Ok(seconds) => UNIX_EPOCH + Duration::new(seconds, nanos),
            Err(_) => UNIX_EPOCH,
        };
        Self {
            uid: meta.uid(),
            gid: meta.gid(),
            mode: meta.mode() & 0o777,
            mtime,
        }
    }
}

/// The reason why bytes of a store file could not be read.
#[derive(Debug, thiserror::Error)]
pub enum RawError {
    /// The file was written to or replaced after it was opened.
    #[error("{0} changed on disk while it was being read")]
    Stale(PathBuf),
    /// The file ends before the end of the requested bytes.
    #[error("{path}: data at {offset}..{end} lies outside the file")]
    Outside {
        /// The store file.
        path: PathBuf,
        /// The first requested byte.
        offset: u64,
        /// The end of the requested bytes.
        end: u64,
    },
    /// A member of the file is missing.
    #[error("the data lie in {0}, which is not there")]
    Missing(PathBuf),
    /// The bytes could not be fetched from remote storage.
    #[error("{0}")]
    Far(Error),
    /// The system reported an error.
    #[error("{path}: {source}")]
    Io {
        /// The store file.
        path: PathBuf,
        /// The system error.
        source: io::Error,
    },
}

impl From<RawError> for Error {
    fn from(error: RawError) -> Self {
        let kind = match &error {
            RawError::Far(error) => error.kind,
            RawError::Stale(_) => ErrorKind::Stale,
            RawError::Outside { .. } | RawError::Missing(_) => ErrorKind::Damaged,
            RawError::Io { source, .. } => match source.raw_os_error() {
                Some(errno) => ErrorKind::Os(errno),
                None => ErrorKind::Damaged,
            },
        };
        Self::new(kind, error.to_string())
    }
}

/// A function that is called once, by the thread that completes what it waits for. It must not block.
pub type Then = Box<dyn FnOnce() + Send>;

/// One version of a file in remote storage.
pub trait Far: Send + Sync + Debug {
    /// Fills `buf` from `offset`. The range is inside the file.
    fn read(&self, buf: &mut [u8], offset: u64) -> Result<(), Error>;

    /// Fetches ranges together, and waits until they are present.
    fn fetch(&self, ranges: &[Range<u64>]) -> Result<(), Error>;

    /// Begins to fetch ranges that will be read soon, and gaps of at most `gap` bytes between them, without waiting.
    /// `then` is called when all are present or cannot be fetched.
    fn prefetch(&self, _ranges: &[Range<u64>], _gap: u64, then: Then) {
        then();
    }

    /// Calls `then` when ranges are present, if each is present or in flight now; otherwise drops it.
    fn when_there(&self, _ranges: &[Range<u64>], then: Then) {
        then();
    }

    /// Returns true if ranges are present.
    fn has(&self, _ranges: &[Range<u64>]) -> bool {
        true
    }

    /// Returns false if another version is known to have replaced this one.
    fn is_unchanged(&self) -> bool;

    /// Returns true if it is the newest version.
    fn is_current(&self) -> bool;

    /// Returns true if another version has another identity: the server reports more than the size.
    fn is_told_apart(&self) -> bool {
        true
    }
}

/// The place where the bytes of a file are stored.
#[derive(Debug)]
enum Source {
    /// On a local disk.
    Disk(Arc<Shared>),
    /// In remote storage.
    Far(Arc<dyn Far>),
}

/// One version of one file, held open. The descriptors of a shared file may be closed while no read uses them.
#[derive(Debug)]
pub struct StoreFile {
    /// Unique in this process.
    pub serial: u64,
    /// The path that it was opened by.
    pub path: PathBuf,
    /// The identity of the opened version.
    pub identity: Identity,
    /// The ownership at the time of opening.
    pub ownership: Ownership,
    source: Source,
    /// The members that hold the bytes, if the file is stored as several.
    members: Option<Arc<Members>>,
    /// The places of earlier large reads.
    seen: SeenPlaces,
}

impl StoreFile {
    /// Opens a regular file, with all of its members if it is stored as several.
    pub fn open(path: &Path) -> io::Result<Self> {
        let file = with_room(|| File::open(path))?;
        if !file.metadata()?.is_file() {
            return Self::from_file(path, file);
        }
        // A file that cannot be inspected is treated as one without members.
        let members = match Members::find(path, &file) {
            Err(e) if e.kind() == io::ErrorKind::UnexpectedEof => None,
            members => members?,
        };
        let file = Self::from_file(path, file)?;
        Ok(match members {
            Some(members) => file.with_members(members),
            None => file,
        })
    }

    /// Makes this a file of several members.
    pub fn with_members(mut self, members: Members) -> Self {
        self.identity = members.identity(self.identity);
        self.members = Some(Arc::new(members));
        self
    }

    /// Returns the layout of the members, if the file is stored as several.
    pub fn layout(&self) -> Option<&Arc<Layout>> {
        self.members.as_ref().map(|members| &members.layout)
    }

    fn next_serial() -> u64 {
        static SERIAL: AtomicU64 = AtomicU64::new(1);
        SERIAL.fetch_add(1, Ordering::Relaxed)
    }

    /// Uses a remote file; `path` is its name in messages.
    pub fn from_far(
        name: &Path,
        identity: Identity,
        ownership: Ownership,
        far: Arc<dyn Far>,
    ) -> Self {
        Self {
            serial: Self::next_serial(),
            path: name.to_owned(),
            identity,
            ownership,
            source: Source::Far(far),
            members: None,
            seen: SeenPlaces::default(),
        }
    }

    /// Returns the remote file, if the bytes are in remote storage.
    pub fn far(&self) -> Option<&Arc<dyn Far>> {
        match &self.source {
            Source::Far(far) => Some(far),
            Source::Disk(_) => None,
        }
    }

    /// Uses an open regular file; `path` leads to it.
    pub fn from_file(path: &Path, file: File) -> io::Result<Self> {
        let meta = file.metadata()?;
        if !meta.is_file() {
            return Err(io::Error::other("not a regular file"));
        }
        let identity = Identity::from_metadata(&meta);
        Ok(Self {
            serial: Self::next_serial(),
            path: path.to_owned(),
            identity,
            ownership: Ownership::from_metadata(&meta),
            source: Source::Disk(Shared::pinned(path, identity, file)),
            members: None,
            seen: SeenPlaces::default(),
        })
    }

    /// Allows its descriptors to be closed when others are needed. Only for files that do not change while they are
    /// open: a file that was written to cannot be reopened.
    pub fn share(&self) {
        if let Source::Disk(shared) = &self.source {
            shared.share();
        }
        if let Some(members) = &self.members {
            members.share();
        }
    }

    /// Returns the open file. ESTALE means that it was closed and another version is at its path now.
    pub fn file(&self) -> io::Result<Arc<Handle>> {
        match &self.source {
            Source::Disk(shared) => shared.handle(),
            Source::Far(_) => Err(io::Error::new(
                io::ErrorKind::Unsupported,
                "it is not on a disk of this machine",
            )),
        }
    }

    fn handle(&self) -> Result<Arc<Handle>, RawError> {
        self.file().map_err(|source| match source.raw_os_error() {
            Some(libc::ESTALE) => RawError::Stale(self.path.clone()),
            _ => self.failed(source),
        })
    }

    /// Returns true if the path still leads to this version.
    pub fn is_current(&self) -> bool {
        if let Source::Far(far) = &self.source {
            return far.is_current();
        }
        if let Some(members) = &self.members {
            return members.are_current();
        }
        std::fs::metadata(&self.path)
            .is_ok_and(|meta| Identity::from_metadata(&meta) == self.identity)
    }

    /// Returns true unless the open file was written to.
    ///
    /// The change time (ctime) does not count: it changes when another file is renamed over this one.
    pub fn is_unchanged(&self) -> bool {
        if let Some(members) = &self.members {
            return members.are_unchanged();
        }
        let shared = match &self.source {
            Source::Disk(shared) => shared,
            Source::Far(far) => return far.is_unchanged(),
        };
        let meta = match shared.is_open() {
            true => self.file().and_then(|file| file.metadata()),
            false => std::fs::metadata(&self.path),
        };
        meta.is_ok_and(|meta| {
            let now = Identity::from_metadata(&meta);
            let known = &self.identity;
            (now.dev, now.ino, now.size, now.mtime)
                == (known.dev, known.ino, known.size, known.mtime)
        })
    }

    /// Fills `buf` from `offset`; fails if the file was written to before or during the read.
    pub fn read_exact_at(&self, buf: &mut [u8], offset: u64) -> Result<(), RawError> {
        self.inside(offset, buf.len() as u64)?;
        if let Some(members) = &self.members {
            return members.read(buf, offset);
        }
        if let Source::Far(far) = &self.source {
            return far.read(buf, offset).map_err(RawError::Far);
        }
        let read = self.handle()?.read_exact_at(buf, offset);
        self.checked(read)
    }

    /// Fills `buf` from `offset` in one read without read-ahead: for large reads after which the kernel would expect a
    /// sequel.
    pub fn read_alone_at(&self, buf: &mut [u8], offset: u64) -> Result<(), RawError> {
        let read = self.read_part_at(buf, offset);
        self.confirm()?;
        read
    }

    /// Fills `buf` from `offset` as one of several parts. After the last part the caller checks once whether the file
    /// was written to (`confirm`).
    pub fn read_part_at(&self, buf: &mut [u8], offset: u64) -> Result<(), RawError> {
        self.inside(offset, buf.len() as u64)?;
        if let Some(members) = &self.members {
            return members.read(buf, offset);
        }
        if let Source::Far(far) = &self.source {
            return far.read(buf, offset).map_err(RawError::Far);
        }
        let handle = self.handle()?;
        let read = handle.alone().read_exact_at(buf, offset);
        read.map_err(|source| self.failed(source))
    }

    /// Has the kernel read a range into its page cache, in one request where single reads would send several.
    pub fn will_need(&self, range: &Range<u64>) {
        if self.members.is_none()
            && self.far().is_none()
            && let Ok(handle) = self.handle()
        {
            handle.will_need(range);
        }
    }

    /// Fills `buf` from `offset` of a file that others may append to. Writes to the file are ignored: existing bytes
    /// stay the same.
    pub fn read_growing_at(&self, buf: &mut [u8], offset: u64) -> Result<(), RawError> {
        if let Source::Far(far) = &self.source {
            self.inside(offset, buf.len() as u64)?;
            return far.read(buf, offset).map_err(RawError::Far);
        }
        let read = self.handle()?.read_exact_at(buf, offset);
        read.map_err(|source| self.failed(source))
    }

    /// Returns the identity of the current version of a file that others may append to.
    pub fn identity_now(&self) -> io::Result<Identity> {
        match &self.source {
            Source::Disk(shared) => Ok(Identity::from_metadata(&shared.handle()?.metadata()?)),
            Source::Far(_) => Ok(self.identity),
        }
    }

    /// Returns the file range, aligned to pages, that a direct read of these bytes covers; `None` if they should be
    /// read through the page cache.
    pub fn direct_range(&self, offset: u64, len: u64) -> Option<Range<u64>> {
        const GRID: u64 = ALIGNMENT as u64;
        if self.members.is_some() || self.far().is_some() {
            return None;
        }
        let start = offset / GRID * GRID;
        let end = offset.checked_add(len)?.checked_next_multiple_of(GRID)?;
        let file = self.file().ok()?;
        file.direct()?;
        Direct::suits(&file, start, end - start).then_some(start..end)
    }

    /// Returns true if a reader that may return should read these bytes directly: only the first time, and only while
    /// the disk is fast. Bytes from a slow disk are worth caching at once.
    pub fn reads_once_directly(&self, offset: u64) -> bool {
        self.members.is_none()
            && self.far().is_none()
            && !self.seen.is_slow()
            && self.seen.is_new(offset)
    }

    /// Returns true if a sequential reader should read these bytes directly. That includes bytes that are in memory
    /// only because of read-ahead, which would otherwise continue.
    pub fn streams_directly(&self, offset: u64, len: u64) -> bool {
        /// More than kernels read ahead.
        const FAR: u64 = 32 << 20;
        let far = offset.saturating_add(FAR);
        self.direct_range(offset, len).is_some()
            || (self.inside(far, len).is_ok() && self.direct_range(far, len).is_some())
    }

    /// Reads a range from `direct_range`, bypassing the page cache; fewer bytes only at the end of the file.
    pub fn read_direct(&self, buf: &mut [u8], offset: u64) -> Result<usize, RawError> {
        let start = Instant::now();
        let read = match self.handle()?.direct() {
            Some(direct) => direct.read(buf, offset),
            None => Err(io::ErrorKind::Unsupported.into()),
        };
        self.seen.took(buf.len() as u64, start.elapsed());
        self.checked(read)
    }

    fn inside(&self, offset: u64, len: u64) -> Result<(), RawError> {
        let end = offset.saturating_add(len);
        if end <= self.identity.size {
            return Ok(());
        }
        Err(RawError::Outside {
            path: self.path.clone(),
            offset,
            end,
        })
    }

    /// Fails if the file was written to.
    pub fn confirm(&self) -> Result<(), RawError> {
        let unchanged = self.is_unchanged();
        unchanged
            .then_some(())
            .ok_or_else(|| RawError::Stale(self.path.clone()))
    }

    /// Returns the result of a read, unless the file was written to in the meantime.
    fn checked<T>(&self, read: io::Result<T>) -> Result<T, RawError> {
        self.confirm()?;
        read.map_err(|source| self.failed(source))
    }

    fn failed(&self, source: io::Error) -> RawError {
        RawError::Io {
            path: self.path.clone(),
            source,
        }
    }
}

/// An estimate of which places of a file were read before, and of the speed of its disk. It affects speed only. Some
/// places that were never read count as read, but never more than half of them.
#[derive(Debug, Default)]
struct SeenPlaces {
    /// Hashes of the places; `None` if there is no memory for them.
    places: OnceLock<Option<Bits>>,
    /// The number of places that are noted.
    count: AtomicU64,
    /// A score: the higher, the slower the disk appears.
    slow: AtomicU32,
}

impl SeenPlaces {
    /// Records a place; true if it is new.
    fn is_new(&self, place: u64) -> bool {
        let Some(places) = self.places.get_or_init(|| Bits::new(BITS)) else {
            return false;
        };
        let new = places.add(xxh3_64(&place.to_le_bytes()) % BITS);
        if new && self.count.fetch_add(1, Ordering::Relaxed) >= BITS / 2 {
            places.clear();
            self.count.store(0, Ordering::Relaxed);
        }
        new
    }

    /// Records the time that it took to read this many bytes from the disk.
    fn took(&self, bytes: u64, time: Duration) {
        let parts = u32::try_from(bytes / SLOW_BYTES).unwrap_or(u32::MAX);
        let next = |slow: u32| match time > SLOW.saturating_mul(parts.saturating_add(1)) {
            true => Some((slow + SLOW_WEIGHT).min(SLOW_ENOUGH + SLOW_WEIGHT)),
            false => slow.checked_sub(1),
        };
        let _ = self
            .slow
            .fetch_update(Ordering::Relaxed, Ordering::Relaxed, next);
    }

    /// Returns true if the disk appears slow.
    fn is_slow(&self) -> bool {
        self.slow.load(Ordering::Relaxed) >= SLOW_ENOUGH
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_in_memory_is_read_from_there_and_what_the_kernel_read_ahead_is_not() {
        // Beside the test program: tmpfs has no direct reads.
        let dir = std::env::current_exe().unwrap();
        let file = tempfile::NamedTempFile::new_in(dir.parent().unwrap()).unwrap();
        let len = 1 << 20;
        file.as_file().set_len(40 << 20).unwrap();
        let store = StoreFile::open(file.path()).unwrap();
        if store.direct_range(0, len).is_none() {
            eprintln!(
                "NOT TESTED: this kernel or file system has no direct reads, or no cachestat"
            );
            return;
        }
        let read = |at: u64| {
            let mut bytes = vec![1; 1 << 20];
            store.read_alone_at(&mut bytes, at).unwrap();
            assert!(bytes.iter().all(|&b| b == 0));
        };
        read(0);
        assert!(store.direct_range(0, len).is_none() && store.streams_directly(0, len));
        read(32 << 20);
        assert!(!store.streams_directly(0, len));
        // These are the last bytes; no later ones indicate read-ahead.
        read(20 << 20);
        assert!(!store.streams_directly(20 << 20, len));
        assert!(
            store
                .read_alone_at(&mut [0; 2], (40 << 20) - 1)
                .is_err_and(|e| matches!(e, RawError::Outside { .. }))
        );
    }

    #[test]
    fn a_place_is_new_once_and_most_others_still_are() {
        let seen = SeenPlaces::default();
        assert!(seen.is_new(4096));
        assert!(!seen.is_new(4096));
        let new = (1..=1000).filter(|n| seen.is_new(n << 20)).count();
        assert!(new > 950);
        // The bits do not fill up, however many places follow.
        for n in 0..10 * BITS {
            seen.is_new(n * 777);
        }
        let new = (1..=1000).filter(|n| seen.is_new(n << 33)).count();
        assert!(new > 400);
    }

    #[test]
    fn a_disk_is_slow_after_several_slow_reads() {
        let (slow, fast) = (Duration::from_millis(8), Duration::from_micros(500));
        let seen = SeenPlaces::default();
        for _ in 0..50 {
            seen.took(1000, slow);
            (0..SLOW_WEIGHT).for_each(|_| seen.took(1000, fast));
        }
        assert!(!seen.is_slow());
        (0..SLOW_ENOUGH / SLOW_WEIGHT).for_each(|_| seen.took(1000, slow));
        assert!(seen.is_slow());
        (0..=SLOW_WEIGHT).for_each(|_| seen.took(1000, fast));
        assert!(!seen.is_slow());
        // A longer read may take longer.
        let seen = SeenPlaces::default();
        (0..100).for_each(|_| seen.took(4 << 20, slow));
        assert!(!seen.is_slow());
    }
}
