//! Look-ups in arrays of chunks, fixed and extensible: the blocks and pages that lead to the elements of some numbers.

use std::ops::Range;

use super::super::arrays;
use super::super::cursor::Cursor;
use super::super::{NOWHERE, Sizes};
use super::{Below, Form, Index, Kind, Known, MOST_BESIDE, MOST_KNOWN, Node, NodeFault, Parsed};
use super::{check_sum, cut, damaged};

/// A fixed array.
#[derive(Clone, Debug)]
pub(super) struct Fixed {
    array: arrays::Fixed,
    /// The address of the data block.
    block: u64,
}

/// An extensible array.
#[derive(Clone, Debug)]
pub(super) struct Extensible {
    array: arrays::Extensible,
    /// The address of the index block.
    block: u64,
}

/// A block or a page of an array, or the prefix of a block with pages: a checksum is its end.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Part {
    addr: u64,
    len: u64,
    kind: PartKind,
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum PartKind {
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

/// Distinct parts, each with the chunks that it leads to.
#[derive(Default)]
struct Parts(Below);

/// The data block of an element.
struct Located {
    /// The number of its super block, and of the data blocks of all super blocks before that.
    of: u32,
    before: u64,
    /// Its number in the super block, the number of its first element, and of its elements.
    block: u64,
    first: u64,
    elements: u64,
}

impl Fixed {
    pub(super) fn parse(bytes: &[u8], sizes: &Sizes, form: &Form) -> Parsed<Self> {
        let at = &mut Cursor::new(bytes, sizes);
        let (array, block) = parsed(at, b"FAHD", form, arrays::fixed_array)?;
        check_sum(bytes, at.done())?;
        match usize::from(array.each) == form.each(sizes) {
            true => Ok(Self { array, block }),
            false => Err(NodeFault::Unknown),
        }
    }

    pub(super) fn begin(
        &self,
        index: &Index,
        wanted: Vec<u64>,
        known: &mut Known,
    ) -> Parsed<Below> {
        if wanted
            .iter()
            .any(|&place| index.places.number(place) >= self.array.count)
        {
            return damaged("a fixed array has too few elements");
        }
        if self.block == NOWHERE {
            known.extend(wanted.into_iter().map(|place| (place, None)));
            return Ok(Below::new());
        }
        let len = self.array.prefix(&index.sizes);
        let (kind, len) = match self.array.pages() {
            0 => {
                let kind = PartKind::Elements {
                    signature: Some(*b"FADB"),
                    first: 0,
                    count: self.array.count,
                };
                (
                    kind,
                    len.saturating_add(self.array.count.saturating_mul(u64::from(self.array.each))),
                )
            }
            _ => (PartKind::FixedPages, len),
        };
        let addr = self.block;
        Ok(vec![(Node::Array(Part { addr, len, kind }), wanted)])
    }

    /// Returns the pages that hold chunks.
    fn below(
        &self,
        map: &[u8],
        index: &Index,
        wanted: Vec<u64>,
        known: &mut Known,
    ) -> Parsed<Below> {
        let mut parts = Parts::default();
        let each = u64::from(self.array.each);
        for place in wanted {
            let number = index.places.number(place) / self.array.page;
            if !bit(map, number).ok_or_else(cut)? {
                known.insert(place, None);
                continue;
            }
            let first = number * self.array.page;
            let count = self.array.page.min(self.array.count - first);
            // Pages are of equal size but for the last.
            let size = self.array.page.saturating_mul(each).saturating_add(4);
            let before = number.saturating_mul(size);
            let addr = self
                .block
                .saturating_add(self.array.prefix(&index.sizes))
                .saturating_add(before);
            parts.add(page(addr, first, count, each), [place]);
        }
        Ok(parts.0)
    }
}

impl Extensible {
    pub(super) fn parse(bytes: &[u8], sizes: &Sizes, form: &Form) -> Parsed<Self> {
        let at = &mut Cursor::new(bytes, sizes);
        let (array, block) = parsed(at, b"EAHD", form, arrays::extensible_array)?;
        check_sum(bytes, at.done())?;
        match usize::from(array.each) == form.each(sizes) && array.is_regular() {
            true => Ok(Self { array, block }),
            false => Err(NodeFault::Unknown),
        }
    }

    pub(super) fn begin(&self, index: &Index, wanted: Vec<u64>, known: &mut Known) -> Below {
        if self.block == NOWHERE {
            known.extend(wanted.into_iter().map(|place| (place, None)));
            return Below::new();
        }
        let part = Part {
            addr: self.block,
            len: self.array.index_block_size(&index.sizes),
            kind: PartKind::IndexBlock,
        };
        vec![(Node::Array(part), wanted)]
    }

    /// Returns the number of elements up to the last one that was ever set.
    fn set(&self) -> u64 {
        self.array.set
    }

    /// Returns the size in bytes of the offset in the prefix of a block.
    fn offset(&self) -> usize {
        usize::from(self.array.bits.div_ceil(8))
    }

    fn in_page(&self) -> u64 {
        1_u64
            .checked_shl(self.array.page.into())
            .unwrap_or(u64::MAX)
    }

    /// Returns the data block of an element that is not in the index block.
    fn locate(&self, number: u64) -> Option<Located> {
        let in_index = u64::from(self.array.in_index);
        let mut first = in_index;
        let mut before = 0_u64;
        for of in 0..self.array.all_supers() {
            let (blocks, elements) = self.array.of_super(of);
            let end = first.checked_add(blocks.checked_mul(elements)?)?;
            if number < end {
                let block = (number - first) / elements;
                return Some(Located {
                    of,
                    before,
                    block,
                    first: first + block * elements,
                    elements,
                });
            }
            first = end;
            before = before.checked_add(blocks)?;
        }
        None
    }

    /// Returns what the index block leads to.
    fn of_index_block(
        &self,
        at: &mut Cursor<'_>,
        index: &Index,
        wanted: Vec<u64>,
        known: &mut Known,
    ) -> Parsed<Below> {
        let in_index = u64::from(self.array.in_index);
        add(at, index, 0..in_index, &wanted, known)?;
        let direct = self.array.data_blocks_in_index();
        let blocks = addresses(at, direct)?;
        let supers = addresses(at, self.array.supers_in_index())?;
        let mut parts = Parts::default();
        for place in wanted {
            let number = index.places.number(place);
            if number >= self.array.set {
                known.insert(place, None);
                continue;
            }
            if number < in_index {
                continue;
            }
            let located = self.locate(number);
            let short = NodeFault::Damaged("an extensible array has too few elements");
            let located = located.ok_or(short)?;
            if let Some(at) = located.of.checked_sub(self.array.in_index_block()) {
                let &addr = supers.get(at as usize).ok_or_else(cut)?;
                let part = Part {
                    addr,
                    len: self.array.super_block_size(located.of, &index.sizes),
                    kind: PartKind::SuperBlock(located.of),
                };
                parts.add_or_none(part, place, known);
            } else {
                let at = usize::try_from(located.before + located.block).map_err(|_| cut())?;
                let &addr = blocks.get(at).ok_or_else(cut)?;
                parts.add_or_none(self.data_block(addr, &located, index)?, place, known);
            }
        }
        Ok(parts.0)
    }

    /// Returns a data block without pages.
    fn data_block(&self, addr: u64, located: &Located, index: &Index) -> Parsed<Part> {
        if located.elements > self.in_page() {
            return Err(NodeFault::Unknown);
        }
        Ok(Part {
            addr,
            len: self.array.data_block(located.elements, &index.sizes),
            kind: PartKind::Elements {
                signature: Some(*b"EADB"),
                first: located.first,
                count: located.elements,
            },
        })
    }

    /// Returns what a super block leads to.
    fn of_super_block(
        &self,
        at: &mut Cursor<'_>,
        number: u32,
        index: &Index,
        wanted: Vec<u64>,
        known: &mut Known,
    ) -> Parsed<Below> {
        let (blocks, elements) = self.array.of_super(number);
        let pages = match elements > self.in_page() {
            true => elements / self.in_page(),
            false => 0,
        };
        let map = blocks.saturating_mul(pages.div_ceil(8));
        let map = at.take(usize::try_from(map).map_err(|_| cut())?);
        let map = map.ok_or_else(cut)?;
        let addresses = addresses(at, blocks)?;
        let each = u64::from(self.array.each);
        let mut parts = Parts::default();
        for place in wanted {
            let number = index.places.number(place);
            let located = self.locate(number).ok_or_else(cut)?;
            let block = usize::try_from(located.block).map_err(|_| cut())?;
            let &addr = addresses.get(block).ok_or_else(cut)?;
            if addr == NOWHERE {
                known.insert(place, None);
                continue;
            }
            if pages == 0 {
                parts.add(self.data_block(addr, &located, index)?, [place]);
                continue;
            }
            let of_block = (number - located.first) / self.in_page();
            if !bit(map, located.block * pages + of_block).ok_or_else(cut)? {
                known.insert(place, None);
                continue;
            }
            let prefix = (10 + index.sizes.offset + self.offset()) as u64;
            let block = Part {
                addr,
                len: prefix,
                kind: PartKind::PagedBlock,
            };
            parts.add(block, []);
            let size = self.in_page().saturating_mul(each).saturating_add(4);
            let at = addr
                .saturating_add(prefix)
                .saturating_add(of_block.saturating_mul(size));
            let first = located.first + of_block * self.in_page();
            parts.add(page(at, first, self.in_page(), each), [place]);
        }
        Ok(parts.0)
    }
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

impl Parts {
    /// Adds a part that leads to some chunks. One that leads to none only has to be right.
    fn add(&mut self, part: Part, chunks: impl IntoIterator<Item = u64>) {
        let node = Node::Array(part);
        match self.0.iter_mut().rfind(|(known, _)| *known == node) {
            Some((_, places)) => places.extend(chunks),
            None => self.0.push((node, chunks.into_iter().collect())),
        }
    }

    /// Adds a part that leads to a chunk. There is no chunk if the part has no address.
    fn add_or_none(&mut self, part: Part, place: u64, known: &mut Known) {
        match part.addr {
            NOWHERE => drop(known.insert(place, None)),
            _ => self.add(part, [place]),
        }
    }
}

/// Parses the header of an array with its signature, its version and its class.
fn parsed<T>(
    at: &mut Cursor<'_>,
    signature: &[u8; 4],
    form: &Form,
    array: impl FnOnce(&mut Cursor<'_>) -> Option<T>,
) -> Parsed<T> {
    let mut head = || {
        at.signature(signature)?;
        let (version, kind) = (at.number(1)?, at.number(1)?);
        (version == 0 && kind == class(form)).then_some(())
    };
    head().and_then(|()| array(at)).ok_or(NodeFault::Unknown)
}

/// Reads the elements of these numbers, and adds the chunks of the wanted ones and of those near them.
fn add(
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

/// Returns a page of an array.
fn page(addr: u64, first: u64, count: u64, each: u64) -> Part {
    let len = count.saturating_mul(each).saturating_add(4);
    let kind = PartKind::Elements {
        signature: None,
        first,
        count,
    };
    Part { addr, len, kind }
}

/// Returns whether a bit of a map of pages is set. Bit 0 is the most significant one of the first byte.
fn bit(map: &[u8], number: u64) -> Option<bool> {
    let byte = map.get(usize::try_from(number / 8).ok()?)?;
    Some(byte & (0x80 >> (number % 8)) != 0)
}

/// Returns the client ID in the structures of an array: whether its chunks are filtered.
fn class(form: &Form) -> u64 {
    u64::from(form.filtered)
}

/// Reads addresses.
fn addresses(at: &mut Cursor<'_>, count: u64) -> Parsed<Vec<u64>> {
    if count.saturating_mul(at.sizes.offset as u64) > at.left() as u64 {
        return Err(cut());
    }
    (0..count).map(|_| at.offset().ok_or_else(cut)).collect()
}
