//! `npyfs checkout export`: a store and its checkouts as HDF5 files like those of the store: one, the files of a set,
//! or a directory of them.
//!
//! A plan comes first, for `npyfs checkout publish` as well: the files of the stores, the changes that are theirs, and
//! what cannot come along.

use std::cell::OnceCell;
use std::collections::{BTreeMap, BTreeSet};
use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use super::layers::{BaseStore, CheckoutArgs, Selected, line_of, print, refused};
use crate::cli::progress::{Progress, end_cleanly};
use crate::cli::{CliError, say, store};
use npyfs_base::error::{self, Error};
use npyfs_base::options::External;
use npyfs_base::printable;
use npyfs_core::checkout::export::layout::{Layout, Method, Purpose};
use npyfs_core::checkout::export::{DividedChanges, Export, Rearranged, encoded, object_path};
use npyfs_core::checkout::records::attribute;
use npyfs_core::checkout::records::entry::LayerEntry;
use npyfs_core::checkout::records::index::KeptObject;
use npyfs_core::checkout::records::layer_files::LayerFiles;
use npyfs_core::checkout::view::rules as result;
use npyfs_core::dataset::opened::OpenStore;
use npyfs_core::formats;
use npyfs_core::store::format::{FileSet, Format, Parts, Registry, Sets};
use npyfs_core::tree::{Directory, Node};
use npyfs_hdf5::program::program;
use npyfs_hdf5::{EditStep, GroupMember, GroupPath, ObjectPath};
use npyfs_io::dir::Dir;
use npyfs_io::file::members::is_first_member;
use npyfs_io::remote::open_file;
use npyfs_io::rights::Rights;
use npyfs_io::workplace::{WHOLE, Workplace};

impl npyfs_core::checkout::export::Progress for Progress {
    fn begin(&self, bytes: u64) {
        self.begin(bytes);
    }

    fn advance(&self, bytes: u64) {
        self.advance(bytes);
    }
}

/// The options of an export.
pub(super) struct ExportWish {
    /// How arrays are stored.
    pub(super) layout: Layout,
    /// The files that a store is divided among; `None`: as many as the store has.
    pub(super) parts: Option<Parts>,
    /// The new files have the times of their objects.
    pub(super) times: bool,
    /// Objects that cannot be carried over are left out.
    pub(super) leave_out: bool,
}

/// The outcome of an export.
pub(in crate::cli) struct Exported {
    /// A line for people.
    pub(in crate::cli) line: String,
    /// Bytes of all files.
    pub(in crate::cli) bytes: u64,
    /// Lines about the objects that were left out.
    pub(in crate::cli) left_out: Vec<String>,
}

pub(super) fn export(
    which: &CheckoutArgs,
    name: Option<&str>,
    out: &Path,
    wish: &ExportWish,
) -> Result<(), CliError> {
    print(&write(which, name, out, wish)?.line)
}

