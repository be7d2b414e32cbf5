//! Decoded pieces of datasets, least recently used first out, bounded in bytes.
//!
//! A piece is decoded once however many readers wait for it. A failure is handed to everyone who waits
//! and is not remembered. What is being decoded counts from its beginning: room is made first, and who finds
//! none waits for others to finish. A piece larger than the whole budget is decoded when nothing else is,
//! handed out, and not kept. Loading a piece must not ask for another one, unless it says so (`Need::gathers`): such
//! pieces have a share of the budget that they wait for among themselves, and all others go on in what is left.

mod counters;
mod flight;
mod piece;

use std::collections::HashMap;
use std::num::NonZeroUsize;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::{Arc, Condvar, Mutex, MutexGuard};

use lru::LruCache;

use crate::error::Result;
use crate::io::buffer::{Buffer, Pool};
use crate::io::lru::WeightedLru;
pub use counters::CacheStatus;
use counters::Counters;
use flight::{Flight, Landing};
pub use piece::{Key, Need, Piece};
use piece::{OVERHEAD, cost};

struct Entry {
    piece: Piece,
    /// Decoded ahead of a reader who has not come yet.
    ahead: bool,
}

struct Inner {
    /// The pieces kept; each weighs its cost.
    pieces: WeightedLru<Key, Entry>,
    /// Bytes of the pieces being decoded.
    reserved: u64,
    /// Of the pieces that are being made of others.
    gathering: u64,
    flights: HashMap<Key, Arc<Flight>>,
    /// Pieces that some reader has read to their end lately: another one, behind him, gets their bytes from the
    /// kernel, and they are not worth decoding ahead. Forgotten when one of them is asked for after all.
    consumed: LruCache<Key, ()>,
}

impl Inner {
    fn has(&self, key: &Key) -> bool {
        self.pieces.contains(key) || self.flights.contains_key(key)
    }

    /// The count that the room for a piece is taken from.
    fn taken(&mut self, need: Need) -> &mut u64 {
        match need.gathers {
            true => &mut self.gathering,
            false => &mut self.reserved,
        }
    }

    fn taken_by_all(&self) -> u64 {
        self.reserved.saturating_add(self.gathering)
    }

    /// Whether so much more can be decoded within the budget.
    fn has_room(&self, bytes: u64, limit: u64) -> bool {
        self.taken_by_all().saturating_add(bytes) <= limit
    }
}

/// The share of the budget that pieces may take while they are made of others.
const GATHERING: u64 = 4;

/// Pieces of which is remembered that they were read.
const MOST_CONSUMED: usize = 4096;

