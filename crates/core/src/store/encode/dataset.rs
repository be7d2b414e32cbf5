//! An array as one dataset.

use std::sync::Arc;

use super::array::NpyArray;
use super::spooled_file::Zeros;
use super::text;
use crate::store::object::NewFile;
use npyfs_base::error::Result;
use npyfs_base::npy::dtype::{DType, Kind};
use npyfs_hdf5::{NewDataset, NewElement};

/// Adds an array as a dataset of its own type; text becomes UTF-8.
pub(crate) fn add(new: &mut NewFile, path: &[String], array: &NpyArray) -> Result<()> {
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
