//! Plain HDF5 as a format: it takes every file.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use super::group::GroupDirectory;
use super::kind::Kinds;
use super::{demo, encode};
use crate::checkout::encode::{Base, ObjectKey, Plan};
use crate::checkout::format::Format;
use crate::checkout::object::NewFile;
use crate::checkout::target::Part;
use crate::dataset::opened::OpenStore;
use crate::error::Result;
use crate::formats::demo::write_file;
use crate::tree::Directory;

/// Name of the format.
pub const NAME: &str = "plain";

/// Plain HDF5, with the kinds of groups that are looked for in it.
pub struct Plain(pub Kinds);

impl Format for Plain {
    fn name(&self) -> &'static str {
        NAME
    }

    fn root(&self, store: &Arc<OpenStore>) -> Result<Option<Arc<dyn Directory>>> {
        Ok(Some(Arc::new(GroupDirectory::root(store.clone(), self.0))))
    }

    fn plan(&self, base: &dyn Base, key: &ObjectKey, parts: &[Part]) -> Result<Plan> {
        encode::plan(base, key, parts)
    }

    fn shows_as_stored(&self, new: &NewFile) -> bool {
        new.outline.datasets.len() == 1
    }

    fn endings(&self) -> &'static [&'static str] {
        &[".h5", ".hdf5", ".h5fs"]
    }

    fn demonstrate(&self, dir: &Path, _program: Option<&Path>) -> Result<Vec<(PathBuf, bool)>> {
        Ok(vec![write_file(dir.join("plain.h5"), demo::fill)?])
    }
}
