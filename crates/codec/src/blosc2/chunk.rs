//! A Blosc2 chunk: a header of 32 bytes, the offset of each block, and the streams of the blocks.
//!
//! A block has one stream, or one for each byte of the element. Each stream follows its stored length; it is raw where
//! that equals its decoded length. A length of zero is a run of zeros, a negative one a run of another byte. Up to six
//! filters were applied to a block before compression.

use std::sync::Arc;

use super::{FilterError, FrameCodec, bitshuffle, blosc, damaged, same_size, shuffle};
use npyfs_base::buffer::Pool;

/// Bytes of the header, and of Blosc 1's, with which it begins.
const HEADER: usize = 32;
const OLD_HEADER: usize = 16;

/// The supported versions of a chunk, and the version of every codec's stream. The first is that of Blosc 1.
const OLD_VERSION: u8 = 2;
const VERSION: u8 = 5;
const CODEC_VERSION: u8 = 1;

/// Flags: both set mean a header of 32 bytes.
const EXTENDED: u8 = 1 << 0 | 1 << 2;
const AS_IT_IS: u8 = 1 << 1;
const NOT_SPLIT: u8 = 1 << 4;

/// Flags in the second half of the header; bits 4 to 6 are a special value.
const DICTIONARY: u8 = 1 << 0;
const SPECIAL: u8 = 7 << 4;

/// Filters of a chunk, and the most bytes of a dictionary.
const FILTERS: usize = 6;
const LONGEST_DICTIONARY: usize = 128 << 10;

/// Snappy of Blosc 1, which Blosc2 dropped.
const SNAPPY: u8 = 2;

/// The contents of a block.
enum Content<'a> {
    /// One element, repeated.
    Run(Vec<u8>),
    /// Raw data.
    Plain(&'a [u8]),
    /// Compressed streams.
    Streams {
        codec: FrameCodec,
        /// Full blocks have a stream for each byte of the element.
        split: bool,
        dictionary: Option<&'a [u8]>,
    },
    /// A Blosc 1 frame.
    Old,
}

/// How a filter shuffled the bytes of a block.
#[derive(Clone, Copy, Debug)]
enum Sort {
    /// Bytes of equal position in an element of this size are adjacent.
    Bytes(usize),
    Bits,
}

/// A chunk whose header was checked.
pub(super) struct Chunk<'a> {
    stored: &'a [u8],
    content: Content<'a>,
    /// The shuffles, in the order in which they are undone.
    sorts: Vec<Sort>,
    /// Elements were replaced by their differences before all shuffles.
    delta: bool,
    /// Bytes of an element, at least one.
    size: usize,
    /// Bytes of the data and of a block, which is at least one.
    len: usize,
    block: usize,
}

/// The values that stand for a whole chunk without being stored.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum SpecialValue {
    /// Zeros, also for uninitialized data.
    Zero,
    NotANumber,
}

impl SpecialValue {
    /// Returns the value of this number; `None` if there is none.
    pub(super) fn new(number: u8) -> Option<Self> {
        match number {
            1 | 4 => Some(Self::Zero),
            2 => Some(Self::NotANumber),
            _ => None,
        }
    }

    /// Returns the element of this many bytes.
    pub(super) fn element(self, size: usize) -> Result<Vec<u8>, FilterError> {
        match (self, size) {
            (Self::Zero, _) => Ok(vec![0]),
            (Self::NotANumber, 4) => Ok(f32::NAN.to_le_bytes().to_vec()),
            (Self::NotANumber, 8) => Ok(f64::NAN.to_le_bytes().to_vec()),
            (Self::NotANumber, _) => Err(damaged("not a number of an odd size")),
        }
    }
}

/// Fills a buffer with copies of an element; the last may be cut off.
pub(super) fn fill(out: &mut [u8], element: &[u8]) {
    if let [byte] = element {
        return out.fill(*byte);
    }
    for place in out.chunks_mut(element.len().max(1)) {
        let len = place.len();
        place.copy_from_slice(&element[..len]);
    }
}

/// Reads the number at `at`.
fn number(chunk: &[u8], at: usize) -> Result<i32, FilterError> {
    chunk
        .get(at..)
        .and_then(|rest| rest.first_chunk())
        .map(|bytes| i32::from_le_bytes(*bytes))
        .ok_or(damaged("ends too early"))
}

/// Reads the length, or offset, at `at`.
fn length(chunk: &[u8], at: usize) -> Result<usize, FilterError> {
    usize::try_from(number(chunk, at)?).map_err(|_| damaged("lengths that cannot be"))
}

