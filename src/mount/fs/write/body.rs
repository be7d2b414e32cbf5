//! A file that is being written: the bytes that the kernel reads and writes under one inode number.
//!
//! It begins empty or with the content at its path. That content is copied only when a part of it is about to change. A
//! file that cannot be read, as it is damaged or is a sample that was not fetched, can be opened to be written anew.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Instant, SystemTime};

use parking_lot::{Mutex, MutexGuard, RwLock, RwLockWriteGuard};
use serde_json::{Value as Json, json};
use xxhash_rust::xxh3::xxh3_64;

use crate::mount::fs::reopened::PATIENCE;
use npyfs_base::error::{Error, ErrorKind, Result};
use npyfs_core::tree::VirtualFile;
use npyfs_core::tree::inode::placed;
use npyfs_io::content::Content;
use npyfs_io::content::scratch::Scratch;
use npyfs_io::file::Ownership;

/// Bytes that are copied at a time.
const BLOCK: usize = 1 << 20;

/// A file that is being written. All methods may be called from any thread.
pub struct Body {
    /// Its inode number.
    pub number: u64,
    /// `None` once no handle can write the file any more; a handle that has it open for reading keeps its own
    /// reference.
    scratch: Mutex<Option<Arc<Scratch>>>,
    /// The content that the file was created from, until the first change.
    source: RwLock<Option<Arc<dyn Content>>>,
    /// A thread that changes the content holds this lock shared; a thread that needs the content unchanged holds it
    /// exclusively.
    still: RwLock<()>,
    changes: AtomicU64,
    began_as_stored: bool,
    /// The length of the file when its space was given back.
    last_len: AtomicU64,
    state: Mutex<BodyState>,
}

/// Everything but the content.
pub struct BodyState {
    /// Its path in the mount; `None` once it was deleted or replaced by another file.
    pub path: Option<Vec<Vec<u8>>>,
    /// The path of the object that it was renamed from, if that object moves along.
    pub origin: Option<Vec<Vec<u8>>>,
    /// The number of handles that may write.
    pub writers: u32,
    /// The number of those handles that had no descriptor closed since their last write.
    pub unclosed: u32,
    /// Threads that were told to look the file up again, and the time. The kernel does so within the same call.
    pub awaited: Vec<(u32, Instant)>,
    pub mode: u32,
    pub uid: u32,
    pub gid: u32,
    mtime: SystemTime,
    /// The modification time was set and is not stored yet.
    timed: bool,
    /// A writer since the last truncation could map the file: a file that such a writer leaves unfinished may be
    /// completed through memory.
    pub is_mappable: bool,
    /// The number of changes that are stored.
    stored: Option<u64>,
    /// The number of changes after which the file was a whole member of an incomplete object.
    whole: Option<u64>,
    /// The state in which the file was kept for later mounts, if it was.
    kept: Option<KeptState>,
    /// The number of changes after which a closing program was told that the file is refused.
    refused: Option<u64>,
    /// The stored object at its path was renamed away from there, and stays hidden when this file goes.
    pub hides: bool,
    /// The failure of a change: the content is then not the intended one.
    failed: Option<Error>,
    /// The space of the file was given back.
    retired: bool,
}

impl BodyState {
    /// Returns true if a thread was told to look the file up again.
    pub fn is_awaited(&self) -> bool {
        let mut since = self.awaited.iter().map(|(_, since)| since);
        since.any(|since| since.elapsed() < PATIENCE)
    }

    /// Returns true if a thread was told to look the file up again and may open it.
    pub fn is_kept_for(&self, thread: u32) -> bool {
        !self.retired && self.awaited.iter().any(|(other, _)| *other == thread)
    }

    /// Returns true if the file after `changes` changes differs from the stored one.
    pub fn is_dirty(&self, changes: u64) -> bool {
        self.timed || self.stored != Some(changes)
    }
}

/// The state of a file that later mounts see.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct KeptState {
    /// The id under which the target keeps the file.
    pub file: u64,
    pub mtime: SystemTime,
    /// The number of changes at that time.
    pub changes: u64,
}

