//! Times that were found before: in memory, and on disk in the user's cache directory, never in the repository.
//!
//! On disk there is a file per commit, in a directory per repository. A file is replaced in one step, and a damaged
//! file counts as missing. Without a cache directory nothing is kept on disk.

use std::collections::BTreeMap;
use std::num::NonZeroUsize;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use lru::LruCache;
use parking_lot::Mutex;
use serde::{Deserialize, Serialize};
use xxhash_rust::xxh3::xxh3_128;

use super::column::Column;
use super::commit::Commit;
use super::digest;
use npyfs_io::remote::Address;

/// The mark of the format, which changes with every change of the format.
const MAGIC: &[u8; 8] = b"npyfsT01";

/// The largest size in bytes of a file, packed and unpacked.
const LARGEST: usize = 1 << 30;

/// The number of commits whose times are kept in memory.
const KEPT: NonZeroUsize = NonZeroUsize::new(8).unwrap();

/// The times of a column's samples in nanoseconds since 1970.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ColumnTimes {
    /// The time of the last change in the column.
    pub changed: i64,
    /// The distinct times.
    times: Vec<i64>,
    /// The index into `times` for each sample; empty if there is only one time.
    which: Vec<u32>,
    /// The number of samples.
    samples: usize,
}

impl ColumnTimes {
    pub fn new(times: &[i64], changed: i64) -> Self {
        let mut distinct = times.to_vec();
        distinct.sort_unstable();
        distinct.dedup();
        let place = |time: &i64| distinct.binary_search(time).ok();
        let which = match distinct.len() {
            0 | 1 => Vec::new(),
            _ => times
                .iter()
                .map(|time| place(time).and_then(|n| u32::try_from(n).ok()).unwrap_or(0))
                .collect(),
        };
        Self {
            changed,
            samples: times.len(),
            times: distinct,
            which,
        }
    }

    /// Returns the time of a sample.
    pub fn get(&self, at: usize) -> i64 {
        let which = self.which.get(at).copied().unwrap_or(0);
        self.times
            .get(which as usize)
            .copied()
            .unwrap_or(self.changed)
    }

    /// Returns true if these can be the times of a column.
    fn fit(&self, column: &Column) -> bool {
        let which = self.which.is_empty() || self.which.len() == self.samples;
        self.samples == column.len() && which
    }
}

/// The times of all columns of a commit, by name.
pub(super) type Times = BTreeMap<Vec<u8>, Arc<ColumnTimes>>;

/// The known times of a repository.
pub(super) struct TimeCache {
    kept: Mutex<LruCache<String, Arc<Times>>>,
    /// The directory of the files.
    folder: Option<PathBuf>,
}

impl TimeCache {
    /// Makes the cache of a repository; `repository` is the directory of the tables.
    pub(super) fn new(repository: &Path) -> Self {
        let absolute = |name| {
            let path = std::env::var_os(name).map(PathBuf::from);
            path.filter(|path| path.is_absolute())
        };
        let cache = absolute("XDG_CACHE_HOME").or_else(|| Some(absolute("HOME")?.join(".cache")));
        // A remote repository is identified by its address.
        let address = || Address::parse(repository).map(|_| repository.to_owned());
        let real = repository.canonicalize().ok().or_else(address);
        let folder = cache.zip(real).map(|(cache, real)| {
            use std::os::unix::ffi::OsStrExt;
            let name = format!("{:032x}", xxh3_128(real.as_os_str().as_bytes()));
            cache.join("npyfs").join("hangar-times").join(name)
        });
        Self {
            kept: Mutex::new(LruCache::new(KEPT)),
            folder,
        }
    }

    /// Returns the path for a commit; the digest becomes a file name, so it must be a digest.
    fn path(&self, commit: &str) -> Option<PathBuf> {
        let name = digest::is_commit(commit).then(|| &commit[2..])?;
        Some(self.folder.as_ref()?.join(name))
    }

    fn load(&self, commit: &str) -> Option<Times> {
        let path = self.path(commit)?;
        let len = std::fs::metadata(&path).ok()?.len();
        let file = (len <= LARGEST as u64).then(|| std::fs::read(path).ok())??;
        unpack(&file)
    }