/// Writes the store with a checkout, or with what is committed.
pub(super) fn write(
    which: &CheckoutArgs,
    name: Option<&str>,
    out: &Path,
    wish: &ExportWish,
) -> Result<Exported, CliError> {
    let leave_out = wish.leave_out;
    let found = which.find_if_any(name)?;
    let mut layers = found.checkouts.committed().map_err(refused)?;
    let (own, incomplete) = own_layer(&found, &layers)?;
    layers.extend(own);
    let misfits = BaseStore::open(&found.checkouts)?.with(&layers).misfits();
    for misfit in &misfits {
        layers[misfit.layer].entries.remove(&misfit.key);
    }
    let plan = plan(&found, &layers, out, wish.parts)?;
    let keys: BTreeSet<&str> = layers
        .iter()
        .flat_map(|layer| layer.entries.keys().map(String::as_str))
        .collect();
    let view = plan.seen.with(&layers);
    let (dimensions, undimensioned) = view.all_dimensions(keys.iter().copied()).map_err(refused)?;
    let broken = result::broken(&view, plan.seen.context.options.sep, keys.iter().copied());
    let broken = broken.map_err(refused)?;
    if !broken.is_empty() {
        broken.iter().for_each(|line| say(line));
        return Err(CliError::object(format!(
            "{}: not written: it would break the rules of its format",
            out.display()
        )));
    }
    let unfit = misfits
        .iter()
        .map(|misfit| format!("{}: {}", attribute::shown(&misfit.key), misfit.why));
    let lost = incomplete.iter().map(line_of).chain(unfit).chain(
        (plan.lost.iter().chain(&undimensioned)).map(|(what, why)| format!("{what}: {why}")),
    );
    let mut lost: Vec<String> = lost.collect();
    lost.iter().for_each(|line| say(line));
    let left_out = |count: usize| {
        CliError::object(format!(
            "{}: not written: {count} objects cannot be carried over; --leave-out does without them",
            out.display()
        ))
    };
    if !lost.is_empty() && !leave_out {
        return Err(left_out(lost.len()));
    }
    let bar = Progress::bytes("writing", 0);
    end_cleanly().map_err(|e| CliError::object(e.to_string()))?;
    // Gone with all that is in it.
    let workplace = OnceCell::new();
    let make = || {
        let new = Workplace::new_in(&above(out)).map_err(Error::from)?;
        Dir::alone(workplace.get_or_init(|| new).path())
    };
    let encoded = encoded(&view, keys.iter().copied(), &make).map_err(refused)?;
    let place = Room::open(&plan, out)?;
    let mut not_carried: Vec<(String, String)> = Vec::new();
    let (mut kept, mut chosen) = (Vec::new(), Vec::new());
    let mut bytes = 0;
    for store in &plan.stores {
        let divided = store.divided.as_ref();
        for (number, file) in store.files.iter().enumerate() {
            let new = place.path_of(&file.name);
            let done = Export {
                base: &file.path,
                remote: found.checkouts.remote(),
                layers: &store.layers,
                out: &new,
                without: &file.without,
                rearranged: file.steps.as_ref().map(|steps| Rearranged {
                    steps,
                    files: &store.old_files,
                    time: plan.latest(),
                }),
                stored_as: &store.stored_as,
                encoded: &store.select_own(&encoded),
                dimensions: &store.select_own(&dimensions),
                part: divided.map(|divided| (number, divided)),
                times: wish.times,
                layout: wish.layout,
                plugins: store.plugins,
                program: program(),
                formats: &formats::registry(),
            }
            .run(leave_out, &bar);
            let done =
                done.map_err(|e| CliError::object(format!("{}: not written: {e}", out.display())))?;
            // All files of a set refuse the same objects.
            if number == 0 {
                let named = |(key, why): (String, String)| (store.named(&key), why);
                not_carried.extend(done.refused.into_iter().map(named));
                kept.extend(done.kept.into_iter().map(named));
                chosen.extend(done.chosen);
            }
            bytes += std::fs::metadata(&new).map_or(0, |meta| meta.len());
        }
    }
    drop(bar);
    plan.check_unchanged()?;
    for (key, why) in &not_carried {
        let line = format!("{key}: {why}");
        say(&line);
        lost.push(line);
    }
    if !not_carried.is_empty() && !leave_out {
        return Err(left_out(not_carried.len()));
    }
    place.finish(&plan)?;
    tell_left_out(&found);
    chosen.iter().for_each(|line| say(line));
    for (key, why) in &kept {
        say(&format!("{key}: stays as it is stored: {why}"));
    }
    let files = plan.stores.iter().map(|store| store.files.len()).sum();
    let count = match (&plan.shape, files) {
        (ExportShape::File, _) => String::new(),
        (_, 1) => "1 file, ".to_owned(),
        (_, files) => format!("{files} files, "),
    };
    let out = printable::name(out.as_os_str().as_encoded_bytes());
    Ok(Exported {
        line: format!("{out}: {count}{bytes} bytes\n"),
        bytes,
        left_out: lost,
    })
}