/// The owner of a new file, and its permissions.
#[derive(Clone, Copy, Debug)]
pub struct Maker {
    /// The owner.
    pub uid: u32,
    /// The group.
    pub gid: u32,
    /// The permissions.
    pub mode: u32,
}

impl Body {
    pub fn new(
        path: Vec<Vec<u8>>,
        scratch: Scratch,
        source: Option<Arc<dyn Content>>,
        mtime: SystemTime,
        maker: Maker,
    ) -> Self {
        static SERIAL: AtomicU64 = AtomicU64::new(1);
        let serial = SERIAL.fetch_add(1, Ordering::Relaxed);
        let stored = source.is_some().then_some(0);
        Self {
            number: placed(xxh3_64(format!("scratch {serial}").as_bytes()), false),
            scratch: Mutex::new(Some(Arc::new(scratch))),
            source: RwLock::new(source),
            still: RwLock::default(),
            changes: AtomicU64::new(0),
            began_as_stored: stored.is_some(),
            last_len: AtomicU64::new(0),
            state: Mutex::new(BodyState {
                path: Some(path),
                origin: None,
                writers: 0,
                unclosed: 0,
                awaited: Vec::new(),
                mode: maker.mode,
                uid: maker.uid,
                gid: maker.gid,
                mtime,
                timed: false,
                is_mappable: false,
                stored,
                whole: None,
                kept: None,
                refused: None,
                hides: false,
                failed: None,
                retired: false,
            }),
        }
    }

