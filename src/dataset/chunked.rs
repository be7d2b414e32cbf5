//! Chunks read from the store file and decoded here, without libhdf5.

use std::ops::Range;
use std::sync::Arc;

use super::hyperslab::{SlabPlace, copy};
use super::payload::repeat;
use crate::codec::pool::DecodePool;
use crate::codec::{Means, PartsError};
use crate::dataset::cache::Need;
use crate::error::{Error, Result};
use crate::hdf5::{DirectChunks, EncodedChunk, Request, Slot};
use crate::io::buffer::{Buffer, SMALLEST};
use crate::io::file::StoreFile;

/// Most bytes of one chunk.
pub const LARGEST: u64 = 1 << 30;

/// Stored bytes that are worth a read of their own: smaller ones lie beside others that may be wanted, too.
const LARGE: usize = 128 << 10;

/// The chunks of one dataset.
pub struct Chunks {
    /// Shapes of the dataset and of a chunk, with the dimensions of an array datatype behind.
    shape: Vec<u64>,
    chunk: Vec<u64>,
    element: u64,
    chunk_len: usize,
    /// Stored bytes of the largest chunk, and of all.
    largest: usize,
    stored: u64,
    direct: DirectChunks,
}

/// The file and the resources that reading chunks takes.
#[derive(Clone, Copy)]
pub struct Source<'a> {
    /// The store file.
    pub file: &'a StoreFile,
    /// The resources that decoding may use.
    pub means: Means<'a>,
    /// True if the bytes are wanted once, by a reader who goes on: leave the kernel's page cache alone.
    pub streaming: bool,
}

impl Source<'_> {
    /// Returns the bytes of the store file that must come from the disk for a chunk, if it is worth asking.
    fn missing(&self, slot: Slot) -> Option<Range<u64>> {
        // A smaller buffer need not be aligned, and a smaller read is not worth it.
        let size = slot.size as usize;
        let worth_it = size >= LARGE || (self.streaming && size >= SMALLEST);
        worth_it
            .then(|| self.file.direct_range(slot.addr, u64::from(slot.size)))
            .flatten()
    }

    /// Stored bytes, wherever they begin in the buffer.
    fn stored<T>(
        &self,
        slot: Slot,
        missing: Option<Range<u64>>,
        use_: impl FnOnce(&[u8]) -> Result<T>,
    ) -> Result<T> {
        let addr = slot.addr;
        let large = slot.size as usize >= LARGE;
        let cold = missing.is_some();
        // Read a second time it is kept, for the third.
        let range = missing.filter(|_| self.streaming || self.file.reads_once_directly(addr));
        if let Some(range) = range {
            let skip = usize_of(addr - range.start)?;
            let mut buffer = self.means.pool.take(usize_of(range.end - range.start)?);
            let end = skip + slot.size as usize;
            // A file system may refuse what it promised: the usual way is still there.
            if let Ok(got) = self.file.read_direct(&mut buffer, range.start)
                && end <= got
            {
                return use_(&buffer[skip..end]);
            }
        }
        let mut buffer: Buffer = self.means.pool.take(slot.size as usize);
        match (large, cold) {
            (false, _) => self.file.read_exact_at(&mut buffer, addr)?,
            (true, true) => self.file.read_alone_at(&mut buffer, addr)?,
            (true, false) => self.read_together(&mut buffer, addr)?,
        }
        use_(&buffer)
    }

    /// Copies what is in memory already, with all who may help.
    fn read_together(&self, buffer: &mut [u8], addr: u64) -> Result<()> {
        let many = self.means.helpers.map_or(1, DecodePool::sharing);
        let part = buffer.len().div_ceil(many).max(LARGE);
        let parts = (addr..).step_by(part).zip(buffer.chunks_mut(part));
        let read = |(at, part): (u64, &mut [u8])| self.file.read_part_at(part, at);
        let read = self.means.each(parts, read);
        self.file.confirm()?;
        Ok(read?)
    }
}

/// Returns where the chunk of a slot is stored.
fn range_of(slot: Slot) -> Range<u64> {
    slot.addr..slot.addr.saturating_add(u64::from(slot.size))
}

fn usize_of(n: u64) -> Result<usize> {
    usize::try_from(n).map_err(|_| Error::damaged("too large for this machine"))
}

