//! Vectors of integers whose values matter: indices, starts, codes.

use std::sync::Arc;

use super::array::NpyArray;
use super::contents::MappedElements;
use super::text::windows;
use crate::store::base::invalid;
use npyfs_base::error::Result;
use npyfs_base::npy::dtype::integer;
use npyfs_base::npy::dtype::{DType, Kind, Order};
use npyfs_io::content::Content;

/// A vector of integers.
#[derive(Clone)]
pub struct Integers {
    array: NpyArray,
    kind: Kind,
    size: usize,
    order: Order,
}

impl Integers {
    /// An array that must be one; `name` is told if it is not.
    pub fn new(name: &str, array: NpyArray) -> Result<Self> {
        match array.scalar() {
            Some((kind @ (Kind::Int | Kind::Uint), size @ 1..=8, order))
                if array.shape.len() == 1 =>
            {
                Ok(Self {
                    array,
                    kind,
                    size,
                    order,
                })
            }
            _ => {
                let (dtype, shape) = (array.dtype.name(), &array.shape);
                Err(invalid(format!(
                    "{name} is {dtype} of shape {shape:?}, not a vector of integers"
                )))
            }
        }
    }

    /// Returns how many there are.
    pub fn len(&self) -> u64 {
        self.array.elements()
    }

    /// Returns true if there are none.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Returns whether it is stored in this type already.
    pub fn is(&self, dtype: &DType) -> bool {
        self.array.dtype == *dtype
    }

    /// The elements as they came.
    pub fn data(&self) -> &Arc<dyn Content> {
        &self.array.data
    }

    /// Every value with its number.
    pub fn each(&self, mut see: impl FnMut(u64, i64) -> Result<()>) -> Result<()> {
        let mut number = 0;
        windows(&self.array, self.size, |block| {
            for bytes in block.chunks_exact(self.size) {
                see(number, value(bytes, self.kind, self.order)?)?;
                number += 1;
            }
            Ok(())
        })
    }

    /// The values from `first` on, as many as `out` has.
    pub fn read(&self, first: u64, out: &mut [i64]) -> Result<()> {
        let mut bytes = vec![0; out.len().saturating_mul(self.size)];
        let at = first.saturating_mul(self.size as u64);
        self.array.data.read_at(at, &mut bytes)?;
        for (place, bytes) in out.iter_mut().zip(bytes.chunks_exact(self.size)) {
            *place = value(bytes, self.kind, self.order)?;
        }
        Ok(())
    }

    /// The values as little-endian 64-bit integers.
    pub fn wide(&self) -> Arc<dyn Content> {
        let (kind, size, order) = (self.kind, self.size, self.order);
        if self.is(&DType::int(8)) {
            return self.array.data.clone();
        }
        MappedElements::content(self.array.data.clone(), size, 8, move |_, from, to| {
            for (bytes, place) in from.chunks_exact(size).zip(to.chunks_exact_mut(8)) {
                place.copy_from_slice(&value(bytes, kind, order)?.to_le_bytes());
            }
            Ok(())
        })
    }
}

fn value(bytes: &[u8], kind: Kind, order: Order) -> Result<i64> {
    integer(bytes, kind, order).ok_or_else(|| invalid("an integer of more than 63 bits"))
}
