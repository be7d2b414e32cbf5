//! Exports a store with layers on top as a single new HDF5 file.
//!
//! The file begins as a copy of the store's file, so that everything npyfs does not know is preserved: groups,
//! attributes, links, filters. A worker then removes deleted objects and copies stored ones in. The file has a
//! temporary name beside its destination, and is renamed once it is complete and synced. The store and the layers are
//! only read.
//!
//! Some objects have another form in an export than in their layers: as the library of their format would write them
//! (`encoded`).

pub mod layout;
pub mod measure;
pub mod publish;
mod relayout;

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{self, Read, Write};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use super::records::attribute;
use super::records::entry::LayerEntry;
use super::records::index::StoredObject;
use super::records::layer_files::LayerFiles;
use super::view::View;
use super::view::dimensions::{ATTRIBUTE, ObjectDimensions};
use crate::dataset::context::Context;
use crate::dataset::opened::OpenStore;
use crate::store::encode::ObjectKey;
use crate::store::encode::array::NpyArray;
use crate::store::format::{Parts, Registry, Sets};
use crate::store::object;
use crate::tree::name::{self, unescape};
use crate::tree::prefix;
use crate::tree::{Directory, Node};
use layout::Layout;
use npyfs_base::error::{Error, ErrorKind, Result, readable};
use npyfs_base::options::RemoteSettings;
use npyfs_hdf5::program::program;
use npyfs_hdf5::{Creator, EditStep, Editor, FileForm, ObjectPath, SourceFile, source};
use npyfs_io::dir::Dir;
use npyfs_io::file::StoreFile;
use npyfs_io::file::members::path_of;
use npyfs_io::remote::{copy, open_file};
use npyfs_io::rights::Rights;
use npyfs_io::storage::Disk;
use npyfs_io::workplace::Workplace;
use relayout::{Relayout, RelayoutResult};

/// The number of changes in one request to the worker.
const STEPS: usize = 64;

/// Bytes of the store that are copied at once.
const BLOCK: u64 = 8 << 20;

/// The steps that create one file from several, and the files that they read.
pub struct Rearranged<'a> {
    /// The steps that create the file.
    pub steps: &'a [EditStep],
    /// The files of the store.
    pub files: &'a [PathBuf],
    /// The latest change of these files, in nanoseconds since 1970.
    pub time: i64,
}

/// The stored objects of layers, divided among the files of a set, by key.
pub struct DividedChanges(BTreeMap<String, std::result::Result<Vec<Vec<EditStep>>, String>>);

impl DividedChanges {
    /// Divides the objects of layers by the rule of a format; `None` if the format has none.
    pub fn divide(
        layers: &[LayerFiles],
        sets: &dyn Sets,
        context: &Arc<Context>,
        parts: Parts,
    ) -> Self {
        let mut divided = BTreeMap::new();
        for (key, change) in joined(layers) {
            let (ExportedChange::Stored(dir, stored), Ok(path)) = (change, object_path(&key))
            else {
                continue;
            };
            let name = stored.name();
            let store = dir.read(&name).and_then(|file| {
                let file = StoreFile::from_file(&dir.path().join(&name), file)?;
                OpenStore::from_file(context, file)
            });
            let division = store.and_then(|store| sets.divided(&[store], &path, parts));
            let steps = division.and_then(|division| match division.lost.into_iter().next() {
                None => Ok(division.steps),
                Some((_, why)) => Err(Error::damaged(why)),
            });
            divided.insert(key, steps.map_err(|e| e.message));
        }
        Self(divided)
    }
}

/// A listener for progress.
pub trait Progress {
    /// Reports the total number of bytes.
    fn begin(&self, bytes: u64);

    /// Reports a number of bytes that have just been completed.
    fn advance(&self, bytes: u64);
}

