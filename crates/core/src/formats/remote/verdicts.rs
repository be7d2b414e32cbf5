//! Which objects of a prefix are no stores although they have the names of stores: damage, as on a disk.
//!
//! The objects are looked at when the prefix is listed. A mount waits for a few; of many, a thread looks at one part
//! after the other while they are shown, and leaves out what is damage as it finds it. What is opened meanwhile is
//! judged then. A command, which lists once, waits for all. A verdict counts for one version. An object that could not
//! be looked at stays in the listing: a network that fails is no damage.

use std::collections::hash_map::RandomState;
use std::collections::{HashMap, HashSet};
use std::hash::BuildHasher;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

use parking_lot::Mutex;

use crate::dataset::context::Context;
use crate::formats::what_begins_so;
use npyfs_base::thread;
use npyfs_io::remote::{Entries, Listing, Version};

/// The most objects that a mount's listing waits for, and how many are looked at together after it.
const PART: usize = 64;

/// The time after which an object that could not be looked at is looked at again: a server that is silent would
/// otherwise delay each listing.
const PAUSE: Duration = Duration::from_secs(30);

/// The reason why an object without bytes is left out.
const EMPTY: &str = "an empty object";

/// The verdict on one version of an object.
#[derive(Clone, Copy)]
enum Verdict {
    Store,
    /// The object is no store, for this reason.
    Damage(&'static str),
    /// The object could not be looked at.
    Unclear(Instant),
}

/// The verdicts so far.
#[derive(Default)]
struct KnownVerdicts {
    /// Of stores, which may be a million, only the keyed hash of name and version.
    stores: HashSet<u64>,
    hasher: RandomState,
    others: HashMap<String, (Version, Verdict)>,
}

/// The verdicts on the objects of a prefix.
pub(super) struct Verdicts {
    listing: Arc<Listing>,
    context: Arc<Context>,
    known: Mutex<KnownVerdicts>,
    /// Held by the listing that looks at objects and waits for them.
    looking: Mutex<()>,
    /// Whether a thread looks at what listings do not wait for.
    is_looking_on: AtomicBool,
}

impl KnownVerdicts {
    fn hash(&self, name: &str, version: &Version) -> u64 {
        self.hasher.hash_one((name, version))
    }

    fn get(&self, name: &str, version: &Version) -> Option<Verdict> {
        match self.others.get(name) {
            Some((of, verdict)) if of == version => Some(*verdict),
            _ => (self.stores.contains(&self.hash(name, version))).then_some(Verdict::Store),
        }
    }

    /// Replaces what was known of a name, and returns it unless it was a store.
    fn note(
        &mut self,
        name: &str,
        version: &Version,
        verdict: Verdict,
    ) -> Option<(Version, Verdict)> {
        match verdict {
            Verdict::Store => {
                self.stores.insert(self.hash(name, version));
                self.others.remove(name)
            }
            _ => {
                let known = (version.clone(), verdict);
                self.others.insert(name.to_owned(), known)
            }
        }
    }

    /// Forgets names and versions that are gone.
    fn keep(&mut self, entries: &Entries, names: &[&str]) {
        self.others.retain(|name, _| entries.has_object(name));
        if self.stores.len() > 2 * names.len() {
            let versions = names
                .iter()
                .filter_map(|name| Some((*name, entries.version(name)?)));
            let hashes: HashSet<u64> = versions
                .map(|(name, version)| self.hash(name, version))
                .collect();
            self.stores.retain(|hash| hashes.contains(hash));
        }
    }
}

impl Verdicts {
    pub(super) fn new(listing: &Arc<Listing>, context: &Arc<Context>) -> Self {
        Self {
            listing: listing.clone(),
            context: context.clone(),
            known: Mutex::default(),
            looking: Mutex::default(),
            is_looking_on: AtomicBool::new(false),
        }
    }

