//! The root of a repository: `branches`, `commits`, `remotes`, `stage` and `records`.
//!
//! A list of commits or branches names many snapshots, so each is read at the first access; the last few are kept. A
//! sample below `records` is addressed by its record, independent of any column or commit.

use std::num::NonZeroUsize;
use std::path::{Path, PathBuf};
use std::sync::{Arc, OnceLock};
use std::time::SystemTime;

use lru::LruCache;
use parking_lot::Mutex;
use serde_json::{Map, Value as Json, json};
use xxhash_rust::xxh3::xxh3_64;

use super::commit::Commit;
use super::directory::SnapshotDirectory;
use super::record::Record;
use super::repository::Repository;
use super::sample::{SampleContent, describe};
use super::schema::npy_size;
use super::snapshot::{Snapshot, SnapshotPlace};
use super::table::Table;
use super::{BRANCHES, NAME, digest};
use crate::dataset::context::Context;
use crate::tree::name::{unescape, visible};
use crate::tree::{Directory, Listing, Node, StoreHandle, VirtualFile};
use npyfs_base::error::{Error, ErrorKind, Result};
use npyfs_base::npy;
use npyfs_io::content::{Concat, Content, InMemory};
use npyfs_io::file::{Ownership, time};

/// A directory of directories.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Level {
    /// The root of the repository.
    Root,
    /// The local branches.
    Branches,
    /// All commits.
    Commits,
    /// The remotes.
    Remotes,
    /// The branches of a remote.
    Remote(String),
    /// All samples by their records.
    Records,
}

/// A directory above the snapshots.
pub struct RootDirectory {
    shared: Arc<SharedRepository>,
    level: Level,
}

impl RootDirectory {
    /// Makes the root of a repository.
    pub fn new(repository: Arc<Repository>) -> Self {
        Self {
            shared: SharedRepository::new(repository),
            level: Level::Root,
        }
    }

    fn repository(&self) -> &Arc<Repository> {
        &self.shared.repository
    }

    fn below(&self, level: Level) -> Node {
        Node::Directory(Arc::new(Self {
            shared: self.shared.clone(),
            level,
        }))
    }

    fn root_entry(&self, name: &[u8]) -> Option<Node> {
        Some(match name {
            b"branches" => self.below(Level::Branches),
            b"commits" => self.below(Level::Commits),
            b"remotes" => self.below(Level::Remotes),
            b"records" => self.below(Level::Records),
            b"stage" if self.has_stage() => self.shared.lazy(SnapshotPlace::Stage, None),
            _ => return None,
        })
    }

    /// Returns true if the repository has a stage; a server's repository has none.
    fn has_stage(&self) -> bool {
        self.repository().stage.is_there()
    }

    /// Returns the branches at this level: the name here, the full name, and the commit.
    fn branches(&self) -> Result<Vec<(String, String, Option<String>)>> {
        let heads = self.repository().heads()?;
        let branches = heads.branches.iter().filter_map(|(full, head)| {
            let name = match (&self.level, full.split_once('/')) {
                (Level::Branches, None) => full,
                (Level::Remote(remote), Some((of, name))) if of == remote => name,
                _ => return None,
            };
            Some((name.to_owned(), full.clone(), head.clone()))
        });
        Ok(branches.collect())
    }

    fn remotes(&self) -> Result<Vec<String>> {
        let heads = self.repository().heads()?;
        let mut remotes = heads.remotes.clone();
        let of_branches = heads
            .branches
            .keys()
            .filter_map(|full| full.split_once('/'));
        remotes.extend(of_branches.map(|(remote, _)| remote.to_owned()));
        remotes.sort();
        remotes.dedup();
        Ok(remotes)
    }
}

impl Directory for RootDirectory {
    fn ownership(&self) -> Ownership {
        let own = self.repository().ownership();
        let changed = |table: &Table| {
            let version = table.version();
            version.map_or(SystemTime::UNIX_EPOCH, |version| time(version.modified()))
        };
        let mtime = match self.level {
            Level::Branches | Level::Remotes | Level::Remote(_) => {
                changed(&self.repository().branches)
            }
            Level::Commits => changed(&self.repository().refs),
            Level::Root | Level::Records => own.mtime,
        };
        Ownership { mtime, ..own }
    }

