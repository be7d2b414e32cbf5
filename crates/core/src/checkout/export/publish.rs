//! Publishes a store with layers on top as a small HDF5 file of links into the store's file and the files of the
//! layers.
//!
//! The file has a temporary name beside its destination, and is renamed once it is complete, synced and recorded. Until
//! it has its name, its layers are protected from changes (`Published`). No program can write to it, or through it to
//! the linked files: libhdf5 refuses to open it for writing (`publish/seal.rs` of the worker).

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::fs::{File, Permissions};
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::PermissionsExt;
use std::path::{Component, Path, PathBuf};
use std::sync::Arc;
use std::time::SystemTime;

use serde::{Deserialize, Serialize};

use super::{ExportedChange, joined, object_path};
use crate::checkout::history::checkouts::{Checkouts, dir_of, layer_below};
use crate::checkout::history::commits;
use crate::checkout::history::committed_layers::{layers, on_top};
use crate::checkout::layer::lock::LayerLock;
use crate::checkout::layer::publications::{self, PublicationRecord, only_standing};
use crate::checkout::mirror::Mirror;
use crate::checkout::records::attribute;
use crate::checkout::records::form::Form;
use crate::checkout::records::index::{IndexChanges, KeptObject, nanoseconds};
use crate::checkout::records::layer_files::LayerFiles;
use crate::checkout::records::record_log::RecordLog;
use npyfs_base::error::{Error, ErrorKind, Result};
use npyfs_hdf5::{
    EditStep, Editor, Holders, LinkedFile, NewPublication, ObjectPath, PublishedChange, SourceFile,
};
use npyfs_io::dir::Dir;
use npyfs_io::file::{Identity, StoreFile};
use npyfs_io::rights::Rights;
use npyfs_io::storage::Storage;
use npyfs_io::workplace::Workplace;

/// A file that a publication depends on, as recorded in the publication.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PublishedFile {
    /// The path, relative to the directory of the publication.
    pub path: String,
    /// The size in bytes.
    pub size: u64,
    /// The time of its last modification, in nanoseconds since 1970.
    pub modified: i64,
}

/// The form of the record that a publication has of itself.
const FORM: Form = Form {
    name: "npyfs publication",
    version: 1,
};

/// The record that a publication has of itself, in the attribute `npyfs_published`.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct PublicationNote {
    /// The program that created it, with its version.
    pub tool: String,
    /// The time of its creation, in nanoseconds since 1970.
    pub time: i64,
    /// The id of the last commit in it.
    pub commit: Option<String>,
    /// The checkout in it, if any.
    pub checkout: Option<String>,
    /// The files that it depends on, starting with the store's: the last field, which the worker adds.
    #[serde(skip_serializing)]
    pub files: Vec<PublishedFile>,
}

impl PublicationNote {
    fn print(&self) -> Result<String> {
        FORM.print(self)
    }

    /// Parses the text of the attribute. One of another form is refused by its number.
    pub fn parse(text: &str) -> Result<Self> {
        FORM.parse(text)
    }
}

impl PublishedFile {
    fn new(name: &Path, identity: &Identity) -> Result<Self> {
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

    /// Returns what has changed since a publication in `dir` was created, if anything.
    pub fn changed(&self, dir: &Path) -> Option<&'static str> {
        match std::fs::metadata(dir.join(&self.path)) {
            Err(_) => Some("is not there"),
            Ok(meta) => {
                let now = Identity::from_metadata(&meta);
                let same = (now.size, now.modified()) == (self.size, self.modified);
                (!same).then_some("was changed since")
            }
        }
    }
}

/// A publication to be created.
pub struct Publication<'a> {
    /// The store's files, canonical.
    pub base: &'a [PathBuf],
    /// For a store of several files: the steps that join its objects in one file.
    pub joined: Option<Vec<EditStep>>,
    /// Further objects that belong to changed objects, by their keys.
    pub stored_as: &'a BTreeMap<String, Vec<ObjectPath>>,
    /// The published objects.
    pub published: &'a Published,
    /// The checkout, if one was named.
    pub checkout: Option<&'a str>,
    /// The names of attributes in which groups list their members.
    pub lists: Vec<&'static str>,
    /// The new file.
    pub out: &'a Path,
    /// The program to run as a worker.
    pub program: &'a Path,
}

