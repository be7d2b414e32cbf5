//! Plain HDF5: groups are directories, datasets are `.npy` files.

pub mod array;
mod demo;
pub(crate) mod encode;
pub mod format;
pub mod group;
pub mod kind;
pub mod small;
pub mod text;
