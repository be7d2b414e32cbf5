//! Fetching absent blocks of an object: one request for each block, no matter how many threads want it.
//!
//! A failed request that took long is remembered for a moment. A program waits for a read once, but the kernel asks
//! twice: it asks again for pages that it failed to read ahead when the program reaches them. The second request gets
//! the answer of the first.
//!
//! An open of a file asks anew. It forgets the failures, and the failure of a request that was sent before the open
//! does not affect reads that follow the open: it is not noted, and a read that waited for the request sends its own. A
//! lookup is no open: a program that only looks at the mount does not prolong the reads of others.

use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use parking_lot::{Condvar, Mutex, MutexGuard};

use super::super::disk::{BLOCK, bytes_of, touched};
use super::super::error::{Cause, RemoteError};
use super::super::origin::Fetched;
use super::super::runtime;
use super::{LOOKS, RemoteObject};
use crate::file::Then;

/// The most blocks of one request.
const PART: u64 = (8 << 20) / BLOCK;

/// The most metadata blocks that are freed last: 64 MiB.
const MOST_LOOKED: u64 = (64 << 20) / BLOCK;

/// The time for which a failure is remembered.
const COUNTS: Duration = Duration::from_secs(2);

/// A failure is recorded if it took at least one `LONG`-th of the time limit: a request that fails sooner is retried.
const LONG: u32 = 4;

/// The number of files that this process has opened for a reader.
static OPENS: AtomicU64 = AtomicU64::new(0);

/// The outcome of a request.
type Outcome = Result<Arc<Fetched>, RemoteError>;

/// A request in flight. Several threads may wait for the same one.
#[derive(Default)]
pub(super) struct Flight {
    state: Mutex<State>,
    landed: Condvar,
    /// The number of files that the process had opened when it was sent.
    opens: u64,
}

/// The outcome of a request, and what waits for it.
#[derive(Default)]
struct State {
    outcome: Option<Outcome>,
    /// Called once there is an outcome.
    then: Vec<Arc<Landings>>,
}

/// A function that is called when several requests are complete.
struct Landings {
    left: AtomicUsize,
    then: Mutex<Option<Then>>,
}

impl Flight {
    /// Makes one that is under way, sent after so many opens.
    fn new(opens: u64) -> Arc<Self> {
        Arc::new(Self {
            opens,
            ..Self::default()
        })
    }

    /// Hands the outcome to the waiting threads.
    fn land(&self, outcome: Outcome) {
        let mut state = self.state.lock();
        state.outcome = Some(outcome);
        let then = std::mem::take(&mut state.then);
        drop(state);
        self.landed.notify_all();
        for all in then {
            all.one_less();
        }
    }

    /// Waits for the outcome. The wait always ends: the task that carries the request out has a time limit.
    fn wait(&self) -> Outcome {
        let mut state = self.state.lock();
        loop {
            if let Some(outcome) = &state.outcome {
                return outcome.clone();
            }
            self.landed.wait(&mut state);
        }
    }
}

impl Landings {
    fn one_less(&self) {
        if self.left.fetch_sub(1, Ordering::AcqRel) == 1 {
            let then = self.then.lock().take();
            if let Some(then) = then {
                then();
            }
        }
    }
}

/// Calls a function once all the requests are complete: immediately, or in the thread that completes the last one.
fn when_over(flights: &[Arc<Flight>], then: Then) {
    let all = Arc::new(Landings {
        // One more than the number of requests, so that the function is not called during the loop.
        left: AtomicUsize::new(flights.len() + 1),
        then: Mutex::new(Some(then)),
    });
    for flight in flights {
        let mut state = flight.state.lock();
        match state.outcome {
            None => state.then.push(all.clone()),
            Some(_) => {
                drop(state);
                all.one_less();
            }
        }
    }
    all.one_less();
}

/// Notes that a file was opened for a reader: failures of requests that were sent before no longer count.
pub fn opened() {
    OPENS.fetch_add(1, Ordering::Relaxed);
}

/// Returns the number of opens so far.
pub(super) fn opens() -> u64 {
    OPENS.load(Ordering::Relaxed)
}

/// Blocks that could not be fetched.
struct Failure {
    blocks: Range<u64>,
    at: Instant,
    opens: u64,
    why: RemoteError,
}