/// Says which checkouts are not in the export, because they are not committed.
fn tell_left_out(found: &Selected) {
    // A failure to list checkouts does not spoil the export.
    let (all, _) = found.checkouts.list().unwrap_or_default();
    let own = found.name.as_deref();
    let open = all
        .iter()
        .filter(|summary| summary.commit.is_none() && Some(summary.name.as_str()) != own);
    for summary in open {
        let (changes, waiting) = (summary.changes.count_changed(), &summary.changes.incomplete);
        let counts = match (changes, waiting.len()) {
            (0, 0) => continue,
            (changes, 0) => format!("{changes} changes"),
            (changes, waiting) => format!("{changes} changes, {waiting} objects not complete"),
        };
        let name = &summary.name;
        say(&format!(
            "left out: checkout {name}, which is not committed: {counts}"
        ));
    }
}

/// Returns the layer of the checkout and its incomplete objects, if a checkout is named; without a name only commits
/// count.
fn own_layer(
    found: &Selected,
    below: &[LayerFiles],
) -> Result<(Option<LayerFiles>, Vec<KeptObject>), CliError> {
    let Some(name) = &found.name else {
        return Ok((None, Vec::new()));
    };
    let summary = found.checkouts.find(name).map_err(refused)?;
    let incomplete = summary.changes.incomplete.values().cloned().collect();
    let layer = summary.on_top(below).map_err(refused)?;
    Ok((Some(layer), incomplete))
}

/// Returns what `--for` and `--compress` say.
pub(super) fn layout(purpose: Option<&str>, compress: Option<&str>) -> Result<Layout, CliError> {
    let wrong = |option: &str, why: String| CliError::usage(format!("{option} {why}"));
    let purpose = purpose.map(str::parse).transpose();
    let method = compress.filter(|text| *text != "none" || matches!(purpose, Ok(Some(_))));
    let method = method.map(str::parse).transpose();
    let layout = Layout {
        purpose: purpose.map_err(|why| wrong("--for", why))?,
        method: method.map_err(|why| wrong("--compress", why))?,
    };
    match (layout.purpose, layout.method) {
        (Some(Purpose::Mmap), Some(Method::With(_))) => Err(CliError::usage(
            "--for mmap is without compression: what is compressed cannot be mapped",
        )),
        (Some(Purpose::Archive), Some(Method::Off)) => Err(CliError::usage(
            "--for archive compresses; --compress off alone undoes compression",
        )),
        _ => Ok(layout),
    }
}

/// Splits the words after the options: the checkout, if it is named, and the file.
pub(super) fn words(mut words: Vec<OsString>) -> Result<(Option<String>, PathBuf), CliError> {
    if let Some(out) = words.last() {
        store::refuse_to_write_at(Path::new(out))?;
    }
    match (words.pop(), words.pop()) {
        (Some(out), None) => Ok((None, PathBuf::from(out))),
        (Some(out), Some(name)) => match name.into_string() {
            Ok(name) => Ok((Some(name), PathBuf::from(out))),
            Err(name) => Err(CliError::usage(format!(
                "{}: no name of a checkout: it is not UTF-8",
                printable::name(name.as_encoded_bytes())
            ))),
        },
        (None, _) => Err(CliError::usage(
            "which file? npyfs checkout export STORE NAME OUT",
        )),
    }
}

/// The place where the new files of an export are made. They get their names once all of them are there; what is left
/// in the place goes with it.
struct Room {
    out: PathBuf,
    /// The directory of `out`.
    parent: PathBuf,
    /// `None` for one file, whose export has its own.
    workplace: Option<Workplace>,
    /// The directory in which files are made.
    dir: PathBuf,
}

fn failed(path: &Path, e: &dyn std::fmt::Display) -> CliError {
    CliError::object(format!("{}: {e}", path.display()))
}

impl Room {
    /// Makes the place. An error if the name is taken, or lies in the exported store.
    fn open(plan: &ExportPlan, out: &Path) -> Result<Self, CliError> {
        let parent = above(out);
        let mut room = Self {
            out: out.to_owned(),
            dir: parent.clone(),
            parent,
            workplace: None,
        };
        if let ExportShape::File = plan.shape {
            return Ok(room);
        }
        room.check(plan)?;
        let temporary = Workplace::new_in(&room.parent).map_err(|e| failed(&room.parent, &e))?;
        room.dir = temporary.path().join(WHOLE);
        room.workplace = Some(temporary);
        let dirs = plan.folders.iter().map(|folder| room.dir.join(folder));
        for dir in std::iter::once(room.dir.clone()).chain(dirs) {
            std::fs::create_dir(&dir).map_err(|e| failed(out, &e))?;
        }
        Ok(room)
    }

