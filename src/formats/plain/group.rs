//! A group of an HDF5 file as a directory.

mod datasets;
mod links;

use std::sync::{Arc, Mutex};

use serde_json::{Value as Json, json};

use super::kind::{Composite, GroupKind, GroupView, Kinds};
use super::small::{BrokenFile, ValueFile};
use crate::dataset::external;
use crate::dataset::opened::OpenStore;
use crate::error::{Error, ErrorKind, Result};
use crate::hdf5::{Attribute, GroupMember, GroupMembers, GroupPath, Value};
use crate::io::file::Ownership;
use crate::tree::info;
use crate::tree::name::visible_with;
use crate::tree::{Directory, Listing, Node, Symlink, VirtualFile};

/// Directories below each other that are shown.
const DEEPEST: usize = 256;

/// The listing, and what it was made from.
#[derive(Clone)]
struct KnownListing {
    listing: Arc<Listing>,
    /// Other files.
    others: Vec<Arc<OpenStore>>,
    kind: Option<&'static str>,
    /// What the kind says in `info`.
    info: Vec<(&'static str, Json)>,
}

/// A group.
pub struct GroupDirectory {
    store: Arc<OpenStore>,
    addr: u64,
    /// The names that lead here from the top of the mount's view of this store.
    path: GroupPath,
    /// Path in the HDF5 file.
    group: Arc<str>,
    /// File and address of every directory above, top first; a group among them is not entered again.
    above: Vec<(u64, u64, u64)>,
    /// The path starts in this very file: no external link was crossed.
    at_home: bool,
    /// The kinds of groups that are looked for.
    kinds: Kinds,
    /// The name of the kind of the group that it lies in.
    within: Option<&'static str>,
    /// Set if this group is one object.
    composite: Option<Composite>,
    listed: Mutex<Option<KnownListing>>,
}

/// The kind of the group that is listed, and what that makes of it.
type Own = (&'static dyn GroupKind, GroupView);

/// A listing in the making.
struct GroupListing {
    entries: Vec<(Vec<u8>, Node)>,
    left_out: Vec<(Vec<u8>, String)>,
    notes: Vec<String>,
    others: Vec<Arc<OpenStore>>,
    kind: &'static str,
    /// The failure that may be gone soon, because of which the listing would not be true.
    passing: Option<Error>,
}

impl GroupDirectory {
    /// The root group of a store.
    pub fn root(store: Arc<OpenStore>, kinds: Kinds) -> Self {
        let addr = store.root;
        Self {
            store,
            addr,
            path: Vec::new(),
            group: "".into(),
            above: Vec::new(),
            at_home: true,
            kinds,
            within: None,
            composite: None,
            listed: Mutex::default(),
        }
    }

    fn key(store: &OpenStore, addr: u64) -> (u64, u64, u64) {
        let id = &store.file.identity;
        (id.dev, id.ino, addr)
    }

    fn child(
        &self,
        store: &Arc<OpenStore>,
        name: &[u8],
        addr: u64,
        within: Option<&'static str>,
        composite: Option<Composite>,
    ) -> Self {
        let mut path = self.path.clone();
        path.push(name.to_vec());
        let mut above = self.above.clone();
        above.push(Self::key(&self.store, self.addr));
        Self {
            store: store.clone(),
            addr,
            path,
            group: format!("{}/{}", self.group, String::from_utf8_lossy(name)).into(),
            above,
            at_home: self.at_home && Arc::ptr_eq(store, &self.store),
            kinds: self.kinds,
            within,
            composite,
            listed: Mutex::default(),
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

    /// `../` as often as it takes to the top, then the visible path.
    fn path_from_top(&self, path: &GroupPath) -> Vec<u8> {
        let mut parts: Vec<Vec<u8>> = vec![b"..".to_vec(); self.path.len()];
        parts.extend(path.iter().map(|name| self.visible(name, "")));
        if parts.is_empty() {
            parts.push(b".".to_vec());
        }
        parts.join(&b'/')
    }

    fn listed(&self) -> Result<KnownListing> {
        let mut listed = self.listed.lock().unwrap_or_else(|e| e.into_inner());
        if let Some(known) = &*listed
            && known.others.iter().all(|other| other.file.is_current())
        {
            return Ok(known.clone());
        }
        let h5 = &self.store.context.h5;
        let before = h5.unanswered();
        let made = self.build()?;
        if h5.unanswered() == before {
            *listed = Some(made.clone());
        }
        Ok(made)
    }

    fn build(&self) -> Result<KnownListing> {
        let h5 = &self.store.context.h5;
        let members = h5.list(&self.store.file, self.addr, false)?;
        let mut to = GroupListing {
            entries: Vec::with_capacity(members.members.len()),
            left_out: Vec::new(),
            notes: Vec::new(),
            others: Vec::new(),
            kind: "plain",
            passing: None,
        };
        let damage = members
            .damage
            .iter()
            .map(|why| format!("the group is damaged, some members are missing: {why}"));
        let damage: Vec<_> = damage.collect();
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
        for (name, member) in members.members {
            if own
                .as_ref()
                .is_some_and(|(kind, _)| kind.mark() == Some(&name))
            {
                continue;
            }
            self.add(&name, member, own.as_ref(), &mut to);
        }
        if let Some(failure) = to.passing {
            return Err(failure);
        }
        let journal = &self.store.context.journal;
        let about = format!("{}: {}/", self.store.file.path.display(), self.group);
        for note in &to.notes {
            journal.add(&format!("{about}{note}"));
        }
        Ok(KnownListing {
            listing: Arc::new(Listing::new(to.entries, to.left_out, to.notes).with_damage(damage)),
            others: to.others,
            kind: own
                .as_ref()
                .filter(|(_, view)| !view.is_plain)
                .map(|(kind, _)| kind.name()),
            info: own.map(|(_, view)| view.info).unwrap_or_default(),
        })
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

    /// Returns the file of a value that is held in memory: an attribute of `object`, or one that is made up.
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

    /// Path in the HDF5 file.
    pub fn path(&self) -> &str {
        &self.group
    }

    /// The store that it lies in.
    pub fn store(&self) -> &Arc<OpenStore> {
        &self.store
    }

    /// Its address.
    pub fn addr(&self) -> u64 {
        self.addr
    }

    /// Its own name; `None` for the root group.
    pub fn name(&self) -> Option<&[u8]> {
        self.path.last().map(Vec::as_slice)
    }

    /// The name of the kind of the group that it lies in.
    pub fn within(&self) -> Option<&'static str> {
        self.within
    }

    /// The address of the group that it lies in; `None` for the root group, and behind an external link.
    pub fn above(&self) -> Option<u64> {
        let (dev, ino, addr) = *self.above.last()?;
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
        if let Some(at) = self.above.iter().position(|above| *above == key) {
            let up = vec![&b".."[..]; self.above.len() - at].join(&b'/');
            to.entries.push((visible, self.symlink(up)));
            return;
        }
        if self.above.len() >= DEEPEST {
            to.left_out
                .push((name.to_vec(), "groups nested too deeply".into()));
            return;
        }
        if self.at_home && Arc::ptr_eq(store, &self.store) {
            let mut path = self.path.clone();
            path.push(name.to_vec());
            match store.first_path(addr, links, &path) {
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
        let directory = Arc::new(self.child(store, name, addr, within, composite.clone()));
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

    /// Returns what the policy denies among the datasets here.
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
        Ok(self.listed()?.listing)
    }

    fn format(&self) -> Result<&'static str> {
        let kind = self.listed()?.kind;
        Ok(kind.unwrap_or(super::format::NAME))
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
        let listing = listed.listing;
        let denied: Vec<_> = self.denied(&members).into_iter().collect();
        let path = if self.group.is_empty() {
            "/"
        } else {
            &self.group
        };
        let mut info = json!({
            "kind": kind.unwrap_or(super::format::NAME),
            "file": self.store.file.path.to_string_lossy(),
            "path": path,
            "entries": listing.entries.len(),
            "left_out": info::left_out(listing.left_out.iter().chain(&denied)),
            "notes": listing.notes,
            "attributes": info::attributes(&self.attributes()?),
        });
        for (name, fact) in listed.info {
            info[name] = fact;
        }
        Ok(info)
    }

    fn attributes(&self) -> Result<Vec<Attribute>> {
        let h5 = &self.store.context.h5;
        Ok(h5.attributes(&self.store.file, self.addr)?)
    }
}
