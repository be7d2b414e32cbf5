//! Arkouda as a format: an HDF5 file, or one file per locale.

use std::collections::BTreeSet;
use std::sync::Arc;

use super::extent::extent;
use super::{LocaleSet, ObjectDirectory, PartName, check, encode, is_arkouda};
use crate::checkout::encode::{Base, Key, Plan};
use crate::checkout::extent::Extent;
use crate::checkout::format::{Depth, Format};
use crate::checkout::object::NewFile;
use crate::checkout::target::{Deletion, Part};
use crate::dataset::opened::OpenStore;
use crate::error::Result;
use crate::tree::Directory;
use crate::tree::name::visible_with;

/// Name of the format.
pub const NAME: &str = "arkouda";

/// Arkouda's files.
pub struct Arkouda;

impl Format for Arkouda {
    fn name(&self) -> &'static str {
        NAME
    }

    fn root(&self, store: &Arc<OpenStore>) -> Result<Option<Arc<dyn Directory>>> {
        if !is_arkouda(store)? {
            return Ok(None);
        }
        let set = Arc::new(LocaleSet::single(store.clone()));
        Ok(Some(Arc::new(ObjectDirectory::root(set)?)))
    }

    fn set_name(&self, file: &[u8]) -> Option<Vec<u8>> {
        let part = PartName::parse(file)?;
        Some([part.prefix, b"_LOCALE", part.extension].concat())
    }

    fn has_groups(&self) -> bool {
        true
    }

    fn is_composite(&self, _name: &str) -> bool {
        true
    }

    fn has_composites(&self) -> bool {
        true
    }

    fn plan(&self, base: &dyn Base, key: &Key, parts: &[Part]) -> Result<Plan> {
        encode::plan(base, key, parts)
    }

    fn deletion(&self, base: &dyn Base, key: &Key, member: &str) -> Result<Deletion> {
        encode::deletion(base, key, member)
    }

    fn mark_file(&self, new: &mut NewFile) {
        encode::mark_file(new);
    }

    fn shows_as_stored(&self, new: &NewFile) -> bool {
        encode::is_flat_pdarray(new)
    }

    fn extent(&self, dir: &dyn Directory, shown: &[u8]) -> Result<Option<Extent>> {
        extent(dir, shown)
    }

    fn broken(
        &self,
        dir: &dyn Directory,
        sep: u8,
        changed: Option<&BTreeSet<String>>,
        depth: Depth,
    ) -> Result<Vec<String>> {
        let Some(names) = changed else {
            return check::broken(dir, sep, depth);
        };
        let shown = |own: &String| visible_with(own.as_bytes(), "", sep);
        check::broken_of(dir, sep, &names.iter().map(shown).collect(), depth)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_files_of_a_set_have_one_name() {
        let whole = |name: &[u8]| Arkouda.set_name(name);
        assert_eq!(whole(b"x_LOCALE0003.h5").unwrap(), b"x_LOCALE.h5");
        assert_eq!(whole(b"x.h5"), None);
    }
}