    fn check(&self, plan: &ExportPlan) -> Result<(), CliError> {
        let taken = match &plan.shape {
            // All files whose names are those of a set belong to the set.
            ExportShape::Set(set) => {
                let parts = set.parts(&self.parent, External::Allow);
                !parts.map_err(|e| failed(&self.parent, &e))?.is_empty()
            }
            _ => self.out.symlink_metadata().is_ok(),
        };
        if taken {
            return Err(failed(&self.out, &"it is there already"));
        }
        let inside = |path: &PathBuf| {
            let base = path.canonicalize().ok();
            let to = directory(&self.out);
            base.zip(to).is_some_and(|(base, to)| to.starts_with(base))
        };
        if plan.top.as_ref().is_some_and(inside) {
            return Err(failed(&self.out, &"it would be part of the store"));
        }
        Ok(())
    }

    /// Returns where a file is made.
    fn path_of(&self, name: &Path) -> PathBuf {
        match self.workplace {
            Some(_) => self.dir.join(name),
            None => self.out.clone(),
        }
    }

    /// Gives all files their names, durably.
    fn finish(self, plan: &ExportPlan) -> Result<(), CliError> {
        let done = match plan.shape {
            ExportShape::File => Ok(()),
            ExportShape::Directory => self.finish_directory(plan),
            ExportShape::Set(_) => self.finish_set(plan),
        };
        done.map_err(|e| failed(&self.out, &e))
    }

    fn finish_directory(&self, plan: &ExportPlan) -> io::Result<()> {
        for (link, target) in &plan.links {
            symlink(target, self.dir.join(link))?;
        }
        let top = Path::new("");
        for folder in plan.folders.iter().map(PathBuf::as_path).chain([top]) {
            let dir = File::open(self.dir.join(folder))?;
            let base = plan.top.as_ref().map(|base| base.join(folder));
            if let Some(base) = base.filter(|base| base.is_dir()) {
                Rights::copy_of(&base)?.settle(&dir)?;
            }
            dir.sync_all()?;
        }
        if let Some(workplace) = &self.workplace {
            workplace.name(&self.dir, &self.out)?;
        }
        File::open(&self.parent)?.sync_all()
    }

    /// The first file comes last: without it the others are no set.
    fn finish_set(&self, plan: &ExportPlan) -> io::Result<()> {
        let files = plan.stores.iter().flat_map(|store| &store.files);
        let names: Vec<&Path> = files.rev().map(|file| &*file.name).collect();
        if let Some(workplace) = &self.workplace {
            workplace.name_all(&names)?;
        }
        File::open(&self.parent)?.sync_all()
    }
}

/// The shape of an export: what its files make together.
enum ExportShape {
    File,
    /// The files of a set, in one directory with others.
    Set(FileSet),
    Directory,
}

/// A file of a store.
struct OldFile {
    path: PathBuf,
    /// The new one's, below the directory where it is to be.
    name: PathBuf,
    /// Objects that are left out.
    without: Vec<ObjectPath>,
    /// The new file is made in these steps; `None`: it begins as a copy of the old one.
    steps: Option<Vec<EditStep>>,
}

/// A store, and the changes that are its own.
struct ExportedStore {
    /// The key; empty if it is all that is exported.
    key: String,
    /// More than one for a set, in order of their locales.
    files: Vec<OldFile>,
    /// The files that the store has.
    old_files: Vec<PathBuf>,
    /// The objects that go with changed objects, by key.
    stored_as: BTreeMap<String, Vec<ObjectPath>>,
    /// The changes divided among the files; `None`: there is one.
    divided: Option<DividedChanges>,
    layers: Vec<LayerFiles>,
    /// The programs of the format read filters that libhdf5 does not have itself.
    plugins: bool,
}

