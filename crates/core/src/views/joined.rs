//! Joins the stores of a directory in one: arrays with a dimension of a given name are joined along it, in order of the
//! stores' names.
//!
//! The result is a tree of one store in place of a tree of many, for views. Groups of the same name in several stores
//! are one group. All other dimensions must be the same in all stores: an array for which they are not is left out with
//! the reason, so no value is ever taken from the wrong store. Nothing is copied: each chunk is one of a store, unless
//! chunk boundaries do not coincide with the boundaries of stores.

mod array;

use std::collections::{BTreeSet, HashSet};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use serde_json::{Value as Json, json};

use crate::dataset::context::Context;
use crate::tree::array::StoredArray;
use crate::tree::{Directory, Listing, Node, info};
use array::{JoinedArray, JoinedDirectory, Part};
use npyfs_base::error::{Error, ErrorKind, Result};
use npyfs_base::thread;
use npyfs_hdf5::Attribute;
use npyfs_io::file::Ownership;

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

/// Refuses a join along a dimension that no array has, of those that can be read; with the option `strict` also one
/// that leaves something out, or cannot be read.
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

/// The time after which the stores of a listing are checked again.
const LOOK_AGAIN: Duration = Duration::from_secs(1);

/// The most names existing in a single store that are reported with reasons.
const MOST_OTHERS: usize = 1000;

/// The least number of stores that are accessed concurrently: over a network each of them waits.
const AT_ONCE: usize = 8;

/// A group joined over all stores.
struct JoinedGroup {
    joining: Arc<Joining>,
    /// The directory of the stores, for the root group.
    folder: Option<Arc<dyn Directory>>,
    stores: Vec<Store>,
    /// Each store as of its first access: the group shows these versions.
    present: Vec<OnceLock<Arc<dyn Directory>>>,
    /// Set once one of these versions is found to be outdated; shared with the groups below.
    is_outdated: Arc<AtomicBool>,
    listing: OnceLock<Arc<Listing>>,
    ownership: OnceLock<Ownership>,
    looked: Mutex<Option<Instant>>,
    /// How many arrays and groups of stores the listing leaves out because of the others.
    lost: AtomicUsize,
}

/// The members of one store's group.
struct GroupNodes {
    arrays: Vec<Option<Part>>,
    groups: Vec<Option<Arc<dyn Directory>>>,
    /// Names of arrays and groups that the first store lacks.
    others: Vec<Vec<u8>>,
}

/// The members of the first store's group, which are looked up in the others.
#[derive(Default)]
struct FirstMembers {
    arrays: Vec<(Vec<u8>, Part)>,
    groups: Vec<(Vec<u8>, Arc<dyn Directory>)>,
    left_out: Vec<(Vec<u8>, String)>,
    /// All of their names.
    names: HashSet<Vec<u8>>,
}

/// Returns the array that a node is.
fn array_of(node: &Node) -> Result<Option<Arc<dyn StoredArray>>> {
    match node {
        Node::File(file) => file.clone().array(),
        Node::Directory(dir) => dir.clone().array(),
        Node::Symlink(_) => Ok(None),
    }
}

impl JoinedGroup {
    /// Returns the joined root group of the stores in a directory.
    fn of_folder(joining: Arc<Joining>, folder: Arc<dyn Directory>, stores: Vec<Store>) -> Self {
        Self::new(joining, Some(folder), stores, Arc::default())
    }

    fn new(
        joining: Arc<Joining>,
        folder: Option<Arc<dyn Directory>>,
        stores: Vec<Store>,
        is_outdated: Arc<AtomicBool>,
    ) -> Self {
        Self {
            joining,
            folder,
            present: stores.iter().map(|_| OnceLock::new()).collect(),
            stores,
            is_outdated,
            listing: OnceLock::new(),
            ownership: OnceLock::new(),
            looked: Mutex::new(Some(Instant::now())),
            lost: AtomicUsize::new(0),
        }
    }

    fn name_of(&self, store: usize) -> String {
        let name = self.stores.get(store).map_or(&b""[..], |(name, _)| name);
        String::from_utf8_lossy(name).into_owned()
    }

    /// Returns a store as of the group's first access.
    fn present(&self, store: usize) -> Result<&Arc<dyn Directory>> {
        let none = || Error::damaged("a directory without stores");
        let slot = self.present.get(store).ok_or_else(none)?;
        if let Some(known) = slot.get() {
            return Ok(known);
        }
        let (_, dir) = self.stores.get(store).ok_or_else(none)?;
        let now = dir.at_present();
        let now = now.map_err(|e| e.about(self.name_of(store)))?;
        Ok(slot.get_or_init(|| now.unwrap_or_else(|| dir.clone())))
    }

