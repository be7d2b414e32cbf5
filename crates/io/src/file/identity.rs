//! The identity of one version of a file. It differs between versions.

use std::fs::Metadata;
use std::os::unix::fs::MetadataExt;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use xxhash_rust::xxh3::Xxh3;

/// The identity of one version of a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, serde::Serialize, serde::Deserialize)]
pub struct Identity {
    /// The device.
    pub dev: u64,
    /// The inode.
    pub ino: u64,
    /// The size in bytes.
    pub size: u64,
    pub(super) mtime: (i64, i64),
    pub(super) ctime: (i64, i64),
}

impl Identity {
    /// Returns the identity in a file's metadata.
    pub fn of(meta: &Metadata) -> Self {
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
