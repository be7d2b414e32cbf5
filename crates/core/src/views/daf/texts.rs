//! Elements of a vector of text, read in ranges.

use std::ops::Range;
use std::sync::Arc;

use crate::store::encode::{NpyArray, text};
use crate::views::unfit::{Unfit, left_out};
use npyfs_io::content::Slice;

/// A vector of text, or a matrix flattened to one.
pub(super) struct TextArray {
    array: NpyArray,
    /// Bytes of an element as shown.
    width: usize,
}

impl TextArray {
    /// Wraps an array, if it is text of at most `most` bytes.
    pub(super) fn new(array: NpyArray, most: u64) -> Result<Self, Unfit> {
        let width = array.scalar().map_or(0, |(_, size, _)| size);
        let elements = array.elements();
        let bytes = elements.saturating_mul(width.max(1) as u64);
        if bytes > most {
            return left_out(format!(
                "text of {elements} elements of {width} bytes is larger than text_limit"
            ));
        }
        Ok(Self { array, width })
    }

    /// Returns the number of elements.
    pub(super) fn len(&self) -> u64 {
        self.array.elements()
    }

    /// Returns the bytes of an element in the store.
    pub(super) fn width(&self) -> usize {
        self.width
    }

    /// Reads the elements of a range.
    pub(super) fn read(&self, range: Range<u64>) -> Result<Texts, Unfit> {
        let count = range.end.min(self.len()).saturating_sub(range.start);
        let width = self.width as u64;
        let (start, len) = (
            range.start.saturating_mul(width),
            count.saturating_mul(width),
        );
        let part = NpyArray {
            dtype: self.array.dtype.clone(),
            shape: vec![count],
            data: Arc::new(Slice::new(self.array.data.clone(), start, len)),
        };
        let mut texts = Texts::default();
        text::each(&part, |_, element| {
            texts.bytes.extend_from_slice(element);
            texts.ends.push(texts.bytes.len());
            Ok(())
        })?;
        Ok(texts)
    }
}

/// Elements in memory, without their padding.
#[derive(Default)]
pub(super) struct Texts {
    bytes: Vec<u8>,
    ends: Vec<usize>,
}

impl Texts {
    /// Returns an element; empty if it does not exist.
    pub(super) fn get(&self, number: u64) -> &[u8] {
        let at = usize::try_from(number).unwrap_or(usize::MAX);
        let end = self.ends.get(at).copied().unwrap_or(0);
        let before = at.checked_sub(1).and_then(|at| self.ends.get(at));
        let start = before.copied().unwrap_or(0);
        self.bytes.get(start..end).unwrap_or_default()
    }

    /// Returns the elements in order.
    pub(super) fn iter(&self) -> impl Iterator<Item = &[u8]> {
        (0..self.ends.len() as u64).map(|number| self.get(number))
    }
}
