//! The files that a reading worker may open: those that it is asked about, those beside them that are stores as well,
//! and the checked sources of virtual datasets.
//!
//! Landlock knows files by their inode. The daemon names each with device and inode, and the worker lets itself open
//! what is found there before it gives its rights up: what has taken the place of a file since is another file.

use std::ffi::OsStr;
use std::fs::File;
use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::{Path, PathBuf};

use rustix::fs::{CWD, FileType, Mode, OFlags, openat};
use serde::{Deserialize, Serialize};

use crate::io::file::has_hdf5_signature;
use crate::io::remote::Address;
use crate::options::External;

/// Most files beside the first that may be opened.
const MAX_BESIDE: usize = 1024;

/// Device and inode.
pub type Inode = (u64, u64);

/// The directories that the stores of a mount may be in.
#[derive(Clone, Debug)]
pub enum Reach {
    /// Files anywhere may have to be read.
    Anywhere,
    /// The files that are asked about. Below these directories, those beside them as well.
    Stores(Vec<PathBuf>),
}

impl Reach {
    /// Returns the reach of a store that is a file, or a directory of such files.
    pub fn of(store: &Path, external: External) -> Self {
        match external {
            // What lies elsewhere reaches no file of this machine.
            _ if Address::parse(store).is_some() => Self::Stores(Vec::new()),
            External::Allow => Self::Anywhere,
            _ if store.is_dir() => Self::Stores(vec![store.to_owned()]),
            _ => Self::Stores(Vec::new()),
        }
    }

    /// Adds a directory of stores.
    pub fn with(self, dir: &Path) -> Self {
        match self {
            Self::Anywhere => Self::Anywhere,
            Self::Stores(mut dirs) => {
                dirs.push(dir.to_owned());
                Self::Stores(dirs)
            }
        }
    }

    /// Returns whether other stores in the directory of this file may be opened, too.
    pub(super) fn takes_neighbours(&self, file: &Path) -> bool {
        match self {
            Self::Anywhere => true,
            Self::Stores(dirs) => dirs.iter().any(|dir| file.starts_with(dir)),
        }
    }
}

/// A file by its path, with the inode that the daemon found there.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct NamedFile {
    path: Vec<u8>,
    inode: Inode,
}

impl NamedFile {
    /// Names a file.
    pub(super) fn new(path: &Path, inode: Inode) -> Self {
        let path = path.as_os_str().as_bytes().to_vec();
        Self { path, inode }
    }

    fn path(&self) -> &Path {
        Path::new(OsStr::from_bytes(&self.path))
    }

    /// Opens the file, if the path still leads to it.
    fn open(&self) -> Option<OwnedFd> {
        let flags = OFlags::PATH | OFlags::CLOEXEC | OFlags::NOFOLLOW;
        let file = openat(CWD, self.path(), flags, Mode::empty()).ok()?;
        let meta = rustix::fs::fstat(&file).ok()?;
        let is_file = FileType::from_raw_mode(meta.st_mode).is_file();
        (is_file && (meta.st_dev, meta.st_ino) == self.inode).then_some(file)
    }

    /// Returns the inode that the path leads to now; `None` if there is none.
    fn inode_now(&self) -> Option<Inode> {
        let meta = std::fs::metadata(self.path()).ok()?;
        Some((meta.dev(), meta.ino()))
    }
}

/// The first message to a reading worker; it comes with the descriptor of the first file it will be asked about, if
/// that is known.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub(super) struct Permit {
    /// Every file may be read.
    pub anywhere: bool,
    /// Files that were asked about lately.
    pub known: Vec<NamedFile>,
    /// Sources of virtual datasets, which libhdf5 opens by their names.
    pub sources: Vec<NamedFile>,
    /// The first file's path, if what lies beside it may be read as well.
    pub beside: Option<Vec<u8>>,
}

/// The files that a worker may open, open themselves.
#[derive(Default)]
pub(super) struct Admitted {
    /// `None`: all.
    pub files: Option<Vec<OwnedFd>>,
    /// Their inodes.
    pub inodes: Vec<Inode>,
}

impl Permit {
    /// Opens the files that it names, while the process still can.
    pub(super) fn admit(&self, first: Option<&File>) -> Admitted {
        if self.anywhere {
            return Admitted::default();
        }
        let mut files = Vec::new();
        files.extend(
            first
                .and_then(|file| file.try_clone().ok())
                .map(OwnedFd::from),
        );
        // Where descriptors are few, sources come first: without them there would be gaps.
        let named = self.sources.iter().chain(&self.known);
        files.extend(named.filter_map(NamedFile::open));
        if let Some(path) = &self.beside {
            files.extend(beside(Path::new(OsStr::from_bytes(path))));
        }
        let stat = |file| rustix::fs::fstat(file).map(|meta| (meta.st_dev, meta.st_ino));
        let inodes = files.iter().filter_map(|file| stat(file).ok()).collect();
        Admitted {
            files: Some(files),
            inodes,
        }
    }

    /// Returns whether the path of a source leads to a file that cannot be opened: it was replaced after it was checked.
    pub(super) fn misses_sources(&self, admitted: &[Inode]) -> bool {
        let mut now = self.sources.iter().filter_map(NamedFile::inode_now);
        !self.anywhere && now.any(|inode| !admitted.contains(&inode))
    }
}

