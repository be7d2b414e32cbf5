//! A real directory mirrored: its subdirectories stay directories, each store in it is one too, other
//! files are left out. A file that is called as a store and is none counts as damage.
//!
//! Stores are opened when somebody looks into them. The directory is read anew each time.

use std::collections::{BTreeMap, HashMap};
use std::ffi::OsStr;
use std::fs::File;
use std::io::{self, Read};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use parking_lot::Mutex;
use serde_json::{Value as Json, json};

use crate::dataset::context::Context;
use crate::store::format::{FileSet, Registry, StoreRoot, leads_out};
use crate::store::is_checkouts;
use crate::tree::info;
use crate::tree::name::NAME_MAX;
use crate::tree::{Directory, Listing, Node, Symlink};
use npyfs_base::error::{Error, Result};
use npyfs_base::options::External;
use npyfs_io::file::handle::{is_short, with_room};
use npyfs_io::file::members::{first_member, shown_name};
use npyfs_io::file::{Identity, Ownership, has_hdf5_signature};

/// Bytes of a file that tell what it is.
const HEAD: u64 = 64;

/// Directories below each other that are searched for a first store before mounting.
const SEARCH_DEPTH: usize = 64;

/// Returns whether there is a store in a directory or below it. Symbolic links to directories are not followed.
pub fn holds_a_store(dir: &Path, formats: &Registry) -> io::Result<bool> {
    fn search(dir: &Path, formats: &Registry, depth: usize) -> io::Result<bool> {
        if formats.is_store(dir) {
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

/// Why a name of a real directory is not shown.
enum Absence {
    /// The file is no store, and has no name of one.
    NoStore,
    /// The options or the permissions do not allow it.
    LeftOut(String),
    /// The file has the name of a store, and is none.
    Damaged(String),
}

/// What a name of a real directory is shown as, or why it is not.
type Shown = std::result::Result<Node, Absence>;

/// A file as it was looked at.
struct LookedAt {
    identity: Identity,
    is_store: bool,
    /// Why a file that is called as a store is none.
    damage: Option<String>,
    /// The name that it would be shown by, if it is the first of several members.
    shown_as: Option<Vec<u8>>,
}

/// Looks at a file. `is_called_so`: its name is one of a store.
fn inspect(path: &Path, identity: Identity, is_called_so: bool) -> io::Result<LookedAt> {
    let is_store = match is_store(path) {
        // A file that ends before its signature is no store.
        Err(e) if e.kind() == io::ErrorKind::UnexpectedEof => false,
        found => found?,
    };
    // Only the first of several members has a signature.
    let is_damage = is_called_so && !is_store && first_member(path).is_none();
    Ok(LookedAt {
        identity,
        is_store,
        damage: is_damage.then(|| what_it_is(path)).transpose()?,
        shown_as: is_store.then(|| shown_name(path)).flatten(),
    })
}

/// Says what a file without a signature of HDF5 is.
pub(super) fn what_it_is(path: &Path) -> io::Result<String> {
    let mut head = Vec::new();
    let file = File::open(path)?;
    file.take(HEAD).read_to_end(&mut head)?;
    Ok(super::what_begins_so(&head).to_owned())
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
    match formats.named(set.names.format).sets() {
        Some(sets) if sets.is_set(&set, dir, context)? => {
            Ok(Some(sets.set_root(set, dir, context)))
        }
        _ => Ok(None),
    }
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

    /// Returns what a name of the real directory is shown as.
    fn node(&self, name: &[u8]) -> io::Result<Shown> {
        let path = self.path.join(OsStr::from_bytes(name));
        let meta = std::fs::symlink_metadata(&path)?;
        if meta.is_symlink() {
            return self.link(&path, name);
        }
        if meta.is_dir() {
            if is_checkouts(&path) {
                return Ok(Err(Absence::NoStore));
            }
            let kind = self.context.options.kind.as_deref();
            let formats = self.formats.wanted(kind);
            let mut directories = formats.filter_map(|format| format.directories());
            let root = directories.find_map(|stores| stores.open_lazily(&path, &self.context));
            if let Some(root) = root {
                return Ok(Ok(self.kept(name, Sort::Store, || Node::Directory(root))));
            }
            return Ok(Ok(self.kept(name, Sort::Folder, || {
                let folder = Folder::new(&self.top, &path, &self.context, &self.formats);
                Node::Directory(Arc::new(folder))
            })));
        }
        self.store(&path, name, &meta)
    }

    /// Returns whether a name is one of a store.
    fn is_called_as_a_store(&self, name: &[u8]) -> bool {
        let name = String::from_utf8_lossy(name);
        // Hidden files are those of file managers and editors.
        !name.starts_with('.') && super::is_called_as_a_store(&name, &self.formats)
    }

    fn link(&self, path: &Path, name: &[u8]) -> io::Result<Shown> {
        let nothing = || match self.is_called_as_a_store(name) {
            true => Absence::Damaged("a symbolic link to nothing".to_owned()),
            false => Absence::NoStore,
        };
        let Ok(target) = path.canonicalize() else {
            return Ok(Err(nothing()));
        };
        let inside = target.starts_with(&self.top);
        if !inside && self.context.options.external != External::Allow {
            let why =
                "symbolic link that leads out of the mounted directory (external=allow shows it)";
            return Ok(Err(Absence::LeftOut(why.to_owned())));
        }
        let Ok(meta) = std::fs::metadata(&target) else {
            return Ok(Err(nothing()));
        };
        if !meta.is_dir() {
            return self.store(path, name, &meta);
        }
        if !inside {
            let why = "symbolic link to a directory outside the mounted one";
            return Ok(Err(Absence::LeftOut(why.to_owned())));
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
            ownership: Ownership::from_metadata(&meta),
        }))))
    }

    fn store(&self, path: &Path, name: &[u8], meta: &std::fs::Metadata) -> io::Result<Shown> {
        if !meta.is_file() {
            return Ok(Err(Absence::NoStore));
        }
        let identity = Identity::from_metadata(meta);
        let mut looked_at = self.looked_at.lock();
        let is_known = |known: &&LookedAt| known.identity == identity;
        let looked = match looked_at.get(name).filter(is_known) {
            Some(known) => (known.is_store, known.damage.clone()),
            None => {
                let is_called_so = self.is_called_as_a_store(name);
                let looked = match with_room(|| inspect(path, identity, is_called_so)) {
                    Err(e) if e.kind() == io::ErrorKind::PermissionDenied => {
                        return Ok(Err(Absence::LeftOut(format!("cannot be read: {e}"))));
                    }
                    Err(e) if e.kind() == io::ErrorKind::NotFound => {
                        return Ok(Err(Absence::NoStore));
                    }
                    looked => looked?,
                };
                let found = (looked.is_store, looked.damage.clone());
                if let Some(why) = &looked.damage {
                    let line = format!("{}: left out: {why}", path.display());
                    self.context.journal.add(&line);
                }
                looked_at.insert(name.to_vec(), looked);
                found
            }
        };
        drop(looked_at);
        match looked {
            (true, _) => {}
            (false, Some(why)) => return Ok(Err(Absence::Damaged(why))),
            (false, None) => return Ok(Err(Absence::NoStore)),
        }
        Ok(Ok(self.kept(name, Sort::Store, || {
            Node::Directory(Arc::new(StoreRoot::new(path, &self.context, &self.formats)))
        })))
    }

    /// Returns the name that a store of several members is shown by, in place of that of the first: if nothing else has
    /// it.
    fn shown_as(&self, name: &[u8]) -> Option<Vec<u8>> {
        let looked_at = self.looked_at.lock();
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
                    first = Some(Identity::from_metadata(&meta));
                    break;
                }
                Err(e) if is_short(&e) => return Err(e),
                Ok(false) | Err(_) => {}
            }
        }
        let format = self.formats.named(set.names.format);
        let (Some(first), Some(sets)) = (first, format.sets()) else {
            return Ok(None);
        };
        let mut found = self.sets.lock();
        let known = found.get(set).filter(|(known, _)| *known == first);
        let is_set = match known {
            Some((_, is_set)) => *is_set,
            None => {
                let is_set = match sets.is_set(set, &self.top, &self.context) {
                    Err(e) if e.is_passing() => {
                        return Err(io::Error::from_raw_os_error(e.errno()));
                    }
                    is_set => is_set.unwrap_or(false),
                };
                found.insert(set.clone(), (first, is_set));
                is_set
            }
        };
        drop(found);
        if !is_set {
            return Ok(None);
        }
        let root = sets.set_root(set.clone(), &self.top, &self.context);
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
        let mut known = self.known.lock();
        known.entry(key).or_insert_with(make).clone()
    }
}