impl<'a> Chunk<'a> {
    /// Reads the header of a chunk at the beginning of `bytes`.
    pub(super) fn read(bytes: &'a [u8]) -> Result<Self, FilterError> {
        let short = damaged("shorter than its header");
        let head: &[u8; OLD_HEADER] = bytes.first_chunk().ok_or(short)?;
        let [version, codec_version, flags, size, ..] = *head;
        let (len, block, stored) = (length(bytes, 4)?, length(bytes, 8)?, length(bytes, 12)?);
        let stored = bytes.get(..stored).ok_or(damaged("cut off"))?;
        if size == 0 || (block == 0 && len > 0) {
            return Err(damaged("lengths that cannot be"));
        }
        let mut chunk = Self {
            stored,
            content: Content::Old,
            sorts: Vec::new(),
            delta: false,
            size: usize::from(size),
            len,
            block: block.max(1),
        };
        if version == OLD_VERSION && flags & EXTENDED != EXTENDED {
            // One block: Blosc 1 has blocks of its own.
            chunk.block = len.max(1);
            return Ok(chunk);
        }
        if version != VERSION || flags & EXTENDED != EXTENDED {
            return Err(damaged("a chunk of an unknown version"));
        }
        let head: &[u8; HEADER] = stored
            .first_chunk()
            .ok_or(damaged("shorter than its header"))?;
        let second = head[31];
        if second & !(DICTIONARY | SPECIAL) != 0 {
            return Err(damaged("unknown flags"));
        }
        chunk.content = match (second & SPECIAL) >> 4 {
            0 if flags & AS_IT_IS != 0 => {
                let data = &stored[HEADER..];
                if data.len() != len {
                    return Err(damaged("lengths that cannot be"));
                }
                Content::Plain(data)
            }
            // Empty data has no stream.
            0 if len == 0 => Content::Plain(&[]),
            0 => {
                if codec_version != CODEC_VERSION {
                    return Err(damaged("unknown version of the codec"));
                }
                chunk.read_filters(&head[16..22], &head[24..30])?;
                chunk.streams(flags, second)?
            }
            // The element follows the header.
            3 => {
                let element = stored.get(HEADER..HEADER + chunk.size);
                Content::Run(element.ok_or(damaged("ends too early"))?.to_vec())
            }
            number => {
                let value = SpecialValue::new(number).ok_or(damaged("an unknown special value"))?;
                Content::Run(value.element(chunk.size)?)
            }
        };
        // Every block begins with a whole element.
        if let Content::Run(element) = &chunk.content
            && !chunk.block.is_multiple_of(element.len())
        {
            return Err(damaged("blocks of broken elements"));
        }
        Ok(chunk)
    }

    fn read_filters(&mut self, codes: &[u8], metas: &[u8]) -> Result<(), FilterError> {
        for (code, meta) in codes.iter().zip(metas).take(FILTERS).rev() {
            let sort = match code {
                // Truncated precision cannot be restored.
                0 | 4 => continue,
                _ if self.delta => return Err(damaged("filters in an unknown order")),
                1 if *meta == 0 => Sort::Bytes(self.size),
                1 => Sort::Bytes(usize::from(*meta)),
                2 => Sort::Bits,
                3 => {
                    self.delta = true;
                    continue;
                }
                _ => return Err(damaged("a filter of a plug-in")),
            };
            self.sorts.push(sort);
        }
        Ok(())
    }

