//! The seam between the history of a store and where it lies: a place of small objects that are created once.

use crate::error::{Error, Result};

/// The outcome of an attempt to create an object.
#[derive(Debug)]
pub(super) enum Creation {
    /// It was made, durably.
    Made,
    /// There is an object of this name. If the answer to an earlier attempt was lost, it may be that one.
    Taken,
    /// No answer tells whether it was made, or a later attempt may succeed.
    Unclear(Error),
}

/// A place that objects are created in, each under a name that nothing had before. Several programs use it at a time, on any
/// number of hosts, and nothing but `create` keeps them apart.
pub(super) trait CommitPlace: Send + Sync {
    /// Returns the bytes of an object; `None` if there is none.
    fn read(&self, name: &str) -> Result<Option<Vec<u8>>>;

    /// Creates an object, whole and durable, unless there is one of this name. On failure there is none of these bytes.
    fn create(&self, name: &str, bytes: &[u8]) -> Result<Creation>;

    /// Writes an object that others can do without, in the place of one that may be there. It need not survive a loss of power.
    fn replace(&self, name: &str, bytes: &[u8]) -> Result<()>;

    /// Removes an object, if there is one.
    fn remove(&self, name: &str) -> Result<()>;

    /// Returns the names of all objects from one on, in order.
    fn names_from(&self, name: &str) -> Result<Vec<String>>;

    /// Removes what programs that died have left.
    fn tidy(&self) {}

    /// Returns what an object is called in messages.
    fn path(&self, name: &str) -> String;
}
