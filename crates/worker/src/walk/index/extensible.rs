//! Extensible arrays of chunks (format specification, VII.D).

use super::super::chunk_index;
use super::super::cursor::Cursor;
use super::super::{NOWHERE, Sizes};
use super::array::{Part, PartKind, Parts, add, bit, class, page};
use super::{Below, Form, Index, Known, Node, NodeFault, Parsed, check_sum, cut};

/// An extensible array.
#[derive(Clone, Debug)]
pub(super) struct Extensible {
    array: chunk_index::Extensible,
    /// The address of the index block.
    block: u64,
}

impl Extensible {
    pub(super) fn parse(bytes: &[u8], sizes: &Sizes, form: &Form) -> Parsed<Self> {
        let at = &mut Cursor::new(bytes, sizes);
        let mut parsed = || {
            at.signature(b"EAHD")?;
            let (version, kind) = (at.number(1)?, at.number(1)?);
            (version == 0 && kind == class(form)).then_some(())?;
            chunk_index::extensible_array(at)
        };
        let (array, block) = parsed().ok_or(NodeFault::Unknown)?;
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
    pub(super) fn set(&self) -> u64 {
        self.array.set
    }

    /// Returns the size in bytes of the offset in the prefix of a block.
    pub(super) fn offset(&self) -> usize {
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
    pub(super) fn of_index_block(
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
    pub(super) fn of_super_block(
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

/// Reads addresses.
fn addresses(at: &mut Cursor<'_>, count: u64) -> Parsed<Vec<u64>> {
    if count.saturating_mul(at.sizes.offset as u64) > at.left() as u64 {
        return Err(cut());
    }
    (0..count).map(|_| at.offset().ok_or_else(cut)).collect()
}
