//! Object headers, and their messages with references (format specification, IV.A).

use std::collections::VecDeque;

use super::cursor::{Cursor, NOWHERE};
use super::{Kind, Pages, ParseOutcome, Sizes};

/// The size in bytes of the largest header, and of its largest part.
const LARGEST: u64 = 1 << 20;

/// The largest number of parts of a header that are searched for a layout.
const MOST_PARTS: usize = 64;

/// The largest number of elements of an attribute whose texts are fetched.
const MOST_TEXTS: usize = 4096;

/// The prefix of an object header: what its messages need to be read.
struct Prefix {
    /// The bytes of messages that follow.
    len: u64,
    version: u8,
    flags: u8,
}

/// The kind of an index of chunks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum IndexKind {
    Tree1,
    Implicit,
    Fixed,
    Extensible,
    Tree2,
}

/// The layout message of a chunked dataset.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct ChunkLayout {
    /// The version of the message.
    pub(super) version: u8,
    pub(super) kind: IndexKind,
    /// The number of dimensions of a chunk. The last one is the size of an element.
    pub(super) dimensions: u8,
    /// The address of the index.
    pub(super) addr: u64,
}

impl ChunkLayout {
    /// Parses a layout message (format specification, IV.A.2.i); `None` unless the chunks have an index of a known
    /// kind.
    fn parse(at: &mut Cursor<'_>) -> Option<Self> {
        const CHUNKED: u64 = 2;
        let version = at.number(1)? as u8;
        let (kind, dimensions) = match version {
            1 | 2 => {
                let dimensions = at.number(1)? as u8;
                (at.number(1)? == CHUNKED).then_some(())?;
                at.skip(5)?;
                (IndexKind::Tree1, dimensions)
            }
            3 => {
                (at.number(1)? == CHUNKED).then_some(())?;
                (IndexKind::Tree1, at.number(1)? as u8)
            }
            4 | 5 => {
                (at.number(1)? == CHUNKED).then_some(())?;
                at.skip(1)?;
                let (dimensions, width) = (at.number(1)?, at.number(1)?);
                at.skip(usize::try_from(dimensions * width).ok()?)?;
                let (kind, parameters) = match at.number(1)? {
                    2 => (IndexKind::Implicit, 0),
                    3 => (IndexKind::Fixed, 1),
                    4 => (IndexKind::Extensible, 5),
                    5 => (IndexKind::Tree2, 6),
                    _ => return None,
                };
                at.skip(parameters)?;
                (kind, dimensions as u8)
            }
            _ => return None,
        };
        Some(Self {
            version,
            kind,
            dimensions,
            addr: at.offset()?,
        })
    }

    /// Reads the layout of the dataset whose header is at an address; `None` if there is no index, or one of an unknown
    /// kind.
    pub(super) fn read<P: Pages>(
        pages: &mut P,
        sizes: &Sizes,
        size: u64,
        dataset: u64,
    ) -> Result<Option<Self>, P::Error> {
        let mut read = |addr: u64, len: u64| -> Result<Vec<u8>, P::Error> {
            let start = addr.saturating_add(sizes.base).min(size);
            let range = start..start.saturating_add(len.min(LARGEST)).min(size);
            pages.fetch(std::slice::from_ref(&range))?;
            pages.bytes(range)
        };
        let mut bytes = read(dataset, Kind::Header.guess(sizes))?;
        if let Some(Messages::Larger(whole)) = messages_of(&mut Cursor::new(&bytes, sizes)) {
            bytes = read(dataset, whole)?;
        }
        let Some(Messages::Here(prefix, first)) = messages_of(&mut Cursor::new(&bytes, sizes))
        else {
            return Ok(None);
        };
        let mut parts = VecDeque::new();
        let mut part = first.to_vec();
        for _ in 0..MOST_PARTS {
            let mut at = Cursor::new(&part, sizes);
            while let Some((kind, body)) = next(&mut at, prefix.version, prefix.flags) {
                let mut body = Cursor::new(body, sizes);
                match kind {
                    0x08 => {
                        return Ok(Self::parse(&mut body).filter(|layout| layout.addr != NOWHERE));
                    }
                    0x10 => parts.extend(body.offset().zip(body.length())),
                    _ => {}
                }
            }
            let Some((addr, len)) = parts.pop_front() else {
                break;
            };
            part = read(addr, len)?;
            if prefix.version == 2 {
                // A signature comes first, and a checksum last.
                let inner = part.strip_prefix(b"OCHK").unwrap_or_default();
                part = inner[..inner.len().saturating_sub(4)].to_vec();
            }
        }
        Ok(None)
    }
}

