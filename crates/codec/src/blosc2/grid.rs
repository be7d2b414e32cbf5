//! The metalayer `b2nd`: an array divided into boxes, one for each chunk, which are divided into smaller boxes, one for
//! each block.
//!
//! All chunks have the same size, a multiple of the block size: elements outside of a chunk's box or of the array are
//! padding.

use std::sync::Arc;

use super::frame::{FrameChunk, Reader};
use super::{FilterError, chunk, damaged};
use npyfs_base::buffer::{Buffer, Pool};

/// The most bytes with padding for each byte of the array: blocks may be half padding in each of eight dimensions.
const MOST_PADDING: usize = 256;

/// An array of at least one dimension in chunks and blocks.
pub(super) struct Grid {
    /// Bytes of an element, and of the array.
    size: usize,
    len: usize,
    shape: Vec<usize>,
    chunk: Vec<usize>,
    block: Vec<usize>,
}

/// The rows of the array along its first dimension that one row of blocks covers, and their position.
struct Slab<'a> {
    /// Indices along the first dimension: of the chunk, and of the block in it.
    chunk: usize,
    block: usize,
    rows: usize,
    out: &'a mut [u8],
}

/// Multiplies numbers; `None` on overflow.
fn product(numbers: impl IntoIterator<Item = usize>) -> Option<usize> {
    numbers.into_iter().try_fold(1_usize, usize::checked_mul)
}

/// Calls `work` for each combination of coordinates below `counts`, in C order.
fn each(
    counts: &[usize],
    mut work: impl FnMut(&[usize]) -> Result<(), FilterError>,
) -> Result<(), FilterError> {
    if counts.contains(&0) {
        return Ok(());
    }
    let mut at = vec![0; counts.len()];
    loop {
        work(&at)?;
        let mut k = counts.len();
        loop {
            if k == 0 {
                return Ok(());
            }
            k -= 1;
            at[k] += 1;
            if at[k] < counts[k] {
                break;
            }
            at[k] = 0;
        }
    }
}

/// Returns the index of an element in C order from its coordinates.
fn place(counts: &[usize], at: impl IntoIterator<Item = usize>) -> usize {
    let pairs = counts.iter().zip(at);
    pairs.fold(0, |n, (count, at)| n * count + at)
}

impl Grid {
    /// Reads a metalayer. `size` is the number of bytes of an element.
    pub(super) fn read(layer: &[u8], size: usize) -> Result<Self, FilterError> {
        let mut layer = Reader(layer);
        // A msgpack array of five or of seven items; then the version, and the number of dimensions.
        if layer.byte()? & 0xf0 != 0x90 {
            return Err(damaged("unknown dimensions"));
        }
        let (_version, rank) = (layer.byte()?, layer.byte()?);
        if rank == 0 || rank > 15 {
            return Err(damaged("unknown dimensions"));
        }
        let mut lengths = |kind, len| {
            if layer.byte()? != 0x90 | rank {
                return Err(damaged("unknown dimensions"));
            }
            let lengths = (0..rank).map(|_| layer.number(kind, len));
            lengths.collect::<Result<Vec<_>, _>>()
        };
        let (shape, chunk, block) = (lengths(0xd3, 8)?, lengths(0xd2, 4)?, lengths(0xd2, 4)?);
        let impossible = damaged("impossible dimensions");
        let len = product(shape.iter().copied().chain([size]));
        let grid = Self {
            size,
            len: len
                .filter(|&len| len <= i32::MAX as usize)
                .ok_or(impossible)?,
            shape,
            chunk,
            block,
        };
        let boxes = grid.chunk.iter().zip(&grid.block);
        let sane = { boxes }.all(|(&chunk, &block)| block > 0 && block <= chunk);
        let padded = grid.chunks().zip(grid.chunk_len());
        let padded = padded.and_then(|(count, len)| count.checked_mul(len));
        let most = grid.len.saturating_mul(MOST_PADDING);
        if !sane || padded.is_none_or(|padded| padded > most) {
            return Err(damaged("impossible dimensions"));
        }
        Ok(grid)
    }

    /// Returns the number of bytes of the array.
    pub(super) fn len(&self) -> usize {
        self.len
    }

    fn chunk_counts(&self) -> Vec<usize> {
        let pairs = self.shape.iter().zip(&self.chunk);
        pairs.map(|(shape, chunk)| shape.div_ceil(*chunk)).collect()
    }

    fn block_counts(&self) -> Vec<usize> {
        let pairs = self.chunk.iter().zip(&self.block);
        pairs.map(|(chunk, block)| chunk.div_ceil(*block)).collect()
    }

    /// Returns the number of chunks; `None` on overflow.
    pub(super) fn chunks(&self) -> Option<usize> {
        match self.chunk.contains(&0) {
            true => None,
            false => product(self.chunk_counts()),
        }
    }

    fn block_len(&self) -> Option<usize> {
        product(self.block.iter().copied().chain([self.size]))
    }

    /// Returns the number of bytes of a chunk, with its padding; `None` on overflow.
    pub(super) fn chunk_len(&self) -> Option<usize> {
        match self.block.contains(&0) {
            true => None,
            false => product(self.block_counts())?.checked_mul(self.block_len()?),
        }
    }

