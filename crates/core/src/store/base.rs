//! The store that a write lands on, as a plan sees it, and the two ways in which a plan refuses.

use std::sync::Arc;

use crate::tree::Node;
use npyfs_base::error::{Error, ErrorKind, Result};
use npyfs_io::content::Content;
use npyfs_io::content::scratch::Scratch;

/// The store below, as the mount shows it now.
pub trait Base {
    /// The `.npy` file of an object of that group, by its own name (`cell#`); `None` if there is none.
    fn npy(&self, name: &str) -> Result<Option<Arc<dyn Content>>>;

    /// Returns what the mount shows at own names from that group on, the last with this suffix; nothing where there is
    /// no store.
    fn node(&self, _path: &[String], _suffix: &str) -> Result<Option<Node>> {
        Ok(None)
    }

    /// Returns what the mount shows at own names from the root of the store on, the last with this suffix; without
    /// names the root. Nothing where there is no store.
    fn in_store(&self, _path: &[String], _suffix: &str) -> Result<Option<Node>> {
        Ok(None)
    }

    /// An empty scratch file.
    fn scratch(&self) -> Scratch;
}

/// Returns an error for content of a wrong shape or type: EINVAL.
pub fn invalid(why: impl Into<String>) -> Error {
    Error::new(ErrorKind::Os(libc::EINVAL), why)
}

/// Returns an error for what has no form in the store: EOPNOTSUPP.
pub fn unsupported(why: impl Into<String>) -> Error {
    Error::new(ErrorKind::Os(libc::EOPNOTSUPP), why)
}
