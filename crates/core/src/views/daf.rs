//! A view of a store as the files that daf's own reader expects.
//!
//! Source: tanaylab daf 0.2.0-dev.1, `storage/files.py` and `storage/memory_mapping.py`. The directory of a store
//! contains exactly what daf reads. With a superfluous file, such as one along an axis that does not exist, daf opens
//! nothing. So objects that daf could not read, or would misread, are left out with the reason. Numbers are the bytes
//! of the `.npy` files without their headers; only CSV and YAML are generated.

mod array;
mod csv;
mod datum;
mod names;
mod sparse;
mod yaml;

use std::sync::Arc;

use serde_json::{Value as Json, json};

use crate::dataset::context::Context;
use crate::formats::daf::NAME;
use crate::formats::plain;
use crate::tree::path::{self, PathError};
use crate::tree::{Directory, Listing, Node, StoreHandle, VirtualFile, info, name};
use crate::views::unfit::{Unfit, verdict};
use crate::views::verdicts::{Verdict, Verdicts};
use datum::{Datum, DatumFile, DatumParts, Facts, ObjectAxis, judge, version};
use names::{Meaning, Suffix, meaning};
use npyfs_base::error::Result;
use npyfs_hdf5::Attribute;
use npyfs_io::content::{Content, InMemory};
use npyfs_io::file::Ownership;
use sparse::SparseParts;

/// Returns the root of the view of a tree.
pub fn open(root: &Arc<dyn Directory>, context: &Arc<Context>) -> Arc<dyn Directory> {
    Arc::new(DafDirectory::root(root, context))
}

/// The state shared by the directories of a view.
struct DafView {
    /// The root of the tree, for resolving links.
    root: Arc<dyn Directory>,
    context: Arc<Context>,
    /// Verdicts by directory and name.
    known: Verdicts<Facts>,
}

/// A directory of the view. That of a store contains the files that daf reads. Those of plain HDF5 groups and of
/// folders contain the same directories as the tree.
struct DafDirectory {
    view: Arc<DafView>,
    of: Arc<dyn Directory>,
    /// The path of names to it.
    path: Vec<Vec<u8>>,
}

/// The object in the tree with the name of an object.
enum Place {
    Nothing,
    Parts(DatumParts),
    /// A directory that is not an object.
    Directory,
    /// An object for which daf has no files.
    LeftOut(String),
}

impl Place {
    fn being_written() -> Self {
        Self::LeftOut("it is being written".into())
    }
}

/// An object, or the reason why it has no files.
type Found = std::result::Result<Datum, String>;

impl DafDirectory {
    /// Returns the root of the view of a tree.
    fn root(root: &Arc<dyn Directory>, context: &Arc<Context>) -> Self {
        let view = DafView {
            root: root.clone(),
            context: context.clone(),
            known: Verdicts::new(),
        };
        Self {
            view: Arc::new(view),
            of: root.clone(),
            path: Vec::new(),
        }
    }

    fn sep(&self) -> u8 {
        self.view.context.options.sep
    }

    fn below(&self, name: &[u8], of: Arc<dyn Directory>) -> Node {
        let mut path = self.path.clone();
        path.push(name.to_vec());
        Node::Directory(Arc::new(Self {
            view: self.view.clone(),
            of,
            path,
        }))
    }

    fn is_daf(&self) -> Result<bool> {
        Ok(self.of.format()? == NAME)
    }

    /// Returns the target of a node of the tree, through links; `None` if it cannot be found.
    fn resolved(&self, node: Node) -> Result<Option<Node>> {
        let Node::Symlink(link) = &node else {
            return Ok(Some(node));
        };
        let mut whole = self.path.join(&b'/');
        whole.push(b'/');
        whole.extend_from_slice(&link.target);
        match path::find(&self.view.root, None, &whole, true) {
            Ok(node) => Ok(Some(node)),
            Err(PathError::Missing) => Ok(None),
            Err(PathError::Failed(e)) => Ok(verdict(Err(Unfit::from(e)))?.ok()),
        }
    }