/// The outcome of a publication.
pub struct Outcome {
    /// The files that it depends on.
    pub files: Vec<PublishedFile>,
    /// Objects that cannot be represented, with the reasons. If there are any and they may not be left out, no file is
    /// created.
    pub lost: Vec<(String, String)>,
    /// The size of the new file in bytes.
    pub bytes: u64,
}

impl Publication<'_> {
    /// Creates the file; durable on success. There is no file on failure, or unless `wanted`: then the outcome only
    /// reports the objects that cannot be represented.
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
                return Err(crate::store::base::unsupported(why).about(path.display()));
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
            if attribute::split(&key).is_some() {
                if !matches!(change, ExportedChange::Restored(_)) {
                    let why = "links lead to objects with the attributes that they have; npyfs checkout export writes \
                               others";
                    lost.push((attribute::shown(&key), why.to_owned()));
                }
                continue;
            }
            let change = match change {
                ExportedChange::Restored(_) => continue,
                ExportedChange::Deleted => PublishedChange::Deleted,
                ExportedChange::Stored(dir, stored) => {
                    let found = dir.metadata(&stored.name()).and_then(|meta| {
                        let path = dir.path().canonicalize()?.join(stored.name());
                        let from = SourceFile::new(&path, &meta);
                        let number =
                            links.add(&home, &path, from, &Identity::from_metadata(&meta))?;
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
                // An object that no mount shows need not be deleted.
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
            about: note.print()?,
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
            files: links.files_numbered(&made.used),
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

/// The linked files, each once.
#[derive(Default)]
struct LinkedFiles {
    files: Vec<LinkedFile>,
    said: Vec<PublishedFile>,
    numbers: HashMap<PathBuf, usize>,
    /// For each file of a layer: its number, the layer, and its number in the layer.
    in_layers: BTreeSet<(usize, String, u64)>,
}

impl LinkedFiles {
    /// Adds the file at a path and returns its number.
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
        let said = PublishedFile::new(&name, identity)?;
        self.files.push(LinkedFile {
            about: serde_json::to_string(&said).map_err(|e| Error::damaged(e.to_string()))?,
            from,
            name: name.as_os_str().as_bytes().to_vec(),
        });
        self.said.push(said);
        self.numbers.insert(path.to_owned(), number);
        Ok(number)
    }

    /// Returns the files with these numbers.
    fn files_numbered(&self, used: &BTreeSet<usize>) -> Vec<PublishedFile> {
        let used = used.iter();
        used.filter_map(|&number| self.said.get(number).cloned())
            .collect()
    }

    /// Returns the layers' files with these numbers, by layer.
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

/// The layers to be published. While this exists, no process can commit, discard or write in the checkout.
pub struct Published {
    /// The layers, lowest first.
    pub layers: Vec<LayerFiles>,
    /// Incomplete objects of the checkout.
    pub incomplete: Vec<KeptObject>,
    /// The id of the last commit.
    pub commit: Option<String>,
    dir: Option<Dir>,
    _lock: Option<File>,
    _held: Option<LayerLock>,
}

/// Returns the commits, with the checkout `name` on top if one is given, for a publication. EBUSY if a process writes
/// in the checkout.
pub fn to_publish(checkouts: &Checkouts, name: Option<&str>) -> Result<Published> {
    let mut published = Published {
        layers: Vec::new(),
        incomplete: Vec::new(),
        commit: None,
        dir: checkouts.opened()?,
        _lock: None,
        _held: None,
    };
    if let Some(name) = name {
        checkouts.find(name)?;
    }
    let Some(dir) = &published.dir else {
        return Ok(published);
    };
    published._lock = Some(commits::lock(dir)?);
    let commits = commits::read(dir)?;
    if let (Some(mirror), true) = (Mirror::find(dir), name.is_some() || !commits.is_empty()) {
        let why = "what lies in a bucket cannot be linked to; export copies it";
        let message = format!("{}: {why}", mirror.prefix().address(""));
        return Err(Error::new(ErrorKind::Os(libc::EOPNOTSUPP), message));
    }
    published.commit = commits.last().map(|last| last.id.clone());
    published.layers = layers(dir, &commits)?;
    if let Some(name) = name {
        let layer = layer_below(dir, &dir_of(name, &commits))?;
        published._held = LayerLock::share(&layer)?;
        let changes = IndexChanges::read(&layer)?;
        published.incomplete = changes.incomplete.values().cloned().collect();
        let layer = on_top(&layer, changes, &published.layers)?;
        published.layers.push(layer);
    }
    Ok(published)
}

impl Published {
    /// Records a publication, durably, before it has its name; removes the records of publications that no longer
    /// exist.
    pub fn remember(
        &self,
        out: &Path,
        time: i64,
        files: BTreeMap<String, Vec<u64>>,
        storage: Arc<dyn Storage>,
    ) -> Result<()> {
        let Some(dir) = self.dir.as_ref().filter(|_| !files.is_empty()) else {
            return Ok(());
        };
        let from = dir.path().canonicalize()?;
        let record = PublicationRecord {
            out: relative(&from, out).to_string_lossy().into_owned(),
            time,
            layers: files,
            ..PublicationRecord::default()
        };
        let (mut list, mut all) = RecordLog::open(
            (dir, publications::NAME),
            publications::FORM,
            storage,
            || Ok(()),
        )?;
        let known = all.len();
        all.retain(|other: &PublicationRecord| other.out != record.out);
        let mut all = only_standing(dir, all);
        if all.len() == known {
            return list.add(&record);
        }
        all.push(record);
        list.rewrite(&all)
    }
}

/// Returns the relative path from a directory to a file; both are absolute and contain no symbolic links.
fn relative(from: &Path, to: &Path) -> PathBuf {
    let shared = from
        .components()
        .zip(to.components())
        .take_while(|(from, to)| from == to)
        .count();
    let up = from.components().skip(shared).map(|_| Component::ParentDir);
    up.chain(to.components().skip(shared)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::checkout::layer::publications::{published as published_files, standing};
    use crate::checkout::records::record_log;
    use npyfs_io::storage::Disk;
    use std::collections::HashSet;

    #[test]
    fn paths_lead_from_a_directory_to_a_file() {
        for (from, to, want) in [
            ("/a", "/a/x.h5", "x.h5"),
            ("/a/b/c", "/a/x.h5", "../../x.h5"),
            ("/a/b", "/a/bc/x.h5", "../bc/x.h5"),
            ("/", "/x.h5", "x.h5"),
        ] {
            let found = relative(Path::new(from), Path::new(to));
            assert_eq!(found, Path::new(want), "{from} {to}");
        }
    }

    #[test]
    fn a_publication_counts_as_long_as_its_file_is_there() {
        let top = tempfile::tempdir().unwrap();
        let top = top.path().canonicalize().unwrap();
        let dir = Dir::own(&top.join("s.checkouts"));
        let published = Published {
            layers: Vec::new(),
            incomplete: Vec::new(),
            commit: None,
            dir: Some(dir.clone()),
            _lock: None,
            _held: None,
        };
        let layer = dir.make("work").unwrap().0;
        let remember = |name: &str, files: &[u64]| {
            let files = BTreeMap::from([("work".to_owned(), files.to_vec())]);
            let out = top.join(name);
            published.remember(&out, 1, files, Arc::new(Disk)).unwrap();
        };
        remember("a.h5", &[1, 2]);
        assert!(published_files(&layer).unwrap().is_empty());
        for name in ["a.h5", "b.h5"] {
            std::fs::write(top.join(name), "x").unwrap();
        }
        assert_eq!(published_files(&layer).unwrap(), HashSet::from([1, 2]));
        remember("b.h5", &[3]);
        let outs = |dir: &Dir| -> Vec<String> {
            let all = standing(dir).unwrap().into_iter();
            all.map(|record| record.out).collect()
        };
        assert_eq!(outs(&dir), ["../a.h5", "../b.h5"]);
        std::fs::remove_file(top.join("a.h5")).unwrap();
        remember("b.h5", &[4]);
        assert_eq!(published_files(&layer).unwrap(), HashSet::from([4]));
        let all: Vec<PublicationRecord> =
            record_log::read(&dir, publications::NAME, publications::FORM)
                .unwrap()
                .unwrap();
        assert_eq!(all.len(), 1);
    }
}
