//! The committed layers of a store, in order: numbered objects, each created once (`numbered`).
//!
//! A commit is one object. The directory of the layer stays where it is and is not written to any more. Any number of
//! processes on any number of hosts may commit at the same time: a process that loses reads the commit that won, and
//! takes the next number. Readers need no lock.
//!
//! The lock of a directory of checkouts is held briefly while layers are added or removed. It excludes other processes
//! of the same host, and saves committing processes a second attempt. Between hosts it may have no effect: the number
//! of a commit ensures that it happens once, and on top of all others.

mod bucket;
mod numbered;
mod place;
mod record;

use std::fs::File;
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use rustix::fs::{FlockOperation, flock};
use rustix::io::Errno;

use crate::checkout::mirror::Mirror;
use crate::checkout::records::holder;
use crate::checkout::records::layer_files::CommitId;
use bucket::CommitBucket;
use npyfs_base::error::{Error, ErrorKind, Result};
use npyfs_io::dir::Dir;
use npyfs_io::storage::{Disk, Storage};
use numbered::{Committer, NumberedCommits};
use place::{CommitDirectory, CommitPlace};

pub use crate::checkout::records::names::COMMITS as NAME;
/// The name of the lock file.
pub use crate::store::CHECKOUTS_LOCK as LOCK;
pub(in crate::checkout) use numbered::useless;
pub use record::{CommitRecords, LayerCommit, find, next_time};
pub(in crate::checkout) use record::{is_layer, write_id};

/// Returns the commits in `dir`.
pub fn read(dir: &Dir) -> Result<Vec<LayerCommit>> {
    Ok(open(dir, Arc::new(Disk))?.1.into_read())
}

/// Returns the numbered commits, if they have a place, and all commits.
fn open(dir: &Dir, storage: Arc<dyn Storage>) -> Result<(Option<NumberedCommits>, CommitRecords)> {
    match place(dir, &storage)? {
        None => Ok((None, CommitRecords::default())),
        Some(place) => {
            let (numbered, all) = NumberedCommits::read(place)?;
            Ok((Some(numbered), all))
        }
    }
}

/// Adds to `all` the commits made since; opens one name if there are none. If a commit cannot be read, those before it
/// are still added.
pub(in crate::checkout) fn read_on(dir: &Dir, all: &mut CommitRecords) -> Result<()> {
    let storage: Arc<dyn Storage> = Arc::new(Disk);
    match place(dir, &storage)? {
        Some(place) => NumberedCommits::new(place).extend(all, 0),
        None if all.is_empty() => Ok(()),
        None => dir.below(NAME).map(drop),
    }
}

/// Reads the commits from commit `number` on; `None` if there is none with this number and id.
pub(in crate::checkout) fn read_from(
    dir: &Dir,
    (number, id): (usize, CommitId),
) -> Result<Option<CommitRecords>> {
    let read = open_from(dir, Arc::new(Disk), (number, id))?;
    Ok(read.map(|(_, all)| all))
}

fn open_from(
    dir: &Dir,
    storage: Arc<dyn Storage>,
    (number, id): (usize, CommitId),
) -> Result<Option<(NumberedCommits, CommitRecords)>> {
    let Some(place) = place(dir, &storage)? else {
        return Ok(None);
    };
    let mut numbered = NumberedCommits::new(place);
    let Some(mut all) = numbered.last(number, id)? else {
        return Ok(None);
    };
    numbered.read_on(&mut all)?;
    Ok(Some((numbered, all)))
}

/// Writes something that follows from the commits in `dir`, and need not be durable.
pub(in crate::checkout) fn replace(dir: &Dir, name: &str, bytes: &[u8]) -> Result<()> {
    let storage: Arc<dyn Storage> = Arc::new(Disk);
    match place(dir, &storage)? {
        Some(place) => place.replace(name, bytes),
        None => Ok(()),
    }
}

/// Returns the commits in `dir`, and their directory if there is any.
pub(in crate::checkout) fn with_place(dir: &Dir) -> Result<(Vec<LayerCommit>, Option<Dir>)> {
    let all = read(dir)?;
    match dir.below(NAME) {
        Ok(own) => Ok((all, Some(own))),
        Err(e) if e.kind == ErrorKind::NotFound => Ok((all, None)),
        Err(e) => Err(e),
    }
}

/// Returns the place of the commits in `dir`, if it exists. A list of older versions is refused by name.
fn place(dir: &Dir, storage: &Arc<dyn Storage>) -> Result<Option<Arc<dyn CommitPlace>>> {
    if let Some(place) = in_bucket(dir, storage)? {
        return Ok(Some(place));
    }
    match dir.below(NAME) {
        Ok(own) => Ok(Some(Arc::new(CommitDirectory::new(own, storage.clone())))),
        Err(e) if e.kind == ErrorKind::NotFound => Ok(None),
        Err(e) if e.kind == ErrorKind::NotDirectory => {
            let why =
                "a list of commits, which older versions of npyfs wrote and this one does not read";
            let refused = Error::new(ErrorKind::Os(libc::EOPNOTSUPP), why);
            Err(refused.about(dir.path().join(NAME).display()))
        }
        Err(e) => Err(e),
    }
}

