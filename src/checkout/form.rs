//! Forms: what may be written where in a store, and how it lies in the HDF5 file of a layer.
//!
//! A layer's file is a small store of the same kind as the one below, with one object in it and what that
//! needs to be valid. `plan` says what the file holds, or which members are still missing, or why the object
//! cannot be: EINVAL for wrong content, shape or type, EOPNOTSUPP for what has no form in HDF5. Nothing is
//! written here but scratch files, for arrays whose elements have to be put into another order.

mod archive;
mod array;
mod daf;
mod integers;
mod key;
mod mapped;
mod plain;
mod sparse;
mod spool;
#[cfg(test)]
pub mod store;
mod text;
mod turned;

use std::sync::Arc;

use super::object::NewFile;
use super::scratch::Scratch;
use super::target::Part;
use crate::content::Content;
use crate::error::{Error, ErrorKind, Result};

pub use array::Array;
pub use key::Key;
pub use spool::Spooled;

/// What kind of store the group is that an object is in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    Plain,
    Daf,
    Arkouda,
}

/// What a plan needs to know of the store below, as the mount shows it now.
pub trait Base {
    /// The kind of the group that holds the object.
    fn kind(&self) -> Kind;

    /// The `.npy` file of an object of that group, by its own name (`cell#`); `None` if there is none.
    fn npy(&self, name: &str) -> Result<Option<Arc<dyn Content>>>;

    /// An empty scratch file.
    fn scratch(&self) -> Result<Scratch>;
}

/// What becomes of an object.
pub enum Plan {
    Complete(NewFile),
    /// Members without which it is no object.
    Incomplete(Vec<String>),
}

/// How the object at `key` is stored that consists of `parts`.
pub fn plan(base: &dyn Base, key: &Key, parts: &[Part]) -> Result<Plan> {
    let planned = match base.kind() {
        Kind::Daf => daf::plan(base, key, parts),
        Kind::Plain | Kind::Arkouda => plain::plan(base, key, parts),
    };
    planned.map_err(|e| e.about(key.name()))
}

/// A file with an empty group.
pub fn group(kind: Kind, key: &Key) -> NewFile {
    let mut new = NewFile::default();
    let _ = kind;
    new.mark(key.path(), Vec::new());
    new
}

/// The content, shape or type is wrong.
fn invalid(why: impl Into<String>) -> Error {
    Error::new(ErrorKind::Os(libc::EINVAL), why)
}

/// The store has no form for it.
fn unsupported(why: impl Into<String>) -> Error {
    Error::new(ErrorKind::Os(libc::EOPNOTSUPP), why)
}

/// The only file of an object that is one file.
fn single(parts: &[Part]) -> Result<&Part> {
    match parts {
        [part] if part.place.member.is_empty() => Ok(part),
        _ => Err(invalid("this object is one file")),
    }
}
