//! A real directory mirrored: its subdirectories stay directories, each store in it is one too, other
//! files are left out.
//!
//! Stores are opened when somebody looks into them. The directory is read anew each time.

use std::collections::{BTreeMap, HashMap};
use std::ffi::OsStr;
use std::fs::File;
use std::io;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};

use serde_json::{Value as Json, json};

use crate::checkout::checkouts::is_checkouts;
use crate::checkout::format::{FileSet, Registry, StoreRoot, leads_out};
use crate::dataset::context::Context;
use crate::error::{Error, Result};
use crate::io::file::handle::{is_short, with_room};
use crate::io::file::members::shown_name;
use crate::io::file::{Identity, Ownership, has_hdf5_signature};
use crate::options::External;
use crate::tree::info;
use crate::tree::{Directory, Listing, Node, Symlink};

/// Directories below each other that are searched for a first store before mounting.
const SEARCH_DEPTH: usize = 64;

/// Returns whether there is a store in a directory or below it. Symbolic links to directories are not followed.
pub fn holds_a_store(dir: &Path, formats: &Registry) -> io::Result<bool> {
    fn search(dir: &Path, formats: &Registry, depth: usize) -> io::Result<bool> {
        if formats.iter().any(|format| format.is_store(dir)) {
            return Ok(true);
        }
        let mut below = Vec::new();
        for entry in std::fs::read_dir(dir)? {
            let entry = entry?;
            let kind = entry.file_type()?;
            if kind.is_dir() {
                if !is_checkouts(&entry.path()) {
                    below.push(entry.path());
                }
            } else if is_store(&entry.path()).unwrap_or(false) {
                return Ok(true);
            }
        }
        // A subdirectory that may not be read cannot show that there is none elsewhere.
        Ok(depth > 0
            && below
                .iter()
                .any(|dir| search(dir, formats, depth - 1).unwrap_or(false)))
    }
    search(dir, formats, SEARCH_DEPTH)
}

fn is_store(path: &Path) -> io::Result<bool> {
    // Only regular files are opened: a pipe would block.
    Ok(std::fs::metadata(path)?.is_file() && has_hdf5_signature(&File::open(path)?)?)
}

/// A file as it was looked at.
struct LookedAt {
    identity: Identity,
    is_store: bool,
    /// The name that it would be shown by, if it is the first of several members.
    shown_as: Option<Vec<u8>>,
}

/// Looks at a file.
fn look(path: &Path, identity: Identity) -> io::Result<LookedAt> {
    let is_store = is_store(path)?;
    let shown_as = is_store.then(|| shown_name(path)).flatten();
    Ok(LookedAt {
        identity,
        is_store,
        shown_as,
    })
}

/// The kinds of nodes in a mirrored directory.
#[derive(Clone, Copy)]
enum Sort {
    Store,
    Folder,
    Set,
}

/// Returns the root of the set that a file is part of, if it is one.
pub fn set_of(
    path: &Path,
    context: &Arc<Context>,
    formats: &Registry,
) -> Result<Option<StoreRoot>> {
    let (Some(dir), Some(name)) = (path.parent(), path.file_name()) else {
        return Ok(None);
    };
    let kind = context.options.kind.as_deref();
    let Some(set) = formats.set_of(kind, dir, name.as_bytes()) else {
        return Ok(None);
    };
    let format = formats.named(set.names.format);
    if !format.is_set(&set, dir, context)? {
        return Ok(None);
    }
    Ok(format.set_root(set, dir, context))
}

/// A mirrored directory.
pub struct Folder {
    /// The directory that was mounted; links that lead out of it are not followed.
    top: PathBuf,
    path: PathBuf,
    context: Arc<Context>,
    formats: Registry,
    /// Nodes made so far, so that what a store has learnt is kept.
    known: Mutex<HashMap<Vec<u8>, Node>>,
    /// Files that were looked at.
    looked_at: Mutex<HashMap<Vec<u8>, LookedAt>>,
    /// First parts of what may be a set that were looked at, and whether it is one.
    sets: Mutex<HashMap<FileSet, (Identity, bool)>>,
}

