//! daf as a format: groups of an HDF5 file, by their mark.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use super::rules::{self, MARK, Meaning, meaning};
use super::{Groups, check, demo, encode};
use crate::checkout::encode::{Base, ObjectKey, Plan, invalid};
use crate::checkout::format::{Depth, Format};
use crate::checkout::new_store::NewStore;
use crate::checkout::object::NewFile;
use crate::checkout::target::Part;
use crate::dataset::opened::OpenStore;
use crate::error::Result;
use crate::formats::demo::write_file;
use crate::formats::plain::group::GroupDirectory;
use crate::tree::Directory;

/// Name of the format.
pub const NAME: &str = "daf";

/// daf stores.
pub struct Daf;

impl Format for Daf {
    fn name(&self) -> &'static str {
        NAME
    }

    fn root(&self, store: &Arc<OpenStore>) -> Result<Option<Arc<dyn Directory>>> {
        // Any group may be a store: that of plain HDF5 looks for the mark of each.
        let is_wanted = store.context.options.kind.as_deref() == Some(NAME);
        Ok(is_wanted.then(|| Arc::new(GroupDirectory::root(store.clone(), &[&Groups])) as _))
    }

    fn is_composite(&self, name: &str) -> bool {
        rules::is_matrix(name)
    }

    fn has_composites(&self) -> bool {
        true
    }

    fn has_axes(&self) -> bool {
        true
    }

    fn shows_as_stored(&self, _new: &NewFile) -> bool {
        true
    }

    fn is_axis(&self, name: &str) -> bool {
        meaning(name) == Meaning::Axis
    }

    fn along(&self, name: &str) -> Vec<String> {
        rules::along(name)
    }

    fn refuses_links(&self) -> Option<&'static str> {
        Some("daf maps the arrays of the one file that it opens, and follows no links into others")
    }

    fn attribute_holder(&self) -> Option<&'static str> {
        Some(MARK)
    }

    fn needs_common_filters(&self) -> bool {
        true
    }

    fn plan(&self, base: &dyn Base, key: &ObjectKey, parts: &[Part]) -> Result<Plan> {
        encode::plan(base, key, parts)
    }

    fn broken(
        &self,
        dir: &dyn Directory,
        sep: u8,
        changed: Option<&BTreeSet<String>>,
        depth: Depth,
    ) -> Result<Vec<String>> {
        match changed {
            None => check::broken(dir, sep, &|_| true, depth),
            // What concerns no axis breaks no rule.
            Some(names) if !names.iter().any(|name| name.contains('#')) => Ok(Vec::new()),
            Some(names) => check::broken(dir, sep, &|own| names.contains(own), depth),
        }
    }

    fn create(&self, new: &NewStore) -> Result<()> {
        new.without_author()?;
        new.write_file(|base| encode::begin(base, &new.axes))
    }

    fn begin(&self, base: &dyn Base) -> Result<NewFile> {
        encode::begin(base, &[])
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

    fn check_group(&self, _path: &ObjectKey) -> Result<()> {
        Err(invalid("daf has no groups"))
    }

    fn repeats(&self, _dir: &dyn Directory, shown: &[u8], _stacked: bool) -> Result<bool> {
        // The archive of a sparse matrix.
        Ok(shown.ends_with(b".npz"))
    }

    fn is_mark(&self, attribute: &[u8]) -> bool {
        attribute == b"shape"
    }

    fn demonstrate(&self, dir: &Path, _program: Option<&Path>) -> Result<Vec<(PathBuf, bool)>> {
        Ok(vec![write_file(dir.join("cells.h5df"), demo::fill)?])
    }
}
