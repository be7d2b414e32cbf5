//! npyfs shows HDF5 stores as directories of virtual `.npy` files.

#![deny(unsafe_code)]

mod api;
mod arena;
pub mod buffer;
pub mod cache;
pub mod checkout;
pub mod cli;
pub mod content;
pub mod control;
pub mod demo;
pub mod dtype;
pub mod error;
pub mod filter;
pub mod formats;
pub mod fs;
pub mod fuse;
pub mod h5;
pub mod hex;
pub mod info;
pub mod journal;
pub mod memory;
pub mod npy;
pub mod options;
pub mod printable;
pub mod raw;
pub mod read;
pub mod stage;
pub mod store;
pub mod team;
pub mod thread;
pub mod tree;

pub use api::{Array, Element, Entries, Entry, Error, File, OpenOptions, Store, worker_hook};
pub use dtype::DType;
