//! `npyfs checkout export`: a store and its checkouts as one HDF5 file.

use std::path::{Path, PathBuf};

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};

use super::layers::{Found, Which, line_of, print, refused};
use super::seen::Seen;
use crate::checkout::checkouts::LayerFiles;
use crate::checkout::compression::Compression;
use crate::checkout::export::{Export, Progress};
use crate::checkout::index::Incomplete;
use crate::cli::{CliError, say};
use crate::h5::edit::ObjectPath;
use crate::h5::{GroupPath, Member};
use crate::raw::StoreFile;

/// What a worker is started from: this program.
const PROGRAM: &str = "/proc/self/exe";

/// Shows progress on a terminal.
struct Bar(ProgressBar);

impl Progress for Bar {
    fn begin(&self, bytes: u64) {
        self.0.set_position(0);
        self.0.set_length(bytes);
    }

    fn advance(&self, bytes: u64) {
        self.0.inc(bytes);
    }
}

pub fn export(
    which: &Which,
    name: Option<&str>,
    out: &Path,
    compression: Option<Compression>,
    leave_out: bool,
) -> Result<(), CliError> {
    let found = which.find(name)?;
    let base = found.checkouts.store();
    let mut layers = found.checkouts.committed().map_err(refused)?;
    let (own, incomplete) = own(&found)?;
    layers.extend(own);
    let lost = check_base(&found, out)?;
    for object in &incomplete {
        say(&line_of(object));
    }
    for (path, why) in &lost {
        let path = String::from_utf8_lossy(&path.join(&b'/')).into_owned();
        say(&format!("{path}: {why}"));
    }
    let left_out = |count: usize| {
        CliError::object(format!(
            "{}: not written: {count} objects cannot be carried over; --leave-out does without them",
            out.display()
        ))
    };
    let lacking = lost.len() + incomplete.len();
    if lacking > 0 && !leave_out {
        return Err(left_out(lacking));
    }
    let without: Vec<ObjectPath> = lost.into_iter().map(|(path, _)| path).collect();
    // Drawn on stderr, and only if that is a terminal.
    let bar = ProgressBar::with_draw_target(Some(0), ProgressDrawTarget::stderr());
    let style = "{bar:40} {bytes}/{total_bytes} {elapsed}, {eta} left";
    if let Ok(style) = ProgressStyle::with_template(style) {
        bar.set_style(style);
    }
    let bar = Bar(bar);
    let done = Export {
        base,
        layers: &layers,
        out,
        without: &without,
        compression,
        program: Path::new(PROGRAM),
    }
    .run(leave_out, &bar);
    bar.0.finish_and_clear();
    let not_carried = done.map_err(refused)?;
    for (key, why) in &not_carried {
        say(&format!("{key}: {why}"));
    }
    if !not_carried.is_empty() && !leave_out {
        return Err(left_out(not_carried.len()));
    }
    let size = std::fs::metadata(out).map_or(0, |meta| meta.len());
    print(&format!("{}: {size} bytes\n", out.display()))
}

/// The layer of the checkout, if one is named, and what is not complete in it; without a name only what is
/// committed counts.
fn own(found: &Found) -> Result<(Option<LayerFiles>, Vec<Incomplete>), CliError> {
    let Some(name) = &found.name else {
        return Ok((None, Vec::new()));
    };
    let summary = found.checkouts.find(name).map_err(refused)?;
    let layer = LayerFiles {
        dir: summary.dir,
        entries: summary.changes.entries,
    };
    Ok((
        Some(layer),
        summary.changes.incomplete.into_values().collect(),
    ))
}

/// Objects of the store that refer to other files by a name that does not hold where the new file is to be.
fn check_base(found: &Found, out: &Path) -> Result<Vec<(ObjectPath, String)>, CliError> {
    let base = found.checkouts.store();
    let seen = Seen::open(&found.checkouts)?;
    let info = seen.base.info().map_err(refused)?;
    let one_file = info["locales"]
        .as_array()
        .is_none_or(|parts| parts.len() == 1);
    if !base.is_file() || !one_file {
        return Err(CliError::object(format!(
            "{}: only a store that is one file can be exported",
            base.display()
        )));
    }
    let directory = |path: &Path| {
        let absolute = std::path::absolute(path).ok()?;
        absolute.parent()?.canonicalize().ok()
    };
    if directory(base).is_some() && directory(base) == directory(out) {
        return Ok(Vec::new());
    }
    let file = StoreFile::open(base).map_err(|e| CliError::store(e.to_string()))?;
    let h5 = &seen.context.h5;
    let failed = |e: crate::h5::H5Error| CliError::store(format!("{}: {e}", base.display()));
    let mut lost = Vec::new();
    for (group, path) in h5.groups(&file).map_err(failed)? {
        let members = h5.list(&file, group, true).map_err(failed)?;
        for (name, member) in members.members {
            let why = match member {
                Member::Dataset(dataset) if dataset.outside => "its data is in another file",
                Member::External { .. } => "it is a link to another file",
                _ => continue,
            };
            let mut path: GroupPath = path.clone();
            path.push(name);
            lost.push((path, why.to_owned()));
        }
    }
    Ok(lost)
}

/// What `--compress` says.
pub fn compression(text: &str) -> Result<Option<Compression>, String> {
    match text {
        "none" => Ok(None),
        text => text.parse().map(Some),
    }
}

/// Of the words behind the options: the checkout, if it is named, and the file.
pub fn words(mut words: Vec<String>) -> Result<(Option<String>, PathBuf), CliError> {
    match (words.pop(), words.pop()) {
        (Some(out), name) => Ok((name, PathBuf::from(out))),
        (None, _) => Err(CliError::usage(
            "which file? npyfs checkout export STORE NAME OUT",
        )),
    }
}
