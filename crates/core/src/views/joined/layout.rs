//! The chunks of an array that is joined from several stores along a dimension.

use crate::tree::array::{ArrayDescription, Elements};

/// Chunks smaller than this are assembled from several stores: each chunk costs a reader a request.
const SMALL: u64 = 64 << 10;

/// The approximate bytes of an assembled chunk.
const WANTED: u64 = 256 << 10;

/// The most bytes of an assembled chunk, or of a chunk that is a source of one.
pub(super) const MOST: u64 = 256 << 20;

/// The mapping from chunks of the joined array to chunks of the stores.
#[derive(Debug)]
pub(super) struct Layout {
    axis: usize,
    /// The first row of each part along the dimension, and the total number of rows.
    starts: Vec<u64>,
    /// The shape of a chunk.
    chunk: Vec<u64>,
    /// Rows of a chunk of each part; empty if each joined chunk is a chunk of a part.
    rows: Vec<u64>,
    /// The number of chunks along the other dimensions.
    counts: Vec<u64>,
}

/// A piece of an assembled chunk.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Piece {
    pub(super) part: usize,
    /// The position of its source chunk in the part.
    pub(super) place: Vec<u64>,
    /// The rows of the source chunk.
    rows: u64,
    /// The first row in the source chunk, the first row in the assembled chunk, and the number of rows.
    from: u64,
    to: u64,
    count: u64,
}

impl Layout {
    /// Returns the layout of parts that differ along `axis` only; fails with the reason why they cannot be joined.
    pub(super) fn new(axis: usize, parts: &[&ArrayDescription]) -> Result<Self, String> {
        let first = parts.first().ok_or("in no store")?;
        let mut starts = vec![0_u64];
        let mut len = 0_u64;
        for part in parts {
            let extent = part.shape.get(axis).ok_or("no such dimension")?;
            len = len
                .checked_add(*extent)
                .ok_or("longer than an array can be")?;
            starts.push(len);
        }
        let beside = |of: &ArrayDescription| -> Vec<u64> {
            let mut chunk = of.chunk.clone();
            chunk[axis] = 0;
            chunk
        };
        if let Some(other) = parts.iter().find(|part| beside(part) != beside(first)) {
            return Err(format!(
                "chunks of {:?} and {:?} do not meet",
                first.chunk, other.chunk
            ));
        }
        let rows = first.chunk[axis].max(1);
        let extents = || parts.iter().map(|part| part.shape[axis]);
        let is_aligned = parts.iter().all(|part| part.chunk[axis] == rows)
            && extents().rev().skip(1).all(|extent| extent % rows == 0);
        let size = match &first.elements {
            Elements::Fixed(dtype) => Some(dtype.size() as u64),
            Elements::Text => None,
        };
        let row = size.and_then(|size| {
            let beside = first.chunk.iter().enumerate().filter(|(k, _)| *k != axis);
            beside
                .map(|(_, &d)| d.max(1))
                .try_fold(size, u64::checked_mul)
        });
        let mut layout = Self {
            axis,
            starts,
            chunk: first.chunk.clone(),
            rows: Vec::new(),
            counts: first.counts(),
        };
        let is_small = row.is_some_and(|row| row.saturating_mul(rows) < SMALL);
        if is_aligned && !(is_small && parts.len() > 1) {
            return Ok(layout);
        }
        let Some(row) = row else {
            return match is_aligned {
                true => Ok(layout),
                false => Err("chunks of text that do not end where a store ends".to_owned()),
            };
        };
        // A chunk covers whole stores if all have the same length, so that each chunk of a store belongs to a single
        // one.
        let longest = extents().max().unwrap_or(1).max(1);
        let is_even = extents().rev().skip(1).all(|extent| extent == longest);
        let wanted = (WANTED / row.max(1)).max(rows.min(longest));
        let made = match is_even {
            true => (wanted / longest).max(1).saturating_mul(longest),
            false => wanted.max(1),
        };
        // However short the array is: it may grow for a reader that opened it before another store was added.
        layout.chunk[axis] = made;
        if row.saturating_mul(layout.chunk[axis]) > MOST {
            layout.chunk[axis] = (WANTED / row.max(1)).max(rows.min(longest));
        }
        if row.saturating_mul(layout.chunk[axis]) > MOST {
            return Err("chunks too large that do not end where a store ends".to_owned());
        }
        layout.rows = parts.iter().map(|part| part.chunk[axis].max(1)).collect();
        Ok(layout)
    }