    /// Looks at the objects with these names that have no verdict; in a mount at many of them in a thread of its own.
    pub(super) fn look_at(self: &Arc<Self>, entries: &Arc<Entries>, names: &[&str]) {
        let _one = self.looking.lock();
        self.known.lock().keep(entries, names);
        let mut unknown = Vec::new();
        for &name in names {
            let Some(version) = entries.version(name) else {
                continue;
            };
            match self.verdict(name, version) {
                Some(Verdict::Store | Verdict::Damage(_)) => {}
                _ if version.size == 0 => self.note(name, version, Verdict::Damage(EMPTY)),
                Some(Verdict::Unclear(since)) if since.elapsed() < PAUSE => {}
                Some(Verdict::Unclear(_)) | None => unknown.push(name),
            }
        }
        match unknown.len() {
            0 => {}
            // The thread has them, or the listing after its end.
            _ if self.is_looking_on.load(Ordering::Acquire) => {}
            // Without a session there is no later listing.
            count if count <= PART || self.context.serving.get().is_none() => {
                for part in unknown.chunks(PART) {
                    if self.inspect(entries, part) == 0 {
                        break;
                    }
                }
            }
            _ => {
                self.is_looking_on.store(true, Ordering::Release);
                let names: Vec<String> = unknown.into_iter().map(str::to_owned).collect();
                let (own, entries) = (LookingOn(Arc::downgrade(self)), entries.clone());
                let looking = move || look_on(&own, &entries, &names);
                // A thread that cannot be started has dropped `own`, and the next listing tries again.
                let _ = thread::spawn_background("verdicts", looking);
            }
        }
    }

    /// Looks at objects, and returns how many could be looked at.
    fn inspect(&self, entries: &Entries, names: &[&str]) -> usize {
        let mut done = 0;
        for (&name, look) in names.iter().zip(self.listing.look_at(names)) {
            let Some(version) = entries.version(name) else {
                continue;
            };
            let look = look.filter(|look| look.version.is_listed_as(version));
            done += usize::from(look.is_some());
            let verdict = match look {
                None => Verdict::Unclear(Instant::now()),
                Some(look) if look.is_hdf5 => Verdict::Store,
                Some(look) => Verdict::Damage(what_begins_so(&look.head)),
            };
            self.note(name, version, verdict);
        }
        done
    }

    /// Records that a version was opened and is a store, or how it begins if it is none.
    pub(super) fn opened(&self, name: &str, version: &Version, head: Result<(), &[u8]>) {
        // A version that is newer than the listing is judged when it is listed.
        let entries = self.listing.entries();
        let listed = entries.as_ref().ok().and_then(|list| list.version(name));
        let Some(listed) = listed.filter(|listed| version.is_listed_as(listed)) else {
            return;
        };
        let verdict = match head {
            Ok(()) => Verdict::Store,
            Err(_) if version.size == 0 => Verdict::Damage(EMPTY),
            Err(head) => Verdict::Damage(what_begins_so(head)),
        };
        self.note(name, listed, verdict);
    }

    /// Returns the reason why a version is left out, as far as known.
    pub(super) fn damage(&self, entries: &Entries, name: &str) -> Option<&'static str> {
        let version = entries.version(name)?;
        match self.known.lock().others.get(name) {
            Some((of, Verdict::Damage(why))) if of == version => Some(why),
            _ => (version.size == 0).then_some(EMPTY),
        }
    }

    fn verdict(&self, name: &str, version: &Version) -> Option<Verdict> {
        self.known.lock().get(name, version)
    }

    /// Records a verdict. The journal has each version that is left out once.
    fn note(&self, name: &str, version: &Version, verdict: Verdict) {
        let before = self.known.lock().note(name, version, verdict);
        let is_told = matches!(before, Some((of, Verdict::Damage(_))) if of == *version);
        if let Verdict::Damage(why) = verdict
            && !is_told
            && !is_hidden(name)
        {
            let about = self.listing.address().below(name, false);
            self.context
                .journal
                .add(&format!("{about}: left out: {why}"));
        }
    }
}

/// Says at the end of the thread that looks on, however it ends, that the next listing may look.
struct LookingOn(Weak<Verdicts>);

impl Drop for LookingOn {
    fn drop(&mut self) {
        if let Some(verdicts) = self.0.upgrade() {
            verdicts.is_looking_on.store(false, Ordering::Release);
        }
    }
}

/// Looks at objects part by part, until all have a verdict, none of a part could be looked at, or the prefix is gone.
fn look_on(own: &LookingOn, entries: &Entries, names: &[String]) {
    for part in names.chunks(PART) {
        let Some(verdicts) = own.0.upgrade() else {
            return;
        };
        let is_open = |name: &&str| {
            let verdict = entries.version(name).map(|of| verdicts.verdict(name, of));
            matches!(verdict, Some(None | Some(Verdict::Unclear(_))))
        };
        // What was opened meanwhile has its verdict.
        let part: Vec<&str> = part.iter().map(String::as_str).filter(is_open).collect();
        if !part.is_empty() && verdicts.inspect(entries, &part) == 0 {
            return;
        }
    }
}

/// Returns true for names of file managers and editors, whose files are no damage.
pub(super) fn is_hidden(name: &str) -> bool {
    name.starts_with('.')
}
