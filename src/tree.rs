//! The virtual tree: traits of directories and files, and the nodes and listings they are found by.
//!
//! Formats implement these traits; `mount` serves them. A node belongs to one version of its store: once the
//! file on disk changed, `is_current` returns false, and the node is looked up again by its path.

pub mod array;
pub mod control;
pub mod info;
pub mod inode;
pub mod name;
pub mod path;
pub mod subtree;
pub mod suggestion;

use std::any::Any;
use std::borrow::Cow;
use std::sync::Arc;

use crate::error::Result;
use crate::hdf5::Attribute;
use crate::io::content::Content;
use crate::io::file::Ownership;

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

/// A symbolic link.
pub struct Symlink {
    /// The path that it leads to, relative to its own directory or absolute.
    pub target: Vec<u8>,
    /// Owner, permissions and time that are shown.
    pub ownership: Ownership,
}

/// Entries that are made when they are asked for, of directories too large to hold a node for each.
pub trait LazyEntries: Send + Sync {
    /// Returns how many entries there are.
    fn len(&self) -> usize;

    /// Returns the entry at a place below `len`: the same name each time.
    fn get(&self, at: usize) -> (Vec<u8>, Node);

    /// Returns the entry of a name.
    fn find(&self, name: &[u8]) -> Option<Node>;
}

/// The entries of a directory.
#[derive(Default)]
pub struct Listing {
    /// In order of name.
    pub entries: Vec<(Vec<u8>, Node)>,
    /// More entries, which come after the others.
    pub many: Option<Arc<dyn LazyEntries>>,
    /// Objects that are not shown, and why.
    pub left_out: Vec<(Vec<u8>, String)>,
    /// Remarks about what is shown, for people.
    pub notes: Vec<String>,
    /// Damage for which entries are missing.
    pub damage: Vec<String>,
}

impl Listing {
    /// Makes a listing of entries, which it sorts. Of two with one visible name the first stays; the other is left out.
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

    /// Adds the damage for which entries are missing.
    pub fn with_damage(self, damage: Vec<String>) -> Self {
        Self { damage, ..self }
    }

    /// Returns the entry of a name.
    pub fn find(&self, name: &[u8]) -> Option<Node> {
        let known = self
            .entries
            .binary_search_by(|(have, _)| have.as_slice().cmp(name));
        match known {
            Ok(at) => Some(self.entries[at].1.clone()),
            Err(_) => self.many.as_ref()?.find(name),
        }
    }

    /// Returns how many entries there are.
    pub fn len(&self) -> usize {
        self.entries.len() + self.many.as_ref().map_or(0, |many| many.len())
    }

    /// Returns whether there are no entries.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Returns the entries from a place on.
    pub fn iter_from(&self, from: usize) -> impl Iterator<Item = (Cow<'_, [u8]>, Cow<'_, Node>)> {
        let held = self.entries.len();
        (from..self.len()).filter_map(move |at| match self.entries.get(at) {
            Some((name, node)) => Some((Cow::Borrowed(&name[..]), Cow::Borrowed(node))),
            None => {
                let (name, node) = self.many.as_ref()?.get(at - held);
                Some((Cow::Owned(name), Cow::Owned(node)))
            }
        })
    }

    /// Returns all entries.
    pub fn iter(&self) -> impl Iterator<Item = (Cow<'_, [u8]>, Cow<'_, Node>)> {
        self.iter_from(0)
    }
}

/// A directory.
pub trait Directory: Send + Sync {
    /// Returns owner, permissions and time that are shown.
    fn ownership(&self) -> Ownership;

    /// Returns all entries. The directory keeps them where making them costs something.
    fn list(&self) -> Result<Arc<Listing>>;

    /// Returns the entry of a name; `None` if there is none.
    fn lookup(&self, name: &[u8]) -> Result<Option<Node>> {
        Ok(self.list()?.find(name))
    }

    /// Returns whether the store on disk is still the version that this directory was read from.
    fn is_current(&self) -> bool;

    /// Returns the directory as it is now, for somebody who remembers what is in it: one that is current only as long as nothing
    /// that it shows changed. `None`: it is that itself.
    fn at_present(&self) -> Result<Option<Arc<dyn Directory>>> {
        Ok(None)
    }

    /// Returns whether the entry stays what it is for as long as the store exists: the kernel may remember it without
    /// limit.
    fn is_lasting(&self) -> bool {
        false
    }

    /// Returns whether it is the root of one store: what is below it lies in one HDF5 file, or in one set of them.
    fn is_store(&self) -> bool {
        false
    }

    /// Returns whether its files are the members of one object, a composite, and not objects of a group.
    fn is_object(&self) -> bool {
        false
    }

    /// Returns the name of the format by whose rules its members are shown.
    fn format(&self) -> Result<&'static str> {
        Ok("plain")
    }

    /// Returns what `.npyfs/info` shows of the directory.
    fn info(&self) -> Result<serde_json::Value>;

    /// Returns the store that this directory is the root of, for formats with a way of writing of their own.
    fn handle(&self) -> Option<StoreHandle> {
        None
    }

    /// Reads in what the first visitor of a new mount will probably ask for.
    fn warm(&self) {}

    /// Returns the dataset that the directory as a whole shows the elements of; `None` if it shows several, or none. Fails if it
    /// has no form as an array.
    fn array(self: Arc<Self>) -> Result<Option<Arc<dyn StoredArray>>> {
        Ok(None)
    }

    /// Returns the HDF5 attributes of the group.
    fn attributes(&self) -> Result<Vec<Attribute>> {
        Ok(Vec::new())
    }
}

/// The state that a format keeps of an open store. Only the format knows its type.
pub type StoreHandle = Arc<dyn Any + Send + Sync>;

/// A regular file.
pub trait VirtualFile: Send + Sync {
    /// Returns owner, permissions and time that are shown.
    fn ownership(&self) -> Ownership;

    /// Returns the exact size in bytes.
    fn size(&self) -> Result<u64>;

    /// Opens the file to read.
    fn open(&self) -> Result<Arc<dyn Content>>;

    /// Returns a number of the store's version: part of the inode number, so that pages of an old version are
    /// never mixed with those of a new one.
    fn version(&self) -> u64;

    /// Returns whether the store on disk is still the version that this file was found in.
    fn is_current(&self) -> bool;

    /// Returns whether name, size and content stay as they are for as long as the store exists.
    fn is_lasting(&self) -> bool {
        false
    }

    /// Returns what `.npyfs/info` shows of the file.
    fn info(&self) -> Result<serde_json::Value>;

    /// Returns the dataset that the file is, element for element; `None` if it is made of something else. Fails if the object
    /// cannot be read.
    fn array(self: Arc<Self>) -> Result<Option<Arc<dyn StoredArray>>> {
        Ok(None)
    }

    /// Returns the HDF5 attributes of the object.
    fn attributes(&self) -> Result<Vec<Attribute>> {
        Ok(Vec::new())
    }

    /// Returns the permission bits that this kind of file may have at most.
    fn mode(&self) -> u32 {
        0o666
    }

    /// Returns whether content and size change by themselves, as those of status files do.
    fn volatile(&self) -> bool {
        false
    }

    /// Returns the inode number of a file that keeps it under every name it is given.
    fn number(&self) -> Option<u64> {
        None
    }
}
