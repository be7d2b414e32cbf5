//! A group of an HDF5 file as a directory.
//!
//! A group may have an additional meaning: a `GroupKind` of another format has a view of each group that bears its
//! mark. Soft and external links lead to their targets as far as the policy allows.

mod datasets;

use std::collections::HashMap;
use std::sync::Arc;

use serde_json::{Value as Json, json};

use self::datasets::{DatasetTable, MANY};
use super::NAME;
use super::small::{BrokenFile, ValueFile};
use crate::dataset::opened::OpenStore;
use crate::dataset::{external, text};
use crate::tree::name::{self, visible_with};
use crate::tree::{CachedFact, Directory, Listing, Node, Scales, Seer, Symlink, VirtualFile, info};
use npyfs_base::error::{Error, ErrorKind, Result};
use npyfs_base::heap;
use npyfs_hdf5::{Attribute, GroupMember, GroupMembers, GroupPath, Resolved, Value};
use npyfs_io::file::Ownership;

/// The number of members from which on the datasets of a group of some kind are a table.
pub const MANY_OF_A_KIND: usize = 1000;

/// The number of members of a part of a large group that is shown part by part.
const PART: usize = 20_000;

/// The deepest nesting of directories that is shown.
const DEEPEST: usize = 256;

/// The listing, and its sources.
struct KnownListing {
    listing: Arc<Listing>,
    /// Other files.
    others: Vec<Arc<OpenStore>>,
    kind: Option<&'static str>,
    /// The facts of the kind for `info`.
    info: Vec<(&'static str, Json)>,
}

/// A group.
pub struct GroupDirectory {
    store: Arc<OpenStore>,
    addr: u64,
    /// Its place in this store's view in the mount.
    place: Arc<Place>,
    /// The path in the HDF5 file.
    group: Arc<str>,
    /// Whether the path starts in this file: no external link was followed.
    at_home: bool,
    /// The kinds of groups to check for.
    kinds: Kinds,
    /// The name of the kind of the enclosing group.
    within: Option<&'static str>,
    /// Present if this group is one object.
    composite: Option<Box<Composite>>,
    listed: CachedFact<Arc<KnownListing>>,
    scales: CachedFact<Scales>,
}

/// The place of a group below the top of a store's view in the mount.
struct Place {
    above: Option<Arc<Place>>,
    /// Its name in the group above; empty at the top.
    name: Box<[u8]>,
    /// The file and the address of the group; no group above a place is entered again.
    key: (u64, u64, u64),
}

impl Place {
    /// Returns the places above, the nearest first.
    fn above(&self) -> impl Iterator<Item = &Place> {
        std::iter::successors(self.above.as_deref(), |place| place.above.as_deref())
    }