impl Directory for Folder {
    fn ownership(&self) -> Ownership {
        std::fs::metadata(&self.path)
            .map_or(Ownership::UNKNOWN, |meta| Ownership::from_metadata(&meta))
    }

    fn list(&self) -> Result<Arc<Listing>> {
        let about = |e: io::Error| Error::from(e).about(self.path.display());
        let (mut entries, mut left_out, mut damage) = (Vec::new(), Vec::new(), Vec::new());
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
                Ok(Err(Absence::LeftOut(why))) => left_out.push((name, why)),
                Ok(Err(Absence::Damaged(why))) => {
                    damage.push(format!("{}: {why}", String::from_utf8_lossy(&name)));
                    left_out.push((name, why));
                }
                Ok(Err(Absence::NoStore)) => {}
                Err(e) if is_short(&e) => return Err(about(e)),
                // Gone since the directory was read.
                Err(e) if e.kind() == io::ErrorKind::NotFound => {}
                Err(e) => left_out.push((name, format!("cannot be read: {e}"))),
            }
        }
        let listing = Listing::new(entries, left_out, Vec::new());
        Ok(Arc::new(listing.with_damage(damage)))
    }

    fn lookup(&self, name: &[u8]) -> Result<Option<Node>> {
        // The disk answers with an error. Names with a suffix behind may be so long.
        if name.len() > NAME_MAX {
            return Ok(None);
        }
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
