//! Text of a fixed width, as texts of their own lengths.
//!
//! Arrow has two forms for it. Where each text has a slot of its full width in the data (`Utf8View`), nothing needs to
//! be known ahead. Where texts follow each other without gaps (`LargeUtf8`), they are measured once: the cumulative
//! lengths up to the end of each block of texts.

use std::ops::Range;
use std::sync::Arc;

use parking_lot::Mutex;

use super::elements::Elements;
use crate::store::encode::ucs4;
use npyfs_base::error::{Error, Result};
use npyfs_base::npy::dtype::{DType, Kind, Order};
use npyfs_io::content::Content;
use npyfs_io::rows::in_rows;

/// Texts between two measured lengths.
const STEP: u64 = 4096;

/// The longest text that lies in the view itself.
const INLINE: usize = 12;

/// The encoding of an element.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Encoding {
    /// Bytes, with NUL behind the text.
    Bytes,
    /// Characters of four bytes, with NUL behind the text.
    Ucs4(Order),
}

impl Encoding {
    /// Returns the encoding of a type of text; `None` for other types.
    pub(super) fn for_dtype(dtype: &DType) -> Option<Self> {
        match dtype {
            DType::Scalar {
                kind: Kind::Bytes, ..
            } => Some(Self::Bytes),
            DType::Scalar {
                kind: Kind::Text,
                order,
                ..
            } => Some(Self::Ucs4(*order)),
            _ => None,
        }
    }

    /// Appends the text of an element: the bytes as they are, or characters as UTF-8. What is no character becomes
    /// U+FFFD.
    fn decode(self, element: &[u8], out: &mut Vec<u8>) {
        match self {
            Self::Bytes => out.extend_from_slice(trimmed(element)),
            Self::Ucs4(order) => {
                for code in ucs4::characters(element, order) {
                    let letter = char::from_u32(code).unwrap_or(char::REPLACEMENT_CHARACTER);
                    out.extend_from_slice(letter.encode_utf8(&mut [0; 4]).as_bytes());
                }
            }
        }
    }

    /// Returns whether an element holds this text.
    pub(super) fn is(self, element: &[u8], text: &[u8]) -> bool {
        match self {
            Self::Bytes => trimmed(element) == text,
            Self::Ucs4(_) => {
                let mut own = Vec::new();
                self.decode(element, &mut own);
                own == text
            }
        }
    }

    /// Makes the text of an element that is valid UTF-8 and takes no more bytes than the element.
    fn fit(self, element: &[u8], out: &mut Vec<u8>) {
        out.clear();
        self.decode(element, out);
        if self != Self::Bytes || out.is_ascii() {
            return;
        }
        let bytes = std::mem::take(out);
        for chunk in bytes.utf8_chunks() {
            out.extend_from_slice(chunk.valid().as_bytes());
            out.resize(out.len() + chunk.invalid().len(), b'?');
        }
    }
}

fn trimmed(element: &[u8]) -> &[u8] {
    let end = element.iter().rposition(|&byte| byte != 0);
    &element[..end.map_or(0, |last| last + 1)]
}

/// Texts that have slots of their full width.
#[derive(Clone)]
pub(super) struct Slots {
    pub(super) elements: Elements,
    pub(super) encoding: Encoding,
}

impl Slots {
    /// Returns the number of slots in a buffer of data: positions in it have 31 bits.
    fn in_buffer(&self) -> u64 {
        (i32::MAX as u64 / self.elements.size() as u64).max(1)
    }

    /// Returns whether no text can be longer than what lies in the view itself.
    fn are_inline(&self) -> bool {
        self.elements.size() <= INLINE
    }

    /// Returns the views of a range of texts: the length, and the text or where it is.
    pub(super) fn views(&self, range: Range<u64>) -> Arc<dyn Content> {
        let (encoding, size, in_buffer) = (self.encoding, self.elements.size(), self.in_buffer());
        self.elements.made(range, 1, 16, move |first, from, to| {
            let mut text = Vec::new();
            let elements = from.chunks_exact(size).zip(first..);
            for (view, (element, number)) in to.as_chunks_mut::<16>().0.iter_mut().zip(elements) {
                encoding.fit(element, &mut text);
                *view = [0; 16];
                view[..4].copy_from_slice(&(text.len() as u32).to_le_bytes());
                if text.len() <= INLINE {
                    view[4..4 + text.len()].copy_from_slice(&text);
                } else {
                    // Buffers are few, and a place in one has 31 bits.
                    let buffer = (number / in_buffer) as u32;
                    let place = (number % in_buffer) as u32 * size as u32;
                    view[4..8].copy_from_slice(&text[..4]);
                    view[8..12].copy_from_slice(&buffer.to_le_bytes());
                    view[12..].copy_from_slice(&place.to_le_bytes());
                }
            }
        })
    }

