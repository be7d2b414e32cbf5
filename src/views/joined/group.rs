//! Groups of one name in several stores, as one group.

use std::collections::HashSet;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, OnceLock};
use std::time::{Duration, Instant};

use serde_json::{Value as Json, json};

use super::array::{JoinedArray, JoinedDirectory, Part};
use super::{Joining, Store};
use crate::error::{Error, Result};
use crate::hdf5::Attribute;
use crate::io::file::Ownership;
use crate::io::thread;
use crate::tree::array::StoredArray;
use crate::tree::{Directory, Listing, Node, info};

/// The stores of a listing are looked at again when this has passed.
const LOOK_AGAIN: Duration = Duration::from_secs(1);

/// Names that only one store has of which the reasons are told.
const MOST_OTHERS: usize = 1000;

/// Stores that are asked at the same time, at least: over a network each of them waits.
const AT_ONCE: usize = 8;

/// The same group of all stores.
pub(super) struct JoinedGroup {
    joining: Arc<Joining>,
    /// The directory that the stores lie in, for the group that is the root of all.
    folder: Option<Arc<dyn Directory>>,
    stores: Vec<Store>,
    listing: OnceLock<Arc<Listing>>,
    ownership: OnceLock<Ownership>,
    looked: Mutex<Option<Instant>>,
}

/// What one store has in the group.
struct Found {
    arrays: Vec<Option<Part>>,
    groups: Vec<Option<Arc<dyn Directory>>>,
    /// Names of arrays and groups that the first store has not.
    others: Vec<Vec<u8>>,
}

/// What the first store has in the group: the others are asked for the same.
#[derive(Default)]
struct Wanted {
    arrays: Vec<(Vec<u8>, Part)>,
    groups: Vec<(Vec<u8>, Arc<dyn Directory>)>,
    left_out: Vec<(Vec<u8>, String)>,
    /// The names of all of them.
    names: HashSet<Vec<u8>>,
}

fn array_of(node: &Node) -> Result<Option<Arc<dyn StoredArray>>> {
    match node {
        Node::File(file) => file.clone().array(),
        Node::Directory(dir) => dir.clone().array(),
        Node::Symlink(_) => Ok(None),
    }
}

impl JoinedGroup {
    pub(super) fn new(
        joining: Arc<Joining>,
        folder: Option<Arc<dyn Directory>>,
        stores: Vec<Store>,
    ) -> Self {
        Self {
            joining,
            folder,
            stores,
            listing: OnceLock::new(),
            ownership: OnceLock::new(),
            looked: Mutex::new(Some(Instant::now())),
        }
    }

    fn name_of(&self, store: usize) -> String {
        let name = self.stores.get(store).map_or(&b""[..], |(name, _)| name);
        String::from_utf8_lossy(name).into_owned()
    }

    fn first(&self) -> Result<&Store> {
        let first = self.stores.first();
        first.ok_or_else(|| Error::damaged("a directory without stores"))
    }

    /// Returns what the first store has.
    fn wanted(&self) -> Result<Wanted> {
        let (name, first) = self.first()?;
        let listing = first
            .list()
            .map_err(|e| e.about(String::from_utf8_lossy(name)))?;
        let mut wanted = Wanted {
            left_out: listing.left_out.clone(),
            ..Wanted::default()
        };
        for (shown, node) in listing.iter() {
            let shown = shown.into_owned();
            match (array_of(&node), &*node) {
                (Ok(Some(array)), _) => match Part::new(array) {
                    Ok(part) => wanted.arrays.push((shown, part)),
                    Err(e) if e.is_passing() => return Err(e),
                    Err(e) => wanted.left_out.push((shown, e.message)),
                },
                (Ok(None), Node::Directory(dir)) => wanted.groups.push((shown, dir.clone())),
                (Ok(None), Node::Symlink(_)) => {
                    let why = "links are not joined".to_owned();
                    wanted.left_out.push((shown, why));
                }
                (Ok(None), Node::File(_)) => {}
                (Err(e), _) if e.is_passing() => return Err(e),
                (Err(e), _) => wanted.left_out.push((shown, e.message)),
            }
        }
        let arrays = wanted.arrays.iter().map(|(name, _)| name);
        let groups = wanted.groups.iter().map(|(name, _)| name);
        let left_out = wanted.left_out.iter().map(|(name, _)| name);
        wanted.names = arrays.chain(groups).chain(left_out).cloned().collect();
        Ok(wanted)
    }

