//! One array of a store, read whole, in part, or part by part.
//!
//! What is read is a region: a selection along each axis, and the runs of elements that hold it. Runs are places in a
//! file, so there is no array for ndarray to slice; it is the judge in the tests.

use std::marker::PhantomData;
use std::sync::Arc;

use ndarray::{Dimension, IxDyn, ShapeBuilder, SliceInfoElem};

use super::Error;
use super::element::{Element, lies_as_served};
use npyfs_base::npy::dtype::DType;
use npyfs_base::npy::parse::Header;
use npyfs_core::tree::VirtualFile;
use npyfs_io::content::{Content, npy_header};

/// Bytes that are asked for at a time: enough for several chunks to be decoded side by side.
const STEP: usize = 4 << 20;

/// An open array of a store, whose elements are read when they are asked for.
pub struct Array {
    path: String,
    file: Arc<dyn VirtualFile>,
    content: Arc<dyn Content>,
    dtype: DType,
    shape: Vec<usize>,
    /// The elements lie in Fortran order.
    fortran_order: bool,
    /// The offset in the file at which the elements begin.
    start: u64,
}

impl Array {
    pub(super) fn open(path: &str, file: Arc<dyn VirtualFile>) -> Result<Self, Error> {
        let content = file.open().map_err(|e| Error::about(path, e))?;
        let none = || Error::NotAnArray {
            path: path.to_owned(),
        };
        let header = npy_header(&*content)
            .map_err(|e| Error::about(path, e))?
            .ok();
        let Header {
            dtype,
            shape,
            start,
            fortran_order,
            ..
        } = header.ok_or_else(none)?;
        let shape = shape.iter().map(|&n| usize::try_from(n));
        let shape = shape.collect::<Result<_, _>>().map_err(|_| none())?;
        Ok(Self {
            path: path.to_owned(),
            file,
            content,
            dtype,
            shape,
            fortran_order,
            start,
        })
    }

    /// Returns the path in the store.
    pub fn path(&self) -> &str {
        &self.path
    }

    /// Returns the type of the elements.
    pub fn dtype(&self) -> &DType {
        &self.dtype
    }

    /// Returns the number of entries along each axis; empty for a 0-d array.
    pub fn shape(&self) -> &[usize] {
        &self.shape
    }

    /// Reads all elements. An array that lies in Fortran order, as those of MATLAB, has this order in memory, too.
    ///
    /// `T` is a type that the elements fit into without loss, see [`Element`]; `D` is the dimension.
    ///
    /// ```standalone_crate
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # npyfs::worker_hook();
    /// # let _directory = npyfs_core::formats::demo::enter()?;
    /// use ndarray::{Array1, Array2, ArrayD};
    ///
    /// let store = npyfs::Store::open("cells.h5df")?;
    /// let names: Array1<String> = store.array("cell#")?.read()?;
    /// let scores: Array2<f32> = store.array("cell,gene#score")?.read()?;
    /// let of_any_rank: ArrayD<f32> = store.array("cell,gene#score")?.read()?;
    /// assert_eq!((names.len(), scores.dim(), of_any_rank.ndim()), (1000, (1000, 200), 2));
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    ///
    /// [`Error::WrongType`] and [`Error::WrongRank`] if the array is none of `T` with `D` axes, and whatever
    /// keeps the bytes from being read.
    pub fn read<T: Element, D: Dimension>(&self) -> Result<ndarray::Array<T, D>, Error> {
        self.region(&Region::whole(&self.shape))
    }

    /// Reads the part that `selection` selects, as `ndarray`'s `slice` would of the whole array.
    ///
    /// `D` is the dimension of the result. Only chunks that hold a selected element are decoded.
    ///
    /// ```standalone_crate
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # npyfs::worker_hook();
    /// # let _directory = npyfs_core::formats::demo::enter()?;
    /// use ndarray::{Ix1, Ix2, s};
    ///
    /// let store = npyfs::Store::open("cells.h5df")?;
    /// let scores = store.array("cell,gene#score")?;
    /// let rows = scores.slice::<f32, Ix2>(s![10..20, ..])?;
    /// let column = scores.slice::<f32, Ix1>(s![..;100, -1])?;
    /// assert_eq!((rows.dim(), column.len()), ((10, 200), 10));
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    ///
    /// Those of [`read`](Self::read), and [`Error::OutOfRange`] where `ndarray` would panic.
    pub fn slice<T: Element, D: Dimension>(
        &self,
        selection: impl AsRef<[SliceInfoElem]>,
    ) -> Result<ndarray::Array<T, D>, Error> {
        let region =
            Region::select(selection.as_ref(), &self.shape).map_err(|misfit| match misfit {
                SelectionError::Rank(wanted) => Error::WrongRank {
                    path: self.path.clone(),
                    found: self.shape.len(),
                    wanted,
                },
                SelectionError::Range(axis, selection) => Error::OutOfRange {
                    path: self.path.clone(),
                    selection,
                    axis,
                    len: self.shape.get(axis).copied().unwrap_or(0),
                },
            })?;
        self.region(&region)
    }

