//! Having what is absent of an object fetched: one request for each block, however many want it.

use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use super::super::blocks::{BLOCK, bytes_of, requests, touched};
use super::super::error::{Cause, RemoteError};
use super::super::flight::{Flight, Outcome, when_over};
use super::super::origin::Got;
use super::super::runtime;
use super::{RemoteObject, late, lock};
use crate::io::file::far::Then;

/// Blocks of one request at the most.
const PART: u64 = (8 << 20) / BLOCK;

/// Blocks of metadata that are kept longest at the most: 64 MiB.
const MOST_LOOKED: u64 = (64 << 20) / BLOCK;

impl RemoteObject {
    /// Fetches what is not there of scattered ranges, and waits for it. What lies between them stays away. Ranges that are no
    /// longer than a block are taken for metadata, which are kept longest.
    pub fn fetch(self: &Arc<Self>, ranges: &[Range<u64>]) -> Result<(), RemoteError> {
        self.stands()?;
        let (metadata, data): (Vec<_>, Vec<_>) = ranges
            .iter()
            .cloned()
            .partition(|range| range.end.saturating_sub(range.start) <= BLOCK);
        let mut flights = Vec::new();
        for (ranges, metadata) in [(metadata, true), (data, false)] {
            let blocks = self.blocks(&ranges);
            let absent = self.absent(&blocks);
            if metadata {
                self.look(&blocks, &absent);
            }
            flights.extend(self.begin(absent, 0, metadata, false));
        }
        for flight in flights {
            flight.wait()?;
        }
        Ok(())
    }

    /// Remembers which blocks are of metadata.
    fn look(&self, blocks: &[Range<u64>], absent: &[u64]) {
        let new = |&block: &u64| {
            let counts = !self.looked.has(block)
                && self.looked_at.fetch_add(1, Ordering::Relaxed) < MOST_LOOKED;
            if counts {
                self.looked.add(block);
            }
            counts
        };
        let new: Vec<_> = blocks.iter().cloned().flatten().filter(new).collect();
        let there = |block: &u64| absent.binary_search(block).is_err();
        self.kept.mark(new.into_iter().filter(there));
    }

    /// Begins to fetch what is not there of some ranges, and of gaps of up to `gap` bytes between them, for somebody who will ask for
    /// it later.
    pub fn prefetch(self: &Arc<Self>, ranges: &[Range<u64>], gap: u64, then: Then) {
        // Whoever reads it is told what is wrong.
        let absent = self.absent(&self.blocks(ranges));
        when_over(&self.begin(absent, gap / BLOCK, false, false), then);
    }

    /// Calls a function when ranges are there that are so now or on their way; drops it if some are neither.
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

    /// Returns true if ranges are there.
    pub fn has(&self, ranges: &[Range<u64>]) -> bool {
        self.absent(&self.blocks(ranges)).is_empty()
    }

    /// Returns the blocks that ranges touch.
    fn blocks(&self, ranges: &[Range<u64>]) -> Vec<Range<u64>> {
        let inside = |range: &Range<u64>| {
            let end = range.end.min(self.version.size);
            touched(&(range.start.min(end)..end))
        };
        ranges.iter().map(inside).collect()
    }

    /// Returns those of some blocks that are absent, in order.
    fn absent(&self, blocks: &[Range<u64>]) -> Vec<u64> {
        let absent = blocks.iter().flat_map(|run| self.kept.absent(run.clone()));
        let mut absent: Vec<_> = absent.collect();
        absent.sort_unstable();
        absent.dedup();
        absent
    }

    /// Returns the requests under way for blocks that were absent, and sends those that are missing; all, if it is to be `alone`.
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
            // It may have arrived since.
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
        let mut sent = Vec::new();
        for blocks in requests(absent, gap, PART) {
            let flight = Flight::new();
            for block in blocks.clone() {
                flights.entry(block).or_insert_with(|| flight.clone());
            }
            sent.push((blocks, flight));
        }
        drop(flights);
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

    /// Carries a request out.
    async fn carry(self: Arc<Self>, blocks: Range<u64>, metadata: bool, flight: &Arc<Flight>) {
        let range = bytes_of(&blocks, self.version.size);
        let about = self.address.to_string();
        let asked = async {
            // It is never closed. Waiting for a turn is part of the time that somebody waits.
            let _turn = self.turns.acquire().await;
            self.traffic.requests.fetch_add(1, Ordering::Relaxed);
            self.origin.get(range, Some(&self.version)).await
        };
        let outcome = match tokio::time::timeout(self.settings.timeout, asked).await {
            Ok(Ok(got)) => {
                self.store(&got, metadata);
                Ok(Arc::new(got))
            }
            Ok(Err(e)) => {
                if matches!(e.cause, Cause::Changed | Cause::Missing) {
                    self.replaced.store(true, Ordering::Release);
                }
                Err(RemoteError::new(e.cause, &about, e.message))
            }
            Err(_) => Err(late(&about, &self.settings)),
        };
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

    /// Keeps what arrived.
    pub(super) fn store(&self, got: &Got, metadata: bool) {
        let arrived = got.bytes.len() as u64;
        self.traffic.bytes.fetch_add(arrived, Ordering::Relaxed);
        self.kept.add(got.start, &got.bytes, metadata);
    }
}
