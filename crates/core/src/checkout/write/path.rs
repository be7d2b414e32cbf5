//! Paths of a mount: their store and format, and the object at them.

use std::sync::Arc;

use super::{LayerTarget, refused};
use crate::store::encode::ObjectKey;
use crate::store::format::{Format, Writing};
use crate::store::target::{self, PathNames};
use crate::tree::Directory;
use crate::tree::name::{self, visible_with};
use npyfs_base::error::Result;

impl LayerTarget {
    /// Returns the directory at a path of the mount; `None` if it does not exist.
    pub(super) fn directory(&self, path: &PathNames) -> Result<Option<Arc<dyn Directory>>> {
        self.view.directory(path)
    }

    /// Returns the format for files in a directory; `None` stands for a directory that does not exist yet.
    pub(super) fn format(&self, dir: Option<&dyn Directory>) -> Result<&Arc<dyn Format>> {
        let name = dir.map_or(Ok(""), Directory::format)?;
        Ok(self.view.formats().named(name))
    }

    /// Returns the format for an object of this name in a directory at this path: that of the directory, or the one
    /// that the object begins there.
    pub(super) fn format_for(
        &self,
        dir: Option<&dyn Directory>,
        path: &PathNames,
        name: &str,
    ) -> Result<&Arc<dyn Format>> {
        let (format, formats) = (self.format(dir)?, self.view.formats());
        let lies = formats.is_axis(name) || !formats.along(name).is_empty();
        // Only a plain group that was created in this checkout can become a store of a format.
        if !lies || format.name() != formats.named("").name() {
            return Ok(format);
        }
        let depth = match self.view.store_depth(path) {
            Some(depth) if depth < path.len() => depth,
            _ => return Ok(format),
        };
        let file = path[..depth].last().unwrap_or(&self.store);
        let mut others = formats.iter();
        let begins = |writing: &dyn Writing| writing.begins_in(file, name);
        match others.find(|format| format.writing().is_some_and(begins)) {
            Some(begun) if self.layer().has(&self.view.key(path)?) => Ok(begun),
            _ => Ok(format),
        }
    }

    /// Returns how many names of a path lead to the directory of parts that contains it, or that it is; `None` if the
    /// object at the path is a single file, or a group. `suffix` is that of a file at this path.
    pub(super) fn composite(
        &self,
        depth: usize,
        path: &PathNames,
        suffix: &str,
    ) -> Result<Option<usize>> {
        let format = |dir: Option<&dyn Directory>, above: &PathNames, name: &str| {
            self.format_for(dir, above, name).cloned()
        };
        self.view.composite(depth, path, suffix, &format)
    }

    /// Returns the number of names that lead to the store of a directory.
    pub(super) fn store_depth(&self, path: &PathNames) -> Result<usize> {
        let depth = self.view.store_depth(path);
        depth.ok_or_else(|| refused(libc::EPERM, "no store: nothing can be made here"))
    }

    /// Refuses changes in a read-only store. `depth` is the number of names that lead to the store.
    pub(super) fn check_writable(&self, path: &PathNames, depth: usize) -> Result<()> {
        let store = self.directory(path.get(..depth).unwrap_or_default())?;
        // A store that cannot be opened reports its error when it is read.
        let format = store.and_then(|store| self.format(Some(&*store)).ok());
        format.map_or(Ok(()), |format| format.writable().map(drop))
    }

    /// Returns the location of an object in a layer's file, and the path of its directory in the mount.
    pub(super) fn place(&self, object: &str) -> Result<(ObjectKey, Vec<Vec<u8>>)> {
        let names: Vec<&str> = object.split('/').collect();
        let mut shown = self.view.shown(object);
        let depth = self.store_depth(&shown)?;
        let inside = names.get(depth..).unwrap_or_default();
        shown.pop();
        Ok((ObjectKey::of_path(&inside.join("/"))?, shown))
    }

    /// Checks that the mount would show the names of a path inside a store, the last one with `suffix`.
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

/// Splits off the suffix of a stored file.
pub(super) fn split_suffix(name: &[u8]) -> Option<(&[u8], &'static str)> {
    let suffix = [".npy", ".npz"].into_iter();
    let mut split = suffix.filter_map(|s| Some((name.strip_suffix(s.as_bytes())?, s)));
    split.find(|(stem, _)| !stem.is_empty())
}
