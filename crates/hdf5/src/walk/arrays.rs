//! Arrays of chunks, fixed and extensible (format specification, VII.C and VII.D): their headers, the sizes of their
//! blocks, and what a block refers to.

use super::cursor::{Cursor, NOWHERE};
use super::{Kind, LARGEST, ParseOutcome, Sizes};

/// A fixed array.
#[derive(Clone, Copy, Debug)]
pub(super) struct Fixed {
    /// The size in bytes of an element.
    pub(super) each: u8,
    /// The number of elements in a page, and of all elements.
    pub(super) page: u64,
    pub(super) count: u64,
}

impl Fixed {
    /// Returns the number of pages of the data block; 0 if its elements are not in pages.
    pub(super) fn pages(&self) -> u64 {
        match self.count > self.page {
            true => self.count.div_ceil(self.page),
            false => 0,
        }
    }

    /// Returns the size in bytes of the prefix of the data block, with the map of its pages and a checksum.
    pub(super) fn prefix(&self, sizes: &Sizes) -> u64 {
        (10 + sizes.offset as u64).saturating_add(self.pages().div_ceil(8))
    }
}

/// Parses the header of a fixed array, behind its class. Returns the array, and the address of its data block.
pub(super) fn fixed_array(at: &mut Cursor<'_>) -> Option<(Fixed, u64)> {
    let (each, page) = (at.number(1)? as u8, at.number(1)? as u32);
    let array = Fixed {
        each,
        page: 1_u64.checked_shl(page)?,
        count: at.length()?,
    };
    Some((array, at.offset()?))
}

/// Parses the header of a fixed array, which refers to its data block. An array of more than `most` elements is not
/// followed.
pub(super) fn fixed(at: &mut Cursor<'_>, most: u64) -> Option<ParseOutcome> {
    at.signature(b"FAHD")?;
    at.skip(2)?;
    let (array, addr) = fixed_array(at)?;
    if array.count > most {
        return Some(ParseOutcome::Refers(Vec::new()));
    }
    // Behind the prefix lie the elements, and a checksum for each page.
    let elements = array.count.checked_mul(array.each.into())?;
    let len = (array.prefix(at.sizes))
        .checked_add(elements)?
        .checked_add(array.pages().checked_mul(4)?)?;
    Some(ParseOutcome::Refers(vec![(
        addr,
        Kind::Plain(len.min(LARGEST)),
    )]))
}

/// An extensible array.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct Extensible {
    /// The size in bytes of an element, and the bits of the number of elements.
    pub(super) each: u8,
    pub(super) bits: u8,
    /// The number of elements in the index block, and in the smallest data block.
    pub(super) in_index: u8,
    in_block: u8,
    /// The least number of data blocks of a super block.
    blocks: u8,
    /// The bits of the number of elements in a page.
    pub(super) page: u8,
    /// The number of super blocks that exist.
    supers: u32,
    /// The number of elements up to the last one that is set.
    pub(super) set: u64,
}

impl Extensible {
    /// Returns whether the sizes of blocks are powers of two, as libhdf5 writes them, and numbers fit into 64 bits.
    pub(super) fn is_regular(&self) -> bool {
        let sizes = [self.in_block, self.blocks];
        sizes.iter().all(|n| n.is_power_of_two()) && self.bits <= 64 && self.page < 32
    }

    /// Returns the number of super blocks that the array can have.
    pub(super) fn all_supers(&self) -> u32 {
        let smallest = u64::from(self.in_block).max(1).ilog2();
        1 + u32::from(self.bits).saturating_sub(smallest)
    }

    /// Returns the number of data blocks of a super block, and the number of elements of each.
    pub(super) fn of_super(&self, number: u32) -> (u64, u64) {
        let blocks = 1_u64.checked_shl(number / 2).unwrap_or(u64::MAX);
        let elements = 1_u64.checked_shl(number.div_ceil(2)).unwrap_or(u64::MAX);
        (blocks, elements.saturating_mul(u64::from(self.in_block)))
    }

    /// Returns the super blocks whose data blocks the index block names.
    pub(super) fn in_index_block(&self) -> u32 {
        2 * u64::from(self.blocks).max(1).ilog2()
    }

    /// Returns the size in bytes of a data block with this number of elements.
    pub(super) fn data_block(&self, elements: u64, sizes: &Sizes) -> u64 {
        let offset = u64::from(self.bits.div_ceil(8));
        let in_page = 1_u64.checked_shl(self.page.into()).unwrap_or(u64::MAX);
        let pages = match elements > in_page {
            true => elements / in_page,
            false => 0,
        };
        let bytes = elements.saturating_mul(self.each.into());
        let all = bytes.saturating_add(pages.saturating_mul(4));
        all.saturating_add(10 + sizes.offset as u64 + offset)
            .min(LARGEST)
    }

