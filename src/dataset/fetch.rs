//! Has stored bytes fetched that lie elsewhere: what a read touches, together, and what comes next for a reader in order.
//!
//! Whoever reads at random has the chunks fetched that it touches and nothing else, also where blocks gather several. Nothing here
//! waits; bytes are decoded ahead of a reader once they have arrived, so that the threads that decode wait for no network.

use std::collections::BTreeSet;
use std::ops::Range;
use std::sync::Arc;

use super::backing::SINGLE;
use super::blocks::{BlockReader, Blocks};
use super::grid::Grid;
use super::stream::{Ahead, Order};
use crate::dataset::access_pattern::AccessPattern;
use crate::dataset::context::Context;
use crate::dataset::opened::OpenStore;
use crate::io::file::far::Far;
use crate::tuning::Tuning;

/// Returns what counts as reading in order: requests of the kernel may come in any order, and it reads ahead of single samples, too.
pub fn order(context: &Context) -> Order {
    Order {
        slack: context.prefetch.under_way(),
        from_start: Tuning::STREAM_BEGINS,
        elsewhere: 2 * context.prefetch.window() + Tuning::STREAM_BEGINS,
    }
}

/// Has parts of what comes next fetched, as far as there is room; returns the offset from which on there was none. `of` returns the stored
/// ranges of what begins at an offset, and where that ends.
fn fetch_parts(
    (far, context): (&Arc<dyn Far>, &Context),
    ahead: &Ahead,
    mut of: impl FnMut(u64) -> (Vec<Range<u64>>, u64),
) -> Option<u64> {
    let (mut at, end) = (ahead.range.start, ahead.range.end);
    while at < end {
        let (begin, mut ranges, mut bytes) = (at, Vec::new(), 0_u64);
        while at < end && bytes < ahead.part {
            let (more, next) = of(at);
            bytes += more
                .iter()
                .map(|range| range.end - range.start)
                .sum::<u64>();
            ranges.extend(more);
            at = next.max(at + 1);
        }
        if ranges.is_empty() {
            continue;
        }
        let Some(room) = context.fetches.take(bytes) else {
            return Some(begin);
        };
        far.prefetch(&ranges, Tuning::FETCH_GAP, Box::new(move || drop(room)));
    }
    None
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
    let stopped = fetch_parts((far, context), &ahead, |at| {
        let next = at.saturating_add(ahead.part).min(ahead.range.end);
        let part = data.start + at..data.start + next;
        (std::iter::once(part).collect(), next)
    });
    if let Some(at) = stopped {
        stream.stops_at(at);
    }
}

impl BlockReader {
    /// Has fetched what a read of the payload touches, and what comes next for a reader in order, if the file lies elsewhere.
    /// Returns whether blocks are to be read as a whole: not those that gather chunks of which others are wanted.
    pub(super) fn fetch(&self, blocks: Blocks<'_>, offset: u64, len: u64) -> bool {
        if self.store.file.far().is_none() {
            return true;
        }
        let read = offset..offset.saturating_add(len);
        let chunk_row = blocks.grid.chunk_row();
        let touched = |grid: &Grid| {
            let mut numbers = BTreeSet::new();
            let mut at = read.start;
            while at < read.end {
                let run = grid.run_at(at);
                numbers.insert(run.block);
                at = at.saturating_add(run.len.max(1));
            }
            numbers
        };
        self.fetch_for(blocks, read.clone(), self.len, touched, |at| {
            let (number, range) = blocks.grid.chunk_row_at(at);
            let first = number.saturating_mul(chunk_row.blocks);
            (first..first.saturating_add(chunk_row.blocks), range.end)
        })
    }