    /// Returns the names from the top.
    fn path(&self) -> GroupPath {
        let places = std::iter::once(self).chain(self.above());
        let below_top = places.filter(|place| place.above.is_some());
        let mut names: GroupPath = below_top.map(|place| place.name.to_vec()).collect();
        names.reverse();
        names
    }
}

/// The kind of the listed group, and its view of the group.
type Own = (&'static dyn GroupKind, GroupView);

/// A listing under construction.
struct GroupListing {
    entries: Vec<(Vec<u8>, Node)>,
    left_out: Vec<(Vec<u8>, String)>,
    notes: Vec<String>,
    others: Vec<Arc<OpenStore>>,
    kind: &'static str,
    /// The datasets of a large group, those that are in no `entries`.
    table: Option<DatasetTable>,
    /// The failure that may be gone soon, because of which the listing would not be true.
    passing: Option<Error>,
}

impl Default for GroupListing {
    fn default() -> Self {
        Self {
            entries: Vec::new(),
            left_out: Vec::new(),
            notes: Vec::new(),
            others: Vec::new(),
            kind: NAME,
            table: None,
            passing: None,
        }
    }
}

/// Returns what is said of damage to a group.
fn damage(members: &GroupMembers) -> Vec<String> {
    let said = |why| format!("the group is damaged, some members are missing: {why}");
    members.damage.iter().map(said).collect()
}

impl GroupDirectory {
    /// Returns the root group of a store.
    pub fn root(store: Arc<OpenStore>, kinds: Kinds) -> Self {
        let addr = store.root;
        let top = Place {
            above: None,
            name: Box::default(),
            key: Self::key(&store, addr),
        };
        Self {
            store,
            addr,
            place: Arc::new(top),
            group: "".into(),
            at_home: true,
            kinds,
            within: None,
            composite: None,
            listed: CachedFact::default(),
            scales: CachedFact::default(),
        }
    }

    /// The root group of a store whose groups are of one kind; `None` unless the option `kind` asks for that kind by
    /// its name.
    pub fn root_of_kind(
        store: &Arc<OpenStore>,
        name: &str,
        kind: Kinds,
    ) -> Option<Arc<dyn Directory>> {
        let is_wanted = store.context.options.kind.as_deref() == Some(name);
        is_wanted.then(|| Arc::new(Self::root(store.clone(), kind)) as _)
    }

    fn key(store: &OpenStore, addr: u64) -> (u64, u64, u64) {
        let id = &store.file.identity;
        (id.dev, id.ino, addr)
    }

    fn child(
        &self,
        store: &Arc<OpenStore>,
        place: Place,
        addr: u64,
        within: Option<&'static str>,
        composite: Option<Composite>,
    ) -> Self {
        let name = String::from_utf8_lossy(&place.name);
        Self {
            store: store.clone(),
            addr,
            group: format!("{}/{name}", self.group).into(),
            place: Arc::new(place),
            at_home: self.at_home && Arc::ptr_eq(store, &self.store),
            kinds: self.kinds,
            within,
            composite: composite.map(Box::new),
            listed: CachedFact::default(),
            scales: CachedFact::default(),
        }
    }

    fn visible(&self, name: &[u8], suffix: &str) -> Vec<u8> {
        visible_with(name, suffix, self.store.context.options.sep)
    }

    fn symlink(&self, target: Vec<u8>) -> Node {
        Node::Symlink(Arc::new(Symlink {
            target,
            ownership: self.ownership(),
        }))
    }

    /// Returns `../` once for each level up to the top, then the visible path.
    fn path_from_top(&self, path: &GroupPath) -> Vec<u8> {
        let mut parts: Vec<Vec<u8>> = vec![b"..".to_vec(); self.place.above().count()];
        parts.extend(path.iter().map(|name| self.visible(name, "")));
        if parts.is_empty() {
            parts.push(b".".to_vec());
        }
        parts.join(&b'/')
    }

    fn listed(&self) -> Result<Arc<KnownListing>> {
        let h5 = &self.store.context.h5;
        self.listed_of(|| Ok(h5.list(&self.store.file, self.addr, false)?))
    }

    /// Returns the listing, made of what `ask` returns if it is not known.
    fn listed_of(&self, ask: impl FnOnce() -> Result<GroupMembers>) -> Result<Arc<KnownListing>> {
        let is_valid =
            |known: &Arc<KnownListing>| known.others.iter().all(|other| other.file.is_current());
        let build = || Ok(Arc::new(self.build(ask()?)?));
        self.listed.get(&self.store.context.h5, is_valid, build)
    }

    /// Returns whether members of a large group are shown one by one, whatever the others are.
    fn is_bare(&self) -> Result<bool> {
        let (h5, file) = (&self.store.context.h5, &self.store.file);
        let is_marked = |mark: &[u8]| match h5.resolve(file, self.addr, mark) {
            Ok(found) => Ok(!matches!(found, Resolved::Missing)),
            Err(e) => Err(Error::from(e)),
        };
        let mut marks = self.kinds.iter().filter_map(|kind| kind.mark());
        let is_marked = marks.any(|mark| is_marked(mark).unwrap_or(true));
        Ok(self.composite.is_none() && self.within.is_none() && !is_marked)
    }

    /// Returns whether an attribute marks the group as one of a kind.
    fn is_encoded(&self) -> Result<bool> {
        let attributes = self.attributes()?;
        let mut marks = self.kinds.iter().filter_map(|kind| kind.attribute());
        Ok(marks.any(|mark| attributes.iter().any(|one| one.name == mark.as_bytes())))
    }

    /// Returns the file of a dataset by its visible name, from a group that is not listed yet. A worker is asked once:
    /// it tells all members of a small group, and that one of a large group. `None`: only the listing tells.
    fn lookup_unlisted(&self, visible: &[u8]) -> Result<Option<Node>> {
        let Some(stem) = visible.strip_suffix(b".npy") else {
            return Ok(None);
        };
        let (h5, file) = (&self.store.context.h5, &self.store.file);
        let own = name::own_name(stem, self.store.context.options.sep);
        let mut found = h5.member_of_many(file, self.addr, &own, PART)?;
        if found.members.len() == found.total {
            let listing = self.listed_of(|| Ok(found))?.listing.clone();
            return Ok(listing.find(visible));
        }
        // Of a damaged group there may be fewer members than it says.
        let found = found.members.pop().filter(|(name, _)| *name == own);
        let Some((own, member @ GroupMember::Dataset(_))) = found else {
            return Ok(None);
        };
        if !self.is_bare()? || self.is_encoded()? {
            return Ok(None);
        }
        let mut to = GroupListing::default();
        self.add(&own, member, None, &mut to);
        let shown = to.entries.into_iter().find(|(name, _)| name == visible);
        Ok(shown.map(|(_, node)| node))
    }

    fn build(&self, members: GroupMembers) -> Result<KnownListing> {
        let mut to = GroupListing::default();
        let damage = damage(&members);
        to.notes.extend(damage.iter().cloned());
        let mut own = None;
        for &kind in self.kinds {
            if own.is_none() && self.store.context.options.may_be(kind.name()) {
                let view = kind.view(self, &members, &mut to.notes)?;
                own = view.map(|view| (kind, view));
            }
        }
        if let Some((kind, view)) = &own {
            if !view.is_plain {
                to.kind = kind.name();
            }
            self.add_values(*kind, view, &mut to);
            to.left_out.extend(view.left_out.iter().cloned());
        }
        self.add_attributes(&mut to);
        let count = members.members.len();
        // A store of a kind is listed in order of name, unless it is so large that its memory counts.
        let many = if own.is_some() { MANY_OF_A_KIND } else { MANY };
        if self.composite.is_none() && count >= many {
            let shown = to.entries.iter().map(|(name, _)| name.clone());
            let kind = own.as_ref().map(|(kind, _)| *kind);
            let table = DatasetTable::new(&self.store, &self.group, to.kind, shown.collect(), kind);
            to.table = Some(table);
        }
        for (name, member) in members.members {
            if own
                .as_ref()
                .is_some_and(|(kind, _)| kind.mark() == Some(&name))
            {
                continue;
            }
            self.add(&name, member, own.as_ref(), &mut to);
        }
        heap::return_free_memory_of(count);
        if let Some(failure) = to.passing {
            return Err(failure);
        }
        self.note(&to.notes);
        to.entries.shrink_to_fit();
        let mut listing = Listing::new(to.entries, to.left_out, to.notes).with_damage(damage);
        listing.many = to.table.map(|table| Arc::new(table.finish()) as _);
        Ok(KnownListing {
            listing: Arc::new(listing),
            others: to.others,
            kind: own
                .as_ref()
                .filter(|(_, view)| !view.is_plain)
                .map(|(kind, _)| kind.name()),
            info: own.map(|(_, view)| view.info).unwrap_or_default(),
        })
    }

    fn note(&self, notes: &[String]) {
        let journal = &self.store.context.journal;
        let about = format!("{}: {}/", self.store.file.path.display(), self.group);
        for note in notes {
            journal.add(&format!("{about}{note}"));
        }
    }

    fn add_values(&self, kind: &dyn GroupKind, view: &GroupView, to: &mut GroupListing) {
        let mark = String::from_utf8_lossy(kind.mark().unwrap_or_default());
        for item in &view.values {
            match &item.value {
                Ok(value) => {
                    let name = String::from_utf8_lossy(&item.name);
                    let file = self.value(value.clone(), &mark, &name, kind.name());
                    to.entries
                        .push((self.visible(&item.name, ".npy"), Node::File(file)));
                }
                Err(why) => to.left_out.push((item.name.clone(), why.clone())),
            }
        }
    }

    fn add_attributes(&self, to: &mut GroupListing) {
        let Some(composite) = &self.composite else {
            return;
        };
        to.kind = composite.kind;
        for (name, value) in &composite.values {
            let file = self.value(value.clone(), "", name, to.kind);
            to.entries
                .push((self.visible(name.as_bytes(), ".npy"), Node::File(file)));
        }
    }

    /// Returns the file of a value in memory: an attribute of `object`, or a computed one.
    pub fn value(
        &self,
        value: Value,
        object: &str,
        attribute: &str,
        kind: &'static str,
    ) -> Arc<dyn VirtualFile> {
        Arc::new(ValueFile {
            kind,
            store: self.store.clone(),
            group: self.addr,
            value,
            path: format!("{}/{object}", self.group),
            attribute: attribute.to_owned(),
        })
    }

    /// Returns the path in the HDF5 file.
    pub fn path(&self) -> &str {
        &self.group
    }

    /// Returns its store.
    pub fn store(&self) -> &Arc<OpenStore> {
        &self.store
    }

    /// Returns its address.
    pub fn addr(&self) -> u64 {
        self.addr
    }

    /// Returns its own name; `None` for the root group.
    pub fn name(&self) -> Option<&[u8]> {
        self.place.above.as_ref().map(|_| &*self.place.name)
    }

    /// Returns the name of the kind of the enclosing group.
    pub fn within(&self) -> Option<&'static str> {
        self.within
    }

    /// Returns the address of the enclosing group; `None` for the root group, and behind an external link.
    pub fn above(&self) -> Option<u64> {
        let (dev, ino, addr) = self.place.above.as_ref()?.key;
        let (own_dev, own_ino, _) = Self::key(&self.store, self.addr);
        ((dev, ino) == (own_dev, own_ino)).then_some(addr)
    }

    fn add(&self, name: &[u8], member: GroupMember, own: Option<&Own>, to: &mut GroupListing) {
        match member {
            GroupMember::Group { addr, links } => {
                self.add_group(&self.store, name, addr, links, own, to)
            }
            GroupMember::Dataset(dataset) => self.add_dataset(&self.store, name, dataset, to),
            GroupMember::Soft(target) => self.add_soft(name, &target, to),
            GroupMember::External { file, path } => self.add_external(name, &file, &path, to),
            GroupMember::Unsupported {
                addr,
                sequences: Some(sequences),
                ..
            } => self.add_sequences(&self.store, name, addr, *sequences, to),
            GroupMember::Unsupported { reason, .. } => to.left_out.push((name.to_vec(), reason)),
            GroupMember::Damaged(why) => self.add_broken(name, Error::damaged(why), to),
        }
    }

    fn add_broken(&self, name: &[u8], error: Error, to: &mut GroupListing) {
        let path = format!("{}/{}", self.group, String::from_utf8_lossy(name));
        if error.is_passing() || error.kind == ErrorKind::Stale {
            to.passing = Some(error);
            return;
        }
        if error.kind == ErrorKind::Denied {
            to.left_out.push((name.to_vec(), error.message.clone()));
        }
        to.entries.push((
            self.visible(name, ".npy"),
            Node::File(Arc::new(BrokenFile {
                store: self.store.clone(),
                path,
                error,
            })),
        ));
    }

    fn add_group(
        &self,
        store: &Arc<OpenStore>,
        name: &[u8],
        addr: u64,
        links: u32,
        own: Option<&Own>,
        to: &mut GroupListing,
    ) {
        let visible = self.visible(name, "");
        let key = Self::key(store, addr);
        if key == Self::key(&self.store, self.addr) {
            to.entries.push((visible, self.symlink(b".".to_vec())));
            return;
        }
        if let Some(at) = self.place.above().position(|above| above.key == key) {
            let up = vec![&b".."[..]; at + 1].join(&b'/');
            to.entries.push((visible, self.symlink(up)));
            return;
        }
        if self.place.above().count() >= DEEPEST {
            to.left_out
                .push((name.to_vec(), "groups nested too deeply".into()));
            return;
        }
        let place = Place {
            above: Some(self.place.clone()),
            name: name.into(),
            key,
        };
        if self.at_home && Arc::ptr_eq(store, &self.store) {
            match store.first_path(addr, links, &place.path()) {
                Ok(None) => {}
                Ok(Some(first)) => {
                    to.entries
                        .push((visible, self.symlink(self.path_from_top(&first))));
                    return;
                }
                Err(e) => return self.add_broken(name, e, to),
            }
        }
        let composite = own.and_then(|(_, view)| view.composites.get(&addr).cloned());
        let within = own
            .filter(|(_, view)| !view.is_plain)
            .map(|(kind, _)| kind.name());
        let directory = Arc::new(self.child(store, place, addr, within, composite.clone()));
        if let Some(composite) = composite {
            match (composite.beside)(&directory) {
                Ok((suffix, file)) => {
                    let name = self.visible(name, suffix);
                    to.entries.push((name, Node::File(file)));
                }
                Err(e) if e.is_passing() => to.passing = Some(e),
                Err(e) => {
                    to.notes
                        .push(format!("{}: {}", String::from_utf8_lossy(name), e.message))
                }
            }
        }
        to.entries.push((visible, Node::Directory(directory)));
    }

    /// Returns the datasets here that the policy denies.
    fn denied(&self, members: &GroupMembers) -> Vec<(Vec<u8>, String)> {
        members
            .members
            .iter()
            .filter_map(|(name, member)| match member {
                GroupMember::Dataset(dataset) if dataset.outside => {
                    external::check(&self.store, dataset.addr)
                        .err()
                        .map(|e| (name.clone(), e.message))
                }
                _ => None,
            })
            .collect()
    }
}

impl Directory for GroupDirectory {
    fn ownership(&self) -> Ownership {
        self.store.ownership(self.addr)
    }

