//! The fetched bytes of a version, on disk or in memory.
//!
//! Stored blocks can disappear at any time, as other processes free space, too. A read returns the blocks that are
//! absent, and its caller fetches them.

use std::io;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::time::{Duration, Instant, SystemTime};

use parking_lot::{Mutex, RwLock};
use rustix::fs::OFlags;
use serde_json::json;
use xxhash_rust::xxh3::Xxh3;

use super::super::address::{Address, reveal};
use super::super::cache_dir::{CacheDir, cache_path};
use super::super::disk::{
    BLOCK, DiskFile, EXTENT_BYTES, Extent, bytes_of, extents_of, no_blocks, settled, touched,
};
use super::super::error::{Cause, RemoteError};
use super::super::origin::Version;
use super::too_large;
use crate::blobs::Bits;
use npyfs_base::options::RemoteSettings;

/// The form of the files of versions, which is part of their names: files of other forms are left alone.
const FORM: u8 = 1;

/// Milliseconds after which the file is marked as in use again.
const NOTED: u32 = 10_000;

/// The shortest and the longest time after which a failed disk is tried again.
const FIRST_PAUSE: Duration = Duration::from_secs(5);
const LONGEST_PAUSE: Duration = Duration::from_secs(60);

/// Bytes that must be free on a failed disk before it is tried again.
const LEAST_ROOM: u64 = 16 << 20;

/// Bytes that are held where there is no room on disk.
const IN_MEMORY: u64 = 64 << 20;

/// The place where blocks are kept.
struct Place {
    file: DiskFile,
    /// The directory of the file, and its key there; `None`: it is in memory.
    dir: Option<(Arc<CacheDir>, String)>,
    /// Bytes that may be kept: of all versions on disk, or of this one in memory.
    most: u64,
    /// The generation of the file under which blocks were checked.
    generation: u64,
}

impl Place {
    /// A place in memory, with nothing in it.
    fn in_memory(size: u64) -> io::Result<Self> {
        let file = DiskFile::in_memory(size)?;
        // Never one that the blocks of another place were checked under.
        file.settle()?;
        Ok(Self {
            generation: file.generation()?,
            file,
            dir: None,
            most: IN_MEMORY,
        })
    }

    /// Returns the generation of the file as it is now.
    fn now(&self) -> io::Result<u64> {
        match self.dir {
            Some(_) => self.file.generation(),
            None => Ok(self.generation),
        }
    }

    /// Returns true if blocks that were checked under the present generation need not be checked once more. On a disk
    /// that other hosts write to they are checked each time: a change is seen late.
    fn is_trusted(&self, generation: u64) -> bool {
        let wary = self
            .dir
            .as_ref()
            .is_some_and(|(dir, _)| dir.blobs.dir.is_shared());
        generation == self.generation && settled(generation) && !wary
    }

    /// Opens the file of a version on disk; `None` if that is not wanted.
    fn on_disk(
        address: &Address,
        version: &Version,
        settings: &RemoteSettings,
    ) -> Result<Option<Self>, String> {
        if settings.disk_cache == 0 {
            return Ok(None);
        }
        let Some(path) = cache_path(settings) else {
            return Ok(None);
        };
        let open = || {
            let dir = CacheDir::open(&path)?;
            let key = key_of(address, version, settings);
            let about = json!({
                "url": address.to_string(),
                "version": version.etag,
                "size": version.size,
            });
            let file = DiskFile::new(
                dir.blobs.hold(&key, OFlags::CREATE)?,
                version.size,
                &about.to_string(),
            )?;
            // The process that was taking bytes away is gone if the lock can be had.
            if !settled(file.generation()?)
                && let Some(_turn) = dir.blobs.dir.turn()
            {
                file.settle()?;
            }
            file.set_modified(SystemTime::now());
            Ok(Self {
                generation: file.generation()?,
                file,
                dir: Some((dir, key)),
                most: settings.disk_cache,
            })
        };
        let place: io::Result<Self> = open();
        let failed = |e| format!("nothing is kept in {}: {e}", path.display());
        place.map(Some).map_err(failed)
    }

