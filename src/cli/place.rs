//! What the arguments of a command that reads mean: a store, something in one, something in a mount, a file of arrays.
//!
//! The first argument is a store or a directory in one, and those behind it are paths in it; or each of them stands for
//! itself: `STORE:/path`, a path that goes on into a store, something in a mount, an `.npy` or `.npz` file. What exists
//! under a name is what the name means; only what does not exist is taken apart, or as a pattern.
//!
//! Files and directories on disk, or in a mount, are nodes as those of a store are. What is known of an object of a
//! mount is what the mount reports below `.npyfs/info`; of a file on disk, what its header says. Nothing is followed
//! out of a mount. Never changes anything.

use std::ffi::OsStr;
use std::fmt;
use std::fs::{File, FileType, Metadata};
use std::io::{self, Read};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::{Component, Path, PathBuf};
use std::sync::Arc;

use serde_json::{Value as Json, json};

use crate::cli::pattern::{Pattern, has_wildcards};
use crate::cli::store::{StoreArgs, find_below};
use crate::cli::users::out_of_reach;
use crate::cli::{CliError, log};
use crate::mount::fs::Fs;
use crate::mount::fuse::table;
use npyfs_base::error::{self, Error};
use npyfs_core::formats;
use npyfs_core::formats::store_path::StorePath;
use npyfs_core::tree::name::SUFFIXES;
use npyfs_core::tree::path::{PathError, find};
use npyfs_core::tree::{Directory, LazyEntries, Listing, Node, Symlink, VirtualFile, control};
use npyfs_io::content::{Content, npy_header};
use npyfs_io::file::{Identity, Ownership};
use npyfs_io::remote::Address;

/// The part of a pattern that stands for any directories below each other, or none.
const ANY_DEPTH: &[u8] = b"**";

/// How something in a mount is read.
#[derive(Clone, Copy, PartialEq, Eq)]
enum ReadThrough {
    /// As programs read it.
    Mount,
    /// In the store itself, shown as the mount shows it; in a mount that is written, as programs read it.
    Store,
}

/// The open store or file.
enum Source {
    /// A store, with the arguments that show it so, unless it is a directory in one.
    Store(Box<Fs>, Option<StoreArgs>),
    /// The root of a mount, and where it is.
    Mount(Arc<dyn Directory>, PathBuf),
    /// A file that is no store.
    File(Node),
}

/// Something that is read, in what it lies in.
#[derive(Clone)]
pub struct Place {
    source: Arc<Source>,
    /// The path from the root of what is open.
    pub path: PathBuf,
    /// The path as people are told it; empty: all of the store.
    pub shown: PathBuf,
    /// The argument that names the store.
    store: PathBuf,
}

impl Place {
    /// Returns the node. Links are followed, the last one only if `follow_last`.
    pub fn node(&self, follow_last: bool) -> Result<Node, CliError> {
        let (root, control) = match &*self.source {
            Source::File(node) => return Ok(node.clone()),
            Source::Mount(root, _) => (root, None),
            Source::Store(fs, _) => (fs.root(), Some(fs.control())),
        };
        find_below(root, control, &self.path, &self.shown, follow_last)
    }

    /// Returns the error about it.
    pub fn failed(&self, why: &dyn fmt::Display) -> CliError {
        CliError::object(format!("{}: {why}", self.named().display()))
    }

    /// Returns the store that the place is in.
    pub fn fs(&self) -> Option<&Fs> {
        match &*self.source {
            Source::Store(fs, _) => Some(fs),
            Source::Mount(..) | Source::File(_) => None,
        }
    }

    /// Returns the arguments that show the store, if the place is all that they show.
    pub fn as_store(&self) -> Option<&StoreArgs> {
        match &*self.source {
            Source::Store(_, args) if self.path.as_os_str().is_empty() => args.as_ref(),
            _ => None,
        }
    }

    /// Returns the path as people are told it, or the argument that names all of the store.
    pub fn named(&self) -> &Path {
        match self.shown.as_os_str().is_empty() {
            true => &self.store,
            false => &self.shown,
        }
    }

    /// Returns the mount point, if the place is a mount as a whole.
    pub fn mount_point(&self) -> Option<&Path> {
        match &*self.source {
            Source::Mount(_, at) if self.path.as_os_str().is_empty() => Some(at),
            _ => None,
        }
    }

