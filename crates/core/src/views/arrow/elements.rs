//! The elements of a column, which lie at fixed places in rows of bytes, and buffers that are made of them.

use std::ops::Range;
use std::sync::Arc;

use npyfs_base::error::{Error, Result};
use npyfs_io::content::{Content, Slice};
use npyfs_io::rows::in_rows;

/// The most bytes that are read or made at once.
pub(super) const WINDOW: usize = 256 << 10;

/// Elements of one size at the same places in each row.
#[derive(Clone)]
pub(super) struct Elements {
    /// The rows, one behind the other.
    rows: Arc<dyn Content>,
    /// Bytes of a row.
    stride: usize,
    /// Where the elements begin in a row: at least one.
    places: Arc<[usize]>,
    /// Bytes of an element, at least one.
    size: usize,
}

impl Elements {
    /// The elements of `size` bytes at `places` in rows of `stride` bytes; `None` if they do not lie inside.
    pub(super) fn new(
        rows: Arc<dyn Content>,
        stride: usize,
        places: Vec<usize>,
        size: usize,
    ) -> Option<Self> {
        let ends = |&place: &usize| place.checked_add(size).is_some_and(|end| end <= stride);
        let fits = size > 0 && !places.is_empty() && places.iter().all(ends);
        fits.then(|| Self {
            rows,
            stride,
            places: places.into(),
            size,
        })
    }

    /// Returns the bytes of an element.
    pub(super) fn size(&self) -> usize {
        self.size
    }

    /// Returns the number of elements in a row.
    pub(super) fn in_row(&self) -> u64 {
        self.places.len() as u64
    }

    /// Returns the elements of some rows by their numbers.
    pub(super) fn of_rows(&self, rows: &Range<u64>) -> Range<u64> {
        rows.start.saturating_mul(self.in_row())..rows.end.saturating_mul(self.in_row())
    }

    /// Returns whether the rows are nothing but these elements.
    fn is_packed(&self) -> bool {
        let next = |(at, place): (usize, &usize)| at.checked_mul(self.size) == Some(*place);
        self.places.len().checked_mul(self.size) == Some(self.stride)
            && self.places.iter().enumerate().all(next)
    }

    /// Fills `out` with whole elements from the number `first` on.
    pub(super) fn read(&self, first: u64, out: &mut [u8]) -> Result<()> {
        let size = self.size as u64;
        if self.is_packed() {
            let at = first.checked_mul(size).ok_or_else(outside)?;
            return self.rows.read_at(at, out);
        }
        let (stride, in_row) = (self.stride as u64, self.in_row());
        let mut number = first;
        let mut left = out;
        if self.stride > WINDOW {
            for element in left.chunks_exact_mut(self.size) {
                let place = self.places[(number % in_row) as usize] as u64;
                let row = (number / in_row).checked_mul(stride);
                let at = row.and_then(|row| row.checked_add(place));
                self.rows.read_at(at.ok_or_else(outside)?, element)?;
                number += 1;
            }
            return Ok(());
        }
        let mut window = Vec::new();
        let most = WINDOW / self.stride;
        while !left.is_empty() {
            // Smaller than the number of places.
            let skip = (number % in_row) as usize;
            let wanted = left.len() / self.size;
            let rows = (skip + wanted).div_ceil(self.places.len()).min(most);
            let at = (number / in_row).checked_mul(stride);
            let at = at.ok_or_else(outside)?;
            let shared = self.rows.share(at, rows * self.stride)?;
            let bytes = match &shared {
                Some(data) => data.as_ref(),
                None => {
                    window.resize(rows * self.stride, 0);
                    self.rows.read_at(at, &mut window)?;
                    &window
                }
            };
            let count = (rows * self.places.len() - skip).min(wanted);
            let (now, later) = left.split_at_mut(count * self.size);
            match *self.places {
                [place] => {
                    let rows = bytes.chunks_exact(self.stride);
                    for (to, row) in now.chunks_exact_mut(self.size).zip(rows) {
                        to.copy_from_slice(&row[place..place + self.size]);
                    }
                }
                _ => {
                    for (at, to) in now.chunks_exact_mut(self.size).enumerate() {
                        let at = skip + at;
                        let row = at / self.places.len() * self.stride;
                        let from = row + self.places[at % self.places.len()];
                        to.copy_from_slice(&bytes[from..from + self.size]);
                    }
                }
            }
            number += count as u64;
            left = later;
        }
        Ok(())
    }