    fn list(&self) -> Result<Arc<Listing>> {
        Ok(self.listed()?.listing.clone())
    }

    fn lookup(&self, name: &[u8]) -> Result<Option<Node>> {
        if !self.listed.is_known()
            && let Ok(Some(node)) = self.lookup_unlisted(name)
        {
            return Ok(Some(node));
        }
        Ok(self.list()?.find(name))
    }

    fn each(&self, see: &mut Seer<'_>) -> Result<Vec<String>> {
        let (h5, file) = (&self.store.context.h5, &self.store.file);
        let mut members = h5.members_after(file, self.addr, b"", PART)?;
        let total = members.total;
        if total <= PART || !self.is_bare()? {
            let members = match total <= PART {
                true => members,
                false => h5.list(file, self.addr, false)?,
            };
            let listing = self.build(members)?.listing;
            listing.show(see);
            return Ok(listing.damage.clone());
        }
        let damage = damage(&members);
        self.note(&damage);
        while let Some((last, _)) = members.members.last() {
            let (last, is_last) = (last.clone(), members.members.len() < PART);
            let mut to = GroupListing::default();
            for (name, member) in std::mem::take(&mut members.members) {
                self.add(&name, member, None, &mut to);
            }
            if let Some(failure) = to.passing {
                return Err(failure);
            }
            self.note(&to.notes);
            if Listing::new(to.entries, Vec::new(), Vec::new()).show(see) || is_last {
                break;
            }
            members = h5.members_after(file, self.addr, &last, PART)?;
        }
        Ok(damage)
    }