    /// Returns the path that programs take: in a mount, and of a file on disk; `None` in a store.
    pub fn on_disk(&self) -> Option<&Path> {
        match (&*self.source, self.shown.as_os_str().is_empty()) {
            (Source::Store(..), _) => None,
            (_, true) => Some(&self.store),
            (_, false) => Some(&self.shown),
        }
    }

    /// Returns the place of something below, told by `shown`.
    fn below(&self, path: &Path, shown: PathBuf) -> Self {
        let path = path.strip_prefix("/").unwrap_or(path);
        Self {
            source: self.source.clone(),
            path: self.path.join(path),
            shown,
            store: self.store.clone(),
        }
    }

    fn root(&self) -> Option<&Arc<dyn Directory>> {
        match &*self.source {
            Source::Store(fs, _) => Some(fs.root()),
            Source::Mount(root, _) => Some(root),
            Source::File(_) => None,
        }
    }

    /// Returns whether there is something by exactly this path.
    fn exists(&self) -> bool {
        let (root, hidden) = match &*self.source {
            Source::File(_) => return true,
            Source::Mount(root, _) => (root, None),
            Source::Store(fs, _) => (fs.root(), Some((control::NAME, fs.control()))),
        };
        let bytes = self.path.as_os_str().as_bytes();
        !matches!(find(root, hidden, bytes, false), Err(PathError::Missing))
    }

    /// Returns what a path with wildcards stands for; a path without, or one that exists, is what it is. `is_alone`: it
    /// is no path in what another argument names.
    fn expanded(self, is_alone: bool) -> Result<Vec<Self>, CliError> {
        let bytes = self.path.as_os_str().as_bytes();
        let Some(root) = self.root() else {
            return Ok(vec![self]);
        };
        if !has_wildcards(bytes) || self.exists() {
            return Ok(vec![self]);
        }
        let shown = self.shown.display();
        let parts = bytes.split(|&byte| byte == b'/');
        let mut parts: Vec<&[u8]> = parts.filter(|part| !part.is_empty()).collect();
        parts.dedup_by(|later, first| later == first && *later == ANY_DEPTH);
        let mut found = Vec::new();
        add_matches(root, Path::new(""), &parts, &mut found)
            .map_err(|e| CliError::object(format!("{shown}: {e}")))?;
        if found.is_empty() {
            return Err(CliError::object(format!("{shown}: nothing is called so")));
        }
        let place = |path: PathBuf| Self {
            source: self.source.clone(),
            shown: match &*self.source {
                Source::Mount(_, at) if is_alone => at.join(&path),
                _ => path.clone(),
            },
            path,
            store: self.store.clone(),
        };
        Ok(found.into_iter().map(place).collect())
    }
}

/// Adds the paths below a directory that are as the parts of a pattern say. Links are matched and not followed.
fn add_matches(
    dir: &Arc<dyn Directory>,
    path: &Path,
    parts: &[&[u8]],
    found: &mut Vec<PathBuf>,
) -> Result<(), Error> {
    let Some((&first, rest)) = parts.split_first() else {
        return Ok(());
    };
    let is_deep = first == ANY_DEPTH;
    if is_deep && !rest.is_empty() {
        add_matches(dir, path, rest, found)?;
    }
    let pattern = Pattern::new(first);
    for (name, node) in dir.list()?.iter() {
        if !pattern.matches(&name) {
            continue;
        }
        let path = path.join(OsStr::from_bytes(&name));
        let below = if is_deep { parts } else { rest };
        let is_found = rest.is_empty();
        if is_found {
            found.push(path.clone());
        }
        if let (Node::Directory(dir), true) = (&*node, is_deep || !is_found) {
            add_matches(dir, &path, below, found)?;
        }
    }
    Ok(())
}

/// The meaning of one argument.
#[derive(Debug, PartialEq, Eq)]
enum Meaning {
    /// A store, or what is at a path in it.
    Store {
        store: PathBuf,
        inside: Option<PathBuf>,
    },
    /// A mount, and a path in it.
    Mount { at: PathBuf, inside: PathBuf },
    /// A file of arrays.
    File(PathBuf),
}

