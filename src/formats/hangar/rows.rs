//! Rows of a collection dataset as samples, read from the file itself wherever the dataset's map allows.
//!
//! A dataset holds samples along its first axis. Behind that its shape is that of the samples (backend `01`,
//! the first `00`), possibly larger, or one axis with the samples' elements (`00`). Which of the two follows
//! from the ranks alone: the record's shape and the dataset's decide, never the column's schema.

use std::ops::Range;
use std::sync::Arc;

use crate::codec::Means;
use crate::dataset::hyperslab::{SlabPlace, copy};
use crate::error::{Error, ErrorKind, Result};
use crate::hdf5::{
    DataSource, DatasetMap, DirectChunks, ElementType, EncodedChunk, H5, Request, Slot,
};
use crate::io::buffer::Pool;
use crate::io::file::{Identity, StoreFile};
use crate::npy::dtype::DType;

/// Most bytes of one sample, and of one chunk.
pub(super) const LARGEST: u64 = 1 << 30;

/// A dataset of a collection file.
pub struct Rows {
    addr: u64,
    pub dtype: DType,
    /// Shape of the dataset, rows first.
    pub shape: Vec<u64>,
    element: u64,
    source: RowStorage,
    /// The version of the file that the map was made from.
    pub version: Identity,
}

enum RowStorage {
    /// Nothing was written yet.
    Nothing,
    Memory(Vec<u8>),
    Contiguous(u64),
    Chunked {
        chunk: Vec<u64>,
        /// Bytes of a decoded chunk.
        len: usize,
        /// Stored bytes of the largest chunk.
        largest: u32,
        direct: DirectChunks,
    },
    /// Only libhdf5 can read it.
    Library,
}

/// The stored bytes of a sample that is one chunk.
#[derive(Clone, Copy, Debug)]
pub struct Stored {
    pub slot: Slot,
    /// Bytes when decoded.
    pub len: usize,
}

impl Stored {
    /// No codec makes more of what it cannot compress; a damaged table may say so.
    pub fn is_plausible(&self) -> bool {
        self.slot.size as usize <= self.len.saturating_mul(2).saturating_add(4096)
    }
}

impl Rows {
    /// Checks a map; an error if no samples can be in such a dataset.
    pub fn new(map: DatasetMap, version: Identity) -> Result<Self> {
        let ElementType::Fixed { dtype, inner, .. } = map.element else {
            return Err(Error::damaged("a dataset of text holds no samples"));
        };
        if !inner.is_empty() || map.shape.is_empty() {
            return Err(Error::damaged("a dataset that holds no samples"));
        }
        let element = dtype.size() as u64;
        let source = match map.source {
            DataSource::Fill(_) => RowStorage::Nothing,
            DataSource::Compact(bytes) => RowStorage::Memory(bytes),
            DataSource::Contiguous { addr } => RowStorage::Contiguous(addr),
            DataSource::Chunked {
                chunk,
                direct: Some(direct),
                ..
            } if chunk.len() == map.shape.len() && !chunk.contains(&0) => {
                let len = bytes(&chunk, element)?;
                let stored = direct.table.slots.iter().map(|slot| slot.size);
                RowStorage::Chunked {
                    chunk,
                    len,
                    largest: stored.max().unwrap_or(0),
                    direct,
                }
            }
            DataSource::Chunked { .. } | DataSource::Library => RowStorage::Library,
            DataSource::Raw { .. } | DataSource::Virtual { .. } => {
                return Err(Error::new(
                    ErrorKind::Denied,
                    "a collection whose data lie in other files",
                ));
            }
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

    /// The part of row `row` that holds a sample of `shape`, as a count along each further axis.
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
            // Flattened; a 0-d sample is one element.
            let elements = shape.iter().try_fold(1_u64, |n, &d| n.checked_mul(d));
            vec![elements.ok_or_else(outside)?]
        } else {
            return Err(outside());
        };
        let fits = row < self.shape[0] && count.iter().zip(inner).all(|(c, d)| c <= d);
        bytes(&count, self.element)?;
        fits.then_some(count).ok_or_else(outside)
    }

