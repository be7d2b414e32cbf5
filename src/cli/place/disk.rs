//! Files and directories on disk, or in a mount, as the nodes that commands read.
//!
//! What is known of an object of a mount is what the mount reports below `.npyfs/info`; of a file on disk, what its header
//! says. Nothing is followed out of a mount, and nothing is ever written.

use std::ffi::OsStr;
use std::fs::{File, FileType, Metadata};
use std::io::{self, Read};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use serde_json::{Value as Json, json};

use crate::cli::log;
use npyfs_base::error::{Error, Result};
use npyfs_core::tree::control;
use npyfs_core::tree::{Directory, LazyEntries, Listing, Node, Symlink, VirtualFile};
use npyfs_io::content::{Content, npy_header};
use npyfs_io::file::{Identity, Ownership};

/// The first bytes of an `.npy` file.
const NPY: &[u8] = b"\x93NUMPY";

/// The first bytes of an `.npz` file, of which there are two kinds: with members and without.
const NPZ: [&[u8]; 2] = [b"PK\x03\x04", b"PK\x05\x06"];

/// Returns whether a file is one of arrays, by its first bytes; an archive also by its name, as others begin in the same way.
pub(super) fn is_array_file(path: &Path) -> bool {
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
struct Inside {
    mount: Arc<PathBuf>,
    path: PathBuf,
}

impl Inside {
    fn below(&self, name: &Path) -> Self {
        Self {
            mount: self.mount.clone(),
            path: self.path.join(name),
        }
    }

    /// Returns what the mount reports on it.
    fn report(&self) -> Result<Json> {
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
pub(super) struct DiskDirectory {
    real: PathBuf,
    inside: Inside,
}

impl DiskDirectory {
    /// Opens the root of a mount.
    pub(super) fn of_mount(at: &Path) -> io::Result<Self> {
        // The kernel resolves the root of a dead mount, but cannot open it.
        File::open(at)?;
        Ok(Self {
            real: at.to_owned(),
            inside: Inside {
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
    meta.map_or(Ownership::UNKNOWN, |meta| Ownership::of(&meta))
}

impl Directory for DiskDirectory {
    fn ownership(&self) -> Ownership {
        ownership(&self.real)
    }

    fn list(&self) -> Result<Arc<Listing>> {
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

    fn lookup(&self, name: &[u8]) -> Result<Option<Node>> {
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

    fn info(&self) -> Result<Json> {
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
pub(super) struct DiskFile {
    real: PathBuf,
    /// `None`: the file is in no mount.
    inside: Option<Inside>,
}

impl DiskFile {
    /// Creates a file that is in no mount.
    pub(super) fn new(real: PathBuf) -> Self {
        Self { real, inside: None }
    }

    fn explained(&self, e: io::Error) -> Error {
        match &self.inside {
            Some(inside) => inside.explained(e),
            None => e.into(),
        }
    }

    fn metadata(&self) -> Result<Metadata> {
        self.real.metadata().map_err(|e| self.explained(e))
    }
}

impl VirtualFile for DiskFile {
    fn ownership(&self) -> Ownership {
        let meta = self.metadata();
        meta.map_or(Ownership::UNKNOWN, |meta| Ownership::of(&meta))
    }

    fn size(&self) -> Result<u64> {
        Ok(self.metadata()?.len())
    }

    fn open(&self) -> Result<Arc<dyn Content>> {
        let file = open(&self.real).map_err(|e| self.explained(e))?;
        let len = file.metadata().map_err(|e| self.explained(e))?.len();
        let inside = self.inside.clone();
        Ok(Arc::new(DiskContent { file, len, inside }))
    }

    fn version(&self) -> u64 {
        let meta = self.metadata();
        meta.map_or(0, |meta| Identity::of(&meta).number())
    }

    fn is_current(&self) -> bool {
        true
    }

    fn info(&self) -> Result<Json> {
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
    inside: Option<Inside>,
}

impl Content for DiskContent {
    fn len(&self) -> u64 {
        self.len
    }

    fn read_at(&self, offset: u64, buf: &mut [u8]) -> Result<()> {
        let read = self.file.read_exact_at(buf, offset);
        read.map_err(|e| match &self.inside {
            Some(inside) => inside.explained(e),
            None => e.into(),
        })
    }
}
