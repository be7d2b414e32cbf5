//! `npyfs checkout publish`: a store and its checkouts as one small HDF5 file of links, which other programs read.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use serde::Serialize;

use super::export::{StoredParts, stored_as};
use super::layers::{BaseStore, CheckoutArgs, line_of, refused};
use crate::cli::output::{Listing, Name, OutputFormat, Report};
use crate::cli::progress::{Progress, end_cleanly};
use crate::cli::{CliError, figures, say};
use crate::mount::fuse::table;
use npyfs_core::checkout::export::publish::{Outcome, Publication, Published, to_publish};
use npyfs_core::checkout::records::attribute;
use npyfs_core::checkout::records::entry::LayerEntry;
use npyfs_core::checkout::view::rules as result;
use npyfs_core::dataset::opened::OpenStore;
use npyfs_core::formats;
use npyfs_core::store::format::{Division, Parts};
use npyfs_hdf5::program::program;
use npyfs_hdf5::{EditStep, ObjectPath};
use npyfs_io::remote::Address;
use npyfs_io::storage::{Disk, Storage};

/// A publication that was made.
#[derive(Serialize)]
struct MadePublication {
    #[serde(flatten)]
    out: Name,
    bytes: u64,
    /// The files that its links lead to.
    files: Vec<Name>,
}

impl Report for MadePublication {
    fn text(&self) -> String {
        let Self { out, bytes, files } = self;
        let count = figures::count(files.len() as u64, "file");
        let files: String = files.iter().map(|file| format!("{file}\n")).collect();
        format!("{out}: {bytes} bytes, links into {count}:\n{files}")
    }
}

impl Listing for MadePublication {
    fn names(&self) -> Vec<Vec<u8>> {
        self.files.iter().map(|file| file.0.clone()).collect()
    }
}

pub(super) fn publish(
    which: &CheckoutArgs,
    name: Option<&str>,
    out: &Path,
    leave_out: bool,
    format: OutputFormat,
) -> Result<(), CliError> {
    let found = which.find_if_any(name)?;
    let name = found.name.as_deref();
    let checkouts = &found.checkouts;
    let base = BaseStore::open(checkouts)?;
    let files = files_of(&base, checkouts.store())?;
    check_place(out, checkouts.dir())?;
    let mut published = to_publish(checkouts, name).map_err(refused)?;
    let mut lost: Vec<String> = published.incomplete.iter().map(line_of).collect();
    let misfits = base.with(&published.layers).misfits();
    for misfit in &misfits {
        lost.push(format!("{}: {}", attribute::shown(&misfit.key), misfit.why));
        if let Some(layer) = published.layers.get_mut(misfit.layer) {
            layer.entries.remove(&misfit.key);
        }
    }
    lost.extend(without_links(&base, &mut published)?);
    rules(&base, &published, out)?;
    let store = JoinedStore::new(&base, &files, &mut published)?;
    lost.extend(store.lost.iter().map(|(key, why)| format!("{key}: {why}")));
    let progress = Progress::waiting("publishing");
    end_cleanly().map_err(|e| CliError::object(e.to_string()))?;
    let disk: Arc<dyn Storage> = Arc::new(Disk);
    let allowed = lost.is_empty() || leave_out;
    let done = Publication {
        base: &files,
        joined: store.steps,
        stored_as: &store.stored_as,
        published: &published,
        checkout: name,
        lists: formats::registry().member_lists().collect(),
        out,
        program: program(),
    }
    .run(leave_out, allowed, &disk);
    let Outcome {
        files,
        lost: more,
        bytes,
    } = done.map_err(refused)?;
    drop(progress);
    lost.extend(more.iter().map(|(what, why)| format!("{what}: {why}")));
    lost.iter().for_each(|line| say(line));
    if !lost.is_empty() && !leave_out {
        return Err(CliError::object(format!(
            "{}: not written: {} objects have no counterpart; --leave-out does without them",
            out.display(),
            lost.len()
        )));
    }
    format.print(&MadePublication {
        out: Name::new(out.as_os_str().as_encoded_bytes()),
        bytes,
        files: files
            .iter()
            .map(|file| Name::new(file.path.as_bytes()))
            .collect(),
    })
}

/// Returns the files of a store, or the error that says why it cannot be published.
fn files_of(base: &BaseStore, store: &Path) -> Result<Vec<PathBuf>, CliError> {
    let root = &base.base;
    let shown = store.display();
    let no = |why: &str| CliError::object(format!("{shown}: cannot be published: {why}"));
    if Address::parse(store).is_some() {
        return Err(no(
            "it lies elsewhere, and links in HDF5 files lead to files of this machine; npyfs checkout export writes \
             a whole store",
        ));
    }
    if !root.is_store() {
        return Err(no("it is a directory; publish the stores in it one by one"));
    }
    if let Some(why) = root.info().map_err(refused)?["error"].as_str() {
        return Err(no(why));
    }
    let formats = formats::registry();
    let format = formats.format_of(&**root).map_err(refused)?;
    if let Some(why) = format.rules().refuses_links() {
        return Err(no(&format!(
            "{why}; npyfs checkout export writes a whole store"
        )));
    }
    let files = format.files(&**root, store).map_err(refused)?;
    let files = files.iter().map(|path| path.canonicalize());
    files
        .collect::<std::io::Result<_>>()
        .map_err(|e| no(&e.to_string()))
}

