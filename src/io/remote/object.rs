//! One version of one object.

use std::collections::{HashMap, VecDeque};
use std::ops::Range;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, RwLock};
use std::time::{Instant, SystemTime};

use serde_json::{Value as Json, json};
use tokio::sync::Semaphore;
use xxhash_rust::xxh3::Xxh3;

use super::address::Address;
use super::blocks::{BLOCK, Blocks, bytes_of, requests, touched};
use super::disk::DiskFile;
use super::error::{Cause, RemoteError};
use super::flight::Flight;
use super::origin::{Got, Origin, Version};
use super::runtime;
use crate::options::RemoteSettings;

/// Absent blocks that lie no further apart are asked for together: 64 KiB cost less than a request.
const GAP: u64 = (64 << 10) / BLOCK;

/// Blocks of one request at the most.
const PART: u64 = (8 << 20) / BLOCK;

/// Requests that are under way at the same time; more wait for their turn.
static AT_ONCE: Semaphore = Semaphore::const_new(64);

/// Bytes of the first request, which tells the size and the version, too.
const FIRST: u64 = 64 << 10;

/// Bytes that are held where there is no room on disk.
const IN_MEMORY: u64 = 64 << 20;

/// Numbers of what was asked of a server.
#[derive(Debug, Default)]
pub struct Traffic {
    /// Requests.
    pub requests: AtomicU64,
    /// Bytes that arrived.
    pub bytes: AtomicU64,
}

/// The blocks that were fetched, and where they are kept.
struct Kept {
    file: DiskFile,
    /// Bytes that may be kept.
    most: u64,
    in_memory: bool,
}

/// One version of one object. All methods may be called from any thread.
pub struct RemoteObject {
    address: Address,
    origin: Origin,
    version: Version,
    settings: Arc<RemoteSettings>,
    /// Read by who reads blocks that are there, written by who takes some away.
    kept: RwLock<Kept>,
    there: Blocks,
    /// Requests under way, by block.
    flights: Mutex<HashMap<u64, Arc<Flight>>>,
    /// What was fetched, in order, and the bytes of it.
    fetched: Mutex<(VecDeque<Range<u64>>, u64)>,
    /// The time at which it was last found to be the newest version.
    checked: Mutex<Instant>,
    replaced: AtomicBool,
    traffic: Traffic,
    notes: Mutex<Vec<String>>,
}

impl std::fmt::Debug for RemoteObject {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("RemoteObject")
            .field("address", &self.address)
            .field("version", &self.version)
            .finish_non_exhaustive()
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(|e| e.into_inner())
}

/// Waits for a request on the network's thread, but no longer than allowed.
fn ask<T: Send + 'static>(
    about: &str,
    settings: &RemoteSettings,
    request: impl Future<Output = Result<T, RemoteError>> + Send + 'static,
) -> Result<T, RemoteError> {
    let limit = settings.timeout;
    let outcome = runtime::wait(async move { tokio::time::timeout(limit, request).await });
    match outcome {
        Ok(Ok(outcome)) => outcome.map_err(|e| RemoteError::new(e.cause, about, e.message)),
        Ok(Err(_)) => Err(late(about, settings)),
        Err(e) => Err(RemoteError::new(Cause::Failed, about, e)),
    }
}

fn late(about: &str, settings: &RemoteSettings) -> RemoteError {
    let why = format!("no answer within {} s", settings.timeout.as_secs());
    RemoteError::new(Cause::Late, about, why)
}

impl RemoteObject {
    /// Opens the newest version of an object: asks for its beginning.
    ///
    /// # Errors
    ///
    /// It is not there, not to be read, or the server does not answer in time.
    pub fn open(
        address: &Address,
        settings: &Arc<RemoteSettings>,
    ) -> Result<Arc<Self>, RemoteError> {
        let about = address.to_string();
        let origin = Origin::new(address, settings)?;
        let asked = origin.clone();
        let got = ask(
            &about,
            settings,
            async move { asked.get(0..FIRST, None).await },
        )?;
        let version = got.version.clone();
        let there = Blocks::new(version.size).ok_or_else(|| {
            RemoteError::new(
                Cause::Unsupported,
                &about,
                "larger than can be kept track of",
            )
        })?;
        let mut notes = Vec::new();
        let kept = Self::keep(address, &version, settings, &mut notes)
            .map_err(|e| RemoteError::new(Cause::Failed, &about, e))?;
        if version.etag.is_none() {
            notes.push("the server names no versions: they are told by time and size".to_owned());
        }
        let object = Arc::new(Self {
            address: address.clone(),
            origin,
            version,
            settings: settings.clone(),
            kept: RwLock::new(kept),
            there,
            flights: Mutex::default(),
            fetched: Mutex::default(),
            checked: Mutex::new(Instant::now()),
            replaced: AtomicBool::new(false),
            traffic: Traffic::default(),
            notes: Mutex::new(notes),
        });
        object.store(got);
        Ok(object)
    }

