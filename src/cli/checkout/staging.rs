//! The commands on a store that has a staging area.

use std::path::{Path, PathBuf};

use super::changes::{ChangeKind, Changes};
use super::mounted;
use crate::cli::output::{OutputFormat, print};
use crate::cli::progress::Progress;
use crate::cli::{CliError, umount};
use npyfs_base::error::Error;
use npyfs_core::formats;
use npyfs_core::store::staging::{Expected, StagedKind, Staging};
use npyfs_io::remote::Address;

pub(in crate::cli) fn refused(e: Error) -> CliError {
    CliError::object(e.message)
}

/// Returns the names of formats that have a staging area.
pub(in crate::cli) fn stores() -> String {
    formats::registry().staged_names()
}

/// Opens the staging area of a store.
pub(in crate::cli) fn open(store: &Path) -> Result<Box<dyn Staging>, CliError> {
    let fail = |e: &dyn std::fmt::Display| CliError::store(format!("{}: {e}", store.display()));
    if let Some(Ok(address)) = Address::parse(store) {
        let message = format!(
            "{address}: only a {} on this machine has a staging area",
            stores()
        );
        return Err(CliError::usage(message));
    }
    let store = store.canonicalize().map_err(|e| fail(&e))?;
    let formats = formats::registry();
    let Some(staged) = formats.staged(&store) else {
        return Err(fail(&format!("no {}", stores())));
    };
    staged
        .staging(&store)
        .map_err(|e| CliError::store(e.message))
}

/// Returns the store with a staging area of which this is a mount point.
pub(super) fn mounted_at(mount_point: &Path) -> Option<PathBuf> {
    let store = mounted::store_at(mount_point)?;
    let is_staged = formats::registry().staged(&store).is_some();
    is_staged.then_some(store)
}

/// Runs `status`.
pub(super) fn status(store: &Path) -> Result<(), CliError> {
    print(open(store)?.status().map_err(refused)?.as_bytes())
}

/// Runs `diff`.
pub(super) fn diff(store: &Path, format: OutputFormat) -> Result<(), CliError> {
    let mut changes = Changes::default();
    let mut see = |kind, name: &[u8]| {
        let kind = match kind {
            StagedKind::Added => ChangeKind::Added,
            StagedKind::Modified => ChangeKind::Modified,
            StagedKind::Deleted => ChangeKind::Deleted,
        };
        changes.add(kind, name, None);
    };
    open(store)?.each(&mut see).map_err(refused)?;
    format.print(&changes)
}

/// Runs `commit`. What was written through mounts of this machine is staged first.
pub(super) fn commit(store: &Path, message: &str, expected: &Expected) -> Result<(), CliError> {
    for mount_point in mounted::writing_to(store) {
        umount::sync(&mount_point)?;
    }
    let progress = Progress::waiting("committing");
    let name = open(store)?.commit(message, expected).map_err(refused)?;
    drop(progress);
    print(format!("{name}\n").as_bytes())
}

/// Runs `reset`.
pub(super) fn reset(store: &Path) -> Result<(), CliError> {
    print(open(store)?.reset().map_err(refused)?.as_bytes())
}