    pub fn state(&self) -> MutexGuard<'_, BodyState> {
        self.state.lock()
    }

    pub fn path(&self) -> Option<Vec<Vec<u8>>> {
        self.state.lock().path.clone()
    }

    fn scratch(&self) -> Result<Arc<Scratch>> {
        let scratch = self.scratch.lock();
        let gone = || Error::new(ErrorKind::Stale, "it was stored or deleted");
        scratch.clone().ok_or_else(gone)
    }

    /// Gives back the space of the file if it has neither a name nor a writer any more. The kernel may remember its
    /// inode number for long.
    pub fn retire(&self) {
        let mut state = self.state.lock();
        if state.path.is_some() || state.writers > 0 || state.is_awaited() {
            return;
        }
        state.retired = true;
        drop(state);
        // Handles that are still open ask for the length.
        self.last_len
            .store(self.len().unwrap_or(0), Ordering::Release);
        *self.scratch.lock() = None;
    }

    /// Returns true if the file was never changed: it is the content that stood at its path.
    pub fn is_untouched(&self) -> bool {
        self.source.read().is_some()
    }

    /// Keeps the content unchanged for as long as the guard lives.
    pub fn hold_still(&self) -> RwLockWriteGuard<'_, ()> {
        self.still.write()
    }

    /// Returns the number of changes.
    pub fn changes(&self) -> u64 {
        self.changes.load(Ordering::Acquire)
    }

    /// Returns true if the file differs from the stored one.
    pub fn is_dirty(&self) -> bool {
        self.state.lock().is_dirty(self.changes())
    }

    /// Returns true if the content of the file is that of the stored one.
    pub fn has_stored_content(&self) -> bool {
        let changes = self.changes();
        self.state.lock().stored == Some(changes)
    }

    /// Returns true if the file is stored in its present state and was closed, though it is still here: the kernel has
    /// not reported yet that this was the last descriptor, or another thread handles that report. From then on programs
    /// read the stored form, which may differ from the written one. A program that could map an array may go on in
    /// memory after the close, so such a file is read as it is written.
    pub fn reads_as_stored(&self) -> bool {
        let changes = self.changes();
        let state = self.state.lock();
        let is_array = |path: &Vec<Vec<u8>>| path.last().is_some_and(|n| n.ends_with(b".npy"));
        let may_be_mapped = state.is_mappable && state.path.as_ref().is_some_and(is_array);
        let was_written = state.writers > 0 || (changes > 0 && !state.is_awaited());
        let is_closed = was_written && state.unclosed == 0;
        is_closed && !may_be_mapped && !state.is_dirty(changes)
    }

    /// Notes that the state after `changes` changes is stored, with time `mtime`.
    pub fn is_stored(&self, changes: u64, mtime: SystemTime) {
        let mut state = self.state.lock();
        state.stored = Some(changes);
        state.hides = false;
        state.timed = state.timed && state.mtime != mtime;
    }

    /// Notes that the program that closed the file after `changes` changes was told that it is refused.
    pub fn is_refused(&self, changes: u64) {
        self.state.lock().refused = Some(changes);
    }

    /// Returns true if the file was not changed since a program was told that it is refused.
    pub fn stays_refused(&self) -> bool {
        self.state.lock().refused == Some(self.changes())
    }

    /// Notes that the state after `changes` changes is a whole member of an object.
    pub fn is_whole(&self, changes: u64) {
        self.state.lock().whole = Some(changes);
    }

    /// Returns true if the file was not changed since it was a whole member.
    pub fn stays_whole(&self) -> bool {
        self.state.lock().whole == Some(self.changes())
    }

    /// Notes that the state after `changes` changes is kept as `file`, with time `mtime`.
    pub fn is_kept(&self, file: u64, changes: u64, mtime: SystemTime) {
        self.state.lock().kept = Some(KeptState {
            file,
            mtime,
            changes,
        });
    }

    /// Notes that the kept state of the file no longer exists.
    pub fn forget_kept(&self) {
        self.state.lock().kept = None;
    }

    /// Returns the last kept state.
    pub fn kept(&self) -> Option<KeptState> {
        self.state.lock().kept
    }

    /// Notes that the stored form of the file, if any, is at another path.
    pub fn forget_stored(&self) {
        self.state.lock().stored = None;
    }

    pub fn mtime(&self) -> SystemTime {
        self.state.lock().mtime
    }

    pub fn set_time(&self, time: SystemTime) {
        let mut state = self.state.lock();
        state.mtime = time;
        state.timed = true;
    }

    pub fn len(&self) -> Result<u64> {
        match &*self.source.read() {
            Some(source) => Ok(source.len()),
            None => match self.scratch() {
                Ok(scratch) => Ok(scratch.len()?),
                Err(_) => Ok(self.last_len.load(Ordering::Acquire)),
            },
        }
    }

    /// Makes one change: calls `act` with the content in the scratch file.
    fn change(&self, keep: u64, act: impl FnOnce(&Scratch) -> Result<()>) -> Result<()> {
        let _shared = self.still.read();
        self.take_over(keep)?;
        // The change is counted first: a thread that stores the file meanwhile must not assume that it has this change.
        self.changes.fetch_add(1, Ordering::AcqRel);
        let done = self.scratch().and_then(|scratch| act(&scratch));
        let mut state = self.state.lock();
        state.mtime = SystemTime::now();
        state.timed = false;
        if let Err(e) = &done {
            state.failed = Some(e.clone());
        }
        done
    }

    /// Returns the failure of a change since the file was last empty.
    pub fn failed(&self) -> Option<Error> {
        self.state.lock().failed.clone()
    }

    /// Copies the first `keep` bytes of the source; the rest is no longer needed.
    fn take_over(&self, keep: u64) -> Result<()> {
        if !self.is_untouched() {
            return Ok(());
        }
        let mut source = self.source.write();
        let Some(content) = source.as_deref() else {
            return Ok(());
        };
        let scratch = self.scratch()?;
        let end = content.len().min(keep);
        let mut block = vec![0; BLOCK];
        let mut at = 0;
        while at < end {
            let size = usize::try_from(end - at).unwrap_or(BLOCK).min(BLOCK);
            let part = block.get_mut(..size).unwrap_or_default();
            content.read_at(at, part)?;
            scratch.write_at(part, at)?;
            at += size as u64;
        }
        scratch.set_len(end)?;
        *source = None;
        Ok(())
    }

    /// Returns true if the file was not changed since it was created from the content at its path.
    pub fn is_copy(&self) -> bool {
        self.began_as_stored && self.changes() == 0 && !self.state.lock().timed
    }

    /// Copies the whole content into the file, so that it can be stored under another name or time.
    pub fn copy(&self) -> Result<()> {
        self.take_over(u64::MAX)
    }

    pub fn write(&self, bytes: &[u8], offset: u64) -> Result<()> {
        self.change(u64::MAX, |scratch| Ok(scratch.write_at(bytes, offset)?))
    }

    pub fn set_len(&self, len: u64) -> Result<()> {
        self.change(len, |scratch| Ok(scratch.set_len(len)?))?;
        if len == 0 {
            self.state.lock().failed = None;
        }
        Ok(())
    }

    /// Allocates space or punches a hole, as fallocate(2) does.
    pub fn allocate(&self, mode: i32, offset: u64, len: u64) -> Result<()> {
        let mut done = Ok(());
        // A lack of space or an unsupported operation leaves the content unchanged.
        self.change(u64::MAX, |scratch| {
            done = scratch.allocate(mode, offset, len);
            Ok(())
        })?;
        Ok(done?)
    }
}