    /// Decodes the blocks of all chunks into the array.
    pub(super) fn gather(
        &self,
        chunks: &[FrameChunk<'_>],
        out: &mut [u8],
        pool: &Arc<Pool>,
    ) -> Result<(), FilterError> {
        let block = self.block_len().ok_or(damaged("impossible dimensions"))?;
        let mut references = Vec::new();
        for chunk in chunks {
            let mut reference = None;
            if let FrameChunk::Stored(chunk) = chunk {
                let whole = Some(chunk.len()) == self.chunk_len();
                // A Blosc 1 frame is one block and not divided into boxes.
                if !whole || chunk.block() != block {
                    return Err(damaged("dimensions that do not fit its blocks"));
                }
                if chunk.has_reference() {
                    let mut first = pool.take(block);
                    chunk.decode(0, &mut first, &[], pool)?;
                    reference = Some(first);
                }
            }
            references.push(reference);
        }
        let slabs = self.slabs(out);
        let decode = |slab: Slab<'_>| self.fill_slab(slab, chunks, &references, pool);
        slabs.into_iter().try_for_each(decode)
    }

    /// Divides the array along its first dimension at the boundaries of blocks.
    fn slabs<'a>(&self, mut out: &'a mut [u8]) -> Vec<Slab<'a>> {
        let row = self.len.checked_div(self.shape[0]).unwrap_or(0);
        let mut slabs = Vec::new();
        for chunk in 0..self.shape[0].div_ceil(self.chunk[0]) {
            let first = chunk * self.chunk[0];
            let in_chunk = self.chunk[0].min(self.shape[0] - first);
            for block in 0..in_chunk.div_ceil(self.block[0]) {
                let rows = self.block[0].min(in_chunk - block * self.block[0]);
                let (place, rest) = out.split_at_mut((rows * row).min(out.len()));
                out = rest;
                slabs.push(Slab {
                    chunk,
                    block,
                    rows,
                    out: place,
                });
            }
        }
        slabs
    }

    fn fill_slab(
        &self,
        slab: Slab<'_>,
        chunks: &[FrameChunk<'_>],
        references: &[Option<Buffer>],
        pool: &Arc<Pool>,
    ) -> Result<(), FilterError> {
        let Slab {
            chunk: first,
            block: first_block,
            rows,
            out,
        } = slab;
        let len = self.block_len().ok_or(damaged("impossible dimensions"))?;
        let (chunk_counts, block_counts) = (self.chunk_counts(), self.block_counts());
        let mut buffer: Option<Buffer> = None;
        each(&chunk_counts[1..], |chunk_at| {
            let chunk_at: Vec<usize> = std::iter::once(first)
                .chain(chunk_at.iter().copied())
                .collect();
            let number = place(&chunk_counts, chunk_at.iter().copied());
            let missing = damaged("a chunk outside the frame");
            let source = chunks.get(number).ok_or(missing)?;
            let reference = references
                .get(number)
                .and_then(Option::as_deref)
                .unwrap_or_default();
            each(&block_counts[1..], |block_at| {
                let block_at: Vec<usize> = std::iter::once(first_block)
                    .chain(block_at.iter().copied())
                    .collect();
                // The start of the block in the slab, and the part of it inside the array.
                let (mut start, mut count) = (vec![0], vec![rows]);
                for k in 1..self.shape.len() {
                    let inside = block_at[k] * self.block[k];
                    let at = chunk_at[k] * self.chunk[k] + inside;
                    let left = self.shape[k].saturating_sub(at);
                    start.push(at);
                    count.push(left.min(self.block[k]).min(self.chunk[k] - inside));
                }
                if count.contains(&0) {
                    return Ok(());
                }
                let decode = |out: &mut [u8]| match source {
                    FrameChunk::Stored(chunk) => {
                        let number = place(&block_counts, block_at.iter().copied());
                        chunk.decode(number, out, reference, pool)
                    }
                    FrameChunk::Run(element) => {
                        chunk::fill(out, element);
                        Ok(())
                    }
                };
                if out.len() == len {
                    return decode(out);
                }
                let block = buffer.get_or_insert_with(|| pool.take(len));
                decode(block)?;
                self.copy(block, out, &start, &count)
            })
        })
    }

    /// Copies `count` elements along each dimension from the beginning of a block to `start` in a slab.
    fn copy(
        &self,
        block: &[u8],
        out: &mut [u8],
        start: &[usize],
        count: &[usize],
    ) -> Result<(), FilterError> {
        let Some((&run, outer)) = count.split_last() else {
            return Ok(());
        };
        let run = run * self.size;
        each(outer, |at| {
            let at = || at.iter().copied().chain([0]);
            let from = place(&self.block, at()) * self.size;
            let to = at().zip(start).map(|(at, start)| at + start);
            let to = place(&self.shape, to) * self.size;
            let row = block.get(from..).and_then(|rest| rest.get(..run));
            let place = out.get_mut(to..).and_then(|rest| rest.get_mut(..run));
            match (row, place) {
                (Some(row), Some(place)) => place.copy_from_slice(row),
                _ => return Err(damaged("impossible dimensions")),
            }
            Ok(())
        })
    }
}
