//! The result of a commit that another process made, as it is told to the process that asked for it.

use serde::{Deserialize, Serialize};

use super::{CommitRefusal, Committed, Conflict, Misfit, Wish};
use crate::checkout::records::index::KeptObject;
use npyfs_base::error::Error;

/// The extended attribute of a mount's root that is set to ask for a commit.
pub const ATTRIBUTE: &str = "user.npyfs.commit";

/// The entry of `status.json` about the checkout that has the result.
pub const RESULT: &str = "committed";

/// A request for a commit.
#[derive(Debug, Serialize, Deserialize)]
pub struct CommitRequest {
    /// Distinguishes the request from others.
    pub request: String,
    /// The request.
    pub wish: Wish,
}

/// The result for a request.
#[derive(Debug, Serialize, Deserialize)]
pub struct CommitReport {
    /// The request.
    pub request: String,
    /// The result.
    pub result: CommitResult,
}

/// The result of a commit.
#[derive(Debug, Serialize, Deserialize)]
pub enum CommitResult {
    /// The commit was made.
    Committed(Committed),
    /// The commit was refused: see [`CommitRefusal`].
    Conflicts(Vec<Conflict>),
    /// As above.
    Incomplete(Vec<KeptObject>),
    /// As above.
    Broken(Vec<String>),
    /// As above.
    Misfits(Vec<Misfit>),
    /// The commit failed, with this message.
    Failed(String),
}

impl From<Result<Committed, CommitRefusal>> for CommitResult {
    fn from(done: Result<Committed, CommitRefusal>) -> Self {
        match done {
            Ok(done) => Self::Committed(done),
            Err(CommitRefusal::Conflicts(met)) => Self::Conflicts(met),
            Err(CommitRefusal::Incomplete(objects)) => Self::Incomplete(objects),
            Err(CommitRefusal::Broken(lines)) => Self::Broken(lines),
            Err(CommitRefusal::Misfits(misfits)) => Self::Misfits(misfits),
            Err(CommitRefusal::Failed(e)) => Self::Failed(e.message),
        }
    }
}

impl From<CommitResult> for Result<Committed, CommitRefusal> {
    fn from(result: CommitResult) -> Self {
        Err(match result {
            CommitResult::Committed(done) => return Ok(done),
            CommitResult::Conflicts(met) => CommitRefusal::Conflicts(met),
            CommitResult::Incomplete(objects) => CommitRefusal::Incomplete(objects),
            CommitResult::Broken(lines) => CommitRefusal::Broken(lines),
            CommitResult::Misfits(misfits) => CommitRefusal::Misfits(misfits),
            CommitResult::Failed(message) => CommitRefusal::Failed(Error::damaged(message)),
        })
    }
}
