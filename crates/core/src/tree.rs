//! The virtual tree: traits of directories and files, with nodes and listings.
//!
//! Formats implement these traits; `mount` serves them. A node belongs to one version of its store: once the file on
//! disk has changed, `is_current` returns false, and the node is looked up again by its path.

pub mod array;
pub mod control;
pub mod info;
pub mod inode;
pub mod name;
pub mod overlay;
pub mod path;
pub mod prefix;
pub mod subtree;
pub mod suggestion;

use std::any::Any;
use std::borrow::Cow;
use std::ops::ControlFlow;
use std::sync::Arc;

use npyfs_base::error::Result;
use npyfs_hdf5::{Attribute, H5};
use npyfs_io::content::Content;
use npyfs_io::file::Ownership;
use parking_lot::Mutex;

use array::StoredArray;

/// An entry of a directory, without its name.
#[derive(Clone)]
pub enum Node {
    /// A directory.
    Directory(Arc<dyn Directory>),
    /// A regular file.
    File(Arc<dyn VirtualFile>),
    /// A symbolic link.
    Symlink(Arc<Symlink>),
}

impl Node {
    /// Returns the directory, if the node is one.
    pub fn directory(self) -> Option<Arc<dyn Directory>> {
        match self {
            Self::Directory(dir) => Some(dir),
            Self::File(_) | Self::Symlink(_) => None,
        }
    }

    /// Returns the HDF5 attributes; a link has none.
    pub fn attributes(&self) -> Result<Vec<Attribute>> {
        match self {
            Self::Directory(dir) => dir.attributes(),
            Self::File(file) => file.attributes(),
            Self::Symlink(_) => Ok(Vec::new()),
        }
    }

    /// Returns the file, if the node is one.
    pub fn file(self) -> Option<Arc<dyn VirtualFile>> {
        match self {
            Self::File(file) => Some(file),
            Self::Directory(_) | Self::Symlink(_) => None,
        }
    }
}

/// A symbolic link.
pub struct Symlink {
    /// The target path, relative to its own directory or absolute.
    pub target: Vec<u8>,
    /// The owner, permissions and time that are shown.
    pub ownership: Ownership,
}

/// Entries that are created on demand, for directories too large to hold a node for each entry.
pub trait LazyEntries: Send + Sync {
    /// Returns the number of entries.
    fn len(&self) -> usize;

    /// Returns the entry with an index below `len`; it has the same name each time.
    fn get(&self, at: usize) -> (Vec<u8>, Node);

    /// Returns the entry with a name.
    fn find(&self, name: &[u8]) -> Option<Node>;

    /// Returns whether the entries are files that are objects of an HDF5 file, as those are that a listing holds, and
    /// not parts of one.
    fn are_objects(&self) -> bool {
        false
    }

    /// Returns whether all entries are files.
    fn are_files(&self) -> bool {
        self.are_objects()
    }
}

/// The entries of a directory.
#[derive(Default)]
pub struct Listing {
    /// The entries, in order of name.
    pub entries: Vec<(Vec<u8>, Node)>,
    /// Further entries.
    pub many: Option<Arc<dyn LazyEntries>>,
    /// Objects that are not shown, with the reasons.
    pub left_out: Vec<(Vec<u8>, String)>,
    /// Notes on the entries, for people.
    pub notes: Vec<String>,
    /// Damage because of which entries are missing.
    pub damage: Vec<String>,
}

impl Listing {
    /// Makes a listing of entries, which it sorts. If two have the same visible name, the first stays and the other is
    /// left out.
    pub fn new(
        mut entries: Vec<(Vec<u8>, Node)>,
        mut left_out: Vec<(Vec<u8>, String)>,
        notes: Vec<String>,
    ) -> Self {
        entries.sort_by(|a, b| a.0.cmp(&b.0));
        entries.dedup_by(|later, first| {
            let same = later.0 == first.0;
            if same {
                let reason = "another object has the same visible name".to_owned();
                left_out.push((later.0.clone(), reason));
            }
            same
        });
        Self {
            entries,
            many: None,
            left_out,
            notes,
            damage: Vec::new(),
        }
    }

    /// Adds damage because of which entries are missing.
    pub fn with_damage(self, damage: Vec<String>) -> Self {
        Self { damage, ..self }
    }

    /// Returns the entry with a name.
    pub fn find(&self, name: &[u8]) -> Option<Node> {
        let known = self
            .entries
            .binary_search_by(|(have, _)| have.as_slice().cmp(name));
        match known {
            Ok(at) => Some(self.entries[at].1.clone()),
            Err(_) => self.many.as_ref()?.find(name),
        }
    }

    /// Returns the number of entries.
    pub fn len(&self) -> usize {
        self.entries.len() + self.many.as_ref().map_or(0, |many| many.len())
    }

