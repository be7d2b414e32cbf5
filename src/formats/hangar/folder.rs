//! The directory with the tables and data files of a repository: on this machine, or a prefix of a bucket.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use super::elsewhere::Elsewhere;
use crate::dataset::context::Context;
use crate::error::{Error, ErrorKind, Result};
use crate::io::file::{Ownership, StoreFile};
use crate::io::remote::Listing;
use crate::options::External;

/// The table without which a directory is no repository.
pub(super) const BRANCHES: &str = "branch.lmdb";

/// The directory of a repository.
pub struct Folder {
    /// Its path, or its address with a `/` at the end.
    pub path: PathBuf,
    pub context: Arc<Context>,
    elsewhere: Option<Elsewhere>,
}

impl Folder {
    /// Takes a directory of this machine.
    pub fn here(path: &Path, context: &Arc<Context>) -> Arc<Self> {
        Arc::new(Self {
            path: path.to_owned(),
            context: context.clone(),
            elsewhere: None,
        })
    }

    /// Takes a prefix of a bucket.
    pub fn elsewhere(listing: Listing, context: &Arc<Context>) -> Arc<Self> {
        Arc::new(Self {
            path: PathBuf::from(listing.address().to_string()),
            context: context.clone(),
            elsewhere: Some(Elsewhere::new(listing, context)),
        })
    }

    /// Returns what is known of a directory in a bucket; `None` if it is on this machine.
    pub(super) fn far(&self) -> Option<&Elsewhere> {
        self.elsewhere.as_ref()
    }

    /// Refuses to write if it lies elsewhere.
    pub fn check_writable(&self) -> Result<()> {
        if self.elsewhere.is_none() {
            return Ok(());
        }
        let why = "a Hangar repository keeps what is written in itself, and nothing is written to a bucket: copy it here to write";
        Err(Error::new(ErrorKind::Os(libc::EROFS), why).about(self.path.display()))
    }

    /// Returns the owner and permissions that all entries of the repository take.
    pub fn ownership(&self) -> Ownership {
        match &self.elsewhere {
            Some(elsewhere) => elsewhere.ownership(),
            None => {
                let meta = std::fs::metadata(&self.path);
                meta.map_or(Ownership::UNKNOWN, |meta| Ownership::of(&meta))
            }
        }
    }

    /// Returns true if a table is there.
    pub fn has_table(&self, path: &Path) -> bool {
        match &self.elsewhere {
            Some(elsewhere) => elsewhere.has(path),
            None => path.is_file(),
        }
    }

    /// Returns true if the repository is there.
    pub fn is_there(&self) -> bool {
        self.has_table(&self.path.join(BRANCHES))
    }

    /// Opens a file of the repository. One that a symbolic link puts outside the directory is refused unless the mount
    /// allows it.
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
