//! The counters of the cache.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use serde::Serialize;

/// Counters since the start, as in [`CacheStatus`]; all in blocks but for `decoded_bytes`.
#[derive(Default)]
pub(super) struct Counters {
    pub hits: AtomicU64,
    pub misses: AtomicU64,
    pub evictions: AtomicU64,
    pub consumed: AtomicU64,
    pub decoded_bytes: AtomicU64,
    pub ahead_used: AtomicU64,
    pub ahead_wasted: AtomicU64,
}

impl Counters {
    /// Returns the counters; what the cache holds now is left at 0.
    pub(super) fn status(&self) -> CacheStatus {
        let count = |counter: &AtomicU64| counter.load(Relaxed);
        CacheStatus {
            hits: count(&self.hits),
            misses: count(&self.misses),
            evictions: count(&self.evictions),
            consumed: count(&self.consumed),
            decoded_bytes: count(&self.decoded_bytes),
            ahead_used: count(&self.ahead_used),
            ahead_wasted: count(&self.ahead_wasted),
            ..CacheStatus::default()
        }
    }
}

/// A snapshot of the cache for `status.json`.
#[derive(Clone, Debug, Default, Serialize)]
pub struct CacheStatus {
    /// The budget in bytes.
    pub limit: u64,
    /// Decoded bytes held; the limit counts what an entry costs beside them as well.
    pub bytes: u64,
    /// Blocks held.
    pub blocks: usize,
    /// Reads of a block that was here, or was being decoded.
    pub hits: u64,
    /// Blocks that were decoded because a reader asked for them, or was going to.
    pub misses: u64,
    /// Blocks given up for want of room.
    pub evictions: u64,
    /// Blocks given up because a reader had read all of them.
    pub consumed: u64,
    /// Bytes that were decoded.
    pub decoded_bytes: u64,
    /// Blocks decoded ahead that a reader came for, and that were given up before one did.
    pub ahead_used: u64,
    /// Blocks decoded ahead that were given up before a reader came for them.
    pub ahead_wasted: u64,
}
