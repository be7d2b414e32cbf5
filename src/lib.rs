//! npyfs shows HDF5 stores as directories of virtual `.npy` files.

#![deny(unsafe_code)]

mod api;
pub mod checkout;
pub mod cli;
pub mod codec;
pub mod dataset;
pub mod error;
pub mod formats;
pub mod hdf5;
pub mod io;
pub mod journal;
pub mod mount;
pub mod npy;
pub mod options;
pub mod printable;
pub mod tree;

pub use crate::npy::dtype::DType;
pub use api::{Array, Element, Entries, Entry, Error, File, OpenOptions, Store, worker_hook};
