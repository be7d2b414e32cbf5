//! A kind of store, as the rest of npyfs knows it: the trait `Format`, a trait for each ability that only some formats
//! have, and the registry of all formats.
//!
//! A format that is only read implements `Format` alone, with a name and the root of an HDF5 file. Each ability beyond
//! that is a trait, and a field of [`Abilities`]:
//!
//! | ability | what a format says with it | a format without it |
//! |---|---|---|
//! | [`Objects`] | which names are objects, members of objects, and axes | shows each object as one file, without axes |
//! | [`Tables`] | which objects are tables | has those that every HDF5 file has |
//! | [`Rules`] | what its library demands of a store | has no rules |
//! | [`Source`] | what a conversion takes from a store | gives every entry |
//! | [`Writing`] | how objects are stored in HDF5 | is only read: EROFS |
//! | [`Making`] | how a new store is made that is not one HDF5 file | makes one HDF5 file, if it has `Writing` |
//! | [`Sets`] | how a store is divided among several files | takes each file for a store |
//! | [`DirectoryStores`] | which real directories are stores | takes HDF5 files only |
//! | [`Staged`] | how a store keeps its own changes | leaves changes to checkouts |
//!
//! Formats are asked in the order of the registry; the last one takes every HDF5 file.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use super::against::Extent;
use super::base::{Base, unsupported};
use super::encode::array::NpyArray;
use super::encode::{ObjectKey, Plan};
use super::new_store::{NewAxis, NewStore, without_axes};
use super::object::NewFile;
use super::part::Part;
use super::staging::Staging;
use super::table::{self, Found};
use super::target::{CheckoutDirectory, Deletion, Target};
use crate::dataset::context::Context;
use crate::dataset::opened::OpenStore;
use crate::tree::{Directory, Node, name};
use builder::{Builder, Construction};
use npyfs_base::error::{Error, ErrorKind, Result};
use npyfs_hdf5::{EditStep, NewAttribute};
use npyfs_io::remote::{Entries, Listing};

pub mod builder;
mod file_set;
mod registry;
mod root;

pub use file_set::{FileSet, PartNames, leads_out};
pub use registry::Registry;
pub use root::{StoreRoot, Versions};

/// A kind of store. `name` and `root` make a format that is only read.
pub trait Format: Send + Sync {
    /// Returns the name: what `kind=` takes and [`Directory::format`] answers.
    fn name(&self) -> &'static str;

    /// Returns the root of an HDF5 file; `None` if the file is none of this format.
    fn root(&self, store: &Arc<OpenStore>) -> Result<Option<Arc<dyn Directory>>>;

    /// Writes demonstration stores into a directory; each path, and whether it was written. What is there is left
    /// alone. `program`: what workers that write are started from; without it, what needs one is not written.
    fn demonstrate(&self, _dir: &Path, _program: Option<&Path>) -> Result<Vec<(PathBuf, bool)>> {
        Ok(Vec::new())
    }

    /// Returns the abilities that its stores have beyond being read.
    fn abilities(&self) -> Abilities<'_> {
        Abilities::default()
    }
}

/// The abilities of a format. Those that a format does not name are as they are in plain HDF5, or absent.
#[derive(Clone, Copy)]
pub struct Abilities<'a> {
    /// Which names are objects, members of objects, and axes.
    pub objects: &'a dyn Objects,
    /// Which objects are tables.
    pub tables: &'a dyn Tables,
    /// The rules of the library of the format.
    pub rules: &'a dyn Rules,
    /// The objects that a conversion takes from a store.
    pub source: &'a dyn Source,
    /// How objects are stored; `None`: stores are only read.
    pub writing: Option<&'a dyn Writing>,
    /// How new stores are made; `None`: a new store is one HDF5 file, as [`Writing`] plans it.
    pub making: Option<&'a dyn Making>,
    /// How a store is divided among several files; `None`: each file is a store.
    pub sets: Option<&'a dyn Sets>,
    /// Which directories are stores; `None`: no directory is one.
    pub directories: Option<&'a dyn DirectoryStores>,
    /// How a store keeps its own changes; `None`: changes lie in checkouts.
    pub staged: Option<&'a dyn Staged>,
}

