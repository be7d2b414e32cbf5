//! The bytes of a sample, found by its record and checked against the record's xxh64 when they are first decoded.
//!
//! A file of backend `10` is an `.npy` file with one sample a row, made by NumPy's `open_memmap`. Only the files that
//! Hangar writes are read: version 1.0, C order, numbers and booleans in native byte order.

use std::io;
use std::sync::Arc;

use xxhash_rust::xxh64::{Xxh64, xxh64};

use super::collection::Collection;
use super::record::{Record, RowRecord};
use super::repository::Repository;
use super::rows::{Rows, never_written};
use super::schema::described;
use super::table::Table;
use crate::dataset::cache::Need;
use crate::dataset::chunked::LARGEST;
use npyfs_base::error::{Error, ErrorKind, Result};
use npyfs_base::npy;
use npyfs_base::npy::dtype::DType;
use npyfs_hdf5::Sink;
use npyfs_io::file::{RawError, StoreFile};

fn wrong_sum() -> Error {
    Error::damaged("the checksum of the sample does not match")
}

/// Refuses bytes that differ from the written ones.
pub(super) fn check(bytes: &[u8], checksum: Option<u64>) -> Result<()> {
    match checksum {
        Some(sum) if xxh64(bytes, 0) != sum => Err(wrong_sum()),
        _ => Ok(()),
    }
}

