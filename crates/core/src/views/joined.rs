//! Joins the stores of a directory in one: arrays with a dimension of a given name are joined along it, in order of the
//! stores' names.
//!
//! The result is a tree of one store in place of a tree of many, for views. All other dimensions must be the same in
//! all stores: an array for which they are not is left out with the reason, so no value is ever taken from the wrong
//! store. Nothing is copied: each chunk is one of a store, unless chunk boundaries do not coincide with the boundaries
//! of stores.

mod array;
mod compare;
mod group;
mod layout;

use std::collections::BTreeSet;
use std::sync::Arc;

use parking_lot::Mutex;
use serde_json::Value as Json;

use crate::dataset::context::Context;
use crate::tree::array::StoredArray;
use crate::tree::{Directory, Listing, Node};
use npyfs_base::error::{Error, ErrorKind, Result};
use npyfs_io::file::Ownership;

use group::{JoinedGroup, array_of};

/// The settings that all parts of a joined tree share.
pub(super) struct Joining {
    /// The name of the dimension.
    along: String,
    context: Arc<Context>,
}

/// Returns a tree in which the stores of each directory are joined along a dimension. A tree of one store is unchanged.
pub(super) fn open(
    root: &Arc<dyn Directory>,
    along: &str,
    context: &Arc<Context>,
) -> Arc<dyn Directory> {
    let joining = Arc::new(Joining {
        along: along.to_owned(),
        context: context.clone(),
    });
    folder(root.clone(), &joining)
}

/// The most arrays that are asked for their dimensions before a join is taken as it is.
const MOST_ASKED: usize = 10_000;

/// Refuses a join along a dimension that no array has, of those that can be read; with the option `strict` also one that
/// leaves something out, or cannot be read.
pub(super) fn check(root: &Arc<dyn Directory>, along: &str, context: &Arc<Context>) -> Result<()> {
    let mut search = Search {
        along,
        asked: 0,
        known: BTreeSet::new(),
    };
    let is_known = search.has_dimension(root);
    if !is_known && search.asked > 0 && search.asked < MOST_ASKED {
        let known: Vec<String> = search.known.into_iter().collect();
        let there = match known.is_empty() {
            true => "none has a name".to_owned(),
            false => format!("there are {}", known.join(", ")),
        };
        let why = format!("join={along}: no array has a dimension of this name; {there}");
        return Err(Error::new(ErrorKind::Os(libc::EINVAL), why));
    }
    match context.options.strict {
        true => check_all(&open(root, along, context)),
        false => Ok(()),
    }
}

/// Lists all groups below a directory.
fn check_all(dir: &Arc<dyn Directory>) -> Result<()> {
    for (name, node) in dir.list()?.iter() {
        if let Node::Directory(below) = &*node
            && below.clone().array()?.is_none()
        {
            check_all(below).map_err(|e| e.about(String::from_utf8_lossy(&name)))?;
        }
    }
    Ok(())
}

/// A search for a dimension.
struct Search<'a> {
    along: &'a str,
    /// Arrays that told their dimensions.
    asked: usize,
    /// The names of the dimensions that were seen.
    known: BTreeSet<String>,
}

impl Search<'_> {
    /// Returns whether an array has the dimension: in a store one of its arrays, in a directory one of its first store.
    fn has_dimension(&mut self, dir: &Arc<dyn Directory>) -> bool {
        let Ok(listing) = dir.list() else {
            return false;
        };
        let mut has_store = false;
        for (_, node) in listing.iter() {
            if self.asked >= MOST_ASKED {
                return false;
            }
            if let Node::Directory(below) = &*node
                && below.is_store()
                && std::mem::replace(&mut has_store, true)
            {
                continue;
            }
            let found = match array_of(&node) {
                Ok(Some(array)) => self.asks(&*array),
                Ok(None) => match &*node {
                    Node::Directory(below) => self.has_dimension(below),
                    _ => false,
                },
                Err(_) => false,
            };
            if found {
                return true;
            }
        }
        false
    }

    /// Returns whether an array has the dimension.
    fn asks(&mut self, array: &dyn StoredArray) -> bool {
        let Ok(of) = array.describe() else {
            return false;
        };
        self.asked += 1;
        let Ok(named) = &of.details.dimensions else {
            return false;
        };
        let names = named.dimensions.iter().filter_map(|one| one.name());
        let names = names.map(|name| String::from_utf8_lossy(name).into_owned());
        self.known.extend(names);
        self.known.contains(self.along)
    }
}

