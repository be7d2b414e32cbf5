//! Open directories of the tree.
//!
//! A handle keeps the listing that it was opened on: names that come or go after the open do not change what the handle
//! lists.

use std::borrow::Cow;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use super::{Attr, DirEntry, FileKind, Fs, FsResult, ROOT_INO, kind};
use npyfs_base::error::{Error, ErrorKind, Result};
use npyfs_base::heap;
use npyfs_core::tree::inode::number;
use npyfs_core::tree::{Listing, Node};

/// One handle.
pub(super) struct OpenDir {
    pub ino: u64,
    pub parent: u64,
    pub listing: Arc<Listing>,
    /// The order in which the entries that the listing holds are listed, as places in it; `None` is their own order.
    pub order: Option<HeldOrder>,
}

/// Places of held entries, those that come last behind the others.
pub(super) struct HeldOrder {
    places: Vec<usize>,
    /// How many are listed in front of the entries that are made on demand.
    first: usize,
}

/// One name of a listing.
enum ListedName<'a> {
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
    /// Opens a directory and returns a handle that lists its present entries.
    pub fn open_dir(&self, ino: u64) -> FsResult<u64> {
        let listing = self
            .directory(ino)
            .and_then(|dir| dir.list())
            .map_err(|e| self.note(ino, "list", e))?;
        let parent = self.inodes().parent_of(ino).unwrap_or(ROOT_INO);
        let handle = self.next_handle.fetch_add(1, Ordering::Relaxed);
        let order = self.order(&listing);
        let dir = OpenDir {
            ino,
            parent,
            listing,
            order,
        };
        let mut dirs = self.dirs.write().unwrap_or_else(|e| e.into_inner());
        dirs.insert(handle, Arc::new(dir));
        Ok(handle)
    }

    /// Moves the entries that must come last behind all others.
    fn order(&self, listing: &Listing) -> Option<HeldOrder> {
        let is_last = |&at: &usize| self.comes_last(&listing.entries[at].0);
        let (last, mut places): (Vec<usize>, Vec<usize>) =
            (0..listing.entries.len()).partition(is_last);
        let first = places.len();
        places.extend(&last);
        (!last.is_empty()).then_some(HeldOrder { places, first })
    }

    fn dir(&self, handle: u64) -> Result<Arc<OpenDir>> {
        let dirs = self.dirs.read().unwrap_or_else(|e| e.into_inner());
        dirs.get(&handle)
            .cloned()
            .ok_or_else(|| Error::new(ErrorKind::Os(libc::EBADF), "no such handle"))
    }

    /// Returns `.` and `..`, then the entries, each with its number, its name and its node.
    fn entries(dir: &OpenDir, offset: u64) -> impl Iterator<Item = (u64, ListedName<'_>)> {
        let dots = [(dir.ino, &b"."[..]), (dir.parent, &b".."[..])];
        let dots = dots
            .into_iter()
            .map(|(ino, name)| ListedName::Dot { ino, name });
        let skip = usize::try_from(offset).unwrap_or(usize::MAX);
        let from = skip.saturating_sub(2);
        let (held, len) = (dir.listing.entries.len(), dir.listing.len());
        let place = move |at: usize| match &dir.order {
            Some(HeldOrder { places, first }) if at < *first => places[at],
            Some(HeldOrder { first, .. }) if at < first + (len - held) => held + (at - first),
            Some(HeldOrder { places, .. }) => places[at - (len - held)],
            None => at,
        };
        let named = (from..len).filter_map(move |at| dir.listing.entry(place(at)));
        let named = named.map(|(name, node)| ListedName::Named { name, node });
        dots.skip(skip.min(2))
            .chain(named)
            .zip(offset..)
            .map(|(entry, at)| (at + 1, entry))
    }

    /// Lists the entries from `offset` on (0 is the start; `.` and `..` come first) until `add` returns false because
    /// its buffer is full.
    pub fn read_dir(
        &self,
        handle: u64,
        offset: u64,
        add: &mut dyn FnMut(&DirEntry) -> bool,
    ) -> FsResult<()> {
        let dir = self.dir(handle)?;
        for (next, entry) in Self::entries(&dir, offset) {
            let entry = match entry {
                ListedName::Dot { ino, name } => DirEntry {
                    ino,
                    kind: FileKind::Directory,
                    name: name.to_vec(),
                    next,
                },
                ListedName::Named { name, node } => DirEntry {
                    ino: match (&*node, self.is_writable()) {
                        (Node::File(_), true) => self.shown_number(dir.ino, &name),
                        (Node::Directory(_), true) => {
                            let last = self.comes_last(&name);
                            let inodes = self.inodes();
                            inodes.number_of_directory(dir.ino, &name, &node, last)
                        }
                        _ => number(dir.ino, &name, &node, self.comes_last(&name)),
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

    /// Lists as `read_dir` does, with attributes. Each entry that `add` took, except `.` and `..`, gains one kernel
    /// reference.
    pub fn read_dir_plus(
        &self,
        handle: u64,
        offset: u64,
        add: &mut dyn FnMut(&DirEntry, &Attr) -> bool,
    ) -> FsResult<()> {
        let dir = self.dir(handle)?;
        for (next, entry) in Self::entries(&dir, offset) {
            let (ino, name, attr, named) = match entry {
                ListedName::Dot { ino, name } => {
                    let node = self.node(ino).unwrap_or(Node::Directory(self.root.clone()));
                    (ino, name.to_vec(), self.attr(ino, &node), false)
                }
                ListedName::Named { name, node } => {
                    let last = self.comes_last(&name);
                    let ino = self.inodes().enter(dir.ino, &name, &node, last);
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

    /// Closes a directory handle.
    pub fn release_dir(&self, handle: u64) {
        let mut dirs = self.dirs.write().unwrap_or_else(|e| e.into_inner());
        let Some(closed) = dirs.remove(&handle) else {
            return;
        };
        let is_open = dirs.values().any(|dir| dir.ino == closed.ino);
        drop(dirs);
        if let (false, Some(writer), Ok(path)) = (is_open, &self.writer, self.names(closed.ino)) {
            writer.forget_remnants(&path);
        }
        let names = closed.listing.entries.len();
        drop(closed);
        heap::return_free_memory_of(names);
    }

    /// Returns the paths of the open directories.
    pub(super) fn open_directories(&self) -> Vec<Vec<Vec<u8>>> {
        let dirs = self.dirs.read().unwrap_or_else(|e| e.into_inner());
        let open: Vec<u64> = dirs.values().map(|dir| dir.ino).collect();
        drop(dirs);
        open.into_iter()
            .filter_map(|ino| self.names(ino).ok())
            .collect()
    }
}
