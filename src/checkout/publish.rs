//! A store with layers on top as one small HDF5 file of links into the store's file and the files of the layers.
//!
//! It is made under a temporary name beside its place, and gets its own when it is complete, synced and remembered. Nobody can
//! write in it, and through it in the files that it leads to: libhdf5 refuses to open it for that (`hdf5/publish/seal.rs`).

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::fs::{File, Permissions};
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::SystemTime;

use serde::{Deserialize, Serialize};

use super::export::{ExportedChange, joined, object_path};
use super::layer::nanoseconds;
use super::publications::{Published, relative};
use super::workplace::Workplace;
use crate::error::{Error, ErrorKind, Result};
use crate::hdf5::edit::{EditStep, Editor, Holders, ObjectPath, SourceFile};
use crate::hdf5::publish::{LinkedFile, NewPublication, PublishedChange};
use crate::io::file::{Identity, StoreFile};
use crate::io::rights::Rights;
use crate::io::storage::Storage;

/// A file that a publication depends on, as the publication itself says it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PublishedFile {
    /// Its path, from the directory of the publication.
    pub path: String,
    /// Its size in bytes.
    pub size: u64,
    /// When it was modified, in nanoseconds since 1970.
    pub modified: i64,
}

/// What a publication says of itself, in the attribute `npyfs_published`.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct PublicationNote {
    /// The program that made it, with its version.
    pub tool: String,
    /// When it was made, in nanoseconds since 1970.
    pub time: i64,
    /// The id of the last commit that it shows.
    pub commit: Option<String>,
    /// The checkout that it shows.
    pub checkout: Option<String>,
    /// The files that it depends on, the store's first.
    pub files: Vec<PublishedFile>,
}

impl PublishedFile {
    fn of(name: &Path, identity: &Identity) -> Result<Self> {
        let path = name.to_str().ok_or_else(|| {
            let why = "its name is no UTF-8: a publication cannot say that it depends on it";
            Error::new(ErrorKind::Os(libc::EILSEQ), why).about(name.display())
        })?;
        Ok(Self {
            path: path.to_owned(),
            size: identity.size,
            modified: identity.modified(),
        })
    }

    /// Returns what is not as it was when a publication in `dir` was made, if anything.
    pub fn changed(&self, dir: &Path) -> Option<&'static str> {
        match std::fs::metadata(dir.join(&self.path)) {
            Err(_) => Some("is not there"),
            Ok(meta) => {
                let now = Identity::of(&meta);
                let same = (now.size, now.modified()) == (self.size, self.modified);
                (!same).then_some("was changed since")
            }
        }
    }
}

/// A publication that is to be made.
pub struct Publication<'a> {
    /// The store's files, canonical.
    pub base: &'a [PathBuf],
    /// For a store of several files: the steps that join its objects in one.
    pub joined: Option<Vec<EditStep>>,
    /// What goes with objects that are changed, by their keys.
    pub stored_as: &'a BTreeMap<String, Vec<ObjectPath>>,
    /// What is published.
    pub published: &'a Published,
    /// The checkout, if one is named.
    pub checkout: Option<&'a str>,
    /// The names of attributes in which a group lists members.
    pub lists: Vec<&'static str>,
    /// The new file.
    pub out: &'a Path,
    /// The program that becomes a worker.
    pub program: &'a Path,
}

/// The outcome of a publication.
pub struct Outcome {
    /// The files that it depends on.
    pub files: Vec<PublishedFile>,
    /// Objects that have no counterpart, and why. If there are any and they may not be left out, there is no file.
    pub lost: Vec<(String, String)>,
    /// The size of the new file in bytes.
    pub bytes: u64,
}

