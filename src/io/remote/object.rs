//! One version of one object.

mod current;
mod fetching;
mod kept;
mod key;
mod packs;
mod place;

use std::collections::HashMap;
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::SystemTime;

use serde_json::{Value as Json, json};
use tokio::sync::Semaphore;

use super::address::Address;
use super::blocks::{BLOCK, Blocks, bytes_of, touched};
use super::error::{Cause, RemoteError};
use super::flight::Flight;
use super::freshness::Freshness;
use super::open_objects;
use super::origin::{Got, Origin, Version};
use super::runtime;
use crate::options::RemoteSettings;
use kept::KeptBytes;

/// Absent blocks that lie no further apart are asked for together: 64 KiB cost less than a request.
const GAP: u64 = (64 << 10) / BLOCK;

/// Times that a read looks for what was fetched for others before it fetches what it wants itself.
const LOOKS: u32 = 8;

/// Requests of one object that are under way at the same time; more wait for their turn.
const AT_ONCE: usize = 64;

/// Bytes of the first request, which tells the size and the version, too.
const FIRST: u64 = 64 << 10;

/// Numbers of what was asked of a server.
#[derive(Debug, Default)]
struct Traffic {
    /// Requests.
    requests: AtomicU64,
    /// Bytes that arrived.
    bytes: AtomicU64,
}

/// One version of one object. All methods may be called from any thread.
pub struct RemoteObject {
    address: Address,
    origin: Origin,
    version: Version,
    settings: Arc<RemoteSettings>,
    kept: KeptBytes,
    /// The blocks of metadata that somebody asked for, and their number.
    looked: Blocks,
    looked_at: AtomicU64,
    /// Requests under way, by block.
    flights: Mutex<HashMap<u64, Arc<Flight>>>,
    /// What requests wait for that may not be sent yet.
    turns: Semaphore,
    /// How long it is known to be the newest version.
    freshness: Freshness,
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
pub(super) fn ask<T: Send + 'static>(
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

fn too_large(about: &str) -> RemoteError {
    let why = "larger than can be kept track of";
    RemoteError::new(Cause::Unsupported, about, why)
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
        Self::from_origin(address, Origin::new(address, settings)?, settings)
    }

    /// Opens a file of this machine as if it lay elsewhere.
    ///
    /// # Errors
    ///
    /// It cannot be opened.
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
        // Together with the first request, unless what is kept may do without.
        let together = settings.packs && !place::knows(address, settings);
        let (got, pack) = ask(&about, settings, async move {
            let beside = asked.clone();
            let beside = async move { packs::beside(&beside).await };
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
        let looked = Blocks::new(version.size).ok_or_else(|| too_large(&about))?;
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
            turns: Semaphore::new(AT_ONCE),
            freshness: Freshness::new(),
            replaced: AtomicBool::new(false),
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
                let beside = async move { Ok(packs::beside(&origin).await) };
                ask(&about, settings, beside).unwrap_or_default()
            }
            pack => pack,
        };
        if let Some(pack) = pack {
            object.unpack(pack);
        }
        open_objects::add(&object);
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

    /// Returns true if its server names a version or a time.
    pub fn is_told_apart(&self) -> bool {
        self.version.etag.is_some() || self.version.modified != SystemTime::UNIX_EPOCH
    }

    /// Returns its version, what was asked of its server and the remarks about it, for `status.json`.
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

    /// Returns remarks for people.
    pub fn notes(&self) -> Vec<String> {
        let mut notes = lock(&self.notes).clone();
        notes.extend(self.kept.note());
        notes.extend(self.lost());
        notes
    }

    /// Returns true unless it is known that another version took its place.
    pub fn is_unchanged(&self) -> bool {
        !self.replaced.load(Ordering::Acquire)
    }

    /// Fills `buf` from `offset`; what is not there is fetched.
    pub fn read(self: &Arc<Self>, buf: &mut [u8], offset: u64) -> Result<(), RemoteError> {
        self.stands()?;
        let whole = offset..offset.saturating_add(buf.len() as u64);
        for look in 0..LOOKS {
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
            let alone = look + 1 == LOOKS;
            for flight in self.begin(absent.clone(), GAP, false, alone) {
                // From what arrived, as there may be no room to keep it.
                let got = flight.wait()?;
                absent.retain(|&block| !self.take(&got, block, buf, offset));
            }
            if absent.is_empty() {
                return Ok(());
            }
        }
        Err(self.failed("what was asked for did not arrive"))
    }

    /// Copies what is wanted of a block; false if it is not among what arrived.
    fn take(&self, got: &Got, block: u64, buf: &mut [u8], offset: u64) -> bool {
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

    /// Fails if another version is known to have taken its place.
    fn stands(&self) -> Result<(), RemoteError> {
        match self.is_unchanged() {
            true => Ok(()),
            false => {
                let about = self.address.to_string();
                let why = "another version is there now";
                Err(RemoteError::new(Cause::Changed, &about, why))
            }
        }
    }

    fn note(&self, note: Option<String>) {
        lock(&self.notes).extend(note);
    }

    fn failed(&self, why: impl std::fmt::Display) -> RemoteError {
        RemoteError::new(Cause::Failed, &self.address.to_string(), why)
    }
}
