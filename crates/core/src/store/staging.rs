//! Staging areas of stores that keep their changes themselves, as commands know them.

use npyfs_base::error::{Error, Result};

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

/// The kind of the samples of a column.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SamplesKind {
    /// Arrays of one type.
    Arrays,
    /// Text.
    Text,
    /// Bytes.
    Bytes,
}

/// A column to stage, as its user describes it: names of types, backends and compressions are the format's to judge.
#[derive(Clone, Debug)]
pub struct ColumnRequest {
    /// The name.
    pub name: String,
    /// The kind of its samples.
    pub kind: SamplesKind,
    /// Samples have subsamples.
    pub nested: bool,
    /// NumPy's name of the type of the elements.
    pub dtype: Option<String>,
    /// The shape of a sample.
    pub shape: Option<Vec<u64>>,
    /// Samples may be smaller than the shape.
    pub variable: bool,
    /// The way of storing new samples.
    pub backend: Option<String>,
    /// The compression of new samples.
    pub compression: Option<String>,
}

/// The reason why a column was not staged.
#[derive(Debug)]
pub enum ColumnError {
    /// The request makes no sense.
    Usage(String),
    /// The store refuses it, or failed.
    Refused(Error),
}

impl From<Error> for ColumnError {
    fn from(error: Error) -> Self {
        Self::Refused(error)
    }
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

    /// Stages a column without samples.
    fn create_column(&self, new: &ColumnRequest) -> std::result::Result<(), ColumnError>;
}
