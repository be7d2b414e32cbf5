//! Open files and open directories of the tree.
//!
//! The handle of a file keeps the version of the content that it was opened on. A read goes through the handle and
//! never through an inode. The handle of a directory keeps the listing that it was opened on: names that come or go
//! after the open do not change what the handle lists.

use std::borrow::Cow;
use std::ops::Range;
use std::sync::atomic::Ordering;
use std::sync::{Arc, OnceLock};

use super::keeper::KeptSource;
use super::maps::{PageReads, WantedBytes};
use super::reopened::KeptOpen;
use super::{Attr, DirEntry, FileKind, Fs, FsResult, OpenedFile, ROOT_INO, kind};
use npyfs_base::buffer::Buffer;
use npyfs_base::error::{Error, ErrorKind, Result};
use npyfs_base::heap;
use npyfs_core::dataset::access_pattern::AccessPattern;
use npyfs_core::tree::inode::number;
use npyfs_core::tree::{Listing, Node, VirtualFile};
use npyfs_io::content::{self, Content, Data};
use npyfs_io::kept::KeptCopy;
use npyfs_io::remote;

/// Size in bytes of the longest file that the kernel is given as a whole: the amount that the kernel reads ahead by
/// itself.
const SHORT: u64 = 128 << 10;

/// Size in bytes of the shortest file for whose readers memory is prepared.
const LONG: u64 = 16 << 20;

/// Returns the bytes of a page of the page cache.
fn page() -> u64 {
    rustix::param::page_size() as u64
}

/// One handle.
pub(super) struct OpenFile {
    pub ino: u64,
    pub file: Arc<dyn VirtualFile>,
    pub content: Arc<dyn Content>,
    pub direct_io: bool,
    pub pattern: Arc<AccessPattern>,
    /// `None`: the content of this file is never kept as a copy.
    pub kept: Option<KeptSource>,
    /// The reads of a file for whose pages the kernel asks one by one.
    pub pages: OnceLock<PageReads>,
    /// The content stays as it is: the kernel can be given more than it asks for.
    pub fixed: bool,
    /// The file is probably mapped: what is read of it are pages and says nothing of later opens.
    pub is_mapped: bool,
}

/// Bytes that were read for a request of the kernel, with others that are to be put into its page cache.
pub struct ReadReply {
    data: Data,
    /// The offset of `data` in the file.
    from: u64,
    /// The range of `data` that was asked for.
    asked: Range<usize>,
}

impl ReadReply {
    /// Returns the bytes that were asked for.
    pub fn asked(&self) -> &[u8] {
        &self.data.as_ref()[self.asked.clone()]
    }

    /// Returns the other bytes before and after them, each with its offset in the file.
    pub fn beside(&self) -> [(u64, &[u8]); 2] {
        let Range { start, end } = self.asked;
        let bytes = self.data.as_ref();
        [
            (self.from, &bytes[..start]),
            (self.from + end as u64, &bytes[end..]),
        ]
    }
}

impl Fs {
    /// Returns the present file of an inode if it is still the version `old`: a branch may have moved without a change
    /// of this sample. Fails with ESTALE otherwise.
    fn unchanged(&self, ino: u64, old: &dyn VirtualFile) -> Result<Arc<dyn VirtualFile>> {
        let changed = || Error::new(ErrorKind::Stale, "the store changed on disk");
        let place = self.inodes.lock().place_of(ino);
        let (parent, name) = place.ok_or_else(changed)?;
        match self.child(parent, &name)? {
            Some(Node::File(now)) if now.version() == old.version() => {
                self.inodes.lock().replace(ino, Node::File(now.clone()));
                Ok(now)
            }
            _ => Err(changed()),
        }
    }

    /// Returns the file of an inode, and its content.
    fn opened(&self, ino: u64) -> Result<(Arc<dyn VirtualFile>, Arc<dyn Content>)> {
        let mut file = self.file(ino)?;
        self.prepare_for(&*file);
        // Programs that look at mounts read files about them.
        if !file.volatile() {
            remote::opened();
        }
        if !file.is_current() {
            file = self.unchanged(ino, &*file)?;
        }
        let content = file.open()?;
        Ok((file, content))
    }

