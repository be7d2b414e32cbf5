//! Random-access byte sources, and sources that are composed of others.
//!
//! Nothing here knows what the bytes mean. A read never copies more than it returns.

use std::io::{self, Read, Seek, SeekFrom};
use std::ops::Range;
use std::sync::{Arc, OnceLock};

use crate::provenance::Provenance;
use npyfs_base::buffer::{Buffer, Pool};
use npyfs_base::error::Result;
use npyfs_base::npy::parse::{self, Header, NpyError};
use scratch::Scratch;

pub mod scratch;

/// The result of a read: a range of a shared buffer, or a buffer of its own.
#[derive(Debug)]
pub enum Data {
    /// A range of a buffer that may be shared with others.
    Shared(Arc<Buffer>, Range<usize>),
    /// A buffer that only this result owns.
    Owned(Buffer),
}

impl Data {
    /// Returns the buffer and the range in it, and makes the buffer shared.
    pub fn shared(&mut self) -> (Arc<Buffer>, Range<usize>) {
        let (buffer, range) = match std::mem::replace(self, Self::Owned(Vec::new().into())) {
            Self::Shared(buffer, range) => (buffer, range),
            Self::Owned(buffer) => {
                let len = buffer.len();
                (Arc::new(buffer), 0..len)
            }
        };
        *self = Self::Shared(buffer.clone(), range.clone());
        (buffer, range)
    }
}

impl AsRef<[u8]> for Data {
    fn as_ref(&self) -> &[u8] {
        match self {
            Self::Shared(bytes, range) => bytes.get(range.clone()).unwrap_or_default(),
            Self::Owned(bytes) => bytes,
        }
    }
}

/// The content of a virtual file, or a part of one.
pub trait Content: Send + Sync {
    /// Returns the length in bytes.
    fn len(&self) -> u64;

    /// Returns true if the length is zero.
    fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Fills all of `buf` from `offset`. `buf` holds old bytes; `offset + buf.len()` is at most `len`.
    fn read_at(&self, offset: u64, buf: &mut [u8]) -> Result<()>;

    /// Fills `buf` with all bytes, for a caller that stores them: the content need not cache them.
    fn read_whole(&self, buf: &mut [u8]) -> Result<()> {
        self.read_at(0, buf)
    }

    /// Returns the next range at or after `from` that may be nonzero; `None` if there is none.
    fn written(&self, from: u64) -> Result<Option<Range<u64>>> {
        Ok((from < self.len()).then(|| from..self.len()))
    }

    /// Returns the next range at or after `from` that is read from storage; `None` if there is none. All other bytes
    /// are elements that were never written, whose value is known.
    fn stored(&self, from: u64) -> Option<Range<u64>> {
        (from < self.len()).then(|| from..self.len())
    }

    /// Describes bytes from `from` on that were never written in one dataset: where they end, and the length of the
    /// period in which they repeat. `None` if some of them are read from storage.
    fn repeats(&self, _from: u64) -> Option<(u64, u64)> {
        None
    }

    /// Returns true if reading additional bytes costs more than copying them, because they must be decoded.
    fn is_costly(&self) -> bool {
        false
    }

    /// Returns the bytes around `offset` that programs read without those before and after them, such as a column of a
    /// table; `None` if the content has no such extents.
    fn extent(&self, _offset: u64) -> Option<Range<u64>> {
        None
    }

    /// Returns the scratch file that holds exactly these bytes, and their offset in it.
    fn scratch(&self) -> Option<(&Scratch, u64)> {
        None
    }

    /// Adds everything that the bytes depend on to `to`; false if that is not known.
    fn tell_provenance(&self, _to: &mut Provenance) -> bool {
        false
    }

    /// Returns true if reading all of the content needs no network, as far as is known.
    fn is_at_hand(&self) -> bool {
        false
    }

    /// Returns `len` bytes from `offset` without a copy, if they are contiguous in memory; `None` if they need
    /// `read_at`.
    fn share(&self, _offset: u64, _len: usize) -> Result<Option<Data>> {
        Ok(None)
    }
}

/// Reads at most `size` bytes from `offset`; fewer only at the end.
pub fn read(content: &dyn Content, offset: u64, size: usize, pool: &Arc<Pool>) -> Result<Data> {
    let left = content.len().saturating_sub(offset);
    let size = usize::try_from(left).unwrap_or(usize::MAX).min(size);
    if size == 0 {
        return Ok(Data::Owned(Buffer::from(Vec::new())));
    }
    if let Some(data) = content.share(offset, size)? {
        return Ok(data);
    }
    let mut buf = pool.take(size);
    content.read_at(offset, &mut buf)?;
    Ok(Data::Owned(buf))
}

