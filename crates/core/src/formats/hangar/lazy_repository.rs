//! A repository below a mirrored directory: opened at the first access, and again if that failed.

use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};

use serde_json::{Value as Json, json};

use super::format::NAME;
use super::repository::Repository;
use super::root::RootDirectory;
use crate::dataset::context::Context;
use crate::tree::{Directory, Listing, Node, StoreHandle};
use npyfs_base::error::Result;
use npyfs_io::file::Ownership;

/// The root of a repository that may not be open yet.
pub(super) struct LazyRepository {
    folder: PathBuf,
    context: Arc<Context>,
    root: Mutex<Option<Arc<RootDirectory>>>,
}

impl LazyRepository {
    /// Makes the root of a repository; `folder` is the directory of the tables.
    pub(super) fn new(folder: &Path, context: &Arc<Context>) -> Self {
        Self {
            folder: folder.to_owned(),
            context: context.clone(),
            root: Mutex::default(),
        }
    }

    fn root(&self) -> Result<Arc<RootDirectory>> {
        let mut root = self.root.lock().unwrap_or_else(|e| e.into_inner());
        if let Some(root) = &*root {
            return Ok(root.clone());
        }
        let repository = Repository::open(&self.folder, &self.context)?;
        let opened = Arc::new(RootDirectory::new(repository));
        *root = Some(opened.clone());
        Ok(opened)
    }
}

impl Directory for LazyRepository {
    fn ownership(&self) -> Ownership {
        std::fs::metadata(&self.folder).map_or(Ownership::UNKNOWN, |meta| Ownership::of(&meta))
    }

    fn list(&self) -> Result<Arc<Listing>> {
        self.root()?.list()
    }

    fn lookup(&self, name: &[u8]) -> Result<Option<Node>> {
        self.root()?.lookup(name)
    }

    fn format(&self) -> Result<&'static str> {
        Ok(NAME)
    }

    fn is_current(&self) -> bool {
        self.folder.join("branch.lmdb").is_file()
    }

    fn info(&self) -> Result<Json> {
        match self.root() {
            Ok(root) => root.info(),
            Err(e) => Ok(json!({
                "kind": NAME,
                "file": self.folder.to_string_lossy(),
                "error": e.message,
            })),
        }
    }

    fn handle(&self) -> Option<StoreHandle> {
        self.root().ok()?.handle()
    }
}