    /// Returns whether there are no entries.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Returns the entry at an index: those that are held come in front of those that are made on demand.
    pub fn entry(&self, at: usize) -> Option<(Cow<'_, [u8]>, Cow<'_, Node>)> {
        if let Some((name, node)) = self.entries.get(at) {
            return Some((Cow::Borrowed(&name[..]), Cow::Borrowed(node)));
        }
        let at = at.checked_sub(self.entries.len())?;
        let many = self.many.as_ref().filter(|many| at < many.len())?;
        let (name, node) = many.get(at);
        Some((Cow::Owned(name), Cow::Owned(node)))
    }

    /// Returns the entries that are objects of an HDF5 file.
    pub fn objects(&self) -> impl Iterator<Item = (Cow<'_, [u8]>, Cow<'_, Node>)> {
        self.merged(self.many.as_deref().filter(|many| many.are_objects()))
    }

    /// Returns the entries that the listing of a directory on top takes over as they are: files that are made on
    /// demand. It wraps directories, so that entries among which may be some are not taken over.
    pub fn files_on_demand(&self) -> Option<Arc<dyn LazyEntries>> {
        self.many.clone().filter(|many| many.are_files())
    }

    /// Returns the entries but those that were taken over.
    pub fn remaining(
        &self,
        taken: Option<&dyn LazyEntries>,
    ) -> impl Iterator<Item = (Cow<'_, [u8]>, Cow<'_, Node>)> {
        let taken = taken.map_or(0, |many| many.len());
        (0..self.len().saturating_sub(taken)).filter_map(|at| self.entry(at))
    }

    /// Returns all entries, those that are objects in order of name.
    pub fn iter(&self) -> impl Iterator<Item = (Cow<'_, [u8]>, Cow<'_, Node>)> {
        self.merged(self.many.as_deref())
    }

    /// Shows all entries, until `see` has enough; true if it has.
    pub fn show(&self, see: &mut Seer<'_>) -> bool {
        self.iter().any(|(name, node)| see(&name, &node).is_break())
    }

    fn merged<'a>(
        &'a self,
        many: Option<&'a dyn LazyEntries>,
    ) -> impl Iterator<Item = (Cow<'a, [u8]>, Cow<'a, Node>)> {
        let is_merged = many.is_some_and(|many| many.are_objects());
        let mut made = many
            .into_iter()
            .flat_map(|many| (0..many.len()).map(|at| many.get(at)))
            .peekable();
        let mut held = self.entries.iter().peekable();
        std::iter::from_fn(move || {
            let is_next = match (held.peek(), made.peek()) {
                (Some((name, _)), Some((other, _))) => !is_merged || name < other,
                (name, _) => name.is_some(),
            };
            if is_next {
                let (name, node) = held.next()?;
                return Some((Cow::Borrowed(&name[..]), Cow::Borrowed(node)));
            }
            let (name, node) = made.next()?;
            Some((Cow::Owned(name), Cow::Owned(node)))
        })
    }
}

/// The dimensions that a group defines: own name and length of each.
pub type Scales = Arc<Vec<(Vec<u8>, u64)>>;

/// A function that is shown entries of a directory.
pub type Seer<'a> = dyn FnMut(&[u8], &Node) -> ControlFlow<()> + 'a;

/// What is learnt of a file by asking workers, and kept.
pub struct CachedFact<T>(Mutex<Option<T>>);

impl<T> Default for CachedFact<T> {
    fn default() -> Self {
        Self(Mutex::default())
    }
}

impl<T: Clone> CachedFact<T> {
    /// Returns whether something is kept.
    pub fn is_known(&self) -> bool {
        self.0.lock().is_some()
    }

    /// Returns what is kept if `is_valid` accepts it, and otherwise what `learn` returns. The new value is kept unless
    /// a request to a worker failed in the meantime for a reason that says nothing about the file.
    pub fn get(
        &self,
        h5: &H5,
        is_valid: impl FnOnce(&T) -> bool,
        learn: impl FnOnce() -> Result<T>,
    ) -> Result<T> {
        let mut kept = self.0.lock();
        if let Some(known) = kept.as_ref().filter(|known| is_valid(known)) {
            return Ok(known.clone());
        }
        let before = h5.unanswered();
        let learnt = learn()?;
        if h5.unanswered() == before {
            *kept = Some(learnt.clone());
        }
        Ok(learnt)
    }
}

/// A directory.
pub trait Directory: Send + Sync {
    /// Returns the owner, permissions and time that are shown.
    fn ownership(&self) -> Ownership;

    /// Returns all entries. The directory caches them if they are costly to create.
    fn list(&self) -> Result<Arc<Listing>>;

    /// Shows all entries, until `see` has enough, and keeps none of them: those of a large group part by part, each in
    /// order of name. Returns the damage because of which entries are missing.
    fn each(&self, see: &mut Seer<'_>) -> Result<Vec<String>> {
        let listing = self.list()?;
        listing.show(see);
        Ok(listing.damage.clone())
    }

