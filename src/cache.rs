//! Decoded pieces of datasets, least recently used first out, bounded in bytes.
//!
//! A piece is decoded once however many readers wait for it. A failure is handed to everyone who waits
//! and is not remembered. A piece larger than the whole budget is handed out but not kept.

use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Condvar, Mutex, MutexGuard};

use lru::LruCache;
use serde::Serialize;

use crate::error::{Error, Result};

/// What a piece is: the store file's serial number, the object, the form it is read in, its number.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Key {
    pub file: u64,
    pub object: u64,
    pub form: u32,
    pub piece: u64,
}

/// The bytes of a piece, shared with the readers that still hold them.
pub type Piece = Arc<Vec<u8>>;

/// Bytes that an entry costs beside its content.
const OVERHEAD: u64 = 200;

#[derive(Default)]
struct Flight {
    outcome: Mutex<Option<Result<Piece>>>,
    landed: Condvar,
}

struct Inner {
    pieces: LruCache<Key, Piece>,
    bytes: u64,
    flights: HashMap<Key, Arc<Flight>>,
}

/// Counters since the start; all in pieces but for `decoded_bytes`.
#[derive(Default)]
struct Counters {
    hits: AtomicU64,
    misses: AtomicU64,
    evictions: AtomicU64,
    decoded_bytes: AtomicU64,
}

/// A snapshot of the cache for `status.json`.
#[derive(Clone, Debug, Serialize)]
pub struct CacheStatus {
    pub limit: u64,
    /// Decoded bytes held; the limit counts what an entry costs beside them as well.
    pub bytes: u64,
    pub pieces: usize,
    pub hits: u64,
    pub misses: u64,
    pub evictions: u64,
    pub decoded_bytes: u64,
}

/// The cache; shared by all stores of a mount.
pub struct Cache {
    limit: u64,
    inner: Mutex<Inner>,
    counters: Counters,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    // Nothing that can panic runs under these locks but allocation.
    mutex.lock().unwrap_or_else(|e| e.into_inner())
}

impl Cache {
    /// A cache of at most `limit` bytes.
    pub fn new(limit: u64) -> Self {
        Self {
            limit,
            inner: Mutex::new(Inner {
                pieces: LruCache::unbounded(),
                bytes: 0,
                flights: HashMap::new(),
            }),
            counters: Counters::default(),
        }
    }

    /// Whether a piece of this size can be kept.
    pub fn holds(&self, len: usize) -> bool {
        len as u64 + OVERHEAD <= self.limit
    }

    /// The piece, from memory or from `load`; whoever comes second waits for the first.
    pub fn get(&self, key: Key, load: impl FnOnce() -> Result<Vec<u8>>) -> Result<Piece> {
        let flight = {
            let mut inner = lock(&self.inner);
            if let Some(piece) = inner.pieces.get(&key) {
                self.counters.hits.fetch_add(1, Relaxed);
                return Ok(piece.clone());
            }
            if let Some(flight) = inner.flights.get(&key).cloned() {
                drop(inner);
                self.counters.hits.fetch_add(1, Relaxed);
                return wait(&flight);
            }
            let flight = Arc::new(Flight::default());
            inner.flights.insert(key, flight.clone());
            flight
        };
        self.counters.misses.fetch_add(1, Relaxed);
        // Lands the flight even if `load` panics: nobody may wait for ever.
        let mut landing = Landing {
            cache: self,
            key,
            flight,
            outcome: Err(Error::damaged("reading a piece failed unexpectedly")),
        };
        landing.outcome = load().map(|bytes| {
            self.counters
                .decoded_bytes
                .fetch_add(bytes.len() as u64, Relaxed);
            Arc::new(bytes)
        });
        landing.outcome.clone()
    }

    fn keep(&self, inner: &mut Inner, key: Key, piece: &Piece) {
        if !self.holds(piece.len()) {
            return;
        }
        let cost = piece.len() as u64 + OVERHEAD;
        if let Some(old) = inner.pieces.put(key, piece.clone()) {
            inner.bytes -= old.len() as u64 + OVERHEAD;
        }
        inner.bytes += cost;
        while inner.bytes > self.limit {
            let Some((_, old)) = inner.pieces.pop_lru() else {
                break;
            };
            inner.bytes -= old.len() as u64 + OVERHEAD;
            self.counters.evictions.fetch_add(1, Relaxed);
        }
    }

    pub fn status(&self) -> CacheStatus {
        let inner = lock(&self.inner);
        CacheStatus {
            limit: self.limit,
            bytes: inner.bytes - OVERHEAD * inner.pieces.len() as u64,
            pieces: inner.pieces.len(),
            hits: self.counters.hits.load(Relaxed),
            misses: self.counters.misses.load(Relaxed),
            evictions: self.counters.evictions.load(Relaxed),
            decoded_bytes: self.counters.decoded_bytes.load(Relaxed),
        }
    }
}

fn wait(flight: &Flight) -> Result<Piece> {
    let mut outcome = lock(&flight.outcome);
    loop {
        if let Some(outcome) = &*outcome {
            return outcome.clone();
        }
        outcome = flight
            .landed
            .wait(outcome)
            .unwrap_or_else(|e| e.into_inner());
    }
}

struct Landing<'a> {
    cache: &'a Cache,
    key: Key,
    flight: Arc<Flight>,
    outcome: Result<Piece>,
}

impl Drop for Landing<'_> {
    fn drop(&mut self) {
        let mut inner = lock(&self.cache.inner);
        inner.flights.remove(&self.key);
        if let Ok(piece) = &self.outcome {
            self.cache.keep(&mut inner, self.key, piece);
        }
        drop(inner);
        *lock(&self.flight.outcome) = Some(self.outcome.clone());
        self.flight.landed.notify_all();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Barrier;
    use std::sync::atomic::AtomicUsize;

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
                    assert_eq!(*piece.unwrap(), vec![7; 10]);
                });
            }
        });
        assert_eq!(loads.load(Relaxed), 1);
        assert_eq!(cache.status().misses, 1);
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
}
