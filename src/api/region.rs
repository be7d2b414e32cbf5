//! A selection along each axis, and the runs of elements that hold it.
//!
//! Runs are places in a file, so there is no array for ndarray to slice; it is the judge in the tests.

use ndarray::SliceInfoElem;

/// The selected entries of one axis: `first`, `first + step`, … `count` of them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Along {
    first: usize,
    count: usize,
    step: isize,
}

impl Along {
    /// Selects every entry of an axis.
    fn all(len: usize) -> Self {
        Self {
            first: 0,
            count: len,
            step: 1,
        }
    }

    /// Selects what ndarray's slicing selects of an axis of `len`; `None` if it reaches beyond.
    fn of(start: isize, end: Option<isize>, step: isize, len: usize) -> Option<Self> {
        let of = |at: isize| match at {
            0.. => Some(at.unsigned_abs()),
            _ => len.checked_sub(at.unsigned_abs()),
        };
        let (start, end) = (of(start)?, end.map_or(Some(len), of)?);
        if start > len || end > len || step == 0 {
            return None;
        }
        let count = end.saturating_sub(start).div_ceil(step.unsigned_abs());
        // A negative step begins at the end.
        let first = if step < 0 && count > 0 {
            end - 1
        } else {
            start
        };
        Some(Self { first, count, step })
    }

    /// Returns the entry at a place of the selection; the place is below `count`.
    fn at(self, place: usize) -> usize {
        let by = self.step.unsigned_abs().saturating_mul(place);
        match self.step < 0 {
            true => self.first.saturating_sub(by),
            false => self.first.saturating_add(by),
        }
    }
}

/// A part of an array that is to be read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Region {
    /// For each axis of the array.
    along: Vec<Along>,
    /// The shape of the result: axes that one entry was taken of are gone, new ones have length 1.
    pub(super) shape: Vec<usize>,
}

/// A selection that does not fit the array.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum SelectionError {
    /// It has this number of axes.
    Rank(usize),
    /// It reaches beyond this axis.
    Range(usize, String),
}

impl Region {
    /// Selects the whole of an array.
    pub(super) fn whole(shape: &[usize]) -> Self {
        Self {
            along: shape.iter().map(|&len| Along::all(len)).collect(),
            shape: shape.to_vec(),
        }
    }

    /// Selects what `elements` select of an array of `shape`.
    pub(super) fn of(elements: &[SliceInfoElem], shape: &[usize]) -> Result<Self, SelectionError> {
        let takes = |e: &&SliceInfoElem| !matches!(e, SliceInfoElem::NewAxis);
        let axes = elements.iter().filter(takes).count();
        if axes != shape.len() {
            return Err(SelectionError::Rank(axes));
        }
        let mut region = Self {
            along: Vec::with_capacity(axes),
            shape: Vec::with_capacity(elements.len()),
        };
        for element in elements {
            let axis = region.along.len();
            let beyond = || SelectionError::Range(axis, element.to_string());
            match *element {
                SliceInfoElem::NewAxis => region.shape.push(1),
                SliceInfoElem::Index(at) => {
                    let end = if at == -1 { None } else { at.checked_add(1) };
                    let along = Along::of(at, end, 1, shape[axis]).filter(|a| a.count == 1);
                    region.along.push(along.ok_or_else(beyond)?);
                }
                SliceInfoElem::Slice { start, end, step } => {
                    let along = Along::of(start, end, step, shape[axis]).ok_or_else(beyond)?;
                    region.shape.push(along.count);
                    region.along.push(along);
                }
            }
        }
        Ok(region)
    }

    /// Returns the same selection of the array with its axes in the opposite order.
    pub(super) fn reversed(mut self) -> Self {
        self.along.reverse();
        self.shape.reverse();
        self
    }

    /// Returns the number of selected elements; `None` if a `usize` cannot hold it.
    pub(super) fn len(&self) -> Option<usize> {
        let mut counts = self.along.iter().map(|along| along.count);
        counts.try_fold(1_usize, usize::checked_mul)
    }

