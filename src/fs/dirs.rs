//! Directories of the tree that somebody has open.
//!
//! A handle keeps the listing that it was opened on: names come and go between opens, not while one reads.

use std::borrow::Cow;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use super::{Attr, DirEntry, FileKind, Fs, FsResult, ROOT_INO, kind};
use crate::error::{Error, ErrorKind, Result};
use crate::tree::inode::{number, number_of_name};
use crate::tree::{Listing, Node};

/// One handle.
pub(super) struct OpenDir {
    pub ino: u64,
    pub parent: u64,
    pub listing: Arc<Listing>,
}

/// One name of a listing.
enum Entry<'a> {
    Dot {
        ino: u64,
        name: &'a [u8],
    },
    Named {
        name: Cow<'a, [u8]>,
        node: Cow<'a, Node>,
    },
}

impl Fs {
    pub fn open_dir(&self, ino: u64) -> FsResult<u64> {
        let listing = self
            .directory(ino)
            .and_then(|dir| dir.list())
            .map_err(|e| self.note(ino, "list", e))?;
        let parent = self.inodes().get(ino).map_or(ROOT_INO, |e| e.parent);
        let handle = self.next_handle.fetch_add(1, Ordering::Relaxed);
        let dir = OpenDir {
            ino,
            parent,
            listing,
        };
        let mut dirs = self.dirs.write().unwrap_or_else(|e| e.into_inner());
        dirs.insert(handle, Arc::new(dir));
        Ok(handle)
    }

    fn dir(&self, handle: u64) -> Result<Arc<OpenDir>> {
        let dirs = self.dirs.read().unwrap_or_else(|e| e.into_inner());
        dirs.get(&handle)
            .cloned()
            .ok_or_else(|| Error::new(ErrorKind::Os(libc::EBADF), "no such handle"))
    }

    /// `.` and `..`, then the entries; each with its number, its name and its node.
    fn entries(dir: &OpenDir, offset: u64) -> impl Iterator<Item = (u64, Entry<'_>)> {
        let dots = [(dir.ino, &b"."[..]), (dir.parent, &b".."[..])];
        let dots = dots.into_iter().map(|(ino, name)| Entry::Dot { ino, name });
        let skip = usize::try_from(offset).unwrap_or(usize::MAX);
        let named = dir
            .listing
            .iter_from(skip.saturating_sub(2))
            .map(|(name, node)| Entry::Named { name, node });
        dots.skip(skip.min(2))
            .chain(named)
            .zip(offset..)
            .map(|(entry, at)| (at + 1, entry))
    }

    /// Entries from `offset` on (0 is the start; `.` and `..` come first) until `add` answers false: full.
    pub fn read_dir(
        &self,
        handle: u64,
        offset: u64,
        add: &mut dyn FnMut(&DirEntry) -> bool,
    ) -> FsResult<()> {
        let dir = self.dir(handle)?;
        for (next, entry) in Self::entries(&dir, offset) {
            let entry = match entry {
                Entry::Dot { ino, name } => DirEntry {
                    ino,
                    kind: FileKind::Directory,
                    name: name.to_vec(),
                    next,
                },
                Entry::Named { name, node } => DirEntry {
                    ino: match (&*node, self.is_writable()) {
                        (Node::File(_), true) => number_of_name(dir.ino, &name),
                        _ => number(dir.ino, &name, &node),
                    },
                    kind: kind(&node),
                    name: name.into_owned(),
                    next,
                },
            };
            if !add(&entry) {
                break;
            }
        }
        Ok(())
    }

    /// The same with attributes. Each entry that `add` took, except `.` and `..`, gained one kernel reference.
    pub fn read_dir_plus(
        &self,
        handle: u64,
        offset: u64,
        add: &mut dyn FnMut(&DirEntry, &Attr) -> bool,
    ) -> FsResult<()> {
        let dir = self.dir(handle)?;
        for (next, entry) in Self::entries(&dir, offset) {
            let (ino, name, attr, named) = match entry {
                Entry::Dot { ino, name } => {
                    let node = self.node(ino).unwrap_or(Node::Directory(self.root.clone()));
                    (ino, name.to_vec(), self.attr(ino, &node), false)
                }
                Entry::Named { name, node } => {
                    let ino = self.inodes().enter(dir.ino, &name, &node);
                    (ino, name.into_owned(), self.attr(ino, &node), true)
                }
            };
            let entry = DirEntry {
                ino: attr.shown,
                kind: attr.kind,
                name,
                next,
            };
            let taken = add(&entry, &attr);
            if named {
                let mut inodes = self.inodes();
                if taken {
                    inodes.hold(ino);
                } else {
                    inodes.forget(ino, 0);
                }
            }
            if !taken {
                break;
            }
        }
        Ok(())
    }

    pub fn release_dir(&self, handle: u64) {
        let mut dirs = self.dirs.write().unwrap_or_else(|e| e.into_inner());
        dirs.remove(&handle);
    }
}
