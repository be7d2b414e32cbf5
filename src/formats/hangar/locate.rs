//! Records of the samples of a column, looked up in `hash.lmdb` a block at a time.
//!
//! A record that says "not fetched yet", or is missing, may be another one after the next transaction.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;
use std::sync::{Arc, Mutex, MutexGuard};

use super::column::{BLOCK, Column};
use super::record::Record;
use super::repository::Repository;
use crate::error::{Error, Result};
use crate::hdf5::PackedValues;
use crate::io::file::Identity;

/// The records of a block of samples.
#[derive(Default)]
pub struct Located(Mutex<Option<Arc<LocatedRecords>>>);

/// The lengths of a block of text or bytes samples; `None` where they cannot be known yet.
#[derive(Default)]
pub struct Lengths(Mutex<Option<Arc<KnownLengths>>>);

struct KnownLengths {
    lengths: Vec<Option<u64>>,
    version: Identity,
}

/// Records as text, one after the other; empty where there is none.
pub struct LocatedRecords {
    text: Box<[u8]>,
    ends: Box<[u32]>,
    /// None is missing or still to be fetched.
    complete: bool,
    /// The version of `hash.lmdb` they were read from, or an earlier one.
    version: Identity,
}

impl Located {
    fn lock(&self) -> MutexGuard<'_, Option<Arc<LocatedRecords>>> {
        self.0.lock().unwrap_or_else(|e| e.into_inner())
    }

    fn get(&self) -> Option<Arc<LocatedRecords>> {
        self.lock().clone()
    }

    fn set(&self, records: Arc<LocatedRecords>) {
        *self.lock() = Some(records);
    }
}

impl LocatedRecords {
    /// The records at `places` of those that were looked up.
    fn new(packed: &PackedValues, places: Range<usize>, version: Identity) -> Self {
        let start = places.start.checked_sub(1).map_or(0, |n| packed.ends[n]);
        let ends: Box<[u32]> = packed.ends[places].iter().map(|end| end - start).collect();
        let len = ends.last().copied().unwrap_or(0);
        let text = &packed.text[start as usize..][..len as usize];
        let mut records = Self {
            text: text.into(),
            ends,
            complete: false,
            version,
        };
        records.complete = (0..records.ends.len()).all(|at| {
            let record = records.get(at);
            !record.is_empty() && !record.starts_with(b"50:")
        });
        records
    }

    fn get(&self, at: usize) -> &[u8] {
        let start = at.checked_sub(1).map_or(0, |before| self.ends[before]);
        &self.text[start as usize..self.ends[at] as usize]
    }
}

/// The datasets of a block of samples follow from every so many of its records: mostly one holds more samples.
const APART: usize = 16;

