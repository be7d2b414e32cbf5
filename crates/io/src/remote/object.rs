//! One version of one object: bytes are read from what is kept of it (`kept`), and fetched where they are absent
//! (`fetching`). The metadata may come with the first request, in a pack (`pack`).

mod fetching;
mod kept;
mod pack;

use std::collections::HashMap;
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock, Weak};
use std::time::SystemTime;

use parking_lot::Mutex;
use serde_json::{Value as Json, json};
use tokio::sync::Semaphore;
use xxhash_rust::xxh3::Xxh3;

use super::address::Address;
use super::disk::{BLOCK, bytes_of, no_blocks, touched};
use super::error::{Cause, RemoteError};
use super::freshness::{Freshness, PATIENCE, Question};
use super::origin::{Fetched, Origin, Version};
use super::runtime::{self, ask};
use crate::blobs::Bits;
pub use fetching::opened;
use fetching::{Failures, Flight, opens};
use kept::KeptBytes;
use npyfs_base::options::RemoteSettings;
pub use pack::PACK_SUFFIX;

/// Absent blocks that are at most this far apart are fetched in one request: 64 KiB cost less than another request.
const GAP: u64 = (64 << 10) / BLOCK;

/// The number of times that a read looks for blocks fetched for other threads before it fetches its own.
const LOOKS: u32 = 8;

/// The number of requests of one object in flight at the same time; further requests wait for a turn.
const AT_ONCE: usize = 64;

/// The size in bytes of the first request, which also determines the size and the version of the object.
const FIRST: u64 = 64 << 10;

/// The largest number of objects that are described.
const MOST_DESCRIBED: usize = 100;

/// The versions of objects that this process has open.
static OPEN: Mutex<Vec<Weak<RemoteObject>>> = Mutex::new(Vec::new());

/// Describes the objects that were opened last, for `status.json`.
pub fn describe_open() -> Vec<Json> {
    let open = OPEN.lock();
    let latest = open.iter().rev().filter_map(Weak::upgrade);
    let latest = latest.take(MOST_DESCRIBED);
    let mut described: Vec<Json> = latest.map(|object| object.describe()).collect();
    described.reverse();
    described
}

/// Counters of the requests to a server.
#[derive(Debug, Default)]
struct Traffic {
    /// The number of requests sent.
    requests: AtomicU64,
    /// The number of bytes received.
    bytes: AtomicU64,
}

/// One version of one object. All methods may be called from any thread.
pub struct RemoteObject {
    address: Address,
    origin: Origin,
    version: Version,
    settings: Arc<RemoteSettings>,
    kept: KeptBytes,
    /// The blocks of metadata that were requested, and their number.
    looked: Bits,
    looked_at: AtomicU64,
    /// Requests in flight, by block.
    flights: Mutex<HashMap<u64, Arc<Flight>>>,
    /// Recent failures.
    failures: Failures,
    /// Limits the requests in flight.
    turns: Semaphore,
    /// The state of the last check of the version.
    freshness: Freshness,
    /// What the server said when it no longer had this version.
    replaced: OnceLock<String>,
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

fn too_large(about: &str) -> RemoteError {
    let why = "larger than can be kept track of";
    RemoteError::new(Cause::Unsupported, about, why)
}

impl RemoteObject {
    /// Opens the newest version of an object and fetches its beginning.
    ///
    /// # Errors
    ///
    /// The object does not exist or is not readable, or the server does not respond in time.
    pub fn open(
        address: &Address,
        settings: &Arc<RemoteSettings>,
    ) -> Result<Arc<Self>, RemoteError> {
        Self::from_origin(address, Origin::new(address, settings)?, settings)
    }

    /// Opens a local file as if it were a remote object.
    ///
    /// # Errors
    ///
    /// The file cannot be opened.
    pub fn open_file(
        path: &Path,
        settings: &Arc<RemoteSettings>,
    ) -> Result<Arc<Self>, RemoteError> {
        let about = path.display().to_string();
        let failed = |e| RemoteError::new(Cause::Failed, &about, e);
        let no_path = || failed(std::io::ErrorKind::InvalidInput.into());
        let address = Address::of_file(path).ok_or_else(no_path)?;
        Self::from_origin(&address, Origin::local(path).map_err(failed)?, settings)
    }

