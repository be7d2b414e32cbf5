//! The verdicts of a view on the objects of a store, each kept for one version of the files of its object.

use std::sync::Arc;

use parking_lot::Mutex;

use crate::views::unfit::{Unfit, verdict};
use npyfs_base::error::Error;
use npyfs_io::lru::WeightedLru;

/// The approximate bytes of cached verdicts.
const MOST_KNOWN: u64 = 32 << 20;

/// The overhead of one cached verdict in bytes.
const OVERHEAD: u64 = 512;

/// What a view found out about an object, or the reason why it leaves the object out.
pub(in crate::views) type Verdict<F> = Result<Arc<F>, String>;

/// A verdict, and the version of the files that it is about.
type Versioned<F> = (u64, Verdict<F>);

/// Cached verdicts by a key of the object.
pub(in crate::views) struct Verdicts<F> {
    known: Mutex<WeightedLru<Vec<u8>, Versioned<F>>>,
}

impl<F> Verdicts<F> {
    pub(in crate::views) fn new() -> Self {
        Self {
            known: Mutex::new(WeightedLru::new(MOST_KNOWN)),
        }
    }

    /// Returns the verdict on an object whose files have a certain version; `judge` reaches the verdict if the cache
    /// lacks it, and `weight` returns the approximate memory of facts in bytes. Two threads may judge the same object.
    pub(in crate::views) fn find(
        &self,
        key: Vec<u8>,
        now: u64,
        judge: impl FnOnce() -> Result<F, Unfit>,
        weight: impl FnOnce(&F) -> u64,
    ) -> Result<Verdict<F>, Error> {
        if let Some((then, verdict)) = self.known.lock().get(&key)
            && *then == now
        {
            return Ok(verdict.clone());
        }
        let verdict = verdict(judge())?.map(Arc::new);
        let weight = verdict.as_ref().map_or(0, |facts| weight(facts));
        let weight = weight
            .saturating_add(key.len() as u64)
            .saturating_add(OVERHEAD);
        let mut known = self.known.lock();
        known.put(key, (now, verdict.clone()), weight);
        while known.pop_excess(0).is_some() {}
        drop(known);
        Ok(verdict)
    }
}
