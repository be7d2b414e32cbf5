//! The staging area of a Hangar repository: the contents of the next commit, and the steps that make it a commit.
//!
//! Source: Hangar 0.5.2. Every step follows Hangar, under its writer lock, so that Hangar and npyfs can take turns.
//! Changes to tables go through the worker that keeps the lock (`npyfs_hdf5::LmdbWriter`); tables are read like those
//! of any repository. Between any two steps Hangar accepts the repository. If Hangar's own order of steps leaves a
//! moment in which it would not, the order here differs, and a comment says so.

pub mod author;
pub mod builder;
pub mod checkout;
pub mod commit;
pub mod create;
pub mod data;
pub mod frame;
pub mod geometry;
pub mod markers;
pub mod names;
pub mod records;
pub mod reset;
pub mod sample;
pub mod schema;
mod staging;
pub mod target;
pub mod tree;

use std::io;
use std::path::Path;
use std::sync::Arc;

use serde_bytes::ByteBuf;

use crate::dataset::context::Context;
use crate::formats::hangar::BRANCHES;
use crate::formats::hangar::repository::{self, Repository};
use names::check_name;
use npyfs_base::error::{Error, ErrorKind, Result};
use npyfs_base::options::FsOptions;
use npyfs_hdf5::program::program;
use npyfs_hdf5::{
    H5, H5Error, LmdbWriter, LockError, LockRow, Reach, TableOp, TableTransaction, TablesOutcome,
    WriterLock,
};
use npyfs_io::owner::Owner;
use records::CommitRecords;
use schema::NewColumn;

/// The key of the writer lock in `branch.lmdb` (`records/heads.py`).
const LOCK: &[u8] = b"writerlock:";

/// The value of the writer lock while it is free.
const FREE: &[u8] = b"LOCK_AVAILABLE";

/// A repository whose staging area can be changed.
pub struct Stage {
    /// The repository.
    pub repository: Arc<Repository>,
    writer: LmdbWriter,
}

/// A state of the staging area, and the commit that it is based on.
pub struct StageState {
    /// The branch of the next commit.
    pub branch: String,
    /// The latest commit of the branch; `None` before the first.
    pub head: Option<String>,
    /// The records of that commit.
    pub base: CommitRecords,
    /// The records of the staging area.
    pub staged: CommitRecords,
}

impl StageState {
    /// Returns true if the staging area differs from its base; Hangar calls this DIRTY.
    pub fn is_changed(&self) -> bool {
        self.base != self.staged
    }
}

impl Stage {
    /// Opens the staging area of the repository at a path.
    pub fn at(store: &Path) -> Result<Self> {
        let about = |e: Error| e.about(store.display());
        let store = &store.canonicalize().map_err(|e| about(e.into()))?;
        let no_repository = || about(Error::damaged("no Hangar repository"));
        let folder = repository::folder(store).ok_or_else(no_repository)?;
        let options = FsOptions::default();
        let h5 = H5::workers(Reach::of(store, options.external));
        let context = Arc::new(Context::new(h5, options));
        Self::open(&Repository::open(&folder, &context)?, program())
    }

    /// Opens the staging area. `program` becomes the worker that writes tables; see `npyfs_hdf5::LmdbWriter`. A
    /// server's repository has no stage.
    pub fn open(repository: &Arc<Repository>, program: &Path) -> Result<Self> {
        if !repository.stage.path.is_file() {
            let why = format!("{}: has no staging area", repository.folder.path.display());
            return Err(Error::new(ErrorKind::Os(libc::EOPNOTSUPP), why));
        }
        let writer = table_writer(program, &repository.folder.path)
            .map_err(|e| Error::from(e).about(repository.folder.path.display()))?;
        Ok(Self {
            repository: repository.clone(),
            writer,
        })
    }

    /// Returns the owner of the repository, for files that root creates on the owner's behalf.
    pub fn owner(&self) -> Owner {
        self.writer.owner()
    }

    fn about(&self, error: impl Into<Error>) -> Error {
        error.into().about(self.repository.folder.path.display())
    }

