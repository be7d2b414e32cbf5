//! Plain HDF5: every array is a dataset of its own.

use std::sync::Arc;

use super::array::Array;
use super::mapped::Mapped;
use super::{Base, Key, Plan, single, utf8};
use crate::checkout::object::NewFile;
use crate::checkout::target::Part;
use crate::content::Content;
use crate::dtype::{DType, Kind, Order};
use crate::error::Result;
use crate::h5::{NewDataset, NewElement};

/// Bytes of text that are looked at at a time.
const STEP: usize = 1 << 20;

pub fn plan(base: &dyn Base, key: &Key, parts: &[Part]) -> Result<Plan> {
    let array = Array::open(base, &single(parts)?.content)?;
    let mut new = NewFile::default();
    add(&mut new, key.path(), &array)?;
    Ok(Plan::Complete(new))
}

/// Adds an array as a dataset of its own type; text becomes UTF-8.
pub fn add(new: &mut NewFile, path: &[String], array: &Array) -> Result<()> {
    let mut dataset = NewDataset::new(path, array.dtype.clone(), &array.shape);
    let mut data = array.data.clone();
    match array.scalar() {
        Some((Kind::Text, size, order)) => {
            let width = longest(array, size, order)?.max(1);
            dataset.element = NewElement::Utf8(width);
            data = text(array, size, order, width);
        }
        // NumPy has arrays of `|S0`; HDF5 has no such type.
        Some((Kind::Bytes, 0, _)) => {
            dataset.element = NewElement::Array(DType::bytes(1));
            data = empty_elements(array.elements());
        }
        _ => {}
    }
    new.add(dataset, data);
    Ok(())
}

/// The longest element in bytes of UTF-8: a pass over all of them.
fn longest(array: &Array, size: usize, order: Order) -> Result<usize> {
    let step = (STEP / size.max(1)).max(1) * size;
    let (mut block, mut element) = (vec![0; step], Vec::new());
    let (mut at, mut most) = (0, 0);
    while at < array.data.len() {
        let left = usize::try_from(array.data.len() - at).unwrap_or(step);
        let block = block.get_mut(..left.min(step)).unwrap_or_default();
        array.data.read_at(at, block)?;
        for text in block.chunks_exact(size.max(1)) {
            element.clear();
            utf8::encode(text, order, &mut element)?;
            most = most.max(element.len());
        }
        at += block.len() as u64;
    }
    Ok(most)
}

/// Elements of `size` bytes in UTF-8 of `width`.
fn text(array: &Array, size: usize, order: Order, width: usize) -> Arc<dyn Content> {
    if size == 0 {
        return empty_elements(array.elements().saturating_mul(width as u64));
    }
    Mapped::content(array.data.clone(), size, width, move |_, from, to| {
        let mut element = Vec::new();
        for (text, place) in from.chunks_exact(size).zip(to.chunks_exact_mut(width)) {
            element.clear();
            utf8::encode(text, order, &mut element)?;
            element.resize(width, 0);
            place.copy_from_slice(&element);
        }
        Ok(())
    })
}

/// Zeros, which nobody has to write.
pub fn empty_elements(len: u64) -> Arc<dyn Content> {
    Arc::new(Zeros(len))
}

struct Zeros(u64);

impl Content for Zeros {
    fn len(&self) -> u64 {
        self.0
    }

    fn read_at(&self, _offset: u64, buf: &mut [u8]) -> Result<()> {
        buf.fill(0);
        Ok(())
    }

    fn written(&self, _from: u64) -> Result<Option<std::ops::Range<u64>>> {
        Ok(None)
    }
}
