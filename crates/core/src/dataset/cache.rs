//! The cache of decoded blocks, bounded in bytes; the least recently used blocks are evicted first.
//!
//! A block is decoded once for all readers that wait for it. A failure is returned to all of them and not remembered. A
//! block counts from the start of its decoding: room is made first, and a reader that finds none waits until other
//! decodings end. A block larger than the whole budget is decoded alone, returned, and not cached. Loading a block must
//! not request another one, unless it declares so (`Need::gathers`): such blocks compete for a share of the budget
//! among themselves, and all others use the rest.
//!
//! A block being decoded is a flight. A flight completes exactly once, even if the decoder panics: no thread waits
//! forever.

use std::collections::HashMap;
use std::num::NonZeroUsize;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::Relaxed;

use lru::LruCache;
use parking_lot::{Condvar, Mutex, MutexGuard};
use serde::Serialize;

use npyfs_base::buffer::{Buffer, Pool};
use npyfs_base::error::{Error, Result};
use npyfs_io::lru::WeightedLru;

struct CacheEntry {
    block: Block,
    /// Whether it was decoded ahead, and no reader has requested it yet.
    ahead: bool,
}

struct Inner {
    /// The cached blocks; each weighs its cost.
    blocks: WeightedLru<Key, CacheEntry>,
    /// Bytes of the blocks being decoded.
    reserved: u64,
    /// Bytes of the blocks being assembled from others.
    gathering: u64,
    flights: HashMap<Key, Arc<Flight>>,
    /// Blocks that a reader has recently read to the end. A later reader gets their bytes from the kernel's page cache,
    /// so they are not worth decoding ahead. Forgotten when such a block is requested after all.
    consumed: LruCache<Key, ()>,
}

impl Inner {
    fn has(&self, key: &Key) -> bool {
        self.blocks.contains(key) || self.flights.contains_key(key)
    }

    /// Returns the counter from which the room for a block is taken.
    fn taken(&mut self, need: Need) -> &mut u64 {
        match need.gathers {
            true => &mut self.gathering,
            false => &mut self.reserved,
        }
    }

    fn taken_by_all(&self) -> u64 {
        self.reserved.saturating_add(self.gathering)
    }

    /// Returns true if `bytes` more can be decoded within the budget.
    fn has_room(&self, bytes: u64, limit: u64) -> bool {
        self.taken_by_all().saturating_add(bytes) <= limit
    }
}

/// The share of the budget for blocks that are assembled from others.
const GATHERING: u64 = 4;

/// The most blocks that are remembered as read.
const MOST_CONSUMED: usize = 4096;

/// The cache of decoded blocks, shared by all stores of a mount.
pub struct Cache {
    limit: u64,
    pool: Arc<Pool>,
    inner: Mutex<Inner>,
    /// Signalled when a decoding ends: there may be room now.
    room: Condvar,
    counters: Counters,
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

    /// Returns the pool of its buffers.
    pub fn pool(&self) -> &Arc<Pool> {
        &self.pool
    }

    /// Returns the budget in bytes.
    pub fn limit(&self) -> u64 {
        self.limit
    }

    /// Returns true if a block of this size can be cached.
    pub fn holds(&self, len: usize) -> bool {
        len as u64 + OVERHEAD <= self.limit
    }

    /// Returns true if a block is cached or being decoded.
    pub fn has(&self, key: &Key) -> bool {
        self.inner.lock().has(key)
    }

    /// Returns true if a block is cached.
    pub fn is_ready(&self, key: &Key) -> bool {
        self.inner.lock().blocks.contains(key)
    }

    /// Returns true if a block is being decoded, so that a reader would have to wait.
    pub fn is_under_way(&self, key: &Key) -> bool {
        self.inner.lock().flights.contains_key(key)
    }

    /// Returns the number of blocks being decoded.
    pub fn decoding(&self) -> usize {
        let inner = self.inner.lock();
        inner.flights.values().filter(|f| f.decodes).count()
    }

