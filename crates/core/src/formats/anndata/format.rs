//! AnnData as a format: groups of an HDF5 file, by what they say of themselves.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use super::marks::{COLUMNS, Marks};
use super::slot::{check_name, is_object};
use super::{Groups, check, demo, encode, table};
use crate::dataset::opened::OpenStore;
use crate::formats::demo::write_file;
use crate::formats::plain::group::GroupDirectory;
use crate::store::attribute;
use crate::store::base::{Base, unsupported};
use crate::store::encode::array::NpyArray;
use crate::store::encode::{ObjectKey, Plan};
use crate::store::format::{
    Abilities, Format, Inspection, Objects, Rules, Source, Tables, Writing,
};
use crate::store::new_store::NewAxis;
use crate::store::object::NewFile;
use crate::store::part::Part;
use crate::store::table::Found;
use crate::store::target::Deletion;
use crate::tree::{Directory, Node};
use npyfs_base::error::Result;
use npyfs_hdf5::NewAttribute;

/// Name of the format.
pub const NAME: &str = "anndata";

/// AnnData and MuData.
pub struct AnnData;

impl Format for AnnData {
    fn name(&self) -> &'static str {
        NAME
    }

    fn root(&self, store: &Arc<OpenStore>) -> Result<Option<Arc<dyn Directory>>> {
        // Any group may be AnnData: plain HDF5 looks at each.
        Ok(GroupDirectory::root_of_kind(store, NAME, &[&Groups]))
    }

    fn demonstrate(&self, dir: &Path, _program: Option<&Path>) -> Result<Vec<(PathBuf, bool)>> {
        Ok(vec![write_file(dir.join("cells.h5ad"), demo::fill)?])
    }

    fn abilities(&self) -> Abilities<'_> {
        Abilities {
            objects: self,
            tables: self,
            rules: self,
            source: self,
            writing: Some(self),
            ..Abilities::default()
        }
    }
}

impl Objects for AnnData {
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

    fn member_list(&self) -> Option<&'static str> {
        Some(COLUMNS)
    }
}

impl Tables for AnnData {
    fn table(&self, dir: &Arc<dyn Directory>, sep: u8) -> Result<Option<Found>> {
        table::of(dir, sep)
    }

    fn looks_into(&self, _own: &[u8], dir: &dyn Directory) -> Result<bool> {
        let attributes = dir.attributes()?;
        let marks = Marks(&attributes);
        let is_part = marks.is_categorical() || marks.sparse_order().is_some();
        Ok(!is_part && !dir.is_object())
    }
}

impl Rules for AnnData {
    fn broken(&self, dir: &dyn Directory, inspection: &Inspection<'_>) -> Result<Vec<String>> {
        check::broken(dir, inspection)
    }

    fn reaches_up(&self, dir: &dyn Directory, inspection: &Inspection<'_>) -> Result<bool> {
        check::names_rows(dir, inspection)
    }

    fn refuses_attribute(&self, name: &str) -> Option<String> {
        /// The attributes by which AnnData describes tables, columns and matrices.
        const OWN: [&str; 5] = ["_index", "column-order", "ordered", "shape", "categories"];
        let is_own = OWN.contains(&name);
        attribute::refused(name)
            .or_else(|| is_own.then(|| format!("the attribute {name:?} belongs to AnnData")))
    }
}

impl Source for AnnData {
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
}

impl Writing for AnnData {
    fn plan(&self, base: &dyn Base, key: &ObjectKey, parts: &[Part]) -> Result<Plan> {
        encode::plan(base, key, parts)
    }

    fn deletion(&self, base: &dyn Base, key: &ObjectKey, _member: &str) -> Result<Deletion> {
        encode::deletion(base, key)
    }

    fn exported(
        &self,
        dir: &dyn Directory,
        key: &ObjectKey,
        array: &NpyArray,
    ) -> Result<Option<NewFile>> {
        encode::exported(dir, key, array)
    }

    fn mark_file(&self, new: &mut NewFile) {
        encode::mark_file(new);
    }

    fn check_directory(&self, base: &dyn Base, key: &ObjectKey) -> Result<()> {
        check_name(base, key.path())
    }

    fn group_marks(&self) -> Vec<NewAttribute> {
        encode::encoding("dict", "0.1.0")
    }

    fn is_made(&self) -> bool {
        false
    }

    fn begin(&self, _base: &dyn Base, _axes: &[NewAxis]) -> Result<NewFile> {
        Err(unsupported(
            "an empty AnnData has no use: write one with anndata",
        ))
    }
}
