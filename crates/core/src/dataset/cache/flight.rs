//! A block being decoded, and the threads that wait for it.
//!
//! A flight completes exactly once, even if the decoder panics: no thread waits forever.

use std::sync::{Arc, Condvar, Mutex};

use super::{Block, Cache, Key, Need, lock};
use npyfs_base::error::{Error, Result};

/// The decoding of one block.
#[derive(Default)]
pub(super) struct Flight {
    outcome: Mutex<Option<Result<Block>>>,
    landed: Condvar,
    /// Whether a reader has requested a block that is decoded ahead.
    met: Mutex<bool>,
    /// Whether it uses a processor, not only the disk.
    pub decodes: bool,
}

impl Flight {
    /// Creates a flight without waiting threads.
    pub(super) fn new(need: Need) -> Arc<Self> {
        Arc::new(Self {
            decodes: !need.passes,
            ..Self::default()
        })
    }

    /// Records that a reader has requested the block.
    pub(super) fn meet(&self) {
        *lock(&self.met) = true;
    }

    /// Returns true if a reader has requested the block.
    pub(super) fn is_met(&self) -> bool {
        *lock(&self.met)
    }

    /// Waits for the block; fails if its decoding fails.
    pub(super) fn wait(&self) -> Result<Block> {
        let mut outcome = lock(&self.outcome);
        loop {
            if let Some(outcome) = &*outcome {
                return outcome.clone();
            }
            outcome = self.landed.wait(outcome).unwrap_or_else(|e| e.into_inner());
        }
    }
}

/// A guard that completes a flight on drop, with the outcome set by then.
pub(super) struct Landing<'a> {
    cache: &'a Cache,
    key: Key,
    flight: Arc<Flight>,
    need: Need,
    ahead: bool,
    /// The outcome for all waiting threads.
    pub outcome: Result<Block>,
}

impl<'a> Landing<'a> {
    /// Creates the guard; unless an outcome is set, the flight fails.
    pub(super) fn new(
        cache: &'a Cache,
        key: Key,
        flight: Arc<Flight>,
        need: Need,
        ahead: bool,
    ) -> Self {
        Self {
            cache,
            key,
            flight,
            need,
            ahead,
            outcome: Err(Error::damaged("reading a block failed unexpectedly")),
        }
    }
}

impl Drop for Landing<'_> {
    fn drop(&mut self) {
        let flight = &*self.flight;
        self.cache
            .land(self.key, self.need, self.ahead, flight, &self.outcome);
        *lock(&flight.outcome) = Some(self.outcome.clone());
        flight.landed.notify_all();
    }
}