    /// Returns the block, from the cache or from `fill`, which overwrites a buffer of old bytes. Later readers wait for
    /// the first.
    pub fn read(
        &self,
        key: Key,
        need: Need,
        fill: impl FnOnce(&mut [u8]) -> Result<()>,
    ) -> Result<Block> {
        self.reader(self.inner.lock(), key, need, || self.filled(need, fill))
    }

    /// Returns the block as `read` does; `None` if it is not cached and `elsewhere()` is true. `elsewhere` is called
    /// while the block cannot be evicted.
    pub fn read_unless(
        &self,
        key: Key,
        need: Need,
        elsewhere: impl FnOnce() -> bool,
        fill: impl FnOnce(&mut [u8]) -> Result<()>,
    ) -> Result<Option<Block>> {
        let inner = self.inner.lock();
        if !inner.has(&key) && elsewhere() {
            return Ok(None);
        }
        self.reader(inner, key, need, || self.filled(need, fill))
            .map(Some)
    }

    /// Decodes a block for a future reader, unless it is cached, there is no room, or it is no longer `wanted`.
    /// `wanted` is called while no reader can request the block.
    pub fn ahead(
        &self,
        key: Key,
        need: Need,
        wanted: impl FnOnce() -> bool,
        fill: impl FnOnce(&mut [u8]) -> Result<()>,
    ) {
        let mut inner = self.inner.lock();
        if !wanted() {
            return;
        }
        let full = inner.reserved > 0 && !inner.has_room(need.bytes(), self.limit);
        if full || inner.has(&key) || inner.consumed.contains(&key) {
            return;
        }
        let flight = Flight::new(need);
        inner.flights.insert(key, flight.clone());
        // The reader will meet the same failure itself.
        let _ = self.load(inner, key, flight, need, true, || self.filled(need, fill));
    }

    /// Counts a block that was decoded for a caller that stores it elsewhere.
    pub fn passed_on(&self, len: usize) {
        self.counters.misses.fetch_add(1, Relaxed);
        let decoded = &self.counters.decoded_bytes;
        decoded.fetch_add(len as u64, Relaxed);
    }

