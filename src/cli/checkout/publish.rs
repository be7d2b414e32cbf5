//! `npyfs checkout publish`: a store and its checkouts as one small HDF5 file of links, which other programs read.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use serde::Serialize;

use super::base::BaseStore;
use super::export::plan::{StoredParts, stored_as};
use super::layers::{CheckoutArgs, line_of, refused};
use crate::checkout::entry::LayerEntry;
use crate::checkout::format::{Division, Parts};
use crate::checkout::publications::Published;
use crate::checkout::publish::{Outcome, Publication};
use crate::checkout::result;
use crate::cli::output::{self, Name, OutputFormat, print_json};
use crate::cli::progress::{Progress, end_cleanly};
use crate::cli::{CliError, say};
use crate::dataset::opened::OpenStore;
use crate::formats;
use crate::hdf5::edit::{EditStep, ObjectPath};
use crate::hdf5::program::program;
use crate::io::remote::Address;
use crate::io::storage::{Disk, Storage};
use crate::mount::fuse::table;
use crate::printable;

/// A publication in JSON.
#[derive(Serialize)]
struct Made {
    #[serde(flatten)]
    out: Name,
    bytes: u64,
    files: Vec<Name>,
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
    let mut published = checkouts.to_publish(name).map_err(refused)?;
    let mut lost: Vec<String> = published.incomplete.iter().map(line_of).collect();
    let misfits = base.with(&published.layers).misfits();
    for misfit in &misfits {
        lost.push(format!("{}: {}", misfit.key, misfit.why));
        if let Some(layer) = published.layers.get_mut(misfit.layer) {
            layer.entries.remove(&misfit.key);
        }
    }
    lost.extend(without_links(&base, &mut published)?);
    rules(&base, &published, out)?;
    let store = Joined::of(&base, &files, &mut published)?;
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
    let name = |path: &str| Name::new(path.as_bytes());
    if format.json {
        return print_json(&Made {
            out: Name::new(out.as_os_str().as_encoded_bytes()),
            bytes,
            files: files.iter().map(|file| name(&file.path)).collect(),
        });
    }
    let mut text = Vec::new();
    if !format.null {
        let out = printable::name(out.as_os_str().as_encoded_bytes());
        let mut first = String::new();
        let count = files.len();
        let plural = if count == 1 { "" } else { "s" };
        let _ = writeln!(
            first,
            "{out}: {bytes} bytes, links into {count} file{plural}:"
        );
        text.extend(first.into_bytes());
    }
    for file in &files {
        format.push("", file.path.as_bytes(), &mut text);
    }
    output::print(&text)
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
    let format = formats.of(&**root).map_err(refused)?;
    if let Some(why) = format.refuses_links() {
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

/// What a store is in one file.
struct Joined {
    /// The steps that join the objects of several files; `None`: it is one.
    steps: Option<Vec<EditStep>>,
    /// What goes with objects that are changed, by their keys.
    stored_as: BTreeMap<String, Vec<ObjectPath>>,
    /// The keys of objects that are left out, and why.
    lost: Vec<(String, String)>,
}

impl Joined {
    fn of(
        base: &BaseStore,
        files: &[PathBuf],
        published: &mut Published,
    ) -> Result<Self, CliError> {
        let formats = formats::registry();
        let format = formats.of(&*base.base).map_err(refused)?;
        let opened = files
            .iter()
            .map(|path| OpenStore::open(&base.context, path));
        let opened = opened.collect::<Result<Vec<_>, _>>().map_err(refused)?;
        let StoredParts { parts, lost } =
            stored_as(&**format, &opened, &mut published.layers).map_err(refused)?;
        let mut joined = Self {
            steps: None,
            stored_as: parts,
            lost,
        };
        if files.len() > 1 {
            let no = || CliError::object("its files cannot be joined".to_owned());
            let division = format.divided(&opened, &[], Parts::Single).ok_or_else(no)?;
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

/// Returns whether layers say anything of an object but that it is as in the store.
fn is_changed(published: &Published, key: &str) -> bool {
    let mut layers = published.layers.iter().rev();
    let entry = layers.find_map(|layer| layer.entries.get(key));
    entry.is_some_and(|entry| !matches!(entry, LayerEntry::Uncovered(_)))
}

/// Refuses a place for the new file that is taken, or no place for it.
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

/// Takes out changes in groups of a format whose library follows no links; returns a line for each.
fn without_links(base: &BaseStore, published: &mut Published) -> Result<Vec<String>, CliError> {
    let view = base.with(&published.layers);
    let mut lost = Vec::new();
    for layer in &mut published.layers {
        let mut refused_here = Vec::new();
        for key in layer.entries.keys() {
            let group = key.rsplit_once('/').map_or("", |(group, _)| group);
            let found = result::directory(&view, group).map_err(refused)?;
            if let Some(why) = found.and_then(|(_, format)| format.refuses_links()) {
                refused_here.push((key.clone(), why));
            }
        }
        for (key, why) in refused_here {
            layer.entries.remove(&key);
            lost.push(format!("{key}: {why}"));
        }
    }
    Ok(lost)
}

/// Refuses what breaks the rules of the store's format.
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