impl Failure {
    fn counts(&self) -> bool {
        self.opens == opens() && self.at.elapsed() < COUNTS
    }
}

/// The recent failures of an object.
#[derive(Default)]
pub(super) struct Failures(Mutex<Vec<Failure>>);

impl Failures {
    fn list(&self) -> MutexGuard<'_, Vec<Failure>> {
        let mut list = self.0.lock();
        list.retain(Failure::counts);
        list
    }

    /// Notes that a request failed. `opens` is the number of opens when it was sent, at `begun`.
    fn add(
        &self,
        blocks: &Range<u64>,
        (opens, begun): (u64, Instant),
        timeout: Duration,
        why: &RemoteError,
    ) {
        if begun.elapsed() >= timeout / LONG {
            self.list().push(Failure {
                blocks: blocks.clone(),
                at: Instant::now(),
                opens,
                why: why.clone(),
            });
        }
    }

    /// Removes the blocks that failed a moment ago from a list; returns the reason for one of them.
    fn take_from(&self, absent: &mut Vec<u64>) -> Option<RemoteError> {
        let failures = self.list();
        let mut why = None;
        absent.retain(|block| {
            let failure = failures
                .iter()
                .find(|failure| failure.blocks.contains(block));
            if let Some(failure) = failure {
                why.get_or_insert_with(|| failure.why.clone());
            }
            failure.is_none()
        });
        why
    }
}

impl RemoteObject {
    /// Fetches the absent blocks of scattered ranges, and waits for them. Blocks between the ranges stay absent. A
    /// range no longer than a block counts as metadata, which is freed last.
    pub fn fetch(self: &Arc<Self>, ranges: &[Range<u64>]) -> Result<(), RemoteError> {
        self.stands()?;
        let (metadata, data): (Vec<_>, Vec<_>) = ranges
            .iter()
            .cloned()
            .partition(|range| range.end.saturating_sub(range.start) <= BLOCK);
        let opens = opens();
        for look in 1..=LOOKS {
            let mut flights = Vec::new();
            for (ranges, metadata) in [(&metadata, true), (&data, false)] {
                let blocks = self.blocks(ranges);
                let absent = self.absent(&blocks);
                if metadata {
                    self.note_metadata(&blocks, &absent);
                }
                flights.extend(self.begin(absent, 0, metadata, false));
            }
            let mut over = true;
            for flight in flights {
                over &= self.arrived(&flight, opens, look)?.is_some();
            }
            if over {
                break;
            }
        }
        Ok(())
    }

    /// Waits for a request. `None`: the request failed and is older than an open which came before this read (`opens`
    /// counts opens). The last look takes any outcome.
    pub(super) fn arrived(
        &self,
        flight: &Flight,
        opens: u64,
        look: u32,
    ) -> Result<Option<Arc<Fetched>>, RemoteError> {
        match flight.wait() {
            Err(_) if flight.opens < opens && look < LOOKS => Ok(None),
            outcome => outcome.map(Some),
        }
    }

    /// Remembers which blocks are of metadata.
    fn note_metadata(&self, blocks: &[Range<u64>], absent: &[u64]) {
        let new = |&block: &u64| {
            !self.looked.has(block)
                && self.looked_at.fetch_add(1, Ordering::Relaxed) < MOST_LOOKED
                && self.looked.add(block)
        };
        let new: Vec<_> = blocks.iter().cloned().flatten().filter(new).collect();
        let there = |block: &u64| absent.binary_search(block).is_err();
        self.kept.mark(new.into_iter().filter(there));
    }

    /// Begins to fetch the absent blocks of some ranges, and of gaps of up to `gap` bytes between them, for a later
    /// read.
    pub fn prefetch(self: &Arc<Self>, ranges: &[Range<u64>], gap: u64, then: Then) {
        // The later read reports a failure.
        let absent = self.absent(&self.blocks(ranges));
        when_over(&self.begin(absent, gap / BLOCK, false, false), then);
    }

    /// Calls a function when ranges are present, if each of their blocks is present or in flight now; otherwise drops
    /// the function.
    pub fn when_there(&self, ranges: &[Range<u64>], then: Then) {
        let absent = self.absent(&self.blocks(ranges));
        let mut waiting: Vec<Arc<Flight>> = Vec::new();
        let flights = self.flights.lock();
        for block in absent {
            let Some(flight) = flights.get(&block) else {
                if self.kept.has(block) {
                    continue;
                }
                return;
            };
            if !waiting.iter().any(|known| Arc::ptr_eq(known, flight)) {
                waiting.push(flight.clone());
            }
        }
        drop(flights);
        when_over(&waiting, then);
    }

