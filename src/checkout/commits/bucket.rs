//! Commits in a bucket: objects that are put on the condition that there is none of the name.
//!
//! The answer to a put may be lost, or refused by a server that has done it. So no failure says that nothing happened: whoever
//! asked reads the object, which says who wrote it. What was read once is kept in a copy on this machine: commits never change.

use std::sync::Arc;

use super::numbered::{is_commit, is_whole};
use super::place::{CommitPlace, Creation};
use crate::error::Result;
use crate::io::remote::{Created, Prefix};

/// A prefix of a bucket as a place of commits.
pub(super) struct CommitBucket {
    prefix: Prefix,
    /// Where commits and checkpoints are kept that were read or made.
    copy: Option<Arc<dyn CommitPlace>>,
}

impl CommitBucket {
    /// Takes the objects below a prefix of a bucket.
    pub(super) fn new(prefix: Prefix, copy: Option<Arc<dyn CommitPlace>>) -> Self {
        Self { prefix, copy }
    }

    /// Returns the copy, if objects of this name are kept there: whatever has a number.
    fn copy(&self, name: &str) -> Option<&Arc<dyn CommitPlace>> {
        let is_numbered = name.starts_with(|first: char| first.is_ascii_digit());
        self.copy.as_ref().filter(|_| is_numbered)
    }

    fn keep(&self, name: &str, bytes: &[u8]) {
        if let Some(copy) = self.copy(name)
            && is_good(name, bytes)
        {
            // It saves asking again, and nothing else.
            let _ = copy.replace(name, bytes);
        }
    }
}

/// Returns false for a commit that is not what its id says.
fn is_good(name: &str, bytes: &[u8]) -> bool {
    !is_commit(name) || is_whole(bytes)
}

impl CommitPlace for CommitBucket {
    fn read(&self, name: &str) -> Result<Option<Vec<u8>>> {
        if let Some(copy) = self.copy(name)
            && let Ok(Some(bytes)) = copy.read(name)
            && is_good(name, &bytes)
        {
            return Ok(Some(bytes));
        }
        let bytes = self.prefix.read(name)?;
        if let Some(bytes) = &bytes {
            self.keep(name, bytes);
        }
        Ok(bytes)
    }

    fn create(&self, name: &str, bytes: &[u8]) -> Result<Creation> {
        Ok(match self.prefix.create(name, bytes)? {
            Created::Made => {
                self.keep(name, bytes);
                Creation::Made
            }
            Created::Taken => Creation::Taken,
            Created::Unclear(e) => Creation::Unclear(e),
        })
    }

    fn replace(&self, name: &str, bytes: &[u8]) -> Result<()> {
        self.keep(name, bytes);
        self.prefix.put(name, bytes)
    }

    fn remove(&self, name: &str) -> Result<()> {
        self.prefix.remove(name)
    }

    fn names_from(&self, name: &str) -> Result<Vec<String>> {
        // Behind all that come before it.
        let mut before = name.to_owned();
        before.pop();
        let mut names = self.prefix.names_behind(&before)?;
        names.retain(|other| other.as_str() >= name && !other.starts_with('.'));
        Ok(names)
    }

    fn path(&self, name: &str) -> String {
        self.prefix.address(name)
    }
}
