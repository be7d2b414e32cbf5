//! One chunk of an array as bytes: all elements of the chunk's shape in C order, with the fill value where the chunk
//! extends past the array.

use std::ops::Range;
use std::sync::Arc;

use super::blocks::{BlockReader, HeldPart, SHARE, is_of_one};
use super::cache::Block;
use super::elements::{repeat, short, slice};
use super::grid::{ChunkRow, Grid};
use super::payload::Payload;
use npyfs_base::error::{Error, Result};
use npyfs_io::content::{Content, Data};

/// A chunk of an array that is read in blocks. A block contains one whole chunk or several.
pub struct BlockChunk {
    blocks: Arc<BlockReader>,
    /// The number of the block, and that of the chunk.
    block: u64,
    single: u64,
    place: ChunkPlace,
    /// Whether the block is a single chunk.
    is_block: bool,
    fill: Vec<u8>,
    len: u64,
}

impl BlockChunk {
    /// Creates the content of the chunk that begins at element `start`; `None` if the payload is not read in blocks of
    /// whole chunks of this shape.
    pub fn new(
        payload: &Payload,
        (shape, chunk): (&[u64], &[u64]),
        start: &[u64],
        fill: Vec<u8>,
    ) -> Option<Self> {
        let element = fill.len() as u64;
        let blocks = payload.blocks.clone()?;
        let grid = blocks.source.grid();
        let single = blocks.source.chunks().unwrap_or(grid).number_at(start);
        let block = grid.number_at(start);
        let (corner, held) = grid.bounds(block);
        let rank = shape.len();
        let count: Vec<u64> = (0..rank)
            .map(|k| chunk[k].min(shape[k].saturating_sub(start[k])))
            .collect();
        let inside: Vec<u64> = (0..rank).map(|k| start[k] - corner[k]).collect();
        let fits = (0..rank).all(|k| inside[k] + count[k] <= held[k]);
        let len = chunk.iter().try_fold(element, |n, &d| n.checked_mul(d))?;
        if !fits || count.contains(&0) || element == 0 {
            return None;
        }
        Some(Self {
            is_block: held == chunk && inside.iter().all(|&at| at == 0),
            place: ChunkPlace::new(chunk, &count, &held, &inside, element),
            blocks,
            block,
            single,
            fill,
            len,
        })
    }

    /// The block as its reader goes through it: in one go, as no reader comes back for the next row.
    fn row(&self) -> ChunkRow {
        let bytes = self.blocks.source.grid().block_bytes();
        ChunkRow {
            blocks: 1,
            bytes,
            row: bytes,
            block_row: bytes,
        }
    }

    /// Returns bytes of the block from `at` on: the whole block, or only `wanted` bytes if it is very large.
    fn part(&self, at: u64, wanted: u64) -> Result<HeldPart> {
        self.blocks.part(self.row(), self.block, at, wanted)
    }

    /// Returns the chunk alone, of a block of which another one is damaged.
    fn alone(&self, chunks: &Grid) -> Result<Block> {
        self.blocks.decoded(chunks, self.blocks.single(self.single))
    }

    /// Fetches its bytes if they are remote; returns the chunk if it is better read alone.
    fn wanted_alone(&self) -> Result<Option<Block>> {
        let blocks = &self.blocks;
        if blocks.fetch_block(self.block, self.single) {
            return Ok(None);
        }
        match blocks.source.chunks() {
            Some(chunks) if !blocks.has(self.block) => self.alone(chunks).map(Some),
            _ => Ok(None),
        }
    }

    /// Gives up the block once the kernel has all of it.
    fn note_read(&self, read: u64) {
        let blocks = &self.blocks;
        let cache = &blocks.context.cache;
        // Small arrays may stay.
        if blocks.len > cache.limit() / SHARE
            && blocks
                .pattern
                .is_consumed(self.block, read, self.row().bytes)
        {
            cache.consumed(&blocks.key(self.block));
        }
    }
}

impl Content for BlockChunk {
    fn len(&self) -> u64 {
        self.len
    }

