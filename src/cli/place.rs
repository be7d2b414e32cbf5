//! The checkouts of the store that a command is given, what is said of those that were left behind elsewhere, and of addresses where
//! a mount point is wanted.

use std::ffi::OsStr;
use std::path::Path;

use crate::checkout::checkouts::Checkouts;
use crate::checkout::left_behind::orphaned_at;
use crate::cli::{CliError, say};
use crate::error::{Error, ErrorKind, Result};
use crate::formats;
use crate::io::remote::{Address, Scheme};
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
    let is_web = |address: &Address| address.scheme() == Scheme::Web;
    let on_web =
        |path: &Path| matches!(Address::parse(path), Some(Ok(address)) if is_web(&address));
    if dir.is_some() || !on_web(store) {
        return Ok(());
    }
    let message = format!(
        "{}: a web server takes nothing: --checkouts DIR says where what is written over it is kept, here or in a bucket",
        store.display()
    );
    Err(Error::new(ErrorKind::Os(libc::EROFS), message))
}

fn find(store: &Path, dir: Option<&Path>) -> Result<Checkouts> {
    let dir = match dir.map(|dir| (dir, Address::parse(dir))) {
        Some((_, Some(Ok(address)))) if address.scheme() == Scheme::Web => {
            let message = format!(
                "{address}: a web server takes nothing: checkouts are in a directory or a bucket"
            );
            return Err(Error::new(ErrorKind::Os(libc::EINVAL), message));
        }
        Some((_, Some(Err(why)))) => return Err(Error::new(ErrorKind::Os(libc::EINVAL), why)),
        Some((dir, Some(Ok(_)))) => Some(dir.to_owned()),
        Some((dir, None)) => Some(std::path::absolute(dir)?),
        None => None,
    };
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
