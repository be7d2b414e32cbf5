//! A store as Zarr groups and arrays.
//!
//! Groups are directories, arrays are directories of chunk files, and every chunk file is a decoded chunk of the
//! dataset. Names are those of the links, not escaped. Listing a group asks for nothing about its arrays: an array is
//! described when its directory is looked into, or when the metadata of the whole store are wanted. Those are one file,
//! so that a reader need not look into every group and array.

mod array;
mod key;
mod metadata;

use std::collections::HashMap;
use std::sync::{Arc, OnceLock, Weak};

use parking_lot::Mutex;
use serde_json::{Value as Json, json};

use crate::dataset::context::Context;
use crate::tree::array::StoredArray;
use crate::tree::name::{self, NameError, visible_with};
use crate::tree::path::{PathError, find_names};
use crate::tree::{Directory, Listing, Node, info};
use array::{ArrayNode, ArrayView};
use metadata::{ArrayMeta, DocumentFile, Documents, Element};
use npyfs_base::error::{Error, ErrorKind, Result};
use npyfs_base::npy::dtype::DType;
use npyfs_base::thread;
use npyfs_io::file::Ownership;

/// A version of Zarr.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Version {
    /// `.zgroup`, `.zarray`, `.zattrs`.
    V2,
    /// `zarr.json`.
    V3,
}

/// Returns the root of the view of a tree.
pub fn open(
    root: &Arc<dyn Directory>,
    version: Version,
    context: &Arc<Context>,
) -> Arc<dyn Directory> {
    let view = Arc::new(View {
        root: root.clone(),
        version,
        context: context.clone(),
    });
    Arc::new(GroupView::root(view))
}

/// The state that all groups and arrays of a view share.
struct View {
    /// The root of the underlying tree.
    root: Arc<dyn Directory>,
    version: Version,
    context: Arc<Context>,
}

/// The deepest nesting of groups that is shown, including those that links lead to.
const DEEPEST: usize = 256;

/// A group of the view.
struct GroupView {
    view: Arc<View>,
    of: Arc<dyn Directory>,
    way: Arc<GroupChain>,
    now: Mutex<Option<Arc<GroupNow>>>,
}

/// The path to a group: a group that is already on the path is not entered again.
struct GroupChain {
    /// The names that lead to the group in the underlying tree, without links.
    names: Vec<Vec<u8>>,
    above: Option<Arc<GroupChain>>,
    depth: usize,
}

impl GroupChain {
    fn has(&self, names: &[Vec<u8>]) -> bool {
        let mut at = Some(self);
        while let Some(way) = at {
            if way.names == names {
                return true;
            }
            at = way.above.as_deref();
        }
        false
    }
}

/// A member of a group.
enum Member {
    /// A group.
    Group(Arc<GroupView>),
    /// An array.
    Array(Arc<ArrayNode>),
}

impl Member {
    fn node(self) -> Node {
        match self {
            Self::Group(group) => Node::Directory(group),
            Self::Array(array) => Node::Directory(Arc::new(ArrayView(array))),
        }
    }
}

/// The members of a group by name, and the entries that are left out.
#[derive(Default)]
struct Members {
    /// The members.
    members: Vec<(Vec<u8>, Member)>,
    left_out: Vec<(Vec<u8>, String)>,
}

/// A name with its member, or the reason why it is left out.
type Found = (Vec<u8>, std::result::Result<Member, String>);

/// The verdict on the last type: the arrays of a group mostly share one.
#[derive(Default)]
struct LastType(Option<(DType, Option<String>)>);

/// The present state of a group: valid for as long as the underlying directory is current.
struct GroupNow {
    view: Arc<View>,
    of: Arc<dyn Directory>,
    way: Arc<GroupChain>,
    /// The metadata of everything below this group are consolidated here.
    is_top: bool,
    listed: Mutex<Option<CachedListing>>,
    /// The groups in it that are still in use, so that their state is not built twice.
    groups: Mutex<HashMap<Vec<u8>, Weak<GroupView>>>,
    documents: OnceLock<Arc<Documents>>,
    whole: OnceLock<Option<Arc<StoreMetadata>>>,
}

/// A listing, and the listing that it was made from.
struct CachedListing {
    from: Arc<Listing>,
    listing: Arc<Listing>,
}

