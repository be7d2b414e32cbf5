//! Fixed arrays of chunks (format specification, VII.C).

use super::super::cursor::Cursor;
use super::super::{NOWHERE, Sizes};
use super::array::{Part, PartKind, Parts, bit, class, page};
use super::{Below, Form, Index, Known, Node, NodeFault, Parsed, check_sum, cut, damaged};

/// A fixed array.
#[derive(Clone, Debug)]
pub(super) struct Fixed {
    /// The size in bytes of an element.
    each: usize,
    /// The number of elements of a page, and of all elements.
    page: u64,
    count: u64,
    /// The address of the data block.
    block: u64,
}

impl Fixed {
    pub(super) fn parse(bytes: &[u8], sizes: &Sizes, form: &Form) -> Parsed<Self> {
        let at = &mut Cursor::new(bytes, sizes);
        let mut parsed = || {
            at.signature(b"FAHD")?;
            let (version, kind) = (at.number(1)?, at.number(1)?);
            (version == 0 && kind == class(form)).then_some(())?;
            let (each, page) = (at.number(1)?, at.number(1)?);
            let (count, block) = (at.length()?, at.offset()?);
            Some(Self {
                each: each as usize,
                page: 1_u64.checked_shl(page as u32)?,
                count,
                block,
            })
        };
        let array = parsed().ok_or(NodeFault::Unknown)?;
        check_sum(bytes, at.done())?;
        match array.each == form.each(sizes) {
            true => Ok(array),
            false => Err(NodeFault::Unknown),
        }
    }

    fn pages(&self) -> u64 {
        match self.count > self.page {
            true => self.count.div_ceil(self.page),
            false => 0,
        }
    }

    /// Returns the size in bytes of the prefix of the data block, with its checksum if it is paged.
    fn prefix(&self, sizes: &Sizes) -> u64 {
        (10 + sizes.offset as u64).saturating_add(self.pages().div_ceil(8))
    }

    pub(super) fn begin(
        &self,
        index: &Index,
        wanted: Vec<u64>,
        known: &mut Known,
    ) -> Parsed<Below> {
        if wanted
            .iter()
            .any(|&place| index.places.number(place) >= self.count)
        {
            return damaged("a fixed array has too few elements");
        }
        if self.block == NOWHERE {
            known.extend(wanted.into_iter().map(|place| (place, None)));
            return Ok(Below::new());
        }
        let len = self.prefix(&index.sizes);
        let (kind, len) = match self.pages() {
            0 => {
                let kind = PartKind::Elements {
                    signature: Some(*b"FADB"),
                    first: 0,
                    count: self.count,
                };
                (
                    kind,
                    len.saturating_add(self.count.saturating_mul(self.each as u64)),
                )
            }
            _ => (PartKind::FixedPages, len),
        };
        let addr = self.block;
        Ok(vec![(Node::Array(Part { addr, len, kind }), wanted)])
    }

    /// Returns the pages that hold chunks.
    pub(super) fn below(
        &self,
        map: &[u8],
        index: &Index,
        wanted: Vec<u64>,
        known: &mut Known,
    ) -> Parsed<Below> {
        let mut parts = Parts::default();
        let each = self.each as u64;
        for place in wanted {
            let number = index.places.number(place) / self.page;
            if !bit(map, number).ok_or_else(cut)? {
                known.insert(place, None);
                continue;
            }
            let first = number * self.page;
            let count = self.page.min(self.count - first);
            // Pages are of equal size but for the last.
            let size = self.page.saturating_mul(each).saturating_add(4);
            let before = number.saturating_mul(size);
            let addr = self
                .block
                .saturating_add(self.prefix(&index.sizes))
                .saturating_add(before);
            parts.add(page(addr, first, count, each), [place]);
        }
        Ok(parts.0)
    }
}