    /// Opens a file; `exact` says that the kernel can read it past its page cache and still map it. Fails with ESTALE
    /// if the store changed: the kernel then looks the path up again on behalf of the opening thread.
    pub fn open_file(&self, ino: u64, exact: bool, thread: u32) -> FsResult<OpenedFile> {
        let found = match self.again.take(thread, ino) {
            Some(KeptOpen::Content(file, content)) => Ok((file, content)),
            _ => self.opened(ino),
        };
        let (file, content) =
            found.map_err(|e| self.note(ino, "open", self.again.note(e, thread, false)))?;
        let (content, kept) = match &self.keeper {
            Some(keeper) => keeper.opened(ino, || self.path_of(ino), &file, content),
            None => (content, None),
        };
        let pattern = Arc::default();
        let is_mapped = self.maps.opened(ino, thread, &pattern) || content.extent(0).is_some();
        let exact = exact
            && !is_mapped
            && content.is_costly()
            && self.samples.opened(ino, content.len(), &pattern);
        let direct_io = file.volatile() || exact;
        // A writable file may change while its bytes are handed to the kernel.
        let fixed = !direct_io && self.writer.is_none();
        let by_page = fixed && is_mapped;
        let short = fixed && (1..=SHORT).contains(&content.len());
        let fresh = self.inodes.lock().open_first(ino) && short;
        let open = OpenFile {
            ino,
            file,
            content,
            direct_io,
            pattern,
            kept,
            pages: OnceLock::new(),
            fixed,
            is_mapped,
        };
        let handle = self.next_handle.fetch_add(1, Ordering::Relaxed);
        let mut files = self.files.write();
        files.insert(handle, Arc::new(open));
        drop(files);
        if self.by_page.load(Ordering::Relaxed) {
            self.is_asked_by_page(handle);
        }
        Ok(OpenedFile {
            handle,
            direct_io,
            fresh,
            by_page,
        })
    }

    /// Starts to prepare memory while the first long file is being opened: huge pages take as long to get as a disk
    /// read.
    fn prepare_for(&self, file: &dyn VirtualFile) {
        if !self.is_prepared.load(Ordering::Relaxed)
            && file.size().is_ok_and(|size| size >= LONG)
            && !self.is_prepared.swap(true, Ordering::Relaxed)
        {
            let pool = self.context.cache.pool().clone();
            self.context.decoders.submit(move || pool.prepare());
        }
    }

    /// Returns all bytes of a short file, which the kernel gets before any read. Returns `None` if the bytes cannot be
    /// read; a later read then reports the error.
    pub fn whole(&self, handle: u64) -> Option<Buffer> {
        let file = self.handle(handle)?;
        let size = usize::try_from(file.content.len()).ok()?;
        if size as u64 > SHORT {
            return None;
        }
        let mut bytes = self.context.cache.pool().take(size);
        file.content.read_whole(&mut bytes).ok()?;
        Some(bytes)
    }

    fn handle(&self, handle: u64) -> Option<Arc<OpenFile>> {
        let files = self.files.read();
        files.get(&handle).cloned()
    }

    /// Returns true if decoder threads are busy.
    pub fn is_decoding(&self) -> bool {
        self.context.cache.decoding() > 0
    }

    /// Returns true if the handle is read past the page cache: a program waits for each of its requests.
    pub fn is_direct(&self, handle: u64) -> bool {
        self.handle(handle).is_some_and(|file| file.direct_io)
    }

    /// Notes that the kernel asks for the pages of a handle one by one.
    pub fn is_asked_by_page(&self, handle: u64) {
        if let Some(file) = self.handle(handle)
            && file.fixed
        {
            file.pages.get_or_init(PageReads::new);
        }
    }

    /// Returns the bytes that the kernel should be given for a request of a handle for which it asks page by page;
    /// `None` if those are the bytes that it asked for.
    pub fn wanted(&self, handle: u64, asked: Range<u64>) -> Option<WantedBytes> {
        let file = self.handle(handle)?;
        let pages = file.pages.get()?;
        let wanted = pages.wanted(&*file.content, page(), asked.clone());
        (wanted.range != asked).then_some(wanted)
    }

    /// Reads at most `size` bytes from `offset`; the result is shorter only at the end of the file.
    pub fn read(&self, handle: u64, offset: u64, size: u32) -> FsResult<Data> {
        let asked = offset..offset.saturating_add(u64::from(size));
        Ok(self.read_wanted(handle, asked.clone(), asked)?.data)
    }

