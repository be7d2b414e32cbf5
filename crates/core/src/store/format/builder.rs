//! A new store under construction, to which objects are added one after the other.

use std::path::Path;
use std::sync::Arc;

use super::Registry;
use crate::store::base::unsupported;
use crate::store::encode::ObjectKey;
use crate::store::new_store::NewStore;
use crate::store::part::Part;
use crate::tree::Directory;
use npyfs_base::error::Result;

/// The source that a store is built from.
pub struct Construction<'a> {
    /// The empty store that it begins with; its path is the one that the store is built at.
    pub new: &'a NewStore<'a>,
    /// An empty directory for what is made on the way. Both disappear if the store does not become complete.
    pub scratch: &'a Path,
    /// The message of the commit of a store that has commits.
    pub message: &'a str,
    /// All formats.
    pub formats: &'a Registry,
}

/// A store under construction. An error of EINVAL or EOPNOTSUPP is about the object, any other about the store.
pub trait Builder {
    /// Adds a group, which may hold others and arrays.
    fn group(&mut self, path: &ObjectKey) -> Result<()>;

    /// Adds the object at `key` that consists of `parts`, whose members have own names.
    fn put(&mut self, key: &ObjectKey, parts: &[Part]) -> Result<()>;

    /// Adds a link to a path relative to its own group, as a mount shows names.
    fn link(&mut self, _key: &ObjectKey, _target: &[u8]) -> Result<()> {
        Err(unsupported("such a store has no links"))
    }

    /// Completes the store and has it written to the disk. Returns its tree, for comparison with what it was made from; `None` if
    /// it holds the very bytes that it was given.
    fn finish(self: Box<Self>) -> Result<Option<Arc<dyn Directory>>>;
}
