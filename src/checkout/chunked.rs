//! Chunks of a new dataset: cut from its elements and encoded on all cores, then written by the worker.
//!
//! Memory is a few chunks for each core.

use std::num::NonZero;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::sync_channel;

use crate::content::Content;
use crate::error::{Error, ErrorKind, Result};
use crate::filter::Compression;
use crate::h5::{Creator, NewChunk, NewChunks, NewDataset, NewLayout};
use crate::raw::StoreFile;

/// Bytes of encoded chunks that go to the worker in one go.
const BATCH: usize = 8 << 20;

/// Most bytes of a chunk.
const LARGEST: u64 = 256 << 20;

/// Bytes that a chunk should have.
const CHUNK: u64 = 1 << 20;

/// How the chunks of a dataset are encoded; `None`: as they are.
pub fn layout(shape: &[u64], element: usize, chunk: &[u64], how: Option<Compression>) -> NewLayout {
    if shape.is_empty() || shape.contains(&0) || chunk.len() != shape.len() {
        return NewLayout::Contiguous;
    }
    let bytes = chunk
        .iter()
        .fold(element as u64, |n, &d| n.saturating_mul(d));
    let bytes = usize::try_from(bytes).unwrap_or(usize::MAX);
    let filters = how.map_or(Vec::new(), |how| how.filters(element, bytes));
    NewLayout::Chunked {
        chunk: chunk.to_vec(),
        filters,
        compression: how,
    }
}

/// Chunks of about a mebibyte, of whole rows along the last axes.
pub fn good_shape(shape: &[u64], element: usize) -> Vec<u64> {
    let mut left = (CHUNK / (element.max(1) as u64)).max(1);
    let mut chunk: Vec<u64> = shape
        .iter()
        .rev()
        .map(|&n| {
            let here = n.min(left).max(1);
            left = (left / here).max(1);
            here
        })
        .collect();
    chunk.reverse();
    chunk
}

/// A dataset as a grid of chunks.
struct Grid<'a> {
    shape: &'a [u64],
    chunk: &'a [u64],
    element: usize,
    /// Bytes of a chunk.
    size: usize,
}

/// Writes all chunks of a dataset that `creator` has made in `file`.
pub fn write(
    dataset: &NewDataset,
    data: &dyn Content,
    creator: &Creator,
    file: &StoreFile,
) -> Result<()> {
    let NewLayout::Chunked {
        chunk, compression, ..
    } = &dataset.layout
    else {
        return Ok(());
    };
    let grid = Grid::new(dataset, chunk)?;
    let count = grid.count();
    let next = AtomicU64::new(0);
    let threads = std::thread::available_parallelism().map_or(1, NonZero::get);
    std::thread::scope(|scope| {
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
                    let chunk = grid.chunk(number, data, &mut bytes, *compression);
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
        let send = |chunks: &mut Vec<NewChunk>| {
            let (path, chunks) = (dataset.path.clone(), std::mem::take(chunks));
            creator.write_chunks(file, NewChunks { path, chunks })
        };
        for chunk in receiver {
            let chunk = chunk?;
            waiting += chunk.bytes.len();
            chunks.push(chunk);
            if waiting >= BATCH {
                waiting = 0;
                send(&mut chunks)?;
            }
        }
        if !chunks.is_empty() {
            send(&mut chunks)?;
        }
        Ok(())
    })
}

impl<'a> Grid<'a> {
    fn new(dataset: &'a NewDataset, chunk: &'a [u64]) -> Result<Self> {
        let element = dataset.element.size();
        let size = chunk
            .iter()
            .try_fold(element as u64, |n, &d| n.checked_mul(d))
            .filter(|size| (1..=LARGEST).contains(size))
            .and_then(|size| usize::try_from(size).ok())
            .filter(|_| chunk.len() == dataset.shape.len() && !chunk.is_empty());
        let size = size.ok_or_else(|| {
            let why = format!("chunks of shape {chunk:?} and {element} bytes an element");
            Error::new(ErrorKind::TooLarge, why)
        })?;
        Ok(Self {
            shape: &dataset.shape,
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
        compression: Option<Compression>,
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
        let (bytes, mask) = match compression {
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
            for axis in 0..rank {
                let index = place.get(axis).copied().unwrap_or(0);
                from = from * self.shape[axis] + start[axis] + index;
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn good_chunks_are_whole_rows() {
        assert_eq!(good_shape(&[1000, 3, 100], 4), [873, 3, 100]);
        assert_eq!(good_shape(&[10, 1 << 30], 1), [1, 1 << 20]);
        assert_eq!(good_shape(&[7], 8), [7]);
        assert_eq!(good_shape(&[2, 5], 1 << 30), [1, 1]);
    }
}