impl Folder {
    /// Mirrors the directory `path` of the mounted directory `top`.
    pub fn new(top: &Path, path: &Path, context: &Arc<Context>, formats: &Registry) -> Self {
        Self {
            top: top.to_owned(),
            path: path.to_owned(),
            context: context.clone(),
            formats: formats.clone(),
            known: Mutex::default(),
            looked_at: Mutex::default(),
            sets: Mutex::default(),
        }
    }

    /// Returns what a name of the real directory is shown as; `None`: not at all, with a reason worth telling.
    fn node(&self, name: &[u8]) -> io::Result<std::result::Result<Node, Option<String>>> {
        let path = self.path.join(OsStr::from_bytes(name));
        let meta = std::fs::symlink_metadata(&path)?;
        if meta.is_symlink() {
            return self.link(&path, name);
        }
        if meta.is_dir() {
            if is_checkouts(&path) {
                return Ok(Err(None));
            }
            let kind = self.context.options.kind.as_deref();
            let mut formats = self.formats.wanted(kind);
            if let Some(root) = formats.find_map(|format| format.open_lazily(&path, &self.context))
            {
                return Ok(Ok(self.kept(name, Sort::Store, || Node::Directory(root))));
            }
            return Ok(Ok(self.kept(name, Sort::Folder, || {
                let folder = Folder::new(&self.top, &path, &self.context, &self.formats);
                Node::Directory(Arc::new(folder))
            })));
        }
        self.store(&path, name, &meta)
    }

    fn link(
        &self,
        path: &Path,
        name: &[u8],
    ) -> io::Result<std::result::Result<Node, Option<String>>> {
        let Ok(target) = path.canonicalize() else {
            return Ok(Err(None));
        };
        let inside = target.starts_with(&self.top);
        if !inside && self.context.options.external != External::Allow {
            return Ok(Err(Some(
                "symbolic link that leads out of the mounted directory (external=allow shows it)"
                    .into(),
            )));
        }
        let Ok(meta) = std::fs::metadata(&target) else {
            return Ok(Err(None));
        };
        if !meta.is_dir() {
            return self.store(path, name, &meta);
        }
        if !inside {
            return Ok(Err(Some(
                "symbolic link to a directory outside the mounted one".into(),
            )));
        }
        // A link inside stays a link, spelled relative to where it stands.
        let depth = self
            .path
            .strip_prefix(&self.top)
            .map_or(0, |p| p.components().count());
        let mut shown: PathBuf = std::iter::repeat_n("..", depth).collect();
        shown.push(target.strip_prefix(&self.top).unwrap_or(&target));
        if shown.as_os_str().is_empty() {
            shown.push(".");
        }
        Ok(Ok(Node::Symlink(Arc::new(Symlink {
            target: shown.into_os_string().into_vec(),
            ownership: Ownership::of(&meta),
        }))))
    }

    fn store(
        &self,
        path: &Path,
        name: &[u8],
        meta: &std::fs::Metadata,
    ) -> io::Result<std::result::Result<Node, Option<String>>> {
        if !meta.is_file() {
            return Ok(Err(None));
        }
        let identity = Identity::of(meta);
        let mut looked_at = self.looked_at.lock().unwrap_or_else(|e| e.into_inner());
        let store = match looked_at.get(name) {
            Some(known) if known.identity == identity => known.is_store,
            _ => {
                let looked = match with_room(|| look(path, identity)) {
                    Err(e) if e.kind() == io::ErrorKind::PermissionDenied => {
                        return Ok(Err(Some(format!("cannot be read: {e}"))));
                    }
                    // A file that ends before its signature is no store.
                    Err(e) if e.kind() == io::ErrorKind::UnexpectedEof => LookedAt {
                        identity,
                        is_store: false,
                        shown_as: None,
                    },
                    Err(e) if e.kind() == io::ErrorKind::NotFound => return Ok(Err(None)),
                    looked => looked?,
                };
                let store = looked.is_store;
                looked_at.insert(name.to_vec(), looked);
                store
            }
        };
        drop(looked_at);
        if !store {
            return Ok(Err(None));
        }
        Ok(Ok(self.kept(name, Sort::Store, || {
            Node::Directory(Arc::new(StoreRoot::new(path, &self.context, &self.formats)))
        })))
    }