impl Default for Abilities<'_> {
    fn default() -> Self {
        Self {
            objects: &PlainHdf5,
            tables: &PlainHdf5,
            rules: &PlainHdf5,
            source: &PlainHdf5,
            writing: None,
            making: None,
            sets: None,
            directories: None,
            staged: None,
        }
    }
}

/// What holds for plain HDF5, and for every format that does not say otherwise.
struct PlainHdf5;

impl Objects for PlainHdf5 {}
impl Tables for PlainHdf5 {}
impl Rules for PlainHdf5 {}
impl Source for PlainHdf5 {}

/// The names of a store: which are objects, members of objects, and axes. Own names are names in the store's file,
/// without escapes and suffixes.
pub trait Objects {
    /// Returns true if objects may be shown as directories.
    fn has_composites(&self) -> bool {
        false
    }

    /// Returns true if a directory of this own name holds the members of one object.
    fn is_composite(&self, _name: &str) -> bool {
        false
    }

    /// Returns true if a directory at these own names holds the members of one object, or a file with this suffix is
    /// one. The names begin behind the uppermost directory of this format; `there`: what is there now.
    fn is_object_at(
        &self,
        path: &[String],
        _suffix: &str,
        _there: Option<&dyn Directory>,
    ) -> Result<bool> {
        Ok(path.last().is_some_and(|name| self.is_composite(name)))
    }

    /// Returns true if new groups in a store are of this format, too.
    fn has_groups(&self) -> bool {
        false
    }

    /// Returns true if objects lie along others.
    fn has_axes(&self) -> bool {
        false
    }

    /// Returns true if others may lie along an object of this own name: as long as they do it cannot go.
    fn is_axis(&self, _name: &str) -> bool {
        false
    }

    /// Returns the own names of the axes that an object of this own name lies along, each once.
    fn along(&self, _name: &str) -> Vec<String> {
        Vec::new()
    }

    /// Returns the own name of the dataset whose attributes are objects of the group that it lies in; `None`:
    /// attributes are no objects.
    fn attribute_holder(&self) -> Option<&'static str> {
        None
    }

    /// Returns the name of an attribute of groups that lists members of the group by their names: new members come
    /// last, and those that go leave it. `None`: there is none.
    fn member_list(&self) -> Option<&'static str> {
        None
    }

    /// Returns the kind and the dimensions of the object that a directory shows by a name (without suffix); `None` if
    /// there is none, or it has none, as a group.
    fn extent(&self, dir: &dyn Directory, shown: &[u8]) -> Result<Option<Extent>> {
        Extent::of_array(dir, shown)
    }
}

/// The tables of a store, beside arrays of compounds, which are tables in every store.
pub trait Tables {
    /// Returns the table that a directory is as a whole, or why it is none although it should be. In its names `sep`
    /// stands for `#`.
    fn table(&self, dir: &Arc<dyn Directory>, sep: u8) -> Result<Option<Found>> {
        table::of_arrays(dir, sep)
    }

    /// Returns whether a directory of this own name may be a table, or hold some: not if it is the parts of another
    /// object.
    fn looks_into(&self, _own: &[u8], dir: &dyn Directory) -> Result<bool> {
        Ok(!dir.is_object())
    }

    /// Returns the tables in a directory that are no single object of it, by their own names.
    fn named(&self, _dir: &Arc<dyn Directory>, _sep: u8) -> Result<Vec<(String, Found)>> {
        Ok(Vec::new())
    }
}

/// The rules of the library of a format.
pub trait Rules {
    /// Returns what breaks the rules in a directory of a store, a line for each object.
    fn broken(&self, _dir: &dyn Directory, _inspection: &Inspection<'_>) -> Result<Vec<String>> {
        Ok(Vec::new())
    }

    /// Returns true if a change of the objects that are inspected concerns objects beside their directory: the
    /// directory above is inspected, too.
    fn reaches_up(&self, _dir: &dyn Directory, _inspection: &Inspection<'_>) -> Result<bool> {
        Ok(false)
    }

    /// Checks a store with means of its own, such as digests, each object once; `None`: all there is to check is
    /// whether its files can be read.
    fn verify(&self, _dir: &dyn Directory, _report: &dyn VerifyReport) -> Option<Result<Verified>> {
        None
    }

    /// Returns true if the library reads chunks only through filters that libhdf5 has itself.
    fn needs_common_filters(&self) -> bool {
        false
    }

