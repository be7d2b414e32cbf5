//! The bytes of a sample by its record, checked against the record's xxh64 the first time they are decoded.

use std::sync::Arc;

use xxhash_rust::xxh3::xxh3_64;
use xxhash_rust::xxh64::xxh64;

use super::collection::Collection;
use super::numpy::NumpyHeader;
use super::record::{Record, RowRecord};
use super::repository::Repository;
use super::rows::{Rows, Stored};
use super::table::Table;
use super::whole::Whole;
use crate::dataset::cache::{Key, Need};
use crate::error::{Error, ErrorKind, Result};
use crate::hdf5::Sink;
use crate::io::buffer::Buffer;
use crate::npy::dtype::DType;

/// The form number of samples in the cache.
const SAMPLE: u32 = 32;

/// Bytes of a row or value that an open file holds itself; larger ones stay in a file.
const HELD: u64 = 1 << 20;

/// Refuses bytes that are not those that were written.
pub(super) fn check(bytes: &[u8], checksum: Option<u64>) -> Result<()> {
    match checksum {
        Some(sum) if xxh64(bytes, 0) != sum => {
            Err(Error::damaged("the checksum of the sample does not match"))
        }
        _ => Ok(()),
    }
}

fn never_written() -> Error {
    Error::damaged("the row was never written")
}

