//! The committed layers of a store, in order: numbered objects, each created once (`numbered`), behind a list that older versions
//! have begun.
//!
//! A commit is one object. The directory of the layer stays where it is; from then on nobody writes in it any more. Any number of
//! processes commit at a time, on any number of hosts: who comes second reads what came first, and takes the next number. Who
//! reads needs no lock.

mod bucket;
mod committer;
mod directory;
mod lock;
mod numbered;
mod place;
mod probe;
mod record;

use std::fs::File;
use std::sync::Arc;

use bucket::CommitBucket;
use committer::Committer;
use directory::CommitDirectory;
use numbered::NumberedCommits;
use place::CommitPlace;

use super::mirror::Mirror;
use super::record_log::{self, LogForm, RecordLog};
use crate::error::{Error, ErrorKind, Result};
use crate::io::dir::Dir;
use crate::io::storage::{Disk, Storage};

pub use lock::{LOCK, lock};
pub(super) use numbered::useless;
pub(super) use record::write_id;
pub use record::{LayerCommit, find, next_time};

/// The name of the directory of commits, or of the list that older versions have begun; no checkout has this name.
pub const NAME: &str = "commits";

/// The name of the directory of commits that are made on a list. No checkout has this name either.
const BEHIND_LIST: &str = ".commits";

/// Form 3 of the list has no more lines than there are: what follows is numbered.
const FORM: LogForm = LogForm {
    name: "npyfs commits",
    version: 3,
};

/// The commits in `dir`.
pub fn read(dir: &Dir) -> Result<Vec<LayerCommit>> {
    Ok(open(dir, Arc::new(Disk))?.1)
}

/// Returns the numbered commits, if there is a place for them, and all.
fn open(
    dir: &Dir,
    storage: Arc<dyn Storage>,
) -> Result<(Option<NumberedCommits>, Vec<LayerCommit>)> {
    if let Some(place) = in_bucket(dir, &storage)? {
        let (numbered, all) = NumberedCommits::read(place, FORM, || Ok(Vec::new()))?;
        return Ok((Some(numbered), all));
    }
    let place = |dir| Arc::new(CommitDirectory::new(dir, storage.clone()));
    let behind_list = match dir.below(NAME) {
        Ok(own) => {
            let (numbered, all) = NumberedCommits::read(place(own), FORM, || Ok(Vec::new()))?;
            return Ok((Some(numbered), all));
        }
        Err(e) if e.kind == ErrorKind::NotFound => return Ok((None, Vec::new())),
        Err(e) if e.kind == ErrorKind::NotDirectory => dir.below(BEHIND_LIST),
        Err(e) => return Err(e),
    };
    match behind_list {
        Err(e) if e.kind == ErrorKind::NotFound => Ok((None, list(dir)?)),
        Err(e) => Err(e),
        Ok(behind) => {
            let (numbered, all) = NumberedCommits::read(place(behind), FORM, || list(dir))?;
            Ok((Some(numbered), all))
        }
    }
}

/// Adds to `all` the commits that were made since these were read: opens one name if there are none. Those in front of one
/// that cannot be read are added nevertheless.
pub(super) fn read_on(dir: &Dir, all: &mut Vec<LayerCommit>) -> Result<()> {
    let storage: Arc<dyn Storage> = Arc::new(Disk);
    if let Some(place) = in_bucket(dir, &storage)? {
        return NumberedCommits::of(place, FORM).extend(all, 0);
    }
    match dir.below(NAME) {
        Ok(own) => {
            let place = Arc::new(CommitDirectory::new(own, Arc::new(Disk)));
            NumberedCommits::of(place, FORM).extend(all, 0)
        }
        Err(e) if e.kind == ErrorKind::NotFound && all.is_empty() => Ok(()),
        // Older versions add to the list, and who makes the first commit behind it says so nowhere else.
        Err(e) if e.kind == ErrorKind::NotDirectory => {
            let now = read(dir)?;
            let is_same = |(known, now): (&LayerCommit, &LayerCommit)| known.id == now.id;
            if now.len() < all.len() || !all.iter().zip(&now).all(is_same) {
                let why = "it has other commits than before";
                return Err(Error::damaged(why).about(dir.path().join(NAME).display()));
            }
            all.extend(now.into_iter().skip(all.len()));
            Ok(())
        }
        Err(e) => Err(e),
    }
}

