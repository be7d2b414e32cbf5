//! Arkouda's objects: an HDF5 file, or one file per locale, shown as arrays.
//!
//! One object has one name: its datasets are joined over the files, its text is shown at a fixed width, its attributes
//! determine the meaning of numbers. Nothing is assembled in memory: a joined array is read from the chunks of the
//! parts. An error in one object affects that object only.
//!
//! A file is Arkouda's if one of these holds, checked in this order, unless its root group has a `__daf__` (a daf
//! store):
//!
//! 1. the root group has an integer attribute `File_Format` (file version 2.0);
//! 2. a member of the root group has an integer attribute `ObjType` (the first 256 by name are examined);
//! 3. the root group has a group `_arkouda_metadata` with an attribute `arkouda_version` (file version 1.0);
//! 4. the file is called `..._LOCALE<number>`, and the root group holds nothing but 1-D arrays of numbers
//!    and groups of `values` (1-D, bytes) and optionally `segments` (1-D, integers) (before 1.0).
//!
//! So a group with `values` in it is not text for that reason alone.
//!
//! A `LocaleSet` is one version of the files of a set; a worker scans each file once. An object is joined from its
//! parts: `kind` determines what the object is, `directory` how it is shown. Every array is a `Content` over the
//! payloads of the parts: `numbers` are concatenated, `limbs` are interleaved, `strings` are padded, `labels` looked
//! up, `segments` rebased. The offsets of strings are never held in memory: one pass checks them and finds the longest
//! string, and each window of text is read with its own window of offsets.
//!
//! DataFrames, indexes, and groups of arrays of one length are also tables.

mod array;
pub mod check;
mod demo;
mod directory;
mod divide;
pub mod encode;
pub mod kind;
mod labels;
mod limbs;
pub mod marks;
mod numbers;
mod object;
mod segments;
mod set;
mod strings;

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use parking_lot::Mutex;
use serde_json::{Value as Json, json};

use self::directory::ObjectDirectory;
use self::divide::{divide, stored_as};
use self::kind::{ArkoudaKind, is_text};
use self::marks::{METADATA, Marks, NAMES, is_mark};
use self::object::{HdfObject, Object, is_vector, stem};
use self::set::{LocaleSet, PARTS};
use crate::dataset::context::Context;
use crate::dataset::opened::OpenStore;
use crate::formats::daf;
use crate::store::against::{Extent, shown_shape};
use crate::store::base::Base;
use crate::store::encode::{NpyArray, ObjectKey, Plan};
use crate::store::format::{
    Abilities, Division, FileSet, Format, Inspection, Objects, PartNames, Parts, Rules, Sets,
    Source, StoreRoot, Tables, Versions, Writing,
};
use crate::store::object::NewFile;
use crate::store::part::Part;
use crate::store::table::{Column, Found, Table, Values};
use crate::store::target::Deletion;
use crate::tree::name::{own_name, visible_with};
use crate::tree::{Directory, Node};
use npyfs_base::error::{Error, Result};
use npyfs_base::npy::dtype::Kind;
use npyfs_hdf5::H5Error;
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
        table(dir, sep)
    }

    fn looks_into(&self, _own: &[u8], dir: &dyn Directory) -> Result<bool> {
        is_looked_into(dir)
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
        StoreRoot::over(SetVersions::new(set, top, context))
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
        let known = |first| *self.first.lock() = first;
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
        let first = self.first.lock().clone();
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
        None => shown_shape(dir, shown)?.and_then(|shape| shape.first().copied()),
    };
    let shape = count.into_iter().collect();
    Ok(Some(Extent { kind, shape }))
}

