//! The directory of a snapshot, which is read at the first access: a list of commits or branches names many.

use std::sync::{Arc, OnceLock};

use serde_json::Value as Json;

use super::directory::SnapshotDirectory;
use super::format::NAME;
use super::root::SharedRepository;
use super::snapshot::{Snapshot, SnapshotPlace};
use crate::tree::{Directory, Listing, Node};
use npyfs_base::error::Result;
use npyfs_io::file::Ownership;

/// The directory of a commit, a branch or the staging area.
pub(super) struct LazySnapshot {
    shared: Arc<SharedRepository>,
    place: SnapshotPlace,
    /// The digest of the commit; `None` for the staging area and for a branch without commits.
    head: Option<String>,
    directory: OnceLock<Arc<SnapshotDirectory>>,
}

impl LazySnapshot {
    pub(super) fn new(
        shared: &Arc<SharedRepository>,
        place: SnapshotPlace,
        head: Option<String>,
    ) -> Self {
        Self {
            shared: shared.clone(),
            place,
            head,
            directory: OnceLock::new(),
        }
    }

    fn directory(&self) -> Result<Arc<SnapshotDirectory>> {
        if let Some(directory) = self.directory.get() {
            return Ok(directory.clone());
        }
        let directory = self.shared.directory(&self.place, self.head.as_deref())?;
        Ok(self.directory.get_or_init(|| directory).clone())
    }

    /// Returns the time of the shown state, in nanoseconds since 1970.
    fn time(&self) -> i64 {
        let repository = &self.shared.repository;
        match (&self.head, &self.place) {
            (Some(digest), _) => repository.describe(digest).map_or(0, |(_, spec)| spec.time),
            (None, SnapshotPlace::Stage) => repository.stage.version().map_or(0, |v| v.modified()),
            (None, _) => repository.branches.version().map_or(0, |v| v.modified()),
        }
    }
}

impl Directory for LazySnapshot {
    fn ownership(&self) -> Ownership {
        Snapshot::owned(&self.shared.repository, self.time())
    }

    fn list(&self) -> Result<Arc<Listing>> {
        self.directory()?.list()
    }

    fn lookup(&self, name: &[u8]) -> Result<Option<Node>> {
        self.directory()?.lookup(name)
    }

    fn format(&self) -> Result<&'static str> {
        Ok(NAME)
    }

    fn is_current(&self) -> bool {
        match (&self.place, self.directory.get()) {
            (SnapshotPlace::Branch(name), _) => self.shared.repository.heads().is_ok_and(|heads| {
                heads
                    .branches
                    .get(name)
                    .is_some_and(|head| *head == self.head)
            }),
            (_, Some(directory)) => directory.is_current(),
            (_, None) => true,
        }
    }

    fn is_lasting(&self) -> bool {
        self.place == SnapshotPlace::Commit
    }

    fn info(&self) -> Result<Json> {
        self.directory()?.info()
    }
}