    /// Evicts a block that will probably not be requested again.
    pub fn consumed(&self, key: &Key) {
        let mut inner = self.inner.lock();
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

    /// Completes the decoding of a block, and caches the block if there is one.
    fn land(&self, key: Key, need: Need, ahead: bool, flight: &Flight, outcome: &Result<Block>) {
        let mut inner = self.inner.lock();
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

    /// Reserves room for a block in the budget; waits while others use it.
    fn reserve(&self, mut inner: MutexGuard<'_, Inner>, need: Need) {
        let limit = self.limit;
        let waits = |inner: &mut Inner| match need.gathers {
            // Waiting is safe: the decodings it waits for do not wait themselves.
            true => {
                let wanted = inner.gathering.saturating_add(need.bytes());
                inner.gathering > 0 && wanted > limit / GATHERING
            }
            false => inner.reserved > 0 && !inner.has_room(need.bytes(), limit),
        };
        self.room.wait_while(&mut inner, waits);
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

    /// Returns the counters and the present content of the cache.
    pub fn status(&self) -> CacheStatus {
        let inner = self.inner.lock();
        let held = inner.blocks.values().map(|entry| entry.block.len() as u64);
        CacheStatus {
            limit: self.limit,
            bytes: held.sum(),
            blocks: inner.blocks.len(),
            ..self.counters.status()
        }
    }
}

/// Counters since the start, as in [`CacheStatus`]; all in blocks except `decoded_bytes`.
#[derive(Default)]
struct Counters {
    pub hits: AtomicU64,
    pub misses: AtomicU64,
    pub evictions: AtomicU64,
    pub consumed: AtomicU64,
    pub decoded_bytes: AtomicU64,
    pub ahead_used: AtomicU64,
    pub ahead_wasted: AtomicU64,
}

impl Counters {
    /// Returns the counters; the fields for the present content are 0.
    fn status(&self) -> CacheStatus {
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
    /// Bytes of cached blocks; the limit also counts the overhead of entries.
    pub bytes: u64,
    /// Cached blocks.
    pub blocks: usize,
    /// Reads of a block that was cached or being decoded.
    pub hits: u64,
    /// Blocks that were decoded for a reader or ahead of one.
    pub misses: u64,
    /// Blocks evicted to make room.
    pub evictions: u64,
    /// Blocks evicted because a reader had read all of them.
    pub consumed: u64,
    /// Bytes that were decoded.
    pub decoded_bytes: u64,
    /// Blocks decoded ahead that a reader has requested.
    pub ahead_used: u64,
    /// Blocks decoded ahead that were evicted before a reader requested them.
    pub ahead_wasted: u64,
}

/// The key of a block.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Key {
    /// The store file's serial number.
    pub file: u64,
    /// The address of the dataset.
    pub object: u64,
    /// The number of its form.
    pub form: u32,
    /// The number of the block in this form.
    pub block: u64,
}

/// The bytes of a block, shared with the readers that hold them.
pub type Block = Arc<Buffer>;

/// The overhead of an entry in bytes.
const OVERHEAD: u64 = 200;

/// The memory needed to decode a block.
#[derive(Clone, Copy, Debug, Default)]
pub struct Need {
    /// Bytes of the block.
    pub len: usize,
    /// Additional bytes during decoding.
    pub beside: usize,
    /// Whether it is only read from the disk, not decoded, and evicted soon.
    pub passes: bool,
    /// Whether it is assembled from other blocks, which are requested meanwhile.
    pub gathers: bool,
}

impl Need {
    fn bytes(self) -> u64 {
        (self.len as u64)
            .saturating_add(self.beside as u64)
            .saturating_add(OVERHEAD)
    }
}

/// Returns the bytes of the budget that a cached block takes.
fn cost(block: &Block) -> u64 {
    block.capacity() as u64 + OVERHEAD
}

/// The decoding of one block.
#[derive(Default)]
struct Flight {
    outcome: Mutex<Option<Result<Block>>>,
    landed: Condvar,
    /// Whether a reader has requested a block that is decoded ahead.
    met: Mutex<bool>,
    /// Whether it uses a processor, not only the disk.
    pub decodes: bool,
}

impl Flight {
    /// Creates a flight without waiting threads.
    fn new(need: Need) -> Arc<Self> {
        Arc::new(Self {
            decodes: !need.passes,
            ..Self::default()
        })
    }

    /// Records that a reader has requested the block.
    fn meet(&self) {
        *self.met.lock() = true;
    }

    /// Returns true if a reader has requested the block.
    fn is_met(&self) -> bool {
        *self.met.lock()
    }

    /// Waits for the block; fails if its decoding fails.
    fn wait(&self) -> Result<Block> {
        let mut outcome = self.outcome.lock();
        loop {
            if let Some(outcome) = &*outcome {
                return outcome.clone();
            }
            self.landed.wait(&mut outcome);
        }
    }
}

/// A guard that completes a flight on drop, with the outcome set by then.
struct Landing<'a> {
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
    fn new(cache: &'a Cache, key: Key, flight: Arc<Flight>, need: Need, ahead: bool) -> Self {
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
        *flight.outcome.lock() = Some(self.outcome.clone());
        flight.landed.notify_all();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Barrier;
    use std::sync::atomic::AtomicUsize;

    impl Cache {
        /// A block for which no room is made.
        fn get(&self, key: Key, load: impl FnOnce() -> Result<Vec<u8>>) -> Result<Block> {
            let inner = self.inner.lock();
            self.reader(inner, key, Need::default(), || load().map(Buffer::from))
        }
    }

    fn key(block: u64) -> Key {
        Key {
            file: 1,
            object: 2,
            form: 0,
            block,
        }
    }

    #[test]
    fn a_block_is_decoded_once_for_all_who_wait() {
        let cache = Cache::new(1 << 20);
        let loads = AtomicUsize::new(0);
        let start = Barrier::new(8);
        std::thread::scope(|scope| {
            for _ in 0..8 {
                scope.spawn(|| {
                    start.wait();
                    let block = cache.get(key(0), || {
                        loads.fetch_add(1, Relaxed);
                        std::thread::sleep(std::time::Duration::from_millis(50));
                        Ok(vec![7; 10])
                    });
                    assert_eq!(block.unwrap()[..], [7; 10]);
                });
            }
        });
        assert_eq!(loads.load(Relaxed), 1);
        assert_eq!(cache.status().misses, 1);
    }

    #[test]
    fn who_only_waits_for_the_disk_does_not_decode() {
        let cache = Cache::new(1 << 20);
        for (passes, decoding) in [(true, 0), (false, 1)] {
            let need = Need {
                len: 10,
                passes,
                ..Need::default()
            };
            let fill = |_: &mut [u8]| {
                assert_eq!(cache.decoding(), decoding);
                Ok(())
            };
            cache.read(key(decoding as u64), need, fill).unwrap();
        }
    }

    #[test]
    fn the_budget_holds_and_the_oldest_goes_first() {
        let cache = Cache::new(3 * (1000 + OVERHEAD));
        for block in 0..3 {
            cache.get(key(block), || Ok(vec![0; 1000])).unwrap();
        }
        cache.get(key(0), || panic!("still there")).unwrap();
        cache.get(key(3), || Ok(vec![0; 1000])).unwrap();
        let status = cache.status();
        assert_eq!(status.bytes, 3000);
        assert_eq!(status.evictions, 1);
        cache.get(key(0), || panic!("still there")).unwrap();
        let mut reloaded = false;
        cache
            .get(key(1), || {
                reloaded = true;
                Ok(vec![0; 1000])
            })
            .unwrap();
        assert!(reloaded);
    }

    #[test]
    fn blocks_made_of_others_wait_for_each_other_and_never_for_ever() {
        let cache = Cache::new(10_000);
        let (making, most) = (AtomicUsize::new(0), AtomicUsize::new(0));
        let gathered = |n: u64| {
            let need = Need {
                len: 1000,
                gathers: true,
                ..Need::default()
            };
            let block = cache.read(key(n), need, |out| {
                most.fetch_max(making.fetch_add(1, Relaxed) + 1, Relaxed);
                let need = Need {
                    len: 4000,
                    beside: 4000,
                    ..Need::default()
                };
                let fill = |buf: &mut [u8]| {
                    std::thread::sleep(std::time::Duration::from_millis(1));
                    buf.fill(7);
                    Ok(())
                };
                for part in 0..2 {
                    let part = cache.read(key(1000 + (n + part) % 5), need, fill)?;
                    out.copy_from_slice(&part[..1000]);
                }
                making.fetch_sub(1, Relaxed);
                Ok(())
            });
            assert_eq!(block.unwrap()[..], [7; 1000]);
        };
        std::thread::scope(|scope| {
            for thread in 0..8 {
                let gathered = &gathered;
                scope.spawn(move || (0..20).for_each(|n| gathered(thread * 20 + n)));
            }
        });
        // A quarter of the budget has room for two blocks.
        assert!(most.load(Relaxed) <= 2);
        let inner = cache.inner.lock();
        assert_eq!((inner.reserved, inner.gathering), (0, 0));
    }

    #[test]
    fn failures_and_panics_reach_the_caller_and_are_not_kept() {
        let cache = Cache::new(1 << 20);
        assert!(cache.get(key(0), || Err(Error::damaged("bad"))).is_err());
        let panicked = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
            cache.get(key(0), || panic!("decoder bug"))
        }));
        assert!(panicked.is_err());
        assert!(cache.get(key(0), || Ok(vec![1])).is_ok());
    }