    fn from_origin(
        address: &Address,
        origin: Origin,
        settings: &Arc<RemoteSettings>,
    ) -> Result<Arc<Self>, RemoteError> {
        let about = address.to_string();
        let asked = origin.clone();
        // This goes along with the first request, unless the cache may make it unnecessary.
        let together = settings.packs && !kept::knows(address, settings);
        let (got, pack) = ask(&about, settings, async move {
            let beside = asked.clone();
            let beside = async move { pack::beside(&beside).await };
            let beside = together.then(|| tokio::spawn(beside));
            let got = asked.get(0..FIRST, None).await?;
            let pack = match beside {
                Some(beside) => beside.await.ok().flatten(),
                None => None,
            };
            Ok((got, pack))
        })?;
        let version = got.version.clone();
        let mut notes = Vec::new();
        let kept = KeptBytes::open(address, &version, settings)?;
        let looked = no_blocks(version.size).ok_or_else(|| too_large(&about))?;
        if version.etag.is_none() {
            notes.push("the server names no versions: they are told by time and size".to_owned());
        }
        let object = Arc::new(Self {
            address: address.clone(),
            origin,
            version,
            settings: settings.clone(),
            kept,
            looked,
            looked_at: AtomicU64::new(0),
            flights: Mutex::default(),
            failures: Failures::default(),
            turns: Semaphore::new(AT_ONCE),
            freshness: Freshness::new(),
            replaced: OnceLock::new(),
            traffic: Traffic {
                requests: AtomicU64::new(1 + u64::from(together)),
                ..Traffic::default()
            },
            notes: Mutex::new(notes),
        });
        let known = object.kept.absent(0..1).is_empty();
        object.store(&got, false);
        let pack = match pack {
            None if settings.packs && !together && !known => {
                let origin = object.origin.clone();
                object.traffic.requests.fetch_add(1, Ordering::Relaxed);
                let beside = async move { Ok(pack::beside(&origin).await) };
                ask(&about, settings, beside).unwrap_or_default()
            }
            pack => pack,
        };
        if let Some(pack) = pack {
            object.unpack(pack);
        }
        let mut open = OPEN.lock();
        open.retain(|known| known.strong_count() > 0);
        open.push(Arc::downgrade(&object));
        Ok(object)
    }

    /// Asks the server for the current version of an object.
    ///
    /// # Errors
    ///
    /// The errors of [`RemoteObject::open`].
    pub fn newest(
        address: &Address,
        settings: &Arc<RemoteSettings>,
    ) -> Result<Version, RemoteError> {
        let origin = Origin::new(address, settings)?;
        let asked = async move { origin.head().await };
        ask(&address.to_string(), settings, asked)
    }

    /// Returns the object's address.
    pub fn address(&self) -> &Address {
        &self.address
    }

    /// Returns its version.
    pub fn version(&self) -> &Version {
        &self.version
    }

    /// Returns the object's size in bytes.
    pub fn size(&self) -> u64 {
        self.version.size
    }

    /// Returns the time of the object's last change.
    pub fn modified(&self) -> SystemTime {
        self.version.modified
    }

    /// Returns a number that is unique to this version of this object, as far as can be known.
    pub fn number(&self) -> u64 {
        let mut hash = Xxh3::new();
        hash.update(self.address.to_string().as_bytes());
        hash.update(self.version.etag.as_deref().unwrap_or_default().as_bytes());
        hash.update(&self.version.size.to_le_bytes());
        let since = self.version.modified.duration_since(SystemTime::UNIX_EPOCH);
        hash.update(&since.map_or(0, |since| since.as_nanos()).to_le_bytes());
        hash.digest()
    }

    /// Returns true if the server reports an entity tag or a time of change.
    pub fn is_told_apart(&self) -> bool {
        self.version.etag.is_some() || self.version.modified != SystemTime::UNIX_EPOCH
    }

    /// Describes the version, the requests sent to its server and the notes about it, for `status.json`.
    pub fn describe(&self) -> Json {
        json!({
            "url": self.address.to_string(),
            "version": self.version.etag,
            "bytes": self.version.size,
            "requests": self.traffic.requests.load(Ordering::Relaxed),
            "bytes_fetched": self.traffic.bytes.load(Ordering::Relaxed),
            "notes": self.notes(),
        })
    }

    /// Returns the notes for people.
    pub fn notes(&self) -> Vec<String> {
        let mut notes = self.notes.lock().clone();
        notes.extend(self.kept.note());
        notes.extend(self.lost());
        notes
    }

    /// Returns false if another version is known to have replaced this one.
    pub fn is_unchanged(&self) -> bool {
        self.replaced.get().is_none()
    }