/// Returns how many elements an object has whose members a directory shows.
fn count(object: &Arc<dyn Directory>, deepest: usize) -> Result<Option<u64>> {
    for name in COUNTED {
        if let Some(shape) = shown_shape(&**object, name.as_bytes())? {
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

/// Name of the format.
pub const NAME: &str = "arkouda";

/// The number of members of the root group that are examined.
const LOOKED_AT: usize = 256;

const NUMBERS: [Kind; 4] = [Kind::Int, Kind::Uint, Kind::Float, Kind::Bool];

/// Returns whether a file is shown in Arkouda's format.
fn is_arkouda(store: &OpenStore) -> Result<bool> {
    if let Some(kind) = &store.context.options.kind {
        return Ok(kind == NAME);
    }
    let file = &store.file;
    let scan = |depth| {
        let h5 = &store.context.h5;
        match h5.scan(file, store.root, &NAMES, (LOOKED_AT, depth), Object::new) {
            Ok(scan) => Ok(Some(scan)),
            // Listing the group reports the damage.
            Err(H5Error::Damaged(_)) => Ok(None),
            Err(e) => Err(Error::from(e)),
        }
    };
    let name = store.file.path.file_name();
    let has_locale = name.is_some_and(|name| PARTS.parse(name.as_encoded_bytes()).is_some());
    let Some(scan) = scan(usize::from(has_locale))? else {
        return Ok(false);
    };
    let members = scan.members;
    if members.iter().any(|(name, _)| name == daf::MARK) {
        return Ok(false);
    }
    if Marks::from_attributes(&scan.attributes)
        .file_format
        .is_some()
    {
        return Ok(true);
    }
    let is_whole = scan.total <= LOOKED_AT && scan.damage.is_none();
    let marked = members.iter().any(|(name, member)| {
        matches!(member.marks.object_type, Some(Ok(_)))
            || (name == METADATA && member.is_group() && member.marks.version.is_some())
    });
    let legacy = || {
        is_whole
            && !members.is_empty()
            && members.iter().all(|(_, member)| match &member.what {
                HdfObject::Dataset(dataset) => is_vector(dataset, &NUMBERS),
                HdfObject::Group { .. } => is_text(member),
                HdfObject::Foreign(_) | HdfObject::Damaged(_) => false,
            })
    };
    Ok(marked || (has_locale && legacy()))
}

/// The member of a DataFrame that comes first.
const INDEX: &str = "Index";

/// The most members of a group that are looked at.
const MOST_COLUMNS: usize = 4096;

/// Returns what a directory says that it is; `None` for a group.
fn kind_of(dir: &dyn Directory) -> Result<Option<ArkoudaKind>> {
    let marks = Marks::from_attributes(&dir.attributes()?);
    let number = marks.object_type.and_then(|number| number.ok());
    Ok(number.and_then(|number| ArkoudaKind::of_type(number, true)))
}

/// Returns whether a directory may be a table, or hold some.
fn is_looked_into(dir: &dyn Directory) -> Result<bool> {
    use ArkoudaKind::{DataFrame, Index, MultiIndex};
    Ok(matches!(
        kind_of(dir)?,
        None | Some(DataFrame | Index | MultiIndex)
    ))
}

/// Returns the table that a directory is.
fn table(dir: &Arc<dyn Directory>, sep: u8) -> Result<Option<Found>> {
    if !is_looked_into(&**dir)? {
        return Ok(None);
    }
    let is_group = kind_of(&**dir)?.is_none();
    let listing = dir.list()?;
    if listing.len() > MOST_COLUMNS {
        return Ok(None);
    }
    let names: BTreeSet<Vec<u8>> = listing
        .iter()
        .map(|(shown, _)| shown.strip_suffix(b".npy").unwrap_or(&shown).to_vec())
        .collect();
    let mut names: Vec<_> = names.into_iter().map(|stem| own_name(&stem, sep)).collect();
    names.sort_by_key(|name| *name != INDEX.as_bytes());
    let mut table = Table::default();
    let mut rows = None;
    for name in names {
        let shown = String::from_utf8_lossy(&name).into_owned();
        let values = match values(&**dir, &name, sep)? {
            Some(values) => values,
            None if is_group => continue,
            None => {
                let why = "an object that is no column".to_owned();
                table.left_out.push((shown, why));
                continue;
            }
        };
        if is_group {
            // Arrays of several lengths are no table.
            match length(&values) {
                Some(length) if *rows.get_or_insert(length) == length => {}
                Some(_) => return Ok(None),
                None => continue,
            }
        }
        table.columns.push(Column {
            name: shown,
            values,
        });
    }
    table.attributes = dir.attributes()?;
    Ok((!table.columns.is_empty()).then_some(Ok(table)))
}

/// Returns the number of rows of a column; `None` if it is none, or cannot be read.
fn length(values: &Values) -> Option<u64> {
    match values {
        Values::Coded { codes: first, .. } | Values::Lists { starts: first, .. } => length(first),
        Values::Array(file) => match NpyArray::shown(&file.open().ok()?).ok()?.shape[..] {
            [length] => Some(length),
            _ => None,
        },
        _ => None,
    }
}

/// Returns the values of a member of a directory: the array of its name, or what its own members are.
fn values(dir: &dyn Directory, name: &[u8], sep: u8) -> Result<Option<Values>> {
    let array = |dir: &dyn Directory, name: &[u8]| -> Result<Option<Values>> {
        Ok(match dir.lookup(&visible_with(name, ".npy", sep))? {
            Some(Node::File(file)) => Some(Values::Array(file)),
            _ => None,
        })
    };
    let whole = array(dir, name)?;
    let Some(Node::Directory(members)) = dir.lookup(&visible_with(name, "", sep))? else {
        return Ok(whole);
    };
    let pair = |first: &[u8], second: &[u8]| -> Result<Option<_>> {
        let (first, second) = (array(&*members, first)?, array(&*members, second)?);
        Ok(first.zip(second).map(|(a, b)| (Box::new(a), Box::new(b))))
    };
    Ok(match kind_of(&*members)? {
        Some(ArkoudaKind::Categorical) => {
            pair(b"codes", b"categories")?.map(|(codes, values)| Values::Coded {
                codes,
                values,
                ordered: false,
            })
        }
        Some(ArkoudaKind::SegArray) | None if whole.is_none() => {
            pair(b"segments", b"values")?.map(|(starts, values)| Values::Lists { starts, values })
        }
        Some(ArkoudaKind::Index) => values(&*members, b"IDX_0", sep)?,
        _ => whole,
    })
}
