//! Stores as directories of virtual files: formats, checkouts, conversions and views, and what serves their bytes.
//!
//! What stands in `store` is the contract that formats and checkouts are written against. No libhdf5 runs here but for
//! demonstration stores, which are made anew: stores are read through `npyfs-hdf5`.

#![forbid(unsafe_code)]
#![cfg_attr(not(test), deny(clippy::disallowed_methods))]

pub mod checkout;
pub mod convert;
pub mod dataset;
pub mod formats;
pub mod store;
pub mod tree;
pub mod views;