impl GroupView {
    /// Returns the root of a view.
    fn root(view: Arc<View>) -> Self {
        Self {
            of: view.root.clone(),
            view,
            way: Arc::new(GroupChain {
                names: Vec::new(),
                above: None,
                depth: 0,
            }),
            now: Mutex::default(),
        }
    }

    /// Returns the present state of the group.
    fn now(&self) -> Result<Arc<GroupNow>> {
        let mut now = self.now.lock();
        if let Some(known) = &*now
            && known.of.is_current()
        {
            return Ok(known.clone());
        }
        let of = self.of.at_present()?.unwrap_or_else(|| self.of.clone());
        let made = Arc::new(GroupNow {
            view: self.view.clone(),
            of,
            way: self.way.clone(),
            is_top: self.way.above.is_none() || self.is_store(),
            listed: Mutex::default(),
            groups: Mutex::default(),
            documents: OnceLock::new(),
            whole: OnceLock::new(),
        });
        *now = Some(made.clone());
        Ok(made)
    }
}

/// Returns true if an error concerns the machine or the moment, and not the object.
fn passes(e: &Error) -> bool {
    e.is_passing() || e.kind == ErrorKind::Stale
}

impl GroupNow {
    /// Returns the metadata of the group itself.
    fn documents(&self) -> Result<Arc<Documents>> {
        if let Some(known) = self.documents.get() {
            return Ok(known.clone());
        }
        let made = match self.of.attributes() {
            Ok(attributes) => metadata::group(self.view.version, &attributes),
            Err(e) if passes(&e) => return Err(e),
            Err(e) => {
                let names = String::from_utf8_lossy(&self.way.names.join(&b'/')).into_owned();
                let journal = &self.view.context.journal;
                journal.add(&format!("/{names}: shown without its attributes: {e}"));
                let mut made = metadata::group(self.view.version, &[]);
                made.left_out.push(("*".to_owned(), e.message));
                made
            }
        };
        let made = Arc::new(made);
        Ok(self.documents.get_or_init(|| made).clone())
    }

    /// Returns the consolidated metadata of everything below the group, if they are consolidated here.
    fn whole(&self) -> Result<Option<Arc<StoreMetadata>>> {
        if !self.is_top {
            return Ok(None);
        }
        if let Some(known) = self.whole.get() {
            return Ok(known.clone());
        }
        let made = consolidate(&self.view, self)?.map(Arc::new);
        for (array, why) in made.iter().flat_map(|made| &made.left_out) {
            let journal = &self.view.context.journal;
            journal.add(&format!(
                "/{array}: not in the metadata of the whole: {why}"
            ));
        }
        // A directory stays current whatever is added to it: its metadata are valid for this moment alone.
        if !self.of.is_store() {
            return Ok(made);
        }
        Ok(self.whole.get_or_init(|| made).clone())
    }

    fn file(&self, name: &str, text: Arc<Vec<u8>>) -> (Vec<u8>, Node) {
        let of = self.of.clone();
        let node = DocumentFile::node(text, self.of.ownership(), move || of.is_current());
        (name.as_bytes().to_vec(), node)
    }

    /// Returns the metadata files of the group alone.
    fn own_files(&self) -> Result<Vec<(Vec<u8>, Node)>> {
        let documents = self.documents()?;
        let texts = documents.texts();
        Ok(texts
            .map(|(name, text)| self.file(name, Arc::new(text)))
            .collect())
    }

    /// Returns the files of metadata.
    fn files(&self) -> Result<Vec<(Vec<u8>, Node)>> {
        let mut files = self.own_files()?;
        if let Some(whole) = self.whole()? {
            match self.view.version {
                Version::V2 => files.push(self.file(".zmetadata", whole.text.clone())),
                Version::V3 => files = vec![self.file("zarr.json", whole.text.clone())],
            }
        }
        Ok(files)
    }

