//! An array that was written as `.npy`, in C order whatever its file says.
//!
//! Arrays in Fortran order are put into C order: small ones in memory; others through a scratch file, box by box. A box
//! is small enough for memory, and such that what it takes lies in long runs on both sides. Those runs are places in
//! files; in memory, a box is `npy::order`'s.

use std::sync::Arc;

use super::contents::{MappedElements, ScratchContent};
use crate::store::base::Base;
use npyfs_base::error::{Error, ErrorKind, Result};
use npyfs_base::npy::dtype::{DType, Kind, Order};
use npyfs_base::npy::order;
use npyfs_io::content::{Content, InMemory, Slice, complete_npy_header, npy_header};

/// An array, its elements not yet read.
#[derive(Clone)]
pub struct NpyArray {
    /// Type of the elements.
    pub dtype: DType,
    /// Shape in C order.
    pub shape: Vec<u64>,
    /// The payload in C order.
    pub data: Arc<dyn Content>,
}

impl NpyArray {
    /// The array of an `.npy` file that a mount shows: it is in C order. Reads no elements.
    pub fn shown(file: &Arc<dyn Content>) -> Result<Self> {
        let header = npy_header(&**file)??;
        header.check_len(file.len())?;
        let payload = Slice::new(file.clone(), header.start, header.len);
        Ok(Self {
            dtype: header.dtype,
            shape: header.shape,
            data: Arc::new(payload),
        })
    }

    /// The array of a whole `.npy` file.
    pub fn open(base: &dyn Base, file: &Arc<dyn Content>) -> Result<Self> {
        let header = complete_npy_header(&**file)?;
        let payload = Slice::new(file.clone(), header.start, header.len);
        let mut array = Self {
            dtype: header.dtype,
            shape: header.shape,
            data: Arc::new(payload),
        };
        let long = array.shape.iter().filter(|&&n| n > 1).count();
        if header.fortran_order && long > 1 && header.len > 0 {
            array.data = to_c_order(base, &array)?;
        }
        Ok(array)
    }

    /// Elements in all; the header was checked, so that it cannot overflow.
    pub fn elements(&self) -> u64 {
        self.shape.iter().fold(1, |n, &d| n.saturating_mul(d))
    }

    /// Kind, size and byte order of scalars.
    pub fn scalar(&self) -> Option<(Kind, usize, Order)> {
        scalar(&self.dtype)
    }

    /// Returns the array with the little end of each number first.
    pub fn little(&self) -> Self {
        let Some((kind @ (Kind::Int | Kind::Uint | Kind::Float), size, Order::Big)) = self.scalar()
        else {
            return self.clone();
        };
        let turn = move |_, from: &[u8], to: &mut [u8]| {
            to.copy_from_slice(from);
            to.chunks_exact_mut(size).for_each(<[u8]>::reverse);
            Ok(())
        };
        Self {
            dtype: DType::scalar(kind, size, Order::Little),
            shape: self.shape.clone(),
            data: MappedElements::content(self.data.clone(), size, size, turn),
        }
    }

    /// The kind of scalar elements.
    pub fn kind(&self) -> Option<Kind> {
        self.scalar().map(|(kind, ..)| kind)
    }
}

/// Most bytes of a box.
const BOX: usize = 16 << 20;

/// The payload of an array whose first axis varies fastest, in C order. At least one element.
fn to_c_order(base: &dyn Base, array: &NpyArray) -> Result<Arc<dyn Content>> {
    let whole = array.data.len() <= BOX as u64;
    let turn = Transpose::new(array, BOX)?;
    if whole {
        let mut out = vec![0; usize::try_from(array.data.len()).map_err(|_| too_large())?];
        turn.run(&*array.data, |at, bytes| {
            // The whole is one box, and runs to the end.
            let at = usize::try_from(at).map_err(|_| too_large())?;
            let place = out.get_mut(at..at.saturating_add(bytes.len()));
            place.ok_or_else(too_large)?.copy_from_slice(bytes);
            Ok(())
        })?;
        return Ok(Arc::new(InMemory(out)));
    }
    let scratch = base.scratch();
    scratch.set_len(array.data.len())?;
    turn.run(&*array.data, |at, bytes| Ok(scratch.write_at(bytes, at)?))?;
    Ok(Arc::new(ScratchContent::new(scratch, array.data.len())))
}

fn too_large() -> Error {
    Error::new(ErrorKind::TooLarge, "the array does not fit in memory")
}

/// An array cut into boxes.
struct Transpose {
    shape: Vec<u64>,
    /// Extent of a box along each axis.
    extent: Vec<u64>,
    /// Bytes of an element.
    element: usize,
}

