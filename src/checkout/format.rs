//! A kind of store, as all that is not of that kind knows it: one trait, and the registry of all kinds.
//!
//! A format is asked in the order of the registry; the last one takes every HDF5 file. What a method does not say is
//! what plain HDF5 does.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use super::builder::{Builder, Construction};
use super::checkouts::Checkouts;
use super::encode::{Base, ObjectKey, Plan, unsupported};
use super::file_builder::FileBuilder;
use super::new_store::NewStore;
use super::object::NewFile;
use super::staging::Staging;
use super::target::{Deletion, Part, Target};
use crate::checkout::extent::Extent;
use crate::dataset::context::Context;
use crate::dataset::opened::OpenStore;
use crate::error::{Error, ErrorKind, Result};
use crate::hdf5::NewAttribute;
use crate::io::remote::{Entries, Listing};
use crate::tree::Directory;

mod division;
mod file_set;
mod registry;
mod root;
mod verified;

pub use division::{Division, Parts};
pub use file_set::{FileSet, PartNames, leads_out};
pub use registry::Registry;
pub use root::{StoreRoot, Versions};
pub use verified::{Verified, VerifyReport};

/// The depth to which a store is verified.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Depth {
    /// Names, types and shapes, and what opening finds out.
    Outline,
    /// Elements, too.
    Elements,
}

/// A kind of store. Own names are names in the store's file, without escapes and suffixes.
pub trait Format: Send + Sync {
    /// Its name: what `kind=` takes and [`Directory::format`] answers.
    fn name(&self) -> &'static str;

    /// Returns true if a real directory is a store of this format as a whole.
    fn is_store(&self, _dir: &Path) -> bool {
        false
    }

    /// Opens the store that a real directory is; `None` if it is none of this format.
    fn open(&self, _dir: &Path, _context: &Arc<Context>) -> Result<Option<Arc<dyn Directory>>> {
        Ok(None)
    }

    /// Returns the store that a real directory is, for one of many: opened when somebody looks into it.
    fn open_lazily(&self, _dir: &Path, _context: &Arc<Context>) -> Option<Arc<dyn Directory>> {
        None
    }

    /// Opens the store that a prefix of a bucket is; `None` if it is none of this format. `entries` are the names directly
    /// below.
    fn open_prefix(
        &self,
        _listing: &Listing,
        _entries: &Entries,
        _context: &Arc<Context>,
    ) -> Result<Option<Arc<dyn Directory>>> {
        Ok(None)
    }

    /// Returns the root of an HDF5 file; `None` if it is none of this format.
    fn root(&self, _store: &Arc<OpenStore>) -> Result<Option<Arc<dyn Directory>>> {
        Ok(None)
    }

    /// Returns how the files are called that are one store together; `None`: each file is a store.
    fn part_names(&self) -> Option<PartNames> {
        None
    }

    /// Returns true if the files of a set are a store of this format. Parts that lie outside of `top` are not read.
    fn is_set(&self, _set: &FileSet, _top: &Path, _context: &Arc<Context>) -> Result<bool> {
        Ok(false)
    }

    /// Returns the root of a set, which is opened when somebody looks into it; `None` if there are no sets of this format.
    fn set_root(&self, _set: FileSet, _top: &Path, _context: &Arc<Context>) -> Option<StoreRoot> {
        None
    }

    /// Returns the HDF5 files that hold the store at a path, as its root `dir` knows them: several, in their order, for a set.
    fn files(&self, _dir: &dyn Directory, path: &Path) -> Result<Vec<PathBuf>> {
        Ok(vec![path.to_owned()])
    }

    /// Divides an object among the files of a set, in the way in which others of this format are divided: the object at
    /// `path`, or all that there is without names, of the store that `files` hold together. `None`: its stores are not divided.
    fn divided(
        &self,
        _files: &[Arc<OpenStore>],
        _path: &[Vec<u8>],
        _parts: Parts,
    ) -> Option<Result<Division>> {
        None
    }

    /// Returns the paths of what the object at `path` is stored as in `files`, if not as the object of that path: it goes
    /// when the object goes.
    fn stored_as(&self, _files: &[Arc<OpenStore>], _path: &[Vec<u8>]) -> Result<Vec<Vec<Vec<u8>>>> {
        Ok(Vec::new())
    }

    /// Returns true if what is stored at `path` in `files` is a part of an object that goes by another name.
    fn is_part(&self, _files: &[Arc<OpenStore>], _path: &[Vec<u8>]) -> Result<bool> {
        Ok(false)
    }

    /// Returns true if new groups in its stores are of this format, too.
    fn has_groups(&self) -> bool {
        false
    }

    /// Returns true if a directory of this own name holds the members of one object.
    fn is_composite(&self, _name: &str) -> bool {
        false
    }

