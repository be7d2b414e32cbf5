//! All formats that a program knows.

use std::path::Path;
use std::sync::Arc;

use super::{FileSet, Format, Staged};
use crate::dataset::opened::OpenStore;
use crate::tree::Directory;
use npyfs_base::error::{Error, Result};
use npyfs_hdf5::Holders;

/// All formats, in the order in which they are asked.
#[derive(Clone)]
pub struct Registry(Arc<[Arc<dyn Format>]>);

impl Registry {
    /// Makes a registry of some formats; `last` takes every HDF5 file that no other takes.
    pub fn new(formats: impl IntoIterator<Item = Arc<dyn Format>>, last: Arc<dyn Format>) -> Self {
        Self(formats.into_iter().chain([last]).collect())
    }

    /// Adds a format that is asked before all others.
    pub fn with(&self, format: Arc<dyn Format>) -> Self {
        Self(
            std::iter::once(format)
                .chain(self.0.iter().cloned())
                .collect(),
        )
    }

    /// Returns all formats in their order.
    pub fn iter(&self) -> impl DoubleEndedIterator<Item = &Arc<dyn Format>> {
        self.0.iter()
    }

    /// Returns the formats of which new stores are made, in their order.
    pub fn creatable(&self) -> impl DoubleEndedIterator<Item = &Arc<dyn Format>> {
        self.iter().filter(|format| format.is_made())
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
    pub fn format_of(&self, dir: &dyn Directory) -> Result<&Arc<dyn Format>> {
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
        self.iter().any(|format| format.objects().is_axis(name))
    }

    /// Returns the axes that objects of this own name lie along in stores of any format.
    pub fn along(&self, name: &str) -> Vec<String> {
        let along = self.iter().map(|format| format.objects().along(name));
        along.flatten().collect()
    }

    /// Returns the own names of the datasets whose attributes are objects in stores of any format.
    pub fn attribute_holders(&self) -> impl Iterator<Item = &'static str> {
        self.iter()
            .filter_map(|format| format.objects().attribute_holder())
    }

    /// Returns the names of the attributes of groups that list members in stores of any format.
    pub fn member_lists(&self) -> impl Iterator<Item = &'static str> {
        self.iter()
            .filter_map(|format| format.objects().member_list())
    }

    /// Returns what attributes mean in stores of any format.
    pub fn holders(&self) -> Holders {
        let bytes = |name: &str| name.as_bytes().to_vec();
        Holders {
            datasets: self.attribute_holders().map(bytes).collect(),
            lists: self.member_lists().map(bytes).collect(),
        }
    }

    /// Returns the format of an empty store with a name: the one that `kind` leaves, or else the one that it ends in;
    /// `None`: stores have no such names.
    pub fn begun_as(&self, kind: Option<&str>, name: &[u8]) -> Option<&Arc<dyn Format>> {
        let ends = |ending: &&str| {
            let stem = name.strip_suffix(ending.as_bytes());
            stem.is_some_and(|stem| !stem.is_empty())
        };
        let begins = |format: &&Arc<dyn Format>| format.endings().iter().any(ends);
        let meant = self.iter().find(begins)?;
        Some(kind.map_or(meant, |kind| self.named(kind)))
    }

    /// Returns the endings of names by which directories begin stores, as people read them.
    pub fn endings(&self) -> String {
        let endings = self.iter().rev().flat_map(|format| format.endings());
        endings.copied().collect::<Vec<_>>().join(", ")
    }

    /// Returns true if a real directory is a store as a whole.
    pub fn is_store(&self, dir: &Path) -> bool {
        let mut directories = self.iter().filter_map(|format| format.directories());
        directories.any(|directories| directories.is_store(dir))
    }

    /// Returns the staged stores that the store at a path is one of; `None`: the store has no staging area.
    pub fn staged(&self, store: &Path) -> Option<&dyn Staged> {
        let mut staged = self.iter().filter_map(|format| format.staged());
        staged.find(|staged| staged.is_store(store))
    }

    /// Returns what people call stores that have a staging area.
    pub fn staged_names(&self) -> String {
        let staged = self.iter().filter_map(|format| format.staged());
        let names: Vec<_> = staged.map(|staged| staged.noun()).collect();
        names.join(" or ")
    }

    /// Returns the set that a file would be part of by its name, for the first of the formats that `kind` leaves whose
    /// files are called so.
    pub fn set_of(&self, kind: Option<&str>, dir: &Path, file: &[u8]) -> Option<FileSet> {
        let mut sets = self.wanted(kind).filter_map(|format| format.sets());
        sets.find_map(|sets| sets.part_names().with_part(dir, file))
    }

    /// Returns the sets in a directory that may be shown by a name.
    pub fn sets_shown_as<'a>(
        &'a self,
        kind: Option<&'a str>,
        dir: &'a Path,
        name: &'a [u8],
    ) -> impl Iterator<Item = FileSet> + 'a {
        let sets = self.wanted(kind).filter_map(|format| format.sets());
        sets.flat_map(move |sets| sets.part_names().shown_as(dir, name))
    }
}