    /// Calls `see` with the bytes of consecutive elements until all of a range were seen, or it returns an error.
    pub(super) fn scan<E: From<Error>>(
        &self,
        range: Range<u64>,
        mut see: impl FnMut(u64, &[u8]) -> std::result::Result<(), E>,
    ) -> std::result::Result<(), E> {
        let most = (WINDOW / self.size).max(1) as u64;
        let mut bytes = Vec::new();
        let mut at = range.start;
        while at < range.end {
            let count = most.min(range.end - at);
            // At most a window, or one element.
            bytes.resize(count as usize * self.size, 0);
            self.read(at, &mut bytes)?;
            see(at, &bytes)?;
            at += count;
        }
        Ok(())
    }

    /// Returns the elements of a range as they are.
    pub(super) fn plain(&self, range: Range<u64>) -> Arc<dyn Content> {
        if self.is_packed() {
            let size = self.size as u64;
            let start = range.start.saturating_mul(size);
            let len = range.end.saturating_sub(range.start).saturating_mul(size);
            return Arc::new(Slice::new(self.rows.clone(), start, len));
        }
        let (size, per) = (self.size, 1);
        self.made(range, per, size, |_, from, to| to.copy_from_slice(from))
    }

    /// Returns what is made of a range: `to` bytes of `per` elements each, of fewer at the end. `make` is given the
    /// number of the first element, counted from the start of the range, the elements, and room for what they become.
    pub(super) fn made<F>(
        &self,
        range: Range<u64>,
        per: usize,
        to: usize,
        make: F,
    ) -> Arc<dyn Content>
    where
        F: Fn(u64, &[u8], &mut [u8]) + Send + Sync + 'static,
    {
        Arc::new(DerivedBytes {
            of: self.clone(),
            range,
            per,
            to,
            make,
        })
    }
}

fn outside() -> Error {
    Error::damaged("behind the end of the elements")
}

/// Bytes that are made of elements.
struct DerivedBytes<F> {
    of: Elements,
    range: Range<u64>,
    /// The elements that are made into one piece, and the bytes of a piece.
    per: usize,
    to: usize,
    make: F,
}

impl<F: Fn(u64, &[u8], &mut [u8]) + Send + Sync> Content for DerivedBytes<F> {
    fn len(&self) -> u64 {
        let count = self.range.end.saturating_sub(self.range.start);
        count
            .div_ceil(self.per as u64)
            .saturating_mul(self.to as u64)
    }

    fn read_at(&self, offset: u64, buf: &mut [u8]) -> Result<()> {
        let (per, size) = (self.per as u64, self.of.size);
        let most = (WINDOW / (size * self.per)).max(1);
        let mut elements = Vec::new();
        in_rows(self.to, offset, buf, |piece, out| {
            let mut piece = piece;
            for out in out.chunks_mut(most * self.to) {
                let pieces = out.len() / self.to;
                let first = self.range.start.saturating_add(piece.saturating_mul(per));
                let left = self.range.end.saturating_sub(first);
                let count = (pieces as u64).saturating_mul(per).min(left);
                // At most a window, or one piece.
                elements.resize(count as usize * size, 0);
                self.of.read(first, &mut elements)?;
                (self.make)(first - self.range.start, &elements, out);
                piece += pieces as u64;
            }
            Ok(())
        })
    }

    fn is_costly(&self) -> bool {
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use npyfs_io::content::{InMemory, read};

    fn bytes(len: usize) -> Arc<dyn Content> {
        Arc::new(InMemory((0..len).map(|i| (i % 251) as u8).collect()))
    }

    #[test]
    fn elements_are_gathered_at_every_offset() {
        for (stride, places, size) in [
            (8, vec![0], 8),
            (7, vec![2], 3),
            (12, vec![9, 1, 4], 2),
            (300_000, vec![5, 299_998], 2),
        ] {
            let rows = 40;
            let source = bytes(stride * rows);
            let whole = read(&*source, 0, stride * rows, &Arc::default()).unwrap();
            let elements = Elements::new(source, stride, places.clone(), size).unwrap();
            let want: Vec<u8> = (0..rows)
                .flat_map(|row| places.iter().map(move |place| row * stride + place))
                .flat_map(|at| whole.as_ref()[at..at + size].to_vec())
                .collect();
            let range = elements.of_rows(&(3..38));
            let part = &want[3 * places.len() * size..38 * places.len() * size];
            let content = elements.plain(range);
            assert_eq!(content.len(), part.len() as u64);
            for start in 0..part.len() {
                let got = read(&*content, start as u64, 13, &Arc::default()).unwrap();
                assert_eq!(got.as_ref(), &part[start..(start + 13).min(part.len())]);
            }
        }
    }

    #[test]
    fn places_outside_of_a_row_are_refused() {
        assert!(Elements::new(bytes(8), 8, vec![1], 8).is_none());
        assert!(Elements::new(bytes(8), 8, vec![usize::MAX], 8).is_none());
        assert!(Elements::new(bytes(8), 8, vec![0], 0).is_none());
        assert!(Elements::new(bytes(8), 8, Vec::new(), 1).is_none());
    }
}
