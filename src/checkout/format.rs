//! A kind of store, as all that is not of that kind knows it: one trait, and the registry of all kinds.
//!
//! A format is asked in the order of the registry; the last one takes every HDF5 file. What a method does not say is
//! what plain HDF5 does.

use std::collections::BTreeSet;
use std::path::Path;
use std::sync::Arc;

use super::checkouts::Checkouts;
use super::encode::{Base, Key, Plan};
use super::object::NewFile;
use super::target::{Deletion, Part, Target};
use crate::checkout::extent::Extent;
use crate::dataset::context::Context;
use crate::dataset::opened::OpenStore;
use crate::error::{Error, Result};
use crate::tree::Directory;

mod root;

pub use root::StoreRoot;

/// How closely a store is looked at.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Depth {
    /// Names, types and shapes, and what opening finds out.
    Outline,
    /// Elements, too.
    Elements,
}

/// A kind of store. Own names are names in the store's file, without escapes and suffixes.
pub trait Format: Send + Sync {
    /// Its name: what `kind=` takes and [`Directory::format`] answers.
    fn name(&self) -> &'static str;

    /// Returns true if a real directory is a store of this format as a whole.
    fn is_store(&self, _dir: &Path) -> bool {
        false
    }

    /// Opens the store that a real directory is; `None` if it is none of this format.
    fn open(&self, _dir: &Path, _context: &Arc<Context>) -> Result<Option<Arc<dyn Directory>>> {
        Ok(None)
    }

    /// The same, but opened when somebody looks into it, for a directory that is one of many.
    fn open_later(&self, _dir: &Path, _context: &Arc<Context>) -> Option<Arc<dyn Directory>> {
        None
    }

    /// Returns the root of an HDF5 file; `None` if it is none of this format.
    fn root(&self, _store: &Arc<OpenStore>) -> Result<Option<Arc<dyn Directory>>> {
        Ok(None)
    }

    /// Returns what stands for all files of a set in the place of the name of one of them; `None` if it is no such name.
    fn set_name(&self, _file: &[u8]) -> Option<Vec<u8>> {
        None
    }

    /// Returns true if new groups in its stores are of this format, too.
    fn has_groups(&self) -> bool {
        false
    }

    /// Returns true if a directory of this own name holds the members of one object.
    fn is_composite(&self, _name: &str) -> bool {
        false
    }

    /// Returns true if objects may be shown as directories.
    fn has_composites(&self) -> bool {
        false
    }

    /// Returns true if objects lie along others.
    fn has_axes(&self) -> bool {
        false
    }

    /// Returns true if others may lie along an object of this own name: as long as they do it cannot go.
    fn is_axis(&self, _name: &str) -> bool {
        false
    }

    /// Returns the own names of the axes that an object of this own name lies along, each once.
    fn along(&self, _name: &str) -> Vec<String> {
        Vec::new()
    }

    /// Returns true for an object that must be there before others of its group.
    fn comes_first(&self, _name: &str) -> bool {
        false
    }

    /// Says how the object at `key` is stored that consists of `parts`: what its file holds, or which members are still
    /// missing. EINVAL for wrong content, shape or type, EOPNOTSUPP for what has no form in HDF5.
    fn plan(&self, base: &dyn Base, key: &Key, parts: &[Part]) -> Result<Plan>;

    /// Says what becomes of the object at `key` when one of its files is deleted; `member` is empty for a file that is the
    /// whole object. An error if the file may not be deleted.
    fn deletion(&self, _base: &dyn Base, _key: &Key, _member: &str) -> Result<Deletion> {
        Ok(Deletion::Object)
    }

    /// Adds what makes a file one of this format.
    fn mark_file(&self, _new: &mut NewFile) {}

    /// Returns true if a file with a single dataset is shown as it is stored, element by element.
    fn shows_as_stored(&self, _new: &NewFile) -> bool {
        false
    }

    /// Returns the kind and the dimensions of the object that a directory shows by a name (without suffix); `None` if there
    /// is none, or it has none, as a group.
    fn extent(&self, dir: &dyn Directory, shown: &[u8]) -> Result<Option<Extent>> {
        Extent::of_array(dir, shown)
    }

    /// Returns what breaks the rules of this format in a directory of a store, a line for each object. `changed`: only
    /// what changes of the objects with these own names concern.
    fn broken(
        &self,
        _dir: &dyn Directory,
        _sep: u8,
        _changed: Option<&BTreeSet<String>>,
        _depth: Depth,
    ) -> Result<Vec<String>> {
        Ok(Vec::new())
    }

    /// Opens the checkout `name` of a store that keeps its changes itself; `None` if this is none of its stores.
    fn target(
        &self,
        _base: &Arc<dyn Directory>,
        _checkouts: &Checkouts,
        _name: &str,
    ) -> Result<Option<Arc<dyn Target>>> {
        Ok(None)
    }
}

