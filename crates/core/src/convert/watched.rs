//! A content that reports the progress of its readers, and their failure.

use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use parking_lot::Mutex;

use super::Listener;
use npyfs_base::error::{Error, Result};
use npyfs_io::content::{Content, Data};

/// A content with a listener.
pub(super) struct Watched {
    inner: Arc<dyn Content>,
    listener: Arc<dyn Listener>,
    /// Bytes that were reported as done.
    told: AtomicU64,
    failure: Mutex<Option<Error>>,
}

impl Watched {
    /// Wraps a content.
    pub(super) fn new(inner: Arc<dyn Content>, listener: &Arc<dyn Listener>) -> Arc<Self> {
        Arc::new(Self {
            inner,
            listener: listener.clone(),
            told: AtomicU64::new(0),
            failure: Mutex::new(None),
        })
    }

    /// Returns the reason of a failed read.
    pub(super) fn failure(&self) -> Option<Error> {
        let failure = self.failure.lock();
        failure.clone()
    }

    /// Reports the rest as done.
    pub(super) fn finish(&self) {
        self.tell(u64::MAX);
    }

    /// Reports additional bytes, of which some may have been read before.
    fn tell(&self, more: u64) {
        let told = self.told.load(Ordering::Relaxed);
        let now = told.saturating_add(more).min(self.inner.len());
        // With two concurrent readers one may report too few bytes; `finish` reports the rest.
        self.told.store(now, Ordering::Relaxed);
        self.listener.done(now.saturating_sub(told));
    }

    fn noted<T>(&self, done: Result<T>) -> Result<T> {
        done.inspect_err(|e| {
            let mut failure = self.failure.lock();
            failure.get_or_insert_with(|| e.clone());
        })
    }
}

impl Content for Watched {
    fn len(&self) -> u64 {
        self.inner.len()
    }

    fn read_at(&self, offset: u64, buf: &mut [u8]) -> Result<()> {
        self.noted(self.inner.read_at(offset, buf))?;
        self.tell(buf.len() as u64);
        Ok(())
    }

    fn give(&self, buf: &mut [u8]) -> Result<()> {
        self.noted(self.inner.give(buf))?;
        self.tell(buf.len() as u64);
        Ok(())
    }

    fn written(&self, from: u64) -> Result<Option<Range<u64>>> {
        self.noted(self.inner.written(from))
    }

    fn stored(&self, from: u64) -> Option<Range<u64>> {
        self.inner.stored(from)
    }

    fn repeats(&self, from: u64) -> Option<(u64, u64)> {
        self.inner.repeats(from)
    }

    fn is_costly(&self) -> bool {
        self.inner.is_costly()
    }

    fn share(&self, offset: u64, len: usize) -> Result<Option<Data>> {
        let shared = self.noted(self.inner.share(offset, len))?;
        if shared.is_some() {
            self.tell(len as u64);
        }
        Ok(shared)
    }
}