    /// Returns the number of rows along the dimension.
    pub(super) fn len(&self) -> u64 {
        self.starts.last().copied().unwrap_or(0)
    }

    /// Returns the shape of a chunk.
    pub(super) fn chunk(&self) -> &[u64] {
        &self.chunk
    }

    /// Returns whether each chunk is a chunk of a store.
    pub(super) fn is_aligned(&self) -> bool {
        self.rows.is_empty()
    }

    /// Returns the bytes of an assembled chunk.
    pub(super) fn chunk_len(&self, size: usize) -> Option<usize> {
        let dims = self.chunk.iter();
        dims.map(|&d| usize::try_from(d).ok())
            .try_fold(size, |n, d| n.checked_mul(d?))
    }

    /// Returns the part that contains a row.
    fn part_of(&self, row: u64) -> Option<usize> {
        (row < self.len()).then(|| self.starts.partition_point(|&start| start <= row) - 1)
    }

    fn is_place(&self, place: &[u64]) -> bool {
        let beside = place.iter().zip(&self.counts).enumerate();
        place.len() == self.chunk.len()
            && beside
                .into_iter()
                .all(|(k, (at, n))| k == self.axis || at < n)
    }

    /// Returns the part that contains a chunk, and the chunk's position there.
    pub(super) fn part(&self, place: &[u64]) -> Option<(usize, Vec<u64>)> {
        if !self.is_place(place) {
            return None;
        }
        let rows = self.chunk[self.axis];
        let row = place[self.axis].checked_mul(rows)?;
        let part = self.part_of(row)?;
        let mut own = place.to_vec();
        own[self.axis] = (row - self.starts[part]) / rows;
        Some((part, own))
    }

    /// Returns the pieces of an assembled chunk.
    pub(super) fn pieces(&self, place: &[u64]) -> Option<Vec<Piece>> {
        if !self.is_place(place) {
            return None;
        }
        let all = self.chunk[self.axis];
        let first = place[self.axis].checked_mul(all)?;
        let end = first.checked_add(all)?.min(self.len());
        let mut part = self.part_of(first)?;
        let (mut row, mut pieces) = (first, Vec::new());
        while row < end {
            let rows = *self.rows.get(part)?;
            let (start, stop) = (self.starts[part], self.starts[part + 1]);
            let own = row - start;
            let number = own / rows;
            let last = stop.min(start + (number + 1).saturating_mul(rows)).min(end);
            let mut at = place.to_vec();
            at[self.axis] = number;
            pieces.push(Piece {
                part,
                place: at,
                rows,
                from: own - number * rows,
                to: row - first,
                count: last - row,
            });
            row = last;
            while part + 2 < self.starts.len() && self.starts[part + 1] <= row {
                part += 1;
            }
        }
        Some(pieces)
    }
}