    fn format(&self) -> Result<&'static str> {
        let kind = self.listed()?.kind;
        Ok(kind.unwrap_or(NAME))
    }

    fn is_current(&self) -> bool {
        self.store.file.is_current()
    }

    fn info(&self) -> Result<Json> {
        let h5 = &self.store.context.h5;
        let members = h5.list(&self.store.file, self.addr, true)?;
        let listed = self.listed()?;
        let composite = self.composite.as_ref().map(|composite| composite.kind);
        let kind = composite.or(listed.kind);
        let listing = &listed.listing;
        let denied: Vec<_> = self.denied(&members).into_iter().collect();
        let path = if self.group.is_empty() {
            "/"
        } else {
            &self.group
        };
        let mut info = json!({
            "kind": kind.unwrap_or(NAME),
            "file": self.store.file.path.to_string_lossy(),
            "path": path,
            "entries": listing.len(),
            "left_out": info::left_out(listing.left_out.iter().chain(&denied)),
            "notes": listing.notes,
        });
        match self.attributes() {
            Ok(attributes) => info["attributes"] = info::attributes(&attributes),
            Err(e) if e.is_passing() || e.kind == ErrorKind::Stale => return Err(e),
            Err(e) => info["attributes_error"] = json!(e.message),
        }
        for (name, fact) in &listed.info {
            info[*name] = fact.clone();
        }
        Ok(info)
    }