    /// Returns why no program may change this attribute of an object; `None` if it may.
    fn refuses_attribute(&self, _name: &str) -> Option<String> {
        Some("its format says what its attributes mean".to_owned())
    }

    /// Returns the reason why a file of links into a store is of no use to the library; `None`: it is.
    fn refuses_links(&self) -> Option<&'static str> {
        None
    }
}

/// The depth to which a store is verified.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Depth {
    /// Names, types and shapes, and what opening finds out.
    Outline,
    /// Elements, too.
    Elements,
}

/// The part of a directory that is checked by the rules of its format.
pub struct Inspection<'a> {
    /// The character that stands for `#` in the names of the directory.
    pub sep: u8,
    /// Only what changes of the objects with these own names concern is checked; `None`: everything.
    pub changed: Option<&'a BTreeSet<String>>,
    /// How deep it is checked.
    pub depth: Depth,
}

impl Inspection<'_> {
    /// Returns true if a change of the object with this own name is to be checked.
    pub fn concerns(&self, own: &str) -> bool {
        self.changed.is_none_or(|names| names.contains(own))
    }

    /// Returns the objects of a directory with their own names, in the order of the directory. An object that is shown
    /// as an array and as a directory is there twice; an archive, which has a directory beside it, is left out.
    pub fn objects(&self, dir: &dyn Directory) -> Result<Vec<(String, Node)>> {
        let mut objects = Vec::new();
        for (shown, node) in dir.list()?.iter() {
            let stem = match &*node {
                Node::Directory(_) => Some(&*shown),
                _ => shown.strip_suffix(b".npy"),
            };
            let own = stem.map(|stem| String::from_utf8(name::own_name(stem, self.sep)));
            if let Some(Ok(own)) = own {
                objects.push((own, node.into_owned()));
            }
        }
        Ok(objects)
    }

    /// Adds a line on an object that breaks a rule, by the outcome of its check. An object that cannot be read breaks
    /// no rule: at [`Depth::Elements`] reading the object says so, at [`Depth::Outline`] it is an error.
    pub fn note(&self, own: &str, checked: Result<()>, broken: &mut Vec<String>) -> Result<()> {
        let Err(e) = checked else { return Ok(()) };
        match e.kind {
            ErrorKind::Os(libc::EINVAL | libc::EOPNOTSUPP) => {
                broken.push(format!("{own}: {}", e.message));
                Ok(())
            }
            _ if self.depth == Depth::Elements => Ok(()),
            _ => Err(e.about(own)),
        }
    }
}

/// Hears what goes on while a store is checked.
pub trait VerifyReport: Send + Sync {
    /// Says that this many more objects are to be checked.
    fn found(&self, count: u64);

    /// Says that one was checked.
    fn checked(&self);

    /// Says of one that it is not what it should be.
    fn wrong(&self, why: &str);
}

/// Counts of what was checked, and of what could not be.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Verified {
    /// The number of objects of each kind, by its plural.
    pub counts: Vec<(&'static str, u64)>,
    /// Bytes of all of them.
    pub bytes: u64,
    /// The number of objects that were not here, by what is said of them behind the number.
    pub absent: BTreeMap<&'static str, u64>,
}

impl std::ops::AddAssign for Verified {
    fn add_assign(&mut self, other: Self) {
        for (kind, count) in other.counts {
            match self.counts.iter_mut().find(|(known, _)| *known == kind) {
                Some((_, sum)) => *sum += count,
                None => self.counts.push((kind, count)),
            }
        }
        self.bytes += other.bytes;
        for (why, count) in other.absent {
            *self.absent.entry(why).or_default() += count;
        }
    }
}

/// The objects that a conversion takes from a store.
pub trait Source {
    /// Returns the directory of a store that is the store to others, as it is now.
    fn contents(&self, root: &Arc<dyn Directory>) -> Result<Arc<dyn Directory>> {
        Ok(root.clone())
    }

    /// Returns true if an entry of a directory shows again what another one holds; `stacked`: entries that join all
    /// arrays of a directory are wanted, and not that directory.
    fn repeats(&self, _dir: &dyn Directory, _shown: &[u8], _stacked: bool) -> Result<bool> {
        Ok(false)
    }

