//! Decoded blocks of datasets, least recently used first out, bounded in bytes.
//!
//! A block is decoded once however many readers wait for it. A failure is handed to everyone who waits
//! and is not remembered. What is being decoded counts from its beginning: room is made first, and who finds
//! none waits for others to finish. A block larger than the whole budget is decoded when nothing else is,
//! handed out, and not kept. Loading a block must not ask for another one, unless it says so (`Need::gathers`): such
//! blocks have a share of the budget that they wait for among themselves, and all others go on in what is left.

mod block;
mod counters;
mod flight;

use std::collections::HashMap;
use std::num::NonZeroUsize;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::{Arc, Condvar, Mutex, MutexGuard};

use lru::LruCache;

use crate::error::Result;
use crate::io::buffer::{Buffer, Pool};
use crate::io::lru::WeightedLru;
pub use block::{Block, Key, Need};
use block::{OVERHEAD, cost};
pub use counters::CacheStatus;
use counters::Counters;
use flight::{Flight, Landing};

struct CacheEntry {
    block: Block,
    /// Decoded ahead of a reader who has not come yet.
    ahead: bool,
}

struct Inner {
    /// The blocks kept; each weighs its cost.
    blocks: WeightedLru<Key, CacheEntry>,
    /// Bytes of the blocks being decoded.
    reserved: u64,
    /// Bytes of the blocks that are being made of others.
    gathering: u64,
    flights: HashMap<Key, Arc<Flight>>,
    /// Blocks that some reader has read to their end lately: another one, behind him, gets their bytes from the
    /// kernel, and they are not worth decoding ahead. Forgotten when one of them is asked for after all.
    consumed: LruCache<Key, ()>,
}

impl Inner {
    fn has(&self, key: &Key) -> bool {
        self.blocks.contains(key) || self.flights.contains_key(key)
    }

    /// The count that the room for a block is taken from.
    fn taken(&mut self, need: Need) -> &mut u64 {
        match need.gathers {
            true => &mut self.gathering,
            false => &mut self.reserved,
        }
    }

    fn taken_by_all(&self) -> u64 {
        self.reserved.saturating_add(self.gathering)
    }

    /// Returns true if so much more can be decoded within the budget.
    fn has_room(&self, bytes: u64, limit: u64) -> bool {
        self.taken_by_all().saturating_add(bytes) <= limit
    }
}

/// The share of the budget that blocks may take while they are made of others.
const GATHERING: u64 = 4;

/// Blocks of which is remembered that they were read.
const MOST_CONSUMED: usize = 4096;

/// The cache of decoded blocks, shared by all stores of a mount.
pub struct Cache {
    limit: u64,
    pool: Arc<Pool>,
    inner: Mutex<Inner>,
    /// Something was decoded: there may be room now.
    room: Condvar,
    counters: Counters,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    // Nothing that can panic runs under these locks but allocation.
    mutex.lock().unwrap_or_else(|e| e.into_inner())
}

impl Cache {
    /// Creates a cache of at most `limit` bytes.
    pub fn new(limit: u64) -> Self {
        Self {
            limit,
            pool: Arc::new(Pool::lasting()),
            inner: Mutex::new(Inner {
                blocks: WeightedLru::new(limit),
                reserved: 0,
                gathering: 0,
                flights: HashMap::new(),
                consumed: LruCache::new(
                    NonZeroUsize::new(MOST_CONSUMED).unwrap_or(NonZeroUsize::MIN),
                ),
            }),
            room: Condvar::new(),
            counters: Counters::default(),
        }
    }

    /// Returns the pool that its buffers come from.
    pub fn pool(&self) -> &Arc<Pool> {
        &self.pool
    }

    /// Returns the budget in bytes.
    pub fn limit(&self) -> u64 {
        self.limit
    }

    /// Returns true if a block of this size can be kept.
    pub fn holds(&self, len: usize) -> bool {
        len as u64 + OVERHEAD <= self.limit
    }

    /// Returns true if a block is here, or will be soon.
    pub fn has(&self, key: &Key) -> bool {
        lock(&self.inner).has(key)
    }

    /// Returns true if a block is here.
    pub fn is_ready(&self, key: &Key) -> bool {
        lock(&self.inner).blocks.contains(key)
    }

    /// Returns true if a block is being decoded: a reader would have to wait for it.
    pub fn is_under_way(&self, key: &Key) -> bool {
        lock(&self.inner).flights.contains_key(key)
    }

    /// Returns the number of blocks that are being decoded now.
    pub fn decoding(&self) -> usize {
        let inner = lock(&self.inner);
        inner.flights.values().filter(|f| f.decodes).count()
    }

    /// Returns the block, from memory or from `fill`, which fills a buffer of old bytes; whoever comes second waits
    /// for the first.
    pub fn read(
        &self,
        key: Key,
        need: Need,
        fill: impl FnOnce(&mut [u8]) -> Result<()>,
    ) -> Result<Block> {
        self.reader(lock(&self.inner), key, need, || self.filled(need, fill))
    }

    /// Returns the block as `read` does; `None` if it is not here and `elsewhere()`, which is asked when nobody can
    /// give the block up in between.
    pub fn read_unless(
        &self,
        key: Key,
        need: Need,
        elsewhere: impl FnOnce() -> bool,
        fill: impl FnOnce(&mut [u8]) -> Result<()>,
    ) -> Result<Option<Block>> {
        let inner = lock(&self.inner);
        if !inner.has(&key) && elsewhere() {
            return Ok(None);
        }
        self.reader(inner, key, need, || self.filled(need, fill))
            .map(Some)
    }

