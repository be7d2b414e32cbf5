//! The virtual tree: what directories and files are, before anybody numbers or opens them.
//!
//! Stores implement these traits; `fs` serves them. A node belongs to one version of its store: once the
//! file on disk changed, `is_current` says so, and the node is looked up again by its path.

pub mod control;
pub mod info;
pub mod inode;
pub mod name;
pub mod path;

use std::any::Any;
use std::borrow::Cow;
use std::sync::Arc;

use crate::error::Result;
use crate::hdf5::Attribute;
use crate::io::content::Content;
use crate::io::file::Ownership;

/// Something that has a name in a directory.
#[derive(Clone)]
pub enum Node {
    Directory(Arc<dyn Directory>),
    File(Arc<dyn VirtualFile>),
    Symlink(Arc<Symlink>),
}

/// A symbolic link: the path it shows and the entry it belongs to.
pub struct Symlink {
    pub target: Vec<u8>,
    pub ownership: Ownership,
}

/// Entries that are made when they are asked for, of directories too large to hold a node for each.
pub trait LazyEntries: Send + Sync {
    fn len(&self) -> usize;

    /// The entry at a place below `len`; always the same.
    fn get(&self, at: usize) -> (Vec<u8>, Node);

    fn find(&self, name: &[u8]) -> Option<Node>;
}

/// The entries of a directory.
#[derive(Default)]
pub struct Listing {
    /// In order of name.
    pub entries: Vec<(Vec<u8>, Node)>,
    /// More of them, behind the others.
    pub many: Option<Arc<dyn LazyEntries>>,
    /// Objects that are not shown, and why.
    pub left_out: Vec<(Vec<u8>, String)>,
    /// What is unusual about what is shown.
    pub notes: Vec<String>,
    /// What is damaged so that entries are missing.
    pub damage: Vec<String>,
}

impl Listing {
    /// Sorts the entries. Of two with one visible name the first added stays; the other is left out.
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

    /// The same, in which entries are missing for these reasons.
    pub fn with_damage(self, damage: Vec<String>) -> Self {
        Self { damage, ..self }
    }

    pub fn find(&self, name: &[u8]) -> Option<Node> {
        let known = self
            .entries
            .binary_search_by(|(have, _)| have.as_slice().cmp(name));
        match known {
            Ok(at) => Some(self.entries[at].1.clone()),
            Err(_) => self.many.as_ref()?.find(name),
        }
    }

    /// How many entries there are.
    pub fn len(&self) -> usize {
        self.entries.len() + self.many.as_ref().map_or(0, |many| many.len())
    }

    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The entries from a place on.
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

    /// All entries.
    pub fn iter(&self) -> impl Iterator<Item = (Cow<'_, [u8]>, Cow<'_, Node>)> {
        self.iter_from(0)
    }
}

/// A directory.
pub trait Directory: Send + Sync {
    fn ownership(&self) -> Ownership;

    /// All entries. Kept by the directory where making it costs something.
    fn list(&self) -> Result<Arc<Listing>>;

    /// One entry.
    fn lookup(&self, name: &[u8]) -> Result<Option<Node>> {
        Ok(self.list()?.find(name))
    }

    /// Whether the store on disk is still the version this directory was read from.
    fn is_current(&self) -> bool;

    /// The entry stays what it is for as long as the store exists: the kernel may remember it without limit.
    fn is_lasting(&self) -> bool {
        false
    }

    /// It is the root of one store: what is below it lies in one HDF5 file, or in one set of them.
    fn is_store(&self) -> bool {
        false
    }

    /// Its files are parts of one object, which is no group.
    fn is_object(&self) -> bool {
        false
    }

    /// Returns the name of the format by whose rules its members are shown.
    fn format(&self) -> Result<&'static str> {
        Ok("plain")
    }

    /// What `.npyfs/info` says.
    fn info(&self) -> Result<serde_json::Value>;

    /// The store that this directory is the root of, for formats with an own way of writing; they know its type.
    fn handle(&self) -> Option<StoreHandle> {
        None
    }

    /// Reads in what the first visitor of a new mount will probably ask for.
    fn warm(&self) {}

    /// HDF5 attributes.
    fn attributes(&self) -> Result<Vec<Attribute>> {
        Ok(Vec::new())
    }
}

/// What a format keeps of one of its stores. Only the format knows its type.
pub type StoreHandle = Arc<dyn Any + Send + Sync>;

/// A regular file.
pub trait VirtualFile: Send + Sync {
    fn ownership(&self) -> Ownership;

    /// Exact size in bytes.
    fn size(&self) -> Result<u64>;

    fn open(&self) -> Result<Arc<dyn Content>>;

    /// A number of the store's version; part of the inode number, so that pages of an old version are
    /// never mixed with those of a new one.
    fn version(&self) -> u64;

    fn is_current(&self) -> bool;

    /// Name, size and content stay as they are for as long as the store exists.
    fn is_lasting(&self) -> bool {
        false
    }

    fn info(&self) -> Result<serde_json::Value>;

    fn attributes(&self) -> Result<Vec<Attribute>> {
        Ok(Vec::new())
    }

    /// Permission bits that the kind of file leaves.
    fn mode(&self) -> u32 {
        0o666
    }

    /// Content and size change by themselves (status files).
    fn volatile(&self) -> bool {
        false
    }

    /// The inode number of a file that keeps it under every name it is given.
    fn number(&self) -> Option<u64> {
        None
    }
}
