//! A new file of links: what stands in a store and in the files of its layers appears as one tree of objects.
//!
//! A link to an object of another file costs nothing, keeps all that the object has, and is an error where that file is missing.
//! A group below which nothing was changed is one link. Any other group is made anew, with its attributes and a link for each
//! child: what is below a link is looked up in the file that it leads to, and would show what stood there before.

mod changes;
mod client;
mod joined;
mod seal;

use std::collections::{BTreeSet, HashMap, HashSet, VecDeque};
use std::path::Path;

use serde::{Deserialize, Serialize};

use super::edit::lists::change_list;
use super::edit::{EditStep, MAX_SMALL_ATTRIBUTE, ObjectPath, SourceFile};
use super::ffi::{self, Failure, Id, ObjectKind, RawLink};
use super::{Answer, H5Error};
use crate::io::file::StoreFile;
use changes::Changes;

/// Files that are held open, at most.
const MOST_OPEN: usize = 256;

/// The attribute of the root group that says of which files a publication consists, as JSON.
pub const PUBLISHED: &str = "npyfs_published";

/// A file of links that is to be made.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct NewPublication {
    /// The files that are linked to. The first is the store's, or the first ones are.
    pub files: Vec<LinkedFile>,
    /// For a store of several files: the steps that join its objects in one, those of groups and datasets alone.
    pub joined: Option<Vec<EditStep>>,
    /// What the layers say of objects, by path. What stands at a path hides what the store has there and below.
    pub changes: Vec<(ObjectPath, PublishedChange)>,
    /// The names of attributes in which a group lists members.
    pub lists: Vec<Vec<u8>>,
    /// What the attribute [`PUBLISHED`] says beside the files that are linked to: a JSON object.
    pub about: String,
}

/// A file that is linked to.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct LinkedFile {
    /// The file.
    pub from: SourceFile,
    /// Its path as links have it: from the directory of the new file.
    pub name: Vec<u8>,
    /// What the attribute [`PUBLISHED`] says of it, if it is linked to: JSON.
    pub about: String,
}

/// What a layer says of an object.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub enum PublishedChange {
    /// Nothing is there.
    Deleted,
    /// It is at the same path of this one of the files.
    Stored(usize),
}

/// Objects that have no counterpart, and why.
pub type Unpublished = Vec<(ObjectPath, String)>;

/// The outcome of a publication.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct PublishedLinks {
    /// Objects that have no counterpart, and why.
    pub lost: Unpublished,
    /// Numbers of the files that are linked to, and of the store's.
    pub used: BTreeSet<usize>,
}

/// Groups of the store that must be made anew, and what the layers say of what is in them, by address.
#[derive(Default)]
struct Changed<'a> {
    groups: HashSet<u64>,
    changes: HashMap<u64, &'a Changes<'a>>,
}

/// A group that was made, and is still to be filled.
struct Unfilled<'a> {
    path: ObjectPath,
    /// The group of another file whose children it gets: the number of the file, and the address.
    like: Option<(usize, u64)>,
    changes: Option<&'a Changes<'a>>,
}

/// Makes `file` in this process.
pub(super) fn publish(file: &StoreFile, new: &NewPublication) -> Result<Answer, H5Error> {
    let held = file.file().map_err(H5Error::from)?;
    let path = held.path();
    let (links, root) = ffi::locked(|| -> Result<(PublishedLinks, u64), H5Error> {
        let Some(first) = new.files.first() else {
            return Err(H5Error::Damaged("no store".into()));
        };
        let store = first.from.open()?;
        let changes = Changes::of(&new.changes);
        let changed = match new.changes.is_empty() || new.joined.is_some() {
            true => Changed::default(),
            false => changed(&store, &changes)?,
        };
        let root = ffi::open_at(&store, &[])?;
        let target = ffi::create_like(path.as_bytes(), &root)?;
        let mut maker = Maker {
            target,
            new,
            changed,
            opened: HashMap::from([(0, store)]),
            made: HashMap::new(),
            queue: VecDeque::new(),
            links: PublishedLinks {
                lost: Vec::new(),
                used: BTreeSet::from([0]),
            },
        };
        maker.root(&root, &changes)?;
        drop(root);
        while let Some(group) = maker.queue.pop_front() {
            maker.fill(&group)?;
        }
        maker.describe()?;
        let Maker { target, links, .. } = maker;
        let root = ffi::root_addr(&target)?;
        ffi::finish(target)?;
        Ok((links, root))
    })?;
    seal::seal(Path::new(&path), root)?;
    Ok(Answer::Published(links))
}

