//! Stacked columns of a repository that lies elsewhere: what a read touches is fetched together, and what comes next for a reader in order.
//!
//! Threads that decode wait for no network: they get a block once its bytes are there.

use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use super::blocks::StackBlocks;
use super::collection::Collection;
use super::column::BATCH;
use super::numpy::NumpyHeader;
use super::record::Record;
use super::rows::Rows;
use crate::dataset::fetch::order;
use crate::error::{Error, ErrorKind, Result};
use crate::io::file::StoreFile;
use crate::io::file::far::Far;
use crate::io::thread;
use crate::tuning::Tuning;

/// Stored ranges of one file.
type FarRanges = (Arc<dyn Far>, Vec<Range<u64>>);

/// Where a row is stored: the number of the file, the file, and ranges of it.
type StoredRow = (u64, Arc<dyn Far>, Vec<Range<u64>>);

/// A dataset by its file and number, open.
type OpenDataset = ((String, u32), Arc<Collection>, Arc<Rows>);

/// The files that were looked into last: mostly the next row is there, too.
#[derive(Default)]
struct Open {
    dataset: Option<OpenDataset>,
    array: Option<(String, StoreFile, NumpyHeader)>,
}

impl StackBlocks {
    /// Returns true if the repository lies elsewhere.
    pub(super) fn is_far(&self) -> bool {
        self.view.repository().folder.far().is_some()
    }

    /// Returns the bytes of a block.
    fn block_bytes(&self) -> u64 {
        self.per_block.saturating_mul(self.row).max(1)
    }

    /// Returns the rows of blocks.
    fn rows_of(&self, blocks: Range<u64>) -> Range<u64> {
        let count = self.view.column.len() as u64;
        let row = |block: u64| block.saturating_mul(self.per_block).min(count);
        row(blocks.start)..row(blocks.end)
    }

    /// Has fetched what a read of the rows touches, and waits for it; for a reader in order what comes next is fetched, too. Returns
    /// whether blocks are to be read as a whole: not those of which others rows are wanted.
    pub(super) fn fetch(self: &Arc<Self>, read: Range<u64>) -> Result<bool> {
        if !self.is_far() || self.is_large() {
            return Ok(true);
        }
        let context = &self.view.repository().context;
        let stream = &self.pattern.stream;
        let in_order = stream.reads(read.clone(), order(context));
        let row = self.row.max(1);
        if !in_order {
            let touched = self.far_ranges(read.start / row..read.end.div_ceil(row))?;
            for (far, ranges) in touched {
                far.fetch(&ranges)?;
            }
            return Ok(false);
        }
        let bytes = self.block_bytes();
        for number in read.start / bytes..read.end.div_ceil(bytes) {
            if context.cache.has(&self.key(number)) {
                continue;
            }
            for (far, ranges) in self.far_ranges(self.rows_of(number..number + 1))? {
                if !far.has(&ranges) {
                    stream.stalls();
                    far.fetch(&ranges)?;
                }
            }
        }
        if let Some(ahead) = stream.ahead(read.end, context.fetches.most(), self.len) {
            let own = self.clone();
            // Maps of further datasets may have to be waited for. Without a thread nothing is fetched ahead.
            let fetch = move || own.fetch_parts(ahead.range, ahead.part);
            let _ = thread::spawn("fetch", fetch);
        }
        Ok(true)
    }

    /// Has bytes of the rows fetched that a reader in order will want, in parts, as far as there is room.
    fn fetch_parts(&self, ahead: Range<u64>, part: u64) {
        let context = &self.view.repository().context;
        let bytes = self.block_bytes();
        let blocks = ahead.start / bytes..ahead.end.div_ceil(bytes);
        let together = (part / bytes).max(1);
        let mut at = blocks.start;
        while at < blocks.end {
            let to = at.saturating_add(together).min(blocks.end);
            // Its reader meets the same failure.
            let Ok(files) = self.far_ranges(self.rows_of(at..to)) else {
                return;
            };
            for (far, ranges) in files {
                let stored = ranges.iter().map(|range| range.end - range.start);
                let Some(room) = context.fetches.take(stored.sum()) else {
                    return self.pattern.stream.stops_at(at.saturating_mul(bytes));
                };
                far.prefetch(&ranges, Tuning::FETCH_GAP, Box::new(move || drop(room)));
            }
            at = to;
        }
    }

