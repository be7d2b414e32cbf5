//! The root of a repository: `branches`, `commits`, `remotes`, `stage` and `records`.

use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};
use std::time::SystemTime;

use serde_json::{Value as Json, json};

use super::by_record::SampleByRecord;
use super::digest;
use super::lazy_snapshot::SharedRepository;
use super::record::Record;
use super::repository::Repository;
use super::snapshot::SnapshotPlace;
use super::table::Table;
use super::{BRANCHES, NAME};
use crate::dataset::context::Context;
use crate::tree::name::{unescape, visible};
use crate::tree::{Directory, Listing, Node, StoreHandle};
use npyfs_base::error::{ErrorKind, Result};
use npyfs_io::file::{Ownership, time};

/// A directory of directories.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Level {
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
        let mut root = self.root.lock().unwrap_or_else(|e| e.into_inner());
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
        std::fs::metadata(&self.folder).map_or(Ownership::UNKNOWN, |meta| Ownership::of(&meta))
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