    /// Returns what is lost of an object that is shown as an array and as a directory of members if the array is taken
    /// for it; `None`: nothing.
    fn lost_without(&self, _members: &dyn Directory) -> Result<Option<String>> {
        Ok(None)
    }

    /// Returns true if an attribute of an object says what its store makes of it, and nothing to others.
    fn is_mark(&self, attribute: &[u8]) -> bool {
        attribute.starts_with(b"npyfs_")
    }
}

/// How objects are stored in HDF5. `plan` makes a format that is written.
pub trait Writing {
    /// Says how the object at `key` is stored that consists of `parts`: what its file holds, or which members are still
    /// missing. EINVAL for wrong content, shape or type, EOPNOTSUPP for what has no form in HDF5.
    fn plan(&self, base: &dyn Base, key: &ObjectKey, parts: &[Part]) -> Result<Plan>;

    /// Says what becomes of the object at `key` when one of its files is deleted; `member` is empty for a file that is
    /// the whole object. An error if the file may not be deleted.
    fn deletion(&self, _base: &dyn Base, _key: &ObjectKey, _member: &str) -> Result<Deletion> {
        Ok(Deletion::Object)
    }

    /// Returns the object at `key` of a directory as an export has it, if the library of this format would write the
    /// array in another form than that in which it was written.
    fn exported(
        &self,
        _dir: &dyn Directory,
        _key: &ObjectKey,
        _array: &NpyArray,
    ) -> Result<Option<NewFile>> {
        Ok(None)
    }

    /// Adds what makes a file one of this format.
    fn mark_file(&self, _new: &mut NewFile) {}

    /// Returns true if the dataset at an object's own path is shown as it is stored, element by element, and nothing
    /// else is.
    fn shows_as_stored(&self, _new: &NewFile) -> bool {
        false
    }

    /// Refuses a group that a new store of this format cannot have.
    fn check_group(&self, _path: &ObjectKey) -> Result<()> {
        Ok(())
    }

    /// Refuses a directory that a program makes, with which the programs of this format could not open the store.
    fn check_directory(&self, _base: &dyn Base, _key: &ObjectKey) -> Result<()> {
        Ok(())
    }

    /// Returns the attributes of a new group.
    fn group_marks(&self) -> Vec<NewAttribute> {
        Vec::new()
    }

    /// Returns true if an empty store of this format is of use.
    fn is_made(&self) -> bool {
        true
    }

    /// Returns the HDF5 file that an empty store of this format is. EINVAL for axes that it cannot have, EOPNOTSUPP if
    /// no HDF5 file is one.
    fn begin(&self, _base: &dyn Base, axes: &[NewAxis]) -> Result<NewFile> {
        without_axes(axes)?;
        let mut file = NewFile::default();
        // The root group, which there is in any case.
        file.mark(&[], Vec::new());
        self.mark_file(&mut file);
        Ok(file)
    }

    /// Returns the endings of names of files by which an empty store is known to be one of this format.
    fn endings(&self) -> &'static [&'static str] {
        &[]
    }

    /// Returns true if an object of this own name begins a store of this format in the new group that it is written to,
    /// in a plain file called `file`.
    fn begins_in(&self, _file: &[u8], _name: &str) -> bool {
        false
    }

    /// Returns the group at `key` as an empty store of this format. EOPNOTSUPP if no group is one.
    fn begin_group(&self, _key: &ObjectKey) -> Result<NewFile> {
        Err(unsupported("a group is no store of this kind"))
    }
}

/// How a new store is made that is not one HDF5 file.
pub trait Making {
    /// Begins a store that objects are added to.
    fn build(&self, construction: &Construction) -> Result<Box<dyn Builder>>;

    /// Returns what a store holds besides arrays.
    fn accepts(&self) -> Accepted;

    /// Makes an empty store that its own library opens: there as a whole, or not at all.
    ///
    /// # Errors
    ///
    /// EEXIST if something has its path; EINVAL for what a store of this kind cannot begin with; EOPNOTSUPP if no empty
    /// store of this kind is made.
    fn create(&self, _new: &NewStore) -> Result<()> {
        Err(unsupported("an empty store of this kind is not made"))
    }

    /// Returns true if a new store needs an author.
    fn has_author(&self) -> bool {
        false
    }
}