    /// Returns the member for an entry of the tree; `None` if the entry is no object of the file but derived from some.
    fn found(&self, shown: &[u8], node: Node, last: &mut LastType) -> Result<Option<Found>> {
        let own = |shown: &[u8]| name::own_name(shown, self.view.context.options.sep);
        let target = match &node {
            Node::Symlink(link) => &link.target,
            Node::File(file) => {
                let array = match file.clone().array() {
                    Ok(Some(array)) => array,
                    Ok(None) => return Ok(None),
                    Err(e) if passes(&e) => return Err(e),
                    Err(e) => {
                        let stem = shown.strip_suffix(b".npy").unwrap_or(shown);
                        return Ok(Some((own(stem), Err(e.message))));
                    }
                };
                let name = key::known_name(array.name()).to_vec();
                let array = self.array(&name, node, array, last);
                return Ok(Some((name, array)));
            }
            Node::Directory(dir) => {
                match dir.clone().array() {
                    Ok(None) => {}
                    Ok(Some(array)) => {
                        let name = key::known_name(array.name()).to_vec();
                        let array = self.array(&name, node, array, last);
                        return Ok(Some((name, array)));
                    }
                    Err(e) if passes(&e) => return Err(e),
                    Err(e) => return Ok(Some((own(shown), Err(e.message)))),
                }
                let name = own(shown);
                let mut names = self.way.names.clone();
                names.push(shown.to_vec());
                let group = match name::check(shown, "", shown.to_vec()) {
                    Err(NameError::Cut) => Err("a name of over 255 bytes".to_owned()),
                    _ => self.group(&name, dir.clone(), names),
                };
                return Ok(Some((name, group)));
            }
        };
        let path = [&self.way.names.join(&b'/')[..], target].join(&b'/');
        let name = |stem: &[u8]| own(stem);
        Ok(Some(match find_names(&self.view.root, &path) {
            Err(PathError::Failed(e)) if passes(&e) => return Err(e),
            Err(PathError::Failed(e)) => (name(shown), Err(e.message)),
            Err(PathError::Missing) => (name(shown), Err("a link to nothing".to_owned())),
            Ok((names, Node::Directory(dir))) => {
                let name = name(shown);
                let member = match dir.clone().array() {
                    Ok(Some(array)) => self.array(&name, Node::Directory(dir), array, last),
                    Ok(None) => self.group(&name, dir, names),
                    Err(e) if passes(&e) => return Err(e),
                    Err(e) => Err(e.message),
                };
                (name, member)
            }
            Ok((_, Node::File(file))) => {
                let name = name(shown.strip_suffix(b".npy").unwrap_or(shown));
                let member = match file.clone().array() {
                    Ok(Some(array)) => self.array(&name, Node::File(file), array, last),
                    Ok(None) => return Ok(None),
                    Err(e) if passes(&e) => return Err(e),
                    Err(e) => Err(e.message),
                };
                (name, member)
            }
            Ok((_, Node::Symlink(_))) => (name(shown), Err("a link to a link".to_owned())),
        }))
    }

    fn array(
        &self,
        name: &[u8],
        shown: Node,
        array: Arc<dyn StoredArray>,
        last: &mut LastType,
    ) -> std::result::Result<Member, String> {
        if let Some(why) = key::refusal(name) {
            return Err(why.to_owned());
        }
        if let Some(why) = array
            .dtype()
            .and_then(|dtype| last.refusal(self.view.version, dtype))
        {
            return Err(why);
        }
        Ok(Member::Array(Arc::new(ArrayNode {
            view: self.view.clone(),
            parent: self.of.clone(),
            shown,
            array,
            described: OnceLock::new(),
        })))
    }

    fn group(
        &self,
        name: &[u8],
        of: Arc<dyn Directory>,
        names: Vec<Vec<u8>>,
    ) -> std::result::Result<Member, String> {
        if let Some(why) = key::refusal(name) {
            return Err(why.to_owned());
        }
        if self.way.has(&names) {
            return Err("a link to a group that it lies in".to_owned());
        }
        if self.way.depth >= DEEPEST {
            return Err("groups nested too deeply".to_owned());
        }
        let mut groups = self.groups.lock();
        if let Some(known) = groups.get(name).and_then(Weak::upgrade)
            && std::ptr::addr_eq(Arc::as_ptr(&known.of), Arc::as_ptr(&of))
        {
            return Ok(Member::Group(known));
        }
        let group = Arc::new(GroupView {
            view: self.view.clone(),
            of,
            way: Arc::new(GroupChain {
                names,
                above: Some(self.way.clone()),
                depth: self.way.depth + 1,
            }),
            now: Mutex::default(),
        });
        groups.insert(name.to_vec(), Arc::downgrade(&group));
        Ok(Member::Group(group))
    }

