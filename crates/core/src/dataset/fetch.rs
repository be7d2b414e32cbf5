//! Fetches stored bytes of remote files: all chunks that a read overlaps, together, and the next ones for a sequential
//! reader.
//!
//! For a reader at random, the chunks that it touches are fetched and nothing else, also where blocks gather several.
//! Nothing here waits, unless a source has to look up where its blocks are stored. Bytes are decoded ahead of a reader
//! once they have arrived, so that the threads that decode wait for no network.

use std::collections::BTreeSet;
use std::ops::Range;
use std::sync::Arc;

use super::blocks::{BlockReader, FarRanges};
use super::grid::{Grid, Run};
use super::stream::{Order, Readahead};
use crate::dataset::access_pattern::AccessPattern;
use crate::dataset::context::Context;
use crate::dataset::opened::OpenStore;
use npyfs_base::thread;
use npyfs_base::tuning::Tuning;
use npyfs_io::file::{Far, Then};

/// The most bytes that the kernel requests for the header of a file.
const FIRST_REQUEST: u64 = 16 << 10;

/// Returns the criteria for sequential reading. Requests of the kernel may come in any order, and it reads ahead of
/// single samples, too.
pub fn order(context: &Context) -> Order {
    Order {
        slack: context.prefetch.under_way(),
        from_start: Tuning::STREAM_BEGINS,
        elsewhere: 2 * context.prefetch.window() + Tuning::STREAM_BEGINS,
    }
}

/// Adds ranges to those of the same file.
pub fn add(all: &mut Vec<FarRanges>, more: impl IntoIterator<Item = FarRanges>) {
    for (far, ranges) in more {
        match all.iter_mut().find(|(known, _)| Arc::ptr_eq(known, &far)) {
            Some((_, known)) => known.extend(ranges),
            None => all.push((far, ranges)),
        }
    }
}

/// Has parts of what comes next fetched, as far as there is room; returns the offset from which on there was none. `of`
/// returns the stored ranges of what begins at an offset, and where that ends.
fn fetch_parts(
    context: &Context,
    ahead: &Readahead,
    mut of: impl FnMut(u64) -> (Vec<FarRanges>, u64),
) -> Option<u64> {
    let (mut at, end) = (ahead.range.start, ahead.range.end);
    while at < end {
        let (begin, mut files, mut bytes) = (at, Vec::new(), 0_u64);
        while at < end && bytes < ahead.part {
            let (more, next) = of(at);
            let ranges = more.iter().flat_map(|(_, ranges)| ranges);
            bytes += ranges.map(|range| range.end - range.start).sum::<u64>();
            add(&mut files, more);
            at = next.max(at + 1);
        }
        if bytes == 0 {
            continue;
        }
        let Some(room) = context.fetches.take(bytes) else {
            return Some(begin);
        };
        let room = Arc::new(room);
        for (far, ranges) in files {
            let room = room.clone();
            far.prefetch(&ranges, Tuning::FETCH_GAP, Box::new(move || drop(room)));
        }
    }
    None
}

/// Calls `then` once the ranges of all files are at hand, if they are so now or are on their way.
fn when_all(mut files: Vec<FarRanges>, then: Then) {
    match files.pop() {
        Some((far, ranges)) => {
            far.when_there(&ranges, Box::new(move || when_all(files, then)));
        }
        None => then(),
    }
}

/// Has contiguous bytes fetched that a reader in order will want; `data` is where they lie.
pub(super) fn contiguous(
    (store, far): (&OpenStore, &Arc<dyn Far>),
    pattern: &AccessPattern,
    read: Range<u64>,
    data: &Range<u64>,
) {
    let (context, stream) = (&store.context, &pattern.stream);
    let (at, end) = (read.end - data.start, data.end - data.start);
    if !stream.reads(read.start - data.start..at, order(context)) {
        return;
    }
    if !far.has(std::slice::from_ref(&read)) {
        stream.stalls();
    }
    let Some(ahead) = stream.ahead(at, context.fetches.most(), end) else {
        return;
    };
    let stopped = fetch_parts(context, &ahead, |at| {
        let next = at.saturating_add(ahead.part).min(ahead.range.end);
        let part = data.start + at..data.start + next;
        (vec![(far.clone(), std::iter::once(part).collect())], next)
    });
    if let Some(at) = stopped {
        stream.stops_at(at);
    }
}