/// The objects that new stores of a format hold as they are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Accepted {
    /// The suffixes of files that are held as they are; text and bytes of others become arrays.
    pub suffixes: &'static [&'static str],
    /// A text alone is a file of text, and no array.
    pub text_files: bool,
    /// Arrays are samples, which stand in groups.
    pub samples: bool,
}

/// How a store is divided among several files.
pub trait Sets {
    /// Returns how the files are called that are one store together.
    fn part_names(&self) -> PartNames;

    /// Returns true if the files of a set are a store of this format. Parts that lie outside of `top` are not read.
    fn is_set(&self, set: &FileSet, top: &Path, context: &Arc<Context>) -> Result<bool>;

    /// Returns the root of a set, which is opened when somebody looks into it.
    fn set_root(&self, set: FileSet, top: &Path, context: &Arc<Context>) -> StoreRoot;

    /// Returns the HDF5 files that hold the store at a path, in their order, as its root `dir` knows them.
    fn files(&self, dir: &dyn Directory, path: &Path) -> Result<Vec<PathBuf>>;

    /// Divides an object among the files of a set, in the way in which others of this format are divided: the object at
    /// `path`, or all that there is without names, of the store that `files` hold together.
    fn divided(&self, files: &[Arc<OpenStore>], path: &[Vec<u8>], parts: Parts)
    -> Result<Division>;

    /// Returns the paths of what the object at `path` is stored as in `files`, if not as the object of that path: it
    /// goes when the object goes.
    fn stored_as(&self, files: &[Arc<OpenStore>], path: &[Vec<u8>]) -> Result<Vec<Vec<Vec<u8>>>>;

    /// Returns true if what is stored at `path` in `files` is a part of an object that goes by another name.
    fn is_part(&self, files: &[Arc<OpenStore>], path: &[Vec<u8>]) -> Result<bool>;
}

/// The files that a store is divided among.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Parts {
    /// One file that is no part of a set.
    Single,
    /// So many files of a set; not 0.
    Set(usize),
}

impl Parts {
    /// Returns the number of files.
    pub fn count(self) -> usize {
        match self {
            Self::Single => 1,
            Self::Set(count) => count.max(1),
        }
    }
}

/// The steps that make each file of a set, and what cannot be divided.
#[derive(Debug)]
pub struct Division {
    /// By file: what puts its share of each object in, whose path is free.
    pub steps: Vec<Vec<EditStep>>,
    /// The keys of objects that are left out, and why.
    pub lost: Vec<(String, String)>,
}

/// Stores that are real directories, or prefixes of a bucket.
pub trait DirectoryStores {
    /// Returns what people call such a store.
    fn noun(&self) -> &'static str;

    /// Returns true if a real directory is a store of this format as a whole.
    fn is_store(&self, dir: &Path) -> bool;

    /// Opens the store that a real directory is; `None` if it is none of this format.
    fn open(&self, dir: &Path, context: &Arc<Context>) -> Result<Option<Arc<dyn Directory>>>;

    /// Returns the store that a real directory is, for one of many: opened when somebody looks into it.
    fn open_lazily(&self, dir: &Path, context: &Arc<Context>) -> Option<Arc<dyn Directory>>;

    /// Opens the store that a prefix of a bucket is; `None` if it is none of this format. `entries` are the names
    /// directly below.
    fn open_prefix(
        &self,
        listing: &Listing,
        entries: &Entries,
        context: &Arc<Context>,
    ) -> Result<Option<Arc<dyn Directory>>>;
}

/// Stores that keep their changes themselves, in a staging area.
pub trait Staged: DirectoryStores {
    /// Opens the staging area of the store at a path.
    fn staging(&self, store: &Path) -> Result<Box<dyn Staging>>;

    /// Opens the checkout `name` of a store; `None` if `base` is none of this kind. `hold` makes the directory of the
    /// checkout and keeps other processes from it; EBUSY if one has it.
    fn target(
        &self,
        base: &Arc<dyn Directory>,
        name: &str,
        hold: &dyn Fn() -> Result<Box<dyn CheckoutDirectory>>,
    ) -> Result<Option<Arc<dyn Target>>>;
}