    fn format(&self) -> Result<&'static str> {
        Ok(NAME)
    }

    fn list(&self) -> Result<Arc<Listing>> {
        let mut entries = Vec::new();
        let mut add = |name: &str, node| entries.push((visible(name.as_bytes(), ""), node));
        match &self.level {
            Level::Root => {
                for name in ["branches", "commits", "records", "remotes", "stage"] {
                    if let Some(node) = self.root_entry(name.as_bytes()) {
                        add(name, node);
                    }
                }
            }
            Level::Branches | Level::Remote(_) => {
                for (name, full, head) in self.branches()? {
                    add(&name, self.shared.lazy(SnapshotPlace::Branch(full), head));
                }
            }
            Level::Commits => {
                for digest in self.repository().commits()?.into_keys() {
                    let node = self
                        .shared
                        .lazy(SnapshotPlace::Commit, Some(digest.clone()));
                    add(&digest, node);
                }
            }
            Level::Remotes => {
                for remote in self.remotes()? {
                    let node = self.below(Level::Remote(remote.clone()));
                    add(&remote, node);
                }
            }
            Level::Records => {}
        }
        let notes = match self.level {
            Level::Records => vec!["not listed: any record can be looked up by its name".into()],
            _ => Vec::new(),
        };
        Ok(Arc::new(Listing::new(entries, Vec::new(), notes)))
    }

    fn lookup(&self, name: &[u8]) -> Result<Option<Node>> {
        match &self.level {
            Level::Root => Ok(self.root_entry(name)),
            Level::Branches | Level::Remote(_) => {
                let found = self
                    .branches()?
                    .into_iter()
                    .find(|(own, ..)| visible(own.as_bytes(), "") == name);
                Ok(
                    found
                        .map(|(_, full, head)| self.shared.lazy(SnapshotPlace::Branch(full), head)),
                )
            }
            Level::Commits => {
                let digest = String::from_utf8_lossy(name).into_owned();
                if !digest::is_commit(&digest) {
                    return Ok(None);
                }
                match self.repository().describe(&digest) {
                    Err(e) if e.kind == ErrorKind::NotFound => Ok(None),
                    _ => Ok(Some(self.shared.lazy(SnapshotPlace::Commit, Some(digest)))),
                }
            }
            Level::Remotes => {
                let found = self.remotes()?.into_iter();
                let mut found = found.filter(|remote| visible(remote.as_bytes(), "") == name);
                Ok(found.next().map(|remote| self.below(Level::Remote(remote))))
            }
            Level::Records => {
                let stem = [".npy", ".txt", ".bin"]
                    .into_iter()
                    .find_map(|suffix| Some((name.strip_suffix(suffix.as_bytes())?, suffix)));
                let found = stem.and_then(|(stem, suffix)| {
                    let text = String::from_utf8(unescape(stem)).ok()?;
                    let record = Record::parse(&text).ok()?;
                    (SampleByRecord::suffix(&record)? == suffix).then_some(record)
                });
                let node = |record| SampleByRecord::new(self.repository(), record);
                Ok(found.map(|record| Node::File(Arc::new(node(record)))))
            }
        }
    }

    fn is_current(&self) -> bool {
        self.repository().folder.is_there()
    }

    fn info(&self) -> Result<Json> {
        let heads = self.repository().heads()?;
        let listing = self.list()?;
        Ok(json!({
            "kind": "hangar",
            "file": self.repository().folder.path.to_string_lossy(),
            "branches": heads.branches,
            "remotes": self.remotes()?,
            "staging_area_on": heads.staged_on,
            "entries": listing.len(),
            "notes": listing.notes,
        }))
    }

    fn warm(&self) {
        self.repository().context.h5.warm();
        // A lookup in that directory meets the same failure.
        let _ = self.shared.warm();
    }

    fn handle(&self) -> Option<StoreHandle> {
        (self.level == Level::Root).then(|| self.shared.repository.clone() as _)
    }
}

/// The root of a repository below a mirrored directory: opened at the first access, and again if that failed.
pub(super) struct LazyRepository {
    folder: PathBuf,
    context: Arc<Context>,
    root: Mutex<Option<Arc<RootDirectory>>>,
}

impl LazyRepository {
    /// Makes the root of a repository; `folder` is the directory of the tables.
    pub(super) fn new(folder: &Path, context: &Arc<Context>) -> Self {
        Self {
            folder: folder.to_owned(),
            context: context.clone(),
            root: Mutex::default(),
        }
    }

    fn root(&self) -> Result<Arc<RootDirectory>> {
        let mut root = self.root.lock();
        if let Some(root) = &*root {
            return Ok(root.clone());
        }
        let repository = Repository::open(&self.folder, &self.context)?;
        let opened = Arc::new(RootDirectory::new(repository));
        *root = Some(opened.clone());
        Ok(opened)
    }
}