    /// Reads the array in parts of `rows` entries along the first axis, the last one of what is left. The memory is
    /// that of one part.
    ///
    /// [`part_rows`](Self::part_rows) says how many are good. An array without axes is one part; 0 counts as 1.
    ///
    /// ```standalone_crate
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # npyfs::worker_hook();
    /// # let _directory = npyfs_core::formats::demo::enter()?;
    /// use ndarray::Ix2;
    ///
    /// let store = npyfs::Store::open("cells.h5df")?;
    /// let scores = store.array("cell,gene#score")?;
    /// let mut sum = 0.0;
    /// for part in scores.parts::<f32, Ix2>(scores.part_rows()?) {
    ///     sum += part?.mapv(f64::from).sum();
    /// }
    /// assert_eq!(scores.parts::<f32, Ix2>(300).len(), 4);
    /// # assert!(sum > 0.0);
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    ///
    /// Each part has those of [`slice`](Self::slice).
    pub fn parts<T: Element, D: Dimension>(&self, rows: usize) -> Parts<'_, T, D> {
        Parts::new(self, rows)
    }

    /// Returns the number of entries along the first axis whose reading decodes no chunk twice: whole chunks, as many
    /// as 4 MiB hold, and at least one.
    ///
    /// # Errors
    ///
    /// [`Error::Store`] if the chunks of the array cannot be found out.
    pub fn part_rows(&self) -> Result<usize, Error> {
        let failed = |e| Error::about(&self.path, e);
        let stored = self.file.clone().array().map_err(failed)?;
        let described = stored
            .map(|stored| stored.describe())
            .transpose()
            .map_err(failed)?;
        let chunk = described.and_then(|of| usize::try_from(*of.chunk.first()?).ok());
        let chunk = chunk.unwrap_or(1).max(1);
        let behind = self.shape.iter().skip(1).copied();
        let row = behind.fold(self.dtype.size(), usize::saturating_mul).max(1);
        Ok((STEP / row / chunk).max(1).saturating_mul(chunk))
    }

    fn region<T: Element, D: Dimension>(
        &self,
        region: &Region,
    ) -> Result<ndarray::Array<T, D>, Error> {
        if !T::fits(&self.dtype) {
            return Err(Error::WrongType {
                path: self.path.clone(),
                found: self.dtype.to_string(),
                wanted: T::NAME,
            });
        }
        let found = region.shape.len();
        let rank = |wanted| Error::WrongRank {
            path: self.path.clone(),
            found,
            wanted,
        };
        if let Some(wanted) = D::NDIM.filter(|&wanted| wanted != found) {
            return Err(rank(wanted));
        }
        let (elements, shape) = match self.fortran_order {
            true => {
                let reversed: Vec<usize> = self.shape.iter().rev().copied().collect();
                let elements = self.elements::<T>(&region.clone().reversed(), &reversed)?;
                (elements, IxDyn(&region.shape).f())
            }
            false => (
                self.elements::<T>(region, &self.shape)?,
                IxDyn(&region.shape).into(),
            ),
        };
        ndarray::Array::from_shape_vec(shape, elements)
            .and_then(|array| array.into_dimensionality::<D>())
            .map_err(|_| rank(D::NDIM.unwrap_or(found)))
    }

    /// Reads the selected elements of an array that lies in C order with this shape, in C order.
    fn elements<T: Element>(&self, region: &Region, shape: &[usize]) -> Result<Vec<T>, Error> {
        let size = self.dtype.size();
        let too_large = |count: Option<usize>| Error::TooLarge {
            path: self.path.clone(),
            bytes: count.unwrap_or(usize::MAX) as u128 * size_of::<T>() as u128,
        };
        let count = region.len().ok_or_else(|| too_large(None))?;
        let mut elements = Vec::new();
        elements
            .try_reserve_exact(count)
            .map_err(|_| too_large(Some(count)))?;
        let offset = |element: u64| {
            element
                .saturating_mul(size as u64)
                .saturating_add(self.start)
        };
        let as_served = lies_as_served(&self.dtype) && size == size_of::<T>();
        let mut bytes = Vec::new();
        region.runs(shape, |first, len| {
            let per_step = (STEP / size.max(1)).max(1);
            let mut done = 0;
            while done < len {
                let now = per_step.min(len - done);
                let at = offset(first + done as u64);
                let begun = elements.len();
                if as_served {
                    elements.resize(begun + now, T::blank());
                    if let Some(memory) = T::memory(&mut elements[begun..]) {
                        self.fill(at, memory)?;
                        done += now;
                        continue;
                    }
                    elements.truncate(begun);
                }
                bytes.resize(now * size, 0);
                self.fill(at, &mut bytes)?;
                for place in 0..now {
                    let one = &bytes[place * size..(place + 1) * size];
                    let decoded = T::decode(one, &self.dtype);
                    elements.push(decoded.map_err(|reason| Error::Element {
                        path: self.path.clone(),
                        index: begun + place,
                        reason,
                    })?);
                }
                done += now;
            }
            Ok(())
        })?;
        Ok(elements)
    }

    fn fill(&self, at: u64, buf: &mut [u8]) -> Result<(), Error> {
        let read = self.content.read_at(at, buf);
        read.map_err(|e| Error::about(&self.path, e))
    }
}

