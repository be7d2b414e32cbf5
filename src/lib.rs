//! npyfs shows HDF5 stores as directories of virtual `.npy` files.

#![deny(unsafe_code)]
#![warn(missing_docs)]
// With the feature what is `pub` anywhere counts as public, which it is for the first lint, and not for the second.
#![cfg_attr(
    feature = "internals",
    warn(unreachable_pub),
    allow(clippy::len_without_is_empty)
)]

#[allow(missing_docs, unreachable_pub)]
mod api;
#[allow(missing_docs, unreachable_pub)]
mod checkout;
#[allow(missing_docs, unreachable_pub)]
mod cli;
mod codec;
mod command;
mod dataset;
mod error;
#[allow(missing_docs, unreachable_pub)]
mod formats;
mod hdf5;
mod io;
mod journal;
#[allow(missing_docs, unreachable_pub)]
mod mount;
mod npy;
mod options;
mod printable;
mod tree;

pub use crate::npy::dtype::DType;
pub use api::{Array, Element, Entries, Entry, Error, File, OpenOptions, Store, worker_hook};

#[doc(hidden)]
pub use command::main;

/// The modules, for this package's own tests and benches, which take more than the interface.
#[cfg(feature = "internals")]
#[doc(hidden)]
pub mod internals {
    macro_rules! open {
        ($($module:ident)*) => {
            $(pub mod $module {
                pub use crate::$module::*;
            })*
        };
    }
    open!(
        checkout cli codec dataset error formats hdf5 io journal mount npy options printable tree
    );
}
