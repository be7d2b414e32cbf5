//! The commands of checkouts of HDF5 files: layers of new files over a store.

use std::cell::LazyCell;
use std::fmt::Write as _;
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use serde_json::Value as Json;

use super::seen::Seen;
use crate::checkout::checkouts::{Checkouts, LayerFiles, Summary};
use crate::checkout::commit::{Committed, Refusal, Side};
use crate::checkout::conflict::Conflict;
use crate::checkout::index::Incomplete;
use crate::checkout::storage::Disk;
use crate::checkout::target::describe_incomplete;
use crate::cli::{CliError, say};
use crate::error::{Error, ErrorKind};
use crate::fuse::table;
use crate::journal::utc;
use crate::raw::time;

/// Conflicts that are printed, at most.
const MOST_SHOWN: usize = 100;

/// Which checkout, as the command line says it.
#[derive(clap::Args, Debug)]
pub struct Which {
    /// Where checkouts are; by default in STORE.checkouts
    #[arg(long, value_name = "DIR")]
    checkouts: Option<PathBuf>,

    /// An HDF5 file or a directory with such, or the mount point of a checkout
    pub store: PathBuf,
}

/// The checkouts of a store, and the one that a command is about.
pub struct Found {
    pub checkouts: Checkouts,
    pub name: Option<String>,
    /// What was written through the mount and is no whole object yet; `None` if none is asked.
    pub waiting: Option<Vec<String>>,
}

impl Which {
    /// The store may be given by a mount point; then the name is that of the mounted checkout.
    pub fn find(&self, name: Option<&str>) -> Result<Found, CliError> {
        let shown = self.store.display();
        let fail = |e: &dyn std::fmt::Display| CliError::store(format!("{shown}: {e}"));
        let path = table::resolve(&self.store).map_err(|e| fail(&e))?;
        let mounted = table::at(&path).map_err(|e| fail(&e))?;
        if mounted.is_some_and(|mounted| mounted.is_ours()) {
            return self.mounted(&path, name);
        }
        let store = self.store.canonicalize().map_err(|e| fail(&e))?;
        Ok(Found {
            checkouts: Checkouts::of(&store, self.checkouts.as_deref()),
            name: name.map(str::to_owned),
            waiting: None,
        })
    }

    /// What the mount at `path` says of itself.
    fn mounted(&self, path: &Path, name: Option<&str>) -> Result<Found, CliError> {
        let shown = path.display();
        let fail = |e: &dyn std::fmt::Display| CliError::store(format!("{shown}: {e}"));
        let status = std::fs::read(path.join(".npyfs/status.json")).map_err(|e| fail(&e))?;
        let status: Json = serde_json::from_slice(&status).map_err(|e| fail(&e))?;
        let store = status["store"].as_str().ok_or_else(|| fail(&"no store"))?;
        let layer = status["checkout"]["dir"].as_str().map(Path::new);
        let beside = layer.and_then(Path::parent);
        let dir = self.checkouts.as_deref().or(beside);
        let own = status["checkout"]["name"].as_str();
        Ok(Found {
            checkouts: Checkouts::of(Path::new(store), dir),
            name: name.or(own).map(str::to_owned),
            waiting: (name.is_none() || name == own).then(|| waiting(&status["checkout"])),
        })
    }
}

impl Found {
    /// The name, which a command needs.
    pub fn name(&self) -> Result<&str, CliError> {
        self.name.as_deref().ok_or_else(|| {
            let store = self.checkouts.store().display();
            CliError::usage(format!(
                "{store}: which checkout? npyfs checkout ls lists them"
            ))
        })
    }
}

/// An object that is not complete, as it is told.
pub fn line_of(incomplete: &Incomplete) -> String {
    describe_incomplete(&incomplete.object, &incomplete.missing)
}

/// What a mount says of files that are no whole object yet.
fn waiting(checkout: &Json) -> Vec<String> {
    if let Some(list) = checkout["waiting"].as_array() {
        let shown = |item: &Json| {
            item.as_str()
                .map_or_else(|| item.to_string(), str::to_owned)
        };
        return list.iter().map(shown).collect();
    }
    match checkout["scratch_files"].as_u64() {
        Some(n) if n > 0 => vec![format!("{n} scratch files")],
        _ => Vec::new(),
    }
}

pub fn refused(error: Error) -> CliError {
    CliError::object(error.message)
}

/// Writes to the standard output; a reader that went away is no error.
pub fn print(text: &str) -> Result<(), CliError> {
    match io::stdout().write_all(text.as_bytes()) {
        Err(e) if e.kind() != io::ErrorKind::BrokenPipe => {
            Err(CliError::object(format!("standard output: {e}")))
        }
        _ => Ok(()),
    }
}

pub fn ls(which: &Which) -> Result<(), CliError> {
    let all = which.find(None)?.checkouts.list().map_err(refused)?;
    if all.is_empty() {
        return Ok(());
    }
    let head = [
        "NAME", "OBJECTS", "DELETED", "WAITING", "BYTES", "BEGUN", "STATE",
    ];
    let head = head.map(str::to_owned);
    let mut rows = vec![head];
    for summary in &all {
        rows.push(row(summary));
    }
    print(&table_text(&rows))
}

