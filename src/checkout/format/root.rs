//! The root of the store in a file, whatever version of it is on disk.

use std::fs::File;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};

use serde_json::{Value as Json, json};

use super::Registry;
use crate::dataset::context::Context;
use crate::dataset::opened::OpenStore;
use crate::error::{Error, ErrorKind, Result};
use crate::hdf5::Attribute;
use crate::io::file::{Ownership, StoreFile};
use crate::tree::{Directory, Listing};

/// Opens a file.
pub type Opener = dyn Fn() -> Result<File> + Send + Sync;

/// The root of a store that is one file; it follows the file.
pub struct StoreRoot {
    path: PathBuf,
    /// `None`: the file is opened by its path.
    open: Option<Arc<Opener>>,
    context: Arc<Context>,
    formats: Registry,
    current: Mutex<Option<Arc<dyn Directory>>>,
}

impl StoreRoot {
    pub fn new(path: &Path, context: &Arc<Context>, formats: &Registry) -> Self {
        Self {
            path: path.to_owned(),
            open: None,
            context: context.clone(),
            formats: formats.clone(),
            current: Mutex::default(),
        }
    }

    /// A root whose file is not opened by its path alone.
    pub fn opened_by(
        path: &Path,
        context: &Arc<Context>,
        formats: &Registry,
        open: Arc<Opener>,
    ) -> Self {
        Self {
            open: Some(open),
            ..Self::new(path, context, formats)
        }
    }

    /// The root of the version on disk now.
    pub fn current(&self) -> Result<Arc<dyn Directory>> {
        let mut current = self.current.lock().unwrap_or_else(|e| e.into_inner());
        if let Some(root) = &*current
            && root.is_current()
        {
            return Ok(root.clone());
        }
        *current = None;
        let store = match &self.open {
            Some(open) => {
                let file = StoreFile::from_file(&self.path, open()?);
                let file = file.map_err(|e| Error::from(e).about(self.path.display()))?;
                OpenStore::from_file(&self.context, file)?
            }
            None => OpenStore::open(&self.context, &self.path)?,
        };
        let root = self.formats.root(&store)?;
        *current = Some(root.clone());
        Ok(root)
    }
}

impl Directory for StoreRoot {
    fn ownership(&self) -> Ownership {
        std::fs::metadata(&self.path).map_or(Ownership::UNKNOWN, |meta| Ownership::of(&meta))
    }

    fn list(&self) -> Result<Arc<Listing>> {
        self.current()?.list()
    }

    fn is_store(&self) -> bool {
        true
    }

    fn format(&self) -> Result<&'static str> {
        self.current()?.format()
    }

    fn is_current(&self) -> bool {
        // It follows its file; a file that is gone, or is no store any more, is gone from its directory too.
        std::fs::metadata(&self.path).is_ok_and(|meta| meta.is_file())
    }

    fn info(&self) -> Result<Json> {
        match self.current() {
            Ok(root) => root.info(),
            Err(e) if e.kind == ErrorKind::Damaged => Ok(json!({
                "file": self.path.to_string_lossy(),
                "error": e.message,
            })),
            Err(e) => Err(e),
        }
    }

    fn attributes(&self) -> Result<Vec<Attribute>> {
        self.current()?.attributes()
    }
}
