//! A Hangar repository: its tables, its data files, and the states that were read from them.
//!
//! Never writes or locks anything. A commit never changes, so it is kept as long as there is room; branches and the
//! staging area are read again whenever their file has changed.
//!
//! Except for `reading`, no mutex is held during a read.
//!
//! The times of changes follow the history of first parents. The time of a sample is that of the commit that gave it
//! its present content. The time of a column is that of the last commit that changed anything in it. Times follow from
//! a commit's digest and never change.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::path::{Path, PathBuf};
use std::sync::mpsc::sync_channel;
use std::sync::{Arc, Weak};

use parking_lot::Mutex;

use super::BRANCHES;
use super::collection::DataFiles;
use super::column::Column;
use super::commit::{Commit, SortedColumns, Sorter, Spec, parents, records, unpack, unpack_parts};
use super::digest::{self, CommitHash};
use super::folder::Folder;
use super::schema::Schema;
use super::table::Table;
use super::time_cache::{ColumnTimes, TimeCache, Times};
use crate::dataset::context::Context;
use npyfs_base::error::{Error, ErrorKind, Result};
use npyfs_base::thread;
use npyfs_io::file::{Identity, Ownership};
use npyfs_io::lru::WeightedLru;
use npyfs_io::remote::{Entries, Listing};

/// The names of the directory that makes a repository: of a user, and of a server.
const FOLDERS: [&str; 2] = [".hangar", ".hangar_server"];

/// The number of commits that are kept, and the number of their samples; commits in use exist beside them.
const COMMITS: usize = 16;
const SAMPLES: u64 = 1 << 20;

/// The number of parts of the records that may wait for the digest or for the sorter; a part is some megabytes.
const PARTS: usize = 4;

/// The longest value of `branch.lmdb` and of a commit's parents.
const LONGEST: usize = 4096;

/// The branches and their commits.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Heads {
    /// Local branches, and `<remote>/<branch>`; a branch without commits has no digest.
    pub branches: BTreeMap<String, Option<String>>,
    /// The names of remotes.
    pub remotes: Vec<String>,
    /// The branch that the staging area is based on.
    pub staged_on: Option<String>,
}

/// An open repository.
pub struct Repository {
    /// The cache, workers and threads that reading needs.
    pub context: Arc<Context>,
    /// The directory with the tables.
    pub folder: Arc<Folder>,
    /// `branch.lmdb`: the commit of each branch.
    pub branches: Table,
    /// `ref.lmdb`: parents, descriptions and records of commits.
    pub refs: Table,
    /// `hash.lmdb`: the location of each sample, and schemas.
    pub hashes: Table,
    /// `stage_ref.lmdb`: the records of the next commit.
    pub stage: Table,
    /// Samples that were added since the last commit, by digest.
    pub stage_hashes: Table,
    /// The data files.
    pub files: DataFiles,
    /// The times at which samples and columns changed, as far as they are known.
    pub(super) time_cache: TimeCache,
    heads: Mutex<Option<(Identity, Arc<Heads>)>>,
    staged: Mutex<Option<(Identity, Arc<Commit>)>>,
    /// The commits by digest; each weighs its samples.
    commits: Mutex<WeightedLru<String, Arc<Commit>>>,
    /// Held while a commit is read, on several cores: a second thread that wants the same commit then finds it.
    reading: Mutex<()>,
    /// Columns in use, by content.
    columns: Mutex<HashMap<u128, Weak<Column>>>,
    schemas: Mutex<HashMap<String, Arc<Schema>>>,
}

/// Returns the directory of the tables, if `top` holds a repository.
pub fn folder(top: &Path) -> Option<PathBuf> {
    FOLDERS
        .iter()
        .map(|name| top.join(name))
        .find(|folder| folder.join(BRANCHES).is_file())
}

/// Returns the directory of the tables below a prefix of a bucket, if its names are those of a repository.
pub fn folder_below(entries: &Entries) -> Option<&'static str> {
    FOLDERS.into_iter().find(|name| entries.has_prefix(name))
}

impl Repository {
    /// Opens the repository whose tables are in `folder`; refuses versions that Hangar 0.5.2 refuses.
    pub fn open(folder: &Path, context: &Arc<Context>) -> Result<Arc<Self>> {
        Self::in_folder(Folder::here(folder, context))
    }

    /// Opens the repository whose tables are below a prefix of a bucket.
    pub fn open_elsewhere(folder: Listing, context: &Arc<Context>) -> Result<Arc<Self>> {
        Self::in_folder(Folder::elsewhere(folder, context))
    }