impl dyn Format + '_ {
    /// Returns which names are objects, members of objects, and axes.
    pub fn objects(&self) -> &dyn Objects {
        self.abilities().objects
    }

    /// Returns which objects are tables.
    pub fn tables(&self) -> &dyn Tables {
        self.abilities().tables
    }

    /// Returns what the library of this format demands of a store.
    pub fn rules(&self) -> &dyn Rules {
        self.abilities().rules
    }

    /// Returns what a conversion takes from a store.
    pub fn source(&self) -> &dyn Source {
        self.abilities().source
    }

    /// Returns how a store is divided among several files, if any is.
    pub fn sets(&self) -> Option<&dyn Sets> {
        self.abilities().sets
    }

    /// Returns which directories are stores, if any is.
    pub fn directories(&self) -> Option<&dyn DirectoryStores> {
        self.abilities().directories
    }

    /// Returns how a store keeps its own changes, if it does.
    pub fn staged(&self) -> Option<&dyn Staged> {
        self.abilities().staged
    }

    /// Returns how new stores are made that are not one HDF5 file.
    pub fn making(&self) -> Option<&dyn Making> {
        self.abilities().making
    }

    /// Returns how objects are stored, if they are.
    pub fn writing(&self) -> Option<&dyn Writing> {
        self.abilities().writing
    }

    /// Returns how objects are stored.
    ///
    /// # Errors
    ///
    /// EROFS if stores of this format are only read.
    pub fn writable(&self) -> Result<&dyn Writing> {
        self.writing().ok_or_else(|| {
            let why = format!(
                "files of kind {} are only read; npyfs convert makes a store of one that can be changed",
                self.name()
            );
            Error::new(ErrorKind::Os(libc::EROFS), why)
        })
    }

    /// Returns true if new stores of this format can be made.
    pub fn is_made(&self) -> bool {
        self.writing()
            .map_or(self.making().is_some(), |writing| writing.is_made())
    }

    /// Makes an empty store that its own library opens: there as a whole, or not at all.
    ///
    /// # Errors
    ///
    /// EEXIST if something has its path; EINVAL for what a store of this kind cannot begin with.
    pub fn create(&self, new: &NewStore) -> Result<()> {
        if let Some(making) = self.making() {
            return making.create(new);
        }
        new.without_author()?;
        let writing = self.writable()?;
        new.write_file(|base| writing.begin(base, &new.axes))
    }

    /// Returns the endings of names of files by which an empty store is known to be one of this format.
    pub fn endings(&self) -> &'static [&'static str] {
        self.writing().map_or(&[], |writing| writing.endings())
    }

    /// Returns what a new store holds besides arrays.
    pub fn accepts(&self) -> Accepted {
        let arrays = Accepted {
            suffixes: &[".npy"],
            text_files: false,
            samples: false,
        };
        self.making().map_or(arrays, |making| making.accepts())
    }

    /// Returns the HDF5 files that hold the store at a path, as its root `dir` knows them: several, in their order, for
    /// a set.
    pub fn files(&self, dir: &dyn Directory, path: &Path) -> Result<Vec<PathBuf>> {
        if let Some(directories) = self.directories() {
            return Err(unsupported(format!(
                "a {} is no HDF5 file",
                directories.noun()
            )));
        }
        match self.sets() {
            Some(sets) => sets.files(dir, path),
            None => Ok(vec![path.to_owned()]),
        }
    }
}

/// Says how the object at `key` is stored that consists of `parts`; errors name it.
pub fn plan(format: &dyn Format, base: &dyn Base, key: &ObjectKey, parts: &[Part]) -> Result<Plan> {
    let writing = format.writable();
    let planned = writing.and_then(|writing| writing.plan(base, key, parts));
    planned.map_err(|e| e.about(key.name()))
}

/// Returns a file with an empty group.
pub fn group(writing: &dyn Writing, key: &ObjectKey) -> NewFile {
    let mut new = NewFile::default();
    new.mark(key.path(), writing.group_marks());
    writing.mark_file(&mut new);
    new
}

#[cfg(test)]
pub mod bare {
    //! A format without rules, for tests of what is the same for all.

    use super::*;

    struct Bare;

    impl Format for Bare {
        fn name(&self) -> &'static str {
            "bare"
        }

        fn root(&self, _store: &Arc<OpenStore>) -> Result<Option<Arc<dyn Directory>>> {
            Ok(None)
        }
    }

    /// Returns the registry of this format alone.
    pub fn registry() -> Registry {
        Registry::new([], Arc::new(Bare))
    }
}