    /// Returns where a sample is stored that is a chunk of its own.
    pub fn stored(&self, row: u64, count: &[u64]) -> Option<Stored> {
        let RowStorage::Chunked {
            chunk, len, direct, ..
        } = &self.source
        else {
            return None;
        };
        if chunk[0] != 1 || chunk[1..] != *count || chunk[1..] != self.shape[1..] {
            return None;
        }
        let slot = *direct.table.slots.get(usize::try_from(row).ok()?)?;
        (slot.size > 0).then_some(Stored { slot, len: *len })
    }

    /// Bytes that reading a sample of `len` bytes takes beside them.
    pub fn beside(&self, len: u64) -> u64 {
        let row = || {
            self.shape[1..]
                .iter()
                .fold(self.element, |n, &d| n.saturating_mul(d))
        };
        let more = match &self.source {
            RowStorage::Nothing => 0,
            RowStorage::Memory(_) | RowStorage::Library => len,
            RowStorage::Contiguous(_) => row(),
            RowStorage::Chunked {
                len: chunk,
                largest,
                direct,
                ..
            } => {
                let buffers = direct.pipeline.buffers() as u64 + 1;
                (*chunk as u64)
                    .saturating_mul(buffers)
                    .saturating_add(u64::from(*largest))
            }
        };
        len.saturating_add(more)
    }

    /// Returns whether anything of a row is stored, as far as this map knows.
    pub fn has(&self, row: u64) -> bool {
        match &self.source {
            RowStorage::Nothing => false,
            RowStorage::Chunked { chunk, direct, .. } => {
                self.has_chunk_row(chunk, direct, row / chunk[0])
            }
            _ => row < self.shape[0],
        }
    }

    fn has_chunk_row(&self, chunk: &[u64], direct: &DirectChunks, chunk_row: u64) -> bool {
        let per: usize = self.shape[1..]
            .iter()
            .zip(&chunk[1..])
            .map(|(d, c)| usize::try_from(d.div_ceil(*c)).unwrap_or(usize::MAX))
            .fold(1, usize::saturating_mul);
        let from = usize::try_from(chunk_row)
            .unwrap_or(usize::MAX)
            .saturating_mul(per);
        let slots = direct.table.slots.get(from..from.saturating_add(per));
        slots.is_some_and(|slots| slots.iter().any(|slot| slot.size > 0))
    }

    /// Returns what another process is asked for the bytes of a sample.
    pub fn request(&self, row: u64, count: &[u64]) -> Request {
        if let (Some(stored), RowStorage::Chunked { chunk, direct, .. }) =
            (self.stored(row, count), &self.source)
        {
            return Request::Chunk {
                dataset: self.addr,
                stored: Box::new(EncodedChunk {
                    slot: stored.slot,
                    pipeline: direct.pipeline.clone(),
                    fill: direct.fill.clone(),
                    chunk: chunk.clone(),
                    count: chunk.clone(),
                    element: self.element,
                }),
            };
        }
        let mut start = vec![row];
        start.resize(self.shape.len(), 0);
        Request::Block {
            dataset: self.addr,
            start,
            shape: [&[1], count].concat(),
            outside: false,
        }
    }

    /// Decodes the stored bytes of a chunk into a buffer of its size.
    pub fn decode(&self, stored: &[u8], mask: u32, out: &mut [u8], pool: &Arc<Pool>) -> Result<()> {
        match &self.source {
            RowStorage::Chunked { direct, .. } => direct
                .pipeline
                .decode(
                    Means {
                        pool,
                        helpers: None,
                    },
                    stored,
                    mask,
                    out,
                )
                .map_err(|e| Error::damaged(e.to_string())),
            _ => Err(Error::damaged("not chunked")),
        }
    }

    /// The rows that were written: where any chunk is stored.
    pub fn written(&self) -> Vec<u64> {
        match &self.source {
            RowStorage::Nothing => Vec::new(),
            RowStorage::Chunked { chunk, direct, .. } => (0..self.shape[0])
                .filter(|row| self.has_chunk_row(chunk, direct, row / chunk[0]))
                .collect(),
            _ => (0..self.shape[0]).collect(),
        }
    }

