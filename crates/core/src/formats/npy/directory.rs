//! A directory of arrays on disk, as a tree.

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

use super::NAME;
use crate::tree::{Directory, Listing, Node, VirtualFile};
use npyfs_base::error::{Error, ErrorKind, Result};
use npyfs_io::content::Content;
use npyfs_io::file::{Identity, Ownership};

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
pub struct NpyDirectory {
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
            identity: Identity::of(&meta),
            ownership: Ownership::of(&meta),
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
        let is_same =
            std::fs::metadata(&self.path).is_ok_and(|meta| Identity::of(&meta) == self.identity);
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
            identity: Identity::of(&meta),
            ownership: Ownership::of(&meta),
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
        match Identity::of(&file.metadata()?) == self.identity {
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
        std::fs::metadata(&self.path).is_ok_and(|meta| Identity::of(&meta) == self.identity)
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
