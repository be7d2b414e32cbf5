//! `npyfs checkout export`: a store and its checkouts as HDF5 files like those of the store: one, the files of a
//! set, or a directory of them.

pub(super) mod plan;

use std::cell::OnceCell;
use std::collections::BTreeSet;
use std::ffi::OsString;
use std::fs::File;
use std::io;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};

use super::base::BaseStore;
use super::layers::{CheckoutArgs, Selected, line_of, print, refused};
use crate::cli::progress::{Progress, end_cleanly};
use crate::cli::{CliError, say, store_checkouts};
use npyfs_base::error::Error;
use npyfs_base::options::External;
use npyfs_base::printable;
use npyfs_core::checkout::export::layout::{Layout, Method, Purpose};
use npyfs_core::checkout::export::{Export, Rearranged, encoded};
use npyfs_core::checkout::records::attribute;
use npyfs_core::checkout::records::index::KeptObject;
use npyfs_core::checkout::records::layer_files::LayerFiles;
use npyfs_core::checkout::view::rules as result;
use npyfs_core::formats;
use npyfs_core::store::format::Parts;
use npyfs_hdf5::program::program;
use npyfs_io::dir::Dir;
use npyfs_io::rights::Rights;
use npyfs_io::workplace::{WHOLE, Workplace};
use plan::{ExportPlan, ExportShape, above, directory, plan};

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
    let (own, incomplete) = own(&found, &layers)?;
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
            let new = place.of(&file.name);
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
                encoded: &store.own(&encoded),
                dimensions: &store.own(&dimensions),
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

/// Returns the layer of the checkout and its incomplete objects, if a checkout is named; without a name only commits count.
fn own(
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
        store_checkouts::refuse_to_write_at(Path::new(out))?;
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

/// The place where the new files of an export are made. They get their names once all of them are there; what is left in the
/// place goes with it.
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
    fn of(&self, name: &Path) -> PathBuf {
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
