//! Arkouda as a format: an HDF5 file, or one file per locale.

use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};

use serde_json::{Value as Json, json};

use super::directory::ObjectDirectory;
use super::divide::{divide, stored_as};
use super::kind::ArkoudaKind;
use super::marks::is_mark;
use super::object::stem;
use super::recognition::is_arkouda;
use super::set::{LocaleSet, PARTS};
use super::{NAME, check, demo, encode, table};
use crate::dataset::context::Context;
use crate::dataset::opened::OpenStore;
use crate::store::base::Base;
use crate::store::encode::{ObjectKey, Plan};
use crate::store::extent::Extent;
use crate::store::extent::shape;
use crate::store::format::{
    Abilities, Division, FileSet, Format, Inspection, Objects, PartNames, Parts, Rules, Sets,
    Source, StoreRoot, Tables, Versions, Writing,
};
use crate::store::object::NewFile;
use crate::store::part::Part;
use crate::store::table::Found;
use crate::store::target::Deletion;
use crate::tree::Directory;
use crate::tree::Node;
use npyfs_base::error::{Error, Result};
use npyfs_io::file::Ownership;

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

    fn demonstrate(&self, dir: &Path, _program: Option<&Path>) -> Result<Vec<(PathBuf, bool)>> {
        demo::write(dir)
    }

    fn abilities(&self) -> Abilities<'_> {
        Abilities {
            objects: self,
            tables: self,
            rules: self,
            source: self,
            writing: Some(self),
            sets: Some(self),
            ..Abilities::default()
        }
    }
}

impl Tables for Arkouda {
    fn table(&self, dir: &Arc<dyn Directory>, sep: u8) -> Result<Option<Found>> {
        table::of(dir, sep)
    }

    fn looks_into(&self, _own: &[u8], dir: &dyn Directory) -> Result<bool> {
        table::is_looked_into(dir)
    }
}

impl Objects for Arkouda {
    fn has_groups(&self) -> bool {
        true
    }

    fn is_composite(&self, _name: &str) -> bool {
        true
    }

    fn has_composites(&self) -> bool {
        true
    }

    fn extent(&self, dir: &dyn Directory, shown: &[u8]) -> Result<Option<Extent>> {
        extent(dir, shown)
    }
}

impl Rules for Arkouda {
    fn broken(&self, dir: &dyn Directory, inspection: &Inspection<'_>) -> Result<Vec<String>> {
        check::broken(dir, inspection)
    }

    fn needs_common_filters(&self) -> bool {
        true
    }
}

impl Source for Arkouda {
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
}

impl Writing for Arkouda {
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
}

impl Sets for Arkouda {
    fn part_names(&self) -> PartNames {
        PARTS
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

    fn set_root(&self, set: FileSet, top: &Path, context: &Arc<Context>) -> StoreRoot {
        StoreRoot::of(SetVersions::new(set, top, context))
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
        let file = |(number, part): (usize, &Json)| {
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
    ) -> Result<Division> {
        divide(files, path, parts)
    }

    fn stored_as(&self, files: &[Arc<OpenStore>], path: &[Vec<u8>]) -> Result<Vec<Vec<Vec<u8>>>> {
        stored_as(files, path)
    }

    fn is_part(&self, files: &[Arc<OpenStore>], path: &[Vec<u8>]) -> Result<bool> {
        let Some((stem, above)) = path
            .split_last()
            .and_then(|(name, above)| Some((stem(name)?.to_vec(), above)))
        else {
            return Ok(false);
        };
        let parts = stored_as(files, &[above, &[stem]].concat())?;
        Ok(parts.iter().any(|part| part == path))
    }
}

/// A distributed set, independent of its present files.
struct SetVersions {
    set: FileSet,
    /// The mounted directory; parts outside of it are not read.
    top: PathBuf,
    context: Arc<Context>,
    /// The first file of the last opened version.
    first: Mutex<Option<PathBuf>>,
}

impl SetVersions {
    fn new(set: FileSet, top: &Path, context: &Arc<Context>) -> Self {
        Self {
            set,
            top: top.to_owned(),
            context: context.clone(),
            first: Mutex::default(),
        }
    }
}

impl Versions for SetVersions {
    fn open(&self) -> Result<Arc<dyn Directory>> {
        let known = |first| *self.first.lock().unwrap_or_else(|e| e.into_inner()) = first;
        known(None);
        let set = LocaleSet::open(&self.context, &self.set, &self.top)?;
        known(set.parts.first().map(|part| part.store.file.path.clone()));
        Ok(Arc::new(ObjectDirectory::root(Arc::new(set))?))
    }

    fn ownership(&self) -> Ownership {
        // As for a set, but without opening its files.
        self.set.ownership(&self.top, self.context.options.external)
    }

    fn are_there(&self) -> bool {
        let first = self.first.lock().unwrap_or_else(|e| e.into_inner()).clone();
        if first.is_some_and(|path| path.is_file()) {
            return true;
        }
        self.set
            .parts(&self.top, self.context.options.external)
            .is_ok_and(|parts| !parts.is_empty())
    }

    fn describe(&self) -> Json {
        json!({ "kind": NAME, "file": self.set.pattern().to_string_lossy() })
    }
}

/// Members that say how many elements an object has, the first that is there.
const COUNTED: [&str; 6] = ["Index", "KEY_0", "IDX_0", "codes", "segments", "Limb_0"];

/// Members within members that are looked into, at most: a key of a GroupBy may be a Categorical.
const DEEPEST: usize = 3;

/// Returns that of the object which a directory shows by a name (without suffix); `None` if there is none, or it has no
/// dimensions, as a group.
fn extent(dir: &dyn Directory, shown: &[u8]) -> Result<Option<Extent>> {
    let Some(Node::Directory(object)) = dir.lookup(shown)? else {
        return Extent::of_array(dir, shown);
    };
    let info = object.info()?;
    let kind = match info["type"].as_str().and_then(ArkoudaKind::named) {
        None | Some(ArkoudaKind::Group) => return Extent::of_array(dir, shown),
        Some(kind) => kind.name().to_owned(),
    };
    let count = match count(&object, DEEPEST)? {
        Some(count) => Some(count),
        None => shape(dir, shown)?.and_then(|shape| shape.first().copied()),
    };
    let shape = count.into_iter().collect();
    Ok(Some(Extent { kind, shape }))
}

/// Returns how many elements an object has whose members a directory shows.
fn count(object: &Arc<dyn Directory>, deepest: usize) -> Result<Option<u64>> {
    for name in COUNTED {
        if let Some(shape) = shape(&**object, name.as_bytes())? {
            return Ok(shape.first().copied());
        }
        if let Some(Node::Directory(below)) = object.lookup(name.as_bytes())?
            && deepest > 0
        {
            return count(&below, deepest - 1);
        }
    }
    Ok(None)
}
