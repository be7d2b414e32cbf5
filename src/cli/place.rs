//! The checkouts of the store that a command is given, what is said of those that were left behind elsewhere, and of addresses where
//! a mount point is wanted.

use std::ffi::OsStr;
use std::path::Path;

use crate::checkout::checkouts::Checkouts;
use crate::checkout::left_behind::orphaned_at;
use crate::cli::{CliError, say};
use crate::error::{Error, ErrorKind, Result};
use crate::formats;
use crate::io::remote::Address;
use crate::mount::fuse::table;

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
    check_place(store, dir)?;
    let checkouts = find(store, dir)?;
    match checkouts.left_behind() {
        None => Ok(checkouts),
        Some(left) => Err(Error::new(ErrorKind::Stale, left.refusal())),
    }
}

/// Refuses to look for checkouts of a store that lies elsewhere where none can be: beside it.
pub(super) fn check_place(store: &Path, dir: Option<&Path>) -> Result<()> {
    if dir.is_some() || Address::parse(store).is_none() {
        return Ok(());
    }
    let message = format!(
        "{}: what is written over a store that lies elsewhere is kept on this machine: --checkouts DIR says where",
        store.display()
    );
    Err(Error::new(ErrorKind::Os(libc::EROFS), message))
}

fn find(store: &Path, dir: Option<&Path>) -> Result<Checkouts> {
    if let Some(Ok(address)) = dir.and_then(Address::parse) {
        let message = format!("{address}: checkouts are in a directory of this machine");
        return Err(Error::new(ErrorKind::Os(libc::EINVAL), message));
    }
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

/// Refuses the address of a store where a mount point is wanted, and says where it is mounted.
pub(super) fn refuse_address(given: &Path) -> std::result::Result<(), CliError> {
    let Some(Ok(address)) = Address::parse(given) else {
        return Ok(());
    };
    let shown = address.to_string();
    let mounts = table::of_source(OsStr::new(&shown)).unwrap_or_default();
    let mounts: Vec<_> = mounts
        .iter()
        .map(|path| path.display().to_string())
        .collect();
    let why = match mounts.is_empty() {
        true => "and not mounted: name the directory that a store is mounted at".to_owned(),
        false => format!("mounted at {}: name that", mounts.join(", ")),
    };
    Err(CliError::mount(format!(
        "{shown} is the address of a store, {why}"
    )))
}