    /// Returns the members of the group.
    fn members(&self) -> Result<Members> {
        self.members_of(&*self.of.list()?)
    }

    fn members_of(&self, listing: &Listing) -> Result<Members> {
        let mut made = Members {
            members: Vec::with_capacity(listing.entries.len()),
            left_out: listing.left_out.clone(),
        };
        let mut last = LastType::default();
        // Entries that the tree only makes on demand are no objects of an HDF5 file.
        for (shown, node) in listing.objects() {
            match self.found(&shown, node.into_owned(), &mut last)? {
                Some((name, Ok(member))) => made.members.push((name, member)),
                Some((name, Err(why))) => made.left_out.push((name, why)),
                None => {}
            }
        }
        Ok(made)
    }

    /// Returns the listing of the members.
    fn listing(&self) -> Result<Arc<Listing>> {
        let from = self.of.list()?;
        if let Some(known) = &*self.listed.lock()
            && Arc::ptr_eq(&known.from, &from)
        {
            return Ok(known.listing.clone());
        }
        let made = self.members_of(&from)?;
        let entries = made.members.into_iter();
        let entries = entries
            .map(|(name, member)| (name, member.node()))
            .collect();
        let listing = Listing::new(entries, made.left_out, from.notes.clone());
        let listing = Arc::new(listing.with_damage(from.damage.clone()));
        *self.listed.lock() = Some(CachedListing {
            from,
            listing: listing.clone(),
        });
        Ok(listing)
    }

    /// Returns the member with a name.
    fn member(&self, name: &[u8]) -> Result<Option<Node>> {
        if key::refusal(name).is_some() {
            return Ok(None);
        }
        let mut last = LastType::default();
        for suffix in [".npy", ""] {
            let shown = visible_with(name, suffix, self.view.context.options.sep);
            let Some(node) = self.of.lookup(&shown)? else {
                continue;
            };
            if let Some((own, Ok(member))) = self.found(&shown, node, &mut last)?
                && own == name
            {
                return Ok(Some(member.node()));
            }
        }
        // A format may show the member under another name.
        Ok(self.listing()?.find(name))
    }
}

impl LastType {
    /// Returns the reason why Zarr cannot hold elements of a type.
    fn refusal(&mut self, version: Version, dtype: &DType) -> Option<String> {
        if let Some((known, verdict)) = &self.0
            && known == dtype
        {
            return verdict.clone();
        }
        let meta = ArrayMeta {
            shape: &[],
            chunks: &[],
            element: Element::Fixed(dtype),
            fill: None,
            attributes: &[],
            dimensions: &[],
        };
        let verdict = metadata::array(version, &meta).err();
        self.0 = Some((dtype.clone(), verdict.clone()));
        verdict
    }
}

impl Directory for GroupView {
    fn ownership(&self) -> Ownership {
        self.of.ownership()
    }

    fn list(&self) -> Result<Arc<Listing>> {
        let now = self.now()?;
        let members = now.listing()?;
        let mut entries = now.files()?;
        entries.extend(members.entries.iter().cloned());
        let listing = Listing::new(entries, members.left_out.clone(), members.notes.clone());
        Ok(Arc::new(listing.with_damage(members.damage.clone())))
    }

    fn lookup(&self, name: &[u8]) -> Result<Option<Node>> {
        let now = self.now()?;
        if name.starts_with(b".z") || name == b"zarr.json" {
            let is_whole = name == b".zmetadata" || self.view.version == Version::V3;
            let files = match is_whole {
                true => now.files()?,
                false => now.own_files()?,
            };
            let found = files.into_iter().find(|(known, _)| known == name);
            return Ok(found.map(|(_, node)| node));
        }
        now.member(name)
    }

    fn is_current(&self) -> bool {
        self.of.is_current()
    }

    fn is_store(&self) -> bool {
        self.of.is_store()
    }