/// A content as a stream, for libraries that read streams.
pub struct Reader {
    content: Arc<dyn Content>,
    at: u64,
}

impl Reader {
    /// Returns a stream that begins at the first byte.
    pub fn new(content: Arc<dyn Content>) -> Self {
        Self { content, at: 0 }
    }

    /// Returns the content that is read.
    pub fn content(&self) -> &Arc<dyn Content> {
        &self.content
    }

    /// Returns the offset of the next byte. It may lie behind the end.
    pub fn position(&self) -> u64 {
        self.at
    }
}

impl Read for Reader {
    fn read(&mut self, buf: &mut [u8]) -> io::Result<usize> {
        let left = self.content.len().saturating_sub(self.at);
        let len = usize::try_from(left).unwrap_or(usize::MAX).min(buf.len());
        let place = buf.get_mut(..len).unwrap_or_default();
        self.content.read_at(self.at, place)?;
        self.at += len as u64;
        Ok(len)
    }
}

impl Seek for Reader {
    fn seek(&mut self, to: SeekFrom) -> io::Result<u64> {
        let at = match to {
            SeekFrom::Start(at) => Some(at),
            SeekFrom::End(by) => self.content.len().checked_add_signed(by),
            SeekFrom::Current(by) => self.at.checked_add_signed(by),
        };
        self.at = at.ok_or(io::ErrorKind::InvalidInput)?;
        Ok(self.at)
    }
}

/// Reads the header of an `.npy` file. The inner error says why it is not one; the outer error is a failed read.
pub fn npy_header(content: &dyn Content) -> Result<std::result::Result<Header, NpyError>> {
    let read = |len: usize| -> Result<Vec<u8>> {
        let len = usize::try_from(content.len()).map_or(len, |most| most.min(len));
        let mut head = vec![0; len];
        content.read_at(0, &mut head)?;
        Ok(head)
    };
    let len = parse::start(&read(parse::PREAMBLE)?).unwrap_or(0);
    let len = usize::try_from(len).unwrap_or(usize::MAX);
    Ok(parse::parse(&read(
        len.clamp(parse::PREAMBLE, parse::LONGEST_HEADER),
    )?))
}

/// Returns the header of an `.npy` file; fails unless the file has exactly the bytes that the header asks for.
pub fn complete_npy_header(content: &dyn Content) -> Result<Header> {
    let header = npy_header(content)??;
    header.check_len(content.len())?;
    Ok(header)
}

/// Bytes in memory.
pub struct InMemory(pub Vec<u8>);

impl Content for InMemory {
    fn len(&self) -> u64 {
        self.0.len() as u64
    }

    fn read_at(&self, offset: u64, buf: &mut [u8]) -> Result<()> {
        copy(&self.0, offset, buf);
        Ok(())
    }

    fn tell_provenance(&self, to: &mut Provenance) -> bool {
        to.add("bytes", &self.0);
        true
    }

    fn is_at_hand(&self) -> bool {
        true
    }
}

/// Bytes of known length that are produced by the first read.
pub struct Lazy<F> {
    len: u64,
    make: F,
    made: OnceLock<Vec<u8>>,
}

impl<F: Fn() -> Result<Vec<u8>> + Send + Sync> Lazy<F> {
    /// Creates a content of `len` bytes, which `make` produces.
    pub fn new(len: u64, make: F) -> Self {
        Self {
            len,
            make,
            made: OnceLock::new(),
        }
    }
}

impl<F: Fn() -> Result<Vec<u8>> + Send + Sync> Content for Lazy<F> {
    fn len(&self) -> u64 {
        self.len
    }

    fn read_at(&self, offset: u64, buf: &mut [u8]) -> Result<()> {
        if self.made.get().is_none() {
            // Two readers may both call `make`; the result is the same.
            let bytes = (self.make)()?;
            let _ = self.made.set(bytes);
        }
        copy(self.made.get().map_or(&[], Vec::as_slice), offset, buf);
        Ok(())
    }
}

/// Fills `buf` with `bytes` from `offset` on, and with zeros after them.
pub fn copy(bytes: &[u8], offset: u64, buf: &mut [u8]) {
    let start = usize::try_from(offset)
        .unwrap_or(usize::MAX)
        .min(bytes.len());
    let n = (bytes.len() - start).min(buf.len());
    buf[..n].copy_from_slice(&bytes[start..start + n]);
    buf[n..].fill(0);
}

/// A part of a content.
pub struct Slice {
    inner: Arc<dyn Content>,
    start: u64,
    len: u64,
}

