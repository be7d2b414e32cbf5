//! Paths of a mount: the store and format that they lie in, and the object that they lead to.

use std::sync::Arc;

use super::{LayerTarget, refused};
use crate::checkout::encode::ObjectKey;
use crate::checkout::format::Format;
use crate::checkout::target::{self, PathNames};
use crate::error::Result;
use crate::tree::name::{self, visible_with};
use crate::tree::{Directory, Node};

impl LayerTarget {
    /// The directory at a path of the mount; `None` if there is none.
    pub(super) fn directory(&self, path: &PathNames) -> Result<Option<Arc<dyn Directory>>> {
        let mut dir = self.view.root();
        for name in path {
            match below(&*dir, name)? {
                Some(below) => dir = below,
                None => return Ok(None),
            }
        }
        Ok(Some(dir))
    }

    /// Returns the format by which files in a directory are stored; `None`: one that is not there yet.
    pub(super) fn format(&self, dir: Option<&dyn Directory>) -> Result<&Arc<dyn Format>> {
        let name = dir.map_or(Ok(""), Directory::format)?;
        Ok(self.view.formats().named(name))
    }

    /// Returns the format by which an object of this own name is stored in a directory, at this path: that of the directory, or
    /// the one that the object begins there.
    pub(super) fn format_for(
        &self,
        dir: Option<&dyn Directory>,
        path: &PathNames,
        name: &str,
    ) -> Result<&Arc<dyn Format>> {
        let (format, formats) = (self.format(dir)?, self.view.formats());
        let lies = formats.is_axis(name) || !formats.along(name).is_empty();
        // What could begin is plain, and a group that was made in this checkout.
        if !lies || format.name() != formats.named("").name() {
            return Ok(format);
        }
        let depth = match self.view.store_depth(path) {
            Some(depth) if depth < path.len() => depth,
            _ => return Ok(format),
        };
        let file = path[..depth].last().unwrap_or(&self.store);
        let mut others = formats.iter();
        match others.find(|format| format.begins_in(file, name)) {
            Some(begun) if self.layer.has(&self.view.key(path)?) => Ok(begun),
            _ => Ok(format),
        }
    }

    /// Returns how many names of a path lead to the directory of parts that it is in, or that it is; `None` if an
    /// object of that path is one file, or a group. `suffix`: that of a file of this path.
    pub(super) fn composite(
        &self,
        depth: usize,
        path: &PathNames,
        suffix: &str,
    ) -> Result<Option<usize>> {
        let (store, inside) = path.split_at(depth.min(path.len()));
        if inside.is_empty() {
            return Ok(None);
        }
        let mut dir = self.directory(store)?;
        // The format of the directory that a name is in, and the names behind the uppermost directory of that format.
        let mut behind: (&str, Vec<String>) = ("", Vec::new());
        for (at, shown) in inside.iter().enumerate() {
            let name = self.view.key_name(shown);
            let there = match &dir {
                Some(dir) => below(&**dir, shown)?,
                None => None,
            };
            if let Ok(name) = std::str::from_utf8(&name) {
                let format = self.format_for(dir.as_deref(), &path[..depth + at], name)?;
                if format.name() != behind.0 {
                    behind = (format.name(), Vec::new());
                }
                behind
                    .1
                    .push(String::from_utf8_lossy(&name::unescape(name.as_bytes())).into_owned());
                let suffix = if at + 1 == inside.len() { suffix } else { "" };
                if format.is_object_at(&behind.1, suffix, there.as_deref())? {
                    return Ok(Some(depth + at + 1));
                }
            }
            dir = there;
        }
        // Text that is too long for a fixed width is shown as a directory.
        Ok(dir.is_some_and(|dir| dir.is_object()).then_some(path.len()))
    }

    /// The store that a directory is in, by the number of names that lead to it.
    pub(super) fn store_depth(&self, path: &PathNames) -> Result<usize> {
        let depth = self.view.store_depth(path);
        depth.ok_or_else(|| refused(libc::EPERM, "no store: nothing can be made here"))
    }

    /// Refuses to change anything in a store that is only read. `depth`: how many names of the path lead to the store.
    pub(super) fn check_writable(&self, path: &PathNames, depth: usize) -> Result<()> {
        let store = self.directory(path.get(..depth).unwrap_or_default())?;
        // What cannot be opened says so when it is read.
        let format = store.and_then(|store| self.format(Some(&*store)).ok());
        format.map_or(Ok(()), |format| format.check_writable())
    }

    /// Returns where an object is in the file of a layer, and the path of its directory in the mount.
    pub(super) fn place(&self, object: &str) -> Result<(ObjectKey, Vec<Vec<u8>>)> {
        let names: Vec<&str> = object.split('/').collect();
        let mut shown = self.view.shown(object);
        let depth = self.store_depth(&shown)?;
        let inside = names.get(depth..).unwrap_or_default();
        shown.pop();
        Ok((ObjectKey::of_path(&inside.join("/"))?, shown))
    }

    /// Checks that the mount shows what is called by the names of a path inside a store, the last with `suffix`.
    pub(super) fn check_names(&self, names: &PathNames, suffix: &str) -> Result<()> {
        let sep = self.context.options.sep;
        for (at, name) in names.iter().enumerate() {
            let suffix = if at + 1 == names.len() { suffix } else { "" };
            let as_shown = visible_with(&name::own(name, sep), suffix, sep);
            target::check_name(name, suffix, as_shown)?;
        }
        Ok(())
    }
}

/// Returns the directory of this name in another.
fn below(dir: &dyn Directory, name: &[u8]) -> Result<Option<Arc<dyn Directory>>> {
    Ok(match dir.lookup(name)? {
        Some(Node::Directory(below)) => Some(below),
        _ => None,
    })
}

/// Splits the suffix off that is stored.
pub(super) fn split_suffix(name: &[u8]) -> Option<(&[u8], &'static str)> {
    let suffix = [".npy", ".npz"].into_iter();
    let mut split = suffix.filter_map(|s| Some((name.strip_suffix(s.as_bytes())?, s)));
    split.find(|(stem, _)| !stem.is_empty())
}