    /// The bytes of a sample in C order. `None` if nothing of it is stored, as far as this map knows, or only
    /// a part, unless `fill` says to take the rest for zeros.
    pub fn read(
        &self,
        h5: &H5,
        file: &StoreFile,
        row: u64,
        count: &[u64],
        fill: bool,
    ) -> Result<Option<Vec<u8>>> {
        let len = bytes(count, self.element)?;
        let stride = self.shape[1..]
            .iter()
            .try_fold(self.element, |n, &d| n.checked_mul(d))
            .ok_or_else(|| Error::damaged("rows too large"))?;
        match &self.source {
            RowStorage::Nothing => Ok(None),
            RowStorage::Memory(all) => {
                let from = row
                    .checked_mul(stride)
                    .and_then(|n| usize::try_from(n).ok());
                let to = from.zip(usize::try_from(stride).ok());
                let whole = to.and_then(|(from, n)| all.get(from..from.checked_add(n)?));
                let whole = whole.ok_or_else(|| Error::damaged("fewer bytes than rows"))?;
                self.crop(whole, count, len).map(Some)
            }
            RowStorage::Contiguous(addr) => {
                let at = row.checked_mul(stride).and_then(|n| n.checked_add(*addr));
                let at = at.ok_or_else(|| Error::damaged("rows too far behind"))?;
                let mut whole = vec![0; bytes(&self.shape[1..], self.element)?];
                file.read_growing_at(&mut whole, at)?;
                self.crop(&whole, count, len).map(Some)
            }
            RowStorage::Chunked {
                chunk,
                len: chunk_len,
                ..
            } => self.gather(file, row, count, (chunk, *chunk_len), fill),
            RowStorage::Library => {
                let request = self.request(row, count);
                let bytes = h5.bytes(file, request)?;
                (bytes.len() == len)
                    .then_some(Some(bytes))
                    .ok_or_else(|| Error::damaged("a block of another size"))
            }
        }
    }

    /// The first `count` elements along each axis of a whole row.
    fn crop(&self, whole: &[u8], count: &[u64], len: usize) -> Result<Vec<u8>> {
        let mut out = vec![0; len];
        let zeros = vec![0; count.len()];
        let from = SlabPlace {
            shape: &self.shape[1..],
            start: &zeros,
        };
        let to = SlabPlace {
            shape: count,
            start: &zeros,
        };
        copy(whole, from, &mut out, to, count, self.element)
            .ok_or_else(|| Error::damaged("a row is too short"))?;
        Ok(out)
    }

    /// Puts a sample together from the chunks that it touches.
    fn gather(
        &self,
        file: &StoreFile,
        row: u64,
        count: &[u64],
        (chunk, chunk_len): (&[u64], usize),
        fill: bool,
    ) -> Result<Option<Vec<u8>>> {
        let rank = chunk.len();
        let size = [&[1], count].concat();
        let len = bytes(count, self.element)?;
        // The one chunk that is the sample needs no copy.
        let single = size == chunk;
        let mut out = vec![0; if single { 0 } else { len }];
        if size.contains(&0) {
            return Ok(Some(out));
        }
        if let Some(far) = file.far() {
            far.fetch(&self.ranges(row, count)?)?;
        }
        let mut stored = false;
        let pool = Arc::default();
        for (place, slot) in self.slots(row, count)? {
            if slot.size == 0 {
                if !fill || single {
                    return Ok(None);
                }
                continue;
            }
            stored = true;
            let mut decoded = vec![0; chunk_len];
            let done = read_chunk(file, slot)
                .and_then(|bytes| self.decode(&bytes, slot.mask, &mut decoded, &pool));
            done.map_err(|e| e.about(format!("chunk {place:?}")))?;
            if single {
                return Ok(Some(decoded));
            }
            let corner: Vec<u64> = (0..rank).map(|k| place[k] * chunk[k]).collect();
            let mut inside = vec![0; rank];
            inside[0] = row - corner[0];
            let part: Vec<u64> = (0..rank)
                .map(|k| {
                    if k == 0 {
                        1
                    } else {
                        chunk[k].min(size[k] - corner[k])
                    }
                })
                .collect();
            let mut target = corner;
            target[0] = 0;
            let from = SlabPlace {
                shape: chunk,
                start: &inside,
            };
            let to = SlabPlace {
                shape: &size,
                start: &target,
            };
            copy(&decoded, from, &mut out, to, &part, self.element)
                .ok_or_else(|| Error::damaged("a chunk does not fit the sample"))?;
        }
        Ok(stored.then_some(out))
    }

