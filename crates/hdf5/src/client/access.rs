//! The files that reading workers may open: those that they are asked about, those beside them that are stores as well,
//! and checked sources of virtual datasets.

use std::collections::{HashMap, HashSet};
use std::num::NonZeroUsize;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use lru::LruCache;

use crate::protocol::{Inode, NamedFile, Permit, Request};
use npyfs_base::options::External;
use npyfs_io::file::StoreFile;
use npyfs_io::file::members::path_of;
use npyfs_io::remote::Address;

/// Files that were asked about lately and that a new worker may open, too.
const MAX_RECENT: NonZeroUsize = NonZeroUsize::new(256).unwrap();

/// Most sources of virtual datasets that are known at a time.
const MAX_SOURCES: usize = 1 << 14;

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
    pub fn of_store(store: &Path, external: External) -> Self {
        match external {
            // A remote store reaches no file of this machine.
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
    fn takes_neighbours(&self, file: &Path) -> bool {
        match self {
            Self::Anywhere => true,
            Self::Stores(dirs) => dirs.iter().any(|dir| file.starts_with(dir)),
        }
    }
}

/// The files that a worker process may open.
#[derive(Default)]
pub(super) struct Access {
    /// Every file, as without Landlock.
    pub(super) everything: bool,
    pub(super) inodes: HashSet<Inode>,
    /// The number of sources of virtual datasets that had been permitted when the worker was started.
    pub(super) sources: u64,
}

/// The files that a worker must be able to open to answer a request.
#[derive(Clone, Copy)]
pub(super) struct RequiredAccess<'a> {
    pub(super) file: &'a StoreFile,
    inode: Inode,
    sources: bool,
}

impl<'a> RequiredAccess<'a> {
    /// Returns what `request` about `file` needs.
    pub(super) fn new(file: &'a StoreFile, request: &Request) -> Self {
        let own = (file.identity.dev, file.identity.ino);
        // liblmdb opens by name.
        let by_name = matches!(request, Request::Lmdb(_))
            .then(|| std::fs::metadata(&file.path).ok())
            .flatten()
            .map(|meta| (meta.dev(), meta.ino()));
        Self {
            file,
            inode: by_name.unwrap_or(own),
            sources: request.reads_sources(),
        }
    }

    /// Returns whether a worker has this access, where sources were permitted `added` times so far.
    pub(super) fn is_met(&self, by: &Access, added: u64) -> bool {
        let members = || self.file.layout().into_iter().flat_map(|l| &l.members);
        let mut inodes = members().filter_map(|member| member.inode);
        by.everything
            || self.file.far().is_some()
            || by.inodes.contains(&self.inode)
                && inodes.all(|inode| by.inodes.contains(&inode))
                && (!self.sources || by.sources == added)
    }

    /// Notes that a worker is started for this request. An inode that it cannot open shows in its answer.
    pub(super) fn grant(&self, to: &mut Access) {
        if self.file.far().is_some() {
            return;
        }
        to.inodes.insert(self.inode);
        let members = self.file.layout().into_iter().flat_map(|l| &l.members);
        to.inodes.extend(members.filter_map(|member| member.inode));
    }
}

/// The files that new workers may open.
pub(super) struct KnownFiles {
    /// Files that were asked about, the latest first.
    recent: LruCache<Inode, PathBuf>,
    /// Sources of virtual datasets that were checked.
    sources: HashMap<PathBuf, Inode>,
    /// The number of times that a source was added.
    added: u64,
}

impl KnownFiles {
    /// Knows no file.
    pub(super) fn new() -> Self {
        Self {
            recent: LruCache::new(MAX_RECENT),
            sources: HashMap::new(),
            added: 0,
        }
    }

    /// Returns whether no file was asked about yet.
    pub(super) fn is_empty(&self) -> bool {
        self.recent.is_empty()
    }

    /// Returns how many times a source was added.
    pub(super) fn added(&self) -> u64 {
        self.added
    }

    /// Remembers a file that is asked about.
    pub(super) fn remember(&mut self, needs: RequiredAccess<'_>) {
        if needs.file.far().is_some() {
            return;
        }
        if self.recent.get(&needs.inode).is_none() {
            self.recent.put(needs.inode, needs.file.path.clone());
        }
    }

    /// Adds a checked source of virtual datasets, unless it is known.
    pub(super) fn add_source(&mut self, path: &Path, inode: Inode) {
        if self.sources.get(path) == Some(&inode) {
            return;
        }
        if self.sources.len() >= MAX_SOURCES {
            // Paths that are still wanted are checked and added again.
            self.sources.clear();
        }
        self.sources.insert(path.to_owned(), inode);
        self.added += 1;
    }

    /// Returns the permit of a new worker that is to open `first` first, if that is known.
    pub(super) fn permit(&self, reach: &Reach, file: Option<&StoreFile>) -> Permit {
        let file = file.filter(|file| file.far().is_none());
        let first = file.map(|file| file.path.as_path());
        if let Reach::Anywhere = reach {
            return Permit {
                anywhere: true,
                ..Permit::default()
            };
        }
        let recent = self.recent.iter();
        let sources = self.sources.iter();
        let layout = file.and_then(StoreFile::layout);
        let members = layout.into_iter().flat_map(|layout| &layout.members);
        let members = members.filter_map(|m| Some(NamedFile::new(&path_of(m), m.inode?)));
        let recent = recent.map(|(i, path)| NamedFile::new(path, *i));
        Permit {
            anywhere: false,
            known: members.chain(recent).collect(),
            sources: sources.map(|(path, i)| NamedFile::new(path, *i)).collect(),
            beside: first
                .filter(|path| reach.takes_neighbours(path))
                .map(|path| path.as_os_str().as_bytes().to_vec()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const HDF5: &[u8] = b"\x89HDF\r\n\x1a\n and more";

    #[test]
    fn a_store_that_is_a_file_lets_nothing_beside_it_in() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("x.h5");
        std::fs::write(&file, HDF5).unwrap();
        for external in [External::Deny, External::SameDir] {
            assert!(!Reach::of_store(&file, external).takes_neighbours(&file));
            assert!(Reach::of_store(dir.path(), external).takes_neighbours(&file));
            let layers = Reach::of_store(&file, external).with(&dir.path().join("layers"));
            assert!(!layers.takes_neighbours(&file));
            assert!(layers.takes_neighbours(&dir.path().join("layers/c/1.h5")));
        }
        assert!(matches!(
            Reach::of_store(&file, External::Allow),
            Reach::Anywhere
        ));
    }
}