/// A store as one file.
struct JoinedStore {
    /// The steps that join the objects of several files; `None`: it is one.
    steps: Option<Vec<EditStep>>,
    /// Further objects of the file that belong to changed objects, by the keys of these.
    stored_as: BTreeMap<String, Vec<ObjectPath>>,
    /// The keys of objects that are left out, and why.
    lost: Vec<(String, String)>,
}

impl JoinedStore {
    fn new(
        base: &BaseStore,
        files: &[PathBuf],
        published: &mut Published,
    ) -> Result<Self, CliError> {
        let formats = formats::registry();
        let format = formats.format_of(&*base.base).map_err(refused)?;
        let opened = files
            .iter()
            .map(|path| OpenStore::open(&base.context, path));
        let opened = opened.collect::<Result<Vec<_>, _>>().map_err(refused)?;
        let StoredParts { parts, lost } = match format.sets() {
            Some(sets) => stored_as(sets, &opened, &mut published.layers).map_err(refused)?,
            None => StoredParts::default(),
        };
        let mut joined = Self {
            steps: None,
            stored_as: parts,
            lost,
        };
        if files.len() > 1 {
            let no = || CliError::object("its files cannot be joined".to_owned());
            let sets = format.sets().ok_or_else(no)?;
            let division = sets.divided(&opened, &[], Parts::Single);
            let Division { steps, lost } = division.map_err(refused)?;
            joined.steps = steps.into_iter().next();
            let lost = lost
                .into_iter()
                .filter(|(key, _)| !is_changed(published, key));
            joined.lost.extend(lost);
        }
        Ok(joined)
    }
}

/// Returns whether layers change an object.
fn is_changed(published: &Published, key: &str) -> bool {
    let mut layers = published.layers.iter().rev();
    let entry = layers.find_map(|layer| layer.entries.get(key));
    entry.is_some_and(|entry| !matches!(entry, LayerEntry::Uncovered(_)))
}

/// Refuses a path for the new file that is taken, or lies in a mount or among the checkouts.
fn check_place(out: &Path, checkouts: &Path) -> Result<(), CliError> {
    let failed =
        |why: &dyn std::fmt::Display| Err(CliError::object(format!("{}: {why}", out.display())));
    if out.symlink_metadata().is_ok() {
        return failed(&"it is there already");
    }
    let parent = match out.parent() {
        Some(parent) if !parent.as_os_str().is_empty() => parent,
        _ => Path::new("."),
    };
    let home = match parent.canonicalize() {
        Ok(home) => home,
        Err(e) => return failed(&e),
    };
    let is_mount = |dir: &Path| matches!(table::at(dir), Ok(Some(mounted)) if mounted.is_ours());
    if home.ancestors().any(is_mount) {
        return failed(&"it would lie in a mount of npyfs, which shows arrays, and no HDF5 files");
    }
    if checkouts
        .canonicalize()
        .is_ok_and(|checkouts| home.starts_with(checkouts))
    {
        return failed(&"it would lie among the checkouts of the store");
    }
    Ok(())
}

/// Removes changes in groups of a format whose library follows no links. Returns a line for each.
fn without_links(base: &BaseStore, published: &mut Published) -> Result<Vec<String>, CliError> {
    let view = base.with(&published.layers);
    let mut lost = Vec::new();
    for layer in &mut published.layers {
        let mut refused_here = Vec::new();
        for key in layer.entries.keys() {
            let group = key.rsplit_once('/').map_or("", |(group, _)| group);
            let found = result::directory(&view, group).map_err(refused)?;
            if let Some(why) = found.and_then(|(_, format)| format.rules().refuses_links()) {
                refused_here.push((key.clone(), why));
            }
        }
        for (key, why) in refused_here {
            layer.entries.remove(&key);
            lost.push(format!("{}: {why}", attribute::shown(&key)));
        }
    }
    Ok(lost)
}

/// Refuses a publication that breaks the rules of the store's format.
fn rules(base: &BaseStore, published: &Published, out: &Path) -> Result<(), CliError> {
    let view = base.with(&published.layers);
    let keys: BTreeSet<&str> = published
        .layers
        .iter()
        .flat_map(|layer| layer.entries.keys().map(String::as_str))
        .collect();
    let broken = result::broken(&view, base.context.options.sep, keys.into_iter());
    let broken = broken.map_err(refused)?;
    broken.iter().for_each(|line| say(line));
    match broken.is_empty() {
        true => Ok(()),
        false => Err(CliError::object(format!(
            "{}: not written: it would break the rules of its format",
            out.display()
        ))),
    }
}