/// Datasets by backend and file.
type Datasets = BTreeMap<(&'static str, String), BTreeSet<u32>>;

/// Blocks that are looked up together when all of a column is wanted.
pub(super) const WIDE: usize = 16;

impl Repository {
    /// The records of the samples of a block.
    pub fn records(&self, column: &Column, block: usize) -> Result<Arc<LocatedRecords>> {
        match self.known_records(column, block)? {
            Some(records) => Ok(records),
            None => self.look_up(column, block..block + 1),
        }
    }

    /// Looks up a block for a reader that will want the blocks around it as well.
    pub fn records_around(&self, column: &Column, block: usize) -> Result<Arc<LocatedRecords>> {
        if let Some(records) = self.known_records(column, block)? {
            return Ok(records);
        }
        let _one = column.around.lock().unwrap_or_else(|e| e.into_inner());
        if let Some(records) = self.known_records(column, block)? {
            return Ok(records);
        }
        let mut from = block - block % WIDE;
        while from < block && self.known_records(column, from)?.is_some() {
            from += 1;
        }
        let to = (from + WIDE).min(column.located.len());
        self.look_up(column, from..to)?;
        self.records(column, block)
    }

    fn known_records(&self, column: &Column, block: usize) -> Result<Option<Arc<LocatedRecords>>> {
        let known = column.located[block].get();
        Ok(match known {
            Some(records) if records.complete || self.hashes.version()? == records.version => {
                Some(records)
            }
            _ => None,
        })
    }

    /// Looks up the records of blocks, at least one; answers those of the last.
    fn look_up(&self, column: &Column, blocks: Range<usize>) -> Result<Arc<LocatedRecords>> {
        let version = self.hashes.version()?;
        let first = column.block(blocks.start).start;
        let samples = first..column.block(blocks.end - 1).end;
        let packed = self.hashes.hashed(column.kind, column.hashes(samples))?;
        let mut last = Arc::new(LocatedRecords::new(&PackedValues::default(), 0..0, version));
        for block in blocks {
            let samples = column.block(block);
            let places = samples.start - first..samples.end - first;
            last = Arc::new(LocatedRecords::new(&packed, places, version));
            column.located[block].set(last.clone());
        }
        Ok(last)
    }

    /// The datasets in which the samples of a block are.
    pub fn datasets(&self, column: &Column, block: usize, records: &LocatedRecords) -> Datasets {
        let mut named = Datasets::new();
        let samples = column.block(block);
        let last = samples.end.checked_sub(1);
        for at in samples.step_by(APART).chain(last) {
            if let Ok(Record::Hdf5(row)) = self.parse_record(column, at, records) {
                let file = named.entry((row.backend, row.uid)).or_default();
                file.insert(row.dataset);
            }
        }
        named
    }

    /// Returns whether it is known where all samples of a column are.
    pub fn has_located(&self, column: &Column) -> bool {
        let known = |block| self.known_records(column, block);
        (0..column.located.len()).all(|block| known(block).is_ok_and(|known| known.is_some()))
    }

    /// Looks up where the samples of the first `most` blocks are, and maps the datasets of the first block, for whoever reads
    /// the column first.
    pub fn locate_first(&self, column: &Column, most: usize) -> Result<()> {
        let blocks = column.located.len().min(most);
        for block in (0..blocks).step_by(WIDE) {
            self.records_around(column, block)?;
        }
        if blocks == 0 {
            return Ok(());
        }
        let records = self.records(column, 0)?;
        for ((backend, uid), datasets) in self.datasets(column, 0, &records) {
            let file = self.files.collection(backend, &uid)?;
            self.files.map_together(&file, &datasets)?;
        }
        Ok(())
    }

    /// Forgets the records around a sample that could not be read: another version of the table may be right.
    pub fn doubt(&self, column: &Column, at: usize) {
        *column.located[at / BLOCK].lock() = None;
    }

    /// The record of a sample.
    pub fn record(&self, column: &Column, at: usize) -> Result<Record> {
        let records = self.records(column, at / BLOCK)?;
        self.parse_record(column, at, &records)
    }

    /// The record of a sample in its block.
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
        let text = records.get(at % BLOCK);
        if text.is_empty() {
            return Err(about(Error::damaged("there is no record of this digest")));
        }
        let text = String::from_utf8_lossy(text);
        Record::parse(&text).map_err(|e| about(Error::damaged(e.to_string())))
    }

    /// The length of a text or bytes sample; `None` if that cannot be known (yet).
    pub fn length(&self, column: &Column, at: usize) -> Result<Option<u64>> {
        let (block, inside) = (at / BLOCK, at % BLOCK);
        let place = &column.lengths[block].0;
        let known = place.lock().unwrap_or_else(|e| e.into_inner()).clone();
        if let Some(known) = known
            && (known.lengths[inside].is_some() || self.hashes.version()? == known.version)
        {
            return Ok(known.lengths[inside]);
        }
        let records = self.records(column, block)?;
        let mut lengths = vec![None; column.block(block).len()];
        // By file, since each is asked once.
        let mut wanted: BTreeMap<_, Vec<_>> = BTreeMap::new();
        for (i, at) in column.block(block).enumerate() {
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
            // A file that is missing costs its own samples only.
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
        *place.lock().unwrap_or_else(|e| e.into_inner()) = Some(Arc::new(known));
        Ok(length)
    }
}
