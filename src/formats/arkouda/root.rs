//! The files of a distributed set as the versions of one store.

use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};

use serde_json::{Value as Json, json};

use super::directory::ObjectDirectory;
use super::format::NAME;
use super::set::LocaleSet;
use crate::checkout::format::{FileSet, Versions};
use crate::dataset::context::Context;
use crate::error::Result;
use crate::io::file::Ownership;
use crate::tree::Directory;

/// A distributed set, whatever files it has now.
pub(super) struct SetVersions {
    set: FileSet,
    /// The mounted directory; parts that lie outside are not read.
    top: PathBuf,
    context: Arc<Context>,
    /// The first file of the version that was opened last.
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
        // As a set shows it, but without opening its files.
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