    /// Returns the bytes that are free where it is.
    fn room(&self) -> u64 {
        self.dir.as_ref().map_or(0, |(dir, _)| dir.blobs.dir.room())
    }
}

/// Returns true if something of an object, of whatever version, is kept on disk.
pub(super) fn knows(address: &Address, settings: &RemoteSettings) -> bool {
    let path = cache_path(settings).filter(|_| settings.disk_cache > 0);
    let dir = path.and_then(|path| CacheDir::open(&path).ok());
    dir.is_some_and(|dir| dir.has_version_of(&key_of_object(address, settings)))
}

/// A hash of parts. The boundaries between parts count.
struct Parts(Xxh3);

impl Parts {
    fn new() -> Self {
        Self(Xxh3::new())
    }

    fn add(&mut self, bytes: &[u8]) {
        self.0.update(&(bytes.len() as u64).to_le_bytes());
        self.0.update(bytes);
    }
}

/// Returns the prefix of the keys of all versions of an object. It differs between users with different credentials.
fn key_of_object(address: &Address, settings: &RemoteSettings) -> String {
    let mut parts = Parts::new();
    parts.add(&[FORM]);
    parts.add(address.to_string().as_bytes());
    let endpoint = settings.endpoint.as_deref().map(reveal);
    parts.add(endpoint.unwrap_or_default().as_bytes());
    for text in [&settings.region, &settings.profile] {
        parts.add(text.as_deref().unwrap_or_default().as_bytes());
    }
    parts.add(&[u8::from(settings.anonymous)]);
    let url = address.url();
    parts.add(url.query().unwrap_or_default().as_bytes());
    parts.add(url.username().as_bytes());
    parts.add(url.password().unwrap_or_default().as_bytes());
    for (name, value) in &settings.headers {
        parts.add(name.as_bytes());
        parts.add(value.as_bytes());
    }
    for name in [
        "AWS_ACCESS_KEY_ID",
        "AWS_PROFILE",
        "AWS_ROLE_ARN",
        "AWS_CONFIG_FILE",
        "AWS_SHARED_CREDENTIALS_FILE",
        "AWS_ENDPOINT_URL",
        "AWS_ENDPOINT_URL_S3",
        "AZURE_STORAGE_ENDPOINT",
        "AZURE_CLIENT_ID",
        "STORAGE_EMULATOR_HOST",
        "AZURE_STORAGE_ACCOUNT_NAME",
        "GOOGLE_APPLICATION_CREDENTIALS",
    ] {
        parts.add(std::env::var(name).unwrap_or_default().as_bytes());
    }
    format!("{:032x}", parts.0.digest128())
}

/// Returns the key of a version.
fn key_of(address: &Address, version: &Version, settings: &RemoteSettings) -> String {
    let mut parts = Parts::new();
    parts.add(version.etag.as_deref().unwrap_or_default().as_bytes());
    parts.add(&version.size.to_le_bytes());
    let since = version.modified.duration_since(SystemTime::UNIX_EPOCH);
    parts.add(&since.map_or(0, |since| since.as_nanos()).to_le_bytes());
    let object = key_of_object(address, settings);
    format!("{object}-{:032x}", parts.0.digest128())
}

/// The state of the disk: in use, or done without until a time.
struct Disk {
    /// The reason why the disk is bypassed.
    failed: Option<String>,
    /// The time when the disk failed or was last tried.
    at: Instant,
    pause: Duration,
}

/// The blocks of a version that were fetched.
pub(super) struct KeptBytes {
    size: u64,
    /// Locked for reading by reads, for writing when this process frees blocks.
    place: RwLock<Place>,
    /// The blocks that were checked under the place's generation.
    checked: Bits,
    /// The time at which each extent was last used, in milliseconds since the beginning.
    used: Vec<AtomicU32>,
    began: Instant,
    /// The time when the file was last marked as in use.
    noted: AtomicU32,
    /// Bytes that were stored in memory.
    in_memory: AtomicU64,
    /// Locked before `place`.
    disk: Mutex<Disk>,
    /// Opens the file on disk.
    reopen: Box<dyn Fn() -> Result<Option<Place>, String> + Send + Sync>,
}

