//! Object headers, and the messages in them that refer to something (format specification, IV.A).

use super::cursor::{Cursor, NOWHERE};
use super::{Found, Kind};

/// Bytes of the largest header.
const LARGEST: u64 = 1 << 20;

/// Elements of an attribute whose text is looked for.
const MOST_TEXTS: usize = 4096;

/// An object header of either version.
pub(super) fn parse(at: &mut Cursor<'_>) -> Option<Found> {
    let start = at.take(1)?;
    if start == b"O" {
        return second(at);
    }
    if start != [1] {
        return None;
    }
    at.skip(1 + 2 + 4)?;
    let len = at.number(4)?;
    // To where messages are aligned.
    at.skip(4)?;
    messages_within(at, len, 1, 0)
}

/// A header of version 2, behind the first byte of its signature.
fn second(at: &mut Cursor<'_>) -> Option<Found> {
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
    // And a checksum.
    messages_within(at, len, 2, flags)
}

fn messages_within(at: &mut Cursor<'_>, len: u64, version: u8, flags: u8) -> Option<Found> {
    let whole = (at.done() as u64).checked_add(len)?;
    if len > LARGEST {
        return None;
    }
    if (at.left() as u64) < len {
        return Some(Found::Larger(whole));
    }
    let bytes = at.take(usize::try_from(len).ok()?)?;
    let mut inner = Cursor::new(bytes, at.sizes);
    Some(Found::Refers(messages(&mut inner, version, flags)))
}

/// A continuation of a header.
pub(super) fn part(at: &mut Cursor<'_>, version: u8, flags: u8) -> Option<Found> {
    if version == 2 {
        at.signature(b"OCHK")?;
    }
    Some(Found::Refers(messages(at, version, flags)))
}

/// What messages refer to, up to the first that is none.
fn messages(at: &mut Cursor<'_>, version: u8, flags: u8) -> Vec<(u64, Kind)> {
    let mut found = Vec::new();
    while message(at, version, flags, &mut found).is_some() {}
    found
}

fn message(
    at: &mut Cursor<'_>,
    version: u8,
    flags: u8,
    found: &mut Vec<(u64, Kind)>,
) -> Option<()> {
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
    let bytes = at.take(usize::try_from(len).ok()?)?;
    let mut body = Cursor::new(bytes, at.sizes);
    // One that is not understood refers to nothing.
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

/// Links or attributes in a fractal heap, with an index by name, and maybe one by the order of creation.
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

/// A link message, or a link in a fractal heap.
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
        // Soft, external, or a user's.
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

/// The layout of a dataset: the index of its chunks.
fn layout(at: &mut Cursor<'_>, found: &mut Vec<(u64, Kind)>) -> Option<()> {
    match at.number(1)? {
        1 | 2 => {
            let dimensions = at.number(1)? as u8;
            if at.number(1)? == 2 {
                at.skip(5)?;
                found.push((at.offset()?, Kind::ChunkTree { dimensions }));
            }
        }
        3 if at.number(1)? == 2 => {
            let dimensions = at.number(1)? as u8;
            found.push((at.offset()?, Kind::ChunkTree { dimensions }));
        }
        4 | 5 => {
            if at.number(1)? != 2 {
                return Some(());
            }
            let flags = at.number(1)?;
            let dimensions = at.number(1)?;
            let width = at.number(1)?;
            at.skip(usize::try_from(dimensions * width).ok()?)?;
            match at.number(1)? {
                1 if flags & 2 != 0 => {}
                3 => {
                    at.skip(1)?;
                    found.push((at.offset()?, Kind::FixedArray));
                }
                4 => {
                    at.skip(5)?;
                    found.push((at.offset()?, Kind::ExtensibleArray));
                }
                5 => {
                    at.skip(6)?;
                    found.push((at.offset()?, Kind::Tree2));
                }
                _ => {}
            }
        }
        _ => {}
    }
    Some(())
}

/// An attribute: text of variable length lies in the global heap.
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
    // Of variable length, or references, which lead to headers that the links lead to as well.
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
