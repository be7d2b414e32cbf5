//! A contiguous frame: the offsets of its chunks, and the layout of multidimensional data in them.

use std::sync::Arc;

use super::chunk::{Chunk, SpecialValue, fill};
use super::grid::Grid;
use super::{FilterError, damaged};
use npyfs_base::buffer::Pool;

/// The beginning of a frame, up to its version number.
const MAGIC: [u8; 10] = *b"\x9e\xa8b2frame\0";

/// The offset of the metalayers, and the fewest bytes of a header.
const METALAYERS: usize = 87;

/// The most chunks of a frame; HDF5's filter writes one.
const MAX_CHUNKS: usize = 1 << 16;

/// Bytes of an offset in the list of offsets.
const OFFSET: usize = 8;

/// A frame whose header was checked.
pub(super) struct Frame<'a> {
    /// The chunks, and the bytes after them.
    chunks: &'a [u8],
    /// The offset of the list of offsets in them.
    list: usize,
    /// Bytes of an element.
    size: usize,
    /// Bytes of the data with padding, and of a chunk.
    padded: usize,
    chunk: usize,
    /// The layout of the data in the chunks; `None` if the chunks simply follow one another.
    grid: Option<Grid>,
}

/// A chunk of a frame.
pub(super) enum FrameChunk<'a> {
    Stored(Chunk<'a>),
    /// One element, repeated.
    Run(Vec<u8>),
}

/// A reader that consumes bytes from the front.
#[derive(Clone, Copy)]
pub(super) struct Reader<'a>(pub &'a [u8]);

impl<'a> Reader<'a> {
    /// Takes bytes off the front.
    fn take(&mut self, len: usize) -> Result<&'a [u8], FilterError> {
        let short = damaged("the frame's header ends too early");
        let (taken, rest) = self.0.split_at_checked(len).ok_or(short)?;
        self.0 = rest;
        Ok(taken)
    }

    /// Takes a byte.
    pub(super) fn byte(&mut self) -> Result<u8, FilterError> {
        Ok(self.take(1)?[0])
    }

    /// Reads a number of `len` bytes after the type byte `kind`.
    pub(super) fn number(&mut self, kind: u8, len: usize) -> Result<usize, FilterError> {
        if self.byte()? != kind {
            return Err(damaged("not a contiguous frame"));
        }
        let bytes = self.take(len)?.iter();
        let number = bytes.fold(0_u64, |n, &byte| n << 8 | u64::from(byte));
        usize::try_from(number).map_err(|_| damaged("lengths that cannot be"))
    }
}

impl<'a> Frame<'a> {
    /// Reads the header of a frame.
    pub(super) fn read(stored: &'a [u8]) -> Result<Self, FilterError> {
        let mut head = Reader(stored);
        if head.take(MAGIC.len())? != MAGIC {
            return Err(damaged("not a contiguous frame"));
        }
        let header = head.number(0xd2, 4)?;
        let len = head.number(0xcf, 8)?;
        let flags = head.number(0xa4, 4)?.to_be_bytes();
        let [general, kind, ..] = flags[flags.len() - 4..] else {
            return Err(damaged("not a contiguous frame"));
        };
        // Offsets of eight bytes, chunks of one length, all in this frame.
        if general & 0xf0 != 0x10 || kind & 0xf != 0 {
            return Err(damaged("a frame of an unknown kind"));
        }
        let (padded, list) = (head.number(0xd3, 8)?, head.number(0xd3, 8)?);
        let (size, _block, chunk) = (
            head.number(0xd2, 4)?,
            head.number(0xd2, 4)?,
            head.number(0xd2, 4)?,
        );
        let stored = stored.get(..len).ok_or(damaged("cut off"))?;
        let chunks = stored.get(header..).filter(|_| header >= METALAYERS);
        let chunks = chunks.ok_or(damaged("cut off"))?;
        let grid = metalayer(&stored[..header], &[b"b2nd", b"caterva"])?;
        let grid = grid.map(|layer| Grid::read(layer, size)).transpose()?;
        let count = match chunk {
            0 => 0,
            chunk => padded.div_ceil(chunk),
        };
        if size == 0 || list > chunks.len() || count > MAX_CHUNKS || (count == 0 && padded > 0) {
            return Err(damaged("lengths that cannot be"));
        }
        if let Some(grid) = &grid
            && (grid.chunks() != Some(count) || grid.chunk_len() != Some(chunk))
        {
            return Err(damaged("dimensions that do not fit its chunks"));
        }
        Ok(Self {
            chunks,
            list,
            size,
            padded,
            chunk,
            grid,
        })
    }

