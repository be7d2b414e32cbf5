//! An array that is read part by part.

use std::marker::PhantomData;

use ndarray::{Dimension, SliceInfoElem};

use super::Array;
use crate::api::element::Element;
use crate::api::error::Error;

/// The parts of an array along its first axis, in order, from [`Array::parts`].
///
/// Each is read when it is asked for. After an error the next part can be asked for.
#[derive(Debug)]
pub struct Parts<'a, T, D> {
    array: &'a Array,
    /// Entries along the first axis that a part has, but for the last one.
    rows: usize,
    /// The first entry of the next part.
    next: usize,
    elements: PhantomData<(T, D)>,
}

impl<'a, T: Element, D: Dimension> Parts<'a, T, D> {
    pub(super) fn new(array: &'a Array, rows: usize) -> Self {
        Self {
            array,
            rows: rows.max(1),
            next: 0,
            elements: PhantomData,
        }
    }

    /// Returns the number of entries along the first axis; an array without axes counts as one.
    fn entries(&self) -> usize {
        self.array.shape().first().copied().unwrap_or(1)
    }
}

impl<T: Element, D: Dimension> Iterator for Parts<'_, T, D> {
    type Item = Result<ndarray::Array<T, D>, Error>;

    fn next(&mut self) -> Option<Self::Item> {
        let (start, end) = (
            self.next,
            self.entries().min(self.next.saturating_add(self.rows)),
        );
        if start >= end {
            return None;
        }
        self.next = end;
        let along = |start: usize, end: Option<usize>| SliceInfoElem::Slice {
            start: start as isize,
            end: end.map(|end| end as isize),
            step: 1,
        };
        let axes = self.array.shape().len();
        let selection = (0..axes).map(|axis| match axis {
            0 => along(start, Some(end)),
            _ => along(0, None),
        });
        Some(self.array.slice(selection.collect::<Vec<_>>()))
    }

    fn size_hint(&self) -> (usize, Option<usize>) {
        let left = self.entries().saturating_sub(self.next).div_ceil(self.rows);
        (left, Some(left))
    }
}

impl<T: Element, D: Dimension> ExactSizeIterator for Parts<'_, T, D> {}