    /// Opens the files that its bytes are kept in: on disk, or in memory if that is wanted or there is no way.
    fn keep(
        address: &Address,
        version: &Version,
        settings: &RemoteSettings,
        notes: &mut Vec<String>,
    ) -> std::io::Result<Kept> {
        if settings.disk_cache > 0
            && let Some(dir) = Self::directory(settings)
        {
            match DiskFile::open(&dir, &Self::key(address, version, settings), version.size) {
                Ok(file) => {
                    return Ok(Kept {
                        file,
                        most: settings.disk_cache,
                        in_memory: false,
                    });
                }
                Err(e) => notes.push(format!("nothing is kept in {}: {e}", dir.display())),
            }
        }
        Ok(Kept {
            file: DiskFile::in_memory(version.size)?,
            most: IN_MEMORY,
            in_memory: true,
        })
    }

    /// Returns the directory in which bytes are kept; `None` for a user without a home.
    fn directory(settings: &RemoteSettings) -> Option<PathBuf> {
        let own = settings.cache_dir.clone();
        let user = || {
            let cache = std::env::var_os("XDG_CACHE_HOME").filter(|dir| !dir.is_empty());
            let home = || Some(PathBuf::from(std::env::var_os("HOME")?).join(".cache"));
            Some(
                cache
                    .map_or_else(home, |dir| Some(dir.into()))?
                    .join("npyfs"),
            )
        };
        Some(own.or_else(user)?.join("objects"))
    }

    /// Returns the name of the version's files: another one for whoever has other credentials.
    fn key(address: &Address, version: &Version, settings: &RemoteSettings) -> String {
        let mut hash = Xxh3::new();
        let mut part = |bytes: &[u8]| {
            hash.update(&(bytes.len() as u64).to_le_bytes());
            hash.update(bytes);
        };
        part(address.to_string().as_bytes());
        part(version.etag.as_deref().unwrap_or_default().as_bytes());
        part(&version.size.to_le_bytes());
        let since = version.modified.duration_since(SystemTime::UNIX_EPOCH);
        part(&since.map_or(0, |since| since.as_nanos()).to_le_bytes());
        for text in [&settings.endpoint, &settings.region, &settings.profile] {
            part(text.as_deref().unwrap_or_default().as_bytes());
        }
        part(&[u8::from(settings.anonymous)]);
        part(address.url().query().unwrap_or_default().as_bytes());
        part(address.url().username().as_bytes());
        part(address.url().password().unwrap_or_default().as_bytes());
        for (name, value) in &settings.headers {
            part(name.as_bytes());
            part(value.as_bytes());
        }
        for name in [
            "AWS_ACCESS_KEY_ID",
            "AWS_PROFILE",
            "AZURE_STORAGE_ACCOUNT_NAME",
            "GOOGLE_APPLICATION_CREDENTIALS",
        ] {
            part(std::env::var(name).unwrap_or_default().as_bytes());
        }
        format!("{:032x}", hash.digest128())
    }

    /// Returns its address.
    pub fn address(&self) -> &Address {
        &self.address
    }

    /// Returns its size in bytes.
    pub fn size(&self) -> u64 {
        self.version.size
    }

    /// Returns the time of its last change.
    pub fn modified(&self) -> SystemTime {
        self.version.modified
    }

    /// Returns a number that no other version of any object has, as far as one can tell.
    pub fn number(&self) -> u64 {
        let mut hash = Xxh3::new();
        hash.update(self.address.to_string().as_bytes());
        hash.update(self.version.etag.as_deref().unwrap_or_default().as_bytes());
        hash.update(&self.version.size.to_le_bytes());
        let since = self.version.modified.duration_since(SystemTime::UNIX_EPOCH);
        hash.update(&since.map_or(0, |since| since.as_nanos()).to_le_bytes());
        hash.digest()
    }

    /// Returns its version, what was asked of its server and the remarks about it, for `status.json`.
    pub fn describe(&self) -> Json {
        json!({
            "version": self.version.etag,
            "bytes": self.version.size,
            "requests": self.traffic.requests.load(Ordering::Relaxed),
            "bytes_fetched": self.traffic.bytes.load(Ordering::Relaxed),
            "notes": self.notes(),
        })
    }

    /// Returns remarks for people.
    pub fn notes(&self) -> Vec<String> {
        lock(&self.notes).clone()
    }

    /// Returns true unless it is known that another version took its place.
    pub fn is_unchanged(&self) -> bool {
        !self.replaced.load(Ordering::Acquire)
    }

