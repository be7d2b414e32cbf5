//! The result of a pass over the data that is made once; a failure is remembered, too.

use std::sync::Mutex;

use npyfs_base::error::{ErrorKind, Result};

/// The outcome of a pass. Other threads wait while it runs.
pub(super) struct Once<T>(Mutex<Option<Result<T>>>);

impl<T> Default for Once<T> {
    fn default() -> Self {
        Self(Mutex::default())
    }
}

impl<T: Clone> Once<T> {
    /// Returns the outcome; makes the pass if there is none yet. A failure because the files changed is not remembered.
    pub(super) fn get(&self, take: impl FnOnce() -> Result<T>) -> Result<T> {
        let mut known = self.0.lock().unwrap_or_else(|e| e.into_inner());
        if let Some(outcome) = &*known {
            return outcome.clone();
        }
        let outcome = take();
        let lasting = match &outcome {
            Ok(_) => true,
            Err(e) => e.kind == ErrorKind::Damaged,
        };
        if lasting {
            *known = Some(outcome.clone());
        }
        outcome
    }
}
