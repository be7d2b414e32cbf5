//! Names of checkouts and of their directories, and the files that a store consists of.

use std::path::Path;
use std::sync::Arc;

use crate::checkout::commits;
use crate::checkout::index::BaseFile;
use crate::checkout::place::SUFFIX;
use crate::error::{Error, ErrorKind, Result};
use crate::io::file::Identity;
use crate::io::remote::{Address, RemoteObject};
use crate::options::RemoteSettings;

/// Longest name of a checkout.
pub(crate) const LONGEST_NAME: usize = 200;

/// Files of a base that are remembered, at most.
const MOST_BASE_FILES: usize = 10_000;

/// EINVAL for what cannot be the name of a checkout.
pub fn check_name(name: &str) -> Result<()> {
    if is_name(name) {
        return Ok(());
    }
    let message = format!(
        "{name:?} cannot be the name of a checkout: letters, digits, . _ and - are allowed, \
         no . at the beginning, at most {LONGEST_NAME} in all, and not {:?}",
        commits::NAME
    );
    Err(Error::new(ErrorKind::Os(libc::EINVAL), message))
}

pub(crate) fn is_name(name: &str) -> bool {
    let known = |b: u8| b.is_ascii_alphanumeric() || b"._-".contains(&b);
    !name.is_empty()
        && name.len() <= LONGEST_NAME
        && !name.starts_with('.')
        && name != commits::NAME
        && name.bytes().all(known)
}

/// The name of the checkout that a directory belongs to, if it is one.
pub fn name_of(dir: &str) -> Option<&str> {
    let name = match dir.split_once('~') {
        Some((name, number)) => number.parse::<u64>().ok().map(|_| name)?,
        None => dir,
    };
    is_name(name).then_some(name)
}

/// Beginning of the name of the layer of a commit that takes another back. No checkout has such a name.
pub(crate) const REVERT: &str = "revert+";

/// The name of the checkout that the directory of a layer belongs to, for people.
pub fn checkout_of(dir: &str) -> &str {
    match dir.split_once('+') {
        Some((name, _)) => name,
        None => name_of(dir).unwrap_or(dir),
    }
}

/// Returns whether a directory is one of checkouts: no part of a directory of stores that is mounted.
pub fn is_checkouts(dir: &Path) -> bool {
    dir.as_os_str()
        .as_encoded_bytes()
        .ends_with(SUFFIX.as_bytes())
        && dir.join(commits::LOCK).is_file()
}

/// The object at an address as it is now; `None` if it cannot be looked at.
pub(crate) fn base_object(
    address: &Address,
    settings: &Arc<RemoteSettings>,
) -> Option<Vec<BaseFile>> {
    let version = RemoteObject::newest(address, settings).ok()?;
    let identity = Identity::elsewhere(0, version.size, version.modified);
    Some(vec![BaseFile {
        path: String::new(),
        size: version.size,
        modified: identity.modified(),
        version: version.etag,
    }])
}

/// The files of the store at `path`; `None` if they are too many or cannot be looked at.
pub(crate) fn base_files(path: &Path) -> Option<Vec<BaseFile>> {
    fn walk(top: &Path, path: &Path, to: &mut Vec<BaseFile>) -> Option<()> {
        let meta = std::fs::symlink_metadata(path).ok()?;
        if meta.is_dir() {
            if path != top
                && path
                    .as_os_str()
                    .as_encoded_bytes()
                    .ends_with(SUFFIX.as_bytes())
            {
                return Some(());
            }
            for entry in std::fs::read_dir(path).ok()? {
                walk(top, &entry.ok()?.path(), to)?;
            }
        } else if meta.is_file() {
            let identity = Identity::of(&meta);
            to.push(BaseFile {
                path: path.strip_prefix(top).ok()?.to_str()?.to_owned(),
                size: identity.size,
                modified: identity.modified(),
                version: None,
            });
        }
        (to.len() <= MOST_BASE_FILES).then_some(())
    }
    let mut files = Vec::new();
    walk(path, path, &mut files)?;
    files.sort_by(|a, b| a.path.cmp(&b.path));
    Some(files)
}