impl KeptBytes {
    /// Opens the file that stores the bytes: on disk, or in memory if the settings say so or the disk fails.
    pub(super) fn open(
        address: &Address,
        version: &Version,
        settings: &Arc<RemoteSettings>,
    ) -> Result<Self, RemoteError> {
        let about = address.to_string();
        let large = || too_large(&about);
        let checked = no_blocks(version.size).ok_or_else(large)?;
        let extents = usize::try_from(version.size.div_ceil(EXTENT_BYTES)).map_err(|_| large())?;
        let mut used = Vec::new();
        used.try_reserve_exact(extents).map_err(|_| large())?;
        used.resize_with(extents, AtomicU32::default);
        let of = (address.clone(), version.clone(), settings.clone());
        let reopen = move || Place::on_disk(&of.0, &of.1, &of.2);
        let (on_disk, why) = match reopen() {
            Ok(place) => (place, None),
            Err(why) => (None, Some(why)),
        };
        let place = match on_disk {
            Some(place) => place,
            None => Place::in_memory(version.size)
                .map_err(|e| RemoteError::new(Cause::Failed, &about, e))?,
        };
        Ok(Self {
            size: version.size,
            place: RwLock::new(place),
            checked,
            used,
            began: Instant::now(),
            noted: AtomicU32::new(0),
            in_memory: AtomicU64::new(0),
            disk: Mutex::new(Disk {
                failed: why,
                at: Instant::now(),
                pause: FIRST_PAUSE,
            }),
            reopen: Box::new(reopen),
        })
    }

    /// Returns the reason why nothing is stored on disk, if the settings ask for it.
    pub(super) fn note(&self) -> Option<String> {
        self.disk.lock().failed.clone()
    }

    /// Returns true if the block was present at the last check.
    pub(super) fn has(&self, block: u64) -> bool {
        self.checked.has(block)
    }

    /// Fills `buf` from `offset` except for the absent blocks, which it returns.
    pub(super) fn read(&self, buf: &mut [u8], offset: u64) -> io::Result<Vec<u64>> {
        let range = offset..offset.saturating_add(buf.len() as u64);
        let blocks = touched(&range);
        let place = self.place.read();
        self.note_use(&place, &range);
        let before = place.now()?;
        if place.is_trusted(before) && blocks.clone().all(|block| self.checked.has(block)) {
            place.file.read(buf, offset)?;
            if place.now()? == before {
                return Ok(Vec::new());
            }
        }
        let absent = place.file.read_checked(buf, offset)?;
        drop(place);
        self.found(before, blocks, &absent);
        Ok(absent)
    }

    /// Returns the absent blocks, without reading their bytes.
    pub(super) fn absent(&self, blocks: Range<u64>) -> Vec<u64> {
        let place = self.place.read();
        let trusted = place.now().is_ok_and(|now| place.is_trusted(now));
        if trusted && blocks.clone().all(|block| self.checked.has(block)) {
            return Vec::new();
        }
        let absent = place.file.absent(blocks.clone());
        absent.unwrap_or_else(|_| blocks.collect())
    }

    /// Records that all blocks except the absent ones were present under a generation.
    fn found(&self, generation: u64, blocks: Range<u64>, absent: &[u64]) {
        let place = self.place.read();
        let now = place.now();
        if now.as_ref().ok() != Some(&place.generation) {
            drop(place);
            return self.begin_again();
        }
        // Blocks freed from here on change the generation, which the next reader sees.
        if place.is_trusted(generation) {
            let mut absent = absent.iter().peekable();
            for block in blocks {
                if absent.next_if(|&&absent| absent == block).is_none() {
                    self.checked.add(block);
                }
            }
        }
    }

    /// Forgets which blocks are present, because another process has freed some.
    fn begin_again(&self) {
        let mut place = self.place.write();
        self.checked.clear();
        // An odd generation: blocks are checked on each read.
        place.generation = place.file.generation().unwrap_or(1);
    }

