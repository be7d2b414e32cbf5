//! Rows of a stacked column, read in blocks.
//!
//! Records of samples are looked up in batches, stored chunks that lie near each other in a file are read together,
//! and each sample is checked.

use std::collections::HashSet;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

use super::collection::Collection;
use super::column::BATCH;
use super::fetch::check;
use super::locate::{LocatedRecords, WIDE};
use super::record::{Record, RowRecord};
use super::rows::{Rows, Stored};
use super::snapshot::ColumnView;
use super::whole::Whole;
use crate::dataset::access_pattern::AccessPattern;
use crate::dataset::cache::{Block, Key, Need};
use crate::error::{Error, Result};
use crate::io::buffer::ALIGNMENT;
use crate::io::file::StoreFile;
use crate::npy::dtype::DType;

/// The form number of blocks of rows in the cache.
const ROWS: u32 = 33;

/// Bytes of rows that are read together.
const TARGET: u64 = 512 << 10;

/// Bytes between two chunks that are read along with them rather than left out.
const GAP: u64 = 32 << 10;

/// Most bytes that are read at a time.
const SPAN: u64 = 4 << 20;

/// Buffers are taken in multiples of this, so that one fits the next span as well.
const STEP: usize = 64 << 10;

/// Bytes beside those of a block that decoding one of its rows may take.
const SPARE: u64 = 8 << 20;

/// Batches of samples that are prepared before a reader gets there.
const PREPARED: usize = 4 * WIDE;

/// A stacked column for one open file.
pub(super) struct StackBlocks {
    pub view: Arc<ColumnView>,
    pub dtype: DType,
    /// Shape and bytes of a sample.
    pub shape: Vec<u64>,
    pub row: u64,
    pub len: u64,
    /// Rows of a block.
    pub per_block: u64,
    pub pattern: AccessPattern,
    /// The column's.
    pub readers: Arc<()>,
    /// The next batch of samples to prepare.
    next: AtomicUsize,
    /// Files that the kernel was told to read ahead.
    advised: Mutex<HashSet<u64>>,
}

/// A row that is a chunk of its own, to be read together with its neighbours.
struct RowChunk {
    row: usize,
    file: Arc<Collection>,
    rows: Arc<Rows>,
    stored: Stored,
    checksum: Option<u64>,
}

