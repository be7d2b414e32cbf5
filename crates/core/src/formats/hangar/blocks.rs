//! Rows of a stacked column, decoded in blocks.
//!
//! Records of samples are looked up in `hash.lmdb` in batches. A record that is missing or says "not fetched yet" may
//! change with the next transaction. Stored chunks that lie close together in a file are read together, and each sample
//! is checked.

use std::collections::{BTreeMap, BTreeSet, HashSet};
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use parking_lot::Mutex;

use super::collection::Collection;
use super::column::{BATCH, Column, KnownLengths, LocatedRecords};
use super::fetch::{NumpyHeader, check};
use super::record::{Record, RowRecord};
use super::repository::Repository;
use super::rows::Rows;
use super::snapshot::ColumnView;
use crate::dataset::access_pattern::AccessPattern;
use crate::dataset::blocks::{BlockSource, FarRanges};
use crate::dataset::cache::{Key, Need};
use crate::dataset::fetch::add;
use crate::dataset::grid::Grid;
use npyfs_base::buffer::ALIGNMENT;
use npyfs_base::error::{Error, ErrorKind, Result};
use npyfs_base::npy::dtype::DType;
use npyfs_hdf5::{PackedValues, Sink, Slot};
use npyfs_io::file::StoreFile;

/// The form number of row blocks in the cache.
const ROWS: u32 = 33;

/// The number of bytes of rows that are read together.
const TARGET: u64 = 512 << 10;

/// The largest gap in bytes between two chunks that is read along with them instead of being skipped.
const GAP: u64 = 32 << 10;

/// The largest number of bytes of one read.
const SPAN: u64 = 4 << 20;

/// Buffer sizes are multiples of this, so that a buffer also fits the next span.
const STEP: usize = 64 << 10;

/// The memory in bytes, beside that of a block, that decoding one of its rows may take.
const SPARE: u64 = 8 << 20;

/// The number of batches of samples that are prepared ahead of a reader.
const PREPARED: usize = 4 * WIDE;

/// A stacked column for one open file.
pub(super) struct StackBlocks {
    view: Arc<ColumnView>,
    dtype: DType,
    /// The shape of a sample.
    shape: Vec<u64>,
    row: u64,
    /// The grid of the rows: blocks, and single rows if a block has several.
    grid: Grid,
    rows: Option<Grid>,
    pattern: Arc<AccessPattern>,
    /// The `readers` token of the column.
    readers: Arc<()>,
    /// The next batch of samples to prepare.
    next: AtomicUsize,
    /// Files for which the kernel was asked to read ahead.
    advised: Mutex<HashSet<u64>>,
}

/// A row that is a chunk of its own and is read together with its neighbours.
struct RowChunk {
    row: usize,
    file: Arc<Collection>,
    rows: Arc<Rows>,
    slot: Slot,
    checksum: Option<u64>,
}