/// Returns the runs of a grid in a range of the array; the last one ends with the range.
fn runs_in(grid: &Grid, range: &Range<u64>) -> impl Iterator<Item = Run> {
    let (mut at, end) = (range.start, range.end);
    std::iter::from_fn(move || {
        let left = end.checked_sub(at).filter(|&left| left > 0)?;
        let mut run = grid.run_at(at);
        run.len = run.len.clamp(1, left);
        at += run.len;
        Some(run)
    })
}

/// The parts in which an array is read.
#[derive(Clone, Copy)]
enum Unit {
    ChunkRow,
    Block,
}

impl BlockReader {
    /// Has fetched what a read touches, and what comes next for a reader in order, if the array lies elsewhere.
    /// Returns whether blocks that gather chunks are to be read as a whole: for a reader in order.
    pub(super) fn fetch(self: &Arc<Self>, offset: u64, len: u64) -> bool {
        let read = offset..offset.saturating_add(len);
        if !self.source.is_far() {
            // Nothing is fetched here, so a reader that begins with the first byte soon counts as one in order. The
            // kernel's first request is made for a header, too, behind which samples may follow.
            let order = Order {
                from_start: FIRST_REQUEST + 1,
                ..order(&self.context)
            };
            return self.source.chunks().is_none()
                || self.source.grid().chunk_row().blocks != 1
                || self.pattern.stream.reads(read.clone(), order)
                || self.has_whole_blocks(&read);
        }
        let touched = |grid: &Grid| -> BTreeSet<u64> {
            let runs = runs_in(grid, &read);
            runs.map(|run| run.block).collect()
        };
        let now = |in_order| match (in_order, self.source.chunks()) {
            (false, Some(chunks)) if chunks.chunk_row().blocks == 1 => {
                let parts = runs_in(chunks, &read).filter(|run| !self.has_single(run.block));
                let parts = parts.map(|run| (run.block, run.at..run.at.saturating_add(run.len)));
                let parts: Vec<_> = parts.collect();
                self.source.stored_parts(chunks, &parts)
            }
            (false, Some(chunks)) => {
                let absent = touched(chunks).into_iter();
                let absent: Vec<u64> = absent.filter(|&n| !self.has_single(n)).collect();
                self.source.stored(chunks, &absent)
            }
            _ => self.absent_blocks(touched(self.source.grid())),
        };
        self.fetch_for(read.clone(), self.len, now, Unit::ChunkRow)
    }

    fn has_single(&self, chunk: u64) -> bool {
        self.context.cache.has(&self.single(chunk))
    }

    /// Returns whether any block lies in a range as a whole; blocks follow one another in the array.
    fn has_whole_blocks(&self, range: &Range<u64>) -> bool {
        let grid = self.source.grid();
        let bytes = grid.block_bytes().max(1);
        let first = range.start.div_ceil(bytes).saturating_mul(bytes);
        let end = first.saturating_add(bytes).min(self.len);
        first < end && end <= range.end
    }

    /// Does the same for a reader of one block after the other; `single` is the chunk that it wants of it.
    pub(super) fn fetch_block(self: &Arc<Self>, number: u64, single: u64) -> bool {
        if !self.source.is_far() {
            return true;
        }
        let blocks = self.source.grid();
        let bytes = blocks.block_bytes().max(1);
        let at = number.saturating_mul(bytes);
        let end = blocks.blocks().saturating_mul(bytes);
        let now = |in_order| match (in_order, self.source.chunks()) {
            (false, Some(_)) if self.has_single(single) => Vec::new(),
            (false, Some(chunks)) => self.source.stored(chunks, &[single]),
            _ => self.absent_blocks([number]),
        };
        self.fetch_for(at..at.saturating_add(bytes), end, now, Unit::Block)
    }