    /// Takes the writer lock. Fails with EBUSY and the name of the holder if another process has it.
    pub fn lock(&self) -> Result<WriterLock<'_>> {
        self.writer.lock().map_err(|e| {
            self.about(match e {
                LockError::Held(who) => busy(&who),
                LockError::Failed(e) => e.into(),
            })
        })
    }

    /// Returns the present staging area. A caller without the lock may see a state between two of Hangar's steps.
    pub fn state(&self) -> Result<StageState> {
        let (branch, head) = self.head()?;
        let base = match &head {
            Some(digest) => CommitRecords::of_commit(&self.repository, digest)?,
            None => CommitRecords::default(),
        };
        Ok(StageState {
            branch,
            head,
            base,
            staged: CommitRecords::staged(&self.repository)?,
        })
    }

    /// Returns the branch that the staging area is based on, and its commit.
    pub fn head(&self) -> Result<(String, Option<String>)> {
        let branches = &self.repository.branches;
        let text = |value: Vec<u8>| String::from_utf8_lossy(&value).into_owned();
        let head = branches.value(b"head")?.map(text);
        let head = head
            .filter(|head| head.starts_with("branch:"))
            .ok_or_else(|| self.about(Error::damaged("branch.lmdb names no branch as head")))?;
        let digest = branches.value(head.as_bytes())?.ok_or_else(|| {
            self.about(Error::damaged(format!("there is no {head} in branch.lmdb")))
        })?;
        let digest = Some(text(digest)).filter(|digest| !digest.is_empty());
        Ok((head["branch:".len()..].to_owned(), digest))
    }

    /// Returns the holder of the writer lock, in words; `None` if the lock is free.
    pub fn holder(&self) -> Result<Option<String>> {
        let value = self.repository.branches.value(LOCK)?;
        let held = value.filter(|value| value != FREE);
        Ok(held.map(|value| busy(&String::from_utf8_lossy(&value)).message))
    }

    /// Stages a column without samples.
    fn stage_column(&self, name: &str, new: &NewColumn) -> Result<()> {
        check_name(name.as_bytes(), "column")?;
        let (record, digest) = new.record()?;
        let mut locked = self.lock()?;
        let keys = [b'f', b'n'].map(|layout| format!("s:{name}:{}", char::from(layout)));
        let found = self
            .repository
            .stage
            .values(keys.map(String::into_bytes).into())?;
        if found.iter().any(Option::is_some) {
            let why = format!("there is a column {name}");
            return Err(self.about(Error::new(ErrorKind::Os(libc::EEXIST), why)));
        }
        let layout = if new.nested { 'n' } else { 'f' };
        let steps = vec![
            TableTransaction::new(
                "hash.lmdb",
                vec![TableOp::add(format!("s:{digest}"), record.as_bytes())],
            ),
            TableTransaction::new(
                "stage_ref.lmdb",
                vec![TableOp::put(
                    format!("s:{name}:{layout}"),
                    digest.as_bytes(),
                )],
            ),
        ];
        self.write(&mut locked, steps)
    }

    /// Writes values into a file of samples of this checkout; needs no lock.
    pub fn write_values(&self, steps: Vec<TableTransaction>) -> Result<TablesOutcome> {
        let done = self.writer.write_values(steps);
        done.map_err(|e| self.about(e))
    }

    /// Makes changes. Only the holder of the lock can have made changes since it was taken.
    fn write(&self, locked: &mut WriterLock<'_>, steps: Vec<TableTransaction>) -> Result<()> {
        match locked.write(steps).map_err(|e: H5Error| self.about(e))? {
            TablesOutcome::Done => Ok(()),
            TablesOutcome::Differs(key) => Err(self.about(Error::new(
                ErrorKind::Stale,
                format!("{key} was changed by somebody who does not have the writer lock"),
            ))),
            TablesOutcome::Full | TablesOutcome::Held(_) => {
                Err(self.about(Error::damaged("a table is full")))
            }
        }
    }
}

/// Makes the daemon's end of the worker that writes the tables in `folder`.
fn table_writer(program: &Path, folder: &Path) -> io::Result<LmdbWriter> {
    let lock = LockRow {
        table: BRANCHES.into(),
        key: ByteBuf::from(LOCK),
        free: ByteBuf::from(FREE),
    };
    LmdbWriter::new(program, folder, lock)
}

/// Returns the error that names the holder of the writer lock. Hangar's writers are known by a random number only.
fn busy(who: &str) -> Error {
    let ours: Vec<&str> = who.split(':').collect();
    let message = match ours[..] {
        ["npyfs", host, process, _] => {
            format!("npyfs on host {host}, process {process}, has the writer lock")
        }
        ["npyfs", host] => format!("another npyfs on host {host} has the writer lock"),
        _ => format!(
            "a writer of Hangar ({who}) has the writer lock; if it crashed, \
             `hangar writer-lock --force-release` takes it away"
        ),
    };
    Error::new(ErrorKind::Os(libc::EBUSY), message)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_holder_of_the_lock_is_named() {
        assert_eq!(
            busy("npyfs:there:17:0123456789abcdef").message,
            "npyfs on host there, process 17, has the writer lock"
        );
        let other = busy("MERGE_PROCESS");
        assert!(other.message.contains("Hangar (MERGE_PROCESS)"));
        assert_eq!(other.errno(), libc::EBUSY);
    }
}
