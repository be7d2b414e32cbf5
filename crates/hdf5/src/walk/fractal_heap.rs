//! Fractal heaps: the blocks that hold links and attributes (format specification, III.G).

use super::cursor::{Cursor, NOWHERE};
use super::header;
use super::{Kind, ParseOutcome, Sizes};

/// The table of blocks of a heap.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct Indirect {
    width: u16,
    /// The sizes in bytes of the first and of the largest direct block.
    first: u64,
    largest: u64,
    rows: u16,
    /// The bits of offsets in the heap, and whether blocks are filtered.
    bits: u16,
    filtered: bool,
}

impl Indirect {
    /// Returns the number of rows of direct blocks.
    fn direct_rows(&self) -> u32 {
        let first = self.first.max(1);
        (self.largest / first).max(1).ilog2() + 2
    }

    /// Returns the size in bytes of a block of a row.
    fn row_bytes(&self, row: u32) -> u64 {
        match row {
            0 | 1 => self.first,
            row => self.first.checked_shl(row - 1).unwrap_or(u64::MAX),
        }
    }

    /// Returns the size in bytes of the indirect block.
    pub(super) fn size(&self, sizes: &Sizes) -> u64 {
        let (o, l) = (sizes.offset as u64, sizes.length as u64);
        let direct = u64::from(self.rows).min(u64::from(self.direct_rows()));
        let indirect = u64::from(self.rows) - direct;
        let each = o + if self.filtered { l + 4 } else { 0 };
        let entries = direct * each + indirect * o;
        9 + o + u64::from(self.bits.div_ceil(8)) + entries * u64::from(self.width)
    }
}

/// Parses the header of a heap.
pub(super) fn header(at: &mut Cursor<'_>) -> Option<ParseOutcome> {
    at.signature(b"FRHP")?;
    at.skip(1 + 2)?;
    let filters = at.number(2)?;
    at.skip(1 + 4)?;
    let (o, l) = (at.sizes.offset, at.sizes.length);
    // Huge objects, free space, and counts of bytes and objects are skipped.
    at.skip(l)?;
    let huge = at.offset()?;
    at.skip(l)?;
    at.skip(o)?;
    at.skip(8 * l)?;
    let width = u16::try_from(at.number(2)?).ok()?;
    let first = at.length()?;
    let largest = at.length()?;
    let bits = u16::try_from(at.number(2)?).ok()?;
    at.skip(2)?;
    let root = at.offset()?;
    let rows = u16::try_from(at.number(2)?).ok()?;
    let table = Indirect {
        width,
        first,
        largest,
        rows,
        bits,
        filtered: filters > 0,
    };
    let mut found = vec![(huge, Kind::Tree2)];
    if rows == 0 {
        found.push((root, Kind::DirectBlock { len: first, bits }));
    } else {
        found.push((root, Kind::IndirectBlock(table)));
    }
    Some(ParseOutcome::Refers(found))
}

/// Parses an indirect block.
pub(super) fn indirect(at: &mut Cursor<'_>, table: &Indirect) -> Option<ParseOutcome> {
    at.signature(b"FHIB")?;
    at.skip(1 + at.sizes.offset)?;
    at.skip(usize::from(table.bits.div_ceil(8)))?;
    let direct = table.direct_rows();
    let mut found = Vec::new();
    for row in 0..u32::from(table.rows) {
        for _ in 0..table.width {
            let addr = at.offset()?;
            let len = table.row_bytes(row);
            if row >= direct {
                let below = rows_of(table, len);
                if let Some(rows) = below {
                    let below = Indirect { rows, ..*table };
                    found.push((addr, Kind::IndirectBlock(below)));
                }
                continue;
            }
            let len = match table.filtered {
                true => {
                    let len = at.length()?;
                    at.skip(4)?;
                    len
                }
                false => len,
            };
            if addr != NOWHERE {
                found.push((
                    addr,
                    Kind::DirectBlock {
                        len,
                        bits: table.bits,
                    },
                ));
            }
        }
    }
    Some(ParseOutcome::Refers(found))
}

/// Returns the number of rows of an indirect block that stands for this many bytes of the heap.
fn rows_of(table: &Indirect, len: u64) -> Option<u16> {
    let first = table.first.checked_mul(u64::from(table.width))?.max(1);
    let rows = (len / first).checked_ilog2()? + 1;
    u16::try_from(rows).ok()
}

/// Parses a direct block, whose links and attributes refer to other structures.
///
/// Only the index knows where they begin: the block is searched for everything that has the form of a link message and
/// a name of text.
pub(super) fn direct(at: &mut Cursor<'_>, bits: u16) -> Option<ParseOutcome> {
    at.signature(b"FHDB")?;
    at.skip(1 + at.sizes.offset)?;
    at.skip(usize::from(bits.div_ceil(8)))?;
    let rest = at.take(at.left())?;
    let mut found = Vec::new();
    let mut from = 0;
    while let Some(bytes) = rest.get(from..).filter(|bytes| bytes.len() > 4) {
        let mut here = Cursor::new(bytes, at.sizes);
        let mut links = Vec::new();
        let is_link = header::link(&mut here, &mut links).is_some() && header::has_form(bytes);
        if is_link {
            found.append(&mut links);
            from += here.done();
            continue;
        }
        let mut here = Cursor::new(bytes, at.sizes);
        if bytes[0] == 3 && header::attribute(&mut here, &mut found).is_some() {
            from += here.done().max(1);
            continue;
        }
        from += 1;
    }
    Some(ParseOutcome::Refers(found))
}