/// Finds the groups of a store that must be made anew: those with changes, those with soft links that lead anywhere in the
/// file, and all groups above.
fn changed<'a>(store: &Id, changes: &'a Changes<'a>) -> Result<Changed<'a>, Failure> {
    let root = ffi::root_addr(store)?;
    let mut changed = Changed::default();
    // What is changed lies at the paths of the mount, which lead through groups alone.
    let mut queue = vec![(root, changes)];
    while let Some((addr, changes)) = queue.pop() {
        changed.groups.insert(addr);
        changed.changes.insert(addr, changes);
        let group = ffi::open_object(store, addr)?;
        for (name, below) in &changes.below {
            if below.own.is_none()
                && let Some(RawLink::Hard(child)) = ffi::link(&group, name)?
                && is_group(store, child)
            {
                queue.push((child, below));
            }
        }
    }
    let mut above: HashMap<u64, Vec<u64>> = HashMap::from([(root, Vec::new())]);
    let mut queue = VecDeque::from([root]);
    while let Some(addr) = queue.pop_front() {
        let Ok(group) = ffi::open_object(store, addr) else {
            continue;
        };
        for (_, link) in ffi::links(&group).0 {
            match link {
                RawLink::Soft(target) if target.starts_with(b"/") => {
                    changed.groups.insert(addr);
                }
                RawLink::Hard(child) => match above.get_mut(&child) {
                    Some(above) => above.push(addr),
                    None if is_group(store, child) => {
                        above.insert(child, vec![addr]);
                        queue.push_back(child);
                    }
                    None => {}
                },
                _ => {}
            }
        }
    }
    let mut queue: Vec<u64> = changed.groups.iter().copied().collect();
    while let Some(addr) = queue.pop() {
        for &above in above.get(&addr).into_iter().flatten() {
            if changed.groups.insert(above) {
                queue.push(above);
            }
        }
    }
    Ok(changed)
}

fn is_group(file: &Id, addr: u64) -> bool {
    ffi::open_object(file, addr).is_ok_and(|object| ffi::kind(&object) == ObjectKind::Group)
}

/// The work on a file of links.
struct Maker<'a> {
    target: Id,
    new: &'a NewPublication,
    changed: Changed<'a>,
    /// Files that are open, by number.
    opened: HashMap<usize, Id>,
    /// Where groups of the store were made, by address.
    made: HashMap<u64, ObjectPath>,
    queue: VecDeque<Unfilled<'a>>,
    links: PublishedLinks,
}

impl<'a> Maker<'a> {
    /// Fills the root group but for what is in it.
    fn root(&mut self, store: &Id, changes: &'a Changes<'a>) -> Result<(), Failure> {
        let root = ffi::open_at(&self.target, &[])?;
        seal::prepare(&root)?;
        let new = self.new;
        let like = match &new.joined {
            Some(joined) => {
                self.join(joined, changes)?;
                None
            }
            None => {
                // It has no room for large ones.
                self.attributes(store, &root, &[], false)?;
                let addr = ffi::object_info(store)?.addr;
                self.made.insert(addr, Vec::new());
                Some((0, addr))
            }
        };
        self.queue.push_back(Unfilled {
            path: Vec::new(),
            like,
            changes: Some(changes),
        });
        Ok(())
    }

    /// Says in the file which others it depends on.
    fn describe(&self) -> Result<(), H5Error> {
        let strange = |e: serde_json::Error| H5Error::Damaged(e.to_string());
        let mut about: serde_json::Map<String, serde_json::Value> =
            serde_json::from_str(&self.new.about).map_err(strange)?;
        let files = self.links.used.iter();
        let files = files.filter_map(|&file| self.new.files.get(file));
        let files: Result<Vec<serde_json::Value>, _> = files
            .map(|file| serde_json::from_str(&file.about))
            .collect();
        about.insert("files".to_owned(), files.map_err(strange)?.into());
        let text = serde_json::to_string(&about).map_err(strange)?;
        let root = ffi::open_at(&self.target, &[])?;
        if ffi::has_attribute(&root, PUBLISHED.as_bytes())? {
            ffi::remove_attribute(&root, PUBLISHED.as_bytes())?;
        }
        Ok(ffi::add_strings(&root, PUBLISHED.as_bytes(), &[], &[text])?)
    }

