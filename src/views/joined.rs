//! The stores of a directory as one: arrays that have a dimension of a given name are joined along it, in order of the stores' names.
//!
//! A tree of one store in the place of a tree of many, which views are then made of. Whatever lies beside the dimension must be the
//! same in all stores: an array of which that is not true is left out, with the reason, and so no value is ever taken from one store
//! for another. Nothing is copied: a chunk is that of the store that it lies in, unless chunks do not meet where stores do.

mod array;
mod compare;
mod group;
mod layout;

use std::sync::Arc;

use serde_json::Value as Json;

use crate::dataset::context::Context;
use crate::error::Result;
use crate::io::file::Ownership;
use crate::tree::{Directory, Listing, Node};

use group::JoinedGroup;

/// What all parts of a joined tree know.
pub(super) struct Joining {
    /// The name of the dimension.
    along: String,
    context: Arc<Context>,
}

/// Returns a tree in which the stores of each directory are one, joined along a dimension. A tree of one store stays what it is.
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

fn folder(of: Arc<dyn Directory>, joining: &Arc<Joining>) -> Arc<dyn Directory> {
    match of.is_store() {
        true => of,
        false => Arc::new(JoinedFolder {
            of,
            joining: joining.clone(),
            now: std::sync::Mutex::default(),
        }),
    }
}

/// A store by its name in the directory.
type Store = (Vec<u8>, Arc<dyn Directory>);

/// A directory of stores, or of directories of stores.
struct JoinedFolder {
    of: Arc<dyn Directory>,
    joining: Arc<Joining>,
    now: std::sync::Mutex<Option<Arc<JoinedGroup>>>,
}

impl JoinedFolder {
    /// Returns the stores in the directory, and its other directories.
    fn stores(&self) -> Result<(Vec<Store>, Vec<Store>)> {
        let listing = self.of.list()?;
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

    /// Returns the stores as one, as they are at present; `None` if there are none.
    fn group(&self) -> Result<Option<Arc<JoinedGroup>>> {
        let mut now = self.now.lock().unwrap_or_else(|e| e.into_inner());
        if let Some(known) = &*now
            && known.is_current()
        {
            return Ok(Some(known.clone()));
        }
        let (stores, _) = self.stores()?;
        *now = match stores.is_empty() {
            true => None,
            false => Some(Arc::new(JoinedGroup::new(
                self.joining.clone(),
                Some(self.of.clone()),
                stores,
            ))),
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
        let now = self.now.lock().unwrap_or_else(|e| e.into_inner());
        now.as_ref().is_none_or(|group| group.is_current()) && self.of.is_current()
    }

    /// The stores of one listing, so that a view keeps what it learnt of them.
    fn at_present(&self) -> Result<Option<Arc<dyn Directory>>> {
        Ok(self.group()?.map(|group| group as Arc<dyn Directory>))
    }

    fn is_store(&self) -> bool {
        self.stores().is_ok_and(|(stores, _)| !stores.is_empty())
    }

    fn info(&self) -> Result<Json> {
        match self.group()? {
            Some(group) => group.info(),
            None => self.of.info(),
        }
    }

    fn attributes(&self) -> Result<Vec<crate::hdf5::Attribute>> {
        match self.group()? {
            Some(group) => group.attributes(),
            None => self.of.attributes(),
        }
    }
}
