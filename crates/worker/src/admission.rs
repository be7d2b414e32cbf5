//! The files that a reading worker opens before it gives up its rights: the files that its permit names, and the other
//! stores in the directory of the first one.

use std::ffi::OsStr;
use std::fs::File;
use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::Path;

use rustix::fs::{CWD, FileType, Mode, OFlags, openat};

use npyfs_hdf5::protocol::{Inode, NamedFile, Permit};
use npyfs_io::file::has_hdf5_signature;

/// The largest number of files beside the first that may be opened.
const MAX_BESIDE: usize = 1024;

/// The files that a worker may open, each held open.
#[derive(Default)]
pub(super) struct Admitted {
    /// The open files; `None` admits all files.
    pub files: Option<Vec<OwnedFd>>,
    /// The inodes of the files.
    pub inodes: Vec<Inode>,
}

/// Opens the files that a permit names, while the process still can.
pub(super) fn admit(permit: &Permit, first: Option<&File>) -> Admitted {
    if permit.anywhere {
        return Admitted::default();
    }
    let mut files = Vec::new();
    files.extend(
        first
            .and_then(|file| file.try_clone().ok())
            .map(OwnedFd::from),
    );
    // If descriptors are scarce, sources come first: a missing source would show as gaps.
    let named = permit.sources.iter().chain(&permit.known);
    files.extend(named.filter_map(open));
    if let Some(path) = &permit.beside {
        files.extend(beside(Path::new(OsStr::from_bytes(path))));
    }
    let stat = |file| rustix::fs::fstat(file).map(|meta| (meta.st_dev, meta.st_ino));
    let inodes = files.iter().filter_map(|file| stat(file).ok()).collect();
    Admitted {
        files: Some(files),
        inodes,
    }
}

/// Returns true if the path of a source leads to a file that cannot be opened: it was replaced after it was checked.
pub(super) fn misses_sources(permit: &Permit, admitted: &[Inode]) -> bool {
    let mut now = permit.sources.iter().filter_map(inode_now);
    !permit.anywhere && now.any(|inode| !admitted.contains(&inode))
}

/// Opens the file, if the path still leads to it.
fn open(named: &NamedFile) -> Option<OwnedFd> {
    let flags = OFlags::PATH | OFlags::CLOEXEC | OFlags::NOFOLLOW;
    let file = openat(CWD, named.path(), flags, Mode::empty()).ok()?;
    let meta = rustix::fs::fstat(&file).ok()?;
    let is_file = FileType::from_raw_mode(meta.st_mode).is_file();
    (is_file && (meta.st_dev, meta.st_ino) == named.inode()).then_some(file)
}

/// Returns the inode that the path leads to now; `None` if there is none.
fn inode_now(named: &NamedFile) -> Option<Inode> {
    let meta = std::fs::metadata(named.path()).ok()?;
    Some((meta.dev(), meta.ino()))
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
    let open_beside = |name| {
        let flags = OFlags::RDONLY | OFlags::CLOEXEC | OFlags::NOFOLLOW | OFlags::NONBLOCK;
        let file = openat(CWD, dir.join(name), flags, Mode::empty()).ok()?;
        is_store(&File::from(file.try_clone().ok()?)).then_some(file)
    };
    names
        .into_iter()
        .take(MAX_BESIDE)
        .filter_map(open_beside)
        .collect()
}

/// Returns true if a file is an HDF5 or an LMDB file.
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
            let mut inodes = admit(permit, Some(&first)).inodes;
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
        let before = admit(&permit, None).inodes;
        assert_eq!(before, [inode(&path)]);
        assert!(!misses_sources(&permit, &before));
        std::fs::rename(&other, &path).unwrap();
        assert_eq!(admit(&permit, None).inodes, []);
        assert!(misses_sources(&permit, &before));
        std::fs::remove_file(&path).unwrap();
        assert!(
            !misses_sources(&permit, &before),
            "a source that is missing"
        );
        std::os::unix::fs::symlink("/etc/passwd", &path).unwrap();
        assert_eq!(admit(&permit, None).inodes, []);
        assert!(misses_sources(&permit, &before));
    }
}