    #[test]
    fn a_block_beyond_the_budget_is_served_but_not_kept() {
        let cache = Cache::new(100);
        assert_eq!(cache.get(key(0), || Ok(vec![1; 1000])).unwrap().len(), 1000);
        assert_eq!(cache.status().blocks, 0);
    }

    #[test]
    fn what_is_elsewhere_is_not_decoded_unless_it_is_here() {
        let cache = Cache::new(10_000);
        let need = Need {
            len: 10,
            passes: true,
            ..Need::default()
        };
        let read = |elsewhere: bool| {
            let fill = |buf: &mut [u8]| {
                buf.fill(7);
                Ok(())
            };
            let block = cache.read_unless(key(1), need, || elsewhere, fill);
            block.unwrap().map(|block| block.to_vec())
        };
        assert_eq!(read(true), None);
        assert_eq!(read(false), Some(vec![7; 10]));
        assert_eq!(read(true), Some(vec![7; 10]));
        assert_eq!(cache.status().misses, 1);
    }

    #[test]
    fn what_is_being_decoded_counts() {
        let need = Need {
            len: 1000,
            beside: 500,
            ..Need::default()
        };
        let cache = Cache::new(2000);
        let busy = AtomicUsize::new(0);
        std::thread::scope(|scope| {
            for block in 0..6 {
                let (cache, busy) = (&cache, &busy);
                scope.spawn(move || {
                    let load = |buf: &mut [u8]| {
                        assert_eq!(busy.fetch_add(1, Relaxed), 0, "two in a budget for one");
                        std::thread::sleep(std::time::Duration::from_millis(5));
                        busy.fetch_sub(1, Relaxed);
                        buf.fill(block as u8);
                        Ok(())
                    };
                    let got = cache.read(key(block), need, load).unwrap();
                    assert!(got.iter().all(|&byte| byte == block as u8));
                });
            }
        });
        assert_eq!(cache.status().misses, 6);
        // Larger than the budget: decoded alone, and not cached.
        let large = Need {
            len: 10_000,
            beside: 0,
            ..Need::default()
        };
        let got = cache.read(key(9), large, |buf| {
            buf.fill(1);
            Ok(())
        });
        assert_eq!(got.unwrap().len(), 10_000);
        assert!(!cache.has(&key(9)));
    }

