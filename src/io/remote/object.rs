//! One version of one object.

mod kept;
mod key;

use std::collections::HashMap;
use std::ops::Range;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::{Instant, SystemTime};

use serde_json::{Value as Json, json};
use tokio::sync::Semaphore;

use super::address::Address;
use super::blocks::{BLOCK, bytes_of, requests, touched};
use super::error::{Cause, RemoteError};
use super::flight::Flight;
use super::origin::{Got, Origin, Version};
use super::runtime;
use crate::options::RemoteSettings;
use kept::KeptBytes;

/// Absent blocks that lie no further apart are asked for together: 64 KiB cost less than a request.
const GAP: u64 = (64 << 10) / BLOCK;

/// Blocks of one request at the most.
const PART: u64 = (8 << 20) / BLOCK;

/// Requests that are under way at the same time; more wait for their turn.
static AT_ONCE: Semaphore = Semaphore::const_new(64);

/// Bytes of the first request, which tells the size and the version, too.
const FIRST: u64 = 64 << 10;

/// Numbers of what was asked of a server.
#[derive(Debug, Default)]
pub struct Traffic {
    /// Requests.
    pub requests: AtomicU64,
    /// Bytes that arrived.
    pub bytes: AtomicU64,
}

/// One version of one object. All methods may be called from any thread.
pub struct RemoteObject {
    address: Address,
    origin: Origin,
    version: Version,
    settings: Arc<RemoteSettings>,
    kept: KeptBytes,
    /// Requests under way, by block.
    flights: Mutex<HashMap<u64, Arc<Flight>>>,
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
        let mut notes = Vec::new();
        let kept = KeptBytes::open(address, &version, settings, &mut notes)?;
        if version.etag.is_none() {
            notes.push("the server names no versions: they are told by time and size".to_owned());
        }
        let object = Arc::new(Self {
            address: address.clone(),
            origin,
            version,
            settings: settings.clone(),
            kept,
            flights: Mutex::default(),
            checked: Mutex::new(Instant::now()),
            replaced: AtomicBool::new(false),
            traffic: Traffic::default(),
            notes: Mutex::new(notes),
        });
        object.store(got);
        Ok(object)
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
        key::number(&self.address, &self.version)
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
            if let Some(read) = self.kept.read(buf, offset) {
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
            absent.extend(blocks.filter(|&block| !self.kept.finds(block)));
        }
        if absent.is_empty() {
            return Ok(Vec::new());
        }
        let mut waiting: Vec<Arc<Flight>> = Vec::new();
        let mut flights = lock(&self.flights);
        absent.retain(|block| {
            // It may have arrived since.
            if self.kept.has(*block) {
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
        if let Some(note) = self.kept.add(got.start, &got.bytes) {
            lock(&self.notes).push(note);
        }
    }
}