    /// Returns what a store has of what is wanted.
    fn found(&self, store: usize, wanted: &Wanted) -> Result<Found> {
        let about = |e: Error| e.about(self.name_of(store));
        let (_, dir) = self
            .stores
            .get(store)
            .ok_or_else(|| Error::damaged("no such store"))?;
        let listing = dir.list().map_err(about)?;
        let mut found = Found {
            arrays: Vec::with_capacity(wanted.arrays.len()),
            groups: Vec::with_capacity(wanted.groups.len()),
            others: Vec::new(),
        };
        for (name, _) in &wanted.arrays {
            let array = listing.find(name).map(|node| array_of(&node));
            let array = array.transpose().map_err(about)?.flatten();
            let part = array.map(Part::new).transpose().map_err(about)?;
            found.arrays.push(part);
        }
        for (name, _) in &wanted.groups {
            found.groups.push(match listing.find(name) {
                Some(Node::Directory(dir)) => Some(dir),
                _ => None,
            });
        }
        for (name, node) in listing.iter() {
            let is_known = wanted.names.contains(&*name);
            if !is_known && !matches!(&*node, Node::Symlink(_)) && found.others.len() < MOST_OTHERS
            {
                found.others.push(name.into_owned());
            }
        }
        Ok(found)
    }

    /// Asks all stores but the first, several at a time.
    fn ask(&self, wanted: &Wanted) -> Result<Vec<Found>> {
        let next = AtomicUsize::new(1);
        let made: Vec<Mutex<Option<Result<Found>>>> =
            self.stores.iter().map(|_| Mutex::default()).collect();
        let work = || {
            loop {
                let store = next.fetch_add(1, Ordering::Relaxed);
                let Some(slot) = made.get(store) else {
                    return;
                };
                let found = self.found(store, wanted);
                let failed = found.is_err();
                *slot.lock().unwrap_or_else(|e| e.into_inner()) = Some(found);
                if failed {
                    return next.store(self.stores.len(), Ordering::Relaxed);
                }
            }
        };
        let threads = self.joining.context.decoders.processors().max(AT_ONCE);
        thread::scope(|scope| {
            for _ in 1..threads.min(self.stores.len()) {
                scope.spawn(work);
            }
            work();
        });
        let made = made.into_iter().skip(1);
        let mut found = Vec::new();
        let mut failed = None;
        for one in made {
            match one.into_inner().unwrap_or_else(|e| e.into_inner()) {
                Some(Ok(one)) => found.push(one),
                Some(Err(e)) => failed = failed.or(Some(e)),
                // Nobody asks any more once a store failed.
                None => {}
            }
        }
        match failed {
            Some(e) => Err(e),
            None => Ok(found),
        }
    }