/// Parses the prefix of an object header of either version.
fn prefix(at: &mut Cursor<'_>) -> Option<Prefix> {
    let start = at.take(1)?;
    if start == b"O" {
        return second(at);
    }
    if start != [1] {
        return None;
    }
    at.skip(1 + 2 + 4)?;
    let len = at.number(4)?;
    // Messages are aligned.
    at.skip(4)?;
    let (version, flags) = (1, 0);
    Some(Prefix {
        len,
        version,
        flags,
    })
}

/// Parses the prefix of a header of version 2, after the first byte of its signature.
fn second(at: &mut Cursor<'_>) -> Option<Prefix> {
    if at.take(3)? != b"HDR" || at.number(1)? != 2 {
        return None;
    }
    let flags = at.number(1)? as u8;
    if flags & 0x20 != 0 {
        at.skip(16)?;
    }
    if flags & 0x10 != 0 {
        at.skip(4)?;
    }
    let len = at.number(1 << (flags & 3))?;
    Some(Prefix {
        len,
        version: 2,
        flags,
    })
}

/// The messages of an object header.
enum Messages<'a> {
    /// All bytes of the first part, without the checksum that may follow.
    Here(Prefix, &'a [u8]),
    /// The header has this many bytes.
    Larger(u64),
}

/// Returns the messages of an object header, as far as they follow its prefix.
fn messages_of<'a>(at: &mut Cursor<'a>) -> Option<Messages<'a>> {
    let prefix = prefix(at)?;
    let whole = (at.done() as u64).checked_add(prefix.len)?;
    if prefix.len > LARGEST {
        return None;
    }
    if (at.left() as u64) < prefix.len {
        return Some(Messages::Larger(whole));
    }
    let bytes = at.take(usize::try_from(prefix.len).ok()?)?;
    Some(Messages::Here(prefix, bytes))
}

/// Parses an object header of either version.
pub(super) fn parse(at: &mut Cursor<'_>) -> Option<ParseOutcome> {
    Some(match messages_of(at)? {
        Messages::Larger(whole) => ParseOutcome::Larger(whole),
        Messages::Here(prefix, bytes) => {
            let mut inner = Cursor::new(bytes, at.sizes);
            ParseOutcome::Refers(messages(&mut inner, prefix.version, prefix.flags))
        }
    })
}

/// Parses a continuation of a header.
pub(super) fn part(at: &mut Cursor<'_>, version: u8, flags: u8) -> Option<ParseOutcome> {
    if version == 2 {
        at.signature(b"OCHK")?;
    }
    Some(ParseOutcome::Refers(messages(at, version, flags)))
}

/// Returns the references of messages, up to the first invalid message.
fn messages(at: &mut Cursor<'_>, version: u8, flags: u8) -> Vec<(u64, Kind)> {
    let mut found = Vec::new();
    while message(at, version, flags, &mut found).is_some() {}
    found
}

/// Returns the kind and the body of the next message.
fn next<'a>(at: &mut Cursor<'a>, version: u8, flags: u8) -> Option<(u64, &'a [u8])> {
    let (kind, len) = match version {
        1 => {
            let kind = at.number(2)?;
            let len = at.number(2)?;
            at.skip(4)?;
            (kind, len)
        }
        _ => {
            let kind = at.number(1)?;
            let len = at.number(2)?;
            at.skip(1)?;
            if flags & 0x04 != 0 {
                at.skip(2)?;
            }
            (kind, len)
        }
    };
    Some((kind, at.take(usize::try_from(len).ok()?)?))
}

fn message(
    at: &mut Cursor<'_>,
    version: u8,
    flags: u8,
    found: &mut Vec<(u64, Kind)>,
) -> Option<()> {
    let (kind, bytes) = next(at, version, flags)?;
    let mut body = Cursor::new(bytes, at.sizes);
    // A message that cannot be parsed refers to nothing.
    let _ = match kind {
        0x02 => link_info(&mut body, found),
        0x06 => link(&mut body, found),
        0x08 => layout(&mut body, found),
        0x0c => attribute(&mut body, found),
        0x10 => continuation(&mut body, version, flags, found),
        0x11 => symbol_table(&mut body, found),
        0x15 => attribute_info(&mut body, found),
        _ => None,
    };
    Some(())
}

fn continuation(
    at: &mut Cursor<'_>,
    version: u8,
    flags: u8,
    found: &mut Vec<(u64, Kind)>,
) -> Option<()> {
    let addr = at.offset()?;
    let len = at.length().filter(|&len| len <= LARGEST)?;
    found.push((
        addr,
        Kind::HeaderPart {
            version,
            len,
            flags,
        },
    ));
    Some(())
}

fn symbol_table(at: &mut Cursor<'_>, found: &mut Vec<(u64, Kind)>) -> Option<()> {
    found.push((at.offset()?, Kind::GroupTree));
    found.push((at.offset()?, Kind::LocalHeap));
    Some(())
}