/// A body as content, with the present length of the body.
pub(super) struct BodyContent {
    body: Arc<Body>,
    scratch: Arc<Scratch>,
}

impl BodyContent {
    /// Creates the content of a body whose space was not given back.
    pub(super) fn new(body: &Arc<Body>) -> Result<Self> {
        Ok(Self {
            scratch: body.scratch()?,
            body: body.clone(),
        })
    }
}

impl Content for BodyContent {
    fn len(&self) -> u64 {
        match &*self.body.source.read() {
            Some(source) => source.len(),
            None => self.scratch.len().unwrap_or(0),
        }
    }

    fn read_at(&self, offset: u64, buf: &mut [u8]) -> Result<()> {
        if let Some(source) = &*self.body.source.read() {
            if offset.saturating_add(buf.len() as u64) > source.len() {
                return Err(Error::new(ErrorKind::Os(libc::EIO), "it was cut off"));
            }
            return source.read_at(offset, buf);
        }
        // Bytes that were truncated after the length was asked for read as zeros.
        let have = self.scratch.read_at(buf, offset)?;
        buf.get_mut(have..).unwrap_or_default().fill(0);
        Ok(())
    }

    fn scratch(&self) -> Option<(&Scratch, u64)> {
        self.body
            .source
            .read()
            .is_none()
            .then_some((&*self.scratch, 0))
    }

    fn written(&self, from: u64) -> Result<Option<std::ops::Range<u64>>> {
        match &*self.body.source.read() {
            Some(source) => source.written(from),
            None => Ok(self.scratch.written(from)?),
        }
    }
}

/// A body as a file of the tree.
pub(super) struct ScratchFile(pub Arc<Body>);

impl VirtualFile for ScratchFile {
    fn ownership(&self) -> Ownership {
        let state = self.0.state.lock();
        Ownership {
            uid: state.uid,
            gid: state.gid,
            mode: state.mode,
            mtime: state.mtime,
        }
    }

    fn size(&self) -> Result<u64> {
        self.0.len()
    }

    fn open(&self) -> Result<Arc<dyn Content>> {
        Ok(Arc::new(BodyContent::new(&self.0)?))
    }

    fn version(&self) -> u64 {
        self.0.number
    }

    fn number(&self) -> Option<u64> {
        Some(self.0.number)
    }

    fn is_current(&self) -> bool {
        !self.0.reads_as_stored()
    }

    fn mode(&self) -> u32 {
        0o777
    }

    fn info(&self) -> Result<Json> {
        Ok(json!({ "kind": "scratch", "size": self.0.len()? }))
    }
}

/// A file as content whose reads fail, while its open succeeds.
pub(super) struct Unreadable(pub Arc<dyn VirtualFile>);

impl Content for Unreadable {
    /// Returns at least one byte, so that a copy of the content meets the error.
    fn len(&self) -> u64 {
        self.0.size().unwrap_or(0).max(1)
    }

    fn read_at(&self, offset: u64, buf: &mut [u8]) -> Result<()> {
        // The error may have been temporary.
        let content = self.0.open()?;
        if offset.saturating_add(buf.len() as u64) > content.len() {
            return Err(Error::new(ErrorKind::Os(libc::EIO), "it was cut off"));
        }
        content.read_at(offset, buf)
    }
}