    /// Does the same for a reader of one block after the other; `single` is the chunk that it wants of it.
    pub(super) fn fetch_block(&self, blocks: Blocks<'_>, number: u64, single: u64) -> bool {
        if self.store.file.far().is_none() {
            return true;
        }
        let bytes = blocks.grid.block_bytes().max(1);
        let at = number.saturating_mul(bytes);
        let end = blocks.grid.blocks().saturating_mul(bytes);
        let touched = |grid: &Grid| {
            let own = std::ptr::eq(grid, blocks.grid);
            BTreeSet::from([if own { number } else { single }])
        };
        self.fetch_for(blocks, at..at.saturating_add(bytes), end, touched, |at| {
            let number = at / bytes;
            (number..number + 1, (number + 1).saturating_mul(bytes))
        })
    }

    fn fetch_for(
        &self,
        blocks: Blocks<'_>,
        read: Range<u64>,
        end: u64,
        touched: impl Fn(&Grid) -> BTreeSet<u64>,
        unit: impl Fn(u64) -> (Range<u64>, u64),
    ) -> bool {
        let Some((far, chunks)) = self.store.file.far().zip(self.direct()) else {
            return true;
        };
        let (context, stream) = (&self.store.context, &self.pattern.stream);
        let at = read.end;
        let in_order = stream.reads(read, order(context));
        let (grid, form) = match (in_order, blocks.chunks) {
            (false, Some(chunks)) => (chunks, SINGLE),
            _ => (blocks.grid, blocks.form.number()),
        };
        let now = self.absent(grid, form, touched(grid));
        if in_order && !far.has(&now) {
            stream.stalls();
        }
        let gap = if in_order { Tuning::FETCH_GAP } else { 0 };
        far.prefetch(&now, gap, Box::new(|| {}));
        if !in_order {
            return false;
        }
        // Windows are counted in bytes of the payload; of those that are stored there are fewer, or more.
        let stored = chunks.stored_bytes().max(1);
        let scaled = u128::from(context.fetches.most()) * u128::from(self.len) / u128::from(stored);
        let most = u64::try_from(scaled).unwrap_or(u64::MAX);
        if let Some(ahead) = stream.ahead(at, most, end) {
            let stopped = fetch_parts((far, context), &ahead, |at| {
                let (numbers, next) = unit(at);
                (
                    self.absent(blocks.grid, blocks.form.number(), numbers),
                    next,
                )
            });
            if let Some(at) = stopped {
                stream.stops_at(at);
            }
        }
        true
    }

    /// Returns where the chunks of blocks are stored that are not decoded.
    fn absent(
        &self,
        grid: &Grid,
        form: u32,
        numbers: impl IntoIterator<Item = u64>,
    ) -> Vec<Range<u64>> {
        let Some(chunks) = self.direct() else {
            return Vec::new();
        };
        let cache = &self.store.context.cache;
        let count = grid.blocks();
        let absent = |&number: &u64| {
            let spilled = form != SINGLE && self.is_spilled(number);
            number < count && !spilled && !cache.has(&self.key(form, number))
        };
        let stored = |number| {
            let (start, shape) = grid.bounds(number);
            chunks.stored(&start, &shape)
        };
        numbers
            .into_iter()
            .filter(absent)
            .flat_map(stored)
            .collect()
    }

    /// Returns whether a reader has shown that it goes on in order; true if the file does not lie elsewhere.
    pub(super) fn reads_whole_blocks(&self) -> bool {
        let far = self.store.file.far();
        far.is_none() || self.pattern.stream.is_in_order(order(&self.store.context))
    }

    /// Has a block decoded ahead by the threads for it: once its bytes are there, if they lie elsewhere.
    pub(super) fn when_there(
        self: &Arc<Self>,
        grid: &Grid,
        number: u64,
        submit: impl FnOnce(Arc<Self>) + Send + 'static,
    ) {
        let own = self.clone();
        let Some((far, chunks)) = self.store.file.far().zip(self.direct()) else {
            return submit(own);
        };
        let (start, shape) = grid.bounds(number);
        let ranges = chunks.stored(&start, &shape);
        far.when_there(&ranges, Box::new(move || submit(own)));
    }
}