fn folder(of: Arc<dyn Directory>, joining: &Arc<Joining>) -> Arc<dyn Directory> {
    match of.is_store() {
        true => of,
        false => Arc::new(JoinedFolder {
            of,
            joining: joining.clone(),
            now: Mutex::default(),
        }),
    }
}

/// A store and its name in the directory.
type Store = (Vec<u8>, Arc<dyn Directory>);

/// A directory of stores, or of directories of stores.
struct JoinedFolder {
    of: Arc<dyn Directory>,
    joining: Arc<Joining>,
    now: Mutex<Option<Arc<JoinedGroup>>>,
}

impl JoinedFolder {
    /// Returns the stores in the directory, and its other directories.
    fn stores(&self) -> Result<(Vec<Store>, Vec<Store>)> {
        let listing = self.of.list()?;
        // A step missing in the middle of the join would go unnoticed.
        if let Some((name, why)) = listing.left_out.first() {
            let name = String::from_utf8_lossy(name);
            let why = format!("{why}; a join takes all stores of a directory, or none");
            return Err(Error::damaged(why).about(name));
        }
        let (mut stores, mut others) = (Vec::new(), Vec::new());
        for (name, node) in listing.iter() {
            if let Node::Directory(dir) = &*node {
                let to = match dir.is_store() {
                    true => &mut stores,
                    false => &mut others,
                };
                to.push((name.into_owned(), dir.clone()));
            }
        }
        Ok((stores, others))
    }

    /// Returns the present stores as one; `None` if there are none.
    fn group(&self) -> Result<Option<Arc<JoinedGroup>>> {
        let mut now = self.now.lock();
        if let Some(known) = &*now
            && known.is_current()
        {
            return Ok(Some(known.clone()));
        }
        let (stores, _) = self.stores()?;
        *now = match stores.is_empty() {
            true => None,
            false => {
                let (joining, folder) = (self.joining.clone(), self.of.clone());
                Some(Arc::new(JoinedGroup::of_folder(joining, folder, stores)))
            }
        };
        Ok(now.clone())
    }
}

impl Directory for JoinedFolder {
    fn ownership(&self) -> Ownership {
        self.of.ownership()
    }

    fn list(&self) -> Result<Arc<Listing>> {
        if let Some(group) = self.group()? {
            return group.list();
        }
        let (_, others) = self.stores()?;
        let below = others.into_iter();
        let below = below
            .map(|(name, dir)| (name, Node::Directory(folder(dir, &self.joining))))
            .collect();
        Ok(Arc::new(Listing::new(below, Vec::new(), Vec::new())))
    }

    fn is_current(&self) -> bool {
        let now = self.now.lock();
        now.as_ref().is_none_or(|group| group.is_current()) && self.of.is_current()
    }

    /// Shows the stores of one listing, so that a view can cache information about them.
    fn at_present(&self) -> Result<Option<Arc<dyn Directory>>> {
        Ok(self.group()?.map(|group| group as Arc<dyn Directory>))
    }

    fn is_store(&self) -> bool {
        // A directory in which a store is left out cannot be read.
        self.of.list().is_ok_and(|listing| {
            let is_store = |node: &Node| matches!(node, Node::Directory(dir) if dir.is_store());
            !listing.left_out.is_empty() || listing.iter().any(|(_, node)| is_store(&node))
        })
    }

    fn info(&self) -> Result<Json> {
        match self.group()? {
            Some(group) => group.info(),
            None => self.of.info(),
        }
    }

    fn attributes(&self) -> Result<Vec<npyfs_hdf5::Attribute>> {
        match self.group()? {
            Some(group) => group.attributes(),
            None => self.of.attributes(),
        }
    }
}