    /// Returns the chunks that a sample touches, each with its place among the chunks.
    fn slots(&self, row: u64, count: &[u64]) -> Result<Vec<(Vec<u64>, Slot)>> {
        let RowStorage::Chunked { chunk, direct, .. } = &self.source else {
            return Ok(Vec::new());
        };
        let rank = chunk.len();
        if count.contains(&0) {
            return Ok(Vec::new());
        }
        let mut slots = Vec::new();
        let first = [&[row / chunk[0]], &vec![0; rank - 1][..]].concat();
        let last: Vec<u64> = (0..rank)
            .map(|k| match k {
                0 => first[0] + 1,
                k => count[k - 1].div_ceil(chunk[k]),
            })
            .collect();
        let mut place = first.clone();
        loop {
            let at = (0..rank).try_fold(0_u64, |at, k| {
                at.checked_mul(self.shape[k].div_ceil(chunk[k]))?
                    .checked_add(place[k])
            });
            let slot = at
                .and_then(|at| usize::try_from(at).ok())
                .and_then(|at| direct.table.slots.get(at))
                .ok_or_else(|| Error::damaged("a chunk outside the table"))?;
            slots.push((place.clone(), *slot));
            let Some(k) = (0..rank).rev().find(|&k| place[k] + 1 < last[k]) else {
                return Ok(slots);
            };
            place[k] += 1;
            place[k + 1..].copy_from_slice(&first[k + 1..]);
        }
    }

    /// Returns the ranges of the file in which a sample is stored, as far as they are known without libhdf5.
    pub fn ranges(&self, row: u64, count: &[u64]) -> Result<Vec<Range<u64>>> {
        let range = |start: u64, len: u64| start..start.saturating_add(len);
        if let RowStorage::Contiguous(addr) = &self.source {
            let stride = bytes(&self.shape[1..], self.element)? as u64;
            let start = addr.saturating_add(row.saturating_mul(stride));
            return Ok(std::iter::once(range(start, stride)).collect());
        }
        let slots = self.slots(row, count)?.into_iter();
        let stored = slots.map(|(_, slot)| range(slot.addr, u64::from(slot.size)));
        Ok(stored.filter(|range| !range.is_empty()).collect())
    }
}

/// The stored bytes of a chunk. What is read of a growing file is judged by its checksum.
fn read_chunk(file: &StoreFile, slot: Slot) -> Result<Vec<u8>> {
    if u64::from(slot.size) > LARGEST {
        return Err(Error::damaged("a stored chunk of more than 1 GiB"));
    }
    let end = slot.addr.saturating_add(u64::from(slot.size));
    if end > file.identity_now()?.size {
        return Err(Error::damaged("a chunk behind the end of the file"));
    }
    let mut stored = vec![0; slot.size as usize];
    file.read_growing_at(&mut stored, slot.addr)?;
    Ok(stored)
}

/// Bytes of a block; refuses what is too large to be held.
fn bytes(count: &[u64], element: u64) -> Result<usize> {
    count
        .iter()
        .try_fold(element, |n, &d| n.checked_mul(d))
        .filter(|&n| n <= LARGEST)
        .and_then(|n| usize::try_from(n).ok())
        .ok_or_else(|| {
            Error::new(
                ErrorKind::TooLarge,
                format!("a sample or chunk of shape {count:?} is larger than 1 GiB"),
            )
        })
}

#[cfg(test)]
mod tests;
