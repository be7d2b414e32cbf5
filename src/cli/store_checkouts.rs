//! The checkouts of the store that a command is given; the messages about checkouts that a moved store left behind, and about
//! an address in the place of a mount point.

use std::ffi::OsStr;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::Path;

use crate::cli::{CliError, say};
use crate::mount::fuse::table;
use npyfs_base::error::{Error, ErrorKind, Result};
use npyfs_core::checkout::history::checkouts::Checkouts;
use npyfs_core::checkout::history::location::orphaned_at;
use npyfs_core::formats;
use npyfs_core::tree::suggestion::nearest;
use npyfs_io::remote::{Address, Scheme};

/// Returns the checkouts of a store, below `dir` or beside it. Warns if a moved store left its checkouts behind.
pub(super) fn checkouts(store: &Path, dir: Option<&Path>) -> Result<Checkouts> {
    let checkouts = find(store, dir)?;
    if let Some(left) = checkouts.left_behind() {
        say(&left.to_string());
    }
    Ok(checkouts)
}

/// Returns the checkouts of a store that is going to be written. An error if a moved store left its checkouts behind: new
/// checkouts would take their place.
pub(super) fn checkouts_to_write(store: &Path, dir: Option<&Path>) -> Result<Checkouts> {
    check_place(store, dir)?;
    let checkouts = find(store, dir)?;
    match checkouts.left_behind() {
        None => Ok(checkouts),
        Some(left) => Err(Error::new(ErrorKind::Stale, left.refusal())),
    }
}

/// Refuses checkouts beside a store on a web server, where none can be.
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

/// Names in the directory of a missing store that are compared with its name.
const COMPARED: usize = 100_000;

/// Returns the end of the error about a missing store: where its checkouts still are, or what was probably meant.
pub(super) fn hint(store: &Path) -> String {
    match orphaned_at(store) {
        None => meant(store).unwrap_or_default(),
        Some(dir) => format!(
            "; its checkouts are still there: move {} along to where the store is, as STORE.checkouts",
            dir.display()
        ),
    }
}

/// Returns the nearest name in the directory of a missing store, or that it would be an address of no known kind.
fn meant(store: &Path) -> Option<String> {
    if Address::parse(store).is_some() || store.symlink_metadata().is_ok() {
        return None;
    }
    let text = store.to_string_lossy();
    if let Some((scheme, _)) = text.split_once("://") {
        let is_word = |c: char| c.is_ascii_alphanumeric() || "+-.".contains(c);
        if !scheme.is_empty() && scheme.chars().all(is_word) {
            return Some(format!(
                "; {scheme}:// is not known: addresses begin with https://, http://, s3://, gs://, az:// or file://"
            ));
        }
    }
    // STORE:path, as other programs spell it.
    if let Some((file, inside)) = text.split_once(':')
        && Path::new(file).is_file()
    {
        return Some(format!("; did you mean {file}:/{inside}?"));
    }
    let above = match store.parent() {
        Some(above) if !above.as_os_str().is_empty() => above,
        _ => Path::new("."),
    };
    let entries = std::fs::read_dir(above).ok()?.flatten().take(COMPARED);
    let names = entries.map(|entry| entry.file_name().into_vec());
    let near = nearest(store.file_name()?.as_bytes(), names)?;
    let near = store.with_file_name(OsStr::from_bytes(&near));
    Some(format!("; did you mean {}?", near.display()))
}

/// Refuses an address where a new store is to be written.
pub(super) fn refuse_to_write_at(out: &Path) -> std::result::Result<(), CliError> {
    let Some(address) = Address::parse(out) else {
        return Ok(());
    };
    let shown = address.map_or_else(|_| "an address".to_owned(), |address| address.to_string());
    Err(CliError::usage(format!(
        "{shown}: nothing is written there: write a file of this machine, and copy it"
    )))
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
