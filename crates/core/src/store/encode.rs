//! The parts that the formats make HDF5 objects from: arrays as they were written, text, integers, contents that are made on the way.
//!
//! A layer's file is a small store of the same kind as the one below, with one object in it and what that
//! needs to be valid; [`Writing::plan`](super::format::Writing::plan) says what it holds. Nothing is written here but scratch files, for arrays whose
//! elements have to be put into another order.

pub(crate) mod array;
pub(crate) mod dataset;
pub mod integers;
pub(crate) mod key;
pub(crate) mod mapped;
pub(crate) mod spooled_file;
#[cfg(test)]
pub mod store;
pub(crate) mod text;

use super::base::invalid;
use super::object::NewFile;
use super::part::Part;
use npyfs_base::error::Result;

pub use array::NpyArray;
pub use key::ObjectKey;
pub use spooled_file::ScratchContent;

/// The outcome of a plan.
pub enum Plan {
    /// The file of a complete object.
    Complete(NewFile),
    /// Members without which it is no object.
    Incomplete(Vec<String>),
}

/// The only file of an object that is one file.
pub(crate) fn single(parts: &[Part]) -> Result<&Part> {
    match parts {
        [part] if part.place.member.is_empty() => Ok(part),
        _ => Err(invalid("this object is one file")),
    }
}