impl Slice {
    /// Creates the slice of the `len` bytes from `start` on, which must exist.
    pub fn new(inner: Arc<dyn Content>, start: u64, len: u64) -> Self {
        Self { inner, start, len }
    }
}

impl Content for Slice {
    fn len(&self) -> u64 {
        self.len
    }

    fn read_at(&self, offset: u64, buf: &mut [u8]) -> Result<()> {
        self.inner.read_at(self.start.saturating_add(offset), buf)
    }

    fn written(&self, from: u64) -> Result<Option<Range<u64>>> {
        if from >= self.len {
            return Ok(None);
        }
        let found = self.inner.written(self.start.saturating_add(from))?;
        let inside = found.map(|range| {
            let of = |at: u64| at.saturating_sub(self.start).min(self.len);
            of(range.start)..of(range.end)
        });
        Ok(inside.filter(|range| !range.is_empty()))
    }

    fn stored(&self, from: u64) -> Option<Range<u64>> {
        let found = self.inner.stored(self.start.saturating_add(from))?;
        let of = |at: u64| at.saturating_sub(self.start).min(self.len);
        let inside = of(found.start)..of(found.end);
        (!inside.is_empty()).then_some(inside)
    }

    fn repeats(&self, from: u64) -> Option<(u64, u64)> {
        let (end, period) = self.inner.repeats(self.start.saturating_add(from))?;
        let end = end.saturating_sub(self.start).min(self.len);
        Some((end, period))
    }

    fn scratch(&self) -> Option<(&Scratch, u64)> {
        let (scratch, start) = self.inner.scratch()?;
        Some((scratch, start.checked_add(self.start)?))
    }

    fn is_costly(&self) -> bool {
        self.inner.is_costly()
    }

    fn tell_provenance(&self, to: &mut Provenance) -> bool {
        to.numbers("slice", &[self.start, self.len]);
        self.inner.tell_provenance(to)
    }

    fn is_at_hand(&self) -> bool {
        self.inner.is_at_hand()
    }

    fn share(&self, offset: u64, len: usize) -> Result<Option<Data>> {
        self.inner.share(self.start.saturating_add(offset), len)
    }
}

/// The concatenation of contents.
pub struct Concat {
    /// The parts, each with its end offset.
    parts: Vec<(u64, Arc<dyn Content>)>,
    /// Whether each part is an extent.
    are_extents: bool,
}

impl Concat {
    /// Concatenates parts; empty ones are dropped.
    pub fn new(parts: impl IntoIterator<Item = Arc<dyn Content>>) -> Self {
        let mut end = 0_u64;
        let parts = parts
            .into_iter()
            .filter(|part| !part.is_empty())
            .map(|part| {
                end = end.saturating_add(part.len());
                (end, part)
            })
            .collect();
        Self {
            parts,
            are_extents: false,
        }
    }

    /// Concatenates parts that are extents.
    pub fn of_extents(parts: impl IntoIterator<Item = Arc<dyn Content>>) -> Self {
        Self {
            are_extents: true,
            ..Self::new(parts)
        }
    }

    fn part_at(&self, offset: u64) -> usize {
        self.parts.partition_point(|(end, _)| *end <= offset)
    }

    fn start_of(&self, part: usize) -> u64 {
        part.checked_sub(1).map_or(0, |before| self.parts[before].0)
    }
}

impl Content for Concat {
    fn len(&self) -> u64 {
        self.parts.last().map_or(0, |(end, _)| *end)
    }

    fn read_at(&self, offset: u64, buf: &mut [u8]) -> Result<()> {
        let mut at = offset;
        let mut left = buf;
        let mut part = self.part_at(offset);
        while !left.is_empty() && part < self.parts.len() {
            let (end, content) = &self.parts[part];
            let here = usize::try_from(end - at)
                .unwrap_or(usize::MAX)
                .min(left.len());
            let (now, rest) = left.split_at_mut(here);
            content.read_at(at - self.start_of(part), now)?;
            at += here as u64;
            left = rest;
            part += 1;
        }
        Ok(())
    }

    fn read_whole(&self, buf: &mut [u8]) -> Result<()> {
        let mut rest = buf;
        for (part, (end, content)) in self.parts.iter().enumerate() {
            let len = usize::try_from(end - self.start_of(part)).unwrap_or(usize::MAX);
            let (now, later) = rest.split_at_mut(len.min(rest.len()));
            content.read_whole(now)?;
            rest = later;
        }
        Ok(())
    }

    fn stored(&self, from: u64) -> Option<Range<u64>> {
        let first = self.part_at(from);
        self.parts
            .iter()
            .enumerate()
            .skip(first)
            .find_map(|(n, (_, part))| {
                let start = self.start_of(n);
                let found = part.stored(from.saturating_sub(start))?;
                Some(start.saturating_add(found.start)..start.saturating_add(found.end))
            })
    }

