//! Records of the samples of a column, looked up in `hash.lmdb` in batches.
//!
//! A record that is missing or says "not fetched yet" may change with the next transaction.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;
use std::sync::{Arc, Mutex, MutexGuard};

use super::column::{BATCH, Column, KnownLengths, LocatedRecords};
use super::record::Record;
use super::repository::Repository;
use npyfs_base::error::{Error, Result};
use npyfs_hdf5::PackedValues;

/// The distance between the records that are examined for the datasets of a batch: one dataset mostly holds more
/// samples.
const APART: usize = 16;

/// Datasets by backend and file.
type Datasets = BTreeMap<(&'static str, String), BTreeSet<u32>>;

/// The number of batches that are looked up together when a whole column is wanted.
pub(super) const WIDE: usize = 16;

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(|e| e.into_inner())
}

impl Repository {
    /// Returns the records of the samples of a batch.
    pub fn records(&self, column: &Column, batch: usize) -> Result<Arc<LocatedRecords>> {
        match self.known_records(column, batch)? {
            Some(records) => Ok(records),
            None => self.look_up(column, batch..batch + 1),
        }
    }

    /// Looks up a batch for a reader that will also want the batches around it.
    pub fn records_around(&self, column: &Column, batch: usize) -> Result<Arc<LocatedRecords>> {
        if let Some(records) = self.known_records(column, batch)? {
            return Ok(records);
        }
        let _one = lock(&column.around);
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
        let known = lock(&column.located[batch]).clone();
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
            *lock(&column.located[batch]) = Some(last.clone());
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
        *lock(&column.located[at / BATCH]) = None;
    }

    /// Returns the record of a sample.
    pub fn record(&self, column: &Column, at: usize) -> Result<Record> {
        let records = self.records(column, at / BATCH)?;
        self.parse_record(column, at, &records)
    }

    /// Returns the record of a sample in its batch.
    pub fn parse_record(
        &self,
        column: &Column,
        at: usize,
        records: &LocatedRecords,
    ) -> Result<Record> {
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
        let known = lock(place).clone();
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
        *lock(place) = Some(Arc::new(known));
        Ok(length)
    }
}