    /// Returns the entry with a name; `None` if there is none.
    fn lookup(&self, name: &[u8]) -> Result<Option<Node>> {
        Ok(self.list()?.find(name))
    }

    /// Returns whether the store on disk is still the version that this directory was read from.
    fn is_current(&self) -> bool;

    /// Returns the present directory for a caller that caches its content, for a directory that stays current only
    /// while none of its entries change. `None` if the directory itself can be used.
    fn at_present(&self) -> Result<Option<Arc<dyn Directory>>> {
        Ok(None)
    }

    /// Returns whether the entry never changes while the store exists, so that the kernel may cache it without limit.
    fn is_lasting(&self) -> bool {
        false
    }

    /// Returns whether it is the root of one store: everything below it is in one HDF5 file, or in one set of files.
    fn is_store(&self) -> bool {
        false
    }

    /// Returns whether its files are the members of one composite object, not objects of a group.
    fn is_object(&self) -> bool {
        false
    }

    /// Returns the name of the format in which its members are shown.
    fn format(&self) -> Result<&'static str> {
        Ok("plain")
    }

    /// Returns the report on the directory in `.npyfs/info`.
    fn info(&self) -> Result<serde_json::Value>;

    /// Returns the handle of the store whose root this directory is, for formats that implement writing themselves.
    fn handle(&self) -> Option<StoreHandle> {
        None
    }

    /// Reads in advance what the first user of a new mount will probably need.
    fn warm(&self) {}

    /// Returns the dataset whose elements the whole directory shows; `None` if it shows several or none. Fails if the
    /// dataset cannot be represented as an array.
    fn array(self: Arc<Self>) -> Result<Option<Arc<dyn StoredArray>>> {
        Ok(None)
    }

    /// Returns the HDF5 attributes of the group.
    fn attributes(&self) -> Result<Vec<Attribute>> {
        Ok(Vec::new())
    }

    /// Returns the dimensions that the group defines, as groups of netCDF-4 do: own name and length of each.
    fn scales(&self) -> Result<Scales> {
        Ok(Arc::default())
    }
}

/// The state of an open store, whose type only its format knows.
pub type StoreHandle = Arc<dyn Any + Send + Sync>;

/// A regular file.
pub trait VirtualFile: Send + Sync {
    /// Returns the owner, permissions and time that are shown.
    fn ownership(&self) -> Ownership;

    /// Returns the exact size in bytes.
    fn size(&self) -> Result<u64>;

    /// Opens the file for reading.
    fn open(&self) -> Result<Arc<dyn Content>>;

    /// Returns a number of the store's version. It is part of the inode number, so that pages of an old and a new
    /// version are never mixed.
    fn version(&self) -> u64;

    /// Returns whether the store on disk is still the version that this file belongs to.
    fn is_current(&self) -> bool;

    /// Returns whether name, size and content never change while the store exists.
    fn is_lasting(&self) -> bool {
        false
    }

    /// Returns the report on the file in `.npyfs/info`.
    fn info(&self) -> Result<serde_json::Value>;

    /// Returns the dataset with exactly the elements of the file; `None` if the file is computed otherwise. Fails if
    /// the object cannot be read.
    fn array(self: Arc<Self>) -> Result<Option<Arc<dyn StoredArray>>> {
        Ok(None)
    }

    /// Returns the HDF5 attributes of the object.
    fn attributes(&self) -> Result<Vec<Attribute>> {
        Ok(Vec::new())
    }

    /// Returns the most permission bits that this kind of file may have.
    fn mode(&self) -> u32 {
        0o666
    }

    /// Returns whether content and size change by themselves, as in status files.
    fn volatile(&self) -> bool {
        false
    }

    /// Returns the inode number of a file that keeps the number under each of its names.
    fn number(&self) -> Option<u64> {
        None
    }

    /// Returns whether its directory makes it anew each time it is looked up, at little cost: it need not be kept
    /// because the kernel knows it.
    fn is_remade(&self) -> bool {
        false
    }

    /// Returns the files that it is one of and its place among them, if it is called by its place.
    fn numbered(&self) -> Option<(Arc<dyn NumberedFiles>, u64)> {
        None
    }
}

/// Files of one directory and one version that are called by their places: an inode number says which one a file is,
/// and nothing is kept for it.
pub trait NumberedFiles: Send + Sync {
    /// Returns the number of places.
    fn count(&self) -> u64;

    /// Returns the version of the files, as each of them does.
    fn version(&self) -> u64;

    /// Returns the name of the file at a place below `count`.
    fn name(&self, at: u64) -> Vec<u8>;

    /// Returns the file at a place below `count`.
    fn node(&self, at: u64) -> Node;
}
