//! Directories of `.npy` files in the layout in which npyfs shows stores, but on disk: sources and targets of
//! conversions.
//!
//! They are not mounted, as they are already directories, so the format is in no registry. A builder writes one, and a
//! tree of directories and files reads it.

use std::ffi::OsStr;
use std::fs::File;
use std::io;
use std::ops::Range;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::{Arc, OnceLock};

use rustix::fs::{SeekFrom, seek};
use rustix::io::Errno;
use serde_json::{Value as Json, json};

use crate::dataset::opened::OpenStore;
use crate::store::base::unsupported;
use crate::store::encode::{ObjectKey, single};
use crate::store::format::builder::{Builder, Construction};
use crate::store::format::{Abilities, Accepted, Format, Making};
use crate::store::object::copy;
use crate::store::part::Part;
use crate::tree::name::{converted, visible};
use crate::tree::{Directory, Listing, Node, VirtualFile};
use npyfs_base::error::{Error, ErrorKind, Result};
use npyfs_io::content::Content;
use npyfs_io::file::{Identity, Ownership};
use npyfs_io::storage::Disk;

/// Name of the format.
pub const NAME: &str = "npy";

/// The suffix of the name of an array of keys, which is part of the name here.
const KEYS: &str = ".keys";

/// Directories of `.npy` files.
pub struct Npy;

impl Format for Npy {
    fn name(&self) -> &'static str {
        NAME
    }

    fn root(&self, _store: &Arc<OpenStore>) -> Result<Option<Arc<dyn Directory>>> {
        Ok(None)
    }

    fn abilities(&self) -> Abilities<'_> {
        Abilities {
            making: Some(self),
            ..Abilities::default()
        }
    }
}

impl Making for Npy {
    fn build(&self, construction: &Construction<'_>) -> Result<Box<dyn Builder>> {
        Ok(Box::new(NpyBuilder::new(construction)?))
    }

    fn accepts(&self) -> Accepted {
        Accepted {
            suffixes: &[".npy", ".txt", ".bin"],
            text_files: false,
            samples: false,
        }
    }
}

/// Opens a directory of arrays.
pub fn open(path: &Path) -> Result<Arc<dyn Directory>> {
    Ok(Arc::new(NpyDirectory::open(path)?))
}

/// A directory of arrays under construction.
struct NpyBuilder {
    top: PathBuf,
    /// All directories, to be synced.
    made: Vec<PathBuf>,
}

impl NpyBuilder {
    /// Begins with an empty directory.
    fn new(construction: &Construction<'_>) -> Result<Self> {
        construction.new.without_axes()?;
        construction.new.without_author()?;
        let top = construction.new.path.to_owned();
        std::fs::create_dir(&top)?;
        Ok(Self {
            made: vec![top.clone()],
            top,
        })
    }

    fn place(&self, key: &ObjectKey, suffix: &str) -> PathBuf {
        let mut path = self.top.clone();
        for group in key.group() {
            path.push(OsStr::from_bytes(&converted(group, "")));
        }
        let name = match key.name().strip_suffix(KEYS) {
            Some(of) if suffix == ".npy" && !of.is_empty() => {
                visible(of.as_bytes(), &format!("{KEYS}{suffix}"))
            }
            _ => converted(key.name(), suffix),
        };
        path.push(OsStr::from_bytes(&name));
        path
    }
}

impl Builder for NpyBuilder {
    fn group(&mut self, path: &ObjectKey) -> Result<()> {
        let place = self.place(path, "");
        std::fs::create_dir(&place)?;
        self.made.push(place);
        Ok(())
    }

    fn put(&mut self, key: &ObjectKey, parts: &[Part]) -> Result<()> {
        let part = single(parts)?;
        let place = self.place(key, part.place.suffix);
        let file = File::create_new(&place)?;
        let written = copy(&*part.content, &file, 0, &Disk)
            .and_then(|()| Ok(file.set_len(part.content.len())?))
            .and_then(|()| Ok(file.sync_all()?));
        written.inspect_err(|_| {
            // It is removed with its directory at the latest.
            let _ = std::fs::remove_file(&place);
        })
    }