    /// Returns true if this is the newest version; asks the server unless that was done recently. Without a response,
    /// returns true.
    pub fn is_current(self: &Arc<Self>) -> bool {
        if !self.is_unchanged() {
            return false;
        }
        let origin = self.origin.clone();
        let limit = PATIENCE.min(self.settings.timeout);
        let asked = async move { tokio::time::timeout(limit, origin.head()).await };
        match self.freshness.question(self.settings.check) {
            Question::None => return true,
            Question::Wait => {
                self.traffic.requests.fetch_add(1, Ordering::Relaxed);
                match runtime::wait(asked) {
                    Ok(outcome) => {
                        self.judge(outcome.unwrap_or_else(|_| Err(RemoteError::late(limit))))
                    }
                    Err(e) => self.judge(Err(self.failed(e))),
                }
            }
            Question::Behind => {
                self.traffic.requests.fetch_add(1, Ordering::Relaxed);
                let object = self.clone();
                let started = runtime::spawn(async move {
                    let outcome = asked.await;
                    object.judge(outcome.unwrap_or_else(|_| Err(RemoteError::late(limit))));
                });
                if let Err(e) = started {
                    self.judge(Err(self.failed(e)));
                }
            }
        }
        self.is_unchanged()
    }

    /// Records the newest version.
    fn judge(&self, outcome: Result<Version, RemoteError>) {
        let lost = match outcome {
            Ok(version) => {
                if !version.is(&self.version) {
                    self.replaced("another version is there now");
                }
                None
            }
            Err(e) if e.cause == Cause::Missing => {
                self.replaced(&e.message);
                None
            }
            Err(e) => Some(e.message),
        };
        self.freshness.answered(lost);
    }

    /// Returns the reason why the last check got no response, if so.
    pub fn lost(&self) -> Option<String> {
        let why = self.freshness.lost()?;
        Some(format!("the last known version is shown: {why}"))
    }

    /// Fills `buf` from `offset`; fetches the blocks that are absent.
    pub fn read(self: &Arc<Self>, buf: &mut [u8], offset: u64) -> Result<(), RemoteError> {
        self.stands()?;
        let whole = offset..offset.saturating_add(buf.len() as u64);
        let opens = opens();
        for look in 1..=LOOKS {
            let mut absent = match self.kept.read(buf, offset) {
                Ok(absent) => absent,
                Err(e) => {
                    self.kept.give_up(&e);
                    touched(&whole).collect()
                }
            };
            if absent.is_empty() {
                return Ok(());
            }
            let alone = look == LOOKS;
            for flight in self.begin(absent.clone(), GAP, false, alone) {
                // The bytes come from the response, since the cache may have no room for them.
                if let Some(got) = self.arrived(&flight, opens, look)? {
                    absent.retain(|&block| !self.take(&got, block, buf, offset));
                }
            }
            if absent.is_empty() {
                return Ok(());
            }
        }
        Err(self.failed("what was asked for did not arrive"))
    }

    /// Copies the requested part of a block; false if the response does not contain the block.
    fn take(&self, got: &Fetched, block: u64, buf: &mut [u8], offset: u64) -> bool {
        let range = bytes_of(&(block..block + 1), self.version.size);
        let start = range.start.max(offset);
        let end = range.end.min(offset.saturating_add(buf.len() as u64));
        let part = |from: u64| {
            let at = |place: u64| usize::try_from(place.checked_sub(from)?).ok();
            Some(at(start)?..at(end)?)
        };
        let arrived = part(got.start).and_then(|part| got.bytes.get(part));
        let wanted = part(offset).and_then(|part| buf.get_mut(part));
        match (arrived, wanted) {
            (Some(arrived), Some(wanted)) => {
                wanted.copy_from_slice(arrived);
                true
            }
            _ => false,
        }
    }

    /// Fails if the server is known to have this version no longer.
    fn stands(&self) -> Result<(), RemoteError> {
        let about = || self.address.to_string();
        self.replaced.get().map_or(Ok(()), |why| {
            Err(RemoteError::new(Cause::Changed, &about(), why))
        })
    }

    /// Records that the server has this version no longer. The first reason is the one that is shown.
    fn replaced(&self, why: &str) {
        self.replaced.get_or_init(|| why.to_owned());
    }

    fn note(&self, note: Option<String>) {
        self.notes.lock().extend(note);
    }

    fn failed(&self, why: impl std::fmt::Display) -> RemoteError {
        RemoteError::new(Cause::Failed, &self.address.to_string(), why)
    }
}