    /// Returns true if a directory at these own names holds the members of one object, or a file with this suffix is one. The names
    /// begin behind the uppermost directory of this format; `there`: what is there now.
    fn is_object_at(
        &self,
        path: &[String],
        _suffix: &str,
        _there: Option<&dyn Directory>,
    ) -> Result<bool> {
        Ok(path.last().is_some_and(|name| self.is_composite(name)))
    }

    /// Returns the attributes of a new group.
    fn group_marks(&self) -> Vec<NewAttribute> {
        Vec::new()
    }

    /// Returns the name of an attribute of groups that lists members of the group by their names: new members come last, and those
    /// that go leave it. `None`: there is none.
    fn member_list(&self) -> Option<&'static str> {
        None
    }

    /// Returns true if objects may be shown as directories.
    fn has_composites(&self) -> bool {
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

    /// Returns the reason why a file of links into its stores is of no use to its library; `None`: it is.
    fn refuses_links(&self) -> Option<&'static str> {
        None
    }

    /// Returns the own name of the dataset whose attributes are objects of the group that it lies in; `None`: attributes are no
    /// objects.
    fn attribute_holder(&self) -> Option<&'static str> {
        None
    }

    /// Returns whether the programs that this kind of store belongs to read chunks only through filters that libhdf5 has
    /// itself.
    fn needs_common_filters(&self) -> bool {
        false
    }

    /// Returns the reason why its stores are only read; `None`: they are written, too.
    fn only_read(&self) -> Option<&'static str> {
        None
    }

    /// Returns true if new stores of this format can be made.
    fn is_made(&self) -> bool {
        true
    }

    /// Refuses to write if its stores are only read, with EROFS.
    fn check_writable(&self) -> Result<()> {
        let refused = |why: &str| Err(Error::new(ErrorKind::Os(libc::EROFS), why));
        self.only_read().map_or(Ok(()), refused)
    }

    /// Says how the object at `key` is stored that consists of `parts`: what its file holds, or which members are still
    /// missing. EINVAL for wrong content, shape or type, EOPNOTSUPP for what has no form in HDF5.
    fn plan(&self, base: &dyn Base, key: &ObjectKey, parts: &[Part]) -> Result<Plan>;

    /// Says what becomes of the object at `key` when one of its files is deleted; `member` is empty for a file that is the
    /// whole object. An error if the file may not be deleted.
    fn deletion(&self, _base: &dyn Base, _key: &ObjectKey, _member: &str) -> Result<Deletion> {
        self.check_writable()?;
        Ok(Deletion::Object)
    }

    /// Adds what makes a file one of this format.
    fn mark_file(&self, _new: &mut NewFile) {}

    /// Returns true if the dataset at an object's own path is shown as it is stored, element by element, and nothing else is.
    fn shows_as_stored(&self, _new: &NewFile) -> bool {
        false
    }

    /// Returns the kind and the dimensions of the object that a directory shows by a name (without suffix); `None` if there
    /// is none, or it has none, as a group.
    fn extent(&self, dir: &dyn Directory, shown: &[u8]) -> Result<Option<Extent>> {
        Extent::of_array(dir, shown)
    }

    /// Returns what breaks the rules of this format in a directory of a store, a line for each object. `changed`: only
    /// what changes of the objects with these own names concern.
    fn broken(
        &self,
        _dir: &dyn Directory,
        _sep: u8,
        _changed: Option<&BTreeSet<String>>,
        _depth: Depth,
    ) -> Result<Vec<String>> {
        Ok(Vec::new())
    }

    /// Checks a store with means of its own, such as digests, each object once; `None`: all there is to check is whether
    /// its files can be read.
    fn verify(&self, _dir: &dyn Directory, _report: &dyn VerifyReport) -> Option<Result<Verified>> {
        None
    }

    /// Makes an empty store that its own library opens: there as a whole, or not at all.
    ///
    /// # Errors
    ///
    /// EEXIST if something has its path; EINVAL for what a store of this kind cannot begin with.
    fn create(&self, new: &NewStore) -> Result<()> {
        new.without_axes()?;
        new.without_author()?;
        new.write_file(|base| self.begin(base))
    }

    /// Returns the HDF5 file that an empty store of this format is. EOPNOTSUPP if it is none.
    fn begin(&self, _base: &dyn Base) -> Result<NewFile> {
        self.check_writable()?;
        let mut file = NewFile::default();
        // The root group, which there is in any case.
        file.mark(&[], Vec::new());
        self.mark_file(&mut file);
        Ok(file)
    }

    /// Returns true if an object of this own name begins a store of this format in the new group that it is written to, in
    /// a plain file called `file`.
    fn begins_in(&self, _file: &[u8], _name: &str) -> bool {
        false
    }

    /// Returns the group at `key` as an empty store of this format. EOPNOTSUPP if no group is one.
    fn begin_group(&self, _key: &ObjectKey) -> Result<NewFile> {
        Err(unsupported("a group is no store of this kind"))
    }

    /// Returns the endings of names of files by which an empty store is known to be one of this format.
    fn endings(&self) -> &'static [&'static str] {
        &[]
    }

    /// Returns true if the objects that a store of this format is made from need an author.
    fn has_author(&self) -> bool {
        false
    }

    /// Begins a store that objects are added to.
    fn build(&self, construction: &Construction) -> Result<Box<dyn Builder>> {
        self.check_writable()?;
        let format = construction.formats.named(self.name()).clone();
        Ok(Box::new(FileBuilder::new(format, construction)?))
    }

    /// Refuses a group that its stores cannot have.
    fn check_group(&self, _path: &ObjectKey) -> Result<()> {
        self.check_writable()
    }

    /// Returns the suffixes of the files that its stores hold as they are; text and bytes of others become arrays.
    fn suffixes(&self) -> &'static [&'static str] {
        &[".npy"]
    }

    /// Returns true if a text alone is a file of text in its stores, and no array.
    fn has_text_files(&self) -> bool {
        false
    }

    /// Returns true if its arrays are samples, which stand in groups.
    fn has_samples(&self) -> bool {
        false
    }

    /// Returns the directory of a store that is the store to others, as it is now.
    fn contents(&self, root: &Arc<dyn Directory>) -> Result<Arc<dyn Directory>> {
        Ok(root.clone())
    }

    /// Returns true if an entry of a directory shows again what another one holds; `stacked`: entries that join all arrays of a
    /// directory are wanted, and not that directory.
    fn repeats(&self, _dir: &dyn Directory, _shown: &[u8], _stacked: bool) -> Result<bool> {
        Ok(false)
    }

    /// Returns what is lost of an object that is shown as an array and as a directory of members if the array is taken for
    /// it; `None`: nothing.
    fn lost_without(&self, _members: &dyn Directory) -> Result<Option<String>> {
        Ok(None)
    }

    /// Returns true if an attribute of an object says what its store makes of it, and nothing to others.
    fn is_mark(&self, attribute: &[u8]) -> bool {
        attribute.starts_with(b"npyfs_")
    }

    /// Writes demonstration stores into a directory; each path, and whether it was written. What is there is left alone.
    /// `program`: what workers that write are started from; without it, what needs one is not written.
    fn demonstrate(&self, _dir: &Path, _program: Option<&Path>) -> Result<Vec<(PathBuf, bool)>> {
        Ok(Vec::new())
    }

    /// Returns what people call a store of this format that has a staging area; `None`: none has.
    fn staged(&self) -> Option<&'static str> {
        None
    }

    /// Opens the staging area of the store at a path.
    fn staging(&self, _store: &Path) -> Result<Box<dyn Staging>> {
        Err(unsupported("it has no staging area"))
    }

    /// Opens the checkout `name` of a store that keeps its changes itself; `None` if this is none of its stores.
    fn target(
        &self,
        _base: &Arc<dyn Directory>,
        _checkouts: &Checkouts,
        _name: &str,
    ) -> Result<Option<Arc<dyn Target>>> {
        Ok(None)
    }
}