/// Opens the stores in the directory of `first`, from its name on and then from the first name on.
fn beside(first: &Path) -> Vec<OwnedFd> {
    let Some(dir) = first.parent() else {
        return Vec::new();
    };
    let entries = std::fs::read_dir(dir).into_iter().flatten().flatten();
    let is_file = |entry: &std::fs::DirEntry| entry.file_type().is_ok_and(|t| t.is_file());
    let mut names: Vec<_> = entries.filter(is_file).map(|e| e.file_name()).collect();
    names.sort_unstable();
    let own = first.file_name().unwrap_or_default();
    let start = names.partition_point(|name| name.as_os_str() < own);
    names.rotate_left(start);
    let open = |name| {
        let flags = OFlags::RDONLY | OFlags::CLOEXEC | OFlags::NOFOLLOW | OFlags::NONBLOCK;
        let file = openat(CWD, dir.join(name), flags, Mode::empty()).ok()?;
        is_store(&File::from(file.try_clone().ok()?)).then_some(file)
    };
    names
        .into_iter()
        .take(MAX_BESIDE)
        .filter_map(open)
        .collect()
}

/// Returns whether a file is one of HDF5, or of LMDB.
fn is_store(file: &File) -> bool {
    /// `MDB_MAGIC`, behind the header of the first page (`mdb.c`).
    const LMDB: (u64, [u8; 4]) = (16, 0xBEEF_C0DE_u32.to_ne_bytes());
    let mut magic = [0; 4];
    has_hdf5_signature(file).unwrap_or(false)
        || (file.read_exact_at(&mut magic, LMDB.0).is_ok() && magic == LMDB.1)
}

#[cfg(test)]
mod tests {
    use super::*;

    const HDF5: &[u8] = b"\x89HDF\r\n\x1a\n and more";

    fn inode(path: &Path) -> Inode {
        let meta = std::fs::metadata(path).unwrap();
        (meta.dev(), meta.ino())
    }

    #[test]
    fn stores_beside_the_first_are_let_in_and_nothing_else() {
        let dir = tempfile::tempdir().unwrap();
        let at = |name: &str| dir.path().join(name);
        let mut table = vec![0; 16];
        table.extend(0xBEEF_C0DE_u32.to_ne_bytes());
        for (name, bytes) in [
            ("a.h5", HDF5),
            ("b", HDF5),
            ("t", &table),
            ("notes", b"secret"),
        ] {
            std::fs::write(at(name), bytes).unwrap();
        }
        std::os::unix::fs::symlink(at("notes"), at("link")).unwrap();
        let first = File::open(at("b")).unwrap();
        let admitted = |permit: &Permit| {
            let mut inodes = permit.admit(Some(&first)).inodes;
            inodes.sort_unstable();
            inodes.dedup();
            inodes
        };
        let sorted = |names: &[&str]| {
            let mut inodes: Vec<_> = names.iter().map(|name| inode(&at(name))).collect();
            inodes.sort_unstable();
            inodes
        };
        assert_eq!(admitted(&Permit::default()), sorted(&["b"]));
        let beside = Some(at("b").into_os_string().into_encoded_bytes());
        let all = Permit {
            beside,
            ..Permit::default()
        };
        assert_eq!(admitted(&all), sorted(&["a.h5", "b", "t"]));
    }

    #[test]
    fn a_file_that_took_the_place_of_another_is_not_let_in() {
        let dir = tempfile::tempdir().unwrap();
        let (path, other) = (dir.path().join("x"), dir.path().join("y"));
        std::fs::write(&path, HDF5).unwrap();
        std::fs::write(&other, HDF5).unwrap();
        let permit = Permit {
            sources: vec![NamedFile::new(&path, inode(&path))],
            ..Permit::default()
        };
        let before = permit.admit(None).inodes;
        assert_eq!(before, [inode(&path)]);
        assert!(!permit.misses_sources(&before));
        std::fs::rename(&other, &path).unwrap();
        assert_eq!(permit.admit(None).inodes, []);
        assert!(permit.misses_sources(&before));
        std::fs::remove_file(&path).unwrap();
        assert!(!permit.misses_sources(&before), "a source that is missing");
        std::os::unix::fs::symlink("/etc/passwd", &path).unwrap();
        assert_eq!(permit.admit(None).inodes, []);
        assert!(permit.misses_sources(&before));
    }

    #[test]
    fn a_store_that_is_a_file_lets_nothing_beside_it_in() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("x.h5");
        std::fs::write(&file, HDF5).unwrap();
        for external in [External::Deny, External::SameDir] {
            assert!(!Reach::of(&file, external).takes_neighbours(&file));
            assert!(Reach::of(dir.path(), external).takes_neighbours(&file));
            let layers = Reach::of(&file, external).with(&dir.path().join("layers"));
            assert!(!layers.takes_neighbours(&file));
            assert!(layers.takes_neighbours(&dir.path().join("layers/c/1.h5")));
        }
        assert!(matches!(Reach::of(&file, External::Allow), Reach::Anywhere));
    }
}
