//! Paths of a view: the directory at one, the object that one belongs to, and the forms in which an object is shown.

use std::collections::BTreeMap;
use std::sync::Arc;

use super::View;
use crate::checkout::records::layer_files::LayerFiles;
use crate::store::format::Format;
use crate::tree::name::{self, SUFFIXES};
use crate::tree::{Directory, Node};
use npyfs_base::error::Result;

/// Returns the format for a name in a directory at a path. The directory need not exist.
pub type FormatFor<'a> =
    &'a dyn Fn(Option<&dyn Directory>, &[Vec<u8>], &str) -> Result<Arc<dyn Format>>;

impl View {
    /// Returns the directory at a path; `None` if it does not exist.
    pub fn directory(self: &Arc<Self>, path: &[Vec<u8>]) -> Result<Option<Arc<dyn Directory>>> {
        let mut dir = self.root();
        for name in path {
            match below(&*dir, name)? {
                Some(below) => dir = below,
                None => return Ok(None),
            }
        }
        Ok(Some(dir))
    }

    /// Returns how many names of a path lead to the directory of parts that contains it, or that it is; `None` if the
    /// object at the path is a single file, or a group. `suffix` is that of a file at this path; `depth` is the number
    /// of names that lead to the store.
    pub fn composite(
        self: &Arc<Self>,
        depth: usize,
        path: &[Vec<u8>],
        suffix: &str,
        format_for: FormatFor<'_>,
    ) -> Result<Option<usize>> {
        let (store, inside) = path.split_at(depth.min(path.len()));
        if inside.is_empty() {
            return Ok(None);
        }
        let mut dir = self.directory(store)?;
        // The format of the directory that contains a name, and the names below the uppermost directory of that format.
        let mut behind: (&str, Vec<String>) = ("", Vec::new());
        for (at, shown) in inside.iter().enumerate() {
            let name = self.key_name(shown);
            let there = match &dir {
                Some(dir) => below(&**dir, shown)?,
                None => None,
            };
            if let Ok(name) = std::str::from_utf8(&name) {
                let format = format_for(dir.as_deref(), &path[..depth + at], name)?;
                if format.name() != behind.0 {
                    behind = (format.name(), Vec::new());
                }
                behind
                    .1
                    .push(String::from_utf8_lossy(&name::unescape(name.as_bytes())).into_owned());
                let suffix = if at + 1 == inside.len() { suffix } else { "" };
                if format
                    .objects()
                    .is_object_at(&behind.1, suffix, there.as_deref())?
                {
                    return Ok(Some(depth + at + 1));
                }
            }
            dir = there;
        }
        // Text that is too long for a fixed width is shown as a directory.
        Ok(dir.is_some_and(|dir| dir.is_object()).then_some(path.len()))
    }
}

/// Returns all forms in which the object at a key is shown, with their paths: `a/b.npy`, `a/b/`.
pub fn forms(root: &Arc<dyn Directory>, key: &str) -> Result<Vec<(String, Node)>> {
    let (above, last) = key.rsplit_once('/').unwrap_or(("", key));
    let mut dir = root.clone();
    for name in above.split('/').filter(|name| !name.is_empty()) {
        match dir.lookup(name.as_bytes())? {
            Some(Node::Directory(below)) => dir = below,
            _ => return Ok(Vec::new()),
        }
    }
    let path = |name: &str| match above {
        "" => name.to_owned(),
        above => format!("{above}/{name}"),
    };
    let mut found = Vec::new();
    for suffix in SUFFIXES {
        let name = format!("{last}{}", String::from_utf8_lossy(suffix));
        match dir.lookup(name.as_bytes())? {
            Some(node @ (Node::File(_) | Node::Symlink(_))) => found.push((path(&name), node)),
            Some(Node::Directory(_)) | None => {}
        }
    }
    match dir.lookup(last.as_bytes())? {
        Some(node @ Node::Directory(_)) => found.push((path(&format!("{last}/")), node)),
        // A link to a group has no suffix.
        Some(node @ Node::Symlink(_)) => found.push((path(last), node)),
        Some(Node::File(_)) | None => {}
    }
    Ok(found)
}

/// Returns whether the object of a layer is a group with nothing in it. `look` shows one layer on top of the store.
pub fn is_empty_group(
    layer: &LayerFiles,
    key: &str,
    look: &dyn Fn(&LayerFiles) -> Arc<View>,
) -> bool {
    let file = layer
        .entries
        .get(key)
        .and_then(|entry| entry.file(&layer.dir));
    let Some((dir, stored)) = file else {
        return false;
    };
    let entries = BTreeMap::from([(key.to_owned(), Some(stored.clone()))]);
    let root = look(&LayerFiles::bare(dir, entries)).root();
    match forms(&root, key).as_deref() {
        Ok([(_, Node::Directory(dir))]) => dir.list().is_ok_and(|listing| listing.is_empty()),
        _ => false,
    }
}

/// Returns the subdirectory with this name.
fn below(dir: &dyn Directory, name: &[u8]) -> Result<Option<Arc<dyn Directory>>> {
    Ok(match dir.lookup(name)? {
        Some(Node::Directory(below)) => Some(below),
        _ => None,
    })
}