    /// Returns the name that a store of several members is shown by, in place of that of the first: if nothing else has it.
    fn shown_as(&self, name: &[u8]) -> Option<Vec<u8>> {
        let looked_at = self.looked_at.lock().unwrap_or_else(|e| e.into_inner());
        let shown = looked_at.get(name)?.shown_as.clone()?;
        drop(looked_at);
        let path = self.path.join(OsStr::from_bytes(&shown));
        path.symlink_metadata().is_err().then_some(shown)
    }

    /// Returns the first member of the store that is shown by a name, and what it is shown as.
    fn member_shown_as(&self, name: &[u8]) -> io::Result<Option<Node>> {
        for entry in with_room(|| std::fs::read_dir(&self.path))? {
            let own = entry?.file_name().into_vec();
            // Only names that begin alike can lead here.
            let is_alike = own.first() == name.first() && own != name;
            if is_alike
                && let Ok(Ok(node)) = self.node(&own)
                && self.shown_as(&own).as_deref() == Some(name)
            {
                return Ok(Some(node));
            }
        }
        Ok(None)
    }

    /// Returns a set whose first part that is HDF5 is among `paths`, under the name it is shown by.
    fn set(
        &self,
        set: &FileSet,
        paths: impl IntoIterator<Item = PathBuf>,
    ) -> io::Result<Option<(Vec<u8>, Node)>> {
        let mut first = None;
        for path in paths {
            let Ok(meta) = std::fs::metadata(&path) else {
                continue;
            };
            match with_room(|| is_store(&path)) {
                Ok(true) => {
                    first = Some(Identity::of(&meta));
                    break;
                }
                Err(e) if is_short(&e) => return Err(e),
                Ok(false) | Err(_) => {}
            }
        }
        let Some(first) = first else {
            return Ok(None);
        };
        let mut sets = self.sets.lock().unwrap_or_else(|e| e.into_inner());
        let format = self.formats.named(set.names.format);
        let known = sets.get(set).filter(|(known, _)| *known == first);
        let is_set = match known {
            Some((_, is_set)) => *is_set,
            None => {
                let is_set = match format.is_set(set, &self.top, &self.context) {
                    Err(e) if e.is_passing() => {
                        return Err(io::Error::from_raw_os_error(e.errno()));
                    }
                    is_set => is_set.unwrap_or(false),
                };
                sets.insert(set.clone(), (first, is_set));
                is_set
            }
        };
        drop(sets);
        if !is_set {
            return Ok(None);
        }
        let Some(root) = format.set_root(set.clone(), &self.top, &self.context) else {
            return Ok(None);
        };
        let name = set.visible();
        let node = self.kept(&name, Sort::Set, || Node::Directory(Arc::new(root)));
        Ok(Some((name, node)))
    }

    /// Returns the set that a file would be part of by its name.
    fn set_of(&self, name: &[u8]) -> Option<FileSet> {
        let kind = self.context.options.kind.as_deref();
        self.formats.set_of(kind, &self.path, name)
    }

    /// Returns what a name stands for because of sets: a set, or for one of its files a link to it.
    fn in_set(&self, name: &[u8]) -> io::Result<Option<Node>> {
        let options = &self.context.options;
        let set = |set: &FileSet| -> io::Result<_> {
            let parts = set.parts(&self.top, options.external)?;
            self.set(set, parts.into_values().flatten().flatten())
        };
        if let Some(of) = self.set_of(name) {
            let set = set(&of)?;
            return Ok(set.map(|(target, _)| {
                Node::Symlink(Arc::new(Symlink {
                    target,
                    ownership: self.ownership(),
                }))
            }));
        }
        let kind = options.kind.as_deref();
        for shown_so in self.formats.sets_shown_as(kind, &self.path, name) {
            if let Some((shown, node)) = set(&shown_so)?
                && shown == name
            {
                return Ok(Some(node));
            }
        }
        Ok(None)
    }