/// An export of a store's file with layers on top to a new file.
pub struct Export<'a> {
    /// The file of the store, or its address.
    pub base: &'a Path,
    /// The settings for access to a remote store.
    pub remote: &'a Arc<RemoteSettings>,
    /// The steps that create the new file; `None`: it begins as a copy of the store's file.
    pub rearranged: Option<Rearranged<'a>>,
    /// The layers, lowest first.
    pub layers: &'a [LayerFiles],
    /// The new file.
    pub out: &'a Path,
    /// Objects of the store that are left out.
    pub without: &'a [ObjectPath],
    /// Further objects that belong to changed objects, by their keys.
    pub stored_as: &'a BTreeMap<String, Vec<ObjectPath>>,
    /// The files of objects that are not copied from their layers, by their keys.
    pub encoded: &'a BTreeMap<String, PathBuf>,
    /// The dimensions of variables of netCDF-4, by their keys.
    pub dimensions: &'a ObjectDimensions,
    /// The number of this file in a set, and how new objects are divided among the files of the set.
    pub part: Option<(usize, &'a DividedChanges)>,
    /// Whether the new file has the times of its objects. One that begins as a copy of a file with times has them
    /// anyway.
    pub times: bool,
    /// How arrays are laid out.
    pub layout: Layout,
    /// Whether the layout may use codecs that not every HDF5 program has.
    pub plugins: bool,
    /// The program to run as a worker.
    pub program: &'a Path,
    /// All formats.
    pub formats: &'a Registry,
}

/// The losses and the decisions of an export.
#[derive(Debug, Default)]
pub struct Exported {
    /// Objects that could not be carried over, with the reasons.
    pub refused: Vec<(String, String)>,
    /// Objects whose layout differs from the requested one, with the reasons.
    pub kept: Vec<(String, String)>,
    /// Decisions about the layout that were left to the export, for people.
    pub chosen: Vec<String>,
}

/// The combined changes of all layers, by key.
pub(in crate::checkout) type ExportedChanges = BTreeMap<String, ExportedChange>;

/// The change of an object.
#[derive(Debug)]
pub(in crate::checkout) enum ExportedChange {
    /// The object is in a file of the layer in this directory.
    Stored(Dir, Arc<StoredObject>),
    Deleted,
    /// The object is that of the store again, since this time in nanoseconds since 1970.
    Restored(i64),
}

impl ExportedChange {
    fn is_restored(&self) -> bool {
        matches!(self, Self::Restored(_))
    }
}