impl Directory for LazyRepository {
    fn ownership(&self) -> Ownership {
        std::fs::metadata(&self.folder)
            .map_or(Ownership::UNKNOWN, |meta| Ownership::from_metadata(&meta))
    }

    fn list(&self) -> Result<Arc<Listing>> {
        self.root()?.list()
    }

    fn lookup(&self, name: &[u8]) -> Result<Option<Node>> {
        self.root()?.lookup(name)
    }

    fn format(&self) -> Result<&'static str> {
        Ok(NAME)
    }

    fn is_current(&self) -> bool {
        self.folder.join(BRANCHES).is_file()
    }

    fn info(&self) -> Result<Json> {
        match self.root() {
            Ok(root) => root.info(),
            Err(e) => Ok(json!({
                "kind": NAME,
                "file": self.folder.to_string_lossy(),
                "error": e.message,
            })),
        }
    }

    fn handle(&self) -> Option<StoreHandle> {
        self.root().ok()?.handle()
    }
}

/// The number of unused snapshots that are kept.
const KEPT: NonZeroUsize = NonZeroUsize::new(4).unwrap();

/// The largest packed size of the records of a commit that is read in advance, about 150 000 samples: 40 ms, 10 MiB.
const READY: u64 = 4 << 20;

/// The number of batches of samples that are located in advance: 64 * 1024 samples, 20 ms of a worker, 3 MiB.
const LOCATED: usize = 64;

/// Directories of snapshots by place and state; the staging area is identified by its version.
type KeptDirectories = LruCache<(SnapshotPlace, String), Arc<SnapshotDirectory>>;

/// The state that the directories of one repository share.
struct SharedRepository {
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
        if let Some(directory) = self.kept.lock().get(&key)
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
        self.kept.lock().put(key, directory.clone());
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

/// A sample below `records/`. Its type is that of its data file.
struct SampleByRecord {
    repository: Arc<Repository>,
    record: Record,
}

impl SampleByRecord {
    pub(super) fn new(repository: &Arc<Repository>, record: Record) -> Self {
        Self {
            repository: repository.clone(),
            record,
        }
    }

    /// Returns the suffix of the file; `None` for a record without data.
    pub(super) fn suffix(record: &Record) -> Option<&'static str> {
        match record {
            Record::Hdf5 { .. } | Record::Numpy { .. } => Some(".npy"),
            Record::Lmdb { backend: "30", .. } => Some(".txt"),
            Record::Lmdb { .. } => Some(".bin"),
            Record::Remote { .. } => None,
        }
    }

    fn value_len(&self) -> Result<u64> {
        let Record::Lmdb {
            backend, uid, key, ..
        } = &self.record
        else {
            return Err(Error::damaged("not a value"));
        };
        let keys = vec![key.as_bytes().to_vec()];
        let mut found = self.repository.values_file(backend, uid).lengths(keys)?;
        let length = found.pop().flatten();
        length.ok_or_else(|| Error::damaged("there is no such row").about(&self.record))
    }
}

impl VirtualFile for SampleByRecord {
    fn ownership(&self) -> Ownership {
        self.repository.ownership()
    }

    fn size(&self) -> Result<u64> {
        match self.record.shape() {
            Some(shape) => npy_size(&self.repository.stored_type(&self.record)?, shape),
            None => self.value_len(),
        }
    }

    fn open(&self) -> Result<Arc<dyn Content>> {
        self.repository.is_present(&self.record)?;
        let (header, dtype, len) = match self.record.shape() {
            Some(shape) => {
                let dtype = self.repository.stored_type(&self.record)?;
                let header = npy::header(&dtype, shape);
                let len = npy_size(&dtype, shape)? - header.len() as u64;
                (header, Some(dtype), len)
            }
            None => (Vec::new(), None, self.value_len()?),
        };
        let bytes = SampleContent::new(&self.repository, self.record.clone(), (dtype, len), None);
        Ok(Arc::new(Concat::new([
            Arc::new(InMemory(header)) as Arc<dyn Content>,
            Arc::new(bytes),
        ])))
    }

    fn version(&self) -> u64 {
        xxh3_64(self.record.to_string().as_bytes())
    }

    fn is_current(&self) -> bool {
        true
    }

    fn info(&self) -> Result<Json> {
        let mut map = Map::new();
        map.insert("kind".into(), json!("hangar"));
        describe(&self.repository, &self.record, &mut map);
        if self.record.shape().is_some() {
            let dtype = self.repository.stored_type(&self.record);
            match dtype {
                Ok(dtype) => map.insert("dtype".into(), dtype.json()),
                Err(e) => map.insert("error".into(), json!(e.message)),
            };
        }
        Ok(map.into())
    }
}