    fn link(&mut self, key: &ObjectKey, target: &[u8]) -> Result<()> {
        if target.starts_with(b"/") {
            return Err(unsupported("a link that leads elsewhere"));
        }
        let suffix = [".npy", ".npz"]
            .into_iter()
            .find(|suffix| target.ends_with(suffix.as_bytes()));
        let place = self.place(key, suffix.unwrap_or(""));
        std::os::unix::fs::symlink(OsStr::from_bytes(target), place)?;
        Ok(())
    }

    fn finish(self: Box<Self>) -> Result<Option<Arc<dyn Directory>>> {
        for dir in self.made.iter().rev() {
            File::open(dir)?.sync_all()?;
        }
        Ok(None)
    }
}

/// The suffixes of files that hold objects.
const ENDINGS: [&[u8]; 4] = [b".npy", b".npz", b".txt", b".bin"];

/// The deepest nesting of directories in the search for a first array.
const DEEPEST: usize = 64;

/// Returns whether there are arrays in or below a directory on disk.
pub fn holds_arrays(dir: &Path) -> bool {
    fn search(dir: &Path, deeper: usize) -> bool {
        let entries = std::fs::read_dir(dir).into_iter().flatten().flatten();
        let mut below = Vec::new();
        for entry in entries.filter(|entry| !is_hidden(entry.file_name().as_bytes())) {
            let name = entry.file_name();
            match entry.file_type() {
                Ok(kind) if kind.is_dir() => below.push(entry.path()),
                Ok(_)
                    if ENDINGS[..2]
                        .iter()
                        .any(|end| name.as_bytes().ends_with(end)) =>
                {
                    return true;
                }
                _ => {}
            }
        }
        deeper > 0 && below.iter().any(|dir| search(dir, deeper - 1))
    }
    search(dir, DEEPEST)
}

fn is_hidden(name: &[u8]) -> bool {
    name.starts_with(b".")
}

/// A directory of arrays as of its opening.
struct NpyDirectory {
    path: PathBuf,
    identity: Identity,
    ownership: Ownership,
    listing: Arc<Listing>,
}

impl NpyDirectory {
    /// Opens a directory.
    pub fn open(path: &Path) -> Result<Self> {
        let about = |e: std::io::Error| Error::from(e).about(path.display());
        let meta = std::fs::metadata(path).map_err(about)?;
        let (mut entries, mut left_out) = (Vec::new(), Vec::new());
        for entry in std::fs::read_dir(path).map_err(about)? {
            let entry = entry.map_err(about)?;
            let name = entry.file_name().into_vec();
            if is_hidden(&name) {
                continue;
            }
            let kind = entry.file_type().map_err(about)?;
            if kind.is_dir() {
                let below = Arc::new(LazyDirectory {
                    path: entry.path(),
                    opened: OnceLock::new(),
                });
                entries.push((name, Node::Directory(below)));
                continue;
            }
            // A symbolic link counts as its target.
            let is_file = std::fs::metadata(entry.path()).is_ok_and(|meta| meta.is_file());
            match ENDINGS.iter().any(|end| name.ends_with(end)) && is_file {
                true => {
                    let file = NpyFile::find(&entry.path()).map_err(about)?;
                    entries.push((name, Node::File(Arc::new(file))));
                }
                false => left_out.push((name, "neither an array nor text".to_owned())),
            }
        }
        Ok(Self {
            path: path.to_owned(),
            identity: Identity::from_metadata(&meta),
            ownership: Ownership::from_metadata(&meta),
            listing: Arc::new(Listing::new(entries, left_out, Vec::new())),
        })
    }
}

impl Directory for NpyDirectory {
    fn ownership(&self) -> Ownership {
        self.ownership
    }

    fn list(&self) -> Result<Arc<Listing>> {
        Ok(self.listing.clone())
    }

    fn is_current(&self) -> bool {
        let is_same = std::fs::metadata(&self.path)
            .is_ok_and(|meta| Identity::from_metadata(&meta) == self.identity);
        is_same
            && self.listing.iter().all(|(_, node)| match &*node {
                Node::File(file) => file.is_current(),
                Node::Directory(_) | Node::Symlink(_) => true,
            })
    }