    /// Returns true if it is the newest version: asks, unless that was done a moment ago. Without an answer it is.
    pub fn is_current(&self) -> bool {
        if !self.is_unchanged() {
            return false;
        }
        let mut checked = lock(&self.checked);
        if checked.elapsed() < self.settings.check {
            return true;
        }
        *checked = Instant::now();
        drop(checked);
        let origin = self.origin.clone();
        let about = self.address.to_string();
        self.traffic.requests.fetch_add(1, Ordering::Relaxed);
        match ask(&about, &self.settings, async move { origin.head().await }) {
            Ok(version) if version.is(&self.version) => true,
            Ok(_) => {
                self.replaced.store(true, Ordering::Release);
                false
            }
            Err(e) if e.cause == Cause::Missing => {
                self.replaced.store(true, Ordering::Release);
                false
            }
            Err(e) => {
                let mut notes = lock(&self.notes);
                let note = format!("the last known version is shown: {}", e.message);
                if notes.last() != Some(&note) {
                    notes.push(note);
                }
                true
            }
        }
    }

    /// Fills `buf` from `offset`; what is not there is fetched.
    pub fn read(self: &Arc<Self>, buf: &mut [u8], offset: u64) -> Result<(), RemoteError> {
        let range = offset..offset.saturating_add(buf.len() as u64);
        // What was fetched may be taken away before it is read, though hardly again and again.
        for _ in 0..8 {
            self.fetch_over(std::slice::from_ref(&range), GAP)?;
            let kept = self.kept.read().unwrap_or_else(|e| e.into_inner());
            if touched(&range).all(|block| self.there.has(block)) {
                let read = kept.file.read(buf, offset);
                return read.map_err(|e| self.failed(e));
            }
        }
        Err(self.failed("there is no room for what is read"))
    }

    fn failed(&self, why: impl std::fmt::Display) -> RemoteError {
        RemoteError::new(Cause::Failed, &self.address.to_string(), why)
    }

    /// Fetches what is not there of scattered ranges, and waits for it. What lies between them stays away.
    pub fn fetch(self: &Arc<Self>, ranges: &[Range<u64>]) -> Result<(), RemoteError> {
        self.fetch_over(ranges, 0)
    }

    /// Fetches what is not there of some ranges, and what lies in gaps of so many blocks, and waits for it.
    fn fetch_over(self: &Arc<Self>, ranges: &[Range<u64>], gap: u64) -> Result<(), RemoteError> {
        if !self.is_unchanged() {
            let about = self.address.to_string();
            return Err(RemoteError::new(
                Cause::Changed,
                &about,
                "another version is there now",
            ));
        }
        for flight in self.begin(ranges, gap)? {
            flight.wait()?;
        }
        Ok(())
    }

    /// Begins to fetch what is not there of some ranges, for somebody who will ask for it later.
    pub fn prefetch(self: &Arc<Self>, ranges: &[Range<u64>]) {
        // Whoever reads it is told what is wrong.
        let _ = self.begin(ranges, GAP);
    }

    /// Returns the requests under way for what is not there, and sends those that are missing.
    fn begin(
        self: &Arc<Self>,
        ranges: &[Range<u64>],
        gap: u64,
    ) -> Result<Vec<Arc<Flight>>, RemoteError> {
        let mut absent = Vec::new();
        for range in ranges {
            let end = range.end.min(self.version.size);
            let blocks = touched(&(range.start.min(end)..end));
            absent.extend(blocks.filter(|&block| !self.is_there(block)));
        }
        if absent.is_empty() {
            return Ok(Vec::new());
        }
        let mut waiting: Vec<Arc<Flight>> = Vec::new();
        let mut flights = lock(&self.flights);
        absent.retain(|block| {
            // It may have arrived since.
            if self.there.has(*block) {
                return false;
            }
            let Some(flight) = flights.get(block) else {
                return true;
            };
            if !waiting.iter().any(|known| Arc::ptr_eq(known, flight)) {
                waiting.push(flight.clone());
            }
            false
        });
        let mut sent = Vec::new();
        for blocks in requests(absent, gap, PART) {
            let flight = Flight::new();
            for block in blocks.clone() {
                flights.entry(block).or_insert_with(|| flight.clone());
            }
            sent.push((blocks, flight));
        }
        drop(flights);
        for (blocks, flight) in sent {
            waiting.push(flight.clone());
            let object = self.clone();
            let carried = flight.clone();
            let run = blocks.clone();
            let started = runtime::spawn(async move { object.carry(run, &carried).await });
            if let Err(e) = started {
                self.land(&blocks, &flight, Err(self.failed(e)));
            }
        }
        Ok(waiting)
    }

