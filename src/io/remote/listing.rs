//! What lies directly below a prefix of a bucket. It is asked for again after a while.

use std::cmp::Ordering;
use std::collections::{BTreeMap, BTreeSet};
use std::hash::{Hash, Hasher};
use std::ops::Bound;
use std::sync::{Arc, Mutex};
use std::time::{Instant, SystemTime, UNIX_EPOCH};

use super::address::Address;
use super::error::{Cause, RemoteError};
use super::object::ask;
use super::origin::{Origin, Version};
use crate::io::file::Ownership;
use crate::options::RemoteSettings;

/// Names below one prefix at the most.
const MOST: usize = 1 << 20;

/// The names below a prefix.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Entries {
    objects: BTreeMap<String, Version>,
    prefixes: BTreeSet<String>,
    left_out: Vec<(String, String)>,
}

impl Entries {
    /// Returns true if nothing is there.
    pub fn is_empty(&self) -> bool {
        self.objects.is_empty() && self.prefixes.is_empty() && self.left_out.is_empty()
    }

    /// Returns true if an object has this name.
    pub fn has_object(&self, name: &str) -> bool {
        self.objects.contains_key(name)
    }

    /// Returns true if other names go on behind this one.
    pub fn has_prefix(&self, name: &str) -> bool {
        self.prefixes.contains(name)
    }

    /// Returns the names of objects, in order.
    pub fn objects(&self) -> impl Iterator<Item = &str> {
        self.objects.keys().map(String::as_str)
    }

    /// Returns the names of objects that begin with some text, in order.
    pub fn beginning<'a>(&'a self, with: &'a str) -> impl Iterator<Item = &'a str> {
        let from = (Bound::Included(with), Bound::Unbounded);
        let from = self.objects.range::<str, _>(from);
        let names = from.map(|(name, _)| name.as_str());
        names.take_while(move |name| name.starts_with(with))
    }

    /// Returns the names that others go on behind, in order.
    pub fn prefixes(&self) -> impl Iterator<Item = &str> {
        self.prefixes.iter().map(String::as_str)
    }

    /// Returns the names that cannot be names of files, with the reasons.
    pub fn left_out(&self) -> &[(String, String)] {
        &self.left_out
    }

    /// Returns the time of the last change of an object.
    pub fn modified(&self, name: &str) -> Option<SystemTime> {
        Some(self.objects.get(name)?.modified)
    }

    /// Returns the time of the last change of any of the objects.
    fn newest(&self) -> SystemTime {
        let times = self.objects.values().map(|version| version.modified);
        times.max().unwrap_or(UNIX_EPOCH)
    }
}

/// What was answered last, and the time of the question.
type Known = Option<(Instant, Arc<Entries>)>;

/// A prefix, and what is known of what lies below it. Two are equal if they are of one prefix.
pub struct Listing {
    address: Address,
    settings: Arc<RemoteSettings>,
    newest: Mutex<Known>,
    notes: Mutex<Vec<String>>,
}

impl Listing {
    /// Prepares for a prefix; asks nothing yet.
    pub fn new(address: &Address, settings: &Arc<RemoteSettings>) -> Self {
        Self {
            address: address.clone(),
            settings: settings.clone(),
            newest: Mutex::default(),
            notes: Mutex::default(),
        }
    }

    /// Returns its address.
    pub fn address(&self) -> &Address {
        &self.address
    }

    /// Returns a prefix below it.
    pub fn below(&self, name: &str) -> Self {
        Self::new(&self.address.below(name, true), &self.settings)
    }

    /// Returns what is there: asks, unless that was done a moment ago. Without an answer it is what was there before.
    ///
    /// # Errors
    ///
    /// It is not to be read, or nothing is known and the server does not answer.
    pub fn entries(&self) -> Result<Arc<Entries>, RemoteError> {
        // Whoever else wants to know waits for the same answer.
        let mut newest = self.newest.lock().unwrap_or_else(|e| e.into_inner());
        if let Some((asked, entries)) = &*newest
            && asked.elapsed() < self.settings.check
        {
            return Ok(entries.clone());
        }
        let entries = match (self.ask(), &*newest) {
            (Ok(entries), Some((_, known))) if **known == entries => known.clone(),
            (Ok(entries), _) => Arc::new(entries),
            (Err(e), Some((_, known))) if matches!(e.cause, Cause::Failed | Cause::Late) => {
                let note = format!("the last known list is shown: {}", e.message);
                let mut notes = self.notes.lock().unwrap_or_else(|e| e.into_inner());
                notes.push(note);
                known.clone()
            }
            (Err(e), _) => return Err(e),
        };
        *newest = Some((Instant::now(), entries.clone()));
        Ok(entries)
    }

    /// Returns remarks for people, each once.
    pub fn take_notes(&self) -> Vec<String> {
        std::mem::take(&mut self.notes.lock().unwrap_or_else(|e| e.into_inner()))
    }

    /// Returns whose an object is and the time of its last change, as the last list says; without a name, those of the whole. It
    /// is its reader's alone: others may have no credentials.
    pub fn ownership(&self, name: Option<&str>) -> Ownership {
        let newest = self.newest.lock().unwrap_or_else(|e| e.into_inner());
        let known = newest.as_ref().map(|(_, entries)| entries.clone());
        drop(newest);
        let entries = known.map_or_else(|| self.entries(), Ok);
        owned(entries.map_or(UNIX_EPOCH, |entries| {
            let of = name.map(|name| entries.modified(name).unwrap_or(UNIX_EPOCH));
            of.unwrap_or_else(|| entries.newest())
        }))
    }

    /// Returns whose the whole is and the time of its last change, as far as it was asked for.
    pub fn known_ownership(&self) -> Ownership {
        let newest = self.newest.lock().unwrap_or_else(|e| e.into_inner());
        let known = newest.as_ref().map(|(_, entries)| entries.newest());
        owned(known.unwrap_or(UNIX_EPOCH))
    }

    fn ask(&self) -> Result<Entries, RemoteError> {
        let about = self.address.to_string();
        let origin = Origin::new(&self.address, &self.settings)?;
        let (mut entries, mut after) = (Entries::default(), None);
        loop {
            let (origin, prefix) = (origin.clone(), self.address.key().to_owned());
            let page = async move { origin.list(&prefix, after).await };
            let page = ask(&about, &self.settings, page)?;
            for (name, version) in page.objects {
                if let Some(name) = self.name(&name) {
                    entries.objects.insert(name, version);
                }
            }
            let prefixes = page.prefixes.iter().filter_map(|name| self.name(name));
            entries.prefixes.extend(prefixes);
            for (name, why) in page.left_out {
                let name = name.strip_prefix(self.address.key()).unwrap_or(&name);
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
        // A name can be both; as a directory, what is below it can be reached.
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

    /// Returns the name that a key has below the prefix.
    fn name(&self, key: &str) -> Option<String> {
        let name = key.strip_prefix(self.address.key())?.trim_end_matches('/');
        (!name.is_empty() && !name.contains('/')).then(|| name.to_owned())
    }
}

fn owned(mtime: SystemTime) -> Ownership {
    Ownership {
        uid: rustix::process::getuid().as_raw(),
        gid: rustix::process::getgid().as_raw(),
        mode: 0o400,
        mtime,
    }
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