impl Export<'_> {
    /// Creates the file; durable on success. On failure there is no file. Unless `leave_out`, an object that cannot be
    /// carried over is a failure.
    pub fn run(&self, leave_out: bool, progress: &dyn Progress) -> Result<Exported> {
        let about = |e: io::Error| Error::from(e).about(self.out.display());
        if self.out.symlink_metadata().is_ok() {
            let exists = ErrorKind::Os(libc::EEXIST);
            return Err(Error::new(exists, "it is there already").about(self.out.display()));
        }
        let parent = match self.out.parent() {
            Some(parent) if !parent.as_os_str().is_empty() => parent,
            _ => Path::new("."),
        };
        let base = open_file(self.base, self.remote)?;
        let changes = joined(self.layers);
        let sizes = changes.values().map(|change| match change {
            ExportedChange::Stored(dir, stored) => {
                let file = dir.metadata(&stored.name());
                file.map_or(0, |meta| stored.bytes_of(meta.len()))
            }
            ExportedChange::Deleted | ExportedChange::Restored(_) => 0,
        });
        progress.begin(base.identity.size + sizes.sum::<u64>());
        // The worker may write in this directory only.
        let dir = Workplace::new_in(parent).map_err(|e| Error::from(e).about(parent.display()))?;
        let part = dir.path().join("part.h5");
        match (&self.rearranged, base.layout()) {
            (None, None) if base.far().is_some() => {
                let mut new = File::create_new(&part).map_err(about)?;
                copy(&base, &mut new, &|bytes| progress.advance(bytes))?;
            }
            (None, None) => self.copy_base(&base, &part, progress).map_err(about)?,
            _ => drop(File::create_new(&part).map_err(about)?),
        }
        let confirm = || match base.is_unchanged() && base.is_current() {
            true => Ok(()),
            false => {
                let message = "it changed on disk while it was copied";
                Err(Error::new(ErrorKind::Stale, message).about(self.base.display()))
            }
        };
        confirm()?;
        let readable = self
            .layers
            .iter()
            .map(|layer| layer.dir.path_of_descriptor());
        let mut readable: Vec<PathBuf> = readable.collect();
        readable.dedup();
        readable.extend(self.encoded.values().cloned());
        let files = self.rearranged.iter().flat_map(|anew| anew.files);
        readable.extend(files.cloned());
        let members = base.layout().into_iter().flat_map(|l| &l.members);
        readable.extend(members.filter(|m| m.inode.is_some()).map(path_of));
        let holders = self.formats.holders();
        let mut editor = Editor::start(self.program, dir.path(), &readable, holders)?;
        let mut refused = self.change(&mut editor, &base, &part, &changes, progress)?;
        if base.layout().is_some() {
            confirm()?;
        }
        if self.layout.changes() || base.layout().is_some() {
            // References are addresses of objects, which change with the layout.
            let lost = editor.references(&StoreFile::open(&part)?)?;
            refused.extend(lost.into_iter().map(|path| {
                let name = String::from_utf8_lossy(&path.join(&b'/')).into_owned();
                let why = "references to other objects are lost when arrays are written again";
                (name, why.to_owned())
            }));
        }
        if !refused.is_empty() && !leave_out {
            return Ok(Exported {
                refused,
                ..Exported::default()
            });
        }
        let relayout = Relayout {
            editor: &mut editor,
            part: &part,
            base: &base,
            layout: self.layout,
            plugins: self.plugins,
            progress,
        };
        let RelayoutResult {
            file: part,
            kept,
            chosen,
        } = match self.layout.changes() {
            true => relayout.run()?,
            false => RelayoutResult::unchanged(&part),
        };
        let done = File::open(&part).and_then(|file| {
            let rights = match base.far() {
                Some(_) => Rights::of_new(),
                None => Rights::copy_of(self.base)?,
            };
            rights.settle(&file)?;
            file.sync_all()
        });
        done.and_then(|()| dir.name(&part, self.out))
            .and_then(|()| File::open(parent)?.sync_all())
            .map_err(about)?;
        Ok(Exported {
            refused,
            kept,
            chosen,
        })
    }

    fn copy_base(&self, base: &StoreFile, to: &Path, progress: &dyn Progress) -> io::Result<()> {
        let mut from = File::open(base.file()?.path())?;
        let mut to = File::create_new(to)?;
        loop {
            // The kernel copies the bytes itself where it can.
            let copied = io::copy(&mut (&mut from).take(BLOCK), &mut to)?;
            if copied == 0 {
                return to.flush();
            }
            progress.advance(copied);
        }
    }

    /// Applies the changes to the copy at `part`; returns those that failed.
    fn change(
        &self,
        editor: &mut Editor,
        base: &StoreFile,
        part: &Path,
        changes: &ExportedChanges,
        progress: &dyn Progress,
    ) -> Result<Vec<(String, String)>> {
        let mut all: Vec<(String, u64, EditStep)> = Vec::new();
        if let (Some(layout), None) = (base.layout(), &self.rearranged) {
            let step = EditStep::Gather {
                from: source(self.base),
                members: Some((**layout).clone()),
                form: FileForm::default(),
            };
            all.push((String::new(), base.identity.size, step));
        }
        if let Some(anew) = &self.rearranged {
            let changed = changes.iter().filter(|(_, change)| !change.is_restored());
            let changed: Vec<ObjectPath> =
                changed.filter_map(|(k, _)| object_path(k).ok()).collect();
            let is_changed =
                |path: &ObjectPath| changed.iter().any(|changed| path.starts_with(changed));
            let steps = anew
                .steps
                .iter()
                .filter_map(|step| Some((step.path()?, step)));
            let steps = steps.filter(|(path, _)| !is_changed(path) && !self.without.contains(path));
            all.extend(steps.map(|(path, step)| {
                let name = String::from_utf8_lossy(&path.join(&b'/')).into_owned();
                (name, step.bytes(), step.clone())
            }));
        }
        if self.times {
            let time = self.rearranged.as_ref().map(|anew| anew.time);
            let time = time.unwrap_or(base.identity.modified());
            all.push((String::new(), 0, EditStep::Times(time)));
        }
        for path in self.without {
            let name = String::from_utf8_lossy(&path.join(&b'/')).into_owned();
            all.push((name, 0, EditStep::Remove { path: path.clone() }));
        }
        let mut refused = Vec::new();
        // Objects that others refer to in attributes must be created before them.
        let is_first = |key: &str| {
            let name = key.rsplit('/').next().unwrap_or(key);
            self.formats
                .attribute_holders()
                .any(|holder| holder == name)
        };
        let (first, others): (Vec<_>, Vec<_>) = changes.iter().partition(|(key, _)| is_first(key));
        for (key, change) in first.into_iter().chain(others) {
            if let Some((object, name)) = attribute::split(key) {
                // What has dimensions gets them once all of it is there.
                if name == ATTRIBUTE {
                    continue;
                }
                match attribute_step((object, &name), change) {
                    Ok(step) => all.extend(step.map(|step| (attribute::shown(key), 0, step))),
                    Err(why) => refused.push((attribute::shown(key), why)),
                }
                continue;
            }
            let path = match object_path(key) {
                Ok(path) => path,
                // An object that no mount shows need not be deleted.
                Err(_) if !matches!(change, ExportedChange::Stored(..)) => continue,
                Err(why) => {
                    refused.push((key.clone(), why));
                    continue;
                }
            };
            if !change.is_restored() {
                let also = self.stored_as.get(key).into_iter().flatten();
                all.extend(also.map(|path| {
                    let path = path.clone();
                    (key.clone(), 0, EditStep::Remove { path })
                }));
            }
            let (bytes, step) = match change {
                ExportedChange::Deleted => (0, EditStep::Remove { path }),
                ExportedChange::Restored(time) => (0, EditStep::Time { path, time: *time }),
                ExportedChange::Stored(dir, stored) => {
                    let (name, time) = (stored.name(), stored.time);
                    let meta = match dir.metadata(&name) {
                        Ok(meta) => meta,
                        Err(e) => {
                            refused.push((key.clone(), e.message));
                            continue;
                        }
                    };
                    if let Some((number, divided)) = self.part {
                        let of = divided
                            .0
                            .get(key)
                            .map(|steps| steps.as_ref().map(|s| s.get(number)));
                        let share = match of {
                            Some(Ok(Some(share))) => share,
                            Some(Err(why)) => {
                                refused.push((key.clone(), why.clone()));
                                continue;
                            }
                            None | Some(Ok(None)) => continue,
                        };
                        let before = EditStep::Remove { path: path.clone() };
                        all.push((key.clone(), 0, before));
                        let share = share.iter();
                        all.extend(share.map(|step| (key.clone(), step.bytes(), step.clone())));
                        (0, EditStep::Time { path, time })
                    } else {
                        let from = match self.encoded.get(key) {
                            None => SourceFile::new(&dir.path().join(name), &meta),
                            Some(file) => {
                                let meta = file.metadata();
                                let meta = meta.map_err(|e| Error::from(e).about(file.display()));
                                SourceFile::new(file, &meta?)
                            }
                        };
                        let time = Some(time);
                        let bytes = stored.bytes_of(meta.len());
                        (bytes, EditStep::Copy { from, path, time })
                    }
                }
            };
            all.push((key.clone(), bytes, step));
        }
        for (key, scales) in self.dimensions {
            if let Ok(path) = object_path(key) {
                let scales = scales.clone();
                let shown = attribute::shown(&attribute::key(key, ATTRIBUTE));
                all.push((shown, 0, EditStep::Dimensions { path, scales }));
            }
        }
        for batch in all.chunks(STEPS) {
            let steps = batch.iter().map(|(_, _, step)| step.clone()).collect();
            let done = editor.edit(&StoreFile::open(part)?, steps)?;
            for ((key, bytes, _), done) in batch.iter().zip(done) {
                progress.advance(*bytes);
                if let Err(why) = done {
                    refused.push((key.clone(), why));
                }
            }
        }
        Ok(refused)
    }
}