    /// Returns true if all blocks of the ranges are present.
    pub fn has(&self, ranges: &[Range<u64>]) -> bool {
        self.absent(&self.blocks(ranges)).is_empty()
    }

    /// Returns the blocks that ranges overlap.
    fn blocks(&self, ranges: &[Range<u64>]) -> Vec<Range<u64>> {
        let inside = |range: &Range<u64>| {
            let end = range.end.min(self.version.size);
            touched(&(range.start.min(end)..end))
        };
        ranges.iter().map(inside).collect()
    }

    /// Returns the absent blocks, in order.
    fn absent(&self, blocks: &[Range<u64>]) -> Vec<u64> {
        let absent = blocks.iter().flat_map(|run| self.kept.absent(run.clone()));
        let mut absent: Vec<_> = absent.collect();
        absent.sort_unstable();
        absent.dedup();
        absent
    }

    /// Returns the requests in flight for absent blocks, and sends the missing ones; with `alone`, sends all of them.
    /// For blocks that recently failed, returns a request that has failed.
    pub(super) fn begin(
        self: &Arc<Self>,
        mut absent: Vec<u64>,
        gap: u64,
        metadata: bool,
        alone: bool,
    ) -> Vec<Arc<Flight>> {
        let mut waiting: Vec<Arc<Flight>> = Vec::new();
        if absent.is_empty() {
            return waiting;
        }
        let mut flights = self.flights.lock();
        absent.retain(|block| {
            // The block may have arrived in the meantime.
            if alone || self.kept.has(*block) {
                return alone;
            }
            let Some(flight) = flights.get(block) else {
                return true;
            };
            if !waiting.iter().any(|known| Arc::ptr_eq(known, flight)) {
                waiting.push(flight.clone());
            }
            false
        });
        let opens = opens();
        let failed = self.failures.take_from(&mut absent).map(|why| {
            let flight = Flight::new(opens);
            flight.land(Err(why));
            flight
        });
        let mut sent = Vec::new();
        for blocks in requests(absent, gap, PART) {
            let flight = Flight::new(opens);
            for block in blocks.clone() {
                flights.entry(block).or_insert_with(|| flight.clone());
            }
            sent.push((blocks, flight));
        }
        drop(flights);
        waiting.extend(failed);
        for (blocks, flight) in sent {
            waiting.push(flight.clone());
            let object = self.clone();
            let carried = flight.clone();
            let run = blocks.clone();
            let carry = async move { object.carry(run, metadata, &carried).await };
            if let Err(e) = runtime::spawn(carry) {
                self.land(&blocks, &flight, Err(self.failed(e)));
            }
        }
        waiting
    }

    /// Carries out a request.
    async fn carry(self: Arc<Self>, blocks: Range<u64>, metadata: bool, flight: &Arc<Flight>) {
        let range = bytes_of(&blocks, self.version.size);
        let (about, begun) = (self.address.to_string(), Instant::now());
        let asked = async {
            // The semaphore is never closed. Waiting for a turn counts against the time limit of the reader.
            let _turn = self.turns.acquire().await;
            self.traffic.requests.fetch_add(1, Ordering::Relaxed);
            self.origin.get(range, Some(&self.version)).await
        };
        let outcome = match tokio::time::timeout(self.settings.timeout, asked).await {
            Ok(Ok(got)) => {
                // Another request for the whole document may have brought the blocks.
                if got.room.is_none() || !self.kept.absent(blocks.clone()).is_empty() {
                    self.store(&got, metadata);
                }
                Ok(got)
            }
            Ok(Err(e)) => {
                if matches!(e.cause, Cause::Changed | Cause::Missing) {
                    self.replaced(&e.message);
                }
                Err(e.about(&about))
            }
            Err(_) => Err(RemoteError::late(self.settings.timeout).about(&about)),
        };
        if let Err(why) = &outcome {
            let sent = (flight.opens, begun);
            self.failures.add(&blocks, sent, self.settings.timeout, why);
        }
        self.land(&blocks, flight, outcome);
    }