    /// Has a block decoded once its bytes are there, if they are or are on their way.
    pub(super) fn ahead_when_there(self: &Arc<Self>, number: u64) {
        let Ok(files) = self.far_ranges(self.rows_of(number..number + 1)) else {
            return;
        };
        let left = Arc::new(AtomicUsize::new(files.len()));
        for (far, ranges) in files {
            let (own, left) = (self.clone(), left.clone());
            let then = move || {
                if left.fetch_sub(1, Ordering::AcqRel) == 1 {
                    let context = own.view.repository().context.clone();
                    context.decoders.submit(move || own.ahead(number));
                }
            };
            far.when_there(&ranges, Box::new(then));
        }
    }

    /// Returns where rows are stored, by file. What is wrong with one its reader meets.
    fn far_ranges(&self, rows: Range<u64>) -> Result<Vec<FarRanges>> {
        let index = |row: u64| usize::try_from(row).map_err(|_| Error::damaged("too many rows"));
        let rows = index(rows.start)?..index(rows.end)?.min(self.view.column.len());
        let (mut files, mut open) = (BTreeMap::<u64, FarRanges>::new(), Open::default());
        let mut records = None;
        for at in rows {
            let batch = match records.take() {
                Some((batch, records)) if batch == at / BATCH => records,
                _ => {
                    self.prepare(at / BATCH);
                    self.view
                        .repository()
                        .records_around(&self.view.column, at / BATCH)?
                }
            };
            let found = self
                .parse_record(at, &batch)
                .and_then(|record| self.ranges_of(record, &mut open));
            records = Some((at / BATCH, batch));
            match found {
                Ok(Some((number, far, ranges))) => {
                    let file = files.entry(number).or_insert_with(|| (far, Vec::new()));
                    file.1.extend(ranges);
                }
                Ok(None) => {}
                Err(e) if e.kind == ErrorKind::Damaged => {}
                Err(e) => return Err(e),
            }
        }
        Ok(files.into_values().collect())
    }

    /// Returns where a record's row is stored; `None` if it is not stored as a row.
    fn ranges_of(&self, record: Record, open: &mut Open) -> Result<Option<StoredRow>> {
        let files = &self.view.repository().files;
        let found = |file: &StoreFile, ranges| {
            let far = file.far()?.clone();
            Some((file.identity.ino, far, ranges))
        };
        match record {
            Record::Hdf5(row) => {
                let key = (row.uid, row.dataset);
                let (file, rows) = match open.dataset.take() {
                    Some((known, file, rows)) if known == key => (file, rows),
                    _ => {
                        let file = files.collection(row.backend, &key.0)?;
                        let rows = files.rows(&file, key.1)?;
                        (file, rows)
                    }
                };
                let count = rows.part(row.row, &row.shape)?;
                let ranges = rows.ranges(row.row, &count)?;
                let found = found(&file.file, ranges);
                open.dataset = Some((key, file, rows));
                Ok(found)
            }
            Record::Numpy {
                uid, row, shape, ..
            } => {
                let (file, header) = match open.array.take() {
                    Some((known, file, header)) if known == uid => (file, header),
                    _ => {
                        let file = files.open("10", &uid)?;
                        let header = NumpyHeader::read(&file)?;
                        (file, header)
                    }
                };
                let (start, len) = header.place(&file, row, &shape)?;
                let ranges = std::iter::once(start..start.saturating_add(len)).collect();
                let found = found(&file, ranges);
                open.array = Some((uid, file, header));
                Ok(found)
            }
            Record::Lmdb { .. } | Record::Remote { .. } => Ok(None),
        }
    }
}