    fn info(&self) -> Result<Json> {
        let now = self.now()?;
        let mut info = self.of.info()?;
        let listing = now.listing()?;
        info["left_out"] = info::left_out(&listing.left_out);
        info["entries"] = json!(listing.len());
        let left_out = now.documents()?.left_out.clone().into_iter();
        let left_out = left_out.map(|(name, why)| json!({ "attribute": name, "why": why }));
        let mut left_out: Vec<_> = left_out.collect();
        if let Some(whole) = now.whole()? {
            let arrays = whole.left_out.iter();
            left_out.extend(arrays.map(|(name, why)| json!({ "array": name, "why": why })));
        }
        info["zarr"] = json!({ "left_out": left_out });
        Ok(info)
    }
}

/// The largest number of arrays, and of groups, whose metadata are consolidated.
const MOST_CONSOLIDATED: usize = 10_000;

/// The least number of arrays that one thread describes.
const LEAST_EACH: usize = 64;

/// The metadata of a whole store.
struct StoreMetadata {
    /// The text of the file.
    text: Arc<Vec<u8>>,
    /// Paths of arrays that cannot be read or that Zarr cannot hold, with the reasons.
    left_out: Vec<(String, String)>,
}

/// Returns the metadata; `None` if the group has more below it than the limits allow, or contains stores, each of which
/// has its own such file.
fn consolidate(view: &View, top: &GroupNow) -> Result<Option<StoreMetadata>> {
    let mut groups: Vec<(String, Arc<Documents>)> = Vec::new();
    let mut arrays: Vec<(String, Arc<ArrayNode>)> = Vec::new();
    let mut left = vec![(String::new(), top.members()?)];
    while let Some((path, members)) = left.pop() {
        for (name, member) in members.members {
            // A name that is not UTF-8 is no member.
            let Ok(name) = String::from_utf8(name) else {
                continue;
            };
            let path = match path.is_empty() {
                true => name,
                false => format!("{path}/{name}"),
            };
            match member {
                Member::Array(array) => arrays.push((path, array)),
                Member::Group(group) => {
                    if group.is_store() {
                        return Ok(None);
                    }
                    let now = group.now()?;
                    groups.push((path.clone(), now.documents()?));
                    left.push((path, now.members()?));
                }
            }
            if arrays.len() > MOST_CONSOLIDATED || groups.len() > MOST_CONSOLIDATED {
                return Ok(None);
            }
        }
    }
    let described = describe(view, &arrays)?;
    let mut all: Vec<(&str, &Documents)> = Vec::with_capacity(groups.len() + arrays.len());
    all.extend(groups.iter().map(|(path, of)| (&path[..], &**of)));
    let known = arrays.iter().zip(&described);
    all.extend(known.filter_map(|((path, _), of)| Some((&path[..], of.as_ref().ok()?))));
    let (_, text) = metadata::consolidated(view.version, &*top.documents()?, all);
    let known = arrays.iter().zip(&described);
    let left_out = known.filter_map(|((path, _), of)| Some((path.clone(), of.clone().err()?)));
    Ok(Some(StoreMetadata {
        text: Arc::new(text),
        left_out: left_out.collect(),
    }))
}

/// The metadata of an array, or the reason why it has none.
type Described = std::result::Result<Documents, String>;

/// Returns the metadata of arrays.
fn describe(view: &View, arrays: &[(String, Arc<ArrayNode>)]) -> Result<Vec<Described>> {
    let one = |(_, array): &(String, Arc<ArrayNode>)| match array.described() {
        Ok(described) => Ok(Ok(described.documents.clone())),
        Err(e) if e.is_passing() || e.kind == ErrorKind::Stale => Err(e),
        Err(e) => Ok(Err(e.message)),
    };
    let threads = view.context.decoders.processors();
    let part = arrays.len().div_ceil(threads.max(1)).max(LEAST_EACH);
    let parts: Vec<Result<Vec<_>>> = thread::scope(|scope| {
        let parts: Vec<_> = arrays
            .chunks(part)
            .map(|part| scope.spawn(move || part.iter().map(one).collect()))
            .collect();
        let failed = || Error::damaged("a thread that reads metadata failed");
        let joined = parts.into_iter().map(|part| part.join());
        joined
            .map(|part| part.unwrap_or_else(|_| Err(failed())))
            .collect()
    });
    let mut all = Vec::with_capacity(arrays.len());
    for part in parts {
        all.extend(part?);
    }
    Ok(all)
}

#[cfg(test)]
mod tests;
