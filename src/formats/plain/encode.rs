//! Plain HDF5: every array is a dataset of its own.

use std::sync::Arc;

use crate::checkout::encode::array::Array;
use crate::checkout::encode::spool::Zeros;
use crate::checkout::encode::{Base, Key, Plan, single, text, unsupported};
use crate::checkout::object::NewFile;
use crate::checkout::target::Part;
use crate::error::Result;
use crate::hdf5::{NewDataset, NewElement};
use crate::npy::dtype::{DType, Kind};

pub fn plan(base: &dyn Base, key: &Key, parts: &[Part]) -> Result<Plan> {
    if parts.iter().any(|part| !part.place.member.is_empty()) {
        return Err(unsupported(
            "text that is shown in parts cannot be written in parts",
        ));
    }
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
        Some((Kind::Text, ..)) => {
            let (width, utf8) = text::utf8(array)?;
            dataset.element = NewElement::Utf8(width);
            text::mark(&mut dataset, array);
            data = utf8;
        }
        // NumPy has arrays of `|S0`; HDF5 has no such type.
        Some((Kind::Bytes, 0, _)) => {
            dataset.element = NewElement::Array(DType::bytes(1));
            data = Arc::new(Zeros(array.elements()));
        }
        _ => {}
    }
    new.add(dataset, data);
    Ok(())
}