    fn look_up(&self, own: &str, suffix: &str) -> Result<Option<Node>> {
        let shown = name::visible_with(own.as_bytes(), suffix, self.sep());
        match self.of.lookup(&shown)? {
            Some(node) => self.resolved(node),
            None => Ok(None),
        }
    }

    /// Finds the object with the name of an object: an array, otherwise a directory.
    fn place(&self, own: &str) -> Result<Place> {
        let found = match self.array(own) {
            Ok(None) => self.group(own),
            Ok(Some(file)) if file.number().is_some() => Ok(Place::being_written()),
            Ok(Some(file)) => Ok(Place::Parts(DatumParts::Array(file))),
            Err(e) => Err(e),
        };
        Ok(verdict(found.map_err(Unfit::from))?.unwrap_or_else(Place::LeftOut))
    }

    fn array(&self, own: &str) -> Result<Option<Arc<dyn VirtualFile>>> {
        Ok(self.look_up(own, ".npy")?.and_then(Node::file))
    }

    /// Determines what a directory is: a sparse matrix, text shown as two arrays, or something else.
    fn group(&self, own: &str) -> Result<Place> {
        let Some(Node::Directory(dir)) = self.look_up(own, "")? else {
            return Ok(Place::Nothing);
        };
        if !own.contains('#') {
            return Ok(Place::Directory);
        }
        if dir.lookup(b"offsets.npy")?.is_some() && dir.lookup(b"values.npy")?.is_some() {
            let why = "text that is larger than text_limit at a fixed width";
            return Ok(Place::LeftOut(why.into()));
        }
        if !matches!(meaning(own), Meaning::Matrix { .. }) {
            return Ok(Place::Directory);
        }
        let member = |name: &[u8]| -> Result<Option<Arc<dyn VirtualFile>>> {
            Ok(dir.lookup(name)?.and_then(Node::file))
        };
        let members = [
            member(b"data.npy")?,
            member(b"indices.npy")?,
            member(b"indptr.npy")?,
            member(b"shape.npy")?,
        ];
        if members.iter().all(Option::is_none) {
            return Ok(Place::Directory);
        }
        if members.iter().flatten().any(|file| file.number().is_some()) {
            return Ok(Place::being_written());
        }
        Ok(match members {
            [Some(data), Some(indices), Some(indptr), Some(shape)] => {
                Place::Parts(DatumParts::Sparse(SparseParts {
                    data,
                    indices,
                    indptr,
                    shape,
                }))
            }
            _ => Place::LeftOut(self.why_not_sparse(own)?),
        })
    }

    /// Returns the reason why a group is not shown as a sparse matrix.
    fn why_not_sparse(&self, own: &str) -> Result<String> {
        let listing = self.of.list()?;
        let about = listing.notes.iter().find_map(|note| {
            let why = note.strip_prefix(own)?.strip_prefix(": ")?;
            why.strip_suffix(": shown as plain HDF5")
        });
        let unknown = "it lacks a part of a sparse matrix";
        Ok(about.unwrap_or(unknown).to_owned())
    }

    /// Returns the axes of an object, or the reason why it cannot have them.
    fn along(&self, own: &str) -> Result<std::result::Result<Vec<ObjectAxis>, String>> {
        let axes = match meaning(own) {
            Meaning::Vector { axis, .. } => vec![axis],
            Meaning::Matrix { rows, columns, .. } => vec![rows, columns],
            Meaning::Item | Meaning::Axis(_) | Meaning::Nothing(_) => Vec::new(),
        };
        let mut along = Vec::with_capacity(axes.len());
        for axis in axes {
            along.push(match self.datum(&format!("{axis}#"))? {
                None => return Ok(Err(format!("there is no axis {axis}"))),
                Some(Err(why)) => {
                    return Ok(Err(format!("its axis {axis} is left out: {why}")));
                }
                Some(Ok(Datum {
                    parts: DatumParts::Array(file),
                    facts,
                    ..
                })) => ObjectAxis { file, facts },
                Some(Ok(_)) => return Ok(Err(format!("{axis} is no axis"))),
            });
        }
        Ok(Ok(along))
    }