impl Meaning {
    fn find(given: &Path) -> Self {
        let StorePath { store, inside } = StorePath::parse(given);
        if Address::parse(&store).is_some() {
            return Self::Store { store, inside };
        }
        if let Some((at, below)) = in_mount(&store) {
            let inside = inside.unwrap_or_default();
            let inside = inside.strip_prefix("/").unwrap_or(&inside);
            return Self::Mount {
                at,
                inside: below.join(inside),
            };
        }
        if store.symlink_metadata().is_ok() {
            return match inside.is_none() && is_array_file(&store) {
                true => Self::File(store),
                false => Self::Store { store, inside },
            };
        }
        Self::going_on(given).unwrap_or(Self::Store { store, inside })
    }

    /// Returns the meaning of a path that does not exist, but goes on behind a store or into a mount.
    fn going_on(given: &Path) -> Option<Self> {
        let named = |above: &&Path| !above.as_os_str().is_empty();
        for above in given.ancestors().skip(1).filter(named) {
            let inside = given.strip_prefix(above).ok()?;
            if let Some((at, below)) = in_mount(above) {
                return Some(Self::Mount {
                    at,
                    inside: below.join(inside),
                });
            }
            let Ok(meta) = above.metadata() else { continue };
            let is_store = meta.is_file() || formats::registry().is_store(above);
            return is_store.then(|| Self::Store {
                store: above.to_owned(),
                inside: Some(Path::new("/").join(inside)),
            });
        }
        None
    }

    /// Opens what is meant by `given`.
    fn open(self, args: &StoreArgs, given: &Path, through: ReadThrough) -> Result<Place, CliError> {
        let whole = |source| Place {
            source: Arc::new(source),
            path: PathBuf::new(),
            shown: PathBuf::new(),
            store: Address::local(given).unwrap_or_else(|| Address::hide_secret(given)),
        };
        let in_store = |fs, args| whole(Source::Store(Box::new(fs), args));
        match self {
            Self::Store { store, inside } => {
                let Some(inside) = inside else {
                    return Ok(in_store(args.open_at(&store, None)?, Some(args.clone())));
                };
                let bytes = inside.as_os_str().as_bytes();
                let is_file = SUFFIXES.iter().any(|suffix| bytes.ends_with(suffix));
                let is_pattern = has_wildcards(bytes);
                // A file, or a pattern, is looked for in all of the store; the name of a directory never ends as that
                // of a file does.
                if is_file || is_pattern {
                    let fs = args.open_at(&store, None)?;
                    let place = in_store(fs, None).below(&inside, given.to_owned());
                    if is_pattern || place.exists() {
                        return Ok(place);
                    }
                }
                let refusal = match args.open_at(&store, Some(&inside)) {
                    Ok(fs) => return Ok(in_store(fs, None)),
                    Err(refusal) => refusal,
                };
                // What lies in the hidden directory of the root has other names.
                let fs = args.open_at(&store, None).map_err(|_| refusal.clone())?;
                let place = in_store(fs, None).below(&inside, given.to_owned());
                match place.exists() {
                    true => Ok(place),
                    false => Err(refusal),
                }
            }
            Self::Mount { at, inside } if through == ReadThrough::Store && is_read_only(&at) => {
                if args.names_state() {
                    return Err(CliError::usage(format!(
                        "{}: lies in a mount, which has a checkout and commits of its own: name the store to see others",
                        given.display()
                    )));
                }
                let args = args.of_mount(&at).map_err(|e| closed(&at, &e))?;
                let fs = args.open_at(args.first(), None)?;
                let place = in_store(fs, Some(args));
                Ok(match inside.as_os_str().is_empty() {
                    true => place,
                    false => place.below(&inside, given.to_owned()),
                })
            }
            Self::Mount { at, inside } => {
                if args.has_view() {
                    return Err(CliError::usage(format!(
                        "{}: lies in a mount, which is shown with its own options and checkout: name the store to see \
                         it otherwise",
                        given.display()
                    )));
                }
                let place = whole(Source::Mount(mounted(&at)?, at));
                Ok(match inside.as_os_str().is_empty() {
                    true => place,
                    false => place.below(&inside, given.to_owned()),
                })
            }
            Self::File(path) => {
                if args.has_view() {
                    return Err(CliError::usage(format!(
                        "{}: is no store: -o, --checkout and --at are for stores",
                        given.display()
                    )));
                }
                let node = Node::File(Arc::new(DiskFile::new(path)));
                Ok(Place {
                    shown: given.to_owned(),
                    ..whole(Source::File(node))
                })
            }
        }
    }
}

