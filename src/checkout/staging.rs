//! Staging areas of stores that keep their changes themselves, as commands know them.

use crate::error::Result;

/// The branch and commit that the caller of a commit expects the staging area to be based on.
#[derive(Clone, Debug, Default)]
pub struct Expected {
    /// The branch that the staging area belongs to.
    pub branch: Option<String>,
    /// The commit the branch was at.
    pub head: Option<Option<String>>,
}

/// The kind of a staged change.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StagedKind {
    /// It is new.
    Added,
    /// It is another one.
    Modified,
    /// It goes.
    Deleted,
}

/// The staging area of a store.
pub trait Staging {
    /// Returns what is staged, on what, and which process writes, in lines for people.
    fn status(&self) -> Result<String>;

    /// Shows what is staged, by the names that a mount shows.
    fn each(&self, see: &mut dyn FnMut(StagedKind, &[u8])) -> Result<()>;

    /// Commits what is staged. Returns the name of the commit.
    fn commit(&self, message: &str, expected: &Expected) -> Result<String>;

    /// Takes back all that is staged. Returns what went, in a line for people.
    fn reset(&self) -> Result<String>;
}