    /// Returns an object by its own name; `None` if there is none.
    fn datum(&self, own: &str) -> Result<Option<Found>> {
        let parts = match self.place(own)? {
            Place::Parts(parts) => parts,
            Place::LeftOut(why) => return Ok(Some(Err(why))),
            Place::Nothing | Place::Directory => return Ok(None),
        };
        if let Meaning::Nothing(why) = meaning(own) {
            return Ok(Some(Err(why.to_owned())));
        }
        let along = match self.along(own)? {
            Ok(along) => along,
            Err(why) => return Ok(Some(Err(why))),
        };
        let facts = self.facts(own, &parts, &along)?;
        Ok(Some(facts.map(|facts| Datum {
            own: own.to_owned(),
            parts,
            along,
            facts,
            text_limit: self.view.context.options.text_limit(),
        })))
    }

    /// Returns the facts about an object, from the cache if they are known.
    fn facts(&self, own: &str, parts: &DatumParts, along: &[ObjectAxis]) -> Result<Verdict<Facts>> {
        let files = parts.files();
        let axes = along.iter().map(|along| &along.file);
        let now = version(files.iter().chain(axes));
        let mut key = self.path.join(&b'/');
        key.push(b'/');
        key.extend_from_slice(own.as_bytes());
        let limit = self.view.context.options.text_limit();
        let judge = || judge(own, parts, along, limit);
        self.view.known.find(key, now, judge, Facts::weight)
    }

    /// Adds the entries of a store, by the names of its objects.
    fn add_data(&self, listing: &Listing, to: &mut StoreListing) -> Result<()> {
        for (shown, node) in listing.iter() {
            let stem = match &*node {
                Node::Directory(_) => &*shown,
                Node::File(_) | Node::Symlink(_) => match shown.strip_suffix(b".npy") {
                    Some(stem) => stem,
                    None if matches!(&*node, Node::Symlink(_)) => &*shown,
                    // The archive of a matrix.
                    None => continue,
                },
            };
            let own = match name::is_cut(&shown, stem) {
                true => Err("its name is too long".to_owned()),
                false => String::from_utf8(name::own_name(stem, self.sep()))
                    .map_err(|_| "its name is not UTF-8".to_owned()),
            };
            let own = match own {
                Ok(own) => own,
                Err(why) => {
                    to.left_out.push((stem.to_vec(), why));
                    continue;
                }
            };
            // An item and a group may have the same name.
            if matches!(&*node, Node::Directory(_)) && matches!(self.array(&own), Ok(Some(_))) {
                self.add_directory(&shown, &node, to)?;
                continue;
            }
            match self.datum(&own)? {
                Some(Ok(datum)) => to.data.push(datum),
                Some(Err(why)) => to.left_out.push((own.into_bytes(), why)),
                None => self.add_directory(&shown, &node, to)?,
            }
        }
        Ok(())
    }

    /// Adds a directory that is not an object.
    fn add_directory(&self, shown: &[u8], node: &Node, to: &mut StoreListing) -> Result<()> {
        match self.directory(shown, node.clone())? {
            Some(Ok(node)) => to.directories.push((shown.to_vec(), node)),
            Some(Err(why)) => to.left_out.push((shown.to_vec(), why)),
            None => {}
        }
        Ok(())
    }

    /// Returns the directory, or the link to one, for a node of the tree; `None` for other nodes.
    fn directory(
        &self,
        shown: &[u8],
        node: Node,
    ) -> Result<Option<std::result::Result<Node, String>>> {
        let node = match node {
            Node::Directory(dir) if !dir.is_object() => self.below(shown, dir),
            Node::Symlink(_) => match self.resolved(node.clone())? {
                Some(Node::Directory(_)) => node,
                _ => return Ok(None),
            },
            _ => return Ok(None),
        };
        if self.is_daf()? && names::is_taken_for_file(shown) {
            let why = "daf takes a directory of such a name for a file";
            return Ok(Some(Err(why.to_owned())));
        }
        Ok(Some(Ok(node)))
    }

