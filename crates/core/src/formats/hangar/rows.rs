//! Rows of a collection dataset as samples, read from the file itself if the dataset's map allows it.
//!
//! A dataset holds samples along its first axis. The further axes are the shape of the samples (backend `01`, the first
//! `00`), possibly larger, or one axis with the samples' elements (`00`). The ranks of the record's shape and of the
//! dataset alone decide between the two, never the column's schema. Hangar's datasets are chunked; any other layout is
//! left to libhdf5.

use std::ops::Range;
use std::sync::Arc;

use crate::dataset::cache::Need;
use crate::dataset::chunked::{Chunks, LARGEST, Source};
use npyfs_base::buffer::Pool;
use npyfs_base::error::{Error, ErrorKind, Result};
use npyfs_base::npy::dtype::DType;
use npyfs_hdf5::{DataSource, DatasetMap, ElementType, H5, Request, Slot};
use npyfs_io::file::{Identity, StoreFile};

/// A dataset of a collection file.
pub struct Rows {
    addr: u64,
    pub dtype: DType,
    /// The shape of the dataset, rows first.
    pub shape: Vec<u64>,
    element: u64,
    source: RowStorage,
    /// The version of the file that the map was made from.
    pub version: Identity,
}

enum RowStorage {
    /// Nothing was written yet.
    Nothing,
    Chunked(Chunks),
    /// Only libhdf5 can read it.
    Library,
}

impl Rows {
    /// Checks a map. Returns an error if such a dataset cannot hold samples.
    pub fn new(map: DatasetMap, version: Identity) -> Result<Self> {
        let ElementType::Fixed { dtype, inner, .. } = map.element else {
            return Err(Error::damaged("a dataset of text holds no samples"));
        };
        let element = dtype.size() as u64;
        let len = map.shape.iter().try_fold(element, |n, &d| n.checked_mul(d));
        if !inner.is_empty() || map.shape.is_empty() || len.is_none() {
            return Err(Error::damaged("a dataset that holds no samples"));
        }
        let source = match map.source {
            DataSource::Fill(_) => RowStorage::Nothing,
            DataSource::Chunked {
                chunk,
                direct: Some(direct),
                ..
            } if chunk.len() == map.shape.len() && !chunk.contains(&0) => {
                let chunks = Chunks::new(&map.shape, &chunk, element, direct);
                chunks.map_or(RowStorage::Library, RowStorage::Chunked)
            }
            DataSource::Raw { .. } | DataSource::Virtual { .. } => {
                return Err(Error::new(
                    ErrorKind::Denied,
                    "a collection whose data lie in other files",
                ));
            }
            _ => RowStorage::Library,
        };
        Ok(Self {
            addr: map.addr,
            dtype,
            shape: map.shape,
            element,
            source,
            version,
        })
    }

    /// Returns the part of row `row` that holds a sample of `shape`, as a count along each further axis.
    pub fn part(&self, row: u64, shape: &[u64]) -> Result<Vec<u64>> {
        let outside = || {
            Error::damaged(format!(
                "row {row} of shape {shape:?} lies outside the dataset of shape {:?}",
                self.shape
            ))
        };
        let inner = &self.shape[1..];
        let count = if shape.len() == inner.len() {
            shape.to_vec()
        } else if inner.len() == 1 {
            // The row is flattened; a 0-d sample is one element.
            let elements = shape.iter().try_fold(1_u64, |n, &d| n.checked_mul(d));
            vec![elements.ok_or_else(outside)?]
        } else {
            return Err(outside());
        };
        let fits = row < self.shape[0] && count.iter().zip(inner).all(|(c, d)| c <= d);
        if !fits {
            return Err(outside());
        }
        // The count is at most that of the dataset, which is checked.
        if self.len(&count) as u64 > LARGEST {
            let why = format!("a sample of shape {shape:?} is larger than 1 GiB");
            return Err(Error::new(ErrorKind::TooLarge, why));
        }
        Ok(count)
    }

    /// Returns the size in bytes of a part.
    pub fn len(&self, count: &[u64]) -> usize {
        // The product is at most 1 GiB.
        usize::try_from(count.iter().product::<u64>() * self.element).unwrap_or(usize::MAX)
    }

    /// Returns true if the dataset is read without libhdf5, even while another process adds to the file.
    pub fn is_chunked(&self) -> bool {
        self.chunks().is_some()
    }

    /// Returns the start of the part of a row in the dataset, and its shape there.
    fn place(&self, row: u64, count: &[u64]) -> (Vec<u64>, Vec<u64>) {
        let mut start = vec![0; self.shape.len()];
        start[0] = row;
        (start, [&[1], count].concat())
    }