    fn milliseconds(&self) -> u32 {
        u32::try_from(self.began.elapsed().as_millis()).unwrap_or(u32::MAX)
    }

    fn note_use(&self, place: &Place, range: &Range<u64>) {
        let now = self.milliseconds();
        for extent in extents_of(range) {
            let used = usize::try_from(extent)
                .ok()
                .and_then(|extent| self.used.get(extent));
            if let Some(used) = used {
                used.store(now, Ordering::Relaxed);
            }
        }
        let noted = self.noted.load(Ordering::Relaxed);
        if place.dir.is_some() && now.saturating_sub(noted) > NOTED {
            self.noted.store(now, Ordering::Relaxed);
            place.file.set_modified(SystemTime::now());
        }
    }

    /// Returns the blocks that the bytes cover completely.
    pub(super) fn whole(&self, start: u64, bytes: &[u8]) -> Range<u64> {
        let end = start.saturating_add(bytes.len() as u64);
        let last = match end >= self.size {
            true => end.div_ceil(BLOCK),
            false => end / BLOCK,
        };
        let first = start.div_ceil(BLOCK);
        first..last.max(first)
    }

    /// Stores the complete blocks of the bytes that begin at `start`, if there is room.
    pub(super) fn add(&self, start: u64, bytes: &[u8], metadata: bool) {
        let blocks = self.whole(start, bytes);
        let range = bytes_of(&blocks, self.size);
        let from = usize::try_from(range.start.saturating_sub(start)).unwrap_or(usize::MAX);
        let to = usize::try_from(range.end.saturating_sub(start)).unwrap_or(0);
        let Some(bytes) = bytes.get(from..to).filter(|bytes| !bytes.is_empty()) else {
            return;
        };
        self.try_again();
        if !self.make_room(bytes.len() as u64) {
            return;
        }
        let write = || {
            let place = self.place.read();
            self.note_use(&place, &range);
            let before = place.now()?;
            place.file.write(range.start, bytes, metadata)?;
            drop(place);
            self.found(before, blocks.clone(), &[]);
            Ok(())
        };
        if write().is_err_and(|e| self.give_up(&e)) {
            // Blocks that do not fit into memory are fetched again.
            let _ = write();
        }
    }

    /// Marks blocks as metadata, which is freed last.
    pub(super) fn mark(&self, blocks: impl Iterator<Item = u64>) {
        let place = self.place.read();
        for block in blocks {
            // An unmarked block is only freed sooner.
            let _ = place.file.mark(block);
        }
    }

    /// Makes room for additional bytes. False if there is none.
    fn make_room(&self, more: u64) -> bool {
        let place = self.place.read();
        let most = place.most;
        if more > most / 2 {
            return false;
        }
        let Some((dir, key)) = &place.dir else {
            drop(place);
            let kept = self.in_memory.fetch_add(more, Ordering::Relaxed) + more;
            return kept <= most || self.free(kept - most + most / 8, true) > 0;
        };
        let (dir, key) = (dir.clone(), key.clone());
        drop(place);
        if !dir.keeps(more, most) {
            return true;
        }
        loop {
            let mut is_made = false;
            // Metadata of other versions is worth more than data of this one, but not all of the room.
            for spared in [most / 2, 0] {
                is_made = match dir.make_room(more, most, &key, spared) {
                    // Another thread looks again afterwards; another process, with its next bytes.
                    Ok(None) => return !dir.is_overfull(most),
                    Ok(Some(excess)) => excess == 0 || self.free(excess, spared == 0) >= excess,
                    Err(_) => false,
                };
                if is_made {
                    break;
                }
            }
            if !is_made || !dir.is_due(more, most) {
                return is_made;
            }
        }
    }

