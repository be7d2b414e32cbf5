//! The seam between the history of a store and its storage: a place of small objects that are created once.

use std::time::Duration;

use npyfs_base::error::{Error, Result};

/// The outcome of an attempt to create an object.
#[derive(Debug)]
pub(super) enum Creation {
    /// It was created, durably.
    Made,
    /// An object of this name exists. An earlier attempt whose response was lost may have created it.
    Taken,
    /// It is unknown whether it was created, or a later attempt may succeed.
    Unclear(Error),
}

/// A place in which objects are created, each under a new name. Several programs on several hosts use it at the same
/// time, coordinated only by `create`.
pub(super) trait CommitPlace: Send + Sync {
    /// Returns the bytes of an object; `None` if it does not exist.
    fn read(&self, name: &str) -> Result<Option<Vec<u8>>>;

    /// Fetches objects that will be read, many at a time, where a read of each would be a request of its own. What fails
    /// is left to the read.
    fn fetch(&self, _names: &[String]) {}

    /// Creates a complete, durable object, unless the name exists. On failure there is no object with these bytes.
    fn create(&self, name: &str, bytes: &[u8]) -> Result<Creation>;

    /// Writes a derived object, replacing an existing one. It need not be durable.
    fn replace(&self, name: &str, bytes: &[u8]) -> Result<()>;

    /// Removes an object, if it exists.
    fn remove(&self, name: &str) -> Result<()>;

    /// Returns the names of all objects from `name` on, in order.
    fn names_from(&self, name: &str) -> Result<Vec<String>>;

    /// Removes the leftovers of dead programs.
    fn tidy(&self) {}

    /// Waits between two attempts, in the time of the place.
    fn wait(&self, time: Duration) {
        std::thread::sleep(time);
    }

    /// Returns the name of an object in messages.
    fn path(&self, name: &str) -> String;
}