/// The cache of decoded pieces, shared by all stores of a mount.
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
                pieces: WeightedLru::new(limit),
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

    /// Returns true if a piece of this size can be kept.
    pub fn holds(&self, len: usize) -> bool {
        len as u64 + OVERHEAD <= self.limit
    }

    /// Returns true if a piece is here, or will be soon.
    pub fn has(&self, key: &Key) -> bool {
        lock(&self.inner).has(key)
    }

    /// Returns true if a piece is being decoded: a reader would have to wait for it.
    pub fn is_under_way(&self, key: &Key) -> bool {
        lock(&self.inner).flights.contains_key(key)
    }

    /// Returns the number of pieces that are being decoded now.
    pub fn decoding(&self) -> usize {
        let inner = lock(&self.inner);
        inner.flights.values().filter(|f| f.decodes).count()
    }

    /// Returns the piece, from memory or from `fill`, which fills a buffer of old bytes; whoever comes second waits
    /// for the first.
    pub fn read(
        &self,
        key: Key,
        need: Need,
        fill: impl FnOnce(&mut [u8]) -> Result<()>,
    ) -> Result<Piece> {
        self.reader(lock(&self.inner), key, need, || self.filled(need, fill))
    }

    /// Returns the piece as `read` does; `None` if it is not here and `elsewhere()`, which is asked when nobody can
    /// give the piece up in between.
    pub fn read_unless(
        &self,
        key: Key,
        need: Need,
        elsewhere: impl FnOnce() -> bool,
        fill: impl FnOnce(&mut [u8]) -> Result<()>,
    ) -> Result<Option<Piece>> {
        let inner = lock(&self.inner);
        if !inner.has(&key) && elsewhere() {
            return Ok(None);
        }
        self.reader(inner, key, need, || self.filled(need, fill))
            .map(Some)
    }

    /// Decodes a piece for a reader who will come, unless it is here, there is no room, or it is not `wanted`
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

    /// Counts a piece that was decoded for somebody who keeps it himself.
    pub fn passed_on(&self, len: usize) {
        self.counters.misses.fetch_add(1, Relaxed);
        let decoded = &self.counters.decoded_bytes;
        decoded.fetch_add(len as u64, Relaxed);
    }

    /// Gives up a piece that nobody will want again.
    pub fn consumed(&self, key: &Key) {
        let mut inner = lock(&self.inner);
        inner.consumed.put(*key, ());
        if inner.pieces.pop(key).is_some() {
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
    ) -> Result<Piece> {
        if let Some(entry) = inner.pieces.get(&key) {
            self.counters.hits.fetch_add(1, Relaxed);
            if std::mem::take(&mut entry.ahead) {
                self.counters.ahead_used.fetch_add(1, Relaxed);
            }
            return Ok(entry.piece.clone());
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
    ) -> Result<Piece> {
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

    /// Ends the decoding of a piece, and keeps the piece if there is one.
    fn land(&self, key: Key, need: Need, ahead: bool, flight: &Flight, outcome: &Result<Piece>) {
        let mut inner = lock(&self.inner);
        inner.flights.remove(&key);
        *inner.taken(need) -= need.bytes();
        let met = flight.is_met();
        if ahead && met {
            self.counters.ahead_used.fetch_add(1, Relaxed);
        }
        if let Ok(piece) = outcome {
            self.keep(&mut inner, key, piece, ahead && !met);
        }
        drop(inner);
        self.room.notify_all();
    }

    /// Takes room for a piece out of the budget; waits while others use it.
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

    fn keep(&self, inner: &mut Inner, key: Key, piece: &Piece, ahead: bool) {
        if cost(piece) > self.limit {
            return;
        }
        let entry = Entry {
            piece: piece.clone(),
            ahead,
        };
        inner.pieces.put(key, entry, cost(piece));
        self.evict(inner);
    }

    fn evict(&self, inner: &mut Inner) {
        while let Some(old) = inner.pieces.pop_excess(inner.taken_by_all()) {
            self.counters.evictions.fetch_add(1, Relaxed);
            if old.ahead {
                self.counters.ahead_wasted.fetch_add(1, Relaxed);
            }
        }
    }

    /// Returns the counters, and what the cache holds now.
    pub fn status(&self) -> CacheStatus {
        let inner = lock(&self.inner);
        let held = inner.pieces.values().map(|entry| entry.piece.len() as u64);
        CacheStatus {
            limit: self.limit,
            bytes: held.sum(),
            pieces: inner.pieces.len(),
            ..self.counters.status()
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::error::Error;
    use std::sync::Barrier;
    use std::sync::atomic::AtomicUsize;

    impl Cache {
        /// A piece for which no room is made.
        fn get(&self, key: Key, load: impl FnOnce() -> Result<Vec<u8>>) -> Result<Piece> {
            let inner = lock(&self.inner);
            self.reader(inner, key, Need::default(), || load().map(Buffer::from))
        }
    }

    fn key(piece: u64) -> Key {
        Key {
            file: 1,
            object: 2,
            form: 0,
            piece,
        }
    }

    #[test]
    fn a_piece_is_decoded_once_for_all_who_wait() {
        let cache = Cache::new(1 << 20);
        let loads = AtomicUsize::new(0);
        let start = Barrier::new(8);
        std::thread::scope(|scope| {
            for _ in 0..8 {
                scope.spawn(|| {
                    start.wait();
                    let piece = cache.get(key(0), || {
                        loads.fetch_add(1, Relaxed);
                        std::thread::sleep(std::time::Duration::from_millis(50));
                        Ok(vec![7; 10])
                    });
                    assert_eq!(piece.unwrap()[..], [7; 10]);
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
        for piece in 0..3 {
            cache.get(key(piece), || Ok(vec![0; 1000])).unwrap();
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
    fn pieces_made_of_others_wait_for_each_other_and_never_for_ever() {
        let cache = Cache::new(10_000);
        let (making, most) = (AtomicUsize::new(0), AtomicUsize::new(0));
        let gathered = |n: u64| {
            let need = Need {
                len: 1000,
                gathers: true,
                ..Need::default()
            };
            let piece = cache.read(key(n), need, |out| {
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
            assert_eq!(piece.unwrap()[..], [7; 1000]);
        };
        std::thread::scope(|scope| {
            for thread in 0..8 {
                let gathered = &gathered;
                scope.spawn(move || (0..20).for_each(|n| gathered(thread * 20 + n)));
            }
        });
        // A quarter of the budget has room for two.
        assert!(most.load(Relaxed) <= 2);
        let inner = lock(&cache.inner);
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
    fn a_piece_beyond_the_budget_is_served_but_not_kept() {
        let cache = Cache::new(100);
        assert_eq!(cache.get(key(0), || Ok(vec![1; 1000])).unwrap().len(), 1000);
        assert_eq!(cache.status().pieces, 0);
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
            let piece = cache.read_unless(key(1), need, || elsewhere, fill);
            piece.unwrap().map(|piece| piece.to_vec())
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
            for piece in 0..6 {
                let (cache, busy) = (&cache, &busy);
                scope.spawn(move || {
                    let load = |buf: &mut [u8]| {
                        assert_eq!(busy.fetch_add(1, Relaxed), 0, "two in a budget for one");
                        std::thread::sleep(std::time::Duration::from_millis(5));
                        busy.fetch_sub(1, Relaxed);
                        buf.fill(piece as u8);
                        Ok(())
                    };
                    let got = cache.read(key(piece), need, load).unwrap();
                    assert!(got.iter().all(|&byte| byte == piece as u8));
                });
            }
        });
        assert_eq!(cache.status().misses, 6);
        // Larger than everything: alone, and not kept.
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
        for piece in 2..5 {
            cache.read(key(piece), need, fill).unwrap();
        }
        let status = cache.status();
        assert_eq!((status.ahead_used, status.ahead_wasted), (1, 1));
        cache.consumed(&key(4));
        cache.consumed(&key(5));
        assert!(!cache.has(&key(4)));
        assert_eq!(cache.status().consumed, 1);
        // Who follows finds its bytes with the kernel; who asks all the same is behind somebody no more.
        cache.ahead(key(4), need, || true, |_| panic!("read already"));
        cache.read(key(4), need, fill).unwrap();
        cache.ahead(key(5), need, || true, fill);
        assert!(cache.has(&key(5)));
    }
}