    /// Copies the attributes of a group, but for references, which lead within a file.
    fn attributes(
        &mut self,
        from: &Id,
        to: &Id,
        path: &[Vec<u8>],
        large: bool,
    ) -> Result<(), Failure> {
        for (name, attribute) in ffi::attributes(from)? {
            if name == PUBLISHED.as_bytes() || name == seal::MARK.as_bytes() {
                continue;
            }
            let why = if ffi::has_references(&ffi::attribute_type(&attribute)?) {
                "a reference to an object leads nowhere in another file"
            } else if !large && ffi::attribute_bytes(from, &name)? > MAX_SMALL_ATTRIBUTE {
                "an attribute of this size has no room in the root group"
            } else {
                ffi::copy_attribute(from, to, &name)?;
                continue;
            };
            let mut path = path.to_vec();
            let last = path.pop().unwrap_or_default();
            path.push([&last, &b"@"[..], &name].concat());
            self.links.lost.push((path, why.to_owned()));
        }
        Ok(())
    }

    fn fill(&mut self, group: &Unfilled<'a>) -> Result<(), Failure> {
        let changes = group.changes.map(|changes| &changes.below);
        let mut met: HashSet<Vec<u8>> = HashSet::new();
        if let Some((file, addr)) = group.like {
            let links = {
                let source = self.open(file)?;
                let source = ffi::open_object(source, addr)?;
                let (links, damage) = ffi::links_as_listed(&source);
                if let Some(damage) = damage {
                    let why = format!("the group is damaged: {damage}");
                    self.links.lost.push((group.path.clone(), why));
                }
                links
            };
            self.relist(&group.path, &links, group.changes)?;
            for (name, link) in links {
                let said = changes.and_then(|changes| changes.get(name.as_slice()));
                if said.is_some_and(|said| said.own.is_some()) {
                    continue;
                }
                self.child((file, &group.path), &name, link, said)?;
                met.insert(name);
            }
        }
        for (name, said) in changes.into_iter().flatten() {
            let path = [group.path.as_slice(), &[name.to_vec()]].concat();
            match said.own {
                Some(PublishedChange::Stored(file)) => self.stored(file, path, said)?,
                Some(PublishedChange::Deleted) if said.below.is_empty() => {}
                None if met.contains(*name) => {}
                // It was joined.
                None if ffi::exists(&self.target, &path)? => self.queue.push_back(Unfilled {
                    path,
                    like: None,
                    changes: Some(said),
                }),
                // What is in it was stored after it had gone.
                Some(PublishedChange::Deleted) | None => self.group(path, None, Some(said))?,
            }
        }
        Ok(())
    }

    /// Changes the lists of the members of a group that had some links: what is new comes last, and what is gone leaves them.
    fn relist(
        &self,
        path: &ObjectPath,
        had: &[(Vec<u8>, RawLink)],
        changes: Option<&'a Changes<'a>>,
    ) -> Result<(), Failure> {
        let Some(changes) = changes.filter(|_| !self.new.lists.is_empty()) else {
            return Ok(());
        };
        let group = ffi::open_at(&self.target, path)?;
        for attribute in &self.new.lists {
            for (name, said) in &changes.below {
                let is_new = !had.iter().any(|(had, _)| had == name);
                match said.own {
                    Some(PublishedChange::Stored(_)) if is_new => {
                        change_list(&group, attribute, name, &|list, name| list.push(name))?;
                    }
                    Some(PublishedChange::Deleted) => {
                        let gone =
                            |list: &mut Vec<String>, name| list.retain(|known| *known != name);
                        change_list(&group, attribute, name, &gone)?;
                    }
                    Some(PublishedChange::Stored(_)) | None => {}
                }
            }
        }
        Ok(())
    }

