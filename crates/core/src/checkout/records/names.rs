//! Names of checkouts and of their directories.

use npyfs_base::error::{Error, ErrorKind, Result};

/// The longest name of a checkout.
pub(crate) const LONGEST_NAME: usize = 200;

/// The name of the directory of commits. No checkout can have this name.
pub const COMMITS: &str = "commits";

/// Fails with EINVAL for an invalid checkout name.
pub fn check_name(name: &str) -> Result<()> {
    if is_name(name) {
        return Ok(());
    }
    let message = format!(
        "{name:?} cannot be the name of a checkout: letters, digits, . _ and - are allowed, \
         no . at the beginning, at most {LONGEST_NAME} in all, and not {:?}",
        COMMITS
    );
    Err(Error::new(ErrorKind::Os(libc::EINVAL), message))
}

pub(crate) fn is_name(name: &str) -> bool {
    let known = |b: u8| b.is_ascii_alphanumeric() || b"._-".contains(&b);
    !name.is_empty()
        && name.len() <= LONGEST_NAME
        && !name.starts_with('.')
        && name != COMMITS
        && name.bytes().all(known)
}

/// Returns the name of the checkout of a directory, if it belongs to one.
pub fn name_of(dir: &str) -> Option<&str> {
    let name = match dir.split_once('~') {
        Some((name, number)) => number.parse::<u64>().ok().map(|_| name)?,
        None => dir,
    };
    is_name(name).then_some(name)
}

/// The prefix of the layer names of revert commits. No checkout can have such a name.
pub(crate) const REVERT: &str = "revert+";

/// Returns the name of the checkout of a layer's directory, for people.
pub fn checkout_of(dir: &str) -> &str {
    match dir.split_once('+') {
        Some((name, _)) => name,
        None => name_of(dir).unwrap_or(dir),
    }
}