impl Chunks {
    /// Creates the chunks of a dataset of `shape`; `None` if a chunk is too large to be held: libhdf5 then reads it
    /// in parts.
    pub fn new(shape: &[u64], chunk: &[u64], element: u64, direct: DirectChunks) -> Option<Self> {
        let len = chunk
            .iter()
            .try_fold(element, |n, &d| n.checked_mul(d))
            .filter(|&n| n <= LARGEST)?;
        let sizes = || direct.table.slots.iter().map(|slot| slot.size);
        Some(Self {
            largest: usize::try_from(sizes().max().unwrap_or(0)).ok()?,
            stored: sizes().map(u64::from).fold(0, u64::saturating_add),
            shape: shape.to_vec(),
            chunk: chunk.to_vec(),
            element,
            chunk_len: usize::try_from(len).ok()?,
            direct,
        })
    }

    /// Returns the bytes of memory that the table takes.
    pub fn weight(&self) -> usize {
        self.direct.table.slots.len() * size_of::<Slot>()
    }

    /// Returns the memory that decoding a block of `len` bytes takes.
    pub fn need(&self, start: &[u64], shape: &[u64], len: usize) -> Need {
        let one = shape.iter().zip(&self.chunk).all(|(n, c)| n <= c);
        // Any chunk of a block may be the one that is stored in more bytes than the others.
        let stored = match one {
            true => self
                .slot(&self.first(start))
                .map_or(0, |slot| slot.size as usize),
            false => self.largest,
        };
        let steps = self
            .direct
            .pipeline
            .buffers()
            .max(usize::from(len != self.chunk_len));
        Need {
            len,
            beside: stored.saturating_add(self.chunk_len.saturating_mul(steps)),
            ..Need::default()
        }
    }

    /// Returns true if any chunk of a block of the dataset is stored; `start` is at a corner of a chunk.
    pub fn has_any(&self, start: &[u64], shape: &[u64]) -> bool {
        let first = self.first(start);
        let last: Vec<u64> = (0..shape.len())
            .map(|k| (start[k] + shape[k]).div_ceil(self.chunk[k]))
            .collect();
        let mut place = first.clone();
        loop {
            // What is not in the table is left to reading to say.
            if self.slot(&place).map_or(true, |slot| slot.size != 0) {
                return true;
            }
            let Some(k) = (0..place.len()).rev().find(|&k| place[k] + 1 < last[k]) else {
                return false;
            };
            place[k] += 1;
            place[k + 1..].copy_from_slice(&first[k + 1..]);
        }
    }

    /// Returns where the chunks of a block of the dataset are stored; `start` is at a corner of a chunk.
    pub fn stored(&self, start: &[u64], shape: &[u64]) -> Vec<Range<u64>> {
        let first = self.first(start);
        let last: Vec<u64> = (0..shape.len())
            .map(|k| (start[k] + shape[k]).div_ceil(self.chunk[k]))
            .collect();
        let (mut ranges, mut place) = (Vec::new(), first.clone());
        loop {
            if let Ok(slot) = self.slot(&place)
                && slot.size != 0
            {
                ranges.push(range_of(slot));
            }
            let Some(k) = (0..place.len()).rev().find(|&k| place[k] + 1 < last[k]) else {
                return ranges;
            };
            place[k] += 1;
            place[k + 1..].copy_from_slice(&first[k + 1..]);
        }
    }

    /// Returns where all chunks are stored.
    pub fn places(&self) -> Vec<Range<u64>> {
        let slots = self.direct.table.slots.iter().filter(|slot| slot.size != 0);
        slots.copied().map(range_of).collect()
    }

    /// Returns the bytes that all chunks are stored in.
    pub fn stored_bytes(&self) -> u64 {
        self.stored
    }

    /// Returns the element of which chunks consist that were never written.
    pub fn fill_value(&self) -> &[u8] {
        &self.direct.fill
    }

    fn first(&self, start: &[u64]) -> Vec<u64> {
        start.iter().zip(&self.chunk).map(|(s, c)| s / c).collect()
    }

    /// Returns the request for the one chunk at `start`, clipped to `count`, for another process to decode.
    pub fn request(&self, object: u64, start: &[u64], count: &[u64]) -> Result<Request> {
        Ok(Request::Chunk {
            dataset: object,
            stored: Box::new(EncodedChunk {
                slot: self.slot(&self.first(start))?,
                pipeline: self.direct.pipeline.clone(),
                fill: self.direct.fill.clone(),
                chunk: self.chunk.clone(),
                count: count.to_vec(),
                element: self.element,
            }),
        })
    }

