//! Arrays of HDF5 stores for Rust programs: the same names and the same bytes as in a mount of `npyfs`, without a
//! mount.
//!
//! A [`Store`] is an HDF5 file, a daf or Arkouda store, a Hangar repository, or a directory of such. It lists its
//! arrays, and reads them whole or in part into `ndarray`s. Nothing is ever written to it.
//!
//! ```standalone_crate
//! use ndarray::{Array2, Ix2, s};
//!
//! fn main() -> Result<(), Box<dyn std::error::Error>> {
//!     npyfs::worker_hook(); // first thing in main
//! #   let _directory = npyfs::internals::enter_demonstration()?;
//!     let store = npyfs::Store::open("cells.h5df")?;
//!     for entry in store.entries("/")? {
//!         println!("{} {} {:?}", entry.path, entry.dtype, entry.shape);
//!     }
//!     let scores = store.array("cell,gene#score")?;
//!     let all: Array2<f32> = scores.read()?;
//!     let some = scores.slice::<f32, Ix2>(s![10..20, ..])?; // decodes only what it touches
//!     assert_eq!(some, all.slice(s![10..20, ..]));
//!     Ok(())
//! }
//! ```
//!
//! # Worker processes
//!
//! HDF5 runs in sandboxed worker processes, never in the program: a damaged file costs a worker. [`worker_hook`]
//! makes the program start them of itself. A program that does not call it needs the installed `npyfs` of the same
//! version.

#![deny(unsafe_code)]
#![warn(missing_docs)]
#![cfg_attr(not(test), deny(clippy::disallowed_methods))]
// With the feature what is `pub` anywhere counts as public, which it is for the first lint, and not for the second.
#![cfg_attr(
    feature = "internals",
    warn(unreachable_pub),
    allow(clippy::len_without_is_empty)
)]

mod api;
mod checkout;
// Its threads never move.
#[allow(clippy::disallowed_methods)]
mod cli;
mod codec;
mod command;
mod dataset;
mod error;
mod formats;
mod hdf5;
mod io;
mod journal;
mod mount;
mod npy;
mod options;
mod printable;
mod tree;
mod tuning;
mod views;

/// The element type of an array, and what it consists of.
pub mod dtype {
    pub use crate::npy::dtype::{DType, Field, Kind, Order};
}

pub use api::{Array, Element, Entries, Entry, Error, File, OpenOptions, Store, worker_hook};
pub use dtype::DType;

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
        checkout cli codec dataset error formats hdf5 io journal mount npy options printable tree views
    );

    /// Writes the daf store of the demonstration into a directory for the time of an example, and goes there.
    ///
    /// # Errors
    ///
    /// Those of the file system.
    pub fn enter_demonstration() -> error::Result<tempfile::TempDir> {
        let directory = tempfile::tempdir()?;
        crate::formats::registry()
            .named("daf")
            .demonstrate(directory.path(), None)?;
        std::env::set_current_dir(&directory)?;
        Ok(directory)
    }
}