    /// Returns the buffers of data that the views of a range lead to.
    pub(super) fn data(&self, range: Range<u64>) -> Vec<Arc<dyn Content>> {
        let mut buffers = Vec::new();
        let mut at = range.start;
        while at < range.end && !self.are_inline() {
            let end = at.saturating_add(self.in_buffer()).min(range.end);
            let (encoding, size) = (self.encoding, self.elements.size());
            buffers.push(self.elements.made(at..end, 1, size, move |_, from, to| {
                let mut text = Vec::new();
                for (from, to) in from.chunks_exact(size).zip(to.chunks_exact_mut(size)) {
                    encoding.fit(from, &mut text);
                    to.fill(0);
                    to[..text.len()].copy_from_slice(&text);
                }
            }));
            at = end;
        }
        buffers
    }
}

/// The lengths of texts in one part of a column.
#[derive(Clone, Debug, Default)]
pub(super) struct Lengths {
    /// Cumulative bytes up to the end of each block of texts.
    ends: Vec<u64>,
}

impl Lengths {
    /// Returns the number of lengths that are kept.
    pub(super) fn count(&self) -> u64 {
        self.ends.len() as u64
    }
}

/// Texts without gaps between them.
#[derive(Clone)]
pub(super) struct Texts {
    pub(super) elements: Elements,
    pub(super) encoding: Encoding,
}

impl Texts {
    /// Measures a range of texts. Also returns whether all of them are UTF-8.
    pub(super) fn measure(&self, range: Range<u64>) -> Result<(Lengths, bool)> {
        let (mut ends, mut end, mut is_utf8) = (Vec::new(), 0_u64, true);
        let mut text = Vec::new();
        let first = range.start;
        self.elements.scan(range, |at, bytes| {
            for (element, number) in bytes.chunks_exact(self.elements.size()).zip(at - first..) {
                text.clear();
                self.encoding.decode(element, &mut text);
                is_utf8 = is_utf8 && std::str::from_utf8(&text).is_ok();
                end = end.saturating_add(text.len() as u64);
                match number % STEP {
                    0 => ends.push(end),
                    _ => ends.last_mut().into_iter().for_each(|last| *last = end),
                }
            }
            Ok::<_, Error>(())
        })?;
        Ok((Lengths { ends }, is_utf8))
    }

    /// Returns the offsets and the bytes of a range of texts that was measured.
    pub(super) fn contents(&self, range: Range<u64>, lengths: &Lengths) -> [Arc<dyn Content>; 2] {
        let run = Arc::new(Run {
            of: self.clone(),
            range,
            lengths: lengths.clone(),
            last: Mutex::default(),
        });
        [Arc::new(Offsets(run.clone())), Arc::new(Bytes(run))]
    }
}

/// A decoded block: the offset of the end of each text in the run, and the bytes.
struct Block {
    ends: Vec<u64>,
    bytes: Vec<u8>,
}

/// A range of texts.
struct Run {
    of: Texts,
    range: Range<u64>,
    lengths: Lengths,
    /// The last block that was decoded, for sequential readers.
    last: Mutex<Option<(usize, Arc<Block>)>>,
}

impl Run {
    fn start_of(&self, block: usize) -> u64 {
        let before = block
            .checked_sub(1)
            .and_then(|at| self.lengths.ends.get(at));
        before.copied().unwrap_or(0)
    }

    fn len(&self) -> u64 {
        self.lengths.ends.last().copied().unwrap_or(0)
    }

    fn block(&self, number: usize) -> Result<Arc<Block>> {
        if let Some((known, block)) = &*self.last.lock()
            && *known == number
        {
            return Ok(block.clone());
        }
        let first = self
            .range
            .start
            .saturating_add((number as u64).saturating_mul(STEP));
        let end = first.saturating_add(STEP).min(self.range.end);
        let (start, mut ends, mut bytes) = (self.start_of(number), Vec::new(), Vec::new());
        let elements = &self.of.elements;
        elements.scan(first..end, |_, window| {
            for element in window.chunks_exact(elements.size()) {
                self.of.encoding.decode(element, &mut bytes);
                ends.push(start.saturating_add(bytes.len() as u64));
            }
            Ok::<_, Error>(())
        })?;
        let wanted = self.lengths.ends.get(number).copied().unwrap_or(start);
        if start.saturating_add(bytes.len() as u64) != wanted {
            return Err(Error::damaged(
                "text is not what it was when it was measured",
            ));
        }
        let block = Arc::new(Block { ends, bytes });
        *self.last.lock() = Some((number, block.clone()));
        Ok(block)
    }
}

/// The offsets of texts: one more than there are texts.
struct Offsets(Arc<Run>);

impl Content for Offsets {
    fn len(&self) -> u64 {
        let count = self.0.range.end.saturating_sub(self.0.range.start);
        count.saturating_add(1).saturating_mul(8)
    }

    fn read_at(&self, offset: u64, buf: &mut [u8]) -> Result<()> {
        in_rows(8, offset, buf, |first, out| {
            for (offset, number) in out.as_chunks_mut::<8>().0.iter_mut().zip(first..) {
                // The offset of a text is the end of the one before.
                let end = match number.checked_sub(1) {
                    None => 0,
                    Some(before) => {
                        let block = self.0.block((before / STEP) as usize)?;
                        let end = block.ends.get((before % STEP) as usize);
                        *end.ok_or_else(|| Error::damaged("behind the last text"))?
                    }
                };
                *offset = end.to_le_bytes();
            }
            Ok(())
        })
    }

