//! One array of a store.

mod parts;

pub use parts::Parts;

use std::sync::Arc;

use ndarray::{Dimension, IxDyn, ShapeBuilder, SliceInfoElem};

use super::element::{Element, lies_as_served};
use super::error::Error;
use super::region::{Region, SelectionError};
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
        let content = file.open().map_err(|e| Error::of(path, e))?;
        let none = || Error::NotAnArray {
            path: path.to_owned(),
        };
        let header = npy_header(&*content).map_err(|e| Error::of(path, e))?.ok();
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
            Region::of(selection.as_ref(), &self.shape).map_err(|misfit| match misfit {
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
        let failed = |e| Error::of(&self.path, e);
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
        read.map_err(|e| Error::of(&self.path, e))
    }
}

impl std::fmt::Debug for Array {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let mut shown = f.debug_struct("Array");
        shown.field("path", &self.path).field("shape", &self.shape);
        shown.field("dtype", &self.dtype.to_string()).finish()
    }
}