/// Returns the commits in `dir`, the directory of the numbered ones if there is any, and how many are those of a list.
pub(super) fn with_place(dir: &Dir) -> Result<(Vec<LayerCommit>, Option<Dir>, u64)> {
    let (numbered, all) = open(dir, Arc::new(Disk))?;
    let first = numbered.map_or(all.len() as u64, |numbered| numbered.first());
    for name in [NAME, BEHIND_LIST] {
        match dir.below(name) {
            Ok(own) => return Ok((all, Some(own), first)),
            Err(e) if matches!(e.kind, ErrorKind::NotFound | ErrorKind::NotDirectory) => {}
            Err(e) => return Err(e),
        }
    }
    Ok((all, None, first))
}

/// Returns the place of the commits of a bucket, if `dir` is a copy of one.
fn in_bucket(dir: &Dir, storage: &Arc<dyn Storage>) -> Result<Option<Arc<dyn CommitPlace>>> {
    let Some(mirror) = Mirror::of(dir) else {
        return Ok(None);
    };
    let (own, _) = dir.make(NAME)?;
    let copy = Arc::new(CommitDirectory::new(own, storage.clone()));
    let prefix = mirror.prefix().below(NAME);
    Ok(Some(Arc::new(CommitBucket::new(prefix, Some(copy)))))
}

/// Returns the commits of the list.
fn list(dir: &Dir) -> Result<Vec<LayerCommit>> {
    let commits: Vec<LayerCommit> = record_log::read(dir, NAME, FORM)?;
    match commits
        .iter()
        .find(|commit| !record::is_layer(&commit.layer))
    {
        Some(bad) => Err(record::no_layer(&bad.layer).about(dir.path().join(NAME).display())),
        None => Ok(commits),
    }
}

/// The commits of a store, to which one is to be added. Others of this host wait meanwhile; of another host, they may be faster.
pub struct Commits {
    dir: Dir,
    storage: Arc<dyn Storage>,
    /// Those that there were when the lock was taken.
    found: Vec<LayerCommit>,
    /// There is none before the first numbered commit.
    committer: Option<Committer>,
    _lock: File,
}

impl Commits {
    /// Waits until nobody else of this host commits.
    pub fn lock(dir: &Dir, storage: Arc<dyn Storage>) -> Result<Self> {
        let lock = lock(dir)?;
        let (numbered, found) = open(dir, storage.clone())?;
        let is_begun = |numbered: &NumberedCommits| found.len() as u64 > numbered.first();
        let committer = match numbered.filter(is_begun) {
            Some(numbered) => Some(Committer::new(numbered, found.clone())?),
            None => None,
        };
        Ok(Self {
            dir: dir.clone(),
            storage,
            found,
            committer,
            _lock: lock,
        })
    }

    /// Returns all commits, the first first.
    pub fn all(&self) -> &[LayerCommit] {
        let begun = self.committer.as_ref();
        begun.map_or(&self.found, |committer| committer.all())
    }

    /// Makes a commit happen, durably, on top of the others; says by whom and under which id, and when if it does not say that
    /// itself (`next_time`). False if others were faster: then theirs are there, and what is to be committed may not go with
    /// them. On failure nothing is committed, unless the failure says that this is not known.
    pub fn add(&mut self, commit: LayerCommit) -> Result<bool> {
        if let Some(committer) = &mut self.committer {
            return committer.add(commit);
        }
        let mut committer = self.begin()?;
        // Others may have begun it meanwhile.
        let is_first = committer.all().len() == self.found.len();
        let is_made = is_first && committer.add(commit)?;
        self.committer = Some(committer);
        Ok(is_made)
    }

    /// Makes the place of the first numbered commit, and tries it. A list says from then on that it goes on elsewhere, so that no
    /// older version adds to it.
    fn begin(&self) -> Result<Committer> {
        let about = |e: std::io::Error| Error::from(e).about(self.dir.path().display());
        let (dir, storage) = (&self.dir, &self.storage);
        if let Some(place) = in_bucket(dir, storage)? {
            let (numbered, all) = NumberedCommits::read(place, FORM, || Ok(Vec::new()))?;
            return Committer::new(numbered, all);
        }
        let (name, listed) = match dir.below(NAME) {
            Err(e) if e.kind == ErrorKind::NotDirectory => {
                let list = RecordLog::open((dir, NAME), FORM, storage.clone(), || Ok(()))?;
                (BEHIND_LIST, list.1)
            }
            Err(e) if e.kind != ErrorKind::NotFound => return Err(e),
            _ => (NAME, Vec::new()),
        };
        let (own, _) = dir.make(name)?;
        storage.sync_dir(dir).map_err(about)?;
        let place = Arc::new(CommitDirectory::new(own, storage.clone()));
        let (numbered, all) = NumberedCommits::read(place, FORM, || Ok(listed))?;
        Committer::new(numbered, all)
    }
}

#[cfg(test)]
mod tests;