fn filled(out: &mut [u8], bytes: &[u8]) -> Result<()> {
    if bytes.len() != out.len() {
        let why = format!("{} bytes, its record needs {}", bytes.len(), out.len());
        return Err(Error::damaged(why));
    }
    out.copy_from_slice(bytes);
    Ok(())
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

/// Returns what an open of a sample that is not here says.
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

    /// Returns whether a sample can be opened: its data file is there.
    pub fn is_present(&self, record: &Record) -> Result<()> {
        match record {
            Record::Hdf5(row) => self.files.collection(row.backend, &row.uid).map(drop),
            Record::Numpy { uid, .. } => self.files.open("10", uid).map(drop),
            Record::Lmdb { backend, uid, .. } => self.files.open(backend, uid).map(drop),
            Record::Remote { .. } => Err(not_fetched(record)),
        }
        .map_err(|e| match record {
            Record::Remote { .. } => e,
            _ => e.about(record),
        })
    }

    /// Returns why a text or bytes sample has no length: its file cannot be read, or lacks it.
    pub fn no_value(&self, record: &Record) -> Error {
        let mut why = Error::damaged("there is no such row");
        if let Record::Lmdb {
            backend, uid, key, ..
        } = record
        {
            let keys = vec![key.as_bytes().to_vec()];
            match self.values_file(backend, uid).lengths(keys) {
                Err(e) => why = e,
                Ok(_) => why = why.about(self.files.path(backend, uid).display()),
            }
        }
        why.about(record)
    }

    /// The type of an array sample, as its data file has it.
    pub fn stored_type(&self, record: &Record) -> Result<DType> {
        match record {
            Record::Hdf5(row) => {
                let file = self.files.collection(row.backend, &row.uid)?;
                Ok(self.files.rows(&file, row.dataset)?.dtype.clone())
            }
            Record::Numpy { uid, .. } => Ok(NumpyHeader::read(&self.files.open("10", uid)?)?.dtype),
            _ => Err(Error::damaged("not an array")),
        }
        .map_err(|e: Error| e.about(record))
    }

    /// The bytes of a sample: an array in C order, text, or bytes. Not from the cache.
    pub fn fetch(&self, record: &Record, expected: Option<&DType>) -> Result<Vec<u8>> {
        let bytes = match record {
            Record::Hdf5(row) => self.collected(row, expected),
            Record::Numpy {
                uid,
                checksum,
                row,
                shape,
            } => self.files.open("10", uid).and_then(|file| {
                let header = NumpyHeader::read(&file)?;
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

    fn collected(&self, row: &RowRecord, expected: Option<&DType>) -> Result<Vec<u8>> {
        self.in_collection(row, expected, |file, rows, newer| {
            let count = rows.part(row.row, &row.shape)?;
            let h5 = &self.context.h5;
            let found = rows.read(h5, &file.file, row.row, &count, !newer)?;
            let bytes = found.ok_or_else(never_written)?;
            check(&bytes, row.checksum)?;
            Ok(bytes)
        })
    }

    /// Returns what `read` makes of a collection's dataset; with a newer map of it if the first was too old. It is told
    /// whether the file was written to since.
    fn in_collection<T>(
        &self,
        row: &RowRecord,
        expected: Option<&DType>,
        read: impl Fn(&Collection, &Rows, bool) -> Result<T>,
    ) -> Result<T> {
        let (backend, uid, dataset) = (row.backend, &*row.uid, row.dataset);
        let read = |again: bool| {
            let file = self.files.collection(backend, uid)?;
            let rows = if again {
                self.files.newer(&file, dataset)?
            } else {
                self.files.rows(&file, dataset)?
            };
            same_type(&rows.dtype, expected)?;
            let newer = !again && file.is_newer(&rows);
            read(&file, &rows, newer)
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
        let rows = self.files.rows(&file, dataset);
        match rows {
            Ok(rows) if file.is_newer(&rows) => read(true).map_err(|_| first),
            _ => Err(first),
        }
    }

    /// The `len` bytes of a sample: from the cache, or in a file if reading it takes more than the cache may.
    pub fn whole(&self, record: &Record, expected: Option<&DType>, len: u64) -> Result<Whole> {
        let Record::Hdf5(row) = record else {
            return self.uncached(record, expected, len);
        };
        let file = self.files.collection(row.backend, &row.uid)?.file.serial;
        let key = Key {
            file,
            object: (u64::from(row.dataset) << 32) ^ row.row,
            form: SAMPLE,
            // Records that differ at all are different samples.
            block: xxh3_64(record.to_string().as_bytes()),
        };
        let beside = self.beside(record, len);
        if len.saturating_add(beside) > self.context.cache.limit() {
            return self.uncached(record, expected, len);
        }
        let size = |n| usize::try_from(n).unwrap_or(usize::MAX);
        let need = Need {
            len: size(len),
            beside: size(beside),
            ..Need::default()
        };
        let fill = |out: &mut [u8]| {
            if self.decode(row, expected, out).unwrap_or(false) {
                return Ok(());
            }
            let bytes = self.fetch(record, expected)?;
            filled(out, &bytes).map_err(|e| e.about(record))
        };
        self.context.cache.read(key, need, fill).map(Whole::Memory)
    }

    /// Fills `out` with a sample, past the cache: for somebody who has room in it, and for `spare` bytes more.
    pub fn fetch_into(
        &self,
        record: &Record,
        expected: Option<&DType>,
        spare: u64,
        out: &mut [u8],
    ) -> Result<()> {
        let len = out.len() as u64;
        if self.beside(record, len) > spare {
            return self.uncached(record, expected, len)?.read_at(0, out);
        }
        filled(out, &self.fetch(record, expected)?).map_err(|e| e.about(record))
    }

    /// Bytes that reading a sample of `len` bytes takes beside them, as far as is known before.
    fn beside(&self, record: &Record, len: u64) -> u64 {
        match record {
            Record::Hdf5(row) => {
                let file = self.files.collection(row.backend, &row.uid);
                let rows = file.and_then(|file| self.files.rows(&file, row.dataset));
                // Whoever reads it meets the failure.
                rows.map_or(len, |rows| rows.beside(len))
            }
            _ => len,
        }
    }

    /// A sample past the cache: in a file, unless it is a small one that needs no decoding.
    fn uncached(&self, record: &Record, expected: Option<&DType>, len: u64) -> Result<Whole> {
        let in_file = match record {
            Record::Hdf5(row) => self.streamed(row, expected, len).map(Some),
            Record::Numpy {
                uid,
                checksum,
                row,
                shape,
            } => self.files.open("10", uid).and_then(|file| {
                let header = NumpyHeader::read(&file)?;
                same_type(&header.dtype, expected)?;
                let (at, size) = header.place(&file, *row, shape)?;
                if size <= HELD {
                    return Ok(None);
                }
                let whole = match header.is_whole(shape) {
                    true => Whole::part(file, at, size),
                    false => Whole::spilled(len, |sink| header.crop(&file, *row, shape, sink))?,
                };
                whole.check(Some(*checksum)).map(Some)
            }),
            Record::Lmdb {
                backend,
                uid,
                key,
                checksum,
            } if len > HELD => {
                let values = self.values_file(backend, uid);
                Whole::spilled(len, |sink| values.stream(key.as_bytes(), sink))
                    .and_then(|whole| whole.check(Some(*checksum)).map(Some))
            }
            _ => Ok(None),
        };
        match in_file.map_err(|e| e.about(record))? {
            Some(whole) => Ok(whole),
            None => {
                let bytes = self.fetch(record, expected)?;
                Ok(Whole::Memory(Arc::new(Buffer::from(bytes))))
            }
        }
    }

    /// A row of a collection, decoded by another process into a file.
    fn streamed(&self, row: &RowRecord, expected: Option<&DType>, len: u64) -> Result<Whole> {
        self.in_collection(row, expected, |file, rows, _newer| {
            let count = rows.part(row.row, &row.shape)?;
            if !rows.has(row.row) {
                return Err(never_written());
            }
            // Rows are only ever added: the map is right for a file that has grown.
            let grown = match file.file.is_unchanged() {
                true => None,
                false => Some(self.files.open(row.backend, &row.uid)?),
            };
            let source = grown.as_ref().unwrap_or(&file.file);
            let h5 = &self.context.h5;
            let fill =
                |sink: &mut Sink<'_>| Ok(h5.stream(source, rows.request(row.row, &count), sink)?);
            let whole = Whole::spilled(len, fill)?.check(row.checksum)?;
            self.context
                .cache
                .passed_on(usize::try_from(len).unwrap_or(usize::MAX));
            Ok(whole)
        })
    }

    /// Fills `out` with the bytes of a sample that is a chunk of its own, checked. False if it is not, or that failed:
    /// `whole` then says why.
    pub fn decoded(&self, record: &Record, expected: Option<&DType>, out: &mut [u8]) -> bool {
        let Record::Hdf5(row) = record else {
            return false;
        };
        let done = self.decode(row, expected, out).unwrap_or(false);
        if done {
            self.context.cache.passed_on(out.len());
        }
        done
    }

    fn decode(&self, row: &RowRecord, expected: Option<&DType>, out: &mut [u8]) -> Result<bool> {
        let file = self.files.collection(row.backend, &row.uid)?;
        let rows = self.files.rows(&file, row.dataset)?;
        same_type(&rows.dtype, expected)?;
        let count = rows.part(row.row, &row.shape)?;
        let fits = |stored: &Stored| stored.len == out.len() && stored.is_plausible();
        let Some(stored) = rows.stored(row.row, &count).filter(fits) else {
            return Ok(false);
        };
        let pool = self.context.cache.pool();
        let mut bytes = pool.take(stored.slot.size as usize);
        file.file.read_growing_at(&mut bytes, stored.slot.addr)?;
        rows.decode(&bytes, stored.slot.mask, out, pool)?;
        check(out, row.checksum)?;
        Ok(true)
    }
}
