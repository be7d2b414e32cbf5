//! Suggests a name for a path that does not exist, or the reason why the object is left out.

use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::sync::Arc;

use super::name::SUFFIXES;
use super::path::find;
use super::{Directory, Node};
use npyfs_base::printable;

/// The most names that are compared: a directory may have millions.
const COMPARED: usize = 100_000;

/// Returns the text to append to an error about a path, which people are told as `shown`: `; did you mean a.npy?`.
pub fn for_path(root: &Arc<dyn Directory>, path: &Path, shown: &Path) -> Option<String> {
    let mut below = path;
    let mut told = match shown.ends_with(path) {
        true => shown,
        false => path,
    };
    loop {
        let name = below.file_name()?;
        let above = below.parent()?;
        told = told.parent()?;
        if let Ok(Node::Directory(dir)) = find(root, None, above.as_os_str().as_bytes(), true) {
            return in_directory(&*dir, name.as_bytes(), told);
        }
        below = above;
    }
}

fn in_directory(dir: &dyn Directory, name: &[u8], above: &Path) -> Option<String> {
    let listing = dir.list().ok()?;
    let bare = SUFFIXES
        .iter()
        .find_map(|suffix| name.strip_suffix(*suffix));
    let bare = bare.unwrap_or(name);
    if let Some((own, reason)) = listing
        .left_out
        .iter()
        .find(|(own, _)| own == name || own == bare)
    {
        return Some(format!("; {} is left out: {reason}", printable::name(own)));
    }
    if let Ok(Some(Node::Symlink(link))) = dir.lookup(name) {
        let target = printable::name(&link.target);
        return Some(format!("; it is a link to {target}, which is not there"));
    }
    let names = || {
        listing
            .iter()
            .take(COMPARED)
            .map(|(name, _)| name.into_owned())
    };
    // The name with a suffix, or a directory's without one.
    let with_suffix = |known: &Vec<u8>| {
        let suffix = known.strip_prefix(bare);
        suffix.is_some_and(|rest| rest.is_empty() || SUFFIXES.contains(&rest))
    };
    let meant = names()
        .find(with_suffix)
        .or_else(|| nearest(name, names()))
        .or_else(|| nearest(bare, names()))?;
    let shown = printable::name(&meant);
    Some(match above.as_os_str().is_empty() {
        true => format!("; did you mean {shown}?"),
        false => format!("; did you mean {}?", above.join(shown).display()),
    })
}

/// Returns the most similar name, if it differs by no more than a typing error.
pub fn nearest(name: &[u8], names: impl Iterator<Item = Vec<u8>>) -> Option<Vec<u8>> {
    let wanted = String::from_utf8_lossy(name).to_lowercase();
    let most = (wanted.chars().count() / 4).max(1);
    let distance = |known: &[u8]| {
        let known = String::from_utf8_lossy(known).to_lowercase();
        strsim::damerau_levenshtein(&wanted, &known)
    };
    names
        .map(|known| (distance(&known), known))
        .filter(|(distance, _)| *distance <= most)
        .min()
        .map(|(_, known)| known)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_slip_is_understood_and_no_more() {
        let names = || ["cell#age.npy", "cell#.npy", "gene#.npy"].map(|n| n.as_bytes().to_vec());
        let nearest = |name: &str| nearest(name.as_bytes(), names().into_iter());
        assert_eq!(nearest("cell#aeg.npy"), Some(b"cell#age.npy".to_vec()));
        assert_eq!(nearest("Cell#.npy"), Some(b"cell#.npy".to_vec()));
        assert_eq!(nearest("score"), None);
    }
}