    fn in_folder(folder: Arc<Folder>) -> Result<Arc<Self>> {
        let table = |name: &str| Table::new(&folder.path.join(name), &folder);
        let repository = Self {
            context: folder.context.clone(),
            branches: table(BRANCHES),
            refs: table("ref.lmdb"),
            hashes: table("hash.lmdb"),
            stage: table("stage_ref.lmdb"),
            stage_hashes: table("stage_hash.lmdb"),
            files: DataFiles::new(&folder),
            time_cache: TimeCache::new(&folder.path),
            folder: folder.clone(),
            heads: Mutex::default(),
            staged: Mutex::default(),
            commits: Mutex::new(WeightedLru::new(SAMPLES)),
            reading: Mutex::default(),
            columns: Mutex::default(),
            schemas: Mutex::default(),
        };
        let version = repository.branches.value(b"software_version")?;
        let version = String::from_utf8_lossy(version.as_deref().unwrap_or_default()).into_owned();
        if is_refused(&version) {
            let why = format!(
                "{}: written by Hangar {version:?}, whose format Hangar 0.5.2 refuses to read",
                folder.path.display()
            );
            return Err(Error::damaged(why));
        }
        Ok(Arc::new(repository))
    }

    /// Returns the owner and permissions of all entries.
    pub fn ownership(&self) -> Ownership {
        self.folder.ownership()
    }

    /// Returns the present branches.
    pub fn heads(&self) -> Result<Arc<Heads>> {
        let version = self.branches.version()?;
        if let Some((known, heads)) = &*self.heads.lock()
            && *known == version
        {
            return Ok(heads.clone());
        }
        let mut heads = Heads::default();
        self.branches.rows(b"", LONGEST, |rows| {
            for (key, value) in rows {
                let key = String::from_utf8_lossy(&key).into_owned();
                let value = String::from_utf8_lossy(&value).into_owned();
                if let Some(branch) = key.strip_prefix("branch:") {
                    let digest = (!value.is_empty()).then_some(value);
                    heads.branches.insert(branch.to_owned(), digest);
                } else if let Some(remote) = key.strip_prefix("remote:") {
                    heads.remotes.push(remote.to_owned());
                } else if key == "head" {
                    heads.staged_on = value.strip_prefix("branch:").map(str::to_owned);
                }
            }
            Ok(())
        })?;
        let heads = Arc::new(heads);
        *self.heads.lock() = Some((version, heads.clone()));
        Ok(heads)
    }

    /// Returns the digests and parents of all commits.
    pub fn commits(&self) -> Result<BTreeMap<String, Vec<String>>> {
        let mut commits = BTreeMap::new();
        self.refs.rows(b"a=", LONGEST, |rows| {
            for (key, value) in rows {
                let key = String::from_utf8_lossy(&key);
                if digest::is_commit(&key) {
                    commits.insert(key.into_owned(), parents(&value));
                }
            }
            Ok(())
        })?;
        Ok(commits)
    }

    /// Returns the parents and the description of a commit as stored, the description unpacked.
    fn described(&self, digest: &str) -> Result<(Vec<u8>, Vec<u8>)> {
        let about = |e: Error| e.about(format!("commit {digest}"));
        let keys = vec![digest.into(), format!("{digest}:spec").into_bytes()];
        let mut values = self.refs.values(keys)?;
        let (spec, parents) = (values.pop().flatten(), values.pop().flatten());
        let (Some(spec), Some(parents)) = (spec, parents) else {
            return Err(about(Error::new(ErrorKind::NotFound, "not in ref.lmdb")));
        };
        Ok((parents.into_vec(), unpack(&spec).map_err(about)?))
    }

    /// Returns the parents and the description of a commit.
    pub fn describe(&self, digest: &str) -> Result<(Vec<String>, Spec)> {
        let (parents_text, spec) = self.described(digest)?;
        let spec = Spec::parse(&spec).map_err(|e| e.about(format!("commit {digest}")))?;
        Ok((parents(&parents_text), spec))
    }