    /// Returns true if the times of a commit may be known without its history.
    pub(super) fn remembers(&self, digest: &str) -> bool {
        let kept = self.kept.lock();
        kept.contains(digest) || self.path(digest).is_some_and(|path| path.is_file())
    }

    /// Returns the times of a commit, if they are known.
    pub(super) fn known(&self, commit: &Commit) -> Option<Arc<Times>> {
        let mut kept = self.kept.lock();
        if let Some(times) = kept.get(&commit.digest) {
            return Some(times.clone());
        }
        let times = Arc::new(self.load(&commit.digest)?);
        let fit = times.len() == commit.columns.len()
            && commit
                .columns
                .iter()
                .all(|(name, column)| times.get(name).is_some_and(|t| t.fit(column)));
        fit.then(|| {
            kept.put(commit.digest.clone(), times.clone());
            times
        })
    }

    /// Keeps the times of a commit in memory.
    pub(super) fn keep(&self, digest: &str, times: &Arc<Times>) {
        let mut kept = self.kept.lock();
        kept.put(digest.to_owned(), times.clone());
    }

    /// Saves times; a failure to write costs only the time of the next mount.
    pub(super) fn save(&self, commit: &str, times: &Times) {
        let Some(path) = self.path(commit) else {
            return;
        };
        let _ = pack(times).and_then(|file| replace(&path, &file).ok());
    }
}

fn replace(path: &Path, bytes: &[u8]) -> std::io::Result<()> {
    let folder = path.parent().unwrap_or(path);
    std::fs::create_dir_all(folder)?;
    let name = path.file_name().unwrap_or_default().to_string_lossy();
    let scratch = folder.join(format!(".{name}.{}", std::process::id()));
    std::fs::write(&scratch, bytes)?;
    std::fs::rename(&scratch, path).inspect_err(|_| {
        let _ = std::fs::remove_file(&scratch);
    })
}

fn pack(times: &Times) -> Option<Vec<u8>> {
    let rows: Vec<(&Vec<u8>, &ColumnTimes)> = times.iter().map(|(k, v)| (k, &**v)).collect();
    let packed = zstd::bulk::compress(&postcard::to_stdvec(&rows).ok()?, 1).ok()?;
    let mut file = MAGIC.to_vec();
    file.extend_from_slice(&xxh3_128(&packed).to_le_bytes());
    file.extend_from_slice(&packed);
    Some(file)
}

fn unpack(file: &[u8]) -> Option<Times> {
    let rest = file.strip_prefix(MAGIC)?;
    let (sum, packed) = rest.split_first_chunk::<16>()?;
    if u128::from_le_bytes(*sum) != xxh3_128(packed) {
        return None;
    }
    let len = zstd::zstd_safe::get_frame_content_size(packed).ok()??;
    let len = usize::try_from(len).ok().filter(|&len| len <= LARGEST)?;
    let plain = zstd::bulk::decompress(packed, len).ok()?;
    let rows: Vec<(Vec<u8>, ColumnTimes)> = postcard::from_bytes(&plain).ok()?;
    Some(rows.into_iter().map(|(k, v)| (k, Arc::new(v))).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_packed_is_unpacked_and_damage_is_noticed() {
        let column = |times: &[i64]| Arc::new(ColumnTimes::new(times, 9));
        let mut times = Times::new();
        times.insert(b"a".to_vec(), column(&[3, 1, 3, 2]));
        times.insert(b"b".to_vec(), column(&[]));
        let file = pack(&times).unwrap();
        assert_eq!(unpack(&file).unwrap(), times);
        assert_eq!(times[&b"a"[..]].get(2), 3);
        assert_eq!(times[&b"b"[..]].get(0), 9);
        for at in 0..file.len() {
            let mut damaged = file.clone();
            damaged[at] ^= 1;
            assert!(unpack(&damaged).is_none(), "{at}");
            assert!(unpack(&file[..at]).is_none(), "{at}");
        }
    }
}
