//! Forms: what may be written where in a store, and how it lies in the HDF5 file of a layer.
//!
//! A layer's file is a small store of the same kind as the one below, with one object in it and what that
//! needs to be valid. `plan` says what the file holds, or which members are still missing, or why the object
//! cannot be: EINVAL for wrong content, shape or type, EOPNOTSUPP for what has no form in HDF5. Nothing is
//! written here but scratch files, for arrays whose elements have to be put into another order.

pub(crate) mod array;
pub mod integers;
pub(crate) mod key;
pub(crate) mod mapped;
pub(crate) mod spool;
#[cfg(test)]
pub mod store;
pub(crate) mod text;
pub(crate) mod times;
pub(crate) mod turned;

use std::sync::Arc;

use super::object::NewFile;
use super::target::{Deletion, Part};
use crate::error::{Error, ErrorKind, Result};
use crate::formats::daf::rules;
use crate::formats::{arkouda, daf, plain};
use crate::io::content::Content;
use crate::io::scratch::Scratch;
use crate::tree::Node;

pub use array::{Array, header};
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

    /// What the mount shows at own names from that group on, the last with this suffix; nothing where there is no store.
    fn node(&self, _path: &[String], _suffix: &str) -> Result<Option<Node>> {
        Ok(None)
    }

    /// An empty scratch file.
    fn scratch(&self) -> Scratch;
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
        Kind::Daf => daf::encode::plan(base, key, parts),
        Kind::Arkouda => arkouda::encode::plan(base, key, parts),
        Kind::Plain => plain::encode::plan(base, key, parts),
    };
    planned.map_err(|e| e.about(key.name()))
}

/// What becomes of the object at `key` when one of its files is deleted; `member` is empty for a file that is the whole
/// object. An error if the file may not be deleted.
pub fn deletion(base: &dyn Base, key: &Key, member: &str) -> Result<Deletion> {
    match base.kind() {
        // An array is one file. A sparse matrix is nothing without any of its members.
        Kind::Plain | Kind::Daf => Ok(Deletion::Object),
        Kind::Arkouda => arkouda::encode::deletion(base, key, member),
    }
}

/// How many of the last names of a path belong to one object, the others being groups: 1 for a file that is an
/// object, more for a member of an object that is a directory. `names` are own names, at least one.
pub fn depth(kind: Kind, names: &[&str]) -> usize {
    let above = names.split_last().map_or(&[][..], |(_, above)| above);
    match kind {
        Kind::Plain => 1,
        Kind::Daf if above.last().is_some_and(|name| rules::is_matrix(name)) => 2,
        Kind::Daf => 1,
        Kind::Arkouda => {
            let members = names
                .iter()
                .rev()
                .take_while(|name| arkouda::encode::is_member(name));
            // The first name cannot be a member: there must be an object that has it.
            (members.count() + 1).min(names.len())
        }
    }
}

/// A file with an empty group.
pub fn group(kind: Kind, key: &Key) -> NewFile {
    let mut new = NewFile::default();
    new.mark(key.path(), Vec::new());
    if kind == Kind::Arkouda {
        arkouda::encode::mark_file(&mut new);
    }
    new
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
