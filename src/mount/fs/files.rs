//! Files of the tree that somebody has open.
//!
//! A handle keeps the version of its content that it was opened on; it is never read through an inode.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use super::again::KeptOpen;
use super::keeper::Kept;
use super::{Fs, FsResult, Opened};
use crate::dataset::access_pattern::AccessPattern;
use crate::error::{Error, ErrorKind, Result};
use crate::io::buffer::Buffer;
use crate::io::content;
use crate::io::content::{Content, Data};
use crate::io::kept::KeptCopy;
use crate::tree::{Node, VirtualFile};

/// Bytes of the longest file that the kernel is given as a whole: what it reads ahead by itself.
const SHORT: u64 = 128 << 10;

/// Bytes of the shortest file for whose readers memory is made ready.
const LONG: u64 = 16 << 20;

/// One handle.
pub(super) struct OpenFile {
    pub ino: u64,
    pub content: Arc<dyn Content>,
    pub direct_io: bool,
    pub pattern: Arc<AccessPattern>,
    /// `None`: it is not kept, whoever reads it.
    pub kept: Option<Kept>,
}

impl Fs {
    /// The file of a number in the store as it is now, if it still is that version of it: a branch may have moved, and
    /// this sample of it not. ESTALE otherwise.
    fn unchanged(&self, ino: u64, old: &dyn VirtualFile) -> Result<Arc<dyn VirtualFile>> {
        let changed = || Error::new(ErrorKind::Stale, "the store changed on disk");
        let place = self.inodes().get(ino).map(|e| (e.parent, e.name.clone()));
        let (parent, name) = place.ok_or_else(changed)?;
        match self.child(parent, &name)? {
            Some(Node::File(now)) if now.version() == old.version() => {
                self.inodes().replace(ino, Node::File(now.clone()));
                Ok(now)
            }
            _ => Err(changed()),
        }
    }

    /// Opens a file; `exact` says that the kernel can read it past its page cache and still map it. ESTALE if its store
    /// changed: the kernel then looks the path up again, for the thread that opens it.
    pub fn open_file(&self, ino: u64, exact: bool, thread: u32) -> FsResult<Opened> {
        let mut file = self.file(ino)?;
        self.prepare_for(&*file);
        let content = match self.again.take(thread, ino) {
            KeptOpen::Content(_, content) => Ok(content),
            _ if file.is_current() => file.open(),
            _ => self.unchanged(ino, &*file).and_then(|now| {
                file = now;
                file.open()
            }),
        };
        let content = content.map_err(|e| match e.kind {
            ErrorKind::Stale => self.look_again(ino, thread, false).into(),
            _ => self.note(ino, "open", e),
        })?;
        let (content, kept) = match &self.keeper {
            Some(keeper) => keeper.opened(ino, || self.path_of(ino), &file, content),
            None => (content, None),
        };
        let pattern = Arc::default();
        let exact =
            exact && content.is_costly() && self.samples.opened(ino, content.len(), &pattern);
        let direct_io = file.volatile() || exact;
        if exact {
            match self.is_decoding() {
                true => self.context.decoders.rest(),
                false => self.context.decoders.call(),
            }
        }
        // What can be written may change while it is given away.
        let fixed = !direct_io && self.writer.is_none();
        let short = fixed && (1..=SHORT).contains(&content.len());
        let fresh = self.inodes().open_first(ino) && short;
        let open = OpenFile {
            ino,
            content,
            direct_io,
            pattern,
            kept,
        };
        let handle = self.next_handle.fetch_add(1, Ordering::Relaxed);
        let mut files = self.files.write().unwrap_or_else(|e| e.into_inner());
        files.insert(handle, Arc::new(open));
        Ok(Opened {
            handle,
            direct_io,
            fresh,
        })
    }

    /// Has memory made ready beside the opening of the first long file: huge pages take as long to come as a disk.
    fn prepare_for(&self, file: &dyn VirtualFile) {
        if !self.is_prepared.load(Ordering::Relaxed)
            && file.size().is_ok_and(|size| size >= LONG)
            && !self.is_prepared.swap(true, Ordering::Relaxed)
        {
            let pool = self.context.cache.pool().clone();
            self.context.decoders.submit(move || pool.prepare());
        }
    }

    /// All bytes of a short file, for the kernel to have before anybody asks. `None` if they cannot be had:
    /// who reads them is told why.
    pub fn whole(&self, handle: u64) -> Option<Buffer> {
        let file = self.handle(handle)?;
        let size = usize::try_from(file.content.len()).ok()?;
        if size as u64 > SHORT {
            return None;
        }
        let mut bytes = self.context.cache.pool().take(size);
        file.content.give(&mut bytes).ok()?;
        Some(bytes)
    }

    fn handle(&self, handle: u64) -> Option<Arc<OpenFile>> {
        let files = self.files.read().unwrap_or_else(|e| e.into_inner());
        files.get(&handle).cloned()
    }

    /// Returns true if threads are busy with decoding.
    pub fn is_decoding(&self) -> bool {
        self.context.cache.decoding() > 0
    }

    /// Returns true if the handle is read past the page cache: by requests that somebody waits for.
    pub fn is_direct(&self, handle: u64) -> bool {
        self.handle(handle).is_some_and(|file| file.direct_io)
    }

    /// At most `size` bytes from `offset`; fewer only at the end of the file.
    pub fn read(&self, handle: u64, offset: u64, size: u32) -> FsResult<Data> {
        let file = self.handle(handle);
        let file = file.ok_or_else(|| Error::new(ErrorKind::Os(libc::EBADF), "no such handle"))?;
        let range = (offset, u64::from(size));
        self.samples
            .read(file.ino, file.content.len(), &file.pattern, range);
        let mut data = content::read(
            &*file.content,
            offset,
            size as usize,
            self.context.cache.pool(),
        )
        .map_err(|e| self.note(file.ino, "read", e))?;
        if let (Some(keeper), Some(kept)) = (&self.keeper, &file.kept) {
            keeper.read(kept, (offset, file.direct_io), &mut data);
        }
        Ok(data)
    }

    fn path_of(&self, ino: u64) -> String {
        String::from_utf8_lossy(&self.inodes().path(ino)).into_owned()
    }

    /// Returns the copy that an open file is served from, if all of it was checked.
    pub fn whole_copy(&self, handle: u64) -> Option<Arc<KeptCopy>> {
        match &self.handle(handle)?.kept {
            Some(Kept::Copy(copy)) if copy.is_whole() => Some(copy.clone()),
            _ => None,
        }
    }

    /// Returns true if copies of arrays are kept.
    pub fn keeps(&self) -> bool {
        self.keeper.is_some()
    }

    /// Returns how many file systems, one over the other, copies lie on beside the store's own, at most.
    pub fn depth_of_copies(&self) -> u32 {
        match &self.keeper {
            Some(keeper) if keeper.is_overlay() => 2,
            _ => 1,
        }
    }

    /// Notes whether the kernel serves copies by itself, and why not.
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

    /// Closes a handle of a file.
    pub fn release(&self, handle: u64) {
        self.release_writer(handle);
        let mut files = self.files.write().unwrap_or_else(|e| e.into_inner());
        let closed = files.remove(&handle);
        drop(files);
        if let Some(file) = closed {
            let len = file.content.len();
            self.samples.closed(file.ino, len, &file.pattern);
        }
    }
}