    #[test]
    fn reading_ahead_is_counted_by_what_became_of_it() {
        let need = Need {
            len: 1000,
            beside: 0,
            ..Need::default()
        };
        let cache = Cache::new(3 * (1000 + OVERHEAD));
        let fill = |buf: &mut [u8]| {
            buf.fill(3);
            Ok(())
        };
        cache.ahead(key(0), need, || true, fill);
        cache.ahead(key(0), need, || true, |_| panic!("it is here"));
        cache.ahead(key(9), need, || false, |_| panic!("not wanted"));
        cache.ahead(key(1), need, || true, fill);
        cache.read(key(1), need, |_| panic!("it is here")).unwrap();
        for block in 2..5 {
            cache.read(key(block), need, fill).unwrap();
        }
        let status = cache.status();
        assert_eq!((status.ahead_used, status.ahead_wasted), (1, 1));
        cache.consumed(&key(4));
        cache.consumed(&key(5));
        assert!(!cache.has(&key(4)));
        assert_eq!(cache.status().consumed, 1);
        // The next reader gets its bytes from the kernel; a reader that requests it nevertheless does not follow
        // another one.
        cache.ahead(key(4), need, || true, |_| panic!("read already"));
        cache.read(key(4), need, fill).unwrap();
        cache.ahead(key(5), need, || true, fill);
        assert!(cache.has(&key(5)));
    }
}
