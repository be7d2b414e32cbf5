//! The Rust API: arrays of a store as `ndarray`s, without a mount.
//!
//! Everything goes the way it goes in a mount, from the tree of virtual files down to the decoders. So what a mount
//! refuses is refused here with the same reason. Nothing is ever written to a store; a checkout takes what is written.

mod array;
mod attribute;
mod checkout;
mod element;
mod error;
mod file;
mod region;
mod sparse;
mod store;
mod worker;

pub use array::{Array, Parts};
pub use attribute::Attribute;
pub use checkout::Checkout;
pub use element::{Element, WriteElement};
pub use error::Error;
pub use file::File;
pub use sparse::{Sparse, SparseOrder};
pub use store::{Entries, Entry};
pub use store::{OpenOptions, Store};
pub use worker::worker_hook;