    /// Returns the number of bytes of the data.
    pub(super) fn len(&self) -> usize {
        self.grid.as_ref().map_or(self.padded, Grid::len)
    }

    /// Decodes the data into a buffer of its length.
    pub(super) fn decode(&self, out: &mut [u8], pool: &Arc<Pool>) -> Result<(), FilterError> {
        if out.is_empty() {
            return Ok(());
        }
        let chunks = self.offsets(pool)?;
        let chunks = chunks.into_iter().map(|offset| self.at(offset));
        let chunks = chunks.collect::<Result<Vec<_>, _>>()?;
        if let Some(grid) = &self.grid {
            return grid.gather(&chunks, out, pool);
        }
        for (chunk, place) in chunks.iter().zip(out.chunks_mut(self.chunk)) {
            match chunk {
                FrameChunk::Stored(chunk) => chunk.decode_all(place, pool)?,
                FrameChunk::Run(element) => fill(place, element),
            }
        }
        Ok(())
    }

    /// Returns the offset of each chunk.
    fn offsets(&self, pool: &Arc<Pool>) -> Result<Vec<i64>, FilterError> {
        let count = self.padded.div_ceil(self.chunk.max(1));
        let list = Chunk::read(&self.chunks[self.list..])?;
        let mut bytes = vec![0; count * OFFSET];
        list.decode_all(&mut bytes, pool)?;
        let offsets = bytes.as_chunks().0.iter();
        Ok(offsets.map(|offset| i64::from_le_bytes(*offset)).collect())
    }

    /// Returns the chunk at an offset; a negative offset encodes a value that fills the whole chunk.
    fn at(&self, offset: i64) -> Result<FrameChunk<'a>, FilterError> {
        let Ok(at) = usize::try_from(offset) else {
            let [.., number] = offset.to_le_bytes();
            let value = SpecialValue::new(number & 0x7f);
            let value = value.ok_or(damaged("an unknown special value"))?;
            return Ok(FrameChunk::Run(value.element(self.size)?));
        };
        let bytes = self
            .chunks
            .get(at..)
            .ok_or(damaged("a chunk outside the frame"))?;
        Chunk::read(bytes).map(FrameChunk::Stored)
    }
}

/// Returns the content of the first of the metalayers that the header has; `None` if it has none of them.
fn metalayer<'a>(header: &'a [u8], names: &[&[u8]]) -> Result<Option<&'a [u8]>, FilterError> {
    let mut layers = Reader(&header[METALAYERS..]);
    if layers.byte()? != 0x93 {
        return Err(damaged("unknown metalayers"));
    }
    let _bytes = layers.number(0xcd, 2)?;
    for _ in 0..layers.number(0xde, 2)? {
        let kind = layers.byte()?;
        if kind & 0xe0 != 0xa0 {
            return Err(damaged("unknown metalayers"));
        }
        let name = layers.take(usize::from(kind & 0x1f))?;
        let at = layers.number(0xd2, 4)?;
        if names.contains(&name) {
            let short = damaged("the frame's header ends too early");
            let mut content = Reader(header.get(at..).ok_or(short)?);
            let len = content.number(0xc6, 4)?;
            return content.take(len).map(Some);
        }
    }
    Ok(None)
}
