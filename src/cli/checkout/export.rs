//! `npyfs checkout export`: a store and its checkouts as HDF5 files like those of the store: one, the files of a
//! set, or a directory of them.

pub(super) mod plan;
mod room;

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use super::base::BaseStore;
use super::layers::{CheckoutArgs, Selected, line_of, print, refused};
use crate::checkout::checkouts::LayerFiles;
use crate::checkout::export::{self, Export, Rearranged};
use crate::checkout::format::Parts;
use crate::checkout::index::KeptObject;
use crate::checkout::layout::{Layout, Method, Purpose};
use crate::checkout::result;
use crate::cli::progress::{Progress, end_cleanly};
use crate::cli::{CliError, say};
use crate::formats;
use crate::hdf5::program::program;
use crate::printable;
use plan::{ExportShape, plan};
use room::Room;

impl export::Progress for Progress {
    fn begin(&self, bytes: u64) {
        self.begin(bytes);
    }

    fn advance(&self, bytes: u64) {
        self.advance(bytes);
    }
}

/// What is asked of an export.
pub(super) struct ExportWish {
    /// How arrays are stored.
    pub(super) layout: Layout,
    /// The files that a store is divided among; `None`: as many as it has.
    pub(super) parts: Option<Parts>,
    /// Objects that cannot be carried over are left out.
    pub(super) leave_out: bool,
}

/// What was exported.
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
    let (own, incomplete) = own(&found)?;
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
    let broken = result::broken(&view, plan.seen.context.options.sep, keys.into_iter());
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
        .map(|misfit| format!("{}: {}", misfit.key, misfit.why));
    let lost = incomplete
        .iter()
        .map(line_of)
        .chain(unfit)
        .chain(plan.lost.iter().map(|(what, why)| format!("{what}: {why}")));
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
                part: divided.map(|divided| (number, divided)),
                layout: wish.layout,
                plugins: store.plugins,
                program: program(),
                formats: &formats::registry(),
            }
            .run(leave_out, &bar);
            let done = done.map_err(refused)?;
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
    // The export is whole, whatever else there is.
    let (all, _) = found.checkouts.list().unwrap_or_default();
    let own = found.name.as_deref();
    let open = all
        .iter()
        .filter(|summary| summary.commit.is_none() && Some(summary.name.as_str()) != own);
    for summary in open {
        let (changes, waiting) = (&summary.changes.entries, &summary.changes.incomplete);
        let counts = match (changes.len(), waiting.len()) {
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

/// The layer of the checkout, if one is named, and what is not complete in it; without a name only what is
/// committed counts.
fn own(found: &Selected) -> Result<(Option<LayerFiles>, Vec<KeptObject>), CliError> {
    let Some(name) = &found.name else {
        return Ok((None, Vec::new()));
    };
    let summary = found.checkouts.find(name).map_err(refused)?;
    let incomplete = summary.changes.incomplete.values().cloned().collect();
    let layer = LayerFiles::of(&summary.dir, summary.changes);
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

/// Takes the words behind the options apart: the checkout, if it is named, and the file.
pub(super) fn words(mut words: Vec<String>) -> Result<(Option<String>, PathBuf), CliError> {
    match (words.pop(), words.pop()) {
        (Some(out), name) => Ok((name, PathBuf::from(out))),
        (None, _) => Err(CliError::usage(
            "which file? npyfs checkout export STORE NAME OUT",
        )),
    }
}