/// Returns the store or the mount that a path goes on into, and the path from there; `None` if it names all of it.
pub fn inside(given: &Path) -> Option<(PathBuf, PathBuf)> {
    let (whole, inside) = match Meaning::find(given) {
        Meaning::Store { store, inside } => (store, inside?),
        Meaning::Mount { at, inside } => (at, inside),
        Meaning::File(_) => return None,
    };
    let names = inside
        .components()
        .filter(|part| matches!(part, Component::Normal(_)));
    let inside: PathBuf = names.collect();
    (!inside.as_os_str().is_empty()).then_some((whole, inside))
}

/// Returns the root of a mount, whose nodes are what the mount shows.
pub fn mounted(at: &Path) -> Result<Arc<dyn Directory>, CliError> {
    let root = DiskDirectory::of_mount(at).map_err(|e| closed(at, &e))?;
    Ok(Arc::new(root))
}

/// Returns the mount of npyfs that a path is in, and the path from there.
fn in_mount(path: &Path) -> Option<(PathBuf, PathBuf)> {
    let path = table::resolve(path).ok()?;
    let at = table::above(&path)?;
    let inside = path.strip_prefix(&at).ok()?.to_owned();
    Some((at, inside))
}

fn is_read_only(mount_point: &Path) -> bool {
    matches!(table::at(mount_point), Ok(Some(mounted)) if mounted.read_only)
}

/// Returns whether a path lies in a mount whose store can be opened beside it.
pub fn is_in_view(path: &Path) -> bool {
    in_mount(path).is_some_and(|(at, _)| is_read_only(&at))
}

fn closed(at: &Path, e: &io::Error) -> CliError {
    CliError::mount(out_of_reach(at, e))
}

/// Returns what the arguments of a command mean, in their order.
pub fn places(args: &StoreArgs, paths: &[PathBuf]) -> Result<Vec<Place>, CliError> {
    all(args, paths, ReadThrough::Mount)
}

/// Returns what the arguments mean, for a command that needs the store itself: what lies in a mount is found in its
/// store.
pub fn places_in_stores(args: &StoreArgs, paths: &[PathBuf]) -> Result<Vec<Place>, CliError> {
    all(args, paths, ReadThrough::Store)
}

fn all(args: &StoreArgs, paths: &[PathBuf], through: ReadThrough) -> Result<Vec<Place>, CliError> {
    let first = Meaning::find(args.first()).open(args, args.first(), through)?;
    if paths.is_empty() {
        return first.expanded(true);
    }
    let is_directory = first.exists() && matches!(first.node(true)?, Node::Directory(_));
    let mut all = Vec::new();
    if is_directory {
        for path in paths {
            all.extend(first.below(path, path.clone()).expanded(false)?);
        }
        return Ok(all);
    }
    all.extend(first.expanded(true)?);
    for path in paths {
        let place = Meaning::find(path).open(args, path, through)?;
        all.extend(place.expanded(true)?);
    }
    Ok(all)
}

/// The first bytes of an `.npy` file.
const NPY: &[u8] = b"\x93NUMPY";

/// The first bytes of an `.npz` file, of which there are two kinds: with members and without.
const NPZ: [&[u8]; 2] = [b"PK\x03\x04", b"PK\x05\x06"];

/// Returns whether a file is one of arrays, by its first bytes; an archive also by its name, as others begin in the
/// same way.
fn is_array_file(path: &Path) -> bool {
    // Only regular files are opened: a pipe would block.
    if !path.metadata().is_ok_and(|meta| meta.is_file()) {
        return false;
    }
    let Ok(mut file) = open(path) else {
        return false;
    };
    let mut head = [0; NPY.len()];
    let mut filled = 0;
    while let Ok(more @ 1..) = file.read(&mut head[filled..]) {
        filled += more;
    }
    let head = &head[..filled];
    let is_npz = path.extension().is_some_and(|suffix| suffix == "npz");
    head == NPY || (is_npz && NPZ.iter().any(|start| head.starts_with(start)))
}

fn open(path: &Path) -> io::Result<File> {
    // What is there may have changed into a pipe.
    let flags = libc::O_NONBLOCK;
    File::options().read(true).custom_flags(flags).open(path)
}

/// The mount that something lies in, and the path in it.
#[derive(Clone)]
struct MountedPath {
    mount: Arc<PathBuf>,
    path: PathBuf,
}

impl MountedPath {
    fn below(&self, name: &Path) -> Self {
        Self {
            mount: self.mount.clone(),
            path: self.path.join(name),
        }
    }

