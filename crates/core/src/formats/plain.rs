//! Plain HDF5: groups are directories, datasets are `.npy` files.

pub mod array;
pub mod format;
pub mod group;
pub(crate) mod integers;
pub(crate) mod lookup;
pub mod small;
pub mod text;
