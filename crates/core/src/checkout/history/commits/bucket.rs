//! Commits in a bucket: objects created by a conditional put, which fails if the name exists.
//!
//! The response to a put may be lost, or a server may report a failure after it has created the object. So a failure
//! never proves that nothing happened: the caller then reads the object, which names its writer. Commits never change,
//! so those that were read are stored in a local copy.

use super::numbered::{is_commit, is_whole};
use super::place::{CommitDirectory, CommitPlace, Creation};
use npyfs_base::error::Result;
use npyfs_io::remote::{CreationOutcome, Prefix};

/// A prefix of a bucket as the place of commits.
pub(super) struct CommitBucket {
    prefix: Prefix,
    /// A local copy of commits and checkpoints that were read or created.
    copy: Option<CommitDirectory>,
}

impl CommitBucket {
    /// Uses the objects below a prefix of a bucket.
    pub(super) fn new(prefix: Prefix, copy: Option<CommitDirectory>) -> Self {
        Self { prefix, copy }
    }

    /// Returns the local copy, if it stores objects with this name: all numbered ones.
    fn copy(&self, name: &str) -> Option<&CommitDirectory> {
        let is_numbered = name.starts_with(|first: char| first.is_ascii_digit());
        self.copy.as_ref().filter(|_| is_numbered)
    }

    fn keep(&self, name: &str, bytes: &[u8]) {
        if let Some(copy) = self.copy(name)
            && is_good(name, bytes)
        {
            // The copy only saves requests.
            let _ = copy.replace(name, bytes);
        }
    }
}

/// Returns false for a commit whose content does not match its id.
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

    fn fetch(&self, names: &[String]) {
        let is_new = |name: &&String| self.copy(name).is_some_and(|copy| !copy.has(name));
        let new: Vec<String> = names.iter().filter(is_new).cloned().collect();
        self.prefix
            .read_short(&new, |name, bytes| self.keep(name, bytes));
    }

    fn create(&self, name: &str, bytes: &[u8]) -> Result<Creation> {
        Ok(match self.prefix.create(name, bytes)? {
            CreationOutcome::Made => {
                self.keep(name, bytes);
                Creation::Made
            }
            CreationOutcome::Taken => Creation::Taken,
            CreationOutcome::Unclear(e) => Creation::Unclear(e),
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
        // The name just before `name` in the order.
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