/// Hands on the bytes that `make` produces, and fails at the end unless they are `len` bytes with this checksum. `make`
/// may begin again at 0.
fn checked(
    (len, checksum): (Option<u64>, Option<u64>),
    sink: &mut Sink<'_>,
    make: impl FnOnce(&mut Sink<'_>) -> Result<()>,
) -> Result<()> {
    let (mut hash, mut end) = (Xxh64::new(0), 0);
    make(&mut |at, part| {
        if at == 0 {
            hash.reset(0);
        }
        hash.update(part);
        end = at.saturating_add(part.len() as u64);
        if len.is_some_and(|len| end > len) {
            let why = "more bytes than its record says";
            return Err(io::Error::other(Error::damaged(why)));
        }
        sink(at, part)
    })?;
    if let Some(len) = len.filter(|&len| len != end) {
        let why = format!("{end} bytes, its record needs {len}");
        return Err(Error::damaged(why));
    }
    match checksum {
        Some(sum) if hash.digest() != sum => Err(wrong_sum()),
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

/// Returns the error for opening a sample that was not fetched.
fn not_fetched(record: &Record) -> Error {
    Error::new(
        ErrorKind::Os(libc::ENODATA),
        format!(
            "{record}: not in this repository yet; fetch the data with Hangar (hangar fetch-data)"
        ),
    )
}

impl Repository {
    /// Returns the file with the values of backend `30` or `31`.
    pub fn values_file(&self, backend: &'static str, uid: &str) -> Arc<Table> {
        self.files.table(backend, uid)
    }

    /// Checks that a sample can be opened: its data file exists.
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

    /// Returns the reason why a text or bytes sample has no length: its file cannot be read, or lacks the value.
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

    /// Returns the type of an array sample, as stored in its data file.
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

    /// Returns the memory that reading a sample of `len` bytes takes, as far as it is known in advance.
    pub fn need(&self, record: &Record, len: usize) -> Need {
        let of_row = |row: &RowRecord| {
            let file = self.files.collection(row.backend, &row.uid)?;
            let rows = self.files.rows(&file, row.dataset)?;
            let count = rows.part(row.row, &row.shape)?;
            Ok::<_, Error>(rows.need(row.row, &count, len))
        };
        let beside = match record {
            // The reader of the sample meets the failure.
            Record::Hdf5(row) => of_row(row).map_or(len, |need| need.beside),
            _ => len.min(PART),
        };
        Need {
            len,
            beside,
            ..Need::default()
        }
    }

    /// Returns all bytes of a sample, without the cache: an array in C order, text, or bytes.
    pub fn fetch(&self, record: &Record, expected: Option<&DType>) -> Result<Vec<u8>> {
        let mut bytes = Vec::new();
        match record {
            Record::Hdf5(row) => self
                .in_collection(row, expected, |file, rows, again| {
                    bytes = vec![0; rows.len(&rows.part(row.row, &row.shape)?)];
                    self.row((file, rows), row, again, &mut bytes)
                })
                .map_err(|e| e.about(record))?,
            _ => self.stream(record, expected, None, &mut |at, part| {
                bytes.truncate(usize::try_from(at).unwrap_or(usize::MAX));
                bytes.extend_from_slice(part);
                Ok(())
            })?,
        }
        Ok(bytes)
    }

    /// Fills `out` with a sample, without the cache.
    pub fn fetch_into(
        &self,
        record: &Record,
        expected: Option<&DType>,
        out: &mut [u8],
    ) -> Result<()> {
        match record {
            Record::Hdf5(row) => self
                .in_collection(row, expected, |file, rows, again| {
                    self.row((file, rows), row, again, out)
                })
                .map_err(|e| e.about(record)),
            _ => self.stream_into(record, expected, out),
        }
    }

    /// Fills `out` with a sample that comes in parts, for a sample whose decoding takes more memory than there is.
    pub fn stream_into(
        &self,
        record: &Record,
        expected: Option<&DType>,
        out: &mut [u8],
    ) -> Result<()> {
        let len = out.len() as u64;
        self.stream(record, expected, Some(len), &mut |at, part| {
            let at = usize::try_from(at).unwrap_or(usize::MAX);
            let end = at.saturating_add(part.len());
            let place = out.get_mut(at..end).ok_or(io::ErrorKind::InvalidData)?;
            place.copy_from_slice(part);
            Ok(())
        })
    }

    /// Hands on a sample in parts, which are valid only if this returns `Ok`: the checksum comes last. After a failure
    /// on the way the parts may begin again at 0. Another process does the decoding.
    pub fn stream(
        &self,
        record: &Record,
        expected: Option<&DType>,
        len: Option<u64>,
        sink: &mut Sink<'_>,
    ) -> Result<()> {
        let done = match record {
            Record::Hdf5(row) => self.in_collection(row, expected, |file, rows, _| {
                let count = rows.part(row.row, &row.shape)?;
                if !rows.has(row.row) {
                    return Err(never_written());
                }
                let grown = self.grown(file, row)?;
                let source = grown.as_ref().unwrap_or(&file.file);
                let request = rows.request(row.row, &count)?;
                checked((len, row.checksum), sink, |sink| {
                    Ok(self.context.h5.stream(source, request, sink)?)
                })?;
                self.context.cache.passed_on(rows.len(&count));
                Ok(())
            }),
            Record::Numpy {
                uid,
                checksum,
                row,
                shape,
            } => self.files.open("10", uid).and_then(|file| {
                let header = NumpyHeader::read(&file)?;
                same_type(&header.dtype, expected)?;
                checked((len, Some(*checksum)), sink, |sink| {
                    header.sample(&file, *row, shape, sink)
                })
            }),
            Record::Lmdb {
                backend,
                uid,
                key,
                checksum,
            } => {
                let values = self.values_file(backend, uid);
                checked((len, Some(*checksum)), sink, |sink| {
                    values.stream(key.as_bytes(), sink)
                })
            }
            Record::Remote { .. } => return Err(not_fetched(record)),
        };
        done.map_err(|e| e.about(record))
    }

    /// Fills `out` with a row of a collection.
    fn row(
        &self,
        (file, rows): (&Collection, &Rows),
        row: &RowRecord,
        again: bool,
        out: &mut [u8],
    ) -> Result<()> {
        let count = rows.part(row.row, &row.shape)?;
        let grown = match rows.is_chunked() {
            true => None,
            false => self.grown(file, row)?,
        };
        let source = grown.as_ref().unwrap_or(&file.file);
        // Elements that a map lacks may have been written since it was made.
        let fill = || again || !file.is_newer(rows);
        let with = (&self.context.h5, self.context.cache.pool());
        rows.read(with, source, (row.row, &count), fill, out)?;
        check(out, row.checksum)
    }

    /// Reopens, for libhdf5, a collection that has grown. Rows are only ever added, so an older map of it stays valid.
    fn grown(&self, file: &Collection, row: &RowRecord) -> Result<Option<StoreFile>> {
        match file.file.is_unchanged() {
            true => Ok(None),
            false => self.files.open(row.backend, &row.uid).map(Some),
        }
    }

    /// Returns the result of `read` for a collection's dataset. If the first map was too old, `read` is called again
    /// with a newer one, and is told that this is the second call.
    fn in_collection<T>(
        &self,
        row: &RowRecord,
        expected: Option<&DType>,
        mut read: impl FnMut(&Collection, &Rows, bool) -> Result<T>,
    ) -> Result<T> {
        let (backend, uid, dataset) = (row.backend, &*row.uid, row.dataset);
        let mut read = |again: bool| {
            let file = self.files.collection(backend, uid)?;
            let rows = if again {
                self.files.newer(&file, dataset)?
            } else {
                self.files.rows(&file, dataset)?
            };
            same_type(&rows.dtype, expected)?;
            read(&file, &rows, again)
        };
        let first = match read(false) {
            Err(first) => first,
            found => return found,
        };
        // The map may be older than the row, or the path may lead to another file now.
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
}

/// The number of bytes of a sample that are handed on at a time.
const PART: usize = 1 << 20;

/// The header of an `.npy` file.
#[derive(Debug)]
pub(super) struct NumpyHeader {
    pub dtype: DType,
    pub shape: Vec<u64>,
    /// The offset of the data.
    start: u64,
}

impl NumpyHeader {
    pub(super) fn read(file: &StoreFile) -> Result<Self> {
        let about = |why: &str| Error::damaged(format!("{}: {why}", file.path.display()));
        let short = |e| match e {
            RawError::Far(e) => e,
            _ => about("not an .npy file"),
        };
        let mut head = vec![0; 10];
        file.read_growing_at(&mut head, 0).map_err(short)?;
        if head[..8] != *b"\x93NUMPY\x01\x00" {
            return Err(about("not an .npy file of version 1.0"));
        }
        head.resize(10 + usize::from(u16::from_le_bytes([head[8], head[9]])), 0);
        file.read_growing_at(&mut head, 0).map_err(short)?;
        Self::parse(&head).ok_or_else(|| about("an .npy header that Hangar does not write"))
    }

    fn parse(head: &[u8]) -> Option<Self> {
        let header = npy::parse::parse(head).ok()?;
        if header.fortran_order || header.shape.is_empty() {
            return None;
        }
        Some(Self {
            dtype: described(&header.dtype.name())?,
            shape: header.shape,
            start: header.start,
        })
    }

    /// Returns the offset and size in bytes of the row that holds a sample; the sample is the first elements along each
    /// axis.
    pub(super) fn place(&self, file: &StoreFile, row: u64, shape: &[u64]) -> Result<(u64, u64)> {
        let outside = || self.outside(file, row, shape);
        let inner = &self.shape[1..];
        let fits = shape.len() == inner.len() && shape.iter().zip(inner).all(|(s, d)| s <= d);
        if row >= self.shape[0] || !fits {
            return Err(outside());
        }
        let element = self.dtype.size() as u64;
        let whole = inner.iter().try_fold(element, |n, &d| n.checked_mul(d));
        let whole = whole.filter(|&n| n <= LARGEST).ok_or_else(outside)?;
        let at = row
            .checked_mul(whole)
            .and_then(|n| n.checked_add(self.start))
            .ok_or_else(outside)?;
        Ok((at, whole))
    }

    fn outside(&self, file: &StoreFile, row: u64, shape: &[u64]) -> Error {
        Error::damaged(format!(
            "{}: row {row} of shape {shape:?} lies outside the array of shape {:?}",
            file.path.display(),
            self.shape
        ))
    }

    /// Hands on the bytes of a sample in parts: of row `row`, the first elements along each axis.
    pub(super) fn sample(
        &self,
        file: &StoreFile,
        row: u64,
        shape: &[u64],
        sink: &mut Sink<'_>,
    ) -> Result<()> {
        let (start, _) = self.place(file, row, shape)?;
        if shape.contains(&0) {
            return Ok(());
        }
        // An axis that the sample fills joins the run. No axis of the sample is larger than that of the row.
        let inner = &self.shape[1..];
        let (mut outer, mut run) = (shape.len(), self.dtype.size() as u64);
        while let Some(k) = outer.checked_sub(1) {
            run *= shape[k];
            outer = k;
            if shape[k] != inner[k] {
                break;
            }
        }
        let offset = |index: &[u64]| {
            let places = (0..inner.len()).fold(0, |at, k| {
                at * inner[k] + index.get(k).copied().unwrap_or(0)
            });
            start + places * self.dtype.size() as u64
        };
        let mut index = vec![0; outer];
        if let Some(far) = file.far() {
            // The runs of the sample lie close together.
            let last: Vec<u64> = shape[..outer].iter().map(|s| s - 1).collect();
            let range = start..offset(&last).saturating_add(run);
            far.fetch(std::slice::from_ref(&range))?;
        }
        let (mut part, mut done) = (Vec::new(), 0);
        loop {
            let (mut at, end) = (offset(&index), offset(&index) + run);
            while at < end {
                let from = part.len();
                // The number is smaller than a part.
                let n = (end - at).min((PART - from) as u64) as usize;
                part.resize(from + n, 0);
                file.read_growing_at(&mut part[from..], at)?;
                at += n as u64;
                if part.len() == PART {
                    sink(done, &part)?;
                    done += part.len() as u64;
                    part.clear();
                }
            }
            let Some(k) = (0..outer).rev().find(|&k| index[k] + 1 < shape[k]) else {
                break;
            };
            index[k] += 1;
            index[k + 1..].fill(0);
        }
        if !part.is_empty() {
            sink(done, &part)?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_are_put_together_and_checked() {
        let text = b"some bytes, and more";
        let len = text.len() as u64;
        let sum = xxh64(text, 0);
        let hand_on = |len, sum| {
            let mut bytes = Vec::new();
            let mut sink = |at: u64, part: &[u8]| {
                bytes.truncate(at as usize);
                bytes.extend_from_slice(part);
                Ok(())
            };
            let done = checked((Some(len), Some(sum)), &mut sink, |sink| {
                sink(0, b"lost")?;
                sink(0, &text[..5])?;
                Ok(sink(5, &text[5..])?)
            });
            done.map(|()| bytes)
        };
        assert_eq!(hand_on(len, sum).unwrap(), text);
        assert!(hand_on(len, sum + 1).is_err());
        assert!(hand_on(len - 1, sum).is_err() && hand_on(len + 1, sum).is_err());
    }

    #[test]
    fn rows_are_cropped() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("a.npy");
        let shape = [2, 2, 3];
        let mut bytes = npy::header(&described("<i2").unwrap(), &shape);
        bytes.extend((0..12_i16).flat_map(i16::to_le_bytes));
        std::fs::write(&path, bytes).unwrap();
        let file = StoreFile::open(&path).unwrap();
        let header = NumpyHeader::read(&file).unwrap();
        assert_eq!(header.shape, shape);
        let sample = |row, shape: &[u64]| {
            let mut bytes = Vec::new();
            let sink = &mut |at, part: &[u8]| {
                assert_eq!(at, bytes.len() as u64);
                bytes.extend_from_slice(part);
                Ok(())
            };
            header.sample(&file, row, shape, sink).map(|()| bytes)
        };
        let values = |row, shape: &[u64]| {
            let bytes = sample(row, shape).unwrap();
            let pairs = bytes.chunks_exact(2);
            pairs
                .map(|b| i16::from_le_bytes([b[0], b[1]]))
                .collect::<Vec<_>>()
        };
        assert_eq!(values(0, &[2, 3]), [0, 1, 2, 3, 4, 5]);
        assert_eq!(values(1, &[2, 2]), [6, 7, 9, 10]);
        assert_eq!(values(1, &[1, 3]), [6, 7, 8]);
        assert_eq!(values(1, &[2, 1]), [6, 9]);
        assert!(sample(2, &[2, 3]).is_err());
        assert!(sample(0, &[3, 3]).is_err());
        assert!(sample(0, &[6]).is_err());
    }

    #[test]
    fn headers_that_hangar_does_not_write_are_refused() {
        let head = |text: &str| {
            let mut head = b"\x93NUMPY\x01\x00".to_vec();
            head.extend(u16::try_from(text.len()).unwrap().to_le_bytes());
            head.extend(text.bytes());
            head
        };
        let taken = "{'descr': '<f4', 'fortran_order': False, 'shape': (3,), }";
        assert_eq!(NumpyHeader::parse(&head(taken)).unwrap().shape, [3]);
        for text in [
            "{'descr': '>f4', 'fortran_order': False, 'shape': (3,), }",
            "{'descr': '<f4', 'fortran_order': True, 'shape': (3,), }",
            "{'descr': '<f4', 'fortran_order': False, 'shape': (), }",
            "{'descr': [('a', '<f4')], 'fortran_order': False, 'shape': (3,), }",
        ] {
            assert!(NumpyHeader::parse(&head(text)).is_none(), "{text}");
        }
    }
}