fn row(summary: &Summary) -> [String; 7] {
    let entries = &summary.changes.entries;
    let stored = entries.values().flatten().count();
    let size = |path: PathBuf| std::fs::metadata(path).map_or(0, |meta| meta.len());
    let files = entries.values().flatten();
    let bytes: u64 = files.map(|stored| size(summary.path(stored))).sum();
    let begun = summary.changes.begun.as_ref();
    let waiting = match summary.commit {
        Some(_) => 0,
        None => summary.changes.incomplete.len(),
    };
    let state = match (&summary.commit, &summary.holder) {
        (Some((number, commit)), _) => format!("commit {number}, {}", utc(time(commit.time))),
        (None, Some(holder)) => format!("in use: {holder}"),
        (None, None) => "open".to_owned(),
    };
    [
        summary.name.clone(),
        stored.to_string(),
        (entries.len() - stored).to_string(),
        waiting.to_string(),
        bytes.to_string(),
        begun.map_or_else(|| "-".to_owned(), |begun| utc(time(begun.time))),
        state,
    ]
}

/// Columns of equal width; numbers stand at the right of theirs.
fn table_text<const N: usize>(rows: &[[String; N]]) -> String {
    let width = |at: usize| rows.iter().map(|row| row[at].len()).max().unwrap_or(0);
    let widths: [usize; N] = std::array::from_fn(width);
    let mut text = String::new();
    for row in rows {
        let mut line = String::new();
        for (at, (cell, width)) in row.iter().zip(widths).enumerate() {
            // Writing to a String cannot fail.
            let _ = match at {
                1..=4 => write!(line, "{cell:>width$}  "),
                _ => write!(line, "{cell:<width$}  "),
            };
        }
        text.push_str(line.trim_end());
        text.push('\n');
    }
    text
}

pub fn commit(
    which: &Which,
    name: Option<&str>,
    side: Option<Side>,
    leave_out: bool,
) -> Result<(), CliError> {
    let found = which.find(name)?;
    let (checkouts, name) = (&found.checkouts, found.name()?);
    // Opened only if there is a question that it answers.
    let seen = LazyCell::new(|| Seen::open(checkouts).ok());
    let is_group = |layer: &LayerFiles, key: &str| {
        let seen = LazyCell::force(&seen).as_ref();
        seen.is_some_and(|seen| seen.is_group(layer, key))
    };
    let done = checkouts.commit(name, side, leave_out, Arc::new(Disk), &is_group);
    let Committed {
        number,
        objects,
        dropped,
        incomplete,
    } = match done {
        Ok(done) => done,
        Err(Refusal::Failed(e)) => return Err(in_use(e, "commit")),
        Err(Refusal::Conflicts(met)) => return Err(conflicts(checkouts, &met)),
        Err(Refusal::Incomplete(objects)) => {
            let lines: Vec<_> = objects.iter().map(line_of).collect();
            return Err(CliError::object(format!(
                "nothing was committed: not complete: {}; mount the checkout to write or delete it, or \
                 --leave-out forgets what there is",
                lines.join("; ")
            )));
        }
    };
    let Some(number) = number else {
        return print("nothing to commit\n");
    };
    let mut text = String::new();
    for key in &dropped {
        let _ = writeln!(text, "left out: {key}");
    }
    for object in &incomplete {
        let _ = writeln!(text, "left out: {}", line_of(object));
    }
    print(&format!("{text}commit {number}: {objects} changes\n"))
}

/// Says for each conflict what both sides did, and then how to go on.
fn conflicts(checkouts: &Checkouts, met: &[Conflict]) -> CliError {
    let listed = checkouts.list().unwrap_or_default();
    for conflict in met.iter().take(MOST_SHOWN) {
        let Conflict {
            ours,
            theirs,
            commit,
            deleted,
        } = conflict;
        let did = |deleted: bool| if deleted { "deleted" } else { "changed" };
        let by = listed
            .iter()
            .find(|summary| {
                summary
                    .commit
                    .as_ref()
                    .is_some_and(|(n, _)| *n == commit + 1)
            })
            .map_or_else(String::new, |summary| format!(" ({})", summary.name));
        say(&format!(
            "{ours} is {} here, {theirs} was {} by commit {}{by}",
            did(deleted.0),
            did(deleted.1),
            commit + 1,
        ));
    }
    if met.len() > MOST_SHOWN {
        say(&format!("and {} more", met.len() - MOST_SHOWN));
    }
    CliError::object(
        "nothing was committed: --ours keeps what is here, --theirs what was committed before",
    )
}

/// A checkout that is in use can be set free: says how.
fn in_use(error: Error, command: &str) -> CliError {
    let hint = match error.kind {
        ErrorKind::Os(libc::EBUSY) => format!("; unmount it to {command} it"),
        _ => String::new(),
    };
    CliError::object(format!("{error}{hint}"))
}

pub fn discard(which: &Which, name: Option<&str>) -> Result<(), CliError> {
    let found = which.find(name)?;
    let name = found.name()?;
    let summary = found.checkouts.find(name).map_err(refused)?;
    let done = found.checkouts.discard(name, &Disk);
    done.map_err(|e| in_use(e, "discard"))?;
    let objects = summary.changes.entries.len();
    print(&format!("discarded {name}: {objects} changes\n"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns_are_aligned() {
        let rows = [
            ["a", "1", "22", "3", "0", "x"],
            ["bcd", "10", "2", "333", "1", ""],
        ];
        let rows = rows.map(|row| row.map(str::to_owned));
        assert_eq!(
            table_text(&rows),
            "a     1  22    3  0  x\nbcd  10   2  333  1\n"
        );
    }
}