    fn chunks(&self) -> Option<&Chunks> {
        match &self.source {
            RowStorage::Chunked(chunks) => Some(chunks),
            RowStorage::Nothing | RowStorage::Library => None,
        }
    }

    /// Returns the location of a sample that is a chunk of its own.
    pub fn stored(&self, row: u64, count: &[u64]) -> Option<Slot> {
        let (start, shape) = self.place(row, count);
        self.chunks()?.alone(&start, &shape)
    }

    /// Returns the memory that reading a sample of `len` bytes takes.
    pub fn need(&self, row: u64, count: &[u64], len: usize) -> Need {
        let (start, shape) = self.place(row, count);
        match self.chunks() {
            Some(chunks) => chunks.need(&start, &shape, len),
            // This is the memory for the answer of a worker.
            None => Need {
                len,
                beside: len,
                ..Need::default()
            },
        }
    }

    /// Returns true if any part of a row is stored, as far as this map knows.
    pub fn has(&self, row: u64) -> bool {
        match &self.source {
            RowStorage::Nothing => false,
            RowStorage::Chunked(chunks) => {
                let (start, shape) = self.place(row, &self.shape[1..]);
                row < self.shape[0] && chunks.has_any(&start, &shape)
            }
            RowStorage::Library => row < self.shape[0],
        }
    }

    /// Returns the rows that were written: those with a stored chunk.
    pub fn written(&self) -> Vec<u64> {
        (0..self.shape[0]).filter(|&row| self.has(row)).collect()
    }

    /// Returns the request that asks a worker for the bytes of a sample.
    pub fn request(&self, row: u64, count: &[u64]) -> Result<Request> {
        let (start, shape) = self.place(row, count);
        match self.chunks() {
            Some(chunks) if chunks.alone(&start, &shape).is_some() => {
                chunks.request(self.addr, &start, &shape)
            }
            _ => Ok(Request::Block {
                dataset: self.addr,
                start,
                shape,
                outside: false,
            }),
        }
    }

    /// Decodes the stored bytes of a chunk into a buffer of its size.
    pub fn decode(&self, pool: &Arc<Pool>, stored: &[u8], mask: u32, out: &mut [u8]) -> Result<()> {
        let chunks = self.chunks().ok_or_else(|| Error::damaged("not chunked"))?;
        chunks.decode(pool, stored, mask, out)
    }

    /// Fills `out` with a sample in C order. Fails if nothing of the sample is stored, as far as this map knows, or
    /// only a part of it, unless `fill` says that the rest was never written.
    pub fn read(
        &self,
        (h5, pool): (&H5, &Arc<Pool>),
        file: &StoreFile,
        (row, count): (u64, &[u64]),
        fill: impl FnOnce() -> bool,
        out: &mut [u8],
    ) -> Result<()> {
        let needed = out.len();
        let other = |len| Error::damaged(format!("{len} bytes, its record needs {needed}"));
        if self.len(count) != needed {
            return Err(other(self.len(count)));
        }
        match &self.source {
            RowStorage::Nothing => Err(never_written()),
            RowStorage::Chunked(chunks) => {
                let (start, shape) = self.place(row, count);
                let complete = chunks.has_all(&start, &shape);
                let readable = complete || (chunks.has_any(&start, &shape) && fill());
                if !readable {
                    return Err(never_written());
                }
                if let Some(far) = file.far() {
                    far.fetch(&chunks.stored(&start, &shape))?;
                }
                let source = Source {
                    file,
                    pool,
                    streaming: false,
                    growing: true,
                };
                chunks.block(source, &start, &shape, out)
            }
            RowStorage::Library => {
                let bytes = h5.bytes(file, self.request(row, count)?)?;
                if bytes.len() != needed {
                    return Err(other(bytes.len()));
                }
                out.copy_from_slice(&bytes);
                Ok(())
            }
        }
    }

    /// Returns the ranges of the file in which a sample is stored, as far as they are known without libhdf5.
    pub fn ranges(&self, row: u64, count: &[u64]) -> Vec<Range<u64>> {
        let (start, shape) = self.place(row, count);
        let chunks = self.chunks();
        chunks.map_or_else(Vec::new, |chunks| chunks.stored(&start, &shape))
    }
}

/// Returns the error for a row that has nothing stored.
pub(super) fn never_written() -> Error {
    Error::damaged("the row was never written")
}

#[cfg(test)]
mod tests;