/// Returns the step that gives an object an attribute, or removes it; `None` if it stays as it is.
fn attribute_step(
    (object, name): (&str, &str),
    change: &ExportedChange,
) -> std::result::Result<Option<EditStep>, String> {
    let from = match change {
        ExportedChange::Restored(_) => return Ok(None),
        ExportedChange::Deleted => None,
        ExportedChange::Stored(dir, stored) => {
            let file = stored.name();
            let meta = dir.metadata(&file).map_err(|e| e.message)?;
            Some(SourceFile::new(&dir.path().join(file), &meta))
        }
    };
    let path = match object {
        "" => ObjectPath::new(),
        object => object_path(object)?,
    };
    let name = name.as_bytes().to_vec();
    Ok(Some(EditStep::Attribute { from, path, name }))
}

/// Combines layers into one: an object in a layer hides those of the same key below.
pub(in crate::checkout) fn joined(layers: &[LayerFiles]) -> ExportedChanges {
    let mut changes = ExportedChanges::new();
    for layer in layers {
        for (key, entry) in &layer.entries {
            prefix::remove(&mut changes, format!("{key}/"));
            let change = match (entry, entry.file(&layer.dir)) {
                (_, Some((dir, stored))) => ExportedChange::Stored(dir.clone(), stored.clone()),
                (LayerEntry::Uncovered(time), _) => ExportedChange::Restored(*time),
                _ => ExportedChange::Deleted,
            };
            changes.insert(key.clone(), change);
        }
    }
    changes
}

