//! AnnData as a format: groups of an HDF5 file, by what they say of themselves.

use std::sync::Arc;

use super::Groups;
use super::marks::Marks;
use crate::checkout::encode::{Base, ObjectKey, Plan};
use crate::checkout::format::Format;
use crate::checkout::target::Part;
use crate::dataset::opened::OpenStore;
use crate::error::Result;
use crate::formats::plain::encode;
use crate::formats::plain::group::GroupDirectory;
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

    fn plan(&self, base: &dyn Base, key: &ObjectKey, parts: &[Part]) -> Result<Plan> {
        encode::plan(base, key, parts)
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
}
