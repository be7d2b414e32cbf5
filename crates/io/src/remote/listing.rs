//! The names directly below a prefix of a bucket, and how the objects with these names begin.
//!
//! A listing is refreshed after a while. A look at the beginning of an object is a small request of its own, and its
//! bytes are not kept: to open the object would fetch and keep more than a listing needs, and hold a file of the cache.

use std::cmp::Ordering;
use std::collections::{BTreeMap, BTreeSet};
use std::hash::{Hash, Hasher};
use std::ops::Bound;
use std::sync::Arc;
use std::time::{SystemTime, UNIX_EPOCH};

use futures_util::future::join_all;
use parking_lot::Mutex;
use tokio::sync::Semaphore;
use tokio::time::{Instant, timeout_at};

use super::address::Address;
use super::error::{Cause, RemoteError};
use super::freshness::{Freshness, PATIENCE, Question};
use super::origin::{Fetched, Origin, Version};
use super::runtime::{ask, wait};
use crate::file::{Ownership, SIGNATURE, signature_places};
use npyfs_base::options::RemoteSettings;
use npyfs_base::thread;

/// The most names that one prefix may have.
const MOST: usize = 1 << 20;

/// Bytes of the first request of a look, of which a prefix of many objects costs many. They reach behind the user
/// blocks that are in use: MATLAB's has 512 bytes.
const HEAD: u64 = 1 << 10;

/// The number of looks in flight at the same time.
const AT_ONCE: usize = 32;

/// The names below a prefix.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Entries {
    objects: BTreeMap<String, Version>,
    prefixes: BTreeSet<String>,
    left_out: Vec<(String, String)>,
}

impl Entries {
    /// Returns true if there are no names.
    pub fn is_empty(&self) -> bool {
        self.objects.is_empty() && self.prefixes.is_empty() && self.left_out.is_empty()
    }

    /// Returns true if an object has this name.
    pub fn has_object(&self, name: &str) -> bool {
        self.objects.contains_key(name)
    }

    /// Returns true if a prefix has this name.
    pub fn has_prefix(&self, name: &str) -> bool {
        self.prefixes.contains(name)
    }

    /// Returns the names of objects, in order.
    pub fn objects(&self) -> impl Iterator<Item = &str> {
        self.objects.keys().map(String::as_str)
    }

    /// Returns the names of objects that begin with `with`, in order.
    pub fn beginning<'a>(&'a self, with: &'a str) -> impl Iterator<Item = &'a str> {
        let from = (Bound::Included(with), Bound::Unbounded);
        let from = self.objects.range::<str, _>(from);
        let names = from.map(|(name, _)| name.as_str());
        names.take_while(move |name| name.starts_with(with))
    }

    /// Returns the names of prefixes, in order.
    pub fn prefixes(&self) -> impl Iterator<Item = &str> {
        self.prefixes.iter().map(String::as_str)
    }

    /// Returns the names that cannot be file names, with the reasons.
    pub fn left_out(&self) -> &[(String, String)] {
        &self.left_out
    }

    /// Returns the version of an object.
    pub fn version(&self, name: &str) -> Option<&Version> {
        self.objects.get(name)
    }

    /// Returns the time of the last change of an object.
    pub fn modified(&self, name: &str) -> Option<SystemTime> {
        Some(self.objects.get(name)?.modified)
    }

    /// Returns the time of the latest change of any object.
    fn newest(&self) -> SystemTime {
        let times = self.objects.values().map(|version| version.modified);
        times.max().unwrap_or(UNIX_EPOCH)
    }
}

/// The known objects and prefixes below a prefix.
struct State {
    /// The last listing.
    newest: Mutex<Option<Arc<Entries>>>,
    /// Held by the thread that waits for a response.
    asking: Mutex<()>,
    /// When the listing was last checked.
    freshness: Freshness,
    notes: Mutex<Vec<String>>,
}

/// A prefix, and what is known of the names below it. Two listings are equal if they have the same prefix.
pub struct Listing {
    address: Address,
    settings: Arc<RemoteSettings>,
    state: Arc<State>,
}

/// How an object begins.
#[derive(Debug)]
pub struct Look {
    /// The version that was looked at.
    pub version: Version,
    /// The first bytes, at most 1 KiB.
    pub head: Vec<u8>,
    /// Whether it has the HDF5 signature.
    pub is_hdf5: bool,
}

impl State {
    fn newest(&self) -> Option<Arc<Entries>> {
        self.newest.lock().clone()
    }

