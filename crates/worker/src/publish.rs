//! A new file of links: the contents of a store and of the files of its layers appear as one tree of objects.
//!
//! A link to an object of another file costs nothing, keeps everything that the object has, and is an error if that
//! file is missing. A group with no changes below it is one link. Any other group is made anew, with its attributes and
//! a link for each child: anything below a link is looked up in the file that it leads to, and would show the old
//! contents.
//!
//! Joined objects of a store of several files are virtual datasets over the datasets of the files, one after the other.
//! Elements that no file stores in that form, such as starts that begin anew in each file, are written. If a file is
//! missing, a virtual dataset shows its fill value without an error: one that no program writes, so that it is never
//! taken for data and is never zero (NaN, the least signed integer, or the largest unsigned integer).

mod seal;

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet, VecDeque};
use std::path::Path;

use super::edit::{apply, change_list, copy_attributes, open, open_object, shown};
use super::ffi::{self, Failure, Id, ObjectKind, RawLink, VirtualPiece};
use npyfs_hdf5::protocol::{
    Answer, EditStep, H5Error, Holders, MAX_SMALL_ATTRIBUTE, NewPublication, ObjectPath, PUBLISHED,
    Piece, PublishedChange, PublishedLinks, SourceObject,
};
use npyfs_io::file::StoreFile;

/// The largest number of files that are held open.
const MOST_OPEN: usize = 256;

/// The changes of an object in the layers, and of everything below it.
#[derive(Default)]
struct Changes<'a> {
    own: Option<PublishedChange>,
    below: BTreeMap<&'a [u8], Changes<'a>>,
}

impl<'a> Changes<'a> {
    /// Returns true if the object at a path, or an object that contains it, has a change.
    fn hide(&self, path: &[Vec<u8>]) -> bool {
        let mut at = Some(self);
        path.iter().any(|name| {
            at = at.and_then(|changes| changes.below.get(name.as_slice()));
            at.is_some_and(|changes| changes.own.is_some())
        })
    }

    fn new(all: &'a [(ObjectPath, PublishedChange)]) -> Self {
        let mut root = Self::default();
        for (path, change) in all {
            let mut at = &mut root;
            for name in path {
                at = at.below.entry(name).or_default();
            }
            at.own = Some(*change);
            at.below.clear();
        }
        root
    }
}

/// Groups of the store that must be made anew, by address, with the changes of their members in the layers.
#[derive(Default)]
struct ChangedGroups<'a> {
    groups: HashSet<u64>,
    changes: HashMap<u64, &'a Changes<'a>>,
}

/// A whole dataset that is a piece of a joined one: the number of its file, its path, its length.
type WholePiece = (usize, ObjectPath, u64);