    pub(super) fn data_blocks_in_index(&self) -> u64 {
        (0..self.in_index_block()).fold(0, |n, k| n + self.of_super(k).0)
    }

    pub(super) fn supers_in_index(&self) -> u64 {
        u64::from(self.all_supers().saturating_sub(self.in_index_block()))
    }

    /// Returns the size in bytes of the index block.
    pub(super) fn index_block_size(&self, sizes: &Sizes) -> u64 {
        let o = sizes.offset as u64;
        let elements = u64::from(self.in_index) * u64::from(self.each);
        10 + o + elements + (self.data_blocks_in_index() + self.supers_in_index()) * o
    }

    /// Returns the size in bytes of a super block, with the map of pages of its data blocks.
    pub(super) fn super_block_size(&self, number: u32, sizes: &Sizes) -> u64 {
        let (blocks, elements) = self.of_super(number);
        let o = sizes.offset as u64;
        let in_page = 1_u64.checked_shl(self.page.into()).unwrap_or(u64::MAX);
        let map = match elements > in_page {
            true => blocks.saturating_mul((elements / in_page).div_ceil(8)),
            false => 0,
        };
        let all = blocks.saturating_mul(o).saturating_add(map);
        all.saturating_add(10 + o + u64::from(self.bits.div_ceil(8)))
    }
}

/// Parses the header of an extensible array, behind its class. Returns the array, and the address of its index block.
pub(super) fn extensible_array(at: &mut Cursor<'_>) -> Option<(Extensible, u64)> {
    let mut byte = || at.number(1).map(|n| n as u8);
    let (each, bits, in_index, in_block, blocks, page) =
        (byte()?, byte()?, byte()?, byte()?, byte()?, byte()?);
    let supers = at.length()?;
    at.skip(3 * at.sizes.length)?;
    let set = at.length()?;
    at.skip(at.sizes.length)?;
    let addr = at.offset()?;
    let array = Extensible {
        each,
        bits,
        in_index,
        in_block,
        blocks,
        page,
        supers: u32::try_from(supers).ok()?,
        set,
    };
    Some((array, addr))
}

/// Parses the header of an extensible array. An array of more than `most` elements is not followed.
pub(super) fn extensible(at: &mut Cursor<'_>, most: u64) -> Option<ParseOutcome> {
    at.signature(b"EAHD")?;
    at.skip(2)?;
    let (array, addr) = extensible_array(at)?;
    Some(ParseOutcome::Refers(match array.set > most {
        true => Vec::new(),
        false => vec![(addr, Kind::IndexBlock(array))],
    }))
}

/// Parses the index block, which refers to data blocks and super blocks.
pub(super) fn index_block(at: &mut Cursor<'_>, array: &Extensible) -> Option<ParseOutcome> {
    at.signature(b"EAIB")?;
    at.skip(2 + at.sizes.offset)?;
    at.skip(usize::from(array.in_index) * usize::from(array.each))?;
    let mut found = Vec::new();
    for number in 0..array.in_index_block() {
        let (blocks, elements) = array.of_super(number);
        let len = array.data_block(elements, at.sizes);
        for _ in 0..blocks {
            let addr = at.offset()?;
            if addr != NOWHERE {
                found.push((addr, Kind::Plain(len)));
            }
        }
    }
    for number in array.in_index_block()..array.all_supers() {
        let Some(addr) = at.offset() else {
            break;
        };
        if addr != NOWHERE {
            found.push((addr, Kind::SuperBlock(*array, number)));
        }
    }
    Some(ParseOutcome::Refers(found))
}

/// Parses a super block, which refers to data blocks.
pub(super) fn super_block(
    at: &mut Cursor<'_>,
    array: &Extensible,
    number: u32,
) -> Option<ParseOutcome> {
    at.signature(b"EASB")?;
    at.skip(2 + at.sizes.offset)?;
    at.skip(usize::from(array.bits.div_ceil(8)))?;
    let (blocks, elements) = array.of_super(number);
    let in_page = 1_u64.checked_shl(array.page.into()).unwrap_or(u64::MAX);
    if elements > in_page {
        let map = blocks.checked_mul((elements / in_page).div_ceil(8))?;
        at.skip(usize::try_from(map).ok()?)?;
    }
    let len = array.data_block(elements, at.sizes);
    let mut found = Vec::new();
    for _ in 0..blocks {
        let Some(addr) = at.offset() else {
            break;
        };
        if addr != NOWHERE {
            found.push((addr, Kind::Plain(len)));
        }
    }
    Some(ParseOutcome::Refers(found))
}
