//! The layout message of a dataset, which has the address of the index of the chunks (format specification, IV.A.2.i).

use std::collections::VecDeque;

use super::super::cursor::{Cursor, NOWHERE};
use super::super::header::{Messages, messages_of, next};
use super::super::{Pages, Sizes};

/// The largest number of parts of a header, and the size in bytes of the largest part.
const MOST_PARTS: usize = 64;
const LARGEST_PART: u64 = 1 << 20;

/// The number of bytes of a header that are read at first.
const GUESS: u64 = 512;

/// The kind of an index.
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
pub(super) struct Layout {
    /// The version of the message.
    pub version: u8,
    pub kind: IndexKind,
    /// The number of dimensions of a chunk. The last one is the size of an element.
    pub dimensions: usize,
    /// The address of the index.
    pub addr: u64,
}

/// Returns the layout of the dataset whose header is at an address; `None` if there is no index, or one of an unknown
/// kind.
pub(super) fn layout<P: Pages>(
    pages: &mut P,
    sizes: &Sizes,
    size: u64,
    dataset: u64,
) -> Result<Option<Layout>, P::Error> {
    let mut read = |addr: u64, len: u64| -> Result<Vec<u8>, P::Error> {
        let start = addr.saturating_add(sizes.base).min(size);
        let range = start..start.saturating_add(len.min(LARGEST_PART)).min(size);
        pages.fetch(std::slice::from_ref(&range))?;
        pages.bytes(range)
    };
    let mut bytes = read(dataset, GUESS)?;
    if let Some(Messages::Larger(whole)) = messages_of(&mut Cursor::new(&bytes, sizes)) {
        bytes = read(dataset, whole)?;
    }
    let Some(Messages::Here(prefix, first)) = messages_of(&mut Cursor::new(&bytes, sizes)) else {
        return Ok(None);
    };
    let mut parts = VecDeque::new();
    let mut part = first.to_vec();
    for _ in 0..MOST_PARTS {
        let mut at = Cursor::new(&part, sizes);
        while let Some((kind, body)) = next(&mut at, prefix.version, prefix.flags) {
            let mut body = Cursor::new(body, sizes);
            match kind {
                0x08 => return Ok(parse(&mut body).filter(|layout| layout.addr != NOWHERE)),
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

fn parse(at: &mut Cursor<'_>) -> Option<Layout> {
    const CHUNKED: u64 = 2;
    let version = at.number(1)? as u8;
    match version {
        3 => {
            let class = at.number(1)?;
            let dimensions = at.number(1)? as usize;
            let (kind, addr) = (IndexKind::Tree1, at.offset()?);
            (class == CHUNKED).then_some(Layout {
                version,
                kind,
                dimensions,
                addr,
            })
        }
        4 | 5 => {
            if at.number(1)? != CHUNKED {
                return None;
            }
            at.skip(1)?;
            let dimensions = at.number(1)? as usize;
            let width = at.number(1)? as usize;
            at.skip(dimensions * width)?;
            let (kind, parameters) = match at.number(1)? {
                2 => (IndexKind::Implicit, 0),
                3 => (IndexKind::Fixed, 1),
                4 => (IndexKind::Extensible, 5),
                5 => (IndexKind::Tree2, 6),
                _ => return None,
            };
            at.skip(parameters)?;
            let addr = at.offset()?;
            Some(Layout {
                version,
                kind,
                dimensions,
                addr,
            })
        }
        _ => None,
    }
}
