//! AnnData as a format: groups of an HDF5 file, by what they say of themselves.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use super::marks::{COLUMNS, Marks};
use super::place::is_object;
use super::{Groups, check, demo, encode};
use crate::checkout::encode::{Base, ObjectKey, Plan, unsupported};
use crate::checkout::format::{Depth, Format};
use crate::checkout::object::NewFile;
use crate::checkout::target::{Deletion, Part};
use crate::dataset::opened::OpenStore;
use crate::error::Result;
use crate::formats::demo::write_file;
use crate::formats::plain::group::GroupDirectory;
use crate::hdf5::NewAttribute;
use crate::tree::{Directory, Node};

/// Name of the format.
pub const NAME: &str = "anndata";

/// AnnData and MuData.
pub struct AnnData;

impl Format for AnnData {
    fn name(&self) -> &'static str {
        NAME
    }

    fn root(&self, store: &Arc<OpenStore>) -> Result<Option<Arc<dyn Directory>>> {
        // Any group may be AnnData: that of plain HDF5 looks at each.
        let is_wanted = store.context.options.kind.as_deref() == Some(NAME);
        Ok(is_wanted.then(|| Arc::new(GroupDirectory::root(store.clone(), &[&Groups])) as _))
    }

    fn has_composites(&self) -> bool {
        true
    }

    fn is_object_at(
        &self,
        path: &[String],
        suffix: &str,
        there: Option<&dyn Directory>,
    ) -> Result<bool> {
        let attributes = there.map(|dir| dir.attributes()).transpose()?;
        Ok(is_object(path, suffix, attributes.as_deref()))
    }

    fn group_marks(&self) -> Vec<NewAttribute> {
        encode::encoding("dict", "0.1.0")
    }

    fn member_list(&self) -> Option<&'static str> {
        Some(COLUMNS)
    }

    fn plan(&self, base: &dyn Base, key: &ObjectKey, parts: &[Part]) -> Result<Plan> {
        encode::plan(base, key, parts)
    }

    fn deletion(&self, base: &dyn Base, key: &ObjectKey, _member: &str) -> Result<Deletion> {
        encode::deletion(base, key)
    }

    fn mark_file(&self, new: &mut NewFile) {
        encode::mark_file(new);
    }

    fn broken(
        &self,
        dir: &dyn Directory,
        sep: u8,
        changed: Option<&BTreeSet<String>>,
        depth: Depth,
    ) -> Result<Vec<String>> {
        let concerned = |own: &str| changed.is_none_or(|names| names.contains(own));
        check::broken(dir, sep, &concerned, depth)
    }

    fn is_made(&self) -> bool {
        false
    }

    fn begin(&self, _base: &dyn Base) -> Result<NewFile> {
        Err(unsupported(
            "an empty AnnData has no use: write one with anndata",
        ))
    }

    fn repeats(&self, dir: &dyn Directory, shown: &[u8], _stacked: bool) -> Result<bool> {
        // The archive of a sparse matrix, beside its directory.
        let Some(stem) = shown.strip_suffix(b".npz") else {
            return Ok(false);
        };
        Ok(matches!(dir.lookup(stem)?, Some(Node::Directory(_))))
    }

    fn lost_without(&self, members: &dyn Directory) -> Result<Option<String>> {
        let attributes = members.attributes()?;
        Ok(Marks(&attributes)
            .is_categorical()
            .then(|| "only the labels of a categorical".into()))
    }

    fn is_mark(&self, attribute: &[u8]) -> bool {
        super::marks::is_mark(attribute)
    }

    fn demonstrate(&self, dir: &Path, _program: Option<&Path>) -> Result<Vec<(PathBuf, bool)>> {
        Ok(vec![write_file(dir.join("cells.h5ad"), demo::fill)?])
    }
}
