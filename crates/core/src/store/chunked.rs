//! Chunks of a new dataset: cut from its elements and encoded on all cores, then written by the worker.
//!
//! Memory is a few chunks for each core. A chunk is gathered by runs at offsets of a `Content`, which ndarray has no view of.

use std::num::NonZero;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::sync_channel;

use npyfs_base::error::{Error, ErrorKind, Result};
use npyfs_base::thread;
use npyfs_codec::Encoding;
use npyfs_hdf5::NewChunk;
use npyfs_io::content::Content;

/// Bytes of encoded chunks that go to the worker in one go.
const BATCH: usize = 8 << 20;

/// Most bytes of a chunk.
const LARGEST: usize = 256 << 20;

/// Bytes of a chunk.
pub fn size(element: usize, chunk: &[u64]) -> usize {
    let dims = chunk.iter();
    let bytes = dims.fold(element as u64, |n, &d| n.saturating_mul(d));
    usize::try_from(bytes).unwrap_or(usize::MAX)
}

/// The elements of a dataset, and the chunks that they are cut into.
pub struct ChunkedElements<'a> {
    /// Shape of the dataset.
    pub shape: &'a [u64],
    /// Shape of a chunk.
    pub chunk: &'a [u64],
    /// Bytes of an element.
    pub element: usize,
    /// The encoding of chunks; `None`: they are stored as they are.
    pub encoding: Option<Encoding>,
    /// In C order.
    pub data: &'a dyn Content,
}

/// A dataset as a grid of chunks.
struct ChunkGrid<'a> {
    shape: &'a [u64],
    chunk: &'a [u64],
    element: usize,
    /// Bytes of a chunk.
    size: usize,
}

/// Hands on all chunks, some at a time, in any order; those that are a hole are left out.
pub fn encode(
    chunks: &ChunkedElements<'_>,
    mut send: impl FnMut(Vec<NewChunk>) -> Result<()>,
) -> Result<()> {
    let grid = ChunkGrid::new(chunks)?;
    let (data, encoding) = (chunks.data, chunks.encoding);
    let count = grid.count();
    let next = AtomicU64::new(0);
    let threads = std::thread::available_parallelism().map_or(1, NonZero::get);
    thread::scope(|scope| {
        let (sender, receiver) = sync_channel::<Result<NewChunk>>(threads);
        for _ in 0..threads {
            let (sender, grid, next) = (sender.clone(), &grid, &next);
            scope.spawn(move || {
                let mut bytes = vec![0; grid.size];
                loop {
                    let number = next.fetch_add(1, Ordering::Relaxed);
                    if number >= count {
                        return;
                    }
                    let chunk = grid.chunk(number, data, &mut bytes, encoding);
                    // The receiver goes with the first error.
                    if let Some(chunk) = chunk.transpose()
                        && sender.send(chunk).is_err()
                    {
                        return;
                    }
                }
            });
        }
        drop(sender);
        let mut chunks = Vec::new();
        let mut waiting = 0;
        for chunk in receiver {
            let chunk = chunk?;
            waiting += chunk.bytes.len();
            chunks.push(chunk);
            if waiting >= BATCH {
                waiting = 0;
                send(std::mem::take(&mut chunks))?;
            }
        }
        if !chunks.is_empty() {
            send(chunks)?;
        }
        Ok(())
    })
}

impl<'a> ChunkGrid<'a> {
    fn new(chunks: &ChunkedElements<'a>) -> Result<Self> {
        let &ChunkedElements {
            shape,
            chunk,
            element,
            ..
        } = chunks;
        let size = size(element, chunk);
        if !(1..=LARGEST).contains(&size) || chunk.len() != shape.len() || chunk.is_empty() {
            let why = format!("chunks of shape {chunk:?} and {element} bytes an element");
            return Err(Error::new(ErrorKind::TooLarge, why));
        }
        Ok(Self {
            shape,
            chunk,
            element,
            size,
        })
    }

    fn count(&self) -> u64 {
        let along = self.shape.iter().zip(self.chunk);
        along.fold(1, |n, (&n_elements, &n_chunk)| {
            n.saturating_mul(n_elements.div_ceil(n_chunk))
        })
    }

    /// Chunk number `number` in C order; `None` if nothing was written there.
    fn chunk(
        &self,
        number: u64,
        data: &dyn Content,
        bytes: &mut [u8],
        encoding: Option<Encoding>,
    ) -> Result<Option<NewChunk>> {
        let mut start = vec![0; self.shape.len()];
        let mut rest = number;
        for (axis, place) in start.iter_mut().enumerate().rev() {
            let along = self.shape[axis].div_ceil(self.chunk[axis]);
            *place = rest % along * self.chunk[axis];
            rest /= along;
        }
        if !self.gather(&start, data, bytes)? {
            return Ok(None);
        }
        let (bytes, mask) = match encoding {
            Some(how) => {
                let encoded = how.encode(bytes, self.element);
                (encoded.bytes, encoded.mask)
            }
            None => (bytes.to_vec(), 0),
        };
        let bytes = bytes.into();
        Ok(Some(NewChunk { start, mask, bytes }))
    }

    /// Fills a chunk row by row; what sticks out of the dataset is zero. `false` if all of it is a hole.
    fn gather(&self, start: &[u64], data: &dyn Content, bytes: &mut [u8]) -> Result<bool> {
        let rank = self.shape.len();
        let part: Vec<u64> = (0..rank)
            .map(|axis| self.chunk[axis].min(self.shape[axis] - start[axis]))
            .collect();
        // Axes behind the last that is not whole in both lie together.
        let is_whole = |axis: &usize| {
            part[*axis] == self.shape[*axis] && self.chunk[*axis] == self.shape[*axis]
        };
        let whole = (0..rank).rev().take_while(is_whole).count();
        let split = (rank - whole).saturating_sub(1);
        let run: u64 = part[split..].iter().product::<u64>() * self.element as u64;
        let run = usize::try_from(run).unwrap_or(usize::MAX);
        let mut place = vec![0; split];
        let mut any = false;
        if part != self.chunk {
            bytes.fill(0);
        }
        loop {
            let (mut from, mut to) = (0, 0);
            for (axis, first) in start.iter().enumerate() {
                let index = place.get(axis).copied().unwrap_or(0);
                from = from * self.shape[axis] + first + index;
                to = to * self.chunk[axis] + index;
            }
            let from = from * self.element as u64;
            let to = usize::try_from(to * self.element as u64).unwrap_or(usize::MAX);
            let room = bytes.get_mut(to..to.saturating_add(run));
            let room = room.ok_or_else(|| Error::damaged("a chunk larger than it is"))?;
            let next = data.written(from)?;
            if next.is_some_and(|next| next.start < from.saturating_add(run as u64)) {
                data.read_at(from, room)?;
                any = true;
            } else {
                room.fill(0);
            }
            let mut more = false;
            for axis in (0..split).rev() {
                place[axis] += 1;
                if place[axis] < part[axis] {
                    more = true;
                    break;
                }
                place[axis] = 0;
            }
            if !more {
                return Ok(any);
            }
        }
    }
}