    /// Returns the members of the first store.
    fn wanted(&self) -> Result<FirstMembers> {
        let listing = self.present(0)?.list();
        let listing = listing.map_err(|e| e.about(self.name_of(0)))?;
        let mut wanted = FirstMembers {
            left_out: listing.left_out.clone(),
            ..FirstMembers::default()
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

    /// Looks up the wanted members in a store.
    fn found(&self, store: usize, wanted: &FirstMembers) -> Result<GroupNodes> {
        let about = |e: Error| e.about(self.name_of(store));
        let listing = self.present(store)?.list().map_err(about)?;
        let mut found = GroupNodes {
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
            let group = listing.find(name).and_then(Node::directory);
            found.groups.push(group);
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

    /// Looks them up in all stores but the first, several at a time.
    fn ask(&self, wanted: &FirstMembers) -> Result<Vec<GroupNodes>> {
        let next = AtomicUsize::new(1);
        let made: Vec<Mutex<Option<Result<GroupNodes>>>> =
            self.stores.iter().map(|_| Mutex::default()).collect();
        let work = || {
            loop {
                let store = next.fetch_add(1, Ordering::Relaxed);
                let Some(slot) = made.get(store) else {
                    return;
                };
                let found = self.found(store, wanted);
                let failed = found.is_err();
                *slot.lock() = Some(found);
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
            match one.into_inner() {
                Some(Ok(one)) => found.push(one),
                Some(Err(e)) => failed = failed.or(Some(e)),
                // After a failure, no further stores are accessed.
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
        let FirstMembers {
            arrays,
            groups,
            mut left_out,
            mut names,
        } = wanted;
        let before = left_out.len();
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
                None => {
                    let outdated = self.is_outdated.clone();
                    JoinedArray::new(&self.joining, parts, outdated, |store| self.name_of(store))
                }
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
            let stores = names.zip(dirs).collect();
            let group = Self::new(self.joining.clone(), None, stores, self.is_outdated.clone());
            entries.push((name, Node::Directory(Arc::new(group))));
        }
        // An object that no store shows is not lost by joining.
        let along = &self.joining.along;
        let lines: Vec<String> = left_out
            .iter()
            .skip(before)
            .map(|(name, why)| {
                let name = String::from_utf8_lossy(name);
                format!("{name}: left out of the join along {along}: {why}")
            })
            .collect();
        let context = &self.joining.context;
        lines.iter().for_each(|line| context.journal.add(line));
        self.lost.store(lines.len(), Ordering::Relaxed);
        if let (Some(first), true) = (lines.first(), context.options.strict) {
            let more = match lines.len() - 1 {
                0 => String::new(),
                more => format!(", and {more} more"),
            };
            return Err(Error::damaged(format!("{first}{more} (-o strict)")));
        }
        Ok(Listing::new(entries, left_out, Vec::new()))
    }
}

impl Directory for JoinedGroup {
    fn ownership(&self) -> Ownership {
        *self.ownership.get_or_init(|| {
            let known = self.present.iter().map(OnceLock::get);
            let all = self.stores.iter().zip(known);
            Ownership::joined(all.map(|((_, dir), known)| known.unwrap_or(dir).ownership()))
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
        if self.is_outdated.load(Ordering::Relaxed) {
            return false;
        }
        let mut looked = self.looked.lock();
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
        let mut known = self.present.iter().filter_map(OnceLock::get);
        let is_current = is_same && known.all(|dir| dir.is_current());
        *looked = is_current.then(Instant::now);
        if !is_current {
            self.is_outdated.store(true, Ordering::Relaxed);
        }
        is_current
    }

    fn is_store(&self) -> bool {
        self.folder.is_some()
    }

    fn info(&self) -> Result<Json> {
        let listing = self.list()?;
        let mut joined = json!({ "along": self.joining.along, "stores": self.stores.len() });
        let lost = self.lost.load(Ordering::Relaxed);
        if lost > 0 {
            joined["left_out"] = json!(lost);
        }
        Ok(json!({
            "kind": "group",
            "joined": joined,
            "entries": listing.len(),
            "left_out": info::left_out(&listing.left_out),
        }))
    }

    fn attributes(&self) -> Result<Vec<Attribute>> {
        self.present(0)?.attributes()
    }
}