    fn read_at(&self, offset: u64, buf: &mut [u8]) -> Result<()> {
        let mut held: Option<HeldPart> = None;
        let mut alone = self.wanted_alone()?;
        let mut done = 0;
        let mut read = 0;
        while done < buf.len() {
            let at = offset + done as u64;
            let left = (buf.len() - done) as u64;
            let run = self.place.run_at(at);
            // A request is far below 2^32 bytes.
            let n = run.len().min(left) as usize;
            let out = &mut buf[done..done + n];
            done += n;
            let from = match run {
                ChunkRun::Fill(_) => {
                    repeat(&self.fill, at, out);
                    continue;
                }
                ChunkRun::Block(range) => range.start,
            };
            read += n as u64;
            if let Some(block) = &alone {
                let at = self.place.offset_alone(at);
                out.copy_from_slice(slice(block, at, n)?);
                continue;
            }
            if let Some(part) = &held
                && let Some(at) = from.checked_sub(part.from)
                && let Ok(found) = slice(&part.bytes, at, n)
            {
                out.copy_from_slice(found);
                continue;
            }
            match self.part(from, left) {
                Ok(part) => {
                    out.copy_from_slice(slice(&part.bytes, from - part.from, n)?);
                    held = Some(part);
                }
                Err(e) if is_of_one(&e) => {
                    let Some(chunks) = self.blocks.source.chunks() else {
                        return Err(e);
                    };
                    let block = self.alone(chunks)?;
                    let at = self.place.offset_alone(at);
                    out.copy_from_slice(slice(&block, at, n)?);
                    alone = Some(block);
                }
                Err(e) => return Err(e),
            }
        }
        self.note_read(read);
        Ok(())
    }

    fn is_costly(&self) -> bool {
        false
    }

    fn share(&self, offset: u64, len: usize) -> Result<Option<Data>> {
        if !self.is_block {
            return Ok(None);
        }
        self.blocks.fetch_block(self.block, self.single);
        let part = self.part(offset, len as u64)?;
        self.note_read(len as u64);
        let at = usize::try_from(offset - part.from).map_err(|_| short())?;
        slice(&part.bytes, at as u64, len)?;
        Ok(Some(Data::Shared(part.bytes, at..at + len)))
    }
}

/// Contiguous bytes of a chunk.
#[derive(Debug, PartialEq, Eq)]
enum ChunkRun {
    /// This range of the block.
    Block(Range<u64>),
    /// This many bytes past the end of the array.
    Fill(u64),
}

impl ChunkRun {
    fn len(&self) -> u64 {
        match self {
            Self::Block(range) => range.end - range.start,
            Self::Fill(len) => *len,
        }
    }
}

/// The position of a chunk in a block: pure arithmetic.
struct ChunkPlace {
    /// The dimensions of the chunk, of its part in the array, and of the block, and the position of the chunk in the
    /// block. Trailing dimensions in which chunk and block are equal are part of the step.
    chunk: Vec<u64>,
    count: Vec<u64>,
    block: Vec<u64>,
    inside: Vec<u64>,
    /// Bytes of a step along the last dimension.
    step: u64,
}

impl ChunkPlace {
    fn new(chunk: &[u64], count: &[u64], block: &[u64], inside: &[u64], element: u64) -> Self {
        let mut rank = chunk.len();
        let mut step = element;
        while let Some(k) = rank.checked_sub(1)
            && count[k] == chunk[k]
            && block[k] == chunk[k]
        {
            step = step.saturating_mul(chunk[k]);
            rank = k;
        }
        Self {
            chunk: chunk[..rank].to_vec(),
            count: count[..rank].to_vec(),
            block: block[..rank].to_vec(),
            inside: inside[..rank].to_vec(),
            step,
        }
    }

    /// Returns the coordinates of a byte of the chunk in steps, and its offset in the step.
    fn index(&self, offset: u64) -> (Vec<u64>, u64) {
        let (mut left, rest) = (offset / self.step, offset % self.step);
        let mut index = vec![0; self.chunk.len()];
        for k in (0..index.len()).rev() {
            index[k] = left % self.chunk[k];
            left /= self.chunk[k];
        }
        (index, rest)
    }

    /// Returns the run from a byte of the chunk on.
    fn run_at(&self, offset: u64) -> ChunkRun {
        let (index, rest) = self.index(offset);
        if let Some(k) = (0..index.len()).find(|&k| index[k] >= self.count[k]) {
            // The rest of this index of the leading dimensions is past the end of the array, too.
            let mut steps = self.chunk[k] - index[k];
            for (chunk, at) in self.chunk.iter().zip(&index).skip(k + 1) {
                steps = steps * chunk - at;
            }
            return ChunkRun::Fill(steps * self.step - rest);
        }
        let places = self.block.iter().zip(&self.inside).zip(&index);
        let at = places.fold(0, |at, ((block, inside), index)| {
            at * block + inside + index
        });
        let last = index.len().checked_sub(1);
        let steps = last.map_or(1, |k| self.count[k] - index[k]);
        let start = at * self.step + rest;
        ChunkRun::Block(start..start + steps * self.step - rest)
    }

    /// Returns the offset of a byte of the chunk in the part of the chunk that is in the array.
    fn offset_alone(&self, offset: u64) -> u64 {
        let (index, rest) = self.index(offset);
        let steps = (0..index.len()).fold(0, |at, k| at * self.count[k] + index[k]);
        steps * self.step + rest
    }
}