/// Says how the object at `key` is stored that consists of `parts`; errors name it.
pub fn plan(format: &dyn Format, base: &dyn Base, key: &Key, parts: &[Part]) -> Result<Plan> {
    let planned = format.plan(base, key, parts);
    planned.map_err(|e| e.about(key.name()))
}

/// Returns a file with an empty group.
pub fn group(format: &dyn Format, key: &Key) -> NewFile {
    let mut new = NewFile::default();
    new.mark(key.path(), Vec::new());
    format.mark_file(&mut new);
    new
}

/// All formats, in the order in which they are asked.
#[derive(Clone)]
pub struct Registry(Arc<[Arc<dyn Format>]>);

impl Registry {
    /// `last` takes every HDF5 file that no other takes.
    pub fn new(formats: impl IntoIterator<Item = Arc<dyn Format>>, last: Arc<dyn Format>) -> Self {
        Self(formats.into_iter().chain([last]).collect())
    }

    /// Adds a format that is asked before all others.
    #[cfg(feature = "internals")]
    pub fn with(&self, format: Arc<dyn Format>) -> Self {
        Self(
            std::iter::once(format)
                .chain(self.0.iter().cloned())
                .collect(),
        )
    }

    pub fn iter(&self) -> impl DoubleEndedIterator<Item = &Arc<dyn Format>> {
        self.0.iter()
    }

    /// The format that takes what no other takes.
    fn last(&self) -> &Arc<dyn Format> {
        // There is at least the one that `new` was given.
        &self.0[self.0.len() - 1]
    }

    /// Returns the format of this name, or else the last.
    pub fn named(&self, name: &str) -> &Arc<dyn Format> {
        let named = self.iter().find(|format| format.name() == name);
        named.unwrap_or(self.last())
    }

    /// Returns the format by whose rules a directory shows its members.
    pub fn of(&self, dir: &dyn Directory) -> Result<&Arc<dyn Format>> {
        Ok(self.named(dir.format()?))
    }

    /// Returns the names of all, the last first, as people read them.
    pub fn names(&self) -> String {
        let names: Vec<_> = self.iter().rev().map(|format| format.name()).collect();
        names.join(", ")
    }

    /// Returns the formats that `kind` leaves: all, or the one of that name.
    pub fn wanted<'a>(
        &'a self,
        kind: Option<&'a str>,
    ) -> impl Iterator<Item = &'a Arc<dyn Format>> {
        self.iter()
            .filter(move |format| kind.is_none_or(|kind| kind == format.name()))
    }

    /// Returns the root of an HDF5 file by the first format that takes it.
    ///
    /// # Errors
    ///
    /// The file is damaged, or none of the format that was asked for.
    pub fn root(&self, store: &Arc<OpenStore>) -> Result<Arc<dyn Directory>> {
        let kind = store.context.options.kind.as_deref();
        for format in self.wanted(kind) {
            if let Some(root) = format.root(store)? {
                return Ok(root);
            }
        }
        let path = store.file.path.display();
        let kind = kind.unwrap_or_default();
        Err(Error::damaged(format!(
            "{path}: kind={kind}: no file of that kind"
        )))
    }

    /// Returns true if objects of this own name are axes in stores of any format.
    pub fn is_axis(&self, name: &str) -> bool {
        self.iter().any(|format| format.is_axis(name))
    }

    /// Returns the axes that objects of this own name lie along in stores of any format.
    pub fn along(&self, name: &str) -> Vec<String> {
        self.iter().flat_map(|format| format.along(name)).collect()
    }

    /// Returns true for objects that must be there before others in stores of any format.
    pub fn comes_first(&self, name: &str) -> bool {
        self.iter().any(|format| format.comes_first(name))
    }

    /// Returns what stands for all files of a set in the place of the name of one of them.
    pub fn set_name(&self, file: &[u8]) -> Option<Vec<u8>> {
        self.iter().find_map(|format| format.set_name(file))
    }
}

#[cfg(test)]
pub mod bare {
    //! A format without rules, for tests of what is the same for all.

    use super::*;

    struct Bare;

    impl Format for Bare {
        fn name(&self) -> &'static str {
            "bare"
        }

        fn set_name(&self, file: &[u8]) -> Option<Vec<u8>> {
            let number = file.strip_prefix(b"part")?;
            number
                .iter()
                .all(u8::is_ascii_digit)
                .then(|| b"parts".to_vec())
        }

        fn plan(&self, _base: &dyn Base, _key: &Key, _parts: &[Part]) -> Result<Plan> {
            Err(Error::damaged("nothing is stored"))
        }
    }

    pub fn registry() -> Registry {
        Registry::new([], Arc::new(Bare))
    }
}
