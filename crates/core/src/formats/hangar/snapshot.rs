//! One state of the data, a commit or the staging area, and its place in the mount.

use std::sync::{Arc, OnceLock};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use super::column::Column;
use super::commit::Commit;
use super::repository::Repository;
use super::schema::{SampleKind, Schema, npy_size};
use super::time_cache::{ColumnTimes, Times};
use npyfs_base::error::Result;
use npyfs_base::npy;
use npyfs_io::file::Ownership;

/// The place that shows a state and determines when the state is out of date.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum SnapshotPlace {
    /// Follows a branch; `<remote>/<branch>` for one of a remote.
    Branch(String),
    /// Never changes.
    Commit,
    /// Follows the staging area.
    Stage,
}

/// A state and its place.
pub struct Snapshot {
    pub repository: Arc<Repository>,
    pub place: SnapshotPlace,
    pub commit: Arc<Commit>,
    own: Ownership,
    times: OnceLock<Arc<Times>>,
}

impl Snapshot {
    pub fn new(
        repository: &Arc<Repository>,
        place: SnapshotPlace,
        commit: Arc<Commit>,
    ) -> Arc<Self> {
        Arc::new(Self {
            repository: repository.clone(),
            place,
            commit,
            own: repository.ownership(),
            times: OnceLock::new(),
        })
    }

    /// Returns the owner and permissions of all entries of a repository, with a time in nanoseconds since 1970.
    pub fn owned(repository: &Repository, time: i64) -> Ownership {
        Ownership {
            mtime: system_time(time),
            ..repository.ownership()
        }
    }

    /// Returns true if the place still shows this state.
    pub fn is_current(&self) -> bool {
        match &self.place {
            SnapshotPlace::Commit => true,
            SnapshotPlace::Branch(name) => self.repository.heads().is_ok_and(|heads| {
                let head = heads.branches.get(name);
                head.is_some_and(|head| head.as_deref().unwrap_or_default() == self.commit.digest)
            }),
            SnapshotPlace::Stage => {
                let staged = self.repository.staged();
                staged.is_ok_and(|staged| Arc::ptr_eq(&staged, &self.commit))
            }
        }
    }

    pub fn is_lasting(&self) -> bool {
        self.place == SnapshotPlace::Commit
    }

    /// Returns the owner and permissions, with a time in nanoseconds since 1970.
    pub fn ownership(&self, time: i64) -> Ownership {
        Ownership {
            mtime: system_time(time),
            ..self.own
        }
    }

    /// Returns `None` if the history cannot be read at the moment: the commit's own time is used instead.
    fn times(&self) -> Option<Arc<Times>> {
        if let Some(times) = self.times.get() {
            return Some(times.clone());
        }
        let times = self.repository.times(&self.commit).ok()?;
        Some(self.times.get_or_init(|| times).clone())
    }
}

fn system_time(nanoseconds: i64) -> SystemTime {
    match u64::try_from(nanoseconds) {
        Ok(n) => UNIX_EPOCH + Duration::from_nanos(n),
        Err(_) => UNIX_EPOCH,
    }
}

/// A column of a snapshot.
pub struct ColumnView {
    pub snapshot: Arc<Snapshot>,
    /// The unescaped name.
    pub name: Vec<u8>,
    pub column: Arc<Column>,
    /// The schema, and the size of each file if all have the same.
    schema: OnceLock<(Arc<Schema>, Option<u64>)>,
    times: OnceLock<Arc<ColumnTimes>>,
}

impl ColumnView {
    pub fn new(snapshot: &Arc<Snapshot>, name: &[u8], column: &Arc<Column>) -> Self {
        Self {
            snapshot: snapshot.clone(),
            name: name.to_vec(),
            column: column.clone(),
            schema: OnceLock::new(),
            times: OnceLock::new(),
        }
    }

    fn known(&self) -> Result<&(Arc<Schema>, Option<u64>)> {
        if let Some(known) = self.schema.get() {
            return Ok(known);
        }
        let schema = self.repository().schema(&self.column.schema)?;
        let size = schema
            .fixed()
            .and_then(|(dtype, shape)| npy_size(dtype, shape).ok());
        Ok(self.schema.get_or_init(|| (schema, size)))
    }

    pub fn schema(&self) -> Result<&Schema> {
        Ok(&self.known()?.0)
    }

    pub fn repository(&self) -> &Arc<Repository> {
        &self.snapshot.repository
    }

    fn times(&self) -> Option<&ColumnTimes> {
        if let Some(times) = self.times.get() {
            return Some(times);
        }
        let times = self.snapshot.times()?.get(&self.name)?.clone();
        Some(self.times.get_or_init(|| times))
    }

    /// Returns the time of the last change of a sample.
    pub fn time(&self, at: usize) -> i64 {
        let commit = self.snapshot.commit.spec.time;
        self.times().map_or(commit, |times| times.get(at))
    }

    /// Returns the time of the last change in the column.
    pub fn changed(&self) -> i64 {
        let commit = self.snapshot.commit.spec.time;
        self.times().map_or(commit, |times| times.changed)
    }

    pub fn suffix(&self) -> &'static str {
        self.schema().map_or("", Schema::suffix)
    }

    /// Returns the size of a sample's file; `None` if it cannot be known (yet).
    pub fn size(&self, at: usize) -> Result<Option<u64>> {
        let (schema, size) = self.known()?;
        if size.is_some() {
            return Ok(*size);
        }
        match &schema.samples {
            SampleKind::Text | SampleKind::Bytes => self.repository().length(&self.column, at),
            SampleKind::Arrays { dtype, .. } => {
                let record = self.repository().record(&self.column, at);
                match record.ok().as_ref().and_then(|record| record.shape()) {
                    Some(shape) => npy_size(dtype, shape).map(Some),
                    None => Ok(None),
                }
            }
        }
    }

    /// Returns the header of the file of a sample of `shape`, which is empty for text and bytes.
    pub fn header(&self, shape: Option<&[u64]>) -> Result<Vec<u8>> {
        let schema = self.schema()?;
        Ok(match (&schema.samples, shape) {
            (SampleKind::Arrays { dtype, .. }, Some(shape)) => npy::header(dtype, shape),
            _ => Vec::new(),
        })
    }
}
