//! Arkouda as a format: an HDF5 file, or one file per locale.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use super::divide::{divide, stored_as};
use super::extent::extent;
use super::kind::ArkoudaKind;
use super::marks::is_mark;
use super::root::SetVersions;
use super::{LocaleSet, ObjectDirectory, check, demo, encode, is_arkouda};
use crate::checkout::encode::{Base, ObjectKey, Plan};
use crate::checkout::extent::Extent;
use crate::checkout::format::{Depth, Division, FileSet, Format, PartNames, Parts, StoreRoot};
use crate::checkout::object::NewFile;
use crate::checkout::target::{Deletion, Part};
use crate::dataset::context::Context;
use crate::dataset::opened::OpenStore;
use crate::error::{Error, Result};
use crate::tree::Directory;
use crate::tree::name::visible_with;

/// Name of the format.
pub const NAME: &str = "arkouda";

/// Source: Arkouda, `src/FileIO.chpl` lines 148 to 211; old releases wrote the number without zeros in front.
pub(super) const PARTS: PartNames = PartNames {
    format: NAME,
    mark: "_LOCALE",
    digits: 4,
};

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

    fn part_names(&self) -> Option<PartNames> {
        Some(PARTS)
    }

    fn is_set(&self, set: &FileSet, top: &Path, context: &Arc<Context>) -> Result<bool> {
        // The first file that can be opened tells.
        let parts = set.parts(top, context.options.external)?;
        for path in parts.into_values().flatten().flatten() {
            match OpenStore::open_part(context, &path) {
                Ok(store) => return is_arkouda(&store),
                Err(e) if e.is_passing() => return Err(e),
                Err(_) => {}
            }
        }
        Ok(false)
    }

    fn set_root(&self, set: FileSet, top: &Path, context: &Arc<Context>) -> Option<StoreRoot> {
        Some(StoreRoot::of(SetVersions::new(set, top, context)))
    }

    fn files(&self, dir: &dyn Directory, path: &Path) -> Result<Vec<PathBuf>> {
        let info = dir.info()?;
        let parts = match info["locales"].as_array() {
            Some(parts) if parts.len() > 1 || !path.is_file() => parts,
            _ => return Ok(vec![path.to_owned()]),
        };
        let incomplete = || {
            let why = "the files of the set are not complete, or two are the same part";
            Error::damaged(why).about(path.display())
        };
        let file = |(number, part): (usize, &serde_json::Value)| {
            let file = part["file"].as_str().map(PathBuf::from);
            file.filter(|_| part["locale"].as_u64() == Some(number as u64))
        };
        let files: Option<Vec<_>> = parts.iter().enumerate().map(file).collect();
        files.ok_or_else(incomplete)
    }

    fn divided(
        &self,
        files: &[Arc<OpenStore>],
        path: &[Vec<u8>],
        parts: Parts,
    ) -> Option<Result<Division>> {
        Some(divide(files, path, parts))
    }

    fn stored_as(&self, files: &[Arc<OpenStore>], path: &[Vec<u8>]) -> Result<Vec<Vec<Vec<u8>>>> {
        stored_as(files, path)
    }

    fn is_part(&self, files: &[Arc<OpenStore>], path: &[Vec<u8>]) -> Result<bool> {
        let Some((stem, above)) = path
            .split_last()
            .and_then(|(name, above)| Some((super::pairs::stem(name)?.to_vec(), above)))
        else {
            return Ok(false);
        };
        let parts = stored_as(files, &[above, &[stem]].concat())?;
        Ok(parts.iter().any(|part| part == path))
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

    fn needs_common_filters(&self) -> bool {
        true
    }

    fn plan(&self, base: &dyn Base, key: &ObjectKey, parts: &[Part]) -> Result<Plan> {
        encode::plan(base, key, parts)
    }

    fn deletion(&self, base: &dyn Base, key: &ObjectKey, member: &str) -> Result<Deletion> {
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

    fn lost_without(&self, members: &dyn Directory) -> Result<Option<String>> {
        let info = members.info()?;
        let kind = info["type"].as_str().and_then(ArkoudaKind::named);
        Ok(match kind {
            Some(ArkoudaKind::Strings) | None => None,
            Some(ArkoudaKind::Categorical) => Some("only the labels of a Categorical".into()),
            Some(kind) => Some(format!("only the numbers; it was {}", kind.name())),
        })
    }

    fn is_mark(&self, attribute: &[u8]) -> bool {
        is_mark(attribute)
    }

    fn demonstrate(&self, dir: &Path, _program: Option<&Path>) -> Result<Vec<(PathBuf, bool)>> {
        demo::write(dir)
    }
}