/// Returns the place of a bucket's commits, if `dir` is a copy of a bucket's directory.
fn in_bucket(dir: &Dir, storage: &Arc<dyn Storage>) -> Result<Option<Arc<dyn CommitPlace>>> {
    let Some(mirror) = Mirror::find(dir) else {
        return Ok(None);
    };
    let (own, _) = dir.make(NAME)?;
    let copy = CommitDirectory::new(own, storage.clone());
    let prefix = mirror.prefix().below(NAME);
    Ok(Some(Arc::new(CommitBucket::new(prefix, Some(copy)))))
}

/// The commits of a store while one is being added. Other processes of this host wait; other hosts may commit first.
pub struct Commits {
    dir: Dir,
    storage: Arc<dyn Storage>,
    /// `None` before the first commit.
    committer: Option<Committer>,
    _lock: File,
}

impl Commits {
    /// Waits for the lock: no other process of this host commits meanwhile.
    pub fn lock(dir: &Dir, storage: Arc<dyn Storage>) -> Result<Self> {
        Self::lock_from(dir, storage, None)
    }

    /// Waits for the lock, and reads the commits from one on: its number and id.
    pub(in crate::checkout) fn lock_from(
        dir: &Dir,
        storage: Arc<dyn Storage>,
        first: Option<(usize, CommitId)>,
    ) -> Result<Self> {
        let lock = lock(dir)?;
        let mut own = Self {
            dir: dir.clone(),
            storage: storage.clone(),
            committer: None,
            _lock: lock,
        };
        let read = match first {
            Some(first) => open_from(dir, storage, first)?,
            None => None,
        };
        match read {
            Some((numbered, all)) => own.committer = Some(Committer::new(numbered, all)?),
            None => own.read_in_full()?,
        }
        Ok(own)
    }

    /// Reads the records of all commits.
    pub(in crate::checkout) fn read_in_full(&mut self) -> Result<()> {
        let (numbered, found) = open(&self.dir, self.storage.clone())?;
        self.committer = match numbered.filter(|_| !found.is_empty()) {
            Some(numbered) => Some(Committer::new(numbered, found)?),
            None => None,
        };
        Ok(())
    }

    /// Returns all commits.
    pub fn all(&self) -> &CommitRecords {
        static NONE: CommitRecords = CommitRecords::NONE;
        self.committer.as_ref().map_or(&NONE, Committer::all)
    }

    /// Adds a commit on top of the others, durably. Fills in its author and id, and its time if it has none
    /// (`next_time`). False if other processes committed first: their commits are then in `all`, and the new commit may
    /// conflict with them. On failure nothing is committed, unless the error says that this is not known.
    pub fn add(&mut self, commit: LayerCommit) -> Result<bool> {
        if let Some(committer) = &mut self.committer {
            return committer.add(commit);
        }
        let mut committer = self.begin()?;
        // Another process may have begun it in the meantime.
        let is_first = committer.all().is_empty();
        let is_made = is_first && committer.add(commit)?;
        self.committer = Some(committer);
        Ok(is_made)
    }

    /// Creates the place of the first numbered commit and probes it.
    fn begin(&self) -> Result<Committer> {
        let about = |e: std::io::Error| Error::from(e).about(self.dir.path().display());
        let (dir, storage) = (&self.dir, &self.storage);
        let place = match in_bucket(dir, storage)? {
            Some(place) => place,
            None => {
                let (own, _) = dir.make(NAME)?;
                storage.sync_dir(dir).map_err(about)?;
                Arc::new(CommitDirectory::new(own, storage.clone()))
            }
        };
        let (numbered, all) = NumberedCommits::read(place)?;
        Committer::new(numbered, all)
    }
}

/// The time after which a waiting process reports which process holds the lock.
const PATIENCE: Duration = Duration::from_secs(1);

/// The pause between two attempts to lock.
const PAUSE: Duration = Duration::from_millis(5);

/// Waits for the right to add and remove layers in `dir`; ESTALE if the directory was removed meanwhile. A long wait is
/// logged with the holder's name.
pub fn lock(dir: &Dir) -> Result<File> {
    let path = dir.path().join(LOCK);
    let about = |e: Errno| Error::from(std::io::Error::from(e)).about(path.display());
    loop {
        let file = dir.write_or_create(LOCK)?;
        if !lock_soon(&file).map_err(about)? {
            let who = match holder::all(&file) {
                all if all.is_empty() => "another process".to_owned(),
                all => all.join(", "),
            };
            holder::tell_user(&format!("{}: waits for {who}", path.display()));
            flock(&file, FlockOperation::LockExclusive).map_err(about)?;
        }
        if !dir.is_in_place() {
            let message = "it was removed by another process";
            return Err(Error::new(ErrorKind::Stale, message).about(dir.path().display()));
        }
        // A lock on a removed file excludes no other process.
        if dir.leads_to(LOCK, &file) {
            return Ok(file);
        }
    }
}

/// Returns whether the lock was taken within `PATIENCE`.
fn lock_soon(file: &File) -> rustix::io::Result<bool> {
    let start = Instant::now();
    loop {
        match flock(file, FlockOperation::NonBlockingLockExclusive) {
            Err(Errno::WOULDBLOCK) if start.elapsed() < PATIENCE => thread::sleep(PAUSE),
            Err(Errno::WOULDBLOCK) => return Ok(false),
            locked => return locked.map(|()| true),
        }
    }
}

#[cfg(test)]
mod tests;
