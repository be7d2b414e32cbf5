//! The root of a distributed set, whatever version of it is on disk.

use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};

use serde_json::{Value as Json, json};

use super::directory::ObjectDirectory;
use super::place::Place;
use super::set::LocaleSet;
use crate::dataset::context::Context;
use crate::error::{ErrorKind, Result};
use crate::hdf5::Attribute;
use crate::io::file::Ownership;
use crate::tree::{Directory, Listing};

/// The directory that stands for all files of a set.
pub struct SetRoot {
    place: Place,
    /// The mounted directory; parts that lie outside are not read.
    top: PathBuf,
    context: Arc<Context>,
    current: Mutex<Option<Arc<ObjectDirectory>>>,
}

impl SetRoot {
    pub fn new(place: Place, top: &Path, context: &Arc<Context>) -> Self {
        Self {
            place,
            top: top.to_owned(),
            context: context.clone(),
            current: Mutex::default(),
        }
    }

    /// The root groups of the version on disk now.
    pub fn current(&self) -> Result<Arc<ObjectDirectory>> {
        let mut current = self.current.lock().unwrap_or_else(|e| e.into_inner());
        if let Some(root) = &*current
            && root.set().is_current()
        {
            return Ok(root.clone());
        }
        *current = None;
        let set = LocaleSet::open(&self.context, &self.place, &self.top)?;
        let root = Arc::new(ObjectDirectory::root(Arc::new(set))?);
        *current = Some(root.clone());
        Ok(root)
    }
}

impl Directory for SetRoot {
    fn ownership(&self) -> Ownership {
        // As a set shows it, but without opening its files.
        let parts = self.place.parts(&self.top, self.context.options.external);
        let paths = parts.unwrap_or_default().into_values().flatten().flatten();
        let parts = paths.filter_map(|path| std::fs::metadata(path).ok());
        Ownership::joined(parts.map(|meta| Ownership::of(&meta)))
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
        // It follows its files; without any it is gone from its directory too.
        let current = self.current.lock().unwrap_or_else(|e| e.into_inner());
        let first = current.as_ref().and_then(|root| root.set().parts.first());
        if first.is_some_and(|part| part.store.file.path.is_file()) {
            return true;
        }
        drop(current);
        self.place
            .parts(&self.top, self.context.options.external)
            .is_ok_and(|parts| !parts.is_empty())
    }

    fn info(&self) -> Result<Json> {
        match self.current() {
            Ok(root) => root.info(),
            Err(e) if e.kind == ErrorKind::Damaged => Ok(json!({
                "kind": "arkouda",
                "file": self.place.pattern().to_string_lossy(),
                "error": e.message,
            })),
            Err(e) => Err(e),
        }
    }

    fn attributes(&self) -> Result<Vec<Attribute>> {
        self.current()?.attributes()
    }
}