    fn make(&self) -> Result<Listing> {
        let wanted = self.wanted()?;
        let found = self.ask(&wanted)?;
        let Wanted {
            arrays,
            groups,
            mut left_out,
            mut names,
        } = wanted;
        for (store, one) in found.iter().enumerate() {
            for name in &one.others {
                if names.insert(name.clone()) {
                    let why = format!(
                        "{} has it, {} has not",
                        self.name_of(store + 1),
                        self.name_of(0)
                    );
                    left_out.push((name.clone(), why));
                }
            }
        }
        let mut entries = Vec::new();
        let mut columns: Vec<Vec<Option<Part>>> = arrays
            .iter()
            .map(|_| Vec::with_capacity(found.len()))
            .collect();
        let mut below: Vec<Vec<Option<Arc<dyn Directory>>>> = groups
            .iter()
            .map(|_| Vec::with_capacity(found.len()))
            .collect();
        for one in found {
            let parts = columns.iter_mut().zip(one.arrays);
            parts.for_each(|(column, part)| column.push(part));
            let dirs = below.iter_mut().zip(one.groups);
            dirs.for_each(|(column, dir)| column.push(dir));
        }
        for ((name, first), others) in arrays.into_iter().zip(columns) {
            let missing = others.iter().position(Option::is_none);
            let parts: Vec<Part> = std::iter::once(first)
                .chain(others.into_iter().flatten())
                .collect();
            let joined = match missing {
                Some(at) => Err(format!("{} has no such array", self.name_of(at + 1))),
                None => JoinedArray::new(&self.joining, parts, |store| self.name_of(store)),
            };
            match joined {
                Ok(array) => {
                    let ownership = self.ownership();
                    let dir = JoinedDirectory::new(Arc::new(array), ownership);
                    entries.push((name, Node::Directory(Arc::new(dir))));
                }
                Err(why) => left_out.push((name, why)),
            }
        }
        for ((name, first), others) in groups.into_iter().zip(below) {
            if let Some(at) = others.iter().position(Option::is_none) {
                let why = format!("{} has no such group", self.name_of(at + 1));
                left_out.push((name, why));
                continue;
            }
            let dirs = std::iter::once(first).chain(others.into_iter().flatten());
            let names = self.stores.iter().map(|(name, _)| name.clone());
            let group = Self::new(self.joining.clone(), None, names.zip(dirs).collect());
            entries.push((name, Node::Directory(Arc::new(group))));
        }
        Ok(Listing::new(entries, left_out, Vec::new()))
    }
}

impl Directory for JoinedGroup {
    fn ownership(&self) -> Ownership {
        *self.ownership.get_or_init(|| {
            let all = self.stores.iter().map(|(_, dir)| dir.ownership());
            all.max_by_key(|of| of.mtime).unwrap_or(Ownership::UNKNOWN)
        })
    }

    fn list(&self) -> Result<Arc<Listing>> {
        if let Some(known) = self.listing.get() {
            return Ok(known.clone());
        }
        let made = Arc::new(self.make()?);
        Ok(self.listing.get_or_init(|| made).clone())
    }

    fn is_current(&self) -> bool {
        let mut looked = self.looked.lock().unwrap_or_else(|e| e.into_inner());
        let Some(last) = *looked else {
            return false;
        };
        if last.elapsed() < LOOK_AGAIN {
            return true;
        }
        let names = || self.stores.iter().map(|(name, _)| name);
        let is_same = self.folder.as_ref().is_none_or(|folder| {
            folder.is_current()
                && folder.list().is_ok_and(|listing| {
                    let stores = listing.iter().filter(
                        |(_, node)| matches!(&**node, Node::Directory(dir) if dir.is_store()),
                    );
                    stores
                        .map(|(name, _)| name.into_owned())
                        .eq(names().cloned())
                })
        });
        let is_current = is_same && self.stores.iter().all(|(_, dir)| dir.is_current());
        *looked = is_current.then(Instant::now);
        is_current
    }

    fn is_store(&self) -> bool {
        self.folder.is_some()
    }

    fn info(&self) -> Result<Json> {
        let listing = self.list()?;
        Ok(json!({
            "kind": "group",
            "joined": { "along": self.joining.along, "stores": self.stores.len() },
            "entries": listing.len(),
            "left_out": info::left_out(&listing.left_out),
        }))
    }

    fn attributes(&self) -> Result<Vec<Attribute>> {
        self.first()?.1.attributes()
    }
}