    fn is_costly(&self) -> bool {
        true
    }
}

/// The bytes of texts.
struct Bytes(Arc<Run>);

impl Content for Bytes {
    fn len(&self) -> u64 {
        self.0.len()
    }

    fn read_at(&self, offset: u64, buf: &mut [u8]) -> Result<()> {
        let run = &self.0;
        let mut number = run.lengths.ends.partition_point(|&end| end <= offset);
        let mut at = offset;
        let mut left = buf;
        while !left.is_empty() {
            let block = run.block(number)?;
            let inside = usize::try_from(at.saturating_sub(run.start_of(number)));
            let part = block.bytes.get(inside.unwrap_or(usize::MAX)..);
            let part = part.unwrap_or_default();
            let len = part.len().min(left.len());
            let (now, later) = left.split_at_mut(len);
            now.copy_from_slice(&part[..len]);
            at += len as u64;
            left = later;
            number += 1;
            if number > run.lengths.ends.len() {
                return Err(Error::damaged("behind the last text"));
            }
        }
        Ok(())
    }

    fn is_costly(&self) -> bool {
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use npyfs_io::content::{InMemory, read};

    fn all(content: &dyn Content) -> Vec<u8> {
        let len = content.len() as usize;
        read(content, 0, len, &Arc::default())
            .unwrap()
            .as_ref()
            .to_vec()
    }

    fn elements(width: usize, texts: &[&[u8]]) -> Elements {
        let mut bytes = Vec::new();
        for text in texts {
            bytes.extend_from_slice(text);
            bytes.resize(bytes.len() + width - text.len(), 0);
        }
        Elements::new(Arc::new(InMemory(bytes)), width, vec![0], width).unwrap()
    }

    #[test]
    fn texts_follow_each_other_at_every_offset() {
        let numbers: Vec<String> = (0..10_000).map(|n| "x".repeat(n % 7)).collect();
        let texts: Vec<&[u8]> = numbers.iter().map(|text| text.as_bytes()).collect();
        let texts = Texts {
            elements: elements(7, &texts),
            encoding: Encoding::Bytes,
        };
        let (lengths, is_utf8) = texts.measure(5..9_999).unwrap();
        let want = numbers[5..9_999].concat().into_bytes();
        let [offsets, bytes] = texts.contents(5..9_999, &lengths);
        assert!(is_utf8 && lengths.ends.len() == 3);
        assert_eq!(all(&*bytes), want);
        for start in (0..want.len()).step_by(731) {
            let got = read(&*bytes, start as u64, 9000, &Arc::default()).unwrap();
            assert_eq!(got.as_ref(), &want[start..(start + 9000).min(want.len())]);
        }
        let mut ends = vec![0_u64];
        ends.extend(numbers[5..9_999].iter().scan(0, |end, text| {
            *end += text.len() as u64;
            Some(*end)
        }));
        let offsets = all(&*offsets);
        let offsets = offsets.as_chunks::<8>().0.iter();
        assert_eq!(
            offsets.map(|o| u64::from_le_bytes(*o)).collect::<Vec<_>>(),
            ends
        );
        let (none, _) = texts.measure(3..3).unwrap();
        let [offsets, bytes] = texts.contents(3..3, &none);
        assert_eq!(
            (all(&*offsets), all(&*bytes)),
            (vec![0; 8], Vec::<u8>::new())
        );
    }

    #[test]
    fn views_hold_short_texts_and_lead_to_long_ones() {
        let long = "a text of seventeen".as_bytes();
        let slots = Slots {
            elements: elements(20, &[b"ab", long, b"\xff\xe9t\xc3\xa9, what is this?"]),
            encoding: Encoding::Bytes,
        };
        let views = all(&*slots.views(0..3));
        assert_eq!(&views[..16], b"\x02\0\0\0ab\0\0\0\0\0\0\0\0\0\0");
        assert_eq!(&views[16..32], b"\x13\0\0\0a te\0\0\0\0\x14\0\0\0");
        let data = slots.data(0..3);
        assert_eq!(data.len(), 1);
        let data = all(&*data[0]);
        assert_eq!(&data[20..39], long);
        // What is not UTF-8 takes as many bytes.
        assert_eq!(
            std::str::from_utf8(&data[40..]).unwrap(),
            "??té, what is this?"
        );
        let short = Slots {
            elements: elements(12, &[b"ab"]),
            encoding: Encoding::Bytes,
        };
        assert!(short.data(0..1).is_empty());
    }

    #[test]
    fn characters_become_utf8() {
        let mut out = Vec::new();
        let wide = |codes: &[u32]| -> Vec<u8> {
            codes.iter().flat_map(|code| code.to_be_bytes()).collect()
        };
        let encoding = Encoding::Ucs4(Order::Big);
        encoding.decode(&wide(&[0x41, 0, 0x1f600, 0xd800, 0, 0]), &mut out);
        assert_eq!(std::str::from_utf8(&out).unwrap(), "A\0\u{1f600}\u{fffd}");
    }
}
