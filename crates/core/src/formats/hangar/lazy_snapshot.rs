//! The snapshots of a repository as directories. A snapshot is read at the first access, since a list of commits or
//! branches names many; the last few are kept.

use std::num::NonZeroUsize;
use std::sync::{Arc, Mutex, OnceLock};

use lru::LruCache;
use serde_json::Value as Json;

use super::NAME;
use super::commit::Commit;
use super::directory::SnapshotDirectory;
use super::repository::Repository;
use super::snapshot::{Snapshot, SnapshotPlace};
use crate::tree::{Directory, Listing, Node};
use npyfs_base::error::Result;
use npyfs_io::file::Ownership;

/// The number of unused snapshots that are kept.
const KEPT: NonZeroUsize = NonZeroUsize::new(4).unwrap();

/// The largest packed size of the records of a commit that is read in advance, about 150 000 samples: 40 ms, 10 MiB.
const READY: u64 = 4 << 20;

/// The number of batches of samples that are located in advance: 64 * 1024 samples, 20 ms of a worker, 3 MiB.
const LOCATED: usize = 64;

/// Directories of snapshots by place and state; the staging area is identified by its version.
type KeptDirectories = LruCache<(SnapshotPlace, String), Arc<SnapshotDirectory>>;

/// The state that the directories of one repository share.
pub(super) struct SharedRepository {
    /// The repository.
    pub(super) repository: Arc<Repository>,
    kept: Mutex<KeptDirectories>,
}

impl SharedRepository {
    /// Shares a repository.
    pub(super) fn new(repository: Arc<Repository>) -> Arc<Self> {
        Arc::new(Self {
            repository,
            kept: Mutex::new(LruCache::new(KEPT)),
        })
    }

    /// Returns the directory of the snapshot that a place shows now.
    fn directory(
        &self,
        place: &SnapshotPlace,
        head: Option<&str>,
    ) -> Result<Arc<SnapshotDirectory>> {
        let repository = &self.repository;
        let key = (place.clone(), head.unwrap_or_default().to_owned());
        let kept = || self.kept.lock().unwrap_or_else(|e| e.into_inner());
        if let Some(directory) = kept().get(&key)
            && directory.is_current()
        {
            return Ok(directory.clone());
        }
        let commit = match (place, head) {
            (SnapshotPlace::Stage, _) => repository.staged()?,
            (_, Some(digest)) => repository.commit(digest)?,
            (_, None) => Arc::new(Commit::none()),
        };
        let snapshot = Snapshot::new(repository, place.clone(), commit);
        let directory = Arc::new(SnapshotDirectory::new(snapshot));
        kept().put(key, directory.clone());
        Ok(directory)
    }

    /// Reads the commit that the staging area is based on, its schemas, and the locations of the first samples of its
    /// columns.
    pub(super) fn warm(&self) -> Result<()> {
        let heads = self.repository.heads()?;
        let Some(name) = &heads.staged_on else {
            return Ok(());
        };
        let Some(Some(head)) = heads.branches.get(name) else {
            return Ok(());
        };
        let len = self.repository.packed_len(head)?;
        if len.is_some_and(|len| len <= READY) {
            let directory = self.directory(&SnapshotPlace::Branch(name.clone()), Some(head))?;
            directory.list()?;
            let mut left = LOCATED;
            for column in directory.snapshot.commit.columns.values() {
                // A reader of the column meets the same failure; the other columns are warmed all the same.
                let _ = self.repository.locate_first(column, left);
                left = left.saturating_sub(column.located.len());
            }
        }
        Ok(())
    }

    /// Returns the directory of what a place shows; `head` is the digest of the commit.
    pub(super) fn lazy(self: &Arc<Self>, place: SnapshotPlace, head: Option<String>) -> Node {
        Node::Directory(Arc::new(LazySnapshot {
            shared: self.clone(),
            place,
            head,
            directory: OnceLock::new(),
        }))
    }
}

/// The directory of a commit, a branch or the staging area.
struct LazySnapshot {
    shared: Arc<SharedRepository>,
    place: SnapshotPlace,
    /// The digest of the commit; `None` for the staging area and for a branch without commits.
    head: Option<String>,
    directory: OnceLock<Arc<SnapshotDirectory>>,
}

impl LazySnapshot {
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
