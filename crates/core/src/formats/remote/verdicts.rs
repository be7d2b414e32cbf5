//! Which objects of a prefix are no stores although they have the names of stores: damage, as on a disk.
//!
//! The objects are looked at when the prefix is listed, if there are few. To look at many would cost a request for each
//! that may never be opened: those are judged when they are opened. A verdict counts for one version. An object that
//! could not be looked at stays in the listing: a network that fails is no damage.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::{Duration, Instant};

use crate::dataset::context::Context;
use crate::formats::what_begins_so;
use npyfs_io::remote::{Entries, Listing, Version};

/// The most objects of a prefix that are looked at when it is listed.
const MOST: usize = 64;

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

/// The verdicts on the objects of a prefix.
pub(super) struct Verdicts {
    listing: Arc<Listing>,
    context: Arc<Context>,
    known: Mutex<HashMap<String, (Version, Verdict)>>,
    /// Held by the thread that looks at objects.
    looking: Mutex<()>,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(|e| e.into_inner())
}

impl Verdicts {
    pub(super) fn new(listing: &Arc<Listing>, context: &Arc<Context>) -> Self {
        Self {
            listing: listing.clone(),
            context: context.clone(),
            known: Mutex::default(),
            looking: Mutex::default(),
        }
    }

    /// Looks at the objects with these names that have no verdict, if they are few.
    pub(super) fn look_at(&self, entries: &Entries, names: &[&str]) {
        let _one = lock(&self.looking);
        lock(&self.known).retain(|name, _| entries.has_object(name));
        let mut unknown = Vec::new();
        for &name in names {
            let Some(version) = entries.version(name) else {
                continue;
            };
            match self.verdict(name, version) {
                Some(Verdict::Store | Verdict::Damage(_)) => {}
                _ if version.size == 0 => self.note(name, version, Verdict::Damage(EMPTY)),
                verdict => unknown.push((name, version, verdict)),
            }
        }
        if unknown.len() > MOST {
            return;
        }
        unknown.retain(|(_, _, verdict)| match verdict {
            Some(Verdict::Unclear(since)) => since.elapsed() >= PAUSE,
            _ => true,
        });
        if unknown.is_empty() {
            return;
        }
        let names: Vec<_> = unknown.iter().map(|(name, ..)| *name).collect();
        let looks = self.listing.look_at(&names);
        for ((name, version, _), look) in unknown.into_iter().zip(looks) {
            let look = look.filter(|look| look.version.is_listed_as(version));
            let verdict = match look {
                None => Verdict::Unclear(Instant::now()),
                Some(look) if look.is_hdf5 => Verdict::Store,
                Some(look) => Verdict::Damage(what_begins_so(&look.head)),
            };
            self.note(name, version, verdict);
        }
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
        match self.verdict(name, version) {
            Some(Verdict::Damage(why)) => Some(why),
            _ => (version.size == 0).then_some(EMPTY),
        }
    }

    fn verdict(&self, name: &str, version: &Version) -> Option<Verdict> {
        let known = lock(&self.known);
        let (of, verdict) = known.get(name)?;
        (of == version).then_some(*verdict)
    }

    /// Records a verdict. The journal has each version that is left out once.
    fn note(&self, name: &str, version: &Version, verdict: Verdict) {
        let known = (version.clone(), verdict);
        let before = lock(&self.known).insert(name.to_owned(), known);
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

/// Returns true for names of file managers and editors, whose files are no damage.
pub(super) fn is_hidden(name: &str) -> bool {
    name.starts_with('.')
}