/// Backend, file and number of a dataset.
type DatasetName = (&'static str, String, u32);

/// The results of looking up the row before: mostly they hold for the next.
#[derive(Default)]
struct Before {
    /// The number and the records of a batch of samples.
    records: Option<(usize, Arc<LocatedRecords>)>,
    dataset: Option<(DatasetName, Arc<Collection>, Arc<Rows>)>,
}

impl StackBlocks {
    /// `len` bytes in rows of `shape` and `row` bytes each.
    pub(super) fn new(
        view: &Arc<ColumnView>,
        dtype: DType,
        shape: Vec<u64>,
        (row, len): (u64, u64),
    ) -> Self {
        let column = &view.column;
        Self {
            view: view.clone(),
            dtype,
            shape,
            row,
            len,
            per_block: (TARGET / row.max(1)).max(1),
            pattern: AccessPattern::default(),
            readers: column.readers.clone(),
            next: AtomicUsize::new(0),
            advised: Mutex::default(),
        }
    }

    fn count(&self) -> u64 {
        self.view.column.len() as u64
    }

    pub(super) fn blocks(&self) -> u64 {
        self.count().div_ceil(self.per_block)
    }

    fn record(&self, at: usize) -> Result<Record> {
        let (repository, column) = (self.view.repository(), &self.view.column);
        let records = repository.records_around(column, at / BATCH)?;
        self.parse_record(at, &records)
    }

    pub(super) fn parse_record(&self, at: usize, records: &LocatedRecords) -> Result<Record> {
        let (repository, column) = (self.view.repository(), &self.view.column);
        let record = repository.parse_record(column, at, records)?;
        match record.shape() {
            Some(shape) if *shape != *self.shape => {
                let why = format!(
                    "its shape is {shape:?}, the column's schema says {:?}",
                    self.shape
                );
                Err(Error::damaged(why).about(&record))
            }
            _ => Ok(record),
        }
    }

    /// A row by itself. Not while a block is decoded: it comes from the cache, too.
    pub(super) fn single(&self, at: usize) -> Result<Whole> {
        let record = self.record(at)?;
        let repository = self.view.repository();
        repository
            .whole(&record, Some(&self.dtype), self.row)
            .inspect_err(|_| repository.doubt(&self.view.column, at))
    }

    /// Fills `out` with a row, past the cache.
    fn single_into(&self, at: usize, out: &mut [u8]) -> Result<()> {
        let record = self.record(at)?;
        let repository = self.view.repository();
        let spare = self.block_len().saturating_mul(2).max(SPARE);
        repository
            .fetch_into(&record, Some(&self.dtype), spare, out)
            .inspect_err(|_| repository.doubt(&self.view.column, at))
    }

    fn block_len(&self) -> u64 {
        self.per_block.saturating_mul(self.row)
    }

    /// Returns whether decoding a block takes more than the cache may hold.
    pub(super) fn is_large(&self) -> bool {
        let limit = self.view.repository().context.cache.limit();
        self.block_len().saturating_mul(2) > limit
    }

    /// Returns where a row is, if it is a chunk of its own.
    fn near(&self, row: usize, at: usize, before: &mut Before) -> Result<Option<RowChunk>> {
        let repository = self.view.repository();
        let records = match &before.records {
            Some((batch, records)) if *batch == at / BATCH => records.clone(),
            _ => {
                self.prepare(at / BATCH);
                repository.records_around(&self.view.column, at / BATCH)?
            }
        };
        let record = self.parse_record(at, &records);
        before.records = Some((at / BATCH, records));
        let Record::Hdf5(RowRecord {
            backend,
            uid,
            checksum,
            dataset,
            row: place,
            shape,
            ..
        }) = record?
        else {
            return Ok(None);
        };
        let dataset = (backend, uid, dataset);
        let (file, rows) = match &before.dataset {
            Some((known, file, rows)) if *known == dataset => (file.clone(), rows.clone()),
            _ => {
                let file = repository.files.collection(backend, &dataset.1)?;
                let rows = repository.files.rows(&file, dataset.2)?;
                before.dataset = Some((dataset, file.clone(), rows.clone()));
                (file, rows)
            }
        };
        let count = rows.part(place, &shape)?;
        let stored = rows
            .stored(place, &count)
            .filter(|stored| rows.dtype == self.dtype && stored.is_plausible());
        Ok(stored.map(|stored| RowChunk {
            row,
            file,
            rows,
            stored,
            checksum,
        }))
    }

    /// First row and rows of a block.
    fn extent(&self, number: u64) -> (u64, u64) {
        let first = number.saturating_mul(self.per_block);
        (
            first,
            self.per_block.min(self.count().saturating_sub(first)),
        )
    }

    /// Fills `out` with all rows of a block.
    fn block(&self, number: u64, out: &mut [u8]) -> Result<()> {
        let (first, count) = self.extent(number);
        let index = |n: u64| usize::try_from(n).map_err(|_| Error::damaged("too many rows"));
        let (first, last) = (index(first)?, index(first + count)?);
        let row = index(self.row)?;
        if out.len() != row * (last - first) {
            return Err(Error::damaged("a block of another size"));
        }
        let mut near: Vec<RowChunk> = Vec::with_capacity(last - first);
        let mut before = Before::default();
        for at in first..last {
            match self.near(at - first, at, &mut before)? {
                Some(found) => near.push(found),
                None => {
                    let place = (at - first) * row;
                    self.single_into(at, &mut out[place..place + row])?;
                }
            }
        }
        near.sort_by_key(|n| (n.file.file.serial, n.stored.slot.addr));
        let mut rest = &near[..];
        while let Some(span) = together(rest) {
            let (now, later) = rest.split_at(span);
            if self.read(now, row, out).is_err() {
                // One by one, so that the failure names its sample; a row may only be newer than its map.
                for n in now {
                    let at = n.row * row;
                    self.single_into(first + n.row, &mut out[at..at + row])?;
                }
            }
            rest = later;
        }
        Ok(())
    }

    /// Rows whose chunks lie near each other in one file.
    fn read(&self, span: &[RowChunk], row: usize, out: &mut [u8]) -> Result<()> {
        let (Some(first), Some(last)) = (span.first(), span.last()) else {
            return Ok(());
        };
        let start = first.stored.slot.addr;
        let slot = last.stored.slot;
        let len = slot.addr - start + u64::from(slot.size);
        let len = usize::try_from(len).map_err(|_| Error::damaged("too far"))?;
        let pool = self.view.repository().context.cache.pool();
        // Room for the pages that a direct read takes at both ends.
        let mut buffer = pool.take((len + 2 * ALIGNMENT).next_multiple_of(STEP));
        let streaming = self.pattern.is_in_order();
        let bytes = stored(&first.file.file, (start, len), streaming, &mut buffer)?;
        for n in span {
            let slot = n.stored.slot;
            // Inside the span: its chunks are in order and its last one ends it.
            let from = usize::try_from(slot.addr - start).unwrap_or(usize::MAX);
            let stored = from
                .checked_add(slot.size as usize)
                .and_then(|end| bytes.get(from..end))
                .ok_or_else(|| Error::damaged("chunks overlap"))?;
            if n.stored.len != row {
                return Err(Error::damaged("a sample of another size"));
            }
            let place = &mut out[n.row * row..(n.row + 1) * row];
            n.rows.decode(stored, slot.mask, place, pool)?;
            check(place, n.checksum)?;
        }
        Ok(())
    }

    /// Looks up the records of a batch of samples and maps the datasets they name, those of one file together.
    /// Only the first for a batch does anything; the others wait for it.
    pub(super) fn prepare(&self, batch: usize) {
        let Some(place) = self.view.column.prepared.get(batch) else {
            return;
        };
        let mut done = place.lock().unwrap_or_else(|e| e.into_inner());
        if !std::mem::replace(&mut *done, true) {
            // A reader meets the same failures himself.
            let _ = self.map(batch);
        }
    }

    fn map(&self, batch: usize) -> Result<()> {
        let (repository, column) = (self.view.repository(), &self.view.column);
        let records = match batch {
            // Somebody waits for the first rows.
            0 => repository.records(column, 0)?,
            _ => repository.records_around(column, batch)?,
        };
        for ((backend, uid), datasets) in repository.datasets(column, batch, &records) {
            let Ok(file) = repository.files.collection(backend, &uid) else {
                continue;
            };
            let mut advised = self.advised.lock().unwrap_or_else(|e| e.into_inner());
            if advised.insert(file.file.serial) {
                let file = file.clone();
                let will_need = move || file.will_need();
                repository.context.decoders.submit_first(will_need);
            }
            drop(advised);
            let _ = repository.files.map_together(&file, &datasets);
        }
        Ok(())
    }

    /// Does that for the batches of samples that nobody has begun, in order.
    pub(super) fn prepare_next(&self) {
        let batches = self.view.column.prepared.len().min(PREPARED);
        loop {
            let batch = self.next.fetch_add(1, Ordering::Relaxed);
            if batch >= batches {
                return;
            }
            self.prepare(batch);
        }
    }

    pub(crate) fn key(&self, number: u64) -> Key {
        let content = self.view.column.content;
        Key {
            // Both halves of the hash: a block follows from the column's content.
            file: (content >> 64) as u64,
            object: content as u64,
            form: ROWS,
            block: number,
        }
    }

    fn need(&self, number: u64) -> Need {
        let bytes = self.extent(number).1.saturating_mul(self.row);
        let len = usize::try_from(bytes).unwrap_or(usize::MAX);
        // Stored chunks are mostly smaller than what they decode to.
        Need {
            len,
            beside: len,
            ..Need::default()
        }
    }

    pub(super) fn cached(&self, number: u64) -> Result<Block> {
        let cache = &self.view.repository().context.cache;
        let fill = |out: &mut [u8]| self.block(number, out);
        cache.read(self.key(number), self.need(number), fill)
    }

    /// Notes that `read` bytes of a block were read. One that a reader in order has read to its end is given up:
    /// the kernel has its bytes now, and the next block its memory. Not if others have the column open.
    pub(super) fn note_read(&self, number: u64, read: usize) {
        let cache = &self.view.repository().context.cache;
        let len = self.need(number).len as u64;
        let shared = Arc::strong_count(&self.readers) > 2;
        if self.pattern.is_consumed(number, read as u64, len)
            && self.pattern.is_settled()
            && !shared
        {
            cache.consumed(&self.key(number));
        }
    }

    pub(super) fn ahead(&self, number: u64) {
        let cache = &self.view.repository().context.cache;
        let fill = |out: &mut [u8]| self.block(number, out);
        let wanted = || !self.pattern.has_reached(number);
        cache.ahead(self.key(number), self.need(number), wanted, fill);
    }
}

/// The `len` bytes of a file from `start` on. For a reader who goes on past the page cache, if they are not there: they
/// will be, as rows.
fn stored<'b>(
    file: &StoreFile,
    (start, len): (u64, usize),
    streaming: bool,
    buffer: &'b mut [u8],
) -> Result<&'b [u8]> {
    let range = streaming.then(|| file.direct_range(start, len as u64));
    if let Some(range) = range.flatten() {
        let room = usize::try_from(range.end - range.start).ok();
        let from = usize::try_from(start - range.start).ok();
        if let (Some(room), Some(from)) = (room.and_then(|n| buffer.get_mut(..n)), from)
            // A file that somebody is writing to is read as usual.
            && file.read_direct(room, range.start).is_ok_and(|got| got >= from + len)
        {
            return Ok(&buffer[from..from + len]);
        }
    }
    let bytes = &mut buffer[..len];
    file.read_growing_at(bytes, start)?;
    Ok(bytes)
}

/// Returns how many of the chunks, sorted by file and address, are read together; `None` of none.
fn together(near: &[RowChunk]) -> Option<usize> {
    let first = near.first()?;
    let start = first.stored.slot.addr;
    let mut end = start;
    let fits = |n: &RowChunk| {
        let slot = n.stored.slot;
        let next = slot.addr.saturating_add(u64::from(slot.size));
        let near = slot.addr.saturating_sub(end) <= GAP && slot.addr >= start;
        let fits = n.file.file.serial == first.file.file.serial
            && near
            && (next - start <= SPAN || end == start);
        end = end.max(next);
        fits
    };
    Some(
        near.iter()
            .take_while({
                let mut fits = fits;
                move |n| fits(n)
            })
            .count()
            .max(1),
    )
}