    /// Returns a commit, checked against its digest.
    pub fn commit(&self, digest: &str) -> Result<Arc<Commit>> {
        let known = || self.commits.lock().get(digest).cloned();
        if let Some(commit) = known() {
            return Ok(commit);
        }
        let _one = self.reading.lock();
        if let Some(commit) = known() {
            return Ok(commit);
        }
        let about = |e: Error| e.about(format!("commit {digest}"));
        let (parents_text, spec_text) = self.described(digest)?;
        let spec = Spec::parse(&spec_text).map_err(about)?;
        let frame = self.refs.value(format!("{digest}:ref").as_bytes())?;
        let frame = frame.ok_or_else(|| about(Error::damaged("has no records in ref.lmdb")))?;
        let (found, sorted) = unpacked(&frame, &parents_text, &spec_text).map_err(about)?;
        drop(frame);
        if found != digest {
            return Err(about(Error::damaged("its content has another digest")));
        }
        let commit = self.shared(digest.to_owned(), parents(&parents_text), spec, sorted);
        let commit = Arc::new(commit);
        let mut commits = self.commits.lock();
        let samples = commit.columns.values().map(|c| c.len() as u64).sum();
        commits.put(digest.to_owned(), commit.clone(), samples);
        if commits.len() > COMMITS {
            commits.pop_oldest();
        }
        while commits.len() > 1 && commits.pop_excess(0).is_some() {}
        drop(commits);
        Ok(commit)
    }

    /// Returns the packed size in bytes of the records of a commit in `ref.lmdb`; `None` if there are none.
    pub fn packed_len(&self, digest: &str) -> Result<Option<u64>> {
        let lengths = self
            .refs
            .lengths(vec![format!("{digest}:ref").into_bytes()]);
        Ok(lengths?.pop().flatten())
    }

    /// Makes a commit of columns; a column that other commits have as well is shared.
    fn shared(
        &self,
        digest: String,
        parents: Vec<String>,
        spec: Spec,
        (columns, notes): SortedColumns,
    ) -> Commit {
        let mut known = self.columns.lock();
        known.retain(|_, column| column.strong_count() > 0);
        let columns = columns
            .into_iter()
            .map(|(name, column)| {
                let content = column.content;
                let shared = known.get(&content).and_then(Weak::upgrade);
                let shared = shared.unwrap_or_else(|| {
                    let column = Arc::new(column);
                    known.insert(content, Arc::downgrade(&column));
                    column
                });
                (name, shared)
            })
            .collect();
        Commit {
            digest,
            parents,
            spec,
            columns,
            notes,
        }
    }

    /// Returns the present staging area: a commit in the making, whose only parent is the commit that it is based on.
    pub fn staged(&self) -> Result<Arc<Commit>> {
        let version = self.stage.version()?;
        if let Some((known, staged)) = &*self.staged.lock()
            && *known == version
        {
            return Ok(staged.clone());
        }
        let heads = self.heads()?;
        let base = heads
            .staged_on
            .as_ref()
            .and_then(|name| heads.branches.get(name));
        let mut sorter = Sorter::default();
        self.stage.rows(b"", LONGEST, |rows| {
            for (key, value) in rows {
                sorter.add(&key, &value);
            }
            Ok(())
        })?;
        let spec = Spec {
            time: version.modified(),
            ..Spec::default()
        };
        let parents = base.cloned().flatten().into_iter().collect();
        let staged = Arc::new(self.shared(String::new(), parents, spec, sorter.finish()));
        *self.staged.lock() = Some((version, staged.clone()));
        Ok(staged)
    }

    /// Forgets the branches and the staging area: this process has just changed them, possibly twice within one tick of
    /// the file clock.
    pub fn look_again(&self) {
        self.branches.look_again();
        self.stage.look_again();
        self.hashes.look_again();
        *self.heads.lock() = None;
        *self.staged.lock() = None;
    }

    /// Returns a schema by its digest.
    pub fn schema(&self, digest: &str) -> Result<Arc<Schema>> {
        if let Some(schema) = self.schemas.lock().get(digest) {
            return Ok(schema.clone());
        }
        let about = |e: Error| e.about(format!("schema {digest}"));
        let text = self.hashes.value(format!("s:{digest}").as_bytes())?;
        let text = text.ok_or_else(|| about(Error::damaged("not in hash.lmdb")))?;
        let schema = Arc::new(Schema::parse(&text).map_err(about)?);
        self.schemas
            .lock()
            .insert(digest.to_owned(), schema.clone());
        Ok(schema)
    }
}

