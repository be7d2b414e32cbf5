//! The checkouts of the store that a command is given, and what is said of those that were left behind elsewhere.

use std::path::Path;

use crate::checkout::checkouts::Checkouts;
use crate::checkout::left_behind::orphaned_at;
use crate::cli::say;
use crate::error::{Error, ErrorKind, Result};
use crate::formats;

/// Returns the checkouts of a store, below `dir` or beside it. Says so if the store has left them behind.
pub(super) fn checkouts(store: &Path, dir: Option<&Path>) -> Result<Checkouts> {
    let checkouts = find(store, dir)?;
    if let Some(left) = checkouts.left_behind() {
        say(&left.to_string());
    }
    Ok(checkouts)
}

/// Returns the checkouts of a store that is going to be written: an error if it has left them behind, as new ones would take the
/// place that they need.
pub(super) fn checkouts_to_write(store: &Path, dir: Option<&Path>) -> Result<Checkouts> {
    let checkouts = find(store, dir)?;
    match checkouts.left_behind() {
        None => Ok(checkouts),
        Some(left) => Err(Error::new(ErrorKind::Stale, left.refusal())),
    }
}

fn find(store: &Path, dir: Option<&Path>) -> Result<Checkouts> {
    let dir = dir.map(std::path::absolute).transpose()?;
    Checkouts::below(store, dir.as_deref(), &formats::registry())
}

/// Returns what is added to the error about a store that is not there: where its checkouts still are.
pub(super) fn hint(store: &Path) -> String {
    match orphaned_at(store) {
        None => String::new(),
        Some(dir) => format!(
            "; its checkouts are still there: move {} along to where the store is, as STORE.checkouts",
            dir.display()
        ),
    }
}