    /// Has fetched what `now` returns, which is told whether the reader goes on in order, and what comes next.
    fn fetch_for(
        self: &Arc<Self>,
        read: Range<u64>,
        end: u64,
        now: impl Fn(bool) -> Vec<FarRanges>,
        unit: Unit,
    ) -> bool {
        let (context, stream) = (&self.context, &self.pattern.stream);
        let at = read.end;
        let in_order = stream.reads(read, order(context));
        let now = now(in_order);
        if in_order && !now.iter().all(|(far, ranges)| far.has(ranges)) {
            stream.stalls();
        }
        let gap = if in_order { Tuning::FETCH_GAP } else { 0 };
        for (far, ranges) in now {
            far.prefetch(&ranges, gap, Box::new(|| {}));
        }
        if !in_order {
            return false;
        }
        // Windows are counted in bytes of the array; of those that are stored there are fewer, or more.
        let stored = self.source.stored_bytes().unwrap_or(self.len).max(1);
        let scaled = u128::from(context.fetches.most()) * u128::from(self.len) / u128::from(stored);
        let most = u64::try_from(scaled).unwrap_or(u64::MAX);
        if let Some(ahead) = stream.ahead(at, most, end) {
            let own = self.clone();
            let fetch = move || own.fetch_ahead_of(&ahead, unit);
            match self.source.looks_up() {
                // Without a thread nothing is fetched ahead.
                true => drop(thread::spawn("fetch", fetch)),
                false => fetch(),
            }
        }
        true
    }

    /// Has fetched what a reader in order will want, as far as there is room.
    fn fetch_ahead_of(&self, ahead: &Readahead, unit: Unit) {
        let grid = self.source.grid();
        let stopped = fetch_parts(&self.context, ahead, |at| {
            let (blocks, next) = match unit {
                Unit::ChunkRow => {
                    let (number, range) = grid.chunk_row_at(at);
                    let count = grid.chunk_row().blocks;
                    let first = number.saturating_mul(count);
                    (first..first.saturating_add(count), range.end)
                }
                Unit::Block => {
                    let bytes = grid.block_bytes().max(1);
                    let number = at / bytes;
                    (number..number + 1, (number + 1).saturating_mul(bytes))
                }
            };
            (self.absent_blocks(blocks), next)
        });
        if let Some(at) = stopped {
            self.pattern.stream.stops_at(at);
        }
    }

    /// Returns where blocks are stored that are not decoded.
    fn absent_blocks(&self, numbers: impl IntoIterator<Item = u64>) -> Vec<FarRanges> {
        let grid = self.source.grid();
        let is_absent = |n: &u64| *n < grid.blocks() && !self.is_spilled(*n) && !self.has(*n);
        let absent: Vec<u64> = numbers.into_iter().filter(is_absent).collect();
        self.source.stored(grid, &absent)
    }

    /// Returns whether a reader has shown that it goes on in order.
    pub(super) fn is_in_order(&self) -> bool {
        self.pattern.stream.is_in_order(order(&self.context))
    }

    /// Hands a block to `submit`: once its bytes are there, if they lie elsewhere.
    pub(super) fn when_there(
        self: &Arc<Self>,
        number: u64,
        submit: impl FnOnce(Arc<Self>) + Send + 'static,
    ) {
        let own = self.clone();
        if !self.source.is_far() {
            return submit(own);
        }
        let files = self.source.stored(self.source.grid(), &[number]);
        when_all(files, Box::new(move || submit(own)));
    }
}