    fn attributes(&self) -> Result<Vec<Attribute>> {
        let h5 = &self.store.context.h5;
        Ok(h5.attributes(&self.store.file, self.addr)?)
    }

    fn scales(&self) -> Result<Scales> {
        let (h5, file) = (&self.store.context.h5, &self.store.file);
        let is_netcdf = file
            .path
            .extension()
            .is_some_and(|is| is == "nc" || is == "nc4");
        let ask = || Ok(Arc::new(h5.scales(file, self.addr, is_netcdf)?));
        self.scales.get(h5, |_| true, ask)
    }
}

/// A kind of group, in any HDF5 file.
pub trait GroupKind: Send + Sync {
    /// The name of the format.
    fn name(&self) -> &'static str;

    /// The member that marks a group as one of this kind; it is not shown. `None` if groups are recognized otherwise.
    fn mark(&self) -> Option<&'static [u8]> {
        None
    }

    /// The attribute that marks a group as one of this kind; `None` if groups are recognized otherwise.
    fn attribute(&self) -> Option<&'static str> {
        None
    }

    /// Returns whether a dataset is listed behind all others, since it can only be deleted after them.
    fn comes_last(&self, _name: &[u8]) -> bool {
        false
    }

    /// Returns the view of a group; `None` if it is not of this kind, with a note if it appeared to be.
    fn view(
        &self,
        group: &GroupDirectory,
        members: &GroupMembers,
        notes: &mut Vec<String>,
    ) -> Result<Option<GroupView>>;
}