    fn mark(&self) -> Node {
        Node::File(Arc::new(MarkFile {
            ownership: self.of.ownership(),
        }))
    }
}

/// The entries of a store under construction.
#[derive(Default)]
struct StoreListing {
    data: Vec<Datum>,
    directories: Vec<(Vec<u8>, Node)>,
    left_out: Vec<(Vec<u8>, String)>,
}

/// Returns the files of an object by name.
fn files(datum: Datum) -> impl Iterator<Item = (Vec<u8>, Node)> {
    let datum = Arc::new(datum);
    let suffixes: &[Suffix] = datum.facts.suffixes();
    suffixes.iter().map(move |&suffix| {
        let name = format!("{}{}", datum.own, suffix.text());
        let file = DatumFile {
            datum: datum.clone(),
            suffix,
        };
        (name.into_bytes(), Node::File(Arc::new(file)))
    })
}

impl Directory for DafDirectory {
    fn ownership(&self) -> Ownership {
        self.of.ownership()
    }

    fn list(&self) -> Result<Arc<Listing>> {
        let listing = self.of.list()?;
        let mut to = StoreListing::default();
        let mut notes = Vec::new();
        let mut entries = Vec::new();
        if self.is_daf()? {
            self.add_data(&listing, &mut to)?;
            to.left_out.extend(listing.left_out.iter().cloned());
            entries.push((names::MARK.to_vec(), self.mark()));
            entries.extend(to.data.into_iter().flat_map(files));
        } else {
            // Directories of other formats are objects, or endless.
            let is_mirrored = self.of.format()? == plain::NAME;
            for (shown, node) in listing.entries.iter().filter(|_| is_mirrored) {
                self.add_directory(shown, node, &mut to)?;
            }
            let others = listing.len().saturating_sub(to.directories.len());
            if others > 0 {
                notes.push(format!("{others} entries that are in no daf store"));
            }
        }
        entries.extend(to.directories);
        let damage = listing.damage.clone();
        Ok(Arc::new(
            Listing::new(entries, to.left_out, notes).with_damage(damage),
        ))
    }

    fn lookup(&self, name: &[u8]) -> Result<Option<Node>> {
        if self.is_daf()? {
            if name == names::MARK {
                return Ok(Some(self.mark()));
            }
            if let Some((own, suffix)) = names::split(name) {
                let Some(Ok(datum)) = self.datum(own)? else {
                    return Ok(None);
                };
                let is_there = datum.facts.suffixes().contains(&suffix);
                let datum = Arc::new(datum);
                return Ok(is_there.then(|| Node::File(Arc::new(DatumFile { datum, suffix }))));
            }
            let own = String::from_utf8(name::own_name(name, self.sep()));
            if let Ok(own) = own {
                let place = verdict(self.group(&own).map_err(Unfit::from))?;
                if !matches!(place, Ok(Place::Directory | Place::Nothing)) {
                    return Ok(None);
                }
            }
        } else if self.of.format()? != plain::NAME {
            return Ok(None);
        }
        match self.of.lookup(name)? {
            Some(node) => Ok(self.directory(name, node)?.and_then(|found| found.ok())),
            None => Ok(None),
        }
    }

    fn is_current(&self) -> bool {
        self.of.is_current()
    }

    fn is_lasting(&self) -> bool {
        self.of.is_lasting()
    }

    fn format(&self) -> Result<&'static str> {
        self.of.format()
    }

    fn info(&self) -> Result<Json> {
        let listing = self.list()?;
        Ok(info::view(self.of.info()?, "daf", &listing))
    }

    fn handle(&self) -> Option<StoreHandle> {
        None
    }

    fn warm(&self) {
        self.of.warm();
    }

    fn attributes(&self) -> Result<Vec<Attribute>> {
        self.of.attributes()
    }
}

