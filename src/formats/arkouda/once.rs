//! Something that takes a pass over the data and is found out once, failures included.

use std::sync::Mutex;

use crate::error::{ErrorKind, Result};

/// The outcome of a pass; whoever comes while it runs waits.
pub(super) struct Once<T>(Mutex<Option<Result<T>>>);

impl<T> Default for Once<T> {
    fn default() -> Self {
        Self(Mutex::default())
    }
}

impl<T: Clone> Once<T> {
    /// The outcome, taken now if nobody has. That files changed meanwhile is not remembered.
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