    fn repeats(&self, from: u64) -> Option<(u64, u64)> {
        let part = self.part_at(from);
        let start = self.start_of(part);
        let (_, content) = self.parts.get(part)?;
        let (end, period) = content.repeats(from.saturating_sub(start))?;
        Some((start.saturating_add(end), period))
    }

    fn is_costly(&self) -> bool {
        self.parts.iter().any(|(_, part)| part.is_costly())
    }

    fn extent(&self, offset: u64) -> Option<Range<u64>> {
        let part = self.part_at(offset);
        let (end, _) = self.parts.get(part).filter(|_| self.are_extents)?;
        Some(self.start_of(part)..*end)
    }

    fn tell_provenance(&self, to: &mut Provenance) -> bool {
        to.numbers("parts", &[self.parts.len() as u64]);
        let mut parts = self.parts.iter();
        parts.all(|(_, part)| part.tell_provenance(to))
    }

    fn is_at_hand(&self) -> bool {
        self.parts.iter().all(|(_, part)| part.is_at_hand())
    }

    fn share(&self, offset: u64, len: usize) -> Result<Option<Data>> {
        let part = self.part_at(offset);
        match self.parts.get(part) {
            Some((end, content)) if offset.saturating_add(len as u64) <= *end => {
                content.share(offset - self.start_of(part), len)
            }
            _ => Ok(None),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Bytes of which only the middle third is stored.
    struct Holes;

    impl Content for Holes {
        fn len(&self) -> u64 {
            30
        }

        fn read_at(&self, _: u64, buf: &mut [u8]) -> Result<()> {
            buf.fill(0);
            Ok(())
        }

        fn stored(&self, from: u64) -> Option<Range<u64>> {
            (from < 20).then(|| from.max(10)..20)
        }
    }

    #[test]
    fn a_reader_ends_with_the_content() {
        let mut reader = Reader::new(Arc::new(InMemory((0..10).collect())));
        let mut buf = [0; 4];
        assert_eq!(reader.seek(SeekFrom::End(-3)).unwrap(), 7);
        assert_eq!((reader.read(&mut buf).unwrap(), buf), (3, [7, 8, 9, 0]));
        assert_eq!(reader.read(&mut buf).unwrap(), 0);
        assert_eq!(reader.seek(SeekFrom::Current(-9)).unwrap(), 1);
        assert_eq!((reader.read(&mut buf).unwrap(), buf), (4, [1, 2, 3, 4]));
        assert!(reader.seek(SeekFrom::Current(-6)).is_err());
        assert_eq!(reader.position(), 5);
        assert_eq!(reader.seek(SeekFrom::Start(u64::MAX)).unwrap(), u64::MAX);
        assert_eq!(reader.read(&mut buf).unwrap(), 0);
    }

    #[test]
    fn what_is_stored_is_found_in_parts_and_slices() {
        let holes = || Arc::new(Holes) as Arc<dyn Content>;
        let head = || Arc::new(InMemory(vec![1; 5])) as Arc<dyn Content>;
        let all = Concat::new([head(), holes(), holes()]);
        let found = |content: &dyn Content| {
            let mut ranges = Vec::new();
            while let Some(range) = content.stored(ranges.last().map_or(0, |r: &Range<u64>| r.end))
            {
                ranges.push(range);
            }
            ranges
        };
        assert_eq!(found(&all), [0..5, 15..25, 45..55]);
        let inside = found(&Slice::new(holes(), 12, 5));
        assert_eq!((inside.len(), inside[0].clone()), (1, 0..5));
        assert_eq!(found(&Slice::new(holes(), 21, 5)), []);
    }

    #[test]
    fn parts_read_as_one() {
        let in_memory =
            |text: &str| Arc::new(InMemory(text.as_bytes().to_vec())) as Arc<dyn Content>;
        let lazy = Arc::new(Lazy::new(3, || Ok(b"def".to_vec())));
        let all = Concat::new([in_memory("abc"), in_memory(""), lazy, in_memory("g")]);
        assert_eq!(all.len(), 7);
        let mut whole = [0; 7];
        all.read_whole(&mut whole).unwrap();
        assert_eq!(&whole, b"abcdefg");
        for start in 0..=7_usize {
            for len in 0..9_usize {
                let want = &b"abcdefg"[start..(start + len).min(7)];
                let got = read(&all, start as u64, len, &Arc::default()).unwrap();
                assert_eq!(got.as_ref(), want, "{start}+{len}");
            }
        }
    }
}
