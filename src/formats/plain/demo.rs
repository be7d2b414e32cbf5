//! A plain HDF5 file with images.

use hdf5::types::VarLenUnicode;
use hdf5::{File, Result};
use ndarray::Array3;

use crate::formats::demo::vector;

/// Fills a file.
pub(super) fn fill(file: &File) -> Result<()> {
    let images = file.create_group("images")?;
    let stack = images
        .new_dataset::<u8>()
        .shape((64, 128, 128))
        .chunk((1, 128, 128))
        .shuffle()
        .deflate(4)
        .create("stack")?;
    let pixels = Array3::from_shape_fn((64, 128, 128), |(z, y, x)| (z + y + x) as u8);
    stack.write(&pixels)?;
    let units: VarLenUnicode = "counts".parse().unwrap_or_default();
    stack
        .new_attr::<VarLenUnicode>()
        .create("units")?
        .write_scalar(&units)?;
    let names: Vec<VarLenUnicode> = ["alpha", "beta", "gamma"]
        .iter()
        .map(|name| name.parse().unwrap_or_default())
        .collect();
    vector(file, "names", &names)?;
    file.new_dataset::<f64>()
        .create("pi")?
        .write_scalar(&std::f64::consts::PI)?;
    file.link_soft("/images/stack", "latest")
}