    /// Returns what the mount reports on it.
    fn report(&self) -> error::Result<Json> {
        let mut report = self.mount.join(".npyfs/info").join(&self.path);
        report.as_mut_os_string().push(".json");
        let text = std::fs::read(&report)?;
        let json: Json = serde_json::from_slice(&text)
            .map_err(|e| Error::damaged(format!("{}: {e}", report.display())))?;
        match json.get("error").and_then(Json::as_str) {
            Some(why) => Err(Error::damaged(why)),
            None => Ok(json),
        }
    }

    /// Returns the error with the reason that the mount gave for it.
    fn explained(&self, e: io::Error) -> Error {
        let path = self.path.to_string_lossy();
        let known = e.raw_os_error();
        let known = known.and_then(|errno| log::reason_for(&self.mount, &path, errno));
        let mut error = Error::from(e);
        if let Some(reason) = known {
            error.message = reason;
        }
        error
    }
}

/// A directory of a mount.
struct DiskDirectory {
    real: PathBuf,
    inside: MountedPath,
}

impl DiskDirectory {
    /// Opens the root of a mount.
    fn of_mount(at: &Path) -> io::Result<Self> {
        // The kernel resolves the root of a dead mount, but cannot open it.
        File::open(at)?;
        Ok(Self {
            real: at.to_owned(),
            inside: MountedPath {
                mount: Arc::new(at.to_owned()),
                path: PathBuf::new(),
            },
        })
    }

    /// Returns the node of a name of this type; a link that cannot be read is a file, whose reader learns why.
    fn node(&self, name: &Path, kind: FileType) -> Node {
        let real = self.real.join(name);
        let inside = self.inside.below(name);
        if kind.is_dir() {
            return Node::Directory(Arc::new(Self { real, inside }));
        }
        if kind.is_symlink()
            && let Ok(target) = std::fs::read_link(&real)
        {
            return Node::Symlink(Arc::new(Symlink {
                target: target.into_os_string().into_vec(),
                ownership: ownership(&real),
            }));
        }
        let inside = Some(inside);
        Node::File(Arc::new(DiskFile { real, inside }))
    }
}

fn ownership(path: &Path) -> Ownership {
    let meta = path.symlink_metadata();
    meta.map_or(Ownership::UNKNOWN, |meta| Ownership::from_metadata(&meta))
}

impl Directory for DiskDirectory {
    fn ownership(&self) -> Ownership {
        ownership(&self.real)
    }

    fn list(&self) -> error::Result<Arc<Listing>> {
        let explained = |e| self.inside.explained(e);
        let mut names = Vec::new();
        for entry in std::fs::read_dir(&self.real).map_err(explained)? {
            let entry = entry.map_err(explained)?;
            let kind = entry.file_type().map_err(explained)?;
            names.push((entry.file_name().into_vec().into_boxed_slice(), kind));
        }
        names.sort_unstable_by(|a, b| a.0.cmp(&b.0));
        let dir = Self {
            real: self.real.clone(),
            inside: self.inside.clone(),
        };
        Ok(Arc::new(Listing {
            many: Some(Arc::new(DiskEntries { dir, names })),
            ..Listing::default()
        }))
    }

    fn lookup(&self, name: &[u8]) -> error::Result<Option<Node>> {
        let name = Path::new(OsStr::from_bytes(name));
        match self.real.join(name).symlink_metadata() {
            Ok(meta) => Ok(Some(self.node(name, meta.file_type()))),
            Err(e) if e.kind() == io::ErrorKind::NotFound => Ok(None),
            Err(e) => Err(self.inside.below(name).explained(e)),
        }
    }

    fn is_current(&self) -> bool {
        true
    }

    fn info(&self) -> error::Result<Json> {
        match self.inside.path.as_os_str().is_empty() {
            true => {
                let text = std::fs::read(self.inside.mount.join(".npyfs/info.json"))?;
                serde_json::from_slice(&text).map_err(|e| Error::damaged(e.to_string()))
            }
            // What the mount reports itself is no object.
            false
                if self
                    .inside
                    .path
                    .starts_with(OsStr::from_bytes(control::NAME)) =>
            {
                Ok(json!({ "kind": "control" }))
            }
            false => self.inside.report(),
        }
    }
}

/// The entries of a directory: of each only its name is held.
struct DiskEntries {
    dir: DiskDirectory,
    /// In order.
    names: Vec<(Box<[u8]>, FileType)>,
}

