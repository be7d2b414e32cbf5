//! daf as a format: groups of an HDF5 file, by their mark.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use super::rules::{self, MARK, Meaning, meaning};
use super::{Groups, NAME, check, demo, encode, table};
use crate::dataset::opened::OpenStore;
use crate::formats::demo::write_file;
use crate::formats::plain::group::GroupDirectory;
use crate::store::base::{Base, invalid};
use crate::store::encode::{ObjectKey, Plan};
use crate::store::format::{
    Abilities, Format, Inspection, Objects, Rules, Source, Tables, Writing,
};
use crate::store::new_store::NewAxis;
use crate::store::object::NewFile;
use crate::store::part::Part;
use crate::store::table::Found;
use crate::tree::Directory;
use npyfs_base::error::Result;

/// daf stores.
pub struct Daf;

impl Format for Daf {
    fn name(&self) -> &'static str {
        NAME
    }

    fn root(&self, store: &Arc<OpenStore>) -> Result<Option<Arc<dyn Directory>>> {
        // Any group may be a store: plain HDF5 looks for the mark of each.
        Ok(GroupDirectory::root_of_kind(store, NAME, &[&Groups]))
    }

    fn demonstrate(&self, dir: &Path, _program: Option<&Path>) -> Result<Vec<(PathBuf, bool)>> {
        Ok(vec![write_file(dir.join("cells.h5df"), demo::fill)?])
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

impl Tables for Daf {
    fn table(&self, _dir: &Arc<dyn Directory>, _sep: u8) -> Result<Option<Found>> {
        Ok(None)
    }

    fn looks_into(&self, own: &[u8], dir: &dyn Directory) -> Result<bool> {
        let is_matrix = std::str::from_utf8(own).is_ok_and(rules::is_matrix);
        Ok(!is_matrix && !dir.is_object())
    }

    fn named(&self, dir: &Arc<dyn Directory>, sep: u8) -> Result<Vec<(String, Found)>> {
        table::of(dir, sep)
    }
}

impl Objects for Daf {
    fn is_composite(&self, name: &str) -> bool {
        rules::is_matrix(name)
    }

    fn has_composites(&self) -> bool {
        true
    }

    fn has_axes(&self) -> bool {
        true
    }

    fn is_axis(&self, name: &str) -> bool {
        meaning(name) == Meaning::Axis
    }

    fn along(&self, name: &str) -> Vec<String> {
        rules::along(name)
    }

    fn attribute_holder(&self) -> Option<&'static str> {
        Some(MARK)
    }
}

impl Rules for Daf {
    fn broken(&self, dir: &dyn Directory, inspection: &Inspection<'_>) -> Result<Vec<String>> {
        match inspection.changed {
            // A change that concerns no axis breaks no rule.
            Some(names) if !names.iter().any(|name| name.contains('#')) => Ok(Vec::new()),
            _ => check::broken(dir, inspection),
        }
    }

    fn needs_common_filters(&self) -> bool {
        true
    }

    fn refuses_links(&self) -> Option<&'static str> {
        Some("daf maps the arrays of the one file that it opens, and follows no links into others")
    }
}

impl Source for Daf {
    fn repeats(&self, _dir: &dyn Directory, shown: &[u8], _stacked: bool) -> Result<bool> {
        // The archive of a sparse matrix.
        Ok(shown.ends_with(b".npz"))
    }

    fn is_mark(&self, attribute: &[u8]) -> bool {
        attribute == b"shape"
    }
}

impl Writing for Daf {
    fn plan(&self, base: &dyn Base, key: &ObjectKey, parts: &[Part]) -> Result<Plan> {
        encode::plan(base, key, parts)
    }

    fn shows_as_stored(&self, _new: &NewFile) -> bool {
        true
    }

    fn check_group(&self, _path: &ObjectKey) -> Result<()> {
        Err(invalid("daf has no groups"))
    }

    fn begin(&self, base: &dyn Base, axes: &[NewAxis]) -> Result<NewFile> {
        encode::begin(base, axes)
    }

    fn begins_in(&self, file: &[u8], name: &str) -> bool {
        file.ends_with(b".h5fs") && matches!(meaning(name), Meaning::Axis | Meaning::Property(_))
    }

    fn begin_group(&self, key: &ObjectKey) -> Result<NewFile> {
        Ok(encode::begin_group(key))
    }

    fn endings(&self) -> &'static [&'static str] {
        &[".h5df"]
    }
}