    /// Decodes a block for a reader who will come, unless it is here, there is no room, or it is not `wanted`
    /// any more: that is asked when no reader can slip in between.
    pub fn ahead(
        &self,
        key: Key,
        need: Need,
        wanted: impl FnOnce() -> bool,
        fill: impl FnOnce(&mut [u8]) -> Result<()>,
    ) {
        let mut inner = lock(&self.inner);
        if !wanted() {
            return;
        }
        let full = inner.reserved > 0 && !inner.has_room(need.bytes(), self.limit);
        if full || inner.has(&key) || inner.consumed.contains(&key) {
            return;
        }
        let flight = Flight::new(need);
        inner.flights.insert(key, flight.clone());
        // The reader meets the same failure himself.
        let _ = self.load(inner, key, flight, need, true, || self.filled(need, fill));
    }

    /// Counts a block that was decoded for somebody who keeps it himself.
    pub fn passed_on(&self, len: usize) {
        self.counters.misses.fetch_add(1, Relaxed);
        let decoded = &self.counters.decoded_bytes;
        decoded.fetch_add(len as u64, Relaxed);
    }

    /// Gives up a block that nobody will want again.
    pub fn consumed(&self, key: &Key) {
        let mut inner = lock(&self.inner);
        inner.consumed.put(*key, ());
        if inner.blocks.pop(key).is_some() {
            self.counters.consumed.fetch_add(1, Relaxed);
        }
    }

    fn filled(&self, need: Need, fill: impl FnOnce(&mut [u8]) -> Result<()>) -> Result<Buffer> {
        let mut buffer = match need.passes {
            true => self.pool.take(need.len),
            false => self.pool.take_to_keep(need.len),
        };
        fill(&mut buffer)?;
        Ok(buffer)
    }

    fn reader(
        &self,
        mut inner: MutexGuard<'_, Inner>,
        key: Key,
        need: Need,
        load: impl FnOnce() -> Result<Buffer>,
    ) -> Result<Block> {
        if let Some(entry) = inner.blocks.get(&key) {
            self.counters.hits.fetch_add(1, Relaxed);
            if std::mem::take(&mut entry.ahead) {
                self.counters.ahead_used.fetch_add(1, Relaxed);
            }
            return Ok(entry.block.clone());
        }
        if let Some(flight) = inner.flights.get(&key).cloned() {
            drop(inner);
            self.counters.hits.fetch_add(1, Relaxed);
            flight.meet();
            return flight.wait();
        }
        if inner.consumed.contains(&key) {
            inner.consumed.clear();
        }
        let flight = Flight::new(need);
        inner.flights.insert(key, flight.clone());
        self.load(inner, key, flight, need, false, load)
    }

    fn load(
        &self,
        inner: MutexGuard<'_, Inner>,
        key: Key,
        flight: Arc<Flight>,
        need: Need,
        ahead: bool,
        load: impl FnOnce() -> Result<Buffer>,
    ) -> Result<Block> {
        self.counters.misses.fetch_add(1, Relaxed);
        self.reserve(inner, need);
        let mut landing = Landing::new(self, key, flight, need, ahead);
        landing.outcome = load().map(|bytes| {
            self.counters
                .decoded_bytes
                .fetch_add(bytes.len() as u64, Relaxed);
            Arc::new(bytes)
        });
        landing.outcome.clone()
    }

    /// Ends the decoding of a block, and keeps the block if there is one.
    fn land(&self, key: Key, need: Need, ahead: bool, flight: &Flight, outcome: &Result<Block>) {
        let mut inner = lock(&self.inner);
        inner.flights.remove(&key);
        *inner.taken(need) -= need.bytes();
        let met = flight.is_met();
        if ahead && met {
            self.counters.ahead_used.fetch_add(1, Relaxed);
        }
        if let Ok(block) = outcome {
            self.keep(&mut inner, key, block, ahead && !met);
        }
        drop(inner);
        self.room.notify_all();
    }

    /// Takes room for a block out of the budget; waits while others use it.
    fn reserve(&self, mut inner: MutexGuard<'_, Inner>, need: Need) {
        let limit = self.limit;
        let waits = |inner: &mut Inner| match need.gathers {
            // What it waits for waits for nothing but decoding, which goes on.
            true => {
                let wanted = inner.gathering.saturating_add(need.bytes());
                inner.gathering > 0 && wanted > limit / GATHERING
            }
            false => inner.reserved > 0 && !inner.has_room(need.bytes(), limit),
        };
        let waited = self.room.wait_while(inner, waits);
        inner = waited.unwrap_or_else(|e| e.into_inner());
        *inner.taken(need) += need.bytes();
        self.evict(&mut inner);
    }

    fn keep(&self, inner: &mut Inner, key: Key, block: &Block, ahead: bool) {
        if cost(block) > self.limit {
            return;
        }
        let entry = CacheEntry {
            block: block.clone(),
            ahead,
        };
        inner.blocks.put(key, entry, cost(block));
        self.evict(inner);
    }

    fn evict(&self, inner: &mut Inner) {
        while let Some(old) = inner.blocks.pop_excess(inner.taken_by_all()) {
            self.counters.evictions.fetch_add(1, Relaxed);
            if old.ahead {
                self.counters.ahead_wasted.fetch_add(1, Relaxed);
            }
        }
    }

    /// Returns the counters, and what the cache holds now.
    pub fn status(&self) -> CacheStatus {
        let inner = lock(&self.inner);
        let held = inner.blocks.values().map(|entry| entry.block.len() as u64);
        CacheStatus {
            limit: self.limit,
            bytes: held.sum(),
            blocks: inner.blocks.len(),
            ..self.counters.status()
        }
    }
}

#[cfg(test)]
mod tests;