    /// Frees the least recently used extents, their metadata only with `all`, and returns the bytes freed.
    fn free(&self, excess: u64, all: bool) -> u64 {
        let place = self.place.read();
        let Ok(mut extents) = place.file.extents() else {
            return 0;
        };
        let dir = place.dir.as_ref().map(|(dir, _)| dir.clone());
        drop(place);
        extents.sort_by_key(|extent| {
            let used = usize::try_from(extent.number).ok();
            let used = used.and_then(|number| self.used.get(number));
            used.map_or(0, |used| used.load(Ordering::Relaxed))
        });
        let free = || {
            let data = self.punch(&extents, excess, false);
            data + match all && data < excess {
                true => self.punch(&extents, excess - data, true),
                false => 0,
            }
        };
        match dir {
            // Another process that has the turn makes room.
            Some(dir) => dir.blobs.dir.turn().map_or(0, |_turn| free()),
            None => {
                let freed = free();
                let less = |kept: u64| Some(kept.saturating_sub(freed));
                // Each new value of the generation differs from all earlier ones.
                let _ = self
                    .in_memory
                    .fetch_update(Ordering::Relaxed, Ordering::Relaxed, less);
                freed
            }
        }
    }

    /// Frees extents from the first one on until `excess` bytes are free.
    fn punch(&self, extents: &[Extent], excess: u64, all: bool) -> u64 {
        let mut freed = 0_u64;
        let mut chosen = Vec::new();
        for extent in extents {
            if freed >= excess {
                break;
            }
            let bytes = if all { extent.metadata } else { extent.data };
            if bytes > 0 {
                freed = freed.saturating_add(bytes);
                chosen.push(extent.number);
            }
        }
        if chosen.is_empty() {
            return 0;
        }
        let mut place = self.place.write();
        let punched = place.file.punch(chosen.iter().copied(), all);
        self.checked.clear();
        place.generation = place.file.generation().unwrap_or(1);
        if punched.is_ok() { freed } else { 0 }
    }

    /// Bypasses a full or broken disk for a while. False if memory cannot replace it.
    pub(super) fn give_up(&self, why: &io::Error) -> bool {
        let mut disk = self.disk.lock();
        let mut place = self.place.write();
        let in_memory = place.dir.as_ref().map(|_| Place::in_memory(self.size));
        let Some(Ok(in_memory)) = in_memory else {
            return false;
        };
        *place = in_memory;
        self.checked.clear();
        self.in_memory.store(0, Ordering::Relaxed);
        disk.pause = match disk.at.elapsed() < LONGEST_PAUSE {
            true => (disk.pause * 2).min(LONGEST_PAUSE),
            false => FIRST_PAUSE,
        };
        disk.at = Instant::now();
        disk.failed = Some(format!("nothing more is kept on disk: {why}"));
        true
    }

    /// Returns to the disk with the bytes in memory, if the failure was some time ago and the disk has room again.
    fn try_again(&self) {
        let mut disk = self.disk.lock();
        if disk.failed.is_none() || disk.at.elapsed() < disk.pause {
            return;
        }
        disk.at = Instant::now();
        disk.pause = (disk.pause * 2).min(LONGEST_PAUSE);
        let Ok(Some(on_disk)) = (self.reopen)() else {
            return;
        };
        let held = self.in_memory.load(Ordering::Relaxed);
        if on_disk.room() < held.saturating_mul(2).max(LEAST_ROOM) {
            return;
        }
        let mut place = self.place.write();
        if place.dir.is_some() || place.file.copy_to(&on_disk.file).is_err() {
            return;
        }
        *place = on_disk;
        self.checked.clear();
        disk.failed = None;
    }
}

