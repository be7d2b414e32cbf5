//! The parts that the formats make HDF5 objects from: arrays as they were written, text, integers, contents that are made on the way.
//!
//! A layer's file is a small store of the same kind as the one below, with one object in it and what that
//! needs to be valid; [`Format::plan`](super::format::Format::plan) says what it holds. Nothing is written here but scratch files, for arrays whose
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
pub(crate) mod transpose;

use std::sync::Arc;

use super::object::NewFile;
use super::target::Part;
use crate::error::{Error, ErrorKind, Result};
use crate::io::content::Content;
use crate::io::scratch::Scratch;
use crate::tree::Node;

pub use array::{NpyArray, header};
pub use key::ObjectKey;
#[cfg(feature = "internals")]
pub use spooled_file::ScratchContent;

/// The store below, as the mount shows it now, for a plan.
pub trait Base {
    /// The `.npy` file of an object of that group, by its own name (`cell#`); `None` if there is none.
    fn npy(&self, name: &str) -> Result<Option<Arc<dyn Content>>>;

    /// Returns what the mount shows at own names from that group on, the last with this suffix; nothing where there is no store.
    fn node(&self, _path: &[String], _suffix: &str) -> Result<Option<Node>> {
        Ok(None)
    }

    /// Returns what the mount shows at own names from the root of the store on, the last with this suffix; without names the
    /// root. Nothing where there is no store.
    fn in_store(&self, _path: &[String], _suffix: &str) -> Result<Option<Node>> {
        Ok(None)
    }

    /// An empty scratch file.
    fn scratch(&self) -> Scratch;
}

/// The outcome of a plan.
pub enum Plan {
    /// The file of a complete object.
    Complete(NewFile),
    /// Members without which it is no object.
    Incomplete(Vec<String>),
}

/// The content, shape or type is wrong.
pub fn invalid(why: impl Into<String>) -> Error {
    Error::new(ErrorKind::Os(libc::EINVAL), why)
}

/// The store has no form for it.
pub(crate) fn unsupported(why: impl Into<String>) -> Error {
    Error::new(ErrorKind::Os(libc::EOPNOTSUPP), why)
}

/// The only file of an object that is one file.
pub(crate) fn single(parts: &[Part]) -> Result<&Part> {
    match parts {
        [part] if part.place.member.is_empty() => Ok(part),
        _ => Err(invalid("this object is one file")),
    }
}