/// A chunk of consecutive elements, followed by the fill value.
pub struct LinearChunk {
    of: Arc<dyn Content>,
    /// Its range in the array, in bytes.
    range: Range<u64>,
    fill: Vec<u8>,
    len: u64,
}

impl LinearChunk {
    /// Creates a content of `len` bytes that begins with a range of another content.
    ///
    /// # Errors
    ///
    /// The range is not in the content, or is longer than the chunk.
    pub fn new(of: Arc<dyn Content>, range: Range<u64>, fill: Vec<u8>, len: u64) -> Result<Self> {
        let held = range.end.checked_sub(range.start);
        if range.end > of.len() || held.is_none_or(|held| held > len) || fill.is_empty() {
            return Err(Error::damaged("a chunk outside of the array"));
        }
        Ok(Self {
            of,
            range,
            fill,
            len,
        })
    }
}

impl Content for LinearChunk {
    fn len(&self) -> u64 {
        self.len
    }

    fn read_at(&self, offset: u64, buf: &mut [u8]) -> Result<()> {
        let held = (self.range.end - self.range.start).saturating_sub(offset);
        let n = usize::try_from(held).unwrap_or(usize::MAX).min(buf.len());
        let (now, rest) = buf.split_at_mut(n);
        if n > 0 {
            self.of.read_at(self.range.start + offset, now)?;
        }
        repeat(&self.fill, offset + n as u64, rest);
        Ok(())
    }

    fn share(&self, offset: u64, len: usize) -> Result<Option<Data>> {
        let held = self.range.end - self.range.start;
        match offset.checked_add(len as u64) {
            Some(end) if end <= held => self.of.share(self.range.start + offset, len),
            _ => Ok(None),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use npyfs_io::content::InMemory;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn every_byte_of_a_chunk_is_where_the_array_has_it(
            dims in proptest::collection::vec((1_u64..9, 1_u64..5, 1_u64..3), 0..4),
            element in 1_u64..4,
            pick in any::<u64>(),
        ) {
            let shape: Vec<_> = dims.iter().map(|d| d.0).collect();
            let chunk: Vec<_> = dims.iter().map(|d| d.1).collect();
            // Blocks combine several chunks.
            let block: Vec<_> = dims.iter().map(|d| d.1 * d.2).collect();
            let grid = Grid::new(&shape, &block, element).unwrap();
            let singles = Grid::new(&shape, &chunk, element).unwrap();
            let single = pick % singles.blocks();
            let (start, count) = singles.bounds(single);
            let number = grid.number_at(&start);
            prop_assert_eq!(singles.number_at(&start), single);
            let (corner, held) = grid.bounds(number);
            let inside: Vec<_> = (0..shape.len()).map(|k| start[k] - corner[k]).collect();
            let place = ChunkPlace::new(&chunk, &count, &held, &inside, element);
            let len = chunk.iter().product::<u64>() * element;
            let mut at = 0;
            while at < len {
                let run = place.run_at(at);
                prop_assert!(run.len() > 0);
                for i in 0..run.len() {
                    // By brute force.
                    let (mut left, rest) = ((at + i) / element, (at + i) % element);
                    let mut index = vec![0; shape.len()];
                    for k in (0..shape.len()).rev() {
                        index[k] = left % chunk[k];
                        left /= chunk[k];
                    }
                    let is_in = (0..shape.len()).all(|k| index[k] < count[k]);
                    let of = |dims: &[u64], inside: &[u64]| {
                        (0..dims.len()).fold(0, |n, k| n * dims[k] + inside[k] + index[k]) * element + rest
                    };
                    match &run {
                        ChunkRun::Fill(_) => prop_assert!(!is_in),
                        ChunkRun::Block(range) => {
                            prop_assert!(is_in);
                            prop_assert_eq!(range.start + i, of(&held, &inside));
                            prop_assert_eq!(place.offset_alone(at + i), of(&count, &vec![0; shape.len()]));
                        }
                    }
                }
                at += run.len();
            }
            prop_assert_eq!(at, len);
        }
    }

    #[test]
    fn consecutive_elements_end_in_the_fill_value() {
        let all: Arc<dyn Content> = Arc::new(InMemory((0..10).collect()));
        let chunk = LinearChunk::new(all.clone(), 6..10, vec![7, 8], 8).unwrap();
        let mut bytes = vec![0; 8];
        chunk.read_at(0, &mut bytes).unwrap();
        assert_eq!(bytes, [6, 7, 8, 9, 7, 8, 7, 8]);
        chunk.read_at(5, &mut bytes[..3]).unwrap();
        assert_eq!(bytes[..3], [8, 7, 8]);
        assert!(LinearChunk::new(all.clone(), 6..11, vec![0], 8).is_err());
        assert!(LinearChunk::new(all, 0..9, vec![0], 8).is_err());
    }
}
