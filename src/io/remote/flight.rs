//! A request under way, and those who wait for it.

use std::sync::{Arc, Condvar, Mutex};

use super::error::RemoteError;
use super::origin::Got;

/// What comes of a request.
pub(super) type Outcome = Result<Arc<Got>, RemoteError>;

/// A request that one asked for and others may wait for, too.
#[derive(Default)]
pub(super) struct Flight {
    outcome: Mutex<Option<Outcome>>,
    landed: Condvar,
}

impl Flight {
    /// Makes one that is under way.
    pub(super) fn new() -> Arc<Self> {
        Arc::default()
    }

    /// Tells those who wait what came of it.
    pub(super) fn land(&self, outcome: Outcome) {
        *self.outcome.lock().unwrap_or_else(|e| e.into_inner()) = Some(outcome);
        self.landed.notify_all();
    }

    /// Waits for what comes of it. It ends in any case: whoever carries it out has a limit of time.
    pub(super) fn wait(&self) -> Outcome {
        let mut outcome = self.outcome.lock().unwrap_or_else(|e| e.into_inner());
        loop {
            if let Some(outcome) = &*outcome {
                return outcome.clone();
            }
            outcome = self.landed.wait(outcome).unwrap_or_else(|e| e.into_inner());
        }
    }
}