    fn streams(&self, flags: u8, second: u8) -> Result<Content<'a>, FilterError> {
        let codec = match flags >> 5 {
            SNAPPY => return Err(damaged("unknown codec")),
            6 => return Err(damaged("a codec of a plug-in")),
            _ => FrameCodec::new(flags)?,
        };
        let dictionary = match second & DICTIONARY != 0 {
            false => None,
            true => {
                let at = self
                    .blocks()
                    .checked_mul(4)
                    .and_then(|n| n.checked_add(HEADER));
                let at = at.ok_or(damaged("ends too early"))?;
                let len = length(self.stored, at)?;
                let dictionary = self.stored.get(at + 4..).and_then(|rest| rest.get(..len));
                let fits = codec == FrameCodec::Zstd && (1..=LONGEST_DICTIONARY).contains(&len);
                let dictionary = dictionary.filter(|_| fits);
                Some(dictionary.ok_or(damaged("an impossible dictionary"))?)
            }
        };
        Ok(Content::Streams {
            codec,
            split: flags & NOT_SPLIT == 0,
            dictionary,
        })
    }

    /// Returns the number of bytes of the data.
    pub(super) fn len(&self) -> usize {
        self.len
    }

    /// Returns the number of bytes of a block; the last may be shorter.
    pub(super) fn block(&self) -> usize {
        self.block
    }

    fn blocks(&self) -> usize {
        self.len.div_ceil(self.block)
    }

    /// Returns whether all blocks but the first are stored as differences to the first.
    pub(super) fn has_reference(&self) -> bool {
        self.delta
    }

    /// Decodes all blocks into a buffer, which they must fill.
    pub(super) fn decode_all(&self, out: &mut [u8], pool: &Arc<Pool>) -> Result<(), FilterError> {
        same_size(self.len, out.len())?;
        let mut places = out.chunks_mut(self.block).enumerate();
        let mut reference: &[u8] = &[];
        if self.delta
            && let Some((_, first)) = places.next()
        {
            self.decode(0, first, &[], pool)?;
            reference = first;
        }
        let decode = |(i, place): (usize, &mut [u8])| self.decode(i, place, reference, pool);
        places.try_for_each(decode)
    }

    /// Decodes block `i`, which must fill `place`. `reference` is the first block, if others are differences to it.
    pub(super) fn decode(
        &self,
        i: usize,
        place: &mut [u8],
        reference: &[u8],
        pool: &Arc<Pool>,
    ) -> Result<(), FilterError> {
        let start = i.checked_mul(self.block);
        let start = start
            .filter(|&at| at < self.len)
            .ok_or(damaged("no such block"))?;
        let len = self.block.min(self.len - start);
        if place.len() != len {
            return Err(damaged("a block of another length"));
        }
        match &self.content {
            Content::Run(element) => fill(place, element),
            Content::Plain(data) => place.copy_from_slice(&data[start..start + len]),
            Content::Old => return blosc::into(self.stored, place, pool),
            Content::Streams {
                codec,
                split,
                dictionary,
            } => {
                let split = *split && len == self.block;
                let from = length(self.stored, HEADER + 4 * i)?;
                let streams = self
                    .stored
                    .get(from..)
                    .ok_or(damaged("a block outside the chunk"))?;
                let count = if split { self.size } else { 1 };
                let decode =
                    |out: &mut [u8]| decode_streams(*codec, *dictionary, streams, count, out);
                self.unsort(place, pool, decode)?;
                match (self.delta, i) {
                    (false, _) => {}
                    (true, 0) => undo_differences(place, self.delta_size()),
                    (true, _) => {
                        let unit = self.delta_size();
                        let whole = len / unit * unit;
                        for (byte, with) in place[..whole].iter_mut().zip(reference) {
                            *byte ^= with;
                        }
                    }
                }
            }
        }
        Ok(())
    }

    /// Decodes a block and undoes its shuffles.
    fn unsort(
        &self,
        place: &mut [u8],
        pool: &Arc<Pool>,
        decode: impl FnOnce(&mut [u8]) -> Result<(), FilterError>,
    ) -> Result<(), FilterError> {
        let Some((last, before)) = self.sorts.split_last() else {
            return decode(place);
        };
        let mut sorted = pool.take(place.len());
        decode(&mut sorted)?;
        for sort in before {
            let mut next = pool.take(place.len());
            self.undo(*sort, &sorted, &mut next)?;
            sorted = next;
        }
        self.undo(*last, &sorted, place)
    }

    fn undo(&self, sort: Sort, sorted: &[u8], out: &mut [u8]) -> Result<(), FilterError> {
        let Sort::Bytes(size) = sort else {
            let unit = self.size * bitshuffle::MULTIPLE;
            let whole = sorted.len() / unit * unit;
            let (bits, rest) = sorted.split_at(whole);
            let (elements, tail) = out.split_at_mut(whole);
            if whole > 0 {
                bitshuffle::unsort(bits, elements, self.size);
            }
            tail.copy_from_slice(rest);
            return Ok(());
        };
        shuffle::into(sorted, out, size)
    }

    /// Returns the size in bytes of the units that differences are taken of.
    fn delta_size(&self) -> usize {
        match self.size {
            2 | 4 | 8 => self.size,
            size if size.is_multiple_of(8) => 8,
            _ => 1,
        }
    }
}

/// Undoes the replacement of each element by its difference to the one before.
fn undo_differences(data: &mut [u8], size: usize) {
    let whole = data.len() / size * size;
    for at in size..whole {
        data[at] ^= data[at - size];
    }
}

/// Decodes the streams of one block, which must fill `out`.
fn decode_streams(
    codec: FrameCodec,
    dictionary: Option<&[u8]>,
    mut streams: &[u8],
    count: usize,
    out: &mut [u8],
) -> Result<(), FilterError> {
    let each = out.len() / count;
    if each == 0 || !out.len().is_multiple_of(count) {
        return Err(damaged("a block of broken elements"));
    }
    let outside = damaged("a stream outside the chunk");
    for place in out.chunks_mut(each) {
        let len = number(streams, 0)?;
        streams = &streams[4..];
        let Ok(len) = usize::try_from(len) else {
            let (token, rest) = streams.split_first().ok_or(damaged("ends too early"))?;
            streams = rest;
            match u8::try_from(-i64::from(len)) {
                Ok(byte) if token & 1 != 0 => place.fill(byte),
                _ => return Err(damaged("an unknown kind of stream")),
            }
            continue;
        };
        let (stream, rest) = match streams.split_at_checked(len) {
            Some(parts) => parts,
            None => return Err(outside),
        };
        streams = rest;
        match (len, dictionary) {
            (0, _) => place.fill(0),
            (len, _) if len == each => place.copy_from_slice(stream),
            (_, Some(dictionary)) => with_dictionary(stream, dictionary, place)?,
            (_, None) => codec.decode(stream, place)?,
        }
    }
    Ok(())
}

fn with_dictionary(stream: &[u8], dictionary: &[u8], out: &mut [u8]) -> Result<(), FilterError> {
    let failed = |e: std::io::Error| FilterError::Zstd(e.to_string());
    let mut decoder = zstd::bulk::Decompressor::with_dictionary(dictionary).map_err(failed)?;
    let have = decoder.decompress_to_buffer(stream, out).map_err(failed)?;
    same_size(have, out.len())
}