/// Copies a piece into an assembled chunk; `None` if it is incomplete.
pub(super) fn copy_rows(
    from: &[u8],
    to: &mut [u8],
    layout: &Layout,
    size: usize,
    piece: &Piece,
) -> Option<()> {
    let product = |dims: &[u64]| -> Option<usize> {
        let dims = dims.iter().map(|&d| usize::try_from(d).ok());
        dims.into_iter().try_fold(1_usize, |n, d| n.checked_mul(d?))
    };
    let (outer, inner) = layout.chunk.split_at(layout.axis);
    let outer = product(outer)?;
    let row = product(inner.get(1..)?)?.checked_mul(size)?;
    let number = |n: u64| usize::try_from(n).ok();
    let (rows, all) = (number(piece.rows)?, number(layout.chunk[layout.axis])?);
    let len = number(piece.count)?.checked_mul(row)?;
    for block in 0..outer {
        let source = block
            .checked_mul(rows)?
            .checked_add(number(piece.from)?)?
            .checked_mul(row)?;
        let target = block
            .checked_mul(all)?
            .checked_add(number(piece.to)?)?
            .checked_mul(row)?;
        let source = from.get(source..source.checked_add(len)?)?;
        to.get_mut(target..target.checked_add(len)?)?
            .copy_from_slice(source);
    }
    Some(())
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use npyfs_base::npy::dtype::DType;
    use npyfs_hdf5::Details;

    fn array(shape: &[u64], chunk: &[u64]) -> ArrayDescription {
        ArrayDescription {
            elements: Elements::Fixed(DType::int(1)),
            shape: shape.to_vec(),
            chunk: chunk.to_vec(),
            details: Details {
                chunks: Some(chunk.to_vec()),
                ..Details::of_group(Vec::new())
            },
        }
    }

    fn layout(axis: usize, parts: &[ArrayDescription]) -> Result<Layout, String> {
        Layout::new(axis, &parts.iter().collect::<Vec<_>>())
    }

    #[test]
    fn chunks_that_meet_where_stores_do_stay_what_they_are() {
        let chunk = [2, 1 << 16];
        let parts = [4, 2, 3].map(|rows| array(&[rows, 1 << 16], &chunk));
        let layout = layout(0, &parts).unwrap();
        assert!(layout.is_aligned());
        assert_eq!((layout.len(), layout.chunk()), (9, &chunk[..]));
        assert_eq!(layout.part(&[1, 0]), Some((0, vec![1, 0])));
        assert_eq!(layout.part(&[2, 0]), Some((1, vec![0, 0])));
        assert_eq!(layout.part(&[4, 0]), Some((2, vec![1, 0])));
        assert_eq!(layout.part(&[5, 0]), None);
        assert_eq!(layout.part(&[0, 1]), None);
    }

    #[test]
    fn small_chunks_are_put_together() {
        let parts = [1; 500].map(|rows| array(&[rows], &[1024]));
        let layout = layout(0, &parts).unwrap();
        assert_eq!(layout.chunk(), [WANTED]);
        assert_eq!(layout.pieces(&[0]).unwrap().len(), 500);
    }

    #[test]
    fn chunks_that_never_meet_are_refused() {
        let parts = [array(&[4, 6], &[2, 3]), array(&[4, 6], &[2, 2])];
        assert!(layout(0, &parts).unwrap_err().contains("do not meet"));
        let large = [3, 4].map(|rows| array(&[rows, 1 << 29], &[2, 1 << 29]));
        assert!(layout(0, &large).unwrap_err().contains("too large"));
    }

    /// Returns a chunk of an array whose elements are their row numbers, with 255 past its end.
    fn chunk_of(first: u64, part: &ArrayDescription, axis: usize, place: &[u64]) -> Vec<u8> {
        let all: u64 = part.chunk.iter().product();
        let beside: u64 = part.chunk[axis + 1..].iter().product();
        let numbers =
            (0..all).map(|at| at / beside % part.chunk[axis] + place[axis] * part.chunk[axis]);
        numbers
            .map(|row| match row < part.shape[axis] {
                true => (first + row) as u8,
                false => 255,
            })
            .collect()
    }

    proptest! {
        #[test]
        fn rows_come_from_where_they_lie(
            axis in 0..2_usize,
            extents in proptest::collection::vec(1..9_u64, 1..9),
            rows in 1..9_u64,
        ) {
            let shape = |extent| if axis == 0 { [extent, 3] } else { [3, extent] };
            let parts: Vec<_> = extents.iter().map(|&extent| array(&shape(extent), &shape(rows))).collect();
            let layout = layout(axis, &parts).unwrap();
            let mut firsts = vec![0];
            firsts.extend(extents.iter().scan(0, |sum, extent| { *sum += extent; Some(*sum) }));
            let count = layout.len().div_ceil(layout.chunk()[axis]);
            for number in 0..count {
                let place = if axis == 0 { [number, 0] } else { [0, number] };
                let mut made = vec![255; layout.chunk_len(1).unwrap()];
                if layout.is_aligned() {
                    let (part, own) = layout.part(&place).unwrap();
                    made = chunk_of(firsts[part], &parts[part], axis, &own);
                } else {
                    for piece in layout.pieces(&place).unwrap() {
                        let from = chunk_of(firsts[piece.part], &parts[piece.part], axis, &piece.place);
                        copy_rows(&from, &mut made, &layout, 1, &piece).unwrap();
                    }
                }
                let mut whole = array(&shape(layout.len()), layout.chunk());
                whole.chunk = layout.chunk().to_vec();
                prop_assert_eq!(made, chunk_of(0, &whole, axis, &place));
            }
        }
    }
}