/// The names in the file that a key stands for. Fails for keys with a spelling that no mount uses, as earlier versions
/// stored them: such an object would replace the one whose name it is.
pub fn object_path(key: &str) -> std::result::Result<ObjectPath, String> {
    let own = |name: &str| {
        let own = unescape(name.as_bytes());
        let checked = name::check(name.as_bytes(), "", name::visible(&own, ""));
        checked.map(|()| own).map_err(|why| why.to_string())
    };
    key.split('/').map(own).collect()
}

/// Returns the new files, by the keys of their objects, of all entries at these keys. `place` makes the directory for
/// them.
pub fn encoded<'a>(
    view: &Arc<View>,
    keys: impl Iterator<Item = &'a str>,
    place: &dyn Fn() -> Result<Dir>,
) -> Result<BTreeMap<String, PathBuf>> {
    let (mut made, mut files) = (None, BTreeMap::new());
    for key in keys.filter(|key| attribute::split(key).is_none() && view.is_stored(key)) {
        let shown = view.shown(key);
        let (Some((name, above)), Some(depth)) = (shown.split_last(), view.store_depth(&shown))
        else {
            continue;
        };
        let Some(dir) = view.directory(above)? else {
            continue;
        };
        let format = view.formats().format_of(&*dir)?;
        let Some(writing) = format.writing() else {
            continue;
        };
        // What cannot be read is named by the export.
        let Some(array) = readable(array(&*dir, name))?.flatten() else {
            continue;
        };
        let inside: Vec<&str> = key.split('/').skip(depth).collect();
        let inside = ObjectKey::of_path(&inside.join("/"))?;
        let Some(new) = writing.exported(&*dir, &inside, &array)? else {
            continue;
        };
        let to = match &made {
            Some(dir) => dir,
            None => made.insert(place()?),
        };
        let name = files.len().to_string();
        let creator = Creator::worker(program(), &to.path_of_descriptor());
        object::write((to, &name), &new, &creator, &Disk)?;
        files.insert(key.to_owned(), to.path().join(name));
    }
    Ok(files)
}

/// Returns an array that is shown as one file and nothing else: what was written in parts has the form that its writer
/// wants.
fn array(dir: &dyn Directory, name: &[u8]) -> Result<Option<NpyArray>> {
    match (
        dir.lookup(name)?,
        dir.lookup(&[name, &b".npy"[..]].concat())?,
    ) {
        (None, Some(Node::File(file))) => NpyArray::shown(&file.open()?).map(Some),
        _ => Ok(None),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn layer(dir: &Path, entries: &[(&str, Option<u64>)]) -> LayerFiles {
        let stored = |file: Option<u64>| {
            file.map(|file| {
                Arc::new(StoredObject {
                    file,
                    time: 1,
                    ..StoredObject::default()
                })
            })
        };
        let entries = entries.iter();
        let entries = entries.map(|(key, file)| ((*key).to_owned(), stored(*file)));
        LayerFiles::bare(&Dir::own(dir), entries.collect())
    }

    #[test]
    fn of_all_layers_the_last_counts_and_a_group_hides_what_was_in_it() {
        let dirs: Vec<_> = (0..3).map(|_| tempfile::tempdir().unwrap()).collect();
        let layers = [
            layer(
                dirs[0].path(),
                &[
                    ("g", Some(1)),
                    ("g/x", Some(2)),
                    ("g.y", Some(3)),
                    ("h/x", Some(4)),
                ],
            ),
            layer(dirs[1].path(), &[("g", None), ("h/x", Some(5))]),
            layer(dirs[2].path(), &[("g/z", Some(6))]),
        ];
        let changes = joined(&layers);
        let keys: Vec<_> = changes.keys().map(String::as_str).collect();
        assert_eq!(keys, ["g", "g.y", "g/z", "h/x"]);
        assert!(matches!(changes["g"], ExportedChange::Deleted));
        let ExportedChange::Stored(dir, stored) = &changes["h/x"] else {
            panic!("{:?}", changes["h/x"]);
        };
        assert_eq!((dir.path(), stored.file), (dirs[1].path(), 5));
    }

    #[test]
    fn a_key_names_an_object_by_its_own_name() {
        let path = object_path("a%2Fb/c%2Enpy/d#e").unwrap();
        assert_eq!(path, [b"a/b".to_vec(), b"c.npy".to_vec(), b"d#e".to_vec()]);
        for two in ["g/%41", "x.npy", "..", "a\tb"] {
            assert!(object_path(two).is_err(), "{two}");
        }
    }
}