impl ExportedStore {
    /// What is about objects of this store, by their keys in it.
    fn select_own<T: Clone>(&self, all: &BTreeMap<String, T>) -> BTreeMap<String, T> {
        let own = |(key, about): (&String, &T)| {
            let inside = match self.key.as_str() {
                "" => Some(key.as_str()),
                own => key.strip_prefix(own)?.strip_prefix('/'),
            };
            inside.map(|key| (key.to_owned(), about.clone()))
        };
        all.iter().filter_map(own).collect()
    }

    /// The key of an object of this store in the mount.
    fn named(&self, key: &str) -> String {
        match self.key.as_str() {
            "" => key.to_owned(),
            own => format!("{own}/{key}"),
        }
    }
}

/// All of it.
struct ExportPlan {
    shape: ExportShape,
    stores: Vec<ExportedStore>,
    /// The directory that is exported, if it is one.
    top: Option<PathBuf>,
    /// Directories to be made, in order, and symbolic links with their targets.
    folders: Vec<PathBuf>,
    links: Vec<(PathBuf, PathBuf)>,
    /// The objects that cannot be carried over, and why.
    lost: Vec<(String, String)>,
    /// The store, opened.
    seen: BaseStore,
    /// The files of the store that others are made from.
    rearranged: Vec<Arc<OpenStore>>,
}

impl ExportPlan {
    /// Returns when the latest of the files was changed that others are made from, in nanoseconds since 1970.
    fn latest(&self) -> i64 {
        let times = self
            .rearranged
            .iter()
            .map(|store| store.file.identity.modified());
        times.max().unwrap_or(0)
    }

    /// Fails if a file that others were made from is not what it was.
    fn check_unchanged(&self) -> Result<(), CliError> {
        let mut files = self.rearranged.iter().map(|store| &store.file);
        match files.find(|file| !file.is_unchanged() || !file.is_current()) {
            None => Ok(()),
            Some(file) => Err(CliError::object(format!(
                "{}: it changed on disk while it was read",
                file.path.display()
            ))),
        }
    }
}

/// Plans how a store with layers is written to `out`.
fn plan(
    found: &Selected,
    layers: &[LayerFiles],
    out: &Path,
    parts: Option<Parts>,
) -> Result<ExportPlan, CliError> {
    let base = found.checkouts.store();
    let mut planner = Planner {
        formats: formats::registry(),
        layers,
        // Beside the store, names of other files lead where they did.
        beside: base.is_file() && directory(base).is_some() && directory(base) == directory(out),
        plan: ExportPlan {
            shape: ExportShape::Directory,
            stores: Vec::new(),
            top: base.is_dir().then(|| base.to_owned()),
            folders: Vec::new(),
            links: Vec::new(),
            lost: Vec::new(),
            seen: BaseStore::open(&found.checkouts)?,
            rearranged: Vec::new(),
        },
    };
    let root = planner.plan.seen.base.clone();
    if root.is_store() {
        let files = files_of(&planner.formats, &root, base).map_err(refused)?;
        let name = out.file_name().unwrap_or_default();
        let format = planner.formats.format_of(&*root).map_err(refused)?.clone();
        // One file that is to be one is copied as it is.
        let parts = parts.filter(|&parts| files.len() > 1 || parts != Parts::Single);
        let rearranged = parts.map(|parts| planner.rearranged(&*format, &files, parts));
        let rearranged = rearranged.transpose()?;
        let count = parts.map_or(files.len(), Parts::count);
        let is_set = count > 1 || matches!(parts, Some(Parts::Set(_)));
        let mut new_names: Vec<PathBuf> = vec![name.into()];
        planner.plan.shape = ExportShape::File;
        if let Some(sets) = format.sets().filter(|_| is_set) {
            let set = sets.part_names().meant_by(&above(out), name.as_bytes());
            new_names = (0..count as u64).map(|n| set.part_name(n).into()).collect();
            planner.plan.shape = ExportShape::Set(set);
        }
        planner.add(String::new(), files, new_names, &*format, rearranged)?;
    } else if parts.is_some() {
        let why = "is a directory; --single and --locales are for one store";
        return Err(CliError::usage(format!("{}: {why}", base.display())));
    } else {
        planner.folder(&root, base, &[])?;
        planner.begun()?;
    }
    Ok(planner.plan)
}