    /// Returns true if a block is there, of this process or of an earlier one.
    fn is_there(&self, block: u64) -> bool {
        if self.there.has(block) {
            return true;
        }
        let kept = self.kept.read().unwrap_or_else(|e| e.into_inner());
        let inherited = kept.file.inherits(block);
        if inherited {
            self.there.add(block);
        }
        inherited
    }

    /// Carries a request out.
    async fn carry(self: Arc<Self>, blocks: Range<u64>, flight: &Arc<Flight>) {
        let range = bytes_of(&blocks, self.version.size);
        let about = self.address.to_string();
        // It is never closed.
        let _turn = AT_ONCE.acquire().await;
        self.traffic.requests.fetch_add(1, Ordering::Relaxed);
        let asked = self.origin.get(range, Some(&self.version));
        let outcome = match tokio::time::timeout(self.settings.timeout, asked).await {
            Ok(Ok(got)) => {
                self.store(got);
                Ok(())
            }
            Ok(Err(e)) => {
                if matches!(e.cause, Cause::Changed | Cause::Missing) {
                    self.replaced.store(true, Ordering::Release);
                }
                Err(RemoteError::new(e.cause, &about, e.message))
            }
            Err(_) => Err(late(&about, &self.settings)),
        };
        self.land(&blocks, flight, outcome);
    }

    fn land(&self, blocks: &Range<u64>, flight: &Arc<Flight>, outcome: Result<(), RemoteError>) {
        let mut flights = lock(&self.flights);
        for block in blocks.clone() {
            if flights
                .get(&block)
                .is_some_and(|known| Arc::ptr_eq(known, flight))
            {
                flights.remove(&block);
            }
        }
        drop(flights);
        flight.land(outcome);
    }

    /// Keeps what arrived.
    fn store(&self, got: Got) {
        self.traffic
            .bytes
            .fetch_add(got.bytes.len() as u64, Ordering::Relaxed);
        let end = got.start.saturating_add(got.bytes.len() as u64);
        // Whole blocks, or up to the end.
        let first = got.start.div_ceil(BLOCK);
        let last = match end >= self.version.size {
            true => end.div_ceil(BLOCK),
            false => end / BLOCK,
        };
        let range = bytes_of(&(first..last), self.version.size);
        let from = usize::try_from(range.start.saturating_sub(got.start)).unwrap_or(usize::MAX);
        let to = usize::try_from(range.end.saturating_sub(got.start)).unwrap_or(0);
        let Some(bytes) = got.bytes.get(from..to) else {
            return;
        };
        self.make_room(bytes.len() as u64);
        let kept = self.kept.read().unwrap_or_else(|e| e.into_inner());
        let mut written = kept.file.write(range.start, bytes);
        drop(kept);
        if let Err(e) = &written
            && self.go_to_memory(e)
        {
            let kept = self.kept.read().unwrap_or_else(|e| e.into_inner());
            written = kept.file.write(range.start, bytes);
        }
        if written.is_err() {
            return;
        }
        for block in first..last {
            self.there.add(block);
        }
        let mut fetched = lock(&self.fetched);
        fetched.0.push_back(first..last);
        fetched.1 = fetched.1.saturating_add(bytes.len() as u64);
    }

    /// Takes away what was fetched first, until there is room for some bytes more.
    fn make_room(&self, more: u64) {
        let mut fetched = lock(&self.fetched);
        let most = self.kept.read().unwrap_or_else(|e| e.into_inner()).most;
        if fetched.1.saturating_add(more) <= most {
            return;
        }
        let kept = self.kept.write().unwrap_or_else(|e| e.into_inner());
        while fetched.1.saturating_add(more) > most {
            let Some(blocks) = fetched.0.pop_front() else {
                break;
            };
            for block in blocks.clone() {
                self.there.remove(block);
            }
            let range = bytes_of(&blocks, self.version.size);
            fetched.1 = fetched.1.saturating_sub(range.end - range.start);
            // Room that is not given back is what is lost by it.
            let _ = kept.file.punch(&blocks);
        }
    }

    /// Goes on without the disk, which is full or broken. False if there is no way.
    fn go_to_memory(&self, why: &std::io::Error) -> bool {
        let mut kept = self.kept.write().unwrap_or_else(|e| e.into_inner());
        if kept.in_memory {
            return false;
        }
        let Ok(file) = DiskFile::in_memory(self.version.size) else {
            return false;
        };
        *kept = Kept {
            file,
            most: IN_MEMORY,
            in_memory: true,
        };
        self.there.clear();
        let mut fetched = lock(&self.fetched);
        *fetched = (VecDeque::new(), 0);
        lock(&self.notes).push(format!("nothing more is kept on disk: {why}"));
        true
    }
}
