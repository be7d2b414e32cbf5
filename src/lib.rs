//! Reads arrays of HDF5 stores, under the names and with the bytes of a mount of `npyfs`, without a mount. Choose it
//! over a binding of libhdf5 such as `hdf5-metno` where files may be damaged or hostile, where several threads read
//! (libhdf5 has one lock; here chunks are decoded in parallel), where stores lie in buckets or on web servers, and to
//! see sparse matrices, text and commits as npyfs shows them. Choose a binding to write HDF5, to read references, or to
//! read compounds into structs, and where no process may be started.
//!
//! A [`Store`] is an HDF5 file, a daf or Arkouda store, a Hangar repository, or a directory of such. It lists its
//! arrays, and reads them whole, in part or part by part into `ndarray`s, with their attributes, as they are now or
//! were after a commit. Nothing is ever written to it: a [`Checkout`] takes new arrays, and commits them.
//!
//! ```standalone_crate
//! use ndarray::{Array2, Ix2, s};
//!
//! fn main() -> Result<(), Box<dyn std::error::Error>> {
//!     npyfs::worker_hook(); // first thing in main
//! #   let _directory = npyfs_core::formats::demo::enter()?;
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

#![cfg_attr(not(test), deny(clippy::disallowed_methods))]

mod api;
// Its threads never move.
#[allow(clippy::disallowed_methods)]
mod cli;
mod command;

/// The element type of an array, and what it consists of.
pub mod dtype {
    pub use npyfs_base::npy::dtype::{DType, Field, Kind, Order};
}

pub use api::{
    Array, Attribute, Checkout, Element, Entries, Entry, Error, File, OpenOptions, Parts, Sparse,
    SparseOrder, Store, WriteElement, worker_hook,
};
pub use dtype::DType;

#[doc(hidden)]
pub use command::main;
/// For this package's own tests; no promises.
#[doc(hidden)]
pub mod mount;
