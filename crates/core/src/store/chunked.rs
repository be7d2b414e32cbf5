//! The elements of a chunked dataset: cut into chunks and encoded, or decoded and put together, on all cores.
//!
//! Chunks of a new dataset are cut from its elements, encoded, and then written by the worker. Memory is a few chunks
//! for each core. A chunk is gathered by runs at offsets of a `Content`, which ndarray has no view of.
//!
//! The elements of a stored dataset are put together in a file, in C order. Every chunk is decoded once, however later
//! chunks lie across it. Memory is a few blocks of chunks for each core.

use std::fs::File;
use std::num::NonZero;
use std::os::unix::fs::FileExt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc::sync_channel;

use crate::dataset::chunked::{Chunks, Source};
use crate::dataset::grid::Grid;
use npyfs_base::error::{Error, ErrorKind, Result};
use npyfs_base::thread;
use npyfs_codec::Encoding;
use npyfs_hdf5::{DirectChunks, NewChunk};
use npyfs_io::content::Content;
use npyfs_io::file::StoreFile;

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

/// Bytes of a block, unless a chunk has more.
const BLOCK: u64 = 16 << 20;

/// A chunked dataset.
pub struct ChunkedDataset<'a> {
    /// The file that it is in.
    pub file: &'a StoreFile,
    /// The shape.
    pub shape: &'a [u64],
    /// Bytes of an element.
    pub element: u64,
    /// Shape of a chunk.
    pub chunk: &'a [u64],
    /// Its chunk table and filters.
    pub direct: DirectChunks,
}

/// Writes all elements to `to`, which is empty. `false` if chunks are too large to be decoded here.
pub fn decode(dataset: ChunkedDataset<'_>, to: &File) -> Result<bool> {
    let ChunkedDataset {
        file,
        shape,
        element,
        chunk,
        direct,
    } = dataset;
    let block = block(shape, chunk, element);
    let grid = Grid::new(shape, &block, element);
    let (Some(chunks), Some(grid)) = (Chunks::new(shape, chunk, element, direct), grid) else {
        return Ok(false);
    };
    let bytes = shape.iter().try_fold(element, |n, &d| n.checked_mul(d));
    let bytes = bytes.ok_or_else(|| Error::damaged("more elements than a file can hold"))?;
    to.set_len(bytes)?;
    let blank = chunks.fill_value().iter().all(|&byte| byte == 0);
    let threads = std::thread::available_parallelism().map_or(1, NonZero::get);
    let work = || {
        let pool = Arc::default();
        let mut buffer = Vec::new();
        let (chunks, grid) = (&chunks, &grid);
        move |number| {
            let (start, count) = grid.bounds(number);
            if blank && !chunks.has_any(&start, &count) {
                return Ok(());
            }
            let source = Source {
                file,
                pool: &pool,
                streaming: false,
                growing: false,
            };
            let len = usize::try_from(grid.bytes_of(number));
            buffer.resize(len.map_err(|_| Error::damaged("a block too large"))?, 0);
            chunks.block(source, &start, &count, &mut buffer)?;
            write(shape, element, &start, &count, &buffer, to)
        }
    };
    for_each(grid.blocks(), threads, work)?;
    Ok(true)
}

/// Calls a function for the numbers below `count` on some threads, each with the function that `worker` makes for it.
/// After a failure no thread takes another number. Numbers are taken in ascending order, and a number once taken is
/// worked on to its end. So the failure of the least number is returned, whichever thread is faster.
fn for_each<F: FnMut(u64) -> Result<()>>(
    count: u64,
    threads: usize,
    worker: impl Fn() -> F + Sync,
) -> Result<()> {
    let next = AtomicU64::new(0);
    let has_failed = AtomicBool::new(false);
    let work = || {
        let mut worker = worker();
        while !has_failed.load(Ordering::Relaxed) {
            let number = next.fetch_add(1, Ordering::Relaxed);
            if number >= count {
                break;
            }
            worker(number).map_err(|e| {
                has_failed.store(true, Ordering::Relaxed);
                (number, e)
            })?;
        }
        Ok(())
    };
    let failures = thread::scope(|scope| {
        let workers: Vec<_> = (0..threads).map(|_| scope.spawn(work)).collect();
        let done = workers.into_iter().map(|worker| {
            let panicked = |_| Err((u64::MAX, Error::damaged("decoding failed")));
            worker.join().unwrap_or_else(panicked)
        });
        done.filter_map(|done| done.err()).collect::<Vec<_>>()
    });
    let first = failures.into_iter().min_by_key(|(number, _)| *number);
    first.map_or(Ok(()), |(_, e)| Err(e))
}

/// Returns the shape of blocks of whole chunks: as wide as the dataset, as far as [`BLOCK`] allows.
fn block(shape: &[u64], chunk: &[u64], element: u64) -> Vec<u64> {
    let mut block = chunk.to_vec();
    let bytes = |block: &[u64]| {
        let dims = block.iter();
        dims.fold(element, |bytes, &n| bytes.saturating_mul(n))
    };
    for k in (0..block.len()).rev() {
        let (own, rest) = (block[k], shape[k].div_ceil(block[k]).max(1));
        let room = (BLOCK / bytes(&block).max(1)).clamp(1, rest);
        block[k] = own.saturating_mul(room);
        if room < rest {
            break;
        }
    }
    block
}

/// Writes a block to its place among all elements.
fn write(
    shape: &[u64],
    element: u64,
    start: &[u64],
    count: &[u64],
    bytes: &[u8],
    to: &File,
) -> Result<()> {
    // Axes behind the last that the block does not span lie together.
    let whole = (0..shape.len())
        .rev()
        .take_while(|&k| count[k] == shape[k])
        .count();
    let split = (shape.len() - whole).saturating_sub(1);
    let run = count[split..].iter().product::<u64>() * element;
    let run = usize::try_from(run).map_err(|_| Error::damaged("a block too large"))?;
    let mut place = vec![0; split];
    for part in bytes.chunks(run.max(1)) {
        let at = start.iter().enumerate().fold(0, |at, (axis, first)| {
            at * shape[axis] + first + place.get(axis).copied().unwrap_or(0)
        });
        to.write_all_at(part, at * element)?;
        for axis in (0..split).rev() {
            place[axis] += 1;
            if place[axis] < count[axis] {
                break;
            }
            place[axis] = 0;
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Without the end after a failure the other thread would count on to 2^62.
    #[test]
    fn one_failure_ends_all_threads_and_the_first_is_told() {
        let has_failed = AtomicBool::new(false);
        let work = |number| match number {
            0 => {
                while !has_failed.load(Ordering::Relaxed) {
                    std::thread::yield_now();
                }
                Err(Error::damaged("the first"))
            }
            1 => {
                has_failed.store(true, Ordering::Relaxed);
                Err(Error::damaged("the second"))
            }
            _ => Ok(()),
        };
        let failed = for_each(1 << 62, 3, || work);
        assert_eq!(failed.unwrap_err().message, "the first");
    }
}