    fn land(&self, blocks: &Range<u64>, flight: &Arc<Flight>, outcome: Outcome) {
        let mut flights = self.flights.lock();
        for block in blocks.clone() {
            if flights
                .get(&block)
                .is_some_and(|known| Arc::ptr_eq(known, flight))
            {
                flights.remove(&block);
            }
        }
        drop(flights);
        flight.land(outcome);
    }

    /// Stores the bytes of a response.
    pub(super) fn store(&self, got: &Fetched, metadata: bool) {
        let arrived = got.bytes.len() as u64;
        self.traffic.bytes.fetch_add(arrived, Ordering::Relaxed);
        self.kept.add(got.start, &got.bytes, metadata);
    }
}

/// Joins runs of blocks that are at most `gap` blocks apart, and splits runs longer than `most`.
pub(super) fn requests(mut blocks: Vec<u64>, gap: u64, most: u64) -> Vec<Range<u64>> {
    blocks.sort_unstable();
    let mut runs: Vec<Range<u64>> = Vec::new();
    for block in blocks {
        match runs.last_mut() {
            Some(run)
                if block <= run.end.saturating_add(gap)
                    && block.saturating_sub(run.start) < most =>
            {
                run.end = run.end.max(block + 1);
            }
            _ => runs.push(block..block + 1),
        }
    }
    runs
}

#[cfg(test)]
mod tests {
    use std::time::SystemTime;

    use super::super::super::origin::Version;
    use super::*;

    #[test]
    fn what_waits_for_several_is_called_after_the_last() {
        let flights = [Flight::new(0), Flight::new(0), Flight::new(0)];
        let calls = Arc::new(AtomicUsize::new(0));
        let count = || -> Then {
            let calls = calls.clone();
            Box::new(move || {
                calls.fetch_add(1, Ordering::Relaxed);
            })
        };
        let called = || calls.load(Ordering::Relaxed);
        let got = || {
            let version = Version {
                size: 0,
                etag: None,
                modified: SystemTime::UNIX_EPOCH,
            };
            Ok(Arc::new(Fetched {
                version,
                start: 0,
                bytes: Vec::new(),
                room: None,
            }))
        };
        flights[1].land(got());
        when_over(&flights, count());
        flights[0].land(got());
        assert_eq!(called(), 0);
        flights[2].land(got());
        assert_eq!(called(), 1);
        when_over(&flights, count());
        when_over(&[], count());
        assert_eq!(called(), 3);
        assert!(flights[2].wait().is_ok());
    }

    /// One test: the number of opens is the process's.
    #[test]
    fn what_took_long_counts_for_a_moment_and_until_an_open() {
        let late = RemoteError::new(Cause::Late, "http://h/x", "no answer");
        let failures = Failures::default();
        let begun = Instant::now() - Duration::from_secs(10);
        let sent = (opens(), begun);
        failures.add(&(0..10), sent, Duration::from_secs(60), &late);
        let mut absent = vec![3, 4];
        assert!(failures.take_from(&mut absent).is_none() && absent == [3, 4]);
        failures.add(&(4..10), sent, Duration::from_secs(10), &late);
        let why = failures.take_from(&mut absent).unwrap();
        assert_eq!((why.message, &absent[..]), (late.message.clone(), &[3][..]));
        failures.list()[0].at -= COUNTS;
        absent.push(5);
        assert!(failures.take_from(&mut absent).is_none() && absent == [3, 5]);

        let add = |opens| failures.add(&(0..10), (opens, begun), Duration::from_secs(10), &late);
        add(opens());
        opened();
        assert!(failures.take_from(&mut vec![5]).is_none());
        // A request that was sent before the open fails after it.
        add(opens() - 1);
        assert!(failures.take_from(&mut vec![5]).is_none());
        add(opens());
        assert!(failures.take_from(&mut vec![5]).is_some());
    }

    #[test]
    fn near_blocks_are_asked_for_together() {
        assert_eq!(requests(vec![3, 1, 2, 9], 0, 100), [1..4, 9..10]);
        assert_eq!(requests(vec![1, 4, 20], 2, 100), [1..5, 20..21]);
        assert_eq!(requests((0..10).collect(), 0, 4), [0..4, 4..8, 8..10]);
        assert!(requests(Vec::new(), 1, 1).is_empty());
    }
}