impl std::fmt::Debug for Array {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let mut shown = f.debug_struct("Array");
        shown.field("path", &self.path).field("shape", &self.shape);
        shown.field("dtype", &self.dtype.to_string()).finish()
    }
}

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
    fn new(array: &'a Array, rows: usize) -> Self {
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

/// The selected entries of one axis: `first`, `first + step`, … `count` of them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct AxisSelection {
    first: usize,
    count: usize,
    step: isize,
}

impl AxisSelection {
    /// Selects every entry of an axis.
    fn all(len: usize) -> Self {
        Self {
            first: 0,
            count: len,
            step: 1,
        }
    }

    /// Selects what ndarray's slicing selects of an axis of `len`; `None` if it reaches beyond.
    fn select(start: isize, end: Option<isize>, step: isize, len: usize) -> Option<Self> {
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
struct Region {
    /// For each axis of the array.
    along: Vec<AxisSelection>,
    /// The shape of the result: axes that one entry was taken of are gone, new ones have length 1.
    pub(super) shape: Vec<usize>,
}

/// A selection that does not fit the array.
#[derive(Clone, Debug, PartialEq, Eq)]
enum SelectionError {
    /// It has this number of axes.
    Rank(usize),
    /// It reaches beyond this axis.
    Range(usize, String),
}

impl Region {
    /// Selects the whole of an array.
    pub(super) fn whole(shape: &[usize]) -> Self {
        Self {
            along: shape.iter().map(|&len| AxisSelection::all(len)).collect(),
            shape: shape.to_vec(),
        }
    }

    /// Selects what `elements` select of an array of `shape`.
    pub(super) fn select(
        elements: &[SliceInfoElem],
        shape: &[usize],
    ) -> Result<Self, SelectionError> {
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
                    let along =
                        AxisSelection::select(at, end, 1, shape[axis]).filter(|a| a.count == 1);
                    region.along.push(along.ok_or_else(beyond)?);
                }
                SliceInfoElem::Slice { start, end, step } => {
                    let along =
                        AxisSelection::select(start, end, step, shape[axis]).ok_or_else(beyond)?;
                    region.shape.push(along.count);
                    region.along.push(along);
                }
            }
        }
        Ok(region)
    }

    /// Returns the same selection of the array with its axes in the opposite order.
    fn reversed(mut self) -> Self {
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
        let whole = |axis: usize| self.along[axis] == AxisSelection::all(shape[axis]);
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
    use ndarray::{Array, SliceInfo, s};
    use proptest::prelude::*;

    use super::*;

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
            let region = Region::select(&elements, &shape).unwrap();
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
            let region = Region::select(elements, &[4, 5, 6]).unwrap();
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
        let of = |elements: &[SliceInfoElem]| Region::select(elements, &[3]);
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