fn link_info(at: &mut Cursor<'_>, found: &mut Vec<(u64, Kind)>) -> Option<()> {
    at.skip(1)?;
    let flags = at.number(1)?;
    if flags & 1 != 0 {
        at.skip(8)?;
    }
    dense(at, flags & 2 != 0, found)
}

fn attribute_info(at: &mut Cursor<'_>, found: &mut Vec<(u64, Kind)>) -> Option<()> {
    at.skip(1)?;
    let flags = at.number(1)?;
    if flags & 1 != 0 {
        at.skip(2)?;
    }
    dense(at, flags & 2 != 0, found)
}

/// Adds the fractal heap of links or attributes, its index by name, and possibly one by the order of creation.
fn dense(at: &mut Cursor<'_>, by_order: bool, found: &mut Vec<(u64, Kind)>) -> Option<()> {
    let heap = at.offset()?;
    if heap != NOWHERE {
        found.push((heap, Kind::FractalHeap));
        found.push((at.offset()?, Kind::Tree2));
        if by_order {
            found.push((at.offset()?, Kind::Tree2));
        }
    }
    Some(())
}

/// Parses a link message, or a link in a fractal heap.
pub(super) fn link(at: &mut Cursor<'_>, found: &mut Vec<(u64, Kind)>) -> Option<()> {
    if at.number(1)? != 1 {
        return None;
    }
    let flags = at.number(1)?;
    let kind = match flags & 8 {
        0 => 0,
        _ => at.number(1)?,
    };
    if flags & 4 != 0 {
        at.skip(8)?;
    }
    if flags & 16 != 0 {
        at.skip(1)?;
    }
    let name = at.number(1 << (flags & 3))?;
    at.skip(usize::try_from(name).ok()?)?;
    if kind == 0 {
        found.push((at.offset()?, Kind::Header));
    }
    Some(())
}

/// Returns true if bytes have the form of a link message: known flags, and a name without zeros.
pub(super) fn has_form(bytes: &[u8]) -> bool {
    let Some(&flags) = bytes.get(1) else {
        return false;
    };
    let mut at = 2;
    if flags & 8 != 0 {
        // The link is soft, external, or user-defined.
        if !matches!(bytes.get(at), Some(0 | 1 | 64..)) {
            return false;
        }
        at += 1;
    }
    at += if flags & 4 != 0 { 8 } else { 0 };
    at += usize::from(flags & 16 != 0);
    let width = 1_usize << (flags & 3);
    let len = bytes.get(at..at + width).map(|len| {
        let len = len.iter().rev();
        len.fold(0_u64, |n, &byte| n << 8 | u64::from(byte))
    });
    let len = len.and_then(|len| usize::try_from(len).ok());
    let name = len.and_then(|len| bytes.get(at + width..(at + width).checked_add(len)?));
    flags & 0xe0 == 0 && name.is_some_and(|name| !name.is_empty() && !name.contains(&0))
}

/// Parses the layout of a dataset, which refers to the index of its chunks.
fn layout(at: &mut Cursor<'_>, found: &mut Vec<(u64, Kind)>) -> Option<()> {
    let layout = ChunkLayout::parse(at)?;
    let kind = match layout.kind {
        IndexKind::Tree1 => Kind::ChunkTree {
            dimensions: layout.dimensions,
        },
        IndexKind::Implicit => return Some(()),
        IndexKind::Fixed => Kind::FixedArray,
        IndexKind::Extensible => Kind::ExtensibleArray,
        IndexKind::Tree2 => Kind::Tree2,
    };
    found.push((layout.addr, kind));
    Some(())
}

/// Parses an attribute: text of variable length lies in the global heap.
pub(super) fn attribute(at: &mut Cursor<'_>, found: &mut Vec<(u64, Kind)>) -> Option<()> {
    let version = at.number(1)?;
    at.skip(1)?;
    let name = at.number(2)?;
    let kind = at.number(2)?;
    let space = at.number(2)?;
    if version == 3 {
        at.skip(1)?;
    }
    let padded = |len: u64| usize::try_from(if version == 1 { (len + 7) & !7 } else { len }).ok();
    at.skip(padded(name)?)?;
    let kind = at.take(padded(kind)?)?;
    at.skip(padded(space)?)?;
    // Other types have no text of variable length; references lead to headers that links lead to as well.
    if kind.first().is_none_or(|class| class & 15 != 9) {
        return Some(());
    }
    for _ in 0..MOST_TEXTS {
        at.skip(4)?;
        let addr = at.offset()?;
        at.skip(4)?;
        if addr != 0 {
            found.push((addr, Kind::GlobalHeap));
        }
    }
    Some(())
}
