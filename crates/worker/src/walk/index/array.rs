//! The blocks and pages of fixed and extensible arrays of chunks.

use std::ops::Range;

use super::super::NOWHERE;
use super::super::cursor::Cursor;
use super::{Below, Form, Index, Kind, Known, MOST_BESIDE, MOST_KNOWN, Node, NodeFault, Parsed};
use super::{check_sum, cut, damaged};

/// A block or a page of an array, or the prefix of a block with pages: a checksum is its end.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Part {
    pub addr: u64,
    pub len: u64,
    pub kind: PartKind,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum PartKind {
    /// The prefix of the data block of a fixed array, with the map of its pages.
    FixedPages,
    /// The index block of an extensible array.
    IndexBlock,
    /// A super block of an extensible array.
    SuperBlock(u32),
    /// The prefix of a data block of an extensible array whose elements are in pages.
    PagedBlock,
    /// Elements: a data block, which begins with a signature, or a page. `first` is the number of the first element.
    Elements {
        signature: Option<[u8; 4]>,
        first: u64,
        count: u64,
    },
}

/// Returns whether a bit of a map of pages is set. Bit 0 is the most significant one of the first byte.
pub(super) fn bit(map: &[u8], number: u64) -> Option<bool> {
    let byte = map.get(usize::try_from(number / 8).ok()?)?;
    Some(byte & (0x80 >> (number % 8)) != 0)
}

/// Returns the client ID in the structures of an array: whether its chunks are filtered.
pub(super) fn class(form: &Form) -> u64 {
    u64::from(form.filtered)
}

/// Returns a page of an array.
pub(super) fn page(addr: u64, first: u64, count: u64, each: u64) -> Part {
    let len = count.saturating_mul(each).saturating_add(4);
    let kind = PartKind::Elements {
        signature: None,
        first,
        count,
    };
    Part { addr, len, kind }
}

/// Distinct parts, each with the chunks that it leads to.
#[derive(Default)]
pub(super) struct Parts(pub Below);

impl Parts {
    /// Adds a part that leads to some chunks. One that leads to none only has to be right.
    pub fn add(&mut self, part: Part, chunks: impl IntoIterator<Item = u64>) {
        let node = Node::Array(part);
        match self.0.iter_mut().rfind(|(known, _)| *known == node) {
            Some((_, places)) => places.extend(chunks),
            None => self.0.push((node, chunks.into_iter().collect())),
        }
    }

    /// Adds a part that leads to a chunk. There is no chunk if the part has no address.
    pub fn add_or_none(&mut self, part: Part, place: u64, known: &mut Known) {
        match part.addr {
            NOWHERE => drop(known.insert(place, None)),
            _ => self.add(part, [place]),
        }
    }
}

/// Reads the elements of these numbers, and adds the chunks of the wanted ones and of those near them.
pub(super) fn add(
    at: &mut Cursor<'_>,
    index: &Index,
    numbers: Range<u64>,
    wanted: &[u64],
    known: &mut Known,
) -> Parsed<()> {
    let set = match &index.kind {
        Kind::Extensible(array) => array.set(),
        _ => u64::MAX,
    };
    let each = index.form.each(&index.sizes);
    let len = (numbers.end - numbers.start).saturating_mul(each as u64);
    let bytes = usize::try_from(len).ok().and_then(|len| at.take(len));
    let bytes = bytes.ok_or_else(cut)?;
    let beside = match known.len() < MOST_KNOWN {
        true => MOST_BESIDE,
        false => 1,
    };
    let mut near: Vec<Range<u64>> = Vec::new();
    for &place in wanted {
        let number = index.places.number(place);
        if numbers.contains(&number) {
            let from = number / beside * beside;
            let range = from.max(numbers.start)..from.saturating_add(beside).min(numbers.end);
            if beside == 1 || !near.contains(&range) {
                near.push(range);
            }
        }
    }
    for number in near.into_iter().flatten() {
        let Some(place) = index.places.of_number(number) else {
            continue;
        };
        let from = usize::try_from(number - numbers.start).map_err(|_| cut())? * each;
        let element = bytes.get(from..from + each).ok_or_else(cut)?;
        let entry = index.form.entry(&mut Cursor::new(element, &index.sizes));
        let entry = entry.ok_or_else(cut)?;
        known.insert(place, entry.filter(|_| number < set));
    }
    Ok(())
}

impl Part {
    /// Returns the address and the size in bytes.
    pub(super) fn extent(&self) -> (u64, u64) {
        (self.addr, self.len)
    }

    pub(super) fn step(
        &self,
        bytes: &[u8],
        index: &Index,
        wanted: Vec<u64>,
        known: &mut Known,
    ) -> Parsed<Below> {
        let Some(body) = usize::try_from(self.len)
            .ok()
            .and_then(|len| len.checked_sub(4))
        else {
            return Err(cut());
        };
        check_sum(bytes, body)?;
        let at = &mut Cursor::new(&bytes[..body], &index.sizes);
        let signature = match &self.kind {
            PartKind::FixedPages => Some(*b"FADB"),
            PartKind::IndexBlock => Some(*b"EAIB"),
            PartKind::SuperBlock(_) => Some(*b"EASB"),
            PartKind::PagedBlock => Some(*b"EADB"),
            PartKind::Elements { signature, .. } => *signature,
        };
        if let Some(signature) = signature {
            let head = |at: &mut Cursor<'_>| {
                at.signature(&signature)?;
                Some((at.number(1)?, at.number(1)?, at.offset()?))
            };
            if head(at) != Some((0, class(&index.form), index.addr)) {
                return damaged("a block does not belong to the array");
            }
        }
        match (&index.kind, &self.kind) {
            (Kind::Fixed(array), PartKind::FixedPages) => {
                let map = at.take(at.left()).unwrap_or_default();
                array.below(map, index, wanted, known)
            }
            (Kind::Extensible(array), PartKind::IndexBlock) => {
                array.of_index_block(at, index, wanted, known)
            }
            (Kind::Extensible(array), PartKind::SuperBlock(number)) => {
                at.skip(array.offset()).ok_or_else(cut)?;
                array.of_super_block(at, *number, index, wanted, known)
            }
            (Kind::Extensible(_), PartKind::PagedBlock) => Ok(Below::new()),
            (kind, PartKind::Elements { first, count, .. }) => {
                if let (Kind::Extensible(array), true) = (kind, signature.is_some()) {
                    at.skip(array.offset()).ok_or_else(cut)?;
                }
                let end = first.checked_add(*count).ok_or_else(cut)?;
                add(at, index, *first..end, &wanted, known)?;
                Ok(Below::new())
            }
            _ => Err(NodeFault::Unknown),
        }
    }
}
