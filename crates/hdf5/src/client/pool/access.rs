//! The files that reading workers may open: those that were asked about lately, checked sources of virtual datasets, and
//! whether a worker may open what a request needs.

use std::collections::HashMap;
use std::num::NonZeroUsize;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use lru::LruCache;

use crate::client::process::Access;
use crate::client::reach::Reach;
use crate::protocol::{Inode, NamedFile, Permit, Request};
use npyfs_io::file::StoreFile;
use npyfs_io::file::members::path_of;

/// Files that were asked about lately and that a new worker may open, too.
const MAX_RECENT: NonZeroUsize = NonZeroUsize::new(256).unwrap();

/// Most sources of virtual datasets that are known at a time.
const MAX_SOURCES: usize = 1 << 14;

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