    /// Calls `each` with the first element and the length of every run of elements that lie together in an
    /// array of `shape`, in the order of the result.
    pub(super) fn runs<E>(
        &self,
        shape: &[usize],
        mut each: impl FnMut(u64, usize) -> Result<(), E>,
    ) -> Result<(), E> {
        if self.along.iter().any(|along| along.count == 0) {
            return Ok(());
        }
        // Axes behind `outer` are taken whole, and of the one before them entries in order.
        let whole = |axis: usize| self.along[axis] == Along::all(shape[axis]);
        let mut outer = shape.len();
        let mut run = 1_usize;
        while outer > 0 && whole(outer - 1) {
            outer -= 1;
            run = run.saturating_mul(shape[outer]);
        }
        if outer > 0 && (self.along[outer - 1].step == 1 || self.along[outer - 1].count == 1) {
            outer -= 1;
            run = run.saturating_mul(self.along[outer].count);
        }
        let stride = |axis: usize| {
            let behind = shape[axis + 1..].iter().map(|&n| n as u64);
            behind.fold(1_u64, u64::saturating_mul)
        };
        let strides: Vec<u64> = (0..shape.len()).map(stride).collect();
        let mut places = vec![0_usize; outer];
        loop {
            let mut first = 0_u64;
            for (axis, along) in self.along.iter().enumerate() {
                let place = places.get(axis).copied().unwrap_or(0);
                let beyond = (along.at(place) as u64).saturating_mul(strides[axis]);
                first = first.saturating_add(beyond);
            }
            each(first, run)?;
            let Some(axis) = (0..outer).rfind(|&axis| places[axis] + 1 < self.along[axis].count)
            else {
                return Ok(());
            };
            places[axis] += 1;
            places[axis + 1..].fill(0);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use ndarray::{Array, IxDyn, SliceInfo, s};
    use proptest::prelude::*;

    fn element(len: usize) -> impl Strategy<Value = SliceInfoElem> {
        let len = len as isize;
        let slice = (
            0..=len,
            0..=len,
            prop::sample::select(vec![-3_isize, -2, -1, 1, 2, 3]),
        )
            .prop_map(|(a, b, step)| SliceInfoElem::Slice {
                start: a.min(b),
                end: Some(a.max(b)),
                step,
            });
        let index = (-len..len).prop_map(SliceInfoElem::Index);
        prop_oneof![
            4 => slice,
            2 => Just(SliceInfoElem::Slice { start: 0, end: None, step: 1 }),
            1 => index,
        ]
    }

    proptest! {
        /// ndarray's own slicing is the judge.
        #[test]
        fn runs_are_what_ndarray_selects(
            (shape, elements) in prop::collection::vec(1_usize..5, 0..4).prop_flat_map(|shape| {
                let elements: Vec<_> = shape.iter().map(|&len| element(len)).collect();
                (Just(shape), elements)
            })
        ) {
            let numbers = Array::from_iter(0..shape.iter().product::<usize>());
            let all = numbers.into_shape_with_order(IxDyn(&shape)).unwrap();
            let info: SliceInfo<Vec<_>, IxDyn, IxDyn> = elements.clone().try_into().unwrap();
            let want = all.slice(&info).to_owned();
            let region = Region::of(&elements, &shape).unwrap();
            let mut got = Vec::new();
            region.runs(&shape, |first, len| {
                got.extend(first as usize..first as usize + len);
                Ok::<_, ()>(())
            }).unwrap();
            let reversed: Vec<usize> = shape.iter().rev().copied().collect();
            let mut turned = Vec::new();
            let turned_region = region.clone().reversed();
            turned_region.runs(&reversed, |first, len| {
                turned.extend(first as usize..first as usize + len);
                Ok::<_, ()>(())
            }).unwrap();
            let fortran = Array::from_iter(0..reversed.iter().product::<usize>());
            let fortran = fortran.into_shape_with_order((IxDyn(&shape), ndarray::Order::F)).unwrap();
            let kept = fortran.slice(&info);
            let kept = kept.t();
            prop_assert_eq!(&turned_region.shape, kept.shape());
            prop_assert_eq!(turned, kept.iter().copied().collect::<Vec<_>>());
            prop_assert_eq!(&region.shape, want.shape());
            prop_assert_eq!(region.len(), Some(got.len()));
            prop_assert_eq!(got, want.iter().copied().collect::<Vec<_>>());
        }
    }

    #[test]
    fn what_lies_together_is_one_run() {
        let runs = |elements: &[SliceInfoElem]| {
            let mut runs = Vec::new();
            let region = Region::of(elements, &[4, 5, 6]).unwrap();
            let _ = region.runs(&[4, 5, 6], |at, len| {
                runs.push((at, len));
                Ok::<_, ()>(())
            });
            runs
        };
        assert_eq!(runs(s![.., .., ..].as_ref()), [(0, 120)]);
        assert_eq!(runs(s![1..3, .., ..].as_ref()), [(30, 60)]);
        assert_eq!(runs(s![2, 1..3, ..].as_ref()), [(66, 12)]);
        assert_eq!(runs(s![2, 1..3, 4].as_ref()), [(70, 1), (76, 1)]);
    }

    #[test]
    fn what_reaches_beyond_is_refused() {
        let of = |elements: &[SliceInfoElem]| Region::of(elements, &[3]);
        assert_eq!(of(s![.., ..].as_ref()), Err(SelectionError::Rank(2)));
        for bad in [s![0..4].as_ref(), s![-4..].as_ref(), s![5..].as_ref()] {
            assert!(
                matches!(of(bad), Err(SelectionError::Range(0, _))),
                "{bad:?}"
            );
        }
        for bad in [3, -4, isize::MAX, isize::MIN] {
            assert!(of(s![bad].as_ref()).is_err(), "{bad}");
        }
    }
}
