//! Fetching absent blocks of an object: one request for each block, no matter how many threads want it.

use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Instant;

use super::super::blocks::{BLOCK, bytes_of, requests, touched};
use super::super::error::{Cause, RemoteError};
use super::super::flight::{Flight, Outcome, when_over};
use super::super::origin::Got;
use super::super::runtime;
use super::{LOOKS, RemoteObject, late, lock, opens};
use crate::file::Then;

/// The most blocks of one request.
const PART: u64 = (8 << 20) / BLOCK;

/// The most metadata blocks that are freed last: 64 MiB.
const MOST_LOOKED: u64 = (64 << 20) / BLOCK;

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
                    self.look(&blocks, &absent);
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
    ) -> Result<Option<Arc<Got>>, RemoteError> {
        match flight.wait() {
            Err(_) if flight.opens < opens && look < LOOKS => Ok(None),
            outcome => outcome.map(Some),
        }
    }

    /// Remembers which blocks are of metadata.
    fn look(&self, blocks: &[Range<u64>], absent: &[u64]) {
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
        let flights = lock(&self.flights);
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
        let mut flights = lock(&self.flights);
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
                Err(RemoteError::new(e.cause, &about, e.message))
            }
            Err(_) => Err(late(&about, &self.settings)),
        };
        if let Err(why) = &outcome {
            let sent = (flight.opens, begun);
            self.failures.add(&blocks, sent, self.settings.timeout, why);
        }
        self.land(&blocks, flight, outcome);
    }

    fn land(&self, blocks: &Range<u64>, flight: &Arc<Flight>, outcome: Outcome) {
        let mut flights = lock(&self.flights);
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
    pub(super) fn store(&self, got: &Got, metadata: bool) {
        let arrived = got.bytes.len() as u64;
        self.traffic.bytes.fetch_add(arrived, Ordering::Relaxed);
        self.kept.add(got.start, &got.bytes, metadata);
    }
}
