//! The bytes of a sample by its record, checked against the record's xxh64 the first time they are decoded.

use std::os::unix::fs::FileExt;
use std::sync::Arc;

use xxhash_rust::xxh3::xxh3_64;
use xxhash_rust::xxh64::xxh64;

use super::numpy::Header;
use super::record::Record;
use super::repository::Repository;
use super::rows::Stored;
use super::table::Table;
use crate::dataset::cache::{Key, Piece};
use crate::error::{Error, ErrorKind, Result};
use crate::io::buffer::Buffer;
use crate::npy::dtype::DType;

/// The form number of samples in the cache.
const SAMPLE: u32 = 32;

/// Refuses bytes that are not those that were written.
pub fn check(bytes: &[u8], checksum: Option<u64>) -> Result<()> {
    match checksum {
        Some(sum) if xxh64(bytes, 0) != sum => {
            Err(Error::damaged("the checksum of the sample does not match"))
        }
        _ => Ok(()),
    }
}

fn same_type(found: &DType, expected: Option<&DType>) -> Result<()> {
    match expected {
        Some(expected) if expected != found => Err(Error::damaged(format!(
            "stored as {}, the column's schema says {}",
            found.name(),
            expected.name()
        ))),
        _ => Ok(()),
    }
}

/// What an open of a sample that is not here says.
fn not_fetched(record: &Record) -> Error {
    Error::new(
        ErrorKind::Os(libc::ENODATA),
        format!(
            "{record}: not in this repository yet; fetch the data with Hangar (hangar fetch-data)"
        ),
    )
}

impl Repository {
    /// A file with values of backend `30` or `31`.
    pub fn values_file(&self, backend: &'static str, uid: &str) -> Arc<Table> {
        self.files.table(backend, uid)
    }

    /// Whether a sample can be opened: its data file is there.
    pub fn is_present(&self, record: &Record) -> Result<()> {
        match record {
            Record::Hdf5 { backend, uid, .. } => self.files.collection(backend, uid).map(|_| ()),
            Record::Numpy { uid, .. } => self.files.open("10", uid).map(|_| ()),
            Record::Lmdb { backend, uid, .. } => self.files.open(backend, uid).map(|_| ()),
            Record::Remote { .. } => Err(not_fetched(record)),
        }
        .map_err(|e| match record {
            Record::Remote { .. } => e,
            _ => e.about(record),
        })
    }

    /// The type of an array sample, as its data file has it.
    pub fn stored_type(&self, record: &Record) -> Result<DType> {
        match record {
            Record::Hdf5 {
                backend,
                uid,
                dataset,
                ..
            } => {
                let file = self.files.collection(backend, uid)?;
                Ok(self.files.rows(&file, *dataset)?.dtype.clone())
            }
            Record::Numpy { uid, .. } => Ok(Header::read(&self.files.open("10", uid)?)?.dtype),
            _ => Err(Error::damaged("not an array")),
        }
        .map_err(|e: Error| e.about(record))
    }

    /// The bytes of a sample: an array in C order, text, or bytes. Not from the cache.
    pub fn fetch(&self, record: &Record, expected: Option<&DType>) -> Result<Vec<u8>> {
        let bytes = match record {
            Record::Hdf5 { .. } => self.collected(record, expected),
            Record::Numpy {
                uid,
                checksum,
                row,
                shape,
            } => self.files.open("10", uid).and_then(|file| {
                let header = Header::read(&file)?;
                same_type(&header.dtype, expected)?;
                let bytes = header.sample(&file, *row, shape)?;
                check(&bytes, Some(*checksum))?;
                Ok(bytes)
            }),
            Record::Lmdb {
                backend,
                uid,
                key,
                checksum,
            } => {
                let value = self.values_file(backend, uid).value(key.as_bytes());
                value.and_then(|value| {
                    let bytes = value.ok_or_else(|| Error::damaged("there is no such row"))?;
                    check(&bytes, Some(*checksum))?;
                    Ok(bytes)
                })
            }
            Record::Remote { .. } => return Err(not_fetched(record)),
        };
        bytes.map_err(|e| e.about(record))
    }

