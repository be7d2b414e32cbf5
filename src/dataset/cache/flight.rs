//! A block that is being decoded, and those who wait for it.
//!
//! It lands exactly once, also if the decoder panics: nobody waits for ever.

use std::sync::{Arc, Condvar, Mutex};

use super::{Block, Cache, Key, Need, lock};
use crate::error::{Error, Result};

/// The decoding of one block.
#[derive(Default)]
pub(super) struct Flight {
    outcome: Mutex<Option<Result<Block>>>,
    landed: Condvar,
    /// Begun ahead of a reader; one has come for it since.
    met: Mutex<bool>,
    /// It takes a processor, not only the disk.
    pub decodes: bool,
}

impl Flight {
    /// Creates a flight on which nobody waits yet.
    pub(super) fn new(need: Need) -> Arc<Self> {
        Arc::new(Self {
            decodes: !need.passes,
            ..Self::default()
        })
    }

    /// Notes that a reader has come for the block.
    pub(super) fn meet(&self) {
        *lock(&self.met) = true;
    }

    /// Returns true if a reader has come for the block.
    pub(super) fn is_met(&self) -> bool {
        *lock(&self.met)
    }

    /// Waits for the block; fails as its decoding failed.
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

/// A guard that lands a flight when it is dropped, with the outcome that was set until then.
pub(super) struct Landing<'a> {
    cache: &'a Cache,
    key: Key,
    flight: Arc<Flight>,
    need: Need,
    ahead: bool,
    /// The outcome that all who wait are given.
    pub outcome: Result<Block>,
}

impl<'a> Landing<'a> {
    /// Creates the guard; without another outcome the flight fails.
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
