//! The checkout commands on a Hangar repository, which are about its staging area.

use std::collections::{BTreeMap, HashMap};
use std::path::Path;
use std::sync::Arc;

use super::changes::{Changes, Kind};
use crate::cli::CliError;
use crate::cli::output::{Format, print};
use crate::dataset::context::Context;
use crate::error::Error;
use crate::formats::hangar::key::shown;
use crate::formats::hangar::repository;
use crate::formats::hangar::repository::Repository;
use crate::formats::hangar::stage::commit::Expected;
use crate::formats::hangar::stage::difference::{RecordChange, difference};
use crate::formats::hangar::stage::{Stage, StageState};
use crate::hdf5::H5;
use crate::hdf5::permit::Reach;
use crate::hdf5::program::program;
use crate::options::FsOptions;
use crate::printable;
use crate::tree::name::visible;

fn refused(e: Error) -> CliError {
    CliError::object(e.message)
}

/// Opens the staging area of a repository.
pub fn open(store: &Path) -> Result<Stage, CliError> {
    let fail = |e: &dyn std::fmt::Display| CliError::store(format!("{}: {e}", store.display()));
    let store = store.canonicalize().map_err(|e| fail(&e))?;
    let folder = repository::folder(&store).ok_or_else(|| fail(&"no Hangar repository"))?;
    let options = FsOptions::default();
    let h5 = H5::workers(Reach::of(&store, options.external));
    let context = Arc::new(Context::new(h5, options));
    let open = Repository::open(&folder, &context).map_err(|e| CliError::store(e.message))?;
    Stage::open(&open, program()).map_err(|e| CliError::store(e.message))
}

/// The number of changed samples of a column.
#[derive(Default)]
struct Count {
    added: u64,
    modified: u64,
    deleted: u64,
}

/// Runs `status`.
pub fn status(store: &Path) -> Result<(), CliError> {
    let stage = open(store)?;
    let state = stage.state().map_err(refused)?;
    let holder = stage.holder().map_err(refused)?;
    let mut columns: BTreeMap<Vec<u8>, Count> = BTreeMap::new();
    difference(&state.base, &state.staged, |key, change| {
        let Some((_, column, below)) = parts(key) else {
            return;
        };
        let count = columns.entry(visible(column, "")).or_default();
        // The record of a column itself is no sample.
        match change {
            _ if below.is_none() => {}
            RecordChange::Added(_) => count.added += 1,
            RecordChange::Changed(_) => count.modified += 1,
            RecordChange::Removed(_) => count.deleted += 1,
        }
    });
    let head = state.head.as_deref().unwrap_or("no commit yet");
    let branch = printable::line(&state.branch);
    let mut out = format!("branch {branch}, {head}\n");
    if let Some(holder) = holder {
        out += &format!("{}\n", printable::line(&holder.to_string()));
    }
    if !state.is_changed() {
        out += "nothing is staged\n";
    }
    for (column, count) in columns {
        let Count {
            added,
            modified,
            deleted,
        } = count;
        let column = printable::name(&column);
        out += &format!("{column}: {added} added, {modified} modified, {deleted} deleted\n");
    }
    print(out.as_bytes())
}

/// Runs `diff`.
pub fn diff(store: &Path, format: Format) -> Result<(), CliError> {
    let stage = open(store)?;
    let state = stage.state().map_err(refused)?;
    let names = Names::new(&stage, &state);
    let mut changes = Changes::new(format);
    difference(&state.base, &state.staged, |key, change| {
        let kind = match change {
            RecordChange::Added(_) => Kind::Added,
            RecordChange::Changed(_) => Kind::Modified,
            RecordChange::Removed(_) => Kind::Deleted,
        };
        changes.add(kind, &names.of(key), None);
    });
    changes.print()
}

/// Runs `commit`.
pub fn commit(store: &Path, message: &str, expected: &Expected) -> Result<(), CliError> {
    let digest = open(store)?.commit(message, expected).map_err(refused)?;
    print(format!("{digest}\n").as_bytes())
}

/// Runs `reset`.
pub fn reset(store: &Path) -> Result<(), CliError> {
    let removed = open(store)?.reset().map_err(refused)?;
    let (records, samples, files) = (removed.records, removed.samples, removed.files);
    let text =
        format!("{records} records set back, {samples} samples and {files} data files removed\n");
    print(text.as_bytes())
}

/// The kind, column and key of a record; no key for that of the column itself.
type Parts<'a> = (u8, &'a [u8], Option<&'a [u8]>);

/// Splits the key of a record.
fn parts(key: &[u8]) -> Option<Parts<'_>> {
    let [kind @ (b'f' | b'n' | b's'), b':', rest @ ..] = key else {
        return None;
    };
    let at = rest.iter().position(|&b| b == b':')?;
    let below = (*kind != b's').then_some(&rest[at + 1..]);
    Some((*kind, &rest[..at], below))
}

/// The names below `stage/` as a mount shows them.
struct Names {
    suffixes: HashMap<Vec<u8>, &'static str>,
}

impl Names {
    /// Collects the suffixes of the columns.
    fn new(stage: &Stage, state: &StageState) -> Self {
        let mut suffixes = HashMap::new();
        for (key, digest) in state.base.iter().chain(state.staged.iter()) {
            if let Some((b's', column, _)) = parts(key)
                && let Ok(digest) = std::str::from_utf8(digest)
                && let Ok(schema) = stage.repository.schema(digest)
            {
                suffixes.insert(column.to_vec(), schema.suffix());
            }
        }
        Self { suffixes }
    }

    /// Returns the name of a record.
    fn of(&self, key: &[u8]) -> Vec<u8> {
        let Some((kind, column, below)) = parts(key) else {
            return visible(key, "");
        };
        let suffix = self.suffixes.get(column).copied().unwrap_or_default();
        let mut name = visible(column, "");
        name.push(b'/');
        let Some(below) = below else {
            return name;
        };
        let nested = (kind == b'n').then(|| below.iter().position(|&b| b == b':'));
        match nested.flatten() {
            Some(at) => {
                name.extend(shown(&below[..at], ""));
                name.push(b'/');
                name.extend(shown(&below[at + 1..], suffix));
            }
            None => name.extend(shown(below, suffix)),
        }
        name
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn records_are_named_as_in_a_mount() {
        let names = Names {
            suffixes: HashMap::from([(b"a".to_vec(), ".npy"), (b"t".to_vec(), ".txt")]),
        };
        for (key, name) in [
            ("f:a:#5", "a/5.npy"),
            ("f:a:5", "a/%35.npy"),
            ("n:t:#1:de", "t/1/de.txt"),
            ("s:a:f", "a/"),
        ] {
            assert_eq!(names.of(key.as_bytes()), name.as_bytes());
        }
    }
}
