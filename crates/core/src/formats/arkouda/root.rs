//! The files of a distributed set as the versions of one store.

use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};

use serde_json::{Value as Json, json};

use super::directory::ObjectDirectory;
use super::format::NAME;
use super::set::LocaleSet;
use crate::dataset::context::Context;
use crate::store::format::{FileSet, Versions};
use crate::tree::Directory;
use npyfs_base::error::Result;
use npyfs_io::file::Ownership;

/// A distributed set, independent of its present files.
pub(super) struct SetVersions {
    set: FileSet,
    /// The mounted directory; parts outside of it are not read.
    top: PathBuf,
    context: Arc<Context>,
    /// The first file of the last opened version.
    first: Mutex<Option<PathBuf>>,
}

impl SetVersions {
    pub(super) fn new(set: FileSet, top: &Path, context: &Arc<Context>) -> Self {
        Self {
            set,
            top: top.to_owned(),
            context: context.clone(),
            first: Mutex::default(),
        }
    }
}

impl Versions for SetVersions {
    fn open(&self) -> Result<Arc<dyn Directory>> {
        let known = |first| *self.first.lock().unwrap_or_else(|e| e.into_inner()) = first;
        known(None);
        let set = LocaleSet::open(&self.context, &self.set, &self.top)?;
        known(set.parts.first().map(|part| part.store.file.path.clone()));
        Ok(Arc::new(ObjectDirectory::root(Arc::new(set))?))
    }

    fn ownership(&self) -> Ownership {
        // As for a set, but without opening its files.
        self.set.ownership(&self.top, self.context.options.external)
    }

    fn are_there(&self) -> bool {
        let first = self.first.lock().unwrap_or_else(|e| e.into_inner()).clone();
        if first.is_some_and(|path| path.is_file()) {
            return true;
        }
        self.set
            .parts(&self.top, self.context.options.external)
            .is_ok_and(|parts| !parts.is_empty())
    }

    fn describe(&self) -> Json {
        json!({ "kind": NAME, "file": self.set.pattern().to_string_lossy() })
    }
}
