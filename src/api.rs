//! The Rust API: arrays of a store as `ndarray`s, without a mount.
//!
//! Everything goes the way it goes in a mount, from the tree of virtual files down to the decoders. So what a mount
//! refuses is refused here with the same reason. Nothing is ever written to a store.

mod array;
mod element;
mod entry;
mod error;
mod file;
mod region;
mod store;
mod worker;

pub use array::Array;
pub use element::Element;
pub use entry::{Entries, Entry};
pub use error::Error;
pub use file::File;
pub use store::{OpenOptions, Store};
pub use worker::worker_hook;