    /// Adds a child of a group of another file, of which the layers say nothing themselves.
    fn child(
        &mut self,
        (file, above): (usize, &[Vec<u8>]),
        name: &[u8],
        link: RawLink,
        said: Option<&'a Changes<'a>>,
    ) -> Result<(), Failure> {
        let path = [above, &[name.to_vec()]].concat();
        match link {
            RawLink::Hard(addr) => {
                let source = self.open(file)?;
                if !is_group(source, addr) || !self.is_changed(file, addr, said) {
                    return self.link(file, &path);
                }
                if file == 0
                    && let Some(first) = self.made.get(&addr)
                {
                    return ffi::hard_link(&self.target, first, &path);
                }
                let said = said.or_else(|| self.changed.changes.get(&addr).copied());
                self.group(path, Some((file, addr)), said)
            }
            RawLink::Soft(to) => ffi::soft_link(&self.target, &path.join(&b'/'), &to),
            // It is followed from the file that it is in.
            RawLink::External(..) => self.link(file, &path),
            RawLink::Damaged(why) => {
                self.links.lost.push((path, why));
                Ok(())
            }
        }
    }

    fn is_changed(&self, file: usize, addr: u64, said: Option<&Changes<'_>>) -> bool {
        said.is_some() || file == 0 && self.changed.groups.contains(&addr)
    }

    /// Adds an object that a layer has stored.
    fn stored(
        &mut self,
        file: usize,
        path: ObjectPath,
        said: &'a Changes<'a>,
    ) -> Result<(), Failure> {
        let source = match self.open(file) {
            Ok(source) => source,
            Err(e) => {
                self.links.lost.push((path, e.0));
                return Ok(());
            }
        };
        if !ffi::exists(source, &path)? {
            let why = "the file of the checkout does not have it".to_owned();
            self.links.lost.push((path, why));
            return Ok(());
        }
        let object = ffi::open_at(source, &path)?;
        let group = match ffi::kind(&object) {
            ObjectKind::Group if !said.below.is_empty() => Some(ffi::object_info(&object)?.addr),
            _ => None,
        };
        drop(object);
        match group {
            Some(addr) => self.group(path, Some((file, addr)), Some(said))?,
            None => self.link(file, &path)?,
        }
        // There are as many as there are objects.
        self.opened.retain(|&number, _| number == 0);
        Ok(())
    }

    fn link(&mut self, file: usize, path: &[Vec<u8>]) -> Result<(), Failure> {
        self.links.used.insert(file);
        let Some(linked) = self.new.files.get(file) else {
            return Err(Failure("no such file".into()));
        };
        ffi::external_link(&self.target, path, &linked.name, path)
    }

    /// Makes a group, which is filled later, so that groups of any depth take no more of the stack.
    fn group(
        &mut self,
        path: ObjectPath,
        like: Option<(usize, u64)>,
        changes: Option<&'a Changes<'a>>,
    ) -> Result<(), Failure> {
        self.make_group(&path, like)?;
        self.queue.push_back(Unfilled {
            path,
            like,
            changes,
        });
        Ok(())
    }

    /// Makes a group like that of another file, with its attributes.
    fn make_group(&mut self, path: &[Vec<u8>], like: Option<(usize, u64)>) -> Result<(), Failure> {
        match like {
            None => drop(ffi::group_like(&self.target, path, None, false)?),
            Some((file, addr)) => {
                let source = ffi::open_object(self.open(file)?, addr)?;
                let mut large = false;
                for (name, _) in ffi::attributes(&source)? {
                    large |= ffi::attribute_bytes(&source, &name)? > MAX_SMALL_ATTRIBUTE;
                }
                let group = ffi::group_like(&self.target, path, Some(&source), large)?;
                self.attributes(&source, &group, path, true)?;
                if file == 0 {
                    self.made.insert(addr, path.to_vec());
                }
            }
        }
        Ok(())
    }

    fn open(&mut self, file: usize) -> Result<&Id, Failure> {
        if !self.opened.contains_key(&file) {
            let Some(linked) = self.new.files.get(file) else {
                return Err(Failure("no such file".into()));
            };
            if self.opened.len() >= MOST_OPEN {
                self.opened.retain(|&number, _| number == 0);
            }
            self.opened.insert(file, linked.from.open()?);
        }
        let opened = self.opened.get(&file);
        opened.ok_or_else(|| Failure("no such file".into()))
    }
}