/// The directory that a path is in.
fn directory(path: &Path) -> Option<PathBuf> {
    let absolute = std::path::absolute(path).ok()?;
    absolute.parent()?.canonicalize().ok()
}

/// Returns the directory that a path is in, as the path spells it.
fn above(path: &Path) -> PathBuf {
    match path.parent() {
        Some(parent) if !parent.as_os_str().is_empty() => parent.to_owned(),
        _ => PathBuf::from("."),
    }
}

/// Returns the HDF5 files of a store, of a set in their order.
fn files_of(
    formats: &Registry,
    store: &Arc<dyn Directory>,
    path: &Path,
) -> error::Result<Vec<PathBuf>> {
    if let Some(why) = store.info()?["error"].as_str() {
        return Err(Error::damaged(why).about(path.display()));
    }
    let files = formats.format_of(&**store)?.files(&**store, path)?;
    // A file in several members is shown by another name than the first of them has.
    let own = store.info()?["file"].as_str().map(PathBuf::from);
    match (files.as_slice(), own) {
        ([shown], Some(own)) if !shown.exists() && own.exists() => Ok(vec![own]),
        _ => Ok(files),
    }
}

/// What changed objects of a store are stored as, if not as the objects of their paths.
#[derive(Default)]
pub(super) struct StoredParts {
    /// The paths, by the keys of the objects.
    pub(super) parts: BTreeMap<String, Vec<ObjectPath>>,
    /// Objects that would take the place of a part of another, and why they are left out.
    pub(super) lost: Vec<(String, String)>,
}

/// Finds what goes with the objects that are changed. What would take the place of a part of another object is taken
/// out of the layers.
pub(super) fn stored_as(
    sets: &dyn Sets,
    files: &[Arc<OpenStore>],
    layers: &mut [LayerFiles],
) -> error::Result<StoredParts> {
    let keys = layers.iter().flat_map(|layer| layer.entries.keys());
    let keys: BTreeSet<String> = keys.cloned().collect();
    let mut found = StoredParts::default();
    let mut taken: Vec<ObjectPath> = Vec::new();
    for key in &keys {
        let Ok(path) = object_path(key) else { continue };
        let parts = sets.stored_as(files, &path)?;
        if !parts.is_empty() {
            taken.extend(parts.iter().cloned());
            found.parts.insert(key.clone(), parts);
        }
    }
    for key in &keys {
        let Ok(path) = object_path(key) else { continue };
        if !taken.contains(&path) && sets.is_part(files, &path)? {
            for layer in &mut *layers {
                layer.entries.remove(key);
            }
            let why = "the store has a part of another object by this name";
            found.lost.push((key.clone(), why.to_owned()));
        }
    }
    Ok(found)
}

struct Planner<'a> {
    formats: Registry,
    layers: &'a [LayerFiles],
    beside: bool,
    plan: ExportPlan,
}

