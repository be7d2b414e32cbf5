//! The directory with the tables and data files of a repository: on this machine, or a prefix of a bucket.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use super::BRANCHES;
use super::elsewhere::Elsewhere;
use crate::dataset::context::Context;
use npyfs_base::error::{Error, ErrorKind, Result};
use npyfs_base::options::External;
use npyfs_io::file::{Ownership, StoreFile};
use npyfs_io::remote::Listing;

/// The directory of a repository.
pub struct Folder {
    /// The path, or its address with a `/` at the end.
    pub path: PathBuf,
    pub context: Arc<Context>,
    elsewhere: Option<Elsewhere>,
}

impl Folder {
    /// Makes the folder of a directory on this machine.
    pub fn here(path: &Path, context: &Arc<Context>) -> Arc<Self> {
        Arc::new(Self {
            path: path.to_owned(),
            context: context.clone(),
            elsewhere: None,
        })
    }

    /// Makes the folder of a prefix of a bucket.
    pub fn elsewhere(listing: Listing, context: &Arc<Context>) -> Arc<Self> {
        Arc::new(Self {
            path: PathBuf::from(listing.address().to_string()),
            context: context.clone(),
            elsewhere: Some(Elsewhere::new(listing, context)),
        })
    }

    /// Returns the state of a directory in a bucket; `None` if it is on this machine.
    pub(super) fn far(&self) -> Option<&Elsewhere> {
        self.elsewhere.as_ref()
    }

    /// Fails if the repository is remote, since only a local one is writable.
    pub fn check_writable(&self) -> Result<()> {
        if self.elsewhere.is_none() {
            return Ok(());
        }
        let why = "a Hangar repository keeps what is written in itself, and nothing is written to a bucket: copy it here to write";
        Err(Error::new(ErrorKind::Os(libc::EROFS), why).about(self.path.display()))
    }

    /// Returns the owner and permissions of all entries of the repository.
    pub fn ownership(&self) -> Ownership {
        match &self.elsewhere {
            Some(elsewhere) => elsewhere.ownership(),
            None => {
                let meta = std::fs::metadata(&self.path);
                meta.map_or(Ownership::UNKNOWN, |meta| Ownership::of(&meta))
            }
        }
    }

    /// Returns true if a table exists.
    pub fn has_table(&self, path: &Path) -> bool {
        match &self.elsewhere {
            Some(elsewhere) => elsewhere.has(path),
            None => path.is_file(),
        }
    }

    /// Returns true if the repository exists.
    pub fn is_there(&self) -> bool {
        self.has_table(&self.path.join(BRANCHES))
    }

    /// Opens a file of the repository. A file that a symbolic link puts outside the directory is refused unless the
    /// mount allows it.
    pub fn open(&self, path: &Path) -> Result<StoreFile> {
        if let Some(elsewhere) = &self.elsewhere {
            return elsewhere.open(path);
        }
        let about = |e: Error| e.about(path.display());
        let real = path.canonicalize().map_err(|e| about(e.into()))?;
        let top = self.path.canonicalize().map_err(|e| about(e.into()))?;
        if !real.starts_with(&top) && self.context.options.external != External::Allow {
            let why = format!("leads out of {} (external=allow reads it)", top.display());
            return Err(about(Error::new(ErrorKind::Denied, why)));
        }
        StoreFile::open(path).map_err(|e| about(e.into()))
    }
}