    fn collected(&self, record: &Record, expected: Option<&DType>) -> Result<Vec<u8>> {
        let Record::Hdf5 {
            backend,
            uid,
            checksum,
            dataset,
            row,
            shape,
            ..
        } = record
        else {
            return Err(Error::damaged("not in a collection"));
        };
        let read = |again: bool| {
            let file = self.files.collection(backend, uid)?;
            let rows = if again {
                self.files.newer(&file, *dataset)?
            } else {
                self.files.rows(&file, *dataset)?
            };
            same_type(&rows.dtype, expected)?;
            let count = rows.part(*row, shape)?;
            let newer = !again && file.is_newer(&rows);
            let h5 = &self.context.h5;
            let found = rows.read(h5, &file.file, *row, &count, !newer)?;
            let bytes = found.ok_or_else(|| Error::damaged("the row was never written"))?;
            check(&bytes, *checksum)?;
            Ok(bytes)
        };
        let first = match read(false) {
            Err(first) => first,
            found => return found,
        };
        // The map may be older than the row, or the file may be another one now.
        let file = self.files.collection(backend, uid)?;
        if file.is_moved() {
            self.files.forget(backend, uid);
            return read(true).map_err(|_| first);
        }
        let rows = self.files.rows(&file, *dataset);
        match rows {
            Ok(rows) if file.is_newer(&rows) => read(true).map_err(|_| first),
            _ => Err(first),
        }
    }

    /// The bytes of a sample, kept in the cache.
    pub fn sample(&self, record: &Record, expected: Option<&DType>) -> Result<Piece> {
        let Some(key) = self.key(record)? else {
            let bytes = self.fetch(record, expected)?;
            return Ok(Arc::new(Buffer::from(bytes)));
        };
        self.context.cache.get(key, || self.fetch(record, expected))
    }

    /// Fills `out` with the bytes of a sample that is a chunk of its own, checked. False if it is not, or that failed:
    /// `sample` then says why.
    pub fn decoded(&self, record: &Record, expected: Option<&DType>, out: &mut [u8]) -> bool {
        let Record::Hdf5 {
            backend,
            uid,
            checksum,
            dataset,
            row,
            shape,
            ..
        } = record
        else {
            return false;
        };
        let mut decode = || {
            let file = self.files.collection(backend, uid)?;
            let rows = self.files.rows(&file, *dataset)?;
            same_type(&rows.dtype, expected)?;
            let count = rows.part(*row, shape)?;
            // No codec makes more of what it cannot compress; a damaged table may say so.
            let fits = |stored: &Stored| {
                stored.len == out.len() && stored.slot.size as usize <= 2 * out.len() + 4096
            };
            let Some(stored) = rows.stored(*row, &count).filter(fits) else {
                return Ok(false);
            };
            let pool = self.context.cache.pool();
            let mut bytes = pool.take(stored.slot.size as usize);
            let file = file.file.file()?;
            file.read_exact_at(&mut bytes, stored.slot.addr)?;
            rows.decode(&bytes, stored.slot.mask, out, pool)?;
            check(out, *checksum)?;
            self.context.cache.passed_on(out.len());
            Ok::<_, Error>(true)
        };
        decode().unwrap_or(false)
    }

    /// The record's name in the cache: records that differ at all are different samples.
    fn key(&self, record: &Record) -> Result<Option<Key>> {
        let Record::Hdf5 {
            backend,
            uid,
            dataset,
            row,
            ..
        } = record
        else {
            return Ok(None);
        };
        Ok(Some(Key {
            file: self.files.collection(backend, uid)?.file.serial,
            object: (u64::from(*dataset) << 32) ^ row,
            form: SAMPLE,
            piece: xxh3_64(record.to_string().as_bytes()),
        }))
    }
}