/// The backend, file and number of a dataset.
type DatasetName = (&'static str, String, u32);

/// The results of looking up the previous row, which are mostly valid for the next one as well.
#[derive(Default)]
struct PreviousRow {
    /// The number and the records of a batch of samples.
    records: Option<(usize, Arc<LocatedRecords>)>,
    dataset: Option<(DatasetName, Arc<Collection>, Arc<Rows>)>,
    array: Option<(String, StoreFile, NumpyHeader)>,
}

impl StackBlocks {
    /// Makes the rows of a column, of `shape` and `row` bytes each. `pattern` is the access pattern of its reader.
    pub(super) fn new(
        view: &Arc<ColumnView>,
        dtype: DType,
        (shape, row): (Vec<u64>, u64),
        pattern: &Arc<AccessPattern>,
    ) -> Result<Self> {
        let column = &view.column;
        let count = column.len() as u64;
        let per_block = (TARGET / row.max(1)).max(1);
        let grid = |rows| {
            let large = || Error::new(ErrorKind::TooLarge, "larger than a file can be");
            Grid::new(&[count], &[rows], row).ok_or_else(large)
        };
        Ok(Self {
            view: view.clone(),
            dtype,
            shape,
            row,
            grid: grid(per_block)?,
            rows: match per_block {
                1 => None,
                _ => Some(grid(1)?),
            },
            pattern: pattern.clone(),
            readers: column.readers.clone(),
            next: AtomicUsize::new(0),
            advised: Mutex::default(),
        })
    }

    fn record(&self, at: usize) -> Result<Record> {
        let (repository, column) = (self.view.repository(), &self.view.column);
        let records = repository.records_around(column, at / BATCH)?;
        self.parse_record(at, &records)
    }

    /// Returns the record of a row, with the help of the results for the previous row.
    fn next_record(&self, at: usize, before: &mut PreviousRow) -> Result<Record> {
        let (repository, column) = (self.view.repository(), &self.view.column);
        let records = match &before.records {
            Some((batch, records)) if *batch == at / BATCH => records.clone(),
            _ => {
                self.prepare(at / BATCH);
                repository.records_around(column, at / BATCH)?
            }
        };
        let record = self.parse_record(at, &records);
        before.records = Some((at / BATCH, records));
        record
    }

    fn parse_record(&self, at: usize, records: &LocatedRecords) -> Result<Record> {
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

    /// Fills `out` with a row, without the cache.
    fn single_into(&self, at: usize, out: &mut [u8]) -> Result<()> {
        let record = self.record(at)?;
        let (repository, dtype) = (self.view.repository(), Some(&self.dtype));
        let spare = self.grid.block_bytes().saturating_mul(2).max(SPARE);
        let done = match repository.need(&record, out.len()).beside as u64 <= spare {
            true => repository.fetch_into(&record, dtype, out),
            false => repository.stream_into(&record, dtype, out),
        };
        done.inspect_err(|_| repository.doubt(&self.view.column, at))
    }

    /// Returns the dataset of a row.
    fn dataset(
        &self,
        row: &RowRecord,
        before: &mut PreviousRow,
    ) -> Result<(Arc<Collection>, Arc<Rows>)> {
        if let Some(((backend, uid, dataset), file, rows)) = &before.dataset
            && (*backend, uid, *dataset) == (row.backend, &row.uid, row.dataset)
        {
            return Ok((file.clone(), rows.clone()));
        }
        let files = &self.view.repository().files;
        let file = files.collection(row.backend, &row.uid)?;
        let rows = files.rows(&file, row.dataset)?;
        let name = (row.backend, row.uid.clone(), row.dataset);
        before.dataset = Some((name, file.clone(), rows.clone()));
        Ok((file, rows))
    }

    /// Returns the location of a row if it is a chunk of its own.
    fn near(&self, row: usize, at: usize, before: &mut PreviousRow) -> Result<Option<RowChunk>> {
        let Record::Hdf5(record) = self.next_record(at, before)? else {
            return Ok(None);
        };
        let (file, rows) = self.dataset(&record, before)?;
        let count = rows.part(record.row, &record.shape)?;
        let slot = rows.stored(record.row, &count);
        let slot = slot.filter(|_| rows.dtype == self.dtype);
        Ok(slot.map(|slot| RowChunk {
            row,
            file,
            rows,
            slot,
            checksum: record.checksum,
        }))
    }

    /// Returns the rows of a block, or of a chunk, which is one row.
    fn indices(grid: &Grid, number: u64) -> Result<Range<usize>> {
        let (start, shape) = grid.bounds(number);
        let index = |n: u64| usize::try_from(n).map_err(|_| Error::damaged("too many rows"));
        Ok(index(start[0])?..index(start[0] + shape[0])?)
    }

    /// Fills `out` with rows.
    fn rows(&self, rows: Range<usize>, out: &mut [u8]) -> Result<()> {
        let (first, last) = (rows.start, rows.end);
        let row = usize::try_from(self.row).map_err(|_| Error::damaged("rows too large"))?;
        let mut near: Vec<RowChunk> = Vec::with_capacity(last - first);
        let mut before = PreviousRow::default();
        for at in first..last {
            match self.near(at - first, at, &mut before)? {
                Some(found) => near.push(found),
                None => {
                    let place = (at - first) * row;
                    self.single_into(at, &mut out[place..place + row])?;
                }
            }
        }
        near.sort_by_key(|n| (n.file.file.serial, n.slot.addr));
        let mut rest = &near[..];
        while let Some(span) = together(rest) {
            let (now, later) = rest.split_at(span);
            if self.read(now, row, out).is_err() {
                // Rows are read one by one, so that a failure names its sample; a row may merely be newer than its map.
                for n in now {
                    let at = n.row * row;
                    self.single_into(first + n.row, &mut out[at..at + row])?;
                }
            }
            rest = later;
        }
        Ok(())
    }

    /// Reads rows whose chunks lie close together in one file.
    fn read(&self, span: &[RowChunk], row: usize, out: &mut [u8]) -> Result<()> {
        let (Some(first), Some(last)) = (span.first(), span.last()) else {
            return Ok(());
        };
        let start = first.slot.addr;
        let slot = last.slot;
        let len = slot.addr - start + u64::from(slot.size);
        let len = usize::try_from(len).map_err(|_| Error::damaged("too far"))?;
        let pool = self.view.repository().context.cache.pool();
        // The buffer has room for the pages that a direct read adds at both ends.
        let mut buffer = pool.take((len + 2 * ALIGNMENT).next_multiple_of(STEP));
        let streaming = self.pattern.is_in_order();
        let bytes = stored(&first.file.file, (start, len), streaming, &mut buffer)?;
        for n in span {
            let slot = n.slot;
            // The chunk lies inside the span: the chunks are in order, and the last one ends the span.
            let from = usize::try_from(slot.addr - start).unwrap_or(usize::MAX);
            let stored = from
                .checked_add(slot.size as usize)
                .and_then(|end| bytes.get(from..end))
                .ok_or_else(|| Error::damaged("chunks overlap"))?;
            let place = &mut out[n.row * row..(n.row + 1) * row];
            n.rows.decode(pool, stored, slot.mask, place)?;
            check(place, n.checksum)?;
        }
        Ok(())
    }

    /// Looks up the records of a batch of samples and maps the datasets that they name, those of one file together.
    /// Only the first call for a batch does the work; the others wait for it.
    pub(super) fn prepare(&self, batch: usize) {
        let Some(place) = self.view.column.prepared.get(batch) else {
            return;
        };
        let mut done = place.lock();
        if !std::mem::replace(&mut *done, true) {
            // A reader meets the same failure and reports it.
            let _ = self.map(batch);
        }
    }

    fn map(&self, batch: usize) -> Result<()> {
        let (repository, column) = (self.view.repository(), &self.view.column);
        let records = match batch {
            // A reader waits for the first rows.
            0 => repository.records(column, 0)?,
            _ => repository.records_around(column, batch)?,
        };
        for ((backend, uid), datasets) in repository.datasets(column, batch, &records) {
            let Ok(file) = repository.files.collection(backend, &uid) else {
                continue;
            };
            let mut advised = self.advised.lock();
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

    /// Prepares, in order, the batches of samples that no thread has begun.
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

    /// Returns the stored ranges of the row of a record; `None` if the sample is not stored as a row.
    fn ranges_of(&self, record: Record, before: &mut PreviousRow) -> Result<Option<FarRanges>> {
        let found = |file: &StoreFile, ranges| Some((file.far()?.clone(), ranges));
        match record {
            Record::Hdf5(row) => {
                let (file, rows) = self.dataset(&row, before)?;
                let count = rows.part(row.row, &row.shape)?;
                Ok(found(&file.file, rows.ranges(row.row, &count)))
            }
            Record::Numpy {
                uid, row, shape, ..
            } => {
                let (file, header) = match before.array.take() {
                    Some((known, file, header)) if known == uid => (file, header),
                    _ => {
                        let file = self.view.repository().files.open("10", &uid)?;
                        let header = NumpyHeader::read(&file)?;
                        (file, header)
                    }
                };
                let (start, len) = header.place(&file, row, &shape)?;
                let ranges = std::iter::once(start..start.saturating_add(len)).collect();
                let found = found(&file, ranges);
                before.array = Some((uid, file, header));
                Ok(found)
            }
            Record::Lmdb { .. } | Record::Remote { .. } => Ok(None),
        }
    }
}

impl BlockSource for StackBlocks {
    fn grid(&self) -> &Grid {
        &self.grid
    }

    fn chunks(&self) -> Option<&Grid> {
        self.rows.as_ref()
    }

    fn key(&self) -> Key {
        let content = self.view.column.content;
        Key {
            // Both halves of the hash are used: a block follows from the content of the column.
            file: (content >> 64) as u64,
            object: content as u64,
            form: ROWS,
            block: 0,
        }
    }

    fn name(&self) -> String {
        let column = String::from_utf8_lossy(&self.view.name);
        format!("{}: {column}", self.view.repository().folder.path.display())
    }

    fn need(&self, _grid: &Grid, _number: u64, len: usize) -> Need {
        // Stored chunks are mostly smaller than their decoded elements.
        Need {
            len,
            beside: len,
            ..Need::default()
        }
    }

    fn fill(&self, grid: &Grid, number: u64, _streaming: bool, out: &mut [u8]) -> Result<()> {
        self.rows(Self::indices(grid, number)?, out)
    }

    fn stream(&self, grid: &Grid, number: u64, sink: &mut Sink<'_>) -> Result<()> {
        let (repository, dtype) = (self.view.repository(), Some(&self.dtype));
        let mut start = 0;
        for at in Self::indices(grid, number)? {
            let row = &mut |at: u64, part: &[u8]| sink(start + at, part);
            let done = repository.stream(&self.record(at)?, dtype, Some(self.row), row);
            done.inspect_err(|_| repository.doubt(&self.view.column, at))?;
            start += self.row;
        }
        Ok(())
    }

    /// Rows that fit into the cache are decoded in memory.
    fn share(&self) -> u64 {
        1
    }

    /// The kernel has the rows now, and the next block takes over their memory, unless other open files share the
    /// column.
    fn keeps(&self, _small: bool) -> bool {
        !self.pattern.is_settled() || Arc::strong_count(&self.readers) > 2
    }

    fn is_far(&self) -> bool {
        self.view.repository().folder.far().is_some()
    }

    fn stored(&self, grid: &Grid, numbers: &[u64]) -> Vec<FarRanges> {
        let rows = numbers.iter().filter_map(|&n| Self::indices(grid, n).ok());
        let (mut files, mut before) = (Vec::new(), PreviousRow::default());
        for at in rows.flatten() {
            let record = self.next_record(at, &mut before);
            match record.and_then(|record| self.ranges_of(record, &mut before)) {
                Ok(found) => add(&mut files, found),
                Err(e) if e.kind == ErrorKind::Damaged => {}
                // Without a network, each further request would be waited for, too.
                Err(_) => break,
            }
        }
        files
    }

    /// Records and dataset maps are looked up in remote files.
    fn looks_up(&self) -> bool {
        true
    }
}

/// Returns the `len` bytes of a file from `start` on. For a sequential reader, bytes that are not in the page cache are
/// read past it: the cache will hold them as rows.
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
            // A file that is being written is read in the usual way.
            && file.read_direct(room, range.start).is_ok_and(|got| got >= from + len)
        {
            return Ok(&buffer[from..from + len]);
        }
    }
    let bytes = &mut buffer[..len];
    file.read_growing_at(bytes, start)?;
    Ok(bytes)
}

/// Returns how many of the chunks, sorted by file and address, are read together; `None` if there are none.
fn together(near: &[RowChunk]) -> Option<usize> {
    let first = near.first()?;
    let start = first.slot.addr;
    let mut end = start;
    let fits = |n: &RowChunk| {
        let slot = n.slot;
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

/// The distance between the records that are examined for the datasets of a batch: one dataset mostly holds more
/// samples.
const APART: usize = 16;

/// Datasets by backend and file.
type Datasets = BTreeMap<(&'static str, String), BTreeSet<u32>>;

/// The number of batches that are looked up together when a whole column is wanted.
const WIDE: usize = 16;

impl Repository {
    /// Returns the records of the samples of a batch.
    pub fn records(&self, column: &Column, batch: usize) -> Result<Arc<LocatedRecords>> {
        match self.known_records(column, batch)? {
            Some(records) => Ok(records),
            None => self.look_up(column, batch..batch + 1),
        }
    }

    /// Looks up a batch for a reader that will also want the batches around it.
    fn records_around(&self, column: &Column, batch: usize) -> Result<Arc<LocatedRecords>> {
        if let Some(records) = self.known_records(column, batch)? {
            return Ok(records);
        }
        let _one = column.around.lock();
        if let Some(records) = self.known_records(column, batch)? {
            return Ok(records);
        }
        let mut from = batch - batch % WIDE;
        while from < batch && self.known_records(column, from)?.is_some() {
            from += 1;
        }
        let to = (from + WIDE).min(column.located.len());
        self.look_up(column, from..to)?;
        self.records(column, batch)
    }

    fn known_records(&self, column: &Column, batch: usize) -> Result<Option<Arc<LocatedRecords>>> {
        let known = column.located[batch].lock().clone();
        Ok(match known {
            Some(records) if records.complete || self.hashes.version()? == records.version => {
                Some(records)
            }
            _ => None,
        })
    }

    /// Looks up the records of at least one batch; returns those of the last batch.
    fn look_up(&self, column: &Column, batches: Range<usize>) -> Result<Arc<LocatedRecords>> {
        let version = self.hashes.version()?;
        let first = column.batch(batches.start).start;
        let samples = first..column.batch(batches.end - 1).end;
        let packed = self.hashes.hashed(column.kind, column.hashes(samples))?;
        let mut last = Arc::new(LocatedRecords::new(&PackedValues::default(), 0..0, version));
        for batch in batches {
            let samples = column.batch(batch);
            let places = samples.start - first..samples.end - first;
            last = Arc::new(LocatedRecords::new(&packed, places, version));
            *column.located[batch].lock() = Some(last.clone());
        }
        Ok(last)
    }

    /// Returns the datasets that hold the samples of a batch.
    pub fn datasets(&self, column: &Column, batch: usize, records: &LocatedRecords) -> Datasets {
        let mut named = Datasets::new();
        let samples = column.batch(batch);
        let last = samples.end.checked_sub(1);
        for at in samples.step_by(APART).chain(last) {
            if let Ok(Record::Hdf5(row)) = self.parse_record(column, at, records) {
                let file = named.entry((row.backend, row.uid)).or_default();
                file.insert(row.dataset);
            }
        }
        named
    }

    /// Returns true if the locations of all samples of a column are known.
    pub fn has_located(&self, column: &Column) -> bool {
        let known = |batch| self.known_records(column, batch);
        (0..column.located.len()).all(|batch| known(batch).is_ok_and(|known| known.is_some()))
    }

    /// Looks up the locations of the samples of the first `most` batches, and maps the datasets of the first batch, for
    /// the first reader of the column.
    pub fn locate_first(&self, column: &Column, most: usize) -> Result<()> {
        let batches = column.located.len().min(most);
        for batch in (0..batches).step_by(WIDE) {
            self.records_around(column, batch)?;
        }
        if batches == 0 {
            return Ok(());
        }
        let records = self.records(column, 0)?;
        for ((backend, uid), datasets) in self.datasets(column, 0, &records) {
            let file = self.files.collection(backend, &uid)?;
            self.files.map_together(&file, &datasets)?;
        }
        Ok(())
    }

    /// Forgets the records around a sample that could not be read: another version of the table may have the right
    /// ones.
    pub fn doubt(&self, column: &Column, at: usize) {
        *column.located[at / BATCH].lock() = None;
    }

    /// Returns the record of a sample.
    pub fn record(&self, column: &Column, at: usize) -> Result<Record> {
        let records = self.records(column, at / BATCH)?;
        self.parse_record(column, at, &records)
    }

    /// Returns the record of a sample in its batch.
    fn parse_record(&self, column: &Column, at: usize, records: &LocatedRecords) -> Result<Record> {
        let about = |e: Error| {
            e.about(format!(
                "{}: {}",
                self.hashes.path.display(),
                column.digest(at)
            ))
        };
        let text = records.get(at % BATCH);
        if text.is_empty() {
            return Err(about(Error::damaged("there is no record of this digest")));
        }
        let text = String::from_utf8_lossy(text);
        Record::parse(&text).map_err(|e| about(Error::damaged(e.to_string())))
    }

    /// Returns the length of a text or bytes sample; `None` if it cannot be known (yet).
    pub fn length(&self, column: &Column, at: usize) -> Result<Option<u64>> {
        let (batch, inside) = (at / BATCH, at % BATCH);
        let place = &column.lengths[batch];
        let known = place.lock().clone();
        if let Some(known) = known
            && (known.lengths[inside].is_some() || self.hashes.version()? == known.version)
        {
            return Ok(known.lengths[inside]);
        }
        let records = self.records(column, batch)?;
        let mut lengths = vec![None; column.batch(batch).len()];
        // Keys are grouped by file, so that each file gets one request.
        let mut wanted: BTreeMap<_, Vec<_>> = BTreeMap::new();
        for (i, at) in column.batch(batch).enumerate() {
            if let Ok(Record::Lmdb {
                backend, uid, key, ..
            }) = self.parse_record(column, at, &records)
            {
                let keys = wanted.entry((backend, uid)).or_default();
                keys.push((i, key.into_bytes()));
            }
        }
        for ((backend, uid), rows) in wanted {
            let (places, keys): (Vec<_>, Vec<_>) = rows.into_iter().unzip();
            // A missing file affects only its own samples.
            let Ok(found) = self.values_file(backend, &uid).lengths(keys) else {
                continue;
            };
            for (place, length) in places.into_iter().zip(found) {
                lengths[place] = length;
            }
        }
        let length = lengths[inside];
        let known = KnownLengths {
            lengths,
            version: records.version,
        };
        *place.lock() = Some(Arc::new(known));
        Ok(length)
    }
}