impl Planner<'_> {
    /// Adds a mirrored directory with all that is in it. `names` lead there.
    fn folder(
        &mut self,
        dir: &Arc<dyn Directory>,
        path: &Path,
        names: &[Vec<u8>],
    ) -> Result<(), CliError> {
        for (name, node) in dir.list().map_err(refused)?.iter() {
            let names = [names, &[name.to_vec()]].concat();
            let below: PathBuf = names.iter().map(|name| OsStr::from_bytes(name)).collect();
            let path = path.join(OsStr::from_bytes(&name));
            let key = String::from_utf8_lossy(&names.join(&b'/')).into_owned();
            // A store that a layer begins takes the place of the object that is there.
            if self.is_deleted(&key) || self.begins(&key).is_some() {
                continue;
            }
            match &*node {
                Node::File(_) => {}
                Node::Symlink(link) => {
                    let target = PathBuf::from(OsStr::from_bytes(&link.target));
                    self.plan.links.push((below, target));
                }
                Node::Directory(dir) if !dir.is_store() && dir.handle().is_none() => {
                    self.plan.folders.push(below);
                    self.folder(dir, &path, &names)?;
                }
                Node::Directory(dir) => match files_of(&self.formats, dir, &path) {
                    Ok(files) => {
                        let folder = below.parent().unwrap_or(Path::new(""));
                        let named =
                            |path: &PathBuf| folder.join(path.file_name().unwrap_or_default());
                        let names = match files.as_slice() {
                            [first] if is_first_member(first) => vec![below.clone()],
                            files => files.iter().map(named).collect(),
                        };
                        let format = self.formats.format_of(&**dir).map_err(refused)?.clone();
                        self.add(key, files, names, &*format, None)?;
                    }
                    Err(e) => self.plan.lost.push((key, e.message)),
                },
            }
        }
        Ok(())
    }

    /// Returns whether a directory or store was deleted with all that was in it.
    fn is_deleted(&self, key: &str) -> bool {
        let mut said = self.layers.iter().rev();
        let last = said.find_map(|layer| layer.entries.get(key));
        last.is_some_and(LayerEntry::is_deletion)
    }

    /// Returns the place of the layer by which a store begins at a key, if the last that says something of it does.
    fn begins(&self, key: &str) -> Option<usize> {
        let said = |layer: &LayerFiles| layer.entries.contains_key(key);
        let at = self.layers.iter().rposition(said)?;
        let stored = self.layers[at].entries.get(key)?.stored()?;
        stored.begins.as_ref().map(|_| at)
    }

    /// Adds the stores that layers begin.
    fn begun(&mut self) -> Result<(), CliError> {
        let layers = self.layers;
        let keys: BTreeSet<&String> = layers.iter().flat_map(|l| l.entries.keys()).collect();
        for key in keys {
            let Some(at) = self.begins(key) else { continue };
            let entry = layers[at].entries.get(key);
            let file = entry.and_then(|entry| entry.file(&layers[at].dir));
            let Some((dir, stored)) = file else { continue };
            let name = stored.begins.as_deref().unwrap_or_default();
            let format = self.formats.named(name).clone();
            // Judged where it is, before it is opened by a path.
            dir.metadata(&stored.name()).map_err(refused)?;
            let path = dir.path_of_descriptor().join(stored.name());
            let name = PathBuf::from(key);
            let above = name
                .ancestors()
                .skip(1)
                .filter(|above| *above != Path::new(""));
            let above: Vec<_> = above.map(Path::to_owned).collect();
            // The objects may be gone from the store since.
            for folder in above.into_iter().rev() {
                if !self.plan.folders.contains(&folder) {
                    self.plan.folders.push(folder);
                }
            }
            self.add(key.clone(), vec![path], vec![name], &*format, None)?;
            if let Some(store) = self.plan.stores.last_mut() {
                // The earlier object is not in it.
                for layer in &mut store.layers[..at] {
                    layer.entries.clear();
                }
            }
        }
        Ok(())
    }

    /// Returns the steps that make each of other files of a store, and the store's own.
    fn rearranged(
        &mut self,
        format: &dyn Format,
        files: &[PathBuf],
        parts: Parts,
    ) -> Result<Vec<Vec<EditStep>>, CliError> {
        let context = self.plan.seen.context.clone();
        let opened = files
            .iter()
            .map(|path| OpenStore::open_part(&context, path));
        let opened = opened.collect::<error::Result<Vec<_>>>().map_err(refused)?;
        let Some(sets) = format.sets() else {
            return Err(CliError::usage(format!(
                "--single and --locales are for stores of Arkouda, and this is one of kind {}",
                format.name()
            )));
        };
        let divided = sets.divided(&opened, &[], parts).map_err(refused)?;
        let is_changed = |key: &str| {
            let entry = self
                .layers
                .iter()
                .rev()
                .find_map(|layer| layer.entries.get(key));
            entry.is_some_and(|entry| !matches!(entry, LayerEntry::Uncovered(_)))
        };
        let lost = divided.lost.into_iter().filter(|(key, _)| !is_changed(key));
        self.plan.lost.extend(lost);
        self.plan.rearranged = opened;
        Ok(divided.steps)
    }

    fn add(
        &mut self,
        key: String,
        files: Vec<PathBuf>,
        names: Vec<PathBuf>,
        format: &dyn Format,
        rearranged: Option<Vec<Vec<EditStep>>>,
    ) -> Result<(), CliError> {
        let mut store = ExportedStore {
            layers: self.layers.to_vec(),
            files: Vec::new(),
            old_files: files.clone(),
            divided: None,
            stored_as: BTreeMap::new(),
            plugins: !format.rules().needs_common_filters(),
            key,
        };
        if !store.key.is_empty() {
            let prefix = format!("{}/", store.key);
            for layer in &mut store.layers {
                let own = layer.entries.iter().filter_map(|(key, stored)| {
                    Some((key.strip_prefix(&prefix)?.to_owned(), stored.clone()))
                });
                layer.entries = own.collect();
            }
        }
        if let Some(sets) = format.sets() {
            self.note_stored_as(&mut store, sets).map_err(refused)?;
        }
        let mut without: Vec<ObjectPath> = Vec::new();
        let mut by_file = Vec::new();
        for path in &files {
            let mut of_file = Vec::new();
            if !self.beside {
                for (object, why) in self.outside(path)? {
                    let key = String::from_utf8_lossy(&object.join(&b'/')).into_owned();
                    let named = store.named(&key);
                    if !self.plan.lost.iter().any(|(known, _)| *known == named) {
                        self.plan.lost.push((named, why));
                    }
                    of_file.push(object);
                }
            }
            without.extend(of_file.iter().cloned());
            by_file.push(of_file);
        }
        if let Some(sets) = format.sets().filter(|_| names.len() > 1) {
            let (context, parts) = (&self.plan.seen.context, Parts::Set(names.len()));
            let divided = DividedChanges::divide(&store.layers, sets, context, parts);
            store.divided = Some(divided);
        }
        let mut steps = rearranged.map(Vec::into_iter);
        for (number, name) in names.into_iter().enumerate() {
            let steps = steps.as_mut().and_then(Iterator::next);
            let old = files.get(number).filter(|_| steps.is_none());
            store.files.push(OldFile {
                path: old.unwrap_or(&files[0]).clone(),
                name,
                without: match &steps {
                    Some(_) => without.clone(),
                    None => by_file.get(number).cloned().unwrap_or_default(),
                },
                steps,
            });
        }
        self.plan.stores.push(store);
        Ok(())
    }

    /// Notes what goes with the objects that are changed. What would take the place of a part of another object is
    /// lost.
    fn note_stored_as(&mut self, store: &mut ExportedStore, sets: &dyn Sets) -> error::Result<()> {
        if store.layers.iter().all(|layer| layer.entries.is_empty()) {
            return Ok(());
        }
        let context = &self.plan.seen.context;
        let opened = store
            .old_files
            .iter()
            .map(|path| OpenStore::open_part(context, path));
        let opened = opened.collect::<error::Result<Vec<_>>>()?;
        let StoredParts { parts, lost } = stored_as(sets, &opened, &mut store.layers)?;
        store.stored_as = parts;
        let lost = lost.into_iter().map(|(key, why)| (store.named(&key), why));
        self.plan.lost.extend(lost);
        Ok(())
    }

    /// Objects of a file that refer to other files by names that do not hold elsewhere.
    fn outside(&self, path: &Path) -> Result<Vec<(ObjectPath, String)>, CliError> {
        let failed =
            |e: &dyn std::fmt::Display| CliError::store(format!("{}: {e}", path.display()));
        let context = &self.plan.seen.context;
        let file =
            open_file(path, &context.options.remote).map_err(|e| CliError::store(e.message))?;
        let h5 = &context.h5;
        if file.far().is_some() {
            // So that its metadata are fetched together.
            h5.root(&file).map_err(|e| failed(&e))?;
        }
        let mut lost = Vec::new();
        for (group, path) in h5.groups(&file).map_err(|e| failed(&e))? {
            let members = h5.list(&file, group, true).map_err(|e| failed(&e))?;
            for (name, member) in members.members {
                let why = match member {
                    GroupMember::Dataset(dataset) if dataset.outside => {
                        "its data is in another file"
                    }
                    GroupMember::External { .. } => "it is a link to another file",
                    _ => continue,
                };
                let mut path: GroupPath = path.clone();
                path.push(name);
                lost.push((path, why.to_owned()));
            }
        }
        Ok(lost)
    }
}