/// The entries that a format adds to a group of plain HDF5.
#[derive(Default)]
pub struct GroupView {
    /// Attributes of the mark that are shown as files.
    pub values: Vec<Attribute>,
    /// Groups below that are single objects, by their addresses.
    pub composites: HashMap<u64, Composite>,
    /// Objects other than members that are not shown, by name, with the reasons.
    pub left_out: Vec<(Vec<u8>, String)>,
    /// Facts for `info`.
    pub info: Vec<(&'static str, Json)>,
    /// Whether the group itself is plain HDF5, and only objects in it are of the kind.
    pub is_plain: bool,
}

/// The kinds of groups to check for.
pub type Kinds = &'static [&'static dyn GroupKind];

/// Makes the file beside the directory of a composite, and its suffix.
type Beside = dyn Fn(&GroupDirectory) -> Result<(&'static str, Arc<dyn VirtualFile>)> + Send + Sync;

/// A group that is a single object of some kind.
#[derive(Clone)]
pub struct Composite {
    /// The name of the kind of group.
    pub kind: &'static str,
    /// Small arrays that are shown as files in it, with their names.
    pub values: Vec<(&'static str, Value)>,
    /// Makes the file beside its directory.
    pub beside: Arc<Beside>,
}

/// The most external links in a chain.
const MOST_EXTERNAL: usize = 8;

impl GroupDirectory {
    fn add_soft(&self, name: &[u8], target: &[u8], to: &mut GroupListing) {
        let h5 = &self.store.context.h5;
        let resolved = match h5.resolve(&self.store.file, self.addr, target) {
            Ok(resolved) => resolved,
            Err(e) => return self.add_broken(name, e.into(), to),
        };
        let suffix = match resolved {
            Resolved::Member(GroupMember::Group { .. }) => "",
            Resolved::Member(GroupMember::Dataset(dataset)) => {
                match text::is_over_limit(&self.store, &dataset) {
                    Ok(true) => "",
                    _ => ".npy",
                }
            }
            Resolved::Member(GroupMember::Unsupported {
                sequences: Some(_), ..
            }) => "",
            Resolved::Member(GroupMember::Unsupported { reason, .. }) => {
                let reason = format!("soft link to what is not shown: {reason}");
                to.left_out.push((name.to_vec(), reason));
                return;
            }
            Resolved::External { file, path } => return self.add_external(name, &file, &path, to),
            Resolved::Member(_) | Resolved::Missing => "",
        };
        let parts: GroupPath = target
            .split(|&b| b == b'/')
            .filter(|part| !part.is_empty() && *part != b".")
            .map(<[u8]>::to_vec)
            .collect();
        let mut shown = if target.starts_with(b"/") && self.at_home {
            self.path_from_top(&parts)
        } else {
            let parts: Vec<_> = parts.iter().map(|p| self.visible(p, "")).collect();
            parts.join(&b'/')
        };
        if shown.is_empty() {
            shown = b".".to_vec();
        }
        shown.extend_from_slice(suffix.as_bytes());
        to.entries
            .push((self.visible(name, suffix), self.symlink(shown)));
    }

    fn add_external(&self, name: &[u8], file: &[u8], path: &[u8], to: &mut GroupListing) {
        match follow(&self.store, file, path, MOST_EXTERNAL) {
            Err(e) if e.kind == ErrorKind::NotFound => {
                let why = format!("dangling external link: {}", e.message);
                to.left_out.push((name.to_vec(), why));
            }
            Err(e) => self.add_broken(name, e, to),
            Ok((other, member)) => {
                to.others.push(other.clone());
                match member {
                    GroupMember::Group { addr, links } => {
                        self.add_group(&other, name, addr, links, None, to);
                    }
                    GroupMember::Dataset(dataset) => {
                        if dataset.outside
                            && let Err(e) = external::check(&other, dataset.addr)
                        {
                            to.left_out.push((name.to_vec(), e.message));
                        }
                        self.add_dataset(&other, name, dataset, to);
                    }
                    GroupMember::Unsupported {
                        addr,
                        sequences: Some(sequences),
                        ..
                    } => self.add_sequences(&other, name, addr, *sequences, to),
                    GroupMember::Unsupported { reason, .. } => {
                        to.left_out.push((name.to_vec(), reason))
                    }
                    _ => self.add_broken(name, Error::damaged("external link to nothing"), to),
                }
            }
        }
    }
}

/// Follows a chain of external links, as far as the policy allows.
fn follow(
    store: &Arc<OpenStore>,
    file: &[u8],
    path: &[u8],
    left: usize,
) -> Result<(Arc<OpenStore>, GroupMember)> {
    if left == 0 {
        return Err(Error::damaged("external links that lead on for too long"));
    }
    let other = external::open_store(store, file)?;
    let path = if path.is_empty() { &b"/"[..] } else { path };
    match other.context.h5.resolve(&other.file, other.root, path)? {
        Resolved::Member(member) => Ok((other, member)),
        Resolved::External { file, path } => follow(&other, &file, &path, left - 1),
        Resolved::Missing => Err(Error::new(
            ErrorKind::NotFound,
            format!("no such object in {}", other.file.path.display()),
        )),
    }
}