impl Publication<'_> {
    /// Makes the file; durable on success. On failure there is no file, nor unless it is `wanted`: then the outcome only says what
    /// has no counterpart.
    pub fn run(
        &self,
        leave_out: bool,
        wanted: bool,
        storage: &Arc<dyn Storage>,
    ) -> Result<Outcome> {
        let about = |e: io::Error| Error::from(e).about(self.out.display());
        let parent = match self.out.parent() {
            Some(parent) if !parent.as_os_str().is_empty() => parent,
            _ => Path::new("."),
        };
        let home = parent.canonicalize().map_err(about)?;
        let mut links = LinkedFiles::default();
        let mut base = Vec::new();
        for path in self.base {
            let file = StoreFile::open(path)?;
            if file.layout().is_some() {
                let why = "a file in several members cannot be linked to; export makes one of it";
                return Err(super::encode::unsupported(why).about(path.display()));
            }
            let from = SourceFile::new(path, &std::fs::metadata(path)?);
            links.add(&home, path, from, &file.identity)?;
            base.push(file);
        }
        let Some(first) = self.base.first() else {
            return Err(Error::damaged("no store"));
        };
        let mut changes = Vec::new();
        let mut lost = Vec::new();
        for (key, change) in joined(&self.published.layers) {
            let change = match change {
                ExportedChange::Restored(_) => continue,
                ExportedChange::Deleted => PublishedChange::Deleted,
                ExportedChange::Stored(dir, stored) => {
                    let found = dir.metadata(&stored.name()).and_then(|meta| {
                        let path = dir.path().canonicalize()?.join(stored.name());
                        let from = SourceFile::new(&path, &meta);
                        let number = links.add(&home, &path, from, &Identity::of(&meta))?;
                        links.in_layers.insert((number, dir.name(), stored.file));
                        Ok(number)
                    });
                    match found {
                        Ok(number) => PublishedChange::Stored(number),
                        Err(e) => {
                            lost.push((key, e.message));
                            continue;
                        }
                    }
                }
            };
            let also = self.stored_as.get(&key).into_iter().flatten();
            changes.extend(also.map(|path| (path.clone(), PublishedChange::Deleted)));
            match object_path(&key) {
                Ok(path) => changes.push((path, change)),
                // What no mount shows is not there to be deleted.
                Err(_) if matches!(change, PublishedChange::Deleted) => {}
                Err(why) => lost.push((key, why)),
            }
        }
        let time = nanoseconds(SystemTime::now());
        let note = PublicationNote {
            tool: concat!("npyfs ", env!("CARGO_PKG_VERSION")).to_owned(),
            time,
            commit: self.published.commit.clone(),
            checkout: self.checkout.map(str::to_owned),
            files: Vec::new(),
        };
        let new = NewPublication {
            files: std::mem::take(&mut links.files),
            joined: self.joined.clone(),
            changes,
            lists: self
                .lists
                .iter()
                .map(|name| name.as_bytes().to_vec())
                .collect(),
            about: serde_json::to_string(&note).map_err(|e| Error::damaged(e.to_string()))?,
        };
        // The worker may write in this directory only.
        let place =
            Workplace::new_in(parent).map_err(|e| Error::from(e).about(parent.display()))?;
        let part = place.path().join("part.h5");
        File::create_new(&part).map_err(about)?;
        let layers = self.published.layers.iter();
        let mut readable: Vec<PathBuf> = self.base.to_vec();
        readable.extend(layers.map(|layer| layer.dir.path_of_descriptor()));
        readable.dedup();
        let mut editor = Editor::start(self.program, place.path(), &readable, Holders::default())?;
        let made = editor.publish(&StoreFile::open(&part)?, new);
        let made = made.map_err(|e| Error::from(e).about(self.out.display()))?;
        lost.extend(made.lost.into_iter().map(|(path, why)| {
            let name = String::from_utf8_lossy(&path.join(&b'/')).into_owned();
            (name, why)
        }));
        let changed = |file: &&StoreFile| !file.is_unchanged() || !file.is_current();
        if let Some(file) = base.iter().find(changed) {
            let message = "it changed on disk while it was published";
            return Err(Error::new(ErrorKind::Stale, message).about(file.path.display()));
        }
        let mut outcome = Outcome {
            files: links.said(&made.used),
            lost,
            bytes: 0,
        };
        if !wanted || !outcome.lost.is_empty() && !leave_out {
            return Ok(outcome);
        }
        let file = File::open(&part).map_err(about)?;
        let read_only = |file: &File| -> io::Result<()> {
            Rights::copy_of(first)?.settle(file)?;
            let mode = file.metadata()?.permissions().mode() & 0o444;
            file.set_permissions(Permissions::from_mode(mode))
        };
        read_only(&file)
            .and_then(|()| file.sync_all())
            .map_err(about)?;
        outcome.bytes = file.metadata().map_err(about)?.len();
        let out = home.join(self.out.file_name().unwrap_or_default());
        self.published
            .remember(&out, time, links.by_layer(&made.used), storage.clone())?;
        place
            .name(&part, self.out)
            .and_then(|()| File::open(parent)?.sync_all())
            .map_err(about)?;
        Ok(outcome)
    }
}

/// The files that are linked to, each once.
#[derive(Default)]
struct LinkedFiles {
    files: Vec<LinkedFile>,
    said: Vec<PublishedFile>,
    numbers: HashMap<PathBuf, usize>,
    /// Number, layer, and number in the layer of each that is one of a layer.
    in_layers: BTreeSet<(usize, String, u64)>,
}

impl LinkedFiles {
    /// Adds the file at a path; returns its number.
    fn add(
        &mut self,
        home: &Path,
        path: &Path,
        from: SourceFile,
        identity: &Identity,
    ) -> Result<usize> {
        if let Some(&number) = self.numbers.get(path) {
            return Ok(number);
        }
        let name = relative(home, path);
        let number = self.files.len();
        let said = PublishedFile::of(&name, identity)?;
        self.files.push(LinkedFile {
            about: serde_json::to_string(&said).map_err(|e| Error::damaged(e.to_string()))?,
            from,
            name: name.as_os_str().as_bytes().to_vec(),
        });
        self.said.push(said);
        self.numbers.insert(path.to_owned(), number);
        Ok(number)
    }

    /// Returns those of these numbers.
    fn said(&self, used: &BTreeSet<usize>) -> Vec<PublishedFile> {
        let used = used.iter();
        used.filter_map(|&number| self.said.get(number).cloned())
            .collect()
    }

    /// Returns those of these numbers that are a layer's, by layer.
    fn by_layer(&self, used: &BTreeSet<usize>) -> BTreeMap<String, Vec<u64>> {
        let mut by_layer: BTreeMap<String, Vec<u64>> = BTreeMap::new();
        for (number, layer, file) in &self.in_layers {
            if used.contains(number) {
                by_layer.entry(layer.clone()).or_default().push(*file);
            }
        }
        by_layer
    }
}
