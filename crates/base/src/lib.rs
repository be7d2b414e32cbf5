//! The common base of all npyfs crates: errors, options, NumPy's format, buffers, threads.
//!
//! Nothing here opens a file of a store, knows HDF5, or uses a network.

#![cfg_attr(not(test), deny(clippy::disallowed_methods))]

mod arena;
pub mod buffer;
pub mod error;
pub mod heap;
pub mod journal;
pub mod npy;
pub mod options;
pub mod printable;
pub mod thread;
pub mod tuning;