    /// The node of a name that was made before, if it was of the same sort.
    fn kept(&self, name: &[u8], sort: Sort, make: impl FnOnce() -> Node) -> Node {
        let mut key = vec![sort as u8];
        key.extend_from_slice(name);
        let mut known = self.known.lock().unwrap_or_else(|e| e.into_inner());
        known.entry(key).or_insert_with(make).clone()
    }
}

impl Directory for Folder {
    fn ownership(&self) -> Ownership {
        std::fs::metadata(&self.path).map_or(Ownership::UNKNOWN, |meta| Ownership::of(&meta))
    }

    fn list(&self) -> Result<Arc<Listing>> {
        let about = |e: io::Error| Error::from(e).about(self.path.display());
        let (mut entries, mut left_out) = (Vec::new(), Vec::new());
        let (mut names, mut sets) = (Vec::new(), BTreeMap::<FileSet, Vec<_>>::new());
        for entry in with_room(|| std::fs::read_dir(&self.path)).map_err(about)? {
            let name = entry.map_err(about)?.file_name().into_vec();
            match self.set_of(&name) {
                Some(set) => {
                    let number = set.names.parse(&name).map(|part| part.number);
                    sets.entry(set).or_default().push((number, name));
                }
                None => names.push(name),
            }
        }
        for (set, mut parts) in sets {
            parts.sort();
            let external = self.context.options.external;
            let paths = parts
                .iter()
                .map(|(_, name)| self.path.join(OsStr::from_bytes(name)))
                .filter(|path| !leads_out(path, &self.top, external));
            match self.set(&set, paths).map_err(about)? {
                Some(set) => entries.push(set),
                None => names.extend(parts.into_iter().map(|(_, name)| name)),
            }
        }
        for name in names {
            match self.node(&name) {
                Ok(Ok(node)) => {
                    let shown = self.shown_as(&name);
                    let is_free =
                        |shown: &Vec<u8>| !entries.iter().any(|(taken, _)| taken == shown);
                    entries.push((shown.filter(is_free).unwrap_or(name), node));
                }
                Ok(Err(Some(reason))) => left_out.push((name, reason)),
                // Not a store.
                Ok(Err(None)) => {}
                Err(e) if is_short(&e) => return Err(about(e)),
                // Gone since the directory was read.
                Err(e) if e.kind() == io::ErrorKind::NotFound => {}
                Err(e) => left_out.push((name, format!("cannot be read: {e}"))),
            }
        }
        Ok(Arc::new(Listing::new(entries, left_out, Vec::new())))
    }

    fn lookup(&self, name: &[u8]) -> Result<Option<Node>> {
        let about = |e: io::Error| Error::from(e).about(self.path.display());
        if self.set_of(name).is_some()
            && let Some(link) = self.in_set(name).map_err(about)?
        {
            return Ok(Some(link));
        }
        match self.node(name) {
            Ok(shown) => Ok(shown.ok().map(|node| match self.shown_as(name) {
                Some(target) => Node::Symlink(Arc::new(Symlink {
                    target,
                    ownership: self.ownership(),
                })),
                None => node,
            })),
            Err(e) if e.kind() == io::ErrorKind::NotFound => {
                match self.in_set(name).map_err(about)? {
                    Some(node) => Ok(Some(node)),
                    None => self.member_shown_as(name).map_err(about),
                }
            }
            Err(e) => Err(Error::from(e).about(self.path.display())),
        }
    }

    fn is_current(&self) -> bool {
        self.path.is_dir()
    }

    fn info(&self) -> Result<Json> {
        let listing = self.list()?;
        Ok(json!({
            "kind": "directory",
            "file": self.path.to_string_lossy(),
            "entries": listing.entries.len(),
            "left_out": info::left_out(&listing.left_out),
        }))
    }
}