impl LazyEntries for DiskEntries {
    fn len(&self) -> usize {
        self.names.len()
    }

    fn get(&self, at: usize) -> (Vec<u8>, Node) {
        let (name, kind) = &self.names[at];
        let node = self.dir.node(Path::new(OsStr::from_bytes(name)), *kind);
        (name.to_vec(), node)
    }

    fn find(&self, name: &[u8]) -> Option<Node> {
        let found = self.names.binary_search_by(|(have, _)| (**have).cmp(name));
        found.ok().map(|at| self.get(at).1)
    }
}

/// A file on disk.
struct DiskFile {
    real: PathBuf,
    /// `None`: the file is in no mount.
    inside: Option<MountedPath>,
}

impl DiskFile {
    /// Creates a file that is in no mount.
    fn new(real: PathBuf) -> Self {
        Self { real, inside: None }
    }

    fn explained(&self, e: io::Error) -> Error {
        match &self.inside {
            Some(inside) => inside.explained(e),
            None => e.into(),
        }
    }

    fn metadata(&self) -> error::Result<Metadata> {
        self.real.metadata().map_err(|e| self.explained(e))
    }
}

impl VirtualFile for DiskFile {
    fn ownership(&self) -> Ownership {
        let meta = self.metadata();
        meta.map_or(Ownership::UNKNOWN, |meta| Ownership::from_metadata(&meta))
    }

    fn size(&self) -> error::Result<u64> {
        Ok(self.metadata()?.len())
    }

    fn open(&self) -> error::Result<Arc<dyn Content>> {
        let file = open(&self.real).map_err(|e| self.explained(e))?;
        let len = file.metadata().map_err(|e| self.explained(e))?.len();
        let inside = self.inside.clone();
        Ok(Arc::new(DiskContent { file, len, inside }))
    }

    fn version(&self) -> u64 {
        let meta = self.metadata();
        meta.map_or(0, |meta| Identity::from_metadata(&meta).number())
    }

    fn is_current(&self) -> bool {
        true
    }

    fn info(&self) -> error::Result<Json> {
        if let Some(inside) = &self.inside {
            return inside.report();
        }
        let content = self.open()?;
        let file = self.real.to_string_lossy();
        Ok(match npy_header(&*content)? {
            Ok(header) => json!({
                "kind": "npy",
                "file": file,
                "dtype": header.dtype.json(),
                "shape": header.shape,
                "order": if header.fortran_order { "F" } else { "C" },
                "stored_size": content.len().saturating_sub(header.start),
            }),
            Err(_) => json!({ "kind": "npz", "file": file, "stored_size": content.len() }),
        })
    }
}

/// The bytes of a file on disk.
struct DiskContent {
    file: File,
    len: u64,
    inside: Option<MountedPath>,
}

impl Content for DiskContent {
    fn len(&self) -> u64 {
        self.len
    }

    fn read_at(&self, offset: u64, buf: &mut [u8]) -> error::Result<()> {
        let read = self.file.read_exact_at(buf, offset);
        read.map_err(|e| match &self.inside {
            Some(inside) => inside.explained(e),
            None => e.into(),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_exists_is_what_its_name_means() {
        let dir = tempfile::tempdir().unwrap();
        let path = |name: &str| dir.path().join(name);
        let store = |name: &str, inside: Option<&str>| Meaning::Store {
            store: path(name),
            inside: inside.map(PathBuf::from),
        };
        std::fs::write(path("x.h5"), "").unwrap();
        std::fs::write(path("a.npy"), b"\x93NUMPY\x01\x00").unwrap();
        std::fs::write(path("text"), "text").unwrap();
        std::fs::create_dir(path("dir")).unwrap();
        let of = |name: &str| Meaning::find(&path(name));
        assert_eq!(of("x.h5"), store("x.h5", None));
        assert_eq!(of("x.h5/g/a.npy"), store("x.h5", Some("/g/a.npy")));
        assert_eq!(of("x.h5:/g/a.npy"), store("x.h5", Some("/g/a.npy")));
        assert_eq!(of("a.npy"), Meaning::File(path("a.npy")));
        assert_eq!(of("text"), store("text", None));
        assert_eq!(of("dir/y.h5"), store("dir/y.h5", None));
        assert_eq!(of("y.h5"), store("y.h5", None));
    }
}