impl Transpose {
    fn new(array: &NpyArray, most: usize) -> Result<Self> {
        let element = array.dtype.size();
        let room = (most / element.max(1)).max(1) as u64;
        Ok(Self {
            extent: extent(&array.shape, room),
            shape: array.shape.clone(),
            element,
        })
    }

    /// Takes every box from `from` and hands its runs on, each with its offset in C order.
    fn run(&self, from: &dyn Content, mut put: impl FnMut(u64, &[u8]) -> Result<()>) -> Result<()> {
        let rank = self.shape.len();
        let reversed: Vec<usize> = (0..rank).rev().collect();
        let forward: Vec<usize> = (0..rank).collect();
        let mut start = vec![0_u64; rank];
        let (mut source, mut transposed) = (Vec::new(), Vec::new());
        loop {
            let part: Vec<u64> = (0..rank)
                .map(|axis| self.extent[axis].min(self.shape[axis] - start[axis]))
                .collect();
            let elements = part
                .iter()
                .try_fold(1_usize, |n, &d| n.checked_mul(usize::try_from(d).ok()?));
            let len = elements.and_then(|n| n.checked_mul(self.element));
            let len = len.ok_or_else(too_large)?;
            source.resize(len, 0);
            transposed.resize(len, 0);
            // In Fortran order the slowest axis is the last.
            let mut done = 0;
            self.runs(&start, &part, &reversed, |at, size| {
                let place = source.get_mut(done..done + size).unwrap_or_default();
                done += size;
                from.read_at(at, place)
            })?;
            order::to_c_order(&part, self.element, &source, &mut transposed)
                .ok_or_else(too_large)?;
            let mut done = 0;
            self.runs(&start, &part, &forward, |at, size| {
                let bytes = transposed.get(done..done + size).unwrap_or_default();
                done += size;
                put(at, bytes)
            })?;
            if !step(&mut start, &self.extent, &self.shape) {
                return Ok(());
            }
        }
    }

    /// The runs of bytes that a box takes, in an order of axes from the slowest to the fastest.
    fn runs(
        &self,
        start: &[u64],
        part: &[u64],
        axes: &[usize],
        mut see: impl FnMut(u64, usize) -> Result<()>,
    ) -> Result<()> {
        // Axes behind the last that the box does not fill lie together.
        let whole = axes
            .iter()
            .rposition(|&axis| part[axis] < self.shape[axis])
            .unwrap_or(0);
        let (outer, inner) = axes.split_at(whole);
        // The whole array fits into a file: these products cannot overflow.
        let run = inner.iter().map(|&axis| part[axis]).product::<u64>() * self.element as u64;
        let size = usize::try_from(run).map_err(|_| too_large())?;
        let mut place = vec![0; outer.len()];
        loop {
            let mut at = 0;
            for (i, &axis) in axes.iter().enumerate() {
                let index = start[axis] + place.get(i).copied().unwrap_or(0);
                at = at * self.shape[axis] + index;
            }
            see(at * self.element as u64, size)?;
            let mut more = false;
            for (i, &axis) in outer.iter().enumerate().rev() {
                place[i] += 1;
                if place[i] < part[axis] {
                    more = true;
                    break;
                }
                place[i] = 0;
            }
            if !more {
                return Ok(());
            }
        }
    }
}

/// A box of at most `room` elements, with runs of about equal length on both sides: axes are filled from
/// the first on to a root of the room, then from the last on, then from the first with what is left.
fn extent(shape: &[u64], room: u64) -> Vec<u64> {
    let mut extent = vec![1; shape.len()];
    let mut fill = |axes: &mut dyn Iterator<Item = usize>, most: u64| {
        for axis in axes {
            let others: u64 = extent
                .iter()
                .enumerate()
                .filter(|(i, _)| *i != axis)
                .map(|(_, n)| *n)
                .product();
            let here = (most / others.max(1)).max(extent[axis]).min(shape[axis]);
            extent[axis] = here;
            if here < shape[axis] {
                return;
            }
        }
    };
    fill(&mut (0..shape.len()), room.isqrt());
    fill(&mut (0..shape.len()).rev(), room);
    fill(&mut (0..shape.len()), room);
    extent
}

/// The start of the next box; `false` behind the last.
fn step(start: &mut [u64], extent: &[u64], shape: &[u64]) -> bool {
    for axis in (0..shape.len()).rev() {
        start[axis] += extent[axis];
        if start[axis] < shape[axis] {
            return true;
        }
        start[axis] = 0;
    }
    false
}

/// Returns the kind, size and byte order of a type without members.
pub(crate) fn scalar(dtype: &DType) -> Option<(Kind, usize, Order)> {
    match dtype {
        DType::Scalar {
            kind, size, order, ..
        } => Some((*kind, *size, *order)),
        DType::Struct { .. } => None,
    }
}