/// Returns the digest of a commit whose records are in `frame`, and its columns: one thread unpacks, another computes
/// the digest, and the calling thread sorts.
fn unpacked(frame: &[u8], parents: &[u8], spec: &[u8]) -> Result<(String, SortedColumns)> {
    let failed = |_| Error::damaged("reading the records panicked");
    thread::scope(|scope| {
        let (to_sorter, parts) = sync_channel::<Arc<Vec<u8>>>(PARTS);
        let (to_hash, hashed) = sync_channel::<Arc<Vec<u8>>>(PARTS);
        let unpacking = scope.spawn(move || {
            unpack_parts(frame, |part| {
                let part = Arc::new(part);
                // The receiver is gone if the hashing thread has panicked.
                let _ = to_hash.send(part.clone());
                let _ = to_sorter.send(part);
            })
        });
        let hashing = scope.spawn(move || {
            let mut hash = CommitHash::default();
            hashed.iter().for_each(|part| hash.add(records(&part)));
            hash.finish(parents, spec)
        });
        let mut sorter = Sorter::default();
        parts.iter().for_each(|part| sorter.add_all(&part));
        let sorted = sorter.finish();
        unpacking.join().map_err(failed)??;
        Ok((hashing.join().map_err(failed)?, sorted))
    })
}

/// Returns true if Hangar 0.5.2 refuses a repository of this version (`vcompat.py`).
fn is_refused(version: &str) -> bool {
    let mut parts = version.split('.').map(|part| part.parse::<u32>().ok());
    match (parts.next().flatten(), parts.next().flatten()) {
        (Some(0), Some(minor)) => minor < 5 || version == "0.5.0.dev0",
        (Some(_), _) => false,
        (None, _) => true,
    }
}

/// Returns the times of `commit`; `before` is its first parent with its times.
fn follow(commit: &Commit, before: Option<(&Commit, &Times)>) -> Times {
    let now = commit.spec.time;
    let column = |(name, column): (&Vec<u8>, &Arc<Column>)| {
        let old =
            before.and_then(|(commit, times)| Some((commit.columns.get(name)?, times.get(name)?)));
        let times = match old {
            Some((old, times)) if old.content == column.content => times.clone(),
            Some((old, times)) => {
                let same = old.same_in(column);
                let each = same.map(|at| at.map_or(now, |at| times.get(at)));
                Arc::new(ColumnTimes::new(&each.collect::<Vec<_>>(), now))
            }
            None => Arc::new(ColumnTimes::new(&vec![now; column.len()], now)),
        };
        (name.clone(), times)
    };
    commit.columns.iter().map(column).collect()
}

impl Repository {
    /// Returns the times of a commit or of the staging area. They are found once, and are kept in the cache for
    /// commits.
    pub fn times(&self, commit: &Commit) -> Result<Arc<Times>> {
        if commit.digest.is_empty() {
            let before = match commit.parents.first() {
                Some(parent) => {
                    let parent = self.commit(parent)?;
                    let times = self.times(&parent)?;
                    Some((parent, times))
                }
                None => None,
            };
            let before = before.as_ref().map(|(commit, times)| (&**commit, &**times));
            return Ok(Arc::new(follow(commit, before)));
        }
        if let Some(times) = self.time_cache.known(commit) {
            return Ok(times);
        }
        // The walk goes back to a commit with known times or to the root, then forward again.
        let mut chain: Vec<String> = Vec::new();
        let mut seen = HashSet::new();
        let mut parent = commit.parents.first().cloned();
        let mut start = None;
        while let Some(digest) = parent.take() {
            // An incomplete history begins with its first present commit.
            let Ok((parents, _)) = self.describe(&digest) else {
                break;
            };
            if !seen.insert(digest.clone()) {
                break;
            }
            if self.time_cache.remembers(&digest)
                && let Ok(known) = self.commit(&digest)
                && let Some(times) = self.time_cache.known(&known)
            {
                start = Some((known, times));
                break;
            }
            chain.push(digest);
            parent = parents.into_iter().next();
        }
        for digest in chain.iter().rev() {
            let Ok(next) = self.commit(digest) else {
                start = None;
                continue;
            };
            let before = start
                .as_ref()
                .map(|(commit, times): &(Arc<Commit>, Arc<Times>)| (&**commit, &**times));
            let times = Arc::new(follow(&next, before));
            self.time_cache.keep(digest, &times);
            start = Some((next, times));
        }
        let before = start.as_ref().map(|(commit, times)| (&**commit, &**times));
        let times = Arc::new(follow(commit, before));
        self.time_cache.keep(&commit.digest, &times);
        self.time_cache.save(&commit.digest, &times);
        Ok(times)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions_that_hangar_refuses() {
        for version in ["0.2.0", "0.4.0", "0.4.9", "0.5.0.dev0", "", "x"] {
            assert!(is_refused(version), "{version}");
        }
        for version in ["0.5.0", "0.5.0.dev1", "0.5.2", "1.0"] {
            assert!(!is_refused(version), "{version}");
        }
    }
}