    /// Fills `out` with the block of the dataset at `start`, which is at a corner of a chunk.
    pub fn block(
        &self,
        source: Source<'_>,
        start: &[u64],
        shape: &[u64],
        out: &mut [u8],
    ) -> Result<()> {
        let rank = shape.len();
        let first = self.first(start);
        if shape == self.chunk {
            return self.chunk(source, &first, out);
        }
        let last: Vec<u64> = (0..rank)
            .map(|k| (start[k] + shape[k]).div_ceil(self.chunk[k]))
            .collect();
        let origin = vec![0; rank];
        let mut whole = source.means.pool.take(self.chunk_len);
        let mut place = first.clone();
        loop {
            let inside: Vec<u64> = (0..rank)
                .map(|k| place[k] * self.chunk[k] - start[k])
                .collect();
            let count: Vec<u64> = (0..rank)
                .map(|k| self.chunk[k].min(shape[k] - inside[k]))
                .collect();
            self.chunk(source, &place, &mut whole)?;
            let from = SlabPlace {
                shape: &self.chunk,
                start: &origin,
            };
            let to = SlabPlace {
                shape,
                start: &inside,
            };
            copy(&whole, from, out, to, &count, self.element)
                .ok_or_else(|| Error::damaged("a chunk does not fit the shape"))?;
            let Some(k) = (0..rank).rev().find(|&k| place[k] + 1 < last[k]) else {
                return Ok(());
            };
            place[k] += 1;
            place[k + 1..].copy_from_slice(&first[k + 1..]);
        }
    }

    fn slot(&self, place: &[u64]) -> Result<Slot> {
        let at = place.iter().enumerate().fold(0, |at, (k, p)| {
            at * self.shape[k].div_ceil(self.chunk[k]) + p
        });
        usize::try_from(at)
            .ok()
            .and_then(|at| self.direct.table.slots.get(at))
            .copied()
            .ok_or_else(|| Error::damaged("a chunk outside the table"))
    }

    /// Decodes one whole chunk into `out`; where none is stored, the fill value.
    fn chunk(&self, source: Source<'_>, place: &[u64], out: &mut [u8]) -> Result<()> {
        let slot = self.slot(place)?;
        if slot.size == 0 {
            repeat(&self.direct.fill, 0, out);
            return Ok(());
        }
        if u64::from(slot.size) > LARGEST {
            return Err(Error::damaged("a stored chunk of more than 1 GiB"));
        }
        let pipeline = &self.direct.pipeline;
        let damaged = |e| Error::damaged(format!("chunk {place:?}: {e}"));
        if let Some(far) = source.file.far().filter(|_| slot.size as usize >= LARGE) {
            // As one request, and before others are called to help: they do not wait for a network.
            let stored = range_of(slot);
            let stored = std::slice::from_ref(&stored);
            if !far.has(stored) {
                far.fetch(stored)?;
            }
        }
        let missing = source.missing(slot);
        if missing.is_none() && slot.size as usize >= LARGE {
            let file = source.file;
            let read =
                |at, part: &mut [u8]| file.read_part_at(part, slot.addr.saturating_add(at as u64));
            let size = slot.size as usize;
            let done = pipeline.decode_parts(source.means, size, slot.mask, read, out);
            if !matches!(done, Ok(false)) {
                file.confirm()?;
            }
            match done {
                Ok(true) => return Ok(()),
                Ok(false) => {}
                Err(PartsError::Filter(e)) => return Err(damaged(e)),
                Err(PartsError::Read(e)) => return Err(e.into()),
            }
        }
        source.stored(slot, missing, |stored| {
            pipeline
                .decode(source.means, stored, slot.mask, out)
                .map_err(damaged)
        })
    }
}

/// Decodes a chunk that `Chunks::request` described: for the process that was asked.
pub fn decode(file: &StoreFile, stored: &EncodedChunk) -> Result<Vec<u8>> {
    let chunks = Chunks::new(
        &stored.chunk,
        &stored.chunk,
        stored.element,
        DirectChunks {
            pipeline: stored.pipeline.clone(),
            table: crate::hdf5::ChunkTable {
                slots: vec![stored.slot],
                ..Default::default()
            },
            fill: stored.fill.clone(),
        },
    )
    .ok_or_else(|| Error::damaged("a chunk of more than 1 GiB"))?;
    let fits = stored.count.len() == stored.chunk.len()
        && stored.count.iter().zip(&stored.chunk).all(|(n, c)| n <= c);
    if !fits {
        return Err(Error::damaged("a block larger than its chunk"));
    }
    let len = stored.count.iter().product::<u64>() * stored.element;
    let mut out = vec![0; usize_of(len)?];
    let source = Source {
        file,
        means: Means {
            pool: &Arc::default(),
            helpers: None,
        },
        streaming: false,
    };
    let origin = vec![0; stored.count.len()];
    chunks.block(source, &origin, &stored.count, &mut out)?;
    Ok(out)
}
