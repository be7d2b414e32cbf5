//! An array that was written as `.npy`, in C order whatever its file says.

use std::sync::Arc;

use super::mapped::Mapped;
use crate::store::base::Base;
use npyfs_base::error::Result;
use npyfs_base::npy::dtype::{DType, Kind, Order};
use npyfs_io::content::{Content, Slice, npy_header};
use npyfs_io::npy_file::header;

pub(crate) mod transpose;

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
        let header = header(&**file)?;
        let payload = Slice::new(file.clone(), header.start, header.len);
        let mut array = Self {
            dtype: header.dtype,
            shape: header.shape,
            data: Arc::new(payload),
        };
        let long = array.shape.iter().filter(|&&n| n > 1).count();
        if header.fortran_order && long > 1 && header.len > 0 {
            array.data = transpose::to_c_order(base, &array)?;
        }
        Ok(array)
    }

    /// Elements in all; the header was checked, so that it cannot overflow.
    pub fn elements(&self) -> u64 {
        self.shape.iter().fold(1, |n, &d| n.saturating_mul(d))
    }

    /// Kind, size and byte order of scalars.
    pub fn scalar(&self) -> Option<(Kind, usize, Order)> {
        match &self.dtype {
            DType::Scalar {
                kind, size, order, ..
            } => Some((*kind, *size, *order)),
            DType::Struct { .. } => None,
        }
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
            data: Mapped::content(self.data.clone(), size, size, turn),
        }
    }

    /// The kind of scalar elements.
    pub fn kind(&self) -> Option<Kind> {
        self.scalar().map(|(kind, ..)| kind)
    }
}