/// The file that marks a store.
struct MarkFile {
    ownership: Ownership,
}

impl VirtualFile for MarkFile {
    fn ownership(&self) -> Ownership {
        self.ownership
    }

    fn size(&self) -> Result<u64> {
        Ok(yaml::MARK.len() as u64)
    }

    fn open(&self) -> Result<Arc<dyn Content>> {
        Ok(Arc::new(InMemory(yaml::MARK.to_vec())))
    }

    fn version(&self) -> u64 {
        0
    }

    fn is_current(&self) -> bool {
        true
    }

    fn info(&self) -> Result<Json> {
        Ok(json!({ "kind": "daf", "view": "daf", "datum": "mark" }))
    }

    fn mode(&self) -> u32 {
        0o444
    }
}

#[cfg(test)]
mod tests {
    use std::time::UNIX_EPOCH;

    use npyfs_base::error::{Error, ErrorKind};
    use npyfs_base::options::FsOptions;

    use super::*;
    use crate::tree::Symlink;

    const OWNERSHIP: Ownership = Ownership {
        uid: 0,
        gid: 0,
        mode: 0o644,
        mtime: UNIX_EPOCH,
    };

    /// A store of daf of which only the names can be read, and one link.
    struct Unreadable(ErrorKind);

    impl Directory for Unreadable {
        fn ownership(&self) -> Ownership {
            OWNERSHIP
        }

        fn list(&self) -> Result<Arc<Listing>> {
            let file = Node::File(Arc::new(MarkFile {
                ownership: OWNERSHIP,
            }));
            let entries = vec![(b"title.npy".to_vec(), file)];
            Ok(Arc::new(Listing::new(entries, Vec::new(), Vec::new())))
        }

        fn lookup(&self, name: &[u8]) -> Result<Option<Node>> {
            match name {
                b"link.npy" => Ok(Some(Node::Symlink(Arc::new(Symlink {
                    target: b"elsewhere.npy".to_vec(),
                    ownership: OWNERSHIP,
                })))),
                _ => Err(Error::new(self.0, "the host is silent")),
            }
        }

        fn is_current(&self) -> bool {
            true
        }

        fn format(&self) -> Result<&'static str> {
            Ok(NAME)
        }

        fn info(&self) -> Result<Json> {
            Ok(json!({}))
        }
    }

    fn view(kind: ErrorKind) -> Arc<dyn Directory> {
        let context = Arc::new(Context::new(npyfs_worker::h5_here(), FsOptions::default()));
        let root: Arc<dyn Directory> = Arc::new(Unreadable(kind));
        open(&root, &context)
    }

    /// Files of an item, an axis, a vector and a matrix, one behind a link, and a directory.
    const NAMES: [&str; 6] = [
        "title.yaml",
        "cell#.csv",
        "cell#age.yaml",
        "cell,gene#count.yaml",
        "link.yaml",
        "folder",
    ];

    #[test]
    fn what_cannot_be_looked_up_now_is_an_error() {
        for kind in [
            ErrorKind::Unreached(libc::ETIMEDOUT),
            ErrorKind::Stale,
            ErrorKind::Waits(libc::ENOMEM),
            ErrorKind::Os(libc::EMFILE),
        ] {
            let view = view(kind);
            for name in NAMES {
                let found = view.lookup(name.as_bytes()).map(|node| node.is_some());
                assert_eq!(found.map_err(|e| e.kind), Err(kind), "{name}");
            }
            let listed = view.list().map(|listing| listing.len());
            assert_eq!(listed.map_err(|e| e.kind), Err(kind));
        }
    }

    #[test]
    fn what_cannot_be_read_is_left_out_with_the_reason() {
        let view = view(ErrorKind::Damaged);
        for name in &NAMES[..5] {
            assert!(view.lookup(name.as_bytes()).unwrap().is_none(), "{name}");
        }
        let listing = view.list().unwrap();
        let left_out = [(b"title".to_vec(), "the host is silent".to_owned())];
        assert_eq!(listing.left_out, left_out);
    }
}