/// A group that was made, and has yet to be filled.
struct Unfilled<'a> {
    path: ObjectPath,
    /// The group of another file that provides the children: the number of the file, and the address.
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
        let store = open(&first.from)?;
        let changes = Changes::new(&new.changes);
        let changed = match new.changes.is_empty() || new.joined.is_some() {
            true => ChangedGroups::default(),
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

/// Finds the groups of a store that must be made anew: groups with changes, groups with soft links that lead anywhere
/// in the file, and all groups above these.
fn changed<'a>(store: &Id, changes: &'a Changes<'a>) -> Result<ChangedGroups<'a>, Failure> {
    let root = ffi::root_addr(store)?;
    let mut changed = ChangedGroups::default();
    // Changes lie at the paths of the mount, which lead through groups alone.
    let mut queue = vec![(root, changes)];
    while let Some((addr, changes)) = queue.pop() {
        changed.groups.insert(addr);
        changed.changes.insert(addr, changes);
        let group = ffi::open_object(store, addr)?;
        for (name, below) in &changes.below {
            if below.own.is_none()
                && let Some(RawLink::Hard(child)) = ffi::link(&group, name)?
                && ffi::is_group(store, child)
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
                    None if ffi::is_group(store, child) => {
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

/// The state of the work on a file of links.
struct Maker<'a> {
    target: Id,
    new: &'a NewPublication,
    changed: ChangedGroups<'a>,
    /// Open files, by number.
    opened: HashMap<usize, Id>,
    /// The paths at which groups of the store were made, by address.
    made: HashMap<u64, ObjectPath>,
    queue: VecDeque<Unfilled<'a>>,
    links: PublishedLinks,
}

impl<'a> Maker<'a> {
    /// Fills the root group, except for its members.
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
                // The root group has no room for large attributes.
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

    /// Makes the joined objects without changes in the layers.
    fn join(&mut self, steps: &[EditStep], changes: &Changes<'_>) -> Result<(), Failure> {
        for step in steps {
            let path = match step {
                EditStep::Group { path, .. } | EditStep::Join { path, .. } => path,
                _ => return Err(Failure("not a step that joins".into())),
            };
            if changes.hide(path) {
                continue;
            }
            let about = |e: Failure| Failure(format!("{}: {e}", shown(path)));
            if let EditStep::Join { like, path, pieces } = step
                && let Some(pieces) = self.whole_pieces(path, pieces).map_err(about)?
            {
                self.virtual_dataset(like, path, &pieces).map_err(about)?;
                continue;
            }
            let done = apply(&self.target, step, &Holders::default());
            if let Err(why) = done.map_err(about)? {
                self.links.lost.push((path.clone(), why));
            }
        }
        Ok(())
    }

    fn virtual_dataset(
        &mut self,
        like: &SourceObject,
        path: &ObjectPath,
        pieces: &[WholePiece],
    ) -> Result<(), Failure> {
        let old = open_object(like)?;
        let ty = ffi::copy_type(&ffi::dataset_type(&old)?)?;
        let (mut named, mut start) = (Vec::with_capacity(pieces.len()), 0_u64);
        for (file, object, len) in pieces {
            let Some(linked) = self.new.files.get(*file) else {
                return Err(Failure("no such file".into()));
            };
            self.links.used.insert(*file);
            named.push(VirtualPiece {
                file: &linked.name,
                object,
                start,
                len: *len,
            });
            start = start
                .checked_add(*len)
                .ok_or_else(|| Failure("too many elements".into()))?;
        }
        let new = ffi::virtual_dataset(&self.target, path, &ty, start, &named)?;
        copy_attributes(&old, &new)
    }

    /// Returns the datasets that the pieces consist of; `None` if a piece is not a stored dataset, or if there are no
    /// pieces.
    fn whole_pieces(
        &mut self,
        path: &ObjectPath,
        pieces: &[Piece],
    ) -> Result<Option<Vec<WholePiece>>, Failure> {
        let mut whole = Vec::with_capacity(pieces.len());
        for piece in pieces {
            let Some(from) = piece.from.as_ref().filter(|_| piece.add == 0) else {
                return Ok(None);
            };
            let mut files = self.new.files.iter();
            let Some(file) = files.position(|linked| linked.from == from.file) else {
                return Ok(None);
            };
            let source = self.open(file)?;
            let dataset = ffi::open_object(source, from.addr)?;
            let Some((shape, _)) = ffi::extent(&ffi::dataset_space(&dataset)?)? else {
                return Ok(None);
            };
            if piece.start != 0 || shape != [piece.count] {
                return Ok(None);
            }
            match path_of(source, path, from.addr)? {
                Some(object) => whole.push((file, object, piece.count)),
                None => return Ok(None),
            }
        }
        Ok((!whole.is_empty()).then_some(whole))
    }

    /// Lists in the file the other files that it depends on.
    fn describe(&self) -> Result<(), H5Error> {
        let fields = self.new.about.strip_suffix('}');
        let fields = fields.ok_or_else(|| H5Error::Damaged("no JSON object".to_owned()))?;
        let files = self.links.used.iter();
        let files = files.filter_map(|&file| self.new.files.get(file));
        let files: Vec<&str> = files.map(|file| file.about.as_str()).collect();
        // The fields keep their order: the form comes first.
        let text = format!("{fields},\"files\":[{}]}}", files.join(","));
        let root = ffi::open_at(&self.target, &[])?;
        if ffi::has_attribute(&root, PUBLISHED.as_bytes())? {
            ffi::remove_attribute(&root, PUBLISHED.as_bytes())?;
        }
        Ok(ffi::add_strings(&root, PUBLISHED.as_bytes(), &[], &[text])?)
    }

    /// Copies the attributes of a group, except for references, which are only valid within a file.
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
                // The group was joined.
                None if ffi::exists(&self.target, &path)? => self.queue.push_back(Unfilled {
                    path,
                    like: None,
                    changes: Some(said),
                }),
                // Its members were stored after the object was deleted.
                Some(PublishedChange::Deleted) | None => self.group(path, None, Some(said))?,
            }
        }
        Ok(())
    }

    /// Updates the member lists of a group that had some links: new members come last, and deleted members are removed.
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

    /// Adds a child of a group of another file that has no changes itself in the layers.
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
                if !ffi::is_group(source, addr) || !self.is_changed(file, addr, said) {
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
            // The link is followed from the file that contains it.
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
        // There may be as many files as objects.
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

    /// Makes a group and fills it later, so that the depth of groups does not increase the use of the stack.
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
            self.opened.insert(file, open(&linked.from)?);
        }
        let opened = self.opened.get(&file);
        opened.ok_or_else(|| Failure("no such file".into()))
    }
}

/// Returns the path of the object at an address: the given path, or one beside the group that contains it.
fn path_of(file: &ffi::Id, path: &ObjectPath, addr: u64) -> Result<Option<ObjectPath>, Failure> {
    if ffi::exists(file, path)? && ffi::object_info(&ffi::open_at(file, path)?)?.addr == addr {
        return Ok(Some(path.clone()));
    }
    let above = &path[..path.len().saturating_sub(2)];
    if !ffi::exists(file, above)? {
        return Ok(None);
    }
    let group = ffi::open_at(file, above)?;
    if ffi::kind(&group) != ObjectKind::Group {
        return Ok(None);
    }
    let links = ffi::links(&group).0.into_iter();
    let mut names = links.filter(|(_, link)| matches!(link, RawLink::Hard(at) if *at == addr));
    Ok(names.next().map(|(name, _)| [above, &[name]].concat()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_stands_at_a_path_hides_what_was_said_of_what_is_below() {
        let path = |path: &str| -> ObjectPath {
            path.split('/')
                .map(|name| name.as_bytes().to_vec())
                .collect()
        };
        let all = [
            (path("g/x"), PublishedChange::Stored(1)),
            (path("g"), PublishedChange::Deleted),
            (path("g/y"), PublishedChange::Stored(2)),
        ];
        let changes = Changes::new(&all);
        let group = &changes.below[&b"g"[..]];
        assert!(matches!(group.own, Some(PublishedChange::Deleted)));
        let names: Vec<_> = group.below.keys().collect();
        assert_eq!(names, [b"y"]);
        for (name, hidden) in [("g/x/z", true), ("g/y", true), ("h", false), ("h/g", false)] {
            assert_eq!(changes.hide(&path(name)), hidden, "{name}");
        }
    }
}