    fn format(&self) -> Result<&'static str> {
        Ok(NAME)
    }

    fn info(&self) -> Result<Json> {
        Ok(json!({ "kind": NAME, "file": self.path.to_string_lossy() }))
    }
}

/// A directory that is opened on first access.
struct LazyDirectory {
    path: PathBuf,
    opened: OnceLock<Arc<NpyDirectory>>,
}

impl LazyDirectory {
    fn opened(&self) -> Result<&Arc<NpyDirectory>> {
        if let Some(opened) = self.opened.get() {
            return Ok(opened);
        }
        let opened = Arc::new(NpyDirectory::open(&self.path)?);
        Ok(self.opened.get_or_init(|| opened))
    }
}

impl Directory for LazyDirectory {
    fn ownership(&self) -> Ownership {
        let opened = self.opened();
        opened.map_or(Ownership::UNKNOWN, |opened| opened.ownership())
    }

    fn list(&self) -> Result<Arc<Listing>> {
        self.opened()?.list()
    }

    fn is_current(&self) -> bool {
        self.opened.get().is_none_or(|opened| opened.is_current())
    }

    fn format(&self) -> Result<&'static str> {
        Ok(NAME)
    }

    fn info(&self) -> Result<Json> {
        self.opened()?.info()
    }
}

/// A file of an array, a text or bytes.
struct NpyFile {
    path: PathBuf,
    identity: Identity,
    ownership: Ownership,
}

impl NpyFile {
    fn find(path: &Path) -> io::Result<Self> {
        let meta = std::fs::metadata(path)?;
        Ok(Self {
            path: path.to_owned(),
            identity: Identity::from_metadata(&meta),
            ownership: Ownership::from_metadata(&meta),
        })
    }

    fn changed(&self) -> Error {
        let why = "it changed while it was converted";
        Error::new(ErrorKind::Stale, why).about(self.path.display())
    }
}

impl VirtualFile for NpyFile {
    fn ownership(&self) -> Ownership {
        self.ownership
    }

    fn size(&self) -> Result<u64> {
        Ok(self.identity.size)
    }

    fn open(&self) -> Result<Arc<dyn Content>> {
        // Another file may be here since the check: opening a pipe would block.
        let flags = libc::O_NONBLOCK;
        let file = File::options()
            .read(true)
            .custom_flags(flags)
            .open(&self.path);
        let file = file.map_err(|e| Error::from(e).about(self.path.display()))?;
        match Identity::from_metadata(&file.metadata()?) == self.identity {
            true => Ok(Arc::new(FileContent {
                file,
                identity: self.identity,
            })),
            false => Err(self.changed()),
        }
    }

    fn version(&self) -> u64 {
        self.identity.number()
    }

    fn is_current(&self) -> bool {
        std::fs::metadata(&self.path)
            .is_ok_and(|meta| Identity::from_metadata(&meta) == self.identity)
    }

    fn info(&self) -> Result<Json> {
        Ok(json!({ "kind": NAME, "file": self.path.to_string_lossy() }))
    }
}

/// The bytes of a file.
struct FileContent {
    file: File,
    identity: Identity,
}

impl Content for FileContent {
    fn len(&self) -> u64 {
        self.identity.size
    }

    fn read_at(&self, offset: u64, buf: &mut [u8]) -> Result<()> {
        Ok(self.file.read_exact_at(buf, offset)?)
    }

    fn written(&self, from: u64) -> Result<Option<Range<u64>>> {
        if from >= self.len() {
            return Ok(None);
        }
        // A file system without holes reports none.
        let data = match seek(&self.file, SeekFrom::Data(from)) {
            Ok(data) => data,
            Err(Errno::NXIO) => return Ok(None),
            Err(e) => return Err(io::Error::from(e).into()),
        };
        let end = seek(&self.file, SeekFrom::Hole(data)).map_err(io::Error::from)?;
        Ok((data < self.len()).then(|| data..end.min(self.len())))
    }
}
