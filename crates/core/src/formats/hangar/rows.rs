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
mod tests {
    use super::*;
    use npyfs_base::npy::dtype::{Kind, Order};
    use npyfs_codec::Pipeline;
    use npyfs_hdf5::{ChunkTable, DirectChunks};
    use proptest::prelude::*;

    /// A dataset of bytes in a file, cut into chunks one after the other; each byte is its index modulo 251.
    fn dataset(shape: &[u64], chunk: &[u64]) -> (tempfile::TempDir, StoreFile, Rows) {
        let rank = shape.len();
        let grid: Vec<u64> = (0..rank).map(|k| shape[k].div_ceil(chunk[k])).collect();
        let len: u64 = chunk.iter().product();
        let unravel = |mut n: u64, dims: &[u64]| {
            let mut index = vec![0; rank];
            for k in (0..rank).rev() {
                index[k] = n % dims[k];
                n /= dims[k];
            }
            index
        };
        let (mut bytes, mut slots) = (Vec::new(), Vec::new());
        for place in 0..grid.iter().product() {
            let corner = unravel(place, &grid);
            slots.push(Slot {
                addr: bytes.len() as u64,
                size: u32::try_from(len).unwrap(),
                mask: 0,
            });
            for i in 0..len {
                let inside = unravel(i, chunk);
                let index: Vec<u64> = (0..rank)
                    .map(|k| corner[k] * chunk[k] + inside[k])
                    .collect();
                bytes.push(value(shape, &index));
            }
        }
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("rows");
        std::fs::write(&path, &bytes).unwrap();
        let file = StoreFile::open(&path).unwrap();
        let map = DatasetMap {
            addr: 1,
            element: ElementType::Fixed {
                dtype: DType::scalar(Kind::Uint, 1, Order::None),
                inner: Vec::new(),
                convert: false,
            },
            shape: shape.to_vec(),
            rank,
            source: DataSource::Chunked {
                chunk: chunk.to_vec(),
                direct: Some(DirectChunks {
                    pipeline: Pipeline::new(&[]).unwrap(),
                    table: ChunkTable {
                        slots,
                        ..ChunkTable::default()
                    },
                    fill: vec![0],
                }),
                refused: None,
                crowded: false,
            },
        };
        let rows = Rows::new(map, file.identity).unwrap();
        (dir, file, rows)
    }

    fn value(shape: &[u64], index: &[u64]) -> u8 {
        let at = shape.iter().zip(index).fold(0, |at, (d, i)| at * d + i);
        (at % 251) as u8
    }

    fn read(rows: &Rows, file: &StoreFile, row: u64, part: &[u64]) -> Vec<u8> {
        let mut bytes = vec![0; part.iter().product::<u64>() as usize];
        let with = (&npyfs_worker::h5_here(), &Arc::default());
        rows.read(with, file, (row, part), || false, &mut bytes)
            .unwrap();
        bytes
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(64))]
        #[test]
        fn samples_are_put_together_from_any_chunks(
            rows in 1_u64..5,
            chunk_row in 1_u64..3,
            dims in proptest::collection::vec((1_u64..7, 1_u64..7, 1_u64..7), 1..4),
            row in 0_u64..5,
        ) {
            let shape: Vec<u64> = std::iter::once(rows).chain(dims.iter().map(|d| d.0)).collect();
            let chunk: Vec<u64> = std::iter::once(chunk_row).chain(dims.iter().map(|d| d.1.min(d.0))).collect();
            let count: Vec<u64> = dims.iter().map(|d| d.2.min(d.0)).collect();
            let (_dir, file, dataset) = dataset(&shape, &chunk);
            let Ok(part) = dataset.part(row, &count) else {
                prop_assert!(row >= rows);
                return Ok(());
            };
            prop_assert!(row < rows);
            let bytes = read(&dataset, &file, row, &part);
            let mut expected = Vec::new();
            for n in 0..count.iter().product() {
                let mut left = n;
                let mut index = vec![row; shape.len()];
                for k in (1..shape.len()).rev() {
                    index[k] = left % count[k - 1];
                    left /= count[k - 1];
                }
                expected.push(value(&shape, &index));
            }
            prop_assert_eq!(bytes, expected);
        }
    }

    #[test]
    fn flattened_samples_are_the_start_of_a_row() {
        let (_dir, file, rows) = dataset(&[3, 10], &[1, 4]);
        let part = rows.part(2, &[2, 3]).unwrap();
        assert_eq!(read(&rows, &file, 2, &part), [20, 21, 22, 23, 24, 25]);
        assert!(rows.part(0, &[11]).is_err() && rows.part(0, &[3, 4]).is_err());
        assert_eq!(rows.part(0, &[]).unwrap(), [1]);
        assert!(rows.part(3, &[1]).is_err());
        assert!(rows.part(0, &[u64::MAX, u64::MAX]).is_err());
        assert_eq!(rows.written(), [0, 1, 2]);
    }
}