/// Says how the object at `key` is stored that consists of `parts`; errors name it.
pub fn plan(format: &dyn Format, base: &dyn Base, key: &ObjectKey, parts: &[Part]) -> Result<Plan> {
    let planned = format.plan(base, key, parts);
    planned.map_err(|e| e.about(key.name()))
}

/// Returns a file with an empty group.
pub fn group(format: &dyn Format, key: &ObjectKey) -> NewFile {
    let mut new = NewFile::default();
    new.mark(key.path(), format.group_marks());
    format.mark_file(&mut new);
    new
}

#[cfg(test)]
pub mod bare {
    //! A format without rules, for tests of what is the same for all.

    use super::*;
    use crate::error::Error;

    struct Bare;

    impl Format for Bare {
        fn name(&self) -> &'static str {
            "bare"
        }

        fn part_names(&self) -> Option<PartNames> {
            Some(PartNames {
                format: self.name(),
                mark: "-part",
                digits: 1,
            })
        }

        fn plan(&self, _base: &dyn Base, _key: &ObjectKey, _parts: &[Part]) -> Result<Plan> {
            Err(Error::damaged("nothing is stored"))
        }
    }

    /// Returns the registry of this format alone.
    pub fn registry() -> Registry {
        Registry::new([], Arc::new(Bare))
    }
}