impl Drop for KeptBytes {
    fn drop(&mut self) {
        let place = self.place.read();
        if place.dir.is_some() {
            place.file.set_modified(SystemTime::now());
        }
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;
    use std::sync::atomic::AtomicBool;

    use super::*;

    const SIZE: u64 = (4 << 20) + 100;

    fn open(dir: &Path) -> KeptBytes {
        let settings = Arc::new(RemoteSettings {
            cache_dir: Some(dir.to_owned()),
            ..RemoteSettings::default()
        });
        let address = Address::parse(Path::new("http://host/x.h5"))
            .unwrap()
            .unwrap();
        let version = Version {
            size: SIZE,
            etag: Some("\"tag\"".into()),
            modified: SystemTime::UNIX_EPOCH,
        };
        let kept = KeptBytes::open(&address, &version, &settings).unwrap();
        assert_eq!(kept.note(), None);
        kept
    }

    fn bytes() -> Vec<u8> {
        (0..SIZE).map(|n| (n % 255) as u8 + 1).collect()
    }

    #[test]
    fn what_one_process_takes_away_another_never_reads_as_zeros() {
        let dir = tempfile::tempdir().unwrap();
        let (one, two) = (open(dir.path()), open(dir.path()));
        let bytes = bytes();
        let (over, wrong, right) = (AtomicBool::new(false), AtomicU64::new(0), AtomicU64::new(0));
        std::thread::scope(|scope| {
            for seed in 0..3_u64 {
                let (two, bytes, over, wrong, right) = (&two, &bytes, &over, &wrong, &right);
                scope.spawn(move || {
                    let mut at = seed * 1000;
                    while !over.load(Ordering::Relaxed) {
                        at = (at * 31 + 77_777) % (SIZE - 100_000);
                        let mut buf = vec![0; 100_000];
                        let absent = two.read(&mut buf, at).unwrap();
                        for (place, byte) in (at..).zip(&buf) {
                            if !absent.contains(&(place / BLOCK)) {
                                let expected = bytes[place as usize];
                                let count = if *byte == expected { right } else { wrong };
                                count.fetch_add(1, Ordering::Relaxed);
                            }
                        }
                    }
                });
            }
            for round in 0..60 {
                one.add(0, &bytes[..2 << 20], round % 2 == 0);
                two.add(2 << 20, &bytes[2 << 20..], false);
                one.free(1 << 20, true);
                two.free(SIZE, round % 3 == 0);
            }
            over.store(true, Ordering::Relaxed);
        });
        assert_eq!(wrong.into_inner(), 0);
        assert!(right.into_inner() > 0);
    }

    #[test]
    fn what_is_kept_is_there_for_the_next_and_what_is_given_back_is_not() {
        let dir = tempfile::tempdir().unwrap();
        let bytes = bytes();
        open(dir.path()).add(0, &bytes, false);
        let kept = open(dir.path());
        let mut buf = vec![0; 1000];
        assert!(kept.read(&mut buf, SIZE - 1000).unwrap().is_empty());
        assert_eq!(buf, bytes[bytes.len() - 1000..]);
        kept.mark([0, 1].into_iter());
        assert!(kept.free(SIZE, false) > 0);
        assert!(kept.absent(0..2).is_empty());
        assert_eq!(kept.absent(2..5), [2, 3, 4]);
        assert!(!kept.has(100));
        assert!(kept.give_up(&io::ErrorKind::StorageFull.into()));
        assert!(kept.note().is_some());
        assert_eq!(kept.read(&mut buf, 0).unwrap(), [0]);
        kept.add(0, &bytes[..BLOCK as usize + 1], false);
        assert_eq!(kept.absent(0..2), [1]);
    }

    #[test]
    fn a_disk_that_failed_is_used_again_after_a_while() {
        let dir = tempfile::tempdir().unwrap();
        let bytes = bytes();
        let kept = open(dir.path());
        assert!(kept.give_up(&io::ErrorKind::StorageFull.into()));
        assert!(!kept.give_up(&io::ErrorKind::StorageFull.into()));
        kept.add(0, &bytes[..BLOCK as usize], true);
        assert!(kept.place.read().dir.is_none());
        kept.disk.lock().at -= LONGEST_PAUSE;
        kept.add(BLOCK, &bytes[BLOCK as usize..2 * BLOCK as usize], false);
        assert!(kept.place.read().dir.is_some());
        assert_eq!(kept.note(), None);
        // The bytes that were in memory are visible to other processes, too.
        let other = open(dir.path());
        assert_eq!(other.absent(0..4), [2, 3]);
        let mut buf = vec![0; 2 * BLOCK as usize];
        assert!(other.read(&mut buf, 0).unwrap().is_empty());
        assert_eq!(buf, bytes[..buf.len()]);
    }
}
