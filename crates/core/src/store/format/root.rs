//! The root of a store, whatever version of it is on disk.

use std::fs::File;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use parking_lot::Mutex;
use serde_json::{Value as Json, json};

use super::Registry;
use crate::dataset::context::Context;
use crate::dataset::opened::OpenStore;
use crate::tree::{Directory, Listing, Scales, Seer};
use npyfs_base::error::{Error, ErrorKind, Result};
use npyfs_hdf5::Attribute;
use npyfs_io::file::{Ownership, StoreFile};

/// Opens a file.
pub(super) type Opener = dyn Fn() -> Result<File> + Send + Sync;

/// The files that a store is on disk, one version of them after the other.
pub trait Versions: Send + Sync {
    /// Opens the version that is there now.
    fn open(&self) -> Result<Arc<dyn Directory>>;

    /// Returns whose the files are, without opening them.
    fn ownership(&self) -> Ownership;

    /// Returns true if there is a store, of whatever version.
    fn are_there(&self) -> bool;

    /// Returns what can be said of the store if it cannot be opened: an object with its `file`.
    fn describe(&self) -> Json;
}

/// The root of a store; it follows the files.
pub struct StoreRoot {
    versions: Box<dyn Versions>,
    current: Mutex<Option<Arc<dyn Directory>>>,
}

impl StoreRoot {
    /// Returns the root of a store that is one file.
    pub fn new(path: &Path, context: &Arc<Context>, formats: &Registry) -> Self {
        Self::over(OneFile {
            path: path.to_owned(),
            open: None,
            context: context.clone(),
            formats: formats.clone(),
        })
    }

    /// Returns a root whose file is not opened by its path alone.
    pub fn opened_by(
        path: &Path,
        context: &Arc<Context>,
        formats: &Registry,
        open: Arc<Opener>,
    ) -> Self {
        Self::over(OneFile {
            path: path.to_owned(),
            open: Some(open),
            context: context.clone(),
            formats: formats.clone(),
        })
    }

    /// Returns the root of what some files hold.
    pub fn over(versions: impl Versions + 'static) -> Self {
        Self {
            versions: Box::new(versions),
            current: Mutex::default(),
        }
    }

    /// Returns the root of the version on disk now.
    pub fn current(&self) -> Result<Arc<dyn Directory>> {
        let mut current = self.current.lock();
        if let Some(root) = &*current
            && root.is_current()
        {
            return Ok(root.clone());
        }
        *current = None;
        let root = self.versions.open()?;
        *current = Some(root.clone());
        Ok(root)
    }
}

impl Directory for StoreRoot {
    fn ownership(&self) -> Ownership {
        self.versions.ownership()
    }

    fn list(&self) -> Result<Arc<Listing>> {
        self.current()?.list()
    }

    fn each(&self, see: &mut Seer<'_>) -> Result<Vec<String>> {
        self.current()?.each(see)
    }

    fn at_present(&self) -> Result<Option<Arc<dyn Directory>>> {
        Ok(Some(self.current()?))
    }

    fn is_store(&self) -> bool {
        true
    }

    fn format(&self) -> Result<&'static str> {
        self.current()?.format()
    }

    fn is_current(&self) -> bool {
        // It follows its files; without them it is gone from its directory too.
        self.versions.are_there()
    }

    fn info(&self) -> Result<Json> {
        match self.current() {
            Ok(root) => root.info(),
            Err(e) if e.kind == ErrorKind::Damaged => {
                let mut about = self.versions.describe();
                about["error"] = json!(e.message);
                Ok(about)
            }
            Err(e) => Err(e),
        }
    }

    fn attributes(&self) -> Result<Vec<Attribute>> {
        self.current()?.attributes()
    }

    fn scales(&self) -> Result<Scales> {
        self.current()?.scales()
    }
}

/// A store that is one HDF5 file.
struct OneFile {
    path: PathBuf,
    /// `None`: the file is opened by its path.
    open: Option<Arc<Opener>>,
    context: Arc<Context>,
    formats: Registry,
}

impl Versions for OneFile {
    fn open(&self) -> Result<Arc<dyn Directory>> {
        let store = match &self.open {
            Some(open) => {
                let file = StoreFile::from_file(&self.path, open()?);
                let file = file.map_err(|e| Error::from(e).about(self.path.display()))?;
                OpenStore::from_file(&self.context, file)?
            }
            None => OpenStore::open(&self.context, &self.path)?,
        };
        self.formats.root(&store)
    }

    fn ownership(&self) -> Ownership {
        std::fs::metadata(&self.path)
            .map_or(Ownership::UNKNOWN, |meta| Ownership::from_metadata(&meta))
    }

    fn are_there(&self) -> bool {
        // A file that is no store any more is gone, too.
        std::fs::metadata(&self.path).is_ok_and(|meta| meta.is_file())
    }

    fn describe(&self) -> Json {
        json!({ "file": self.path.to_string_lossy() })
    }
}