    /// Reads the bytes that were `asked` for, fewer only at the end of the file, and with them all that is `wanted`.
    pub fn read_wanted(
        &self,
        handle: u64,
        asked: Range<u64>,
        wanted: Range<u64>,
    ) -> FsResult<ReadReply> {
        let file = self.handle(handle);
        let file = file.ok_or_else(|| Error::new(ErrorKind::Os(libc::EBADF), "no such handle"))?;
        let len = |range: &Range<u64>| range.end.saturating_sub(range.start);
        let range = (asked.start, len(&asked));
        self.samples
            .read(file.ino, file.content.len(), &file.pattern, range);
        let read = |range: &Range<u64>| {
            let len = usize::try_from(len(range)).unwrap_or(usize::MAX);
            content::read(&*file.content, range.start, len, self.context.cache.pool())
        };
        let (data, from) = match read(&wanted) {
            // What was not asked for may be damaged.
            Err(_) if wanted != asked => (read(&asked), asked.start),
            read => (read, wanted.start),
        };
        let mut data = data.map_err(|e| self.note(file.ino, "read", e))?;
        if let (Some(keeper), Some(kept)) = (&self.keeper, &file.kept) {
            keeper.read(kept, (from, file.direct_io), &mut data);
        }
        let got = data.as_ref().len();
        let at = |offset: u64| {
            let at = usize::try_from(offset.saturating_sub(from)).unwrap_or(got);
            at.min(got)
        };
        Ok(ReadReply {
            asked: at(asked.start)..at(asked.end),
            data,
            from,
        })
    }

    fn path_of(&self, ino: u64) -> String {
        String::from_utf8_lossy(&self.inodes.lock().path(ino)).into_owned()
    }

    /// Returns the copy that serves an open file, if the whole copy was checked.
    pub fn whole_copy(&self, handle: u64) -> Option<Arc<KeptCopy>> {
        match &self.handle(handle)?.kept {
            Some(KeptSource::Copy(copy)) if copy.is_whole() => Some(copy.clone()),
            _ => None,
        }
    }

    /// Returns true if copies of arrays are kept.
    pub fn keeps(&self) -> bool {
        self.keeper.is_some()
    }

    /// Returns the largest number of stacked file systems that hold copies, beside the store's own.
    pub fn depth_of_copies(&self) -> u32 {
        match &self.keeper {
            Some(keeper) if keeper.is_overlay() => 2,
            _ => 1,
        }
    }

    /// Notes whether the kernel serves copies by itself, and the reason if it does not.
    pub fn note_passthrough(&self, outcome: std::result::Result<(), String>) {
        if let Some(keeper) = &self.keeper {
            keeper.note_passthrough(outcome);
        }
    }

    /// Notes that the kernel serves an open file from its copy.
    pub fn note_passed(&self) {
        if let Some(keeper) = &self.keeper {
            keeper.note_passed();
        }
    }

    /// Closes a file handle.
    pub fn release(&self, handle: u64) {
        self.release_writer(handle);
        let mut files = self.files.write();
        let closed = files.remove(&handle);
        drop(files);
        if let Some(file) = closed.filter(|file| !file.is_mapped) {
            let len = file.content.len();
            self.samples.closed(file.ino, len, &file.pattern);
        }
    }
}

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
        let parent = self.inodes.lock().parent_of(ino).unwrap_or(ROOT_INO);
        let handle = self.next_handle.fetch_add(1, Ordering::Relaxed);
        let order = self.order(&listing);
        let dir = OpenDir {
            ino,
            parent,
            listing,
            order,
        };
        let mut dirs = self.dirs.write();
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
        let dirs = self.dirs.read();
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
                            let inodes = self.inodes.lock();
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
                    let ino = self.inodes.lock().enter(dir.ino, &name, &node, last);
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
                let mut inodes = self.inodes.lock();
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
        let mut dirs = self.dirs.write();
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
        let dirs = self.dirs.read();
        let open: Vec<u64> = dirs.values().map(|dir| dir.ino).collect();
        drop(dirs);
        open.into_iter()
            .filter_map(|ino| self.names(ino).ok())
            .collect()
    }
}