    /// Handles a response and returns the listing. Without a response, returns the previous listing, and records a note
    /// the first time.
    fn judge(&self, answer: Result<Entries, RemoteError>) -> Result<Arc<Entries>, RemoteError> {
        let mut newest = self.newest.lock();
        match (answer, &*newest) {
            (Ok(entries), known) => {
                let same = known.clone().filter(|known| **known == entries);
                let entries = same.unwrap_or_else(|| Arc::new(entries));
                *newest = Some(entries.clone());
                self.freshness.answered(None);
                Ok(entries)
            }
            (Err(e), Some(known)) if matches!(e.cause, Cause::Failed | Cause::Late) => {
                if self.freshness.lost().is_none() {
                    let note = format!("the last known list is shown: {}", e.message);
                    self.notes.lock().push(note);
                }
                self.freshness.answered(Some(e.message));
                Ok(known.clone())
            }
            (Err(e), _) => {
                *newest = None;
                self.freshness.answered(None);
                Err(e)
            }
        }
    }
}

impl Listing {
    /// Makes the listing of a prefix; sends no request yet.
    pub fn new(address: &Address, settings: &Arc<RemoteSettings>) -> Self {
        Self {
            address: address.clone(),
            settings: settings.clone(),
            state: Arc::new(State {
                newest: Mutex::default(),
                asking: Mutex::default(),
                freshness: Freshness::new(),
                notes: Mutex::default(),
            }),
        }
    }

    /// Returns the address of the prefix.
    pub fn address(&self) -> &Address {
        &self.address
    }

    /// Returns a prefix below it.
    pub fn below(&self, name: &str) -> Self {
        Self::new(&self.address.below(name, true), &self.settings)
    }

    /// Returns the listing, and refreshes it unless that was done recently. Without a response, returns the previous
    /// listing.
    ///
    /// # Errors
    ///
    /// The prefix is not readable, or no listing is known and the server does not respond.
    pub fn entries(&self) -> Result<Arc<Entries>, RemoteError> {
        // Other threads wait for the same response.
        let _one = self.state.asking.lock();
        let Some(known) = self.state.newest() else {
            return self.entries_now();
        };
        // When a listing is known, the wait is short.
        let patient = || RemoteSettings {
            timeout: PATIENCE.min(self.settings.timeout),
            ..(*self.settings).clone()
        };
        match self.state.freshness.question(self.settings.check) {
            Question::None => Ok(known),
            Question::Wait => self.state.judge(ask_all(&self.address, &patient())),
            Question::Behind => {
                let (address, settings, state) =
                    (self.address.clone(), patient(), self.state.clone());
                let asking = move || state.judge(ask_all(&address, &settings)).map(drop);
                if let Err(e) = thread::spawn("list", asking) {
                    self.state.freshness.answered(Some(e.to_string()));
                }
                Ok(known)
            }
        }
    }

    /// Returns the current listing: always sends a request.
    ///
    /// # Errors
    ///
    /// The prefix is not readable, or the server does not respond.
    pub fn entries_now(&self) -> Result<Arc<Entries>, RemoteError> {
        let entries = ask_all(&self.address, &self.settings)?;
        self.state.judge(Ok(entries))
    }

    /// Returns notes for people, each once.
    pub fn take_notes(&self) -> Vec<String> {
        std::mem::take(&mut self.state.notes.lock())
    }

    /// Returns the owner and the last change of an object, according to the last listing; without a name, those of the
    /// prefix. Only the reader's own user has access: others may have no credentials.
    pub fn ownership(&self, name: Option<&str>) -> Ownership {
        let known = self.state.newest();
        let entries = known.map_or_else(|| self.entries(), Ok);
        Ownership::elsewhere(entries.map_or(UNIX_EPOCH, |entries| {
            let of = name.map(|name| entries.modified(name).unwrap_or(UNIX_EPOCH));
            of.unwrap_or_else(|| entries.newest())
        }))
    }

    /// Returns the owner and the last change of the prefix, as far as known.
    pub fn known_ownership(&self) -> Ownership {
        let known = self.state.newest();
        Ownership::elsewhere(known.map_or(UNIX_EPOCH, |entries| entries.newest()))
    }

    /// Looks at objects, at many at a time. `None` for an object if a request failed, or had no response within a few
    /// seconds.
    pub fn look_at(&self, names: &[&str]) -> Vec<Option<Look>> {
        let settings = &*self.settings;
        let deadline = Instant::now() + PATIENCE.min(settings.timeout);
        let turns = Arc::new(Semaphore::new(AT_ONCE));
        let looks = names.iter().map(|name| {
            let origin = Origin::new(&self.address.below(name, false), settings);
            let turns = turns.clone();
            async move {
                let looked = async { look(&origin?, &turns).await };
                timeout_at(deadline, looked).await.ok()?.ok()
            }
        });
        let looks: Vec<_> = looks.collect();
        let looked = wait(join_all(looks));
        looked.unwrap_or_else(|_| names.iter().map(|_| None).collect())
    }
}

/// Lists all names below a prefix.
fn ask_all(address: &Address, settings: &RemoteSettings) -> Result<Entries, RemoteError> {
    let about = address.to_string();
    let origin = Origin::new(address, settings)?;
    let (mut entries, mut after) = (Entries::default(), None);
    loop {
        let (origin, prefix) = (origin.clone(), address.key().to_owned());
        let page = async move { origin.list(&prefix, after).await };
        let page = ask(&about, settings, page)?;
        for (key, version) in page.objects {
            if let Some(name) = name_below(address, &key) {
                entries.objects.insert(name, version);
            }
        }
        let prefixes = page.prefixes.iter();
        let prefixes = prefixes.filter_map(|key| name_below(address, key));
        entries.prefixes.extend(prefixes);
        for (key, why) in page.left_out {
            let name = key.strip_prefix(address.key()).unwrap_or(&key);
            entries.left_out.push((name.to_owned(), why));
        }
        let count = entries.objects.len() + entries.prefixes.len() + entries.left_out.len();
        if count > MOST {
            let why = format!("more than {MOST} names: name what lies below");
            return Err(RemoteError::new(Cause::Unsupported, &about, why));
        }
        match page.next {
            None => break,
            next => after = next,
        }
    }
    // A name can be both an object and a prefix. As a directory, the names below it are reachable.
    let both: Vec<_> = entries.objects.keys().cloned().collect();
    for name in both
        .into_iter()
        .filter(|name| entries.prefixes.contains(name))
    {
        entries.objects.remove(&name);
        let why = "an object of the same name as a directory";
        entries.left_out.push((name, why.to_owned()));
    }
    Ok(entries)
}

/// Returns the name that a key has below a prefix.
fn name_below(address: &Address, key: &str) -> Option<String> {
    let name = key.strip_prefix(address.key())?.trim_end_matches('/');
    (!name.is_empty() && !name.contains('/')).then(|| name.to_owned())
}

/// Looks for the signature where [`signature_places`] says. Only an object without one in its first bytes costs more
/// than one request.
async fn look(origin: &Origin, turns: &Semaphore) -> Result<Look, RemoteError> {
    let get = async |range, of| {
        // The semaphore is never closed.
        let _turn = turns.acquire().await;
        origin.get(range, of).await
    };
    let got = get(0..HEAD, None).await?;
    let version = got.version.clone();
    let arrived = got.start.saturating_add(got.bytes.len() as u64);
    let places = signature_places(version.size);
    let (near, far): (Vec<u64>, Vec<u64>) = places.partition(|&at| at + 8 <= arrived);
    let mut is_hdf5 = near.into_iter().any(|at| is_at(&got, at));
    if !is_hdf5 {
        let parts = far.into_iter().map(async |at| {
            let part = get(at..at + 8, Some(&version)).await?;
            Ok::<_, RemoteError>(is_at(&part, at))
        });
        for found in join_all(parts).await {
            is_hdf5 |= found?;
        }
    }
    let head = got.bytes.iter().copied();
    Ok(Look {
        head: head.take(usize::try_from(HEAD).unwrap_or(0)).collect(),
        version,
        is_hdf5,
    })
}

/// Returns true if the HDF5 signature is at an offset of the object.
fn is_at(got: &Fetched, at: u64) -> bool {
    let from = at
        .checked_sub(got.start)
        .and_then(|at| usize::try_from(at).ok());
    let bytes = from.and_then(|from| got.bytes.get(from..));
    bytes.is_some_and(|bytes| bytes.starts_with(SIGNATURE))
}

impl std::fmt::Debug for Listing {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_tuple("Listing").field(&self.address).finish()
    }
}

impl PartialEq for Listing {
    fn eq(&self, other: &Self) -> bool {
        self.address == other.address
    }
}

impl Eq for Listing {}

impl Hash for Listing {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.address.hash(state);
    }
}

impl PartialOrd for Listing {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for Listing {
    fn cmp(&self, other: &Self) -> Ordering {
        self.address.to_string().cmp(&other.address.to_string())
    }
}
