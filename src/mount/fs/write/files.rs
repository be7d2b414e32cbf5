//! Opening, writing and closing files, and setting their attributes.

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::SystemTime;

use super::body::{Body, BodyContent, Maker, ScratchFile};
use super::commit::FileState;
use super::pending::{Path, PendingEntry};
use super::{AttrChange, Flags, FoundBody, WriteHandle, Writer, process_of, refused};
use crate::mount::fs::reopened::KeptOpen;
use crate::mount::fs::{Attr, Fs, FsError, FsResult, OpenFile, OpenedFile, ROOT_INO};
use npyfs_base::error::{Error, ErrorKind, Result};
use npyfs_core::store::target::Role;
use npyfs_core::tree::Node;
use npyfs_core::tree::control;

impl Fs {
    /// Returns the state of a writable mount. Fails with EROFS if the mount is not writable.
    pub(super) fn writer(&self) -> Result<&Writer> {
        let read_only = || refused(libc::EROFS, "the mount is read-only (see --checkout)");
        self.writer.as_deref().ok_or_else(read_only)
    }

    /// Returns true if the mount is writable.
    pub fn is_writable(&self) -> bool {
        self.writer.is_some()
    }

    /// Returns true if files are written and stored without waiting for a disk or a worker.
    pub fn stores_quickly(&self) -> bool {
        let writer = self.writer.as_deref();
        writer.is_some_and(|writer| writer.target.stores_quickly())
    }

    /// Returns the names that lead to an inode from the root of the store.
    pub(in crate::mount::fs) fn names(&self, ino: u64) -> Result<Path> {
        if ino == ROOT_INO {
            return Ok(self.above.clone());
        }
        let names = self.inodes.lock().names(ino);
        let names = names.ok_or_else(|| Error::new(ErrorKind::Stale, "no such inode"))?;
        Ok([&self.above[..], &names].concat())
    }

    /// Returns the path of a name in a directory that may be changed.
    pub(super) fn path_in(&self, parent: u64, name: &OsStr) -> Result<Path> {
        let mut path = self.names(parent)?;
        path.push(name.as_bytes().to_vec());
        if path
            .get(self.above.len())
            .is_some_and(|first| first == control::NAME)
        {
            return Err(refused(libc::EPERM, "nothing can be written in .npyfs"));
        }
        Ok(path)
    }

    /// Returns the scratch file of an inode, if it has one.
    fn body(&self, ino: u64) -> Result<Option<Arc<Body>>> {
        let Node::File(file) = self.node(ino)? else {
            return Ok(None);
        };
        if file.number().is_none() {
            return Ok(None);
        }
        let writer = self.writer()?;
        let path = self.names(ino)?;
        let there = writer.pending.body(&path);
        if let Some(body) = there.filter(|body| Some(body.number) == file.number()) {
            return Ok(Some(body));
        }
        // The file has no name any more, but a handle still writes it.
        let handles = writer.handles.read();
        let mut open = handles.values().map(|handle| &handle.body);
        Ok(open
            .find(|body| Some(body.number) == file.number())
            .cloned())
    }

    fn enter_body(&self, path: &[Vec<u8>], parent: u64, body: &Arc<Body>) -> u64 {
        let name = path.last().map_or(&[][..], Vec::as_slice);
        let node = Node::File(Arc::new(ScratchFile(body.clone())));
        let mut inodes = self.inodes.lock();
        let ino = inodes.enter(parent, name, &node, self.comes_last(name));
        inodes.hold(ino);
        ino
    }

    /// Opens a scratch file; returns `None` if it is no longer one.
    fn open_body(&self, ino: u64, body: &Arc<Body>, flags: Flags) -> Result<Option<OpenedFile>> {
        let writer = self.writer()?;
        if writer.pending.add_writer(body, flags).is_none() {
            return Ok(None);
        }
        let handle = self.next_handle.fetch_add(1, Ordering::Relaxed);
        let writing = WriteHandle {
            body: body.clone(),
            opener: writer.opener(flags.thread),
            is_closed: AtomicBool::new(false),
        };
        // The handle is there before the file is emptied: a program that closes the file then is not its last writer.
        let mut handles = writer.handles.write();
        handles.insert(handle, writing);
        drop(handles);
        if flags.truncate
            && let Err(e) = body.set_len(0)
        {
            let mut handles = writer.handles.write();
            handles.remove(&handle);
            drop(handles);
            let mut state = body.state();
            (state.writers, state.unclosed) = (state.writers - 1, state.unclosed - 1);
            drop(state);
            if body.is_untouched() {
                writer.pending.drop_idle(body);
            }
            return Err(e);
        }
        let open = OpenFile {
            ino,
            file: Arc::new(ScratchFile(body.clone())),
            content: Arc::new(BodyContent::new(body)?),
            direct_io: false,
            pattern: Arc::default(),
            kept: None,
            pages: OnceLock::new(),
            fixed: false,
            is_mapped: false,
        };
        let mut files = self.files.write();
        files.insert(handle, Arc::new(open));
        Ok(Some(OpenedFile {
            handle,
            direct_io: false,
            fresh: false,
            by_page: false,
        }))
    }

    /// Creates a file for writing, or opens the existing one. Adds one kernel reference to its inode.
    pub fn create(
        &self,
        parent: u64,
        name: &OsStr,
        maker: Maker,
        flags: Flags,
    ) -> FsResult<(Attr, OpenedFile)> {
        let create = || {
            let writer = self.writer()?;
            let path = self.path_in(parent, name)?;
            let role = writer.target.role(&path)?;
            let _changing = writer.change_names(&[&path]);
            let there = self.child(parent, name.as_bytes())?;
            let is_new = there.is_none();
            let body = match there {
                Some(_) if flags.exclusive => return Err(refused(libc::EEXIST, "it exists")),
                Some(Node::Directory(_)) => {
                    return Err(Error::new(ErrorKind::IsDirectory, "is a directory"));
                }
                Some(Node::Symlink(_)) => return Err(refused(libc::EEXIST, "a symbolic link")),
                Some(Node::File(_)) => match writer.edit(&path) {
                    // The file was removed meanwhile.
                    Err(e) if e.kind == ErrorKind::NotFound => return Ok(None),
                    body => body?,
                },
                None => {
                    if let Role::Stored(place) = &role
                        && place.suffix.is_empty()
                    {
                        return Err(refused(libc::EINVAL, "a name without a suffix"));
                    }
                    let scratch = writer.target.scratch();
                    let now = SystemTime::now();
                    let body = Arc::new(Body::new(path.clone(), scratch, None, now, maker));
                    let entry = PendingEntry::File(body.clone());
                    let there = writer.pending.entries().insert(path.clone(), entry);
                    body.state().hides = matches!(there, Some(PendingEntry::Hidden));
                    writer.pending.touch_above(&path);
                    body
                }
            };
            // The file is opened first: before that, another thread may find it stored and remove the scratch file.
            let opened = self.open_body(body.number, &body, flags);
            if opened.is_err() && is_new {
                writer.pending.drop_idle(&body);
            }
            let Some(opened) = opened? else {
                return Ok(None);
            };
            // The second lookup of a thread may end here instead of with an open.
            self.again.take(flags.thread, body.number);
            let ino = self.enter_body(&path, parent, &body);
            Ok(Some((self.getattr_of(ino)?, opened)))
        };
        let create = || {
            loop {
                if let Some(created) = create()? {
                    return Ok(created);
                }
            }
        };
        create().map_err(|e| {
            let e = self.again.note(e, flags.thread, true);
            self.note_name(parent, name, "create", e)
        })
    }

    fn getattr_of(&self, ino: u64) -> Result<Attr> {
        Ok(self.attr(ino, &self.node(ino)?))
    }

    /// Opens a file for writing. Fails with ESTALE if writing needs another inode: the kernel then looks the path up
    /// again.
    pub fn open_to_write(&self, ino: u64, flags: Flags) -> FsResult<OpenedFile> {
        let open = || {
            let writer = self.writer()?;
            if let Some(body) = self.body_for(ino, flags.thread)?
                && let Some(opened) = self.open_body(ino, &body, flags)?
            {
                return Ok(opened);
            }
            let file = self.file(ino)?;
            let path = self.names(ino)?;
            if path.first().is_some_and(|first| first == control::NAME) || file.volatile() {
                return Err(refused(libc::EPERM, "nothing can be written in .npyfs"));
            }
            Err(self.write_again(writer, &path, flags.thread))
        };
        open().map_err(|e| {
            let e = self.again.note(e, flags.thread, true);
            self.note(ino, "open for writing", e)
        })
    }

    /// Returns the error for a thread that is to write the present file of a path, which has another inode. The same
    /// call may recreate a file that is gone.
    fn write_again(&self, writer: &Writer, path: &[Vec<u8>], thread: u32) -> Error {
        match writer.offer(path, thread) {
            Err(e) if !matches!(e.kind, ErrorKind::NotFound | ErrorKind::Stale) => e,
            _ => Error::new(ErrorKind::Stale, "it has another inode now"),
        }
    }

    /// Returns the file that a thread, in its second lookup of a name, will open to write.
    pub(in crate::mount::fs) fn find_to_write(
        &self,
        parent: u64,
        name: &[u8],
        thread: u32,
    ) -> Result<FoundBody> {
        let path = self.path_in(parent, OsStr::from_bytes(name))?;
        Ok(FoundBody(self.writer()?.offer(&path, thread)?))
    }

    /// Returns the scratch file that an inode is, or was when the thread looked it up.
    fn body_for(&self, ino: u64, thread: u32) -> Result<Option<Arc<Body>>> {
        match self.again.take(thread, ino) {
            Some(KeptOpen::Body(FoundBody(body))) => Ok(Some(body)),
            _ => self.body(ino),
        }
    }

    /// Writes all of `bytes`.
    pub fn write(&self, handle: u64, offset: u64, bytes: &[u8]) -> FsResult<()> {
        let (ino, body) = self.written(handle)?;
        body.write(bytes, offset)
            .map_err(|e| self.note(ino, "write", e))
    }

    /// Allocates space or punches a hole.
    pub fn fallocate(&self, handle: u64, offset: u64, len: u64, mode: i32) -> FsResult<()> {
        let (_, body) = self.written(handle)?;
        // An operation that the disk does not support is a normal answer, and the caller goes on without it.
        Ok(body.allocate(mode, offset, len)?)
    }

    fn written(&self, handle: u64) -> Result<(u64, Arc<Body>)> {
        let body = self.writer()?.writing(handle);
        let body = body.ok_or_else(|| refused(libc::EBADF, "no such handle to write"))?;
        Ok((body.number, body))
    }

    /// Thread number `thread` closes a descriptor of a handle: stores the file, if it is whole. Other descriptors may
    /// go on writing.
    pub fn flush(&self, handle: u64, thread: u32) -> FsResult<()> {
        let Some(writer) = &self.writer else {
            return Ok(());
        };
        let Some(body) = writer.closing(handle) else {
            return Ok(());
        };
        loop {
            let changes = body.changes();
            let committed = writer.commit(&body).and_then(|state| match state {
                FileState::Begun if writer.is_emptied(&body)? => Err(writer.begun(&body)),
                _ => Ok(()),
            });
            let Err(e) = committed else { return Ok(()) };
            let handles = writer.handles.read();
            let opener = handles.get(&handle).map(|handle| handle.opener);
            // This is not the last close, so the file need not be whole: another program has it open, or this is a
            // child process that inherited the descriptor, `head` in `(head; cat) > x.npy`. A process that has closed
            // the file as well was told already, and does not write the rest.
            let others = handles.iter().any(|(&other, open)| {
                let is_open = other != handle && !open.is_closed.load(Ordering::Acquire);
                is_open && open.body.number == body.number
            });
            drop(handles);
            if e.errno() == libc::EINVAL {
                if others || opener != Some(process_of(thread)) {
                    return Ok(());
                }
                // Another program wrote the rest and closed the file since it was refused here.
                if body.changes() != changes {
                    continue;
                }
            }
            body.is_refused(changes);
            // A shell closes a copy of the descriptor before the command has written anything: the last close reports
            // an error.
            if body.len().is_ok_and(|len| len == 0) {
                return Err(e.into());
            }
            return Err(self.note_path(&body.path().unwrap_or_default(), "close", e));
        }
    }

    pub(super) fn store(&self, body: &Arc<Body>, what: &str) -> FsResult<()> {
        let writer = self.writer()?;
        let committed = writer.commit(body).and_then(|state| match state {
            FileState::Begun => Err(writer.begun(body)),
            _ => Ok(()),
        });
        committed.map_err(|e| {
            let path = body.path().unwrap_or_default();
            self.note_path(&path, what, e)
        })
    }

    /// Handles the close of the last descriptor of a writing handle.
    pub(in crate::mount::fs) fn release_writer(&self, handle: u64) {
        let Some(writer) = &self.writer else { return };
        let mut handles = writer.handles.write();
        let closed = handles.remove(&handle);
        drop(handles);
        let Some(closed) = closed else { return };
        closed.mark(true);
        let body = closed.body;
        let last = {
            let mut state = body.state();
            state.writers = state.writers.saturating_sub(1);
            state.writers == 0
        };
        if !last {
            return;
        }
        let path = body.path().unwrap_or_default();
        // The closing program was told, and the log has the message.
        let told = body.stays_refused();
        let finished = writer.finish(&body);
        body.retire();
        if let Err(e) = finished
            && !told
        {
            let what = "not stored, what stood there before stays";
            self.note_path(&path, what, e);
        }
    }

    /// Changes the size, time or owner of a file. Fails with ESTALE if the change needs another inode.
    pub fn setattr(
        &self,
        ino: u64,
        handle: Option<u64>,
        change: AttrChange,
        thread: u32,
    ) -> FsResult<Attr> {
        let set = || {
            let writer = self.writer()?;
            let held = handle.and_then(|handle| writer.handle(handle));
            let body = match held {
                Some(body) => Some(body),
                None => self.body_for(ino, thread)?,
            };
            if let Some(body) = body {
                return self.set_body(ino, &body, change, thread);
            }
            match self.node(ino)? {
                Node::Symlink(_) => Err(refused(libc::EPERM, "a symbolic link")),
                Node::Directory(_) => {
                    let path = self.names(ino)?;
                    if let Some(time) = change.mtime {
                        writer.set_directory_time(&path, time)?;
                    }
                    Ok(self.getattr(ino).map_err(back)?)
                }
                // This includes a scratch file that was stored a moment ago.
                Node::File(file) => {
                    let path = self.names(ino)?;
                    if path.first().is_some_and(|first| first == control::NAME) || file.volatile() {
                        return Err(refused(libc::EPERM, "nothing can be changed in .npyfs"));
                    }
                    if change.size.is_some() {
                        return Err(self.write_again(writer, &path, thread));
                    }
                    if let Some(time) = change.mtime {
                        writer.touch(&path, time)?;
                        if let Some(node) = writer.stored(&path)? {
                            let attr = self.attr(ino, &node);
                            if file.number().is_none() {
                                self.inodes.lock().replace(ino, node);
                            }
                            return Ok(attr);
                        }
                    }
                    self.getattr_of(ino)
                }
            }
        };
        set().map_err(|e| self.note(ino, "setattr", self.again.note(e, thread, true)))
    }

    fn set_body(
        &self,
        ino: u64,
        body: &Arc<Body>,
        change: AttrChange,
        thread: u32,
    ) -> Result<Attr> {
        if let Some(len) = change.size {
            body.set_len(len)?;
        }
        {
            let mut state = body.state();
            state.mode = change.mode.map_or(state.mode, |mode| mode & 0o777);
            state.uid = change.uid.unwrap_or(state.uid);
            state.gid = change.gid.unwrap_or(state.gid);
        }
        if let Some(time) = change.mtime {
            body.set_time(time);
        }
        let nobody_writes = {
            let mut state = body.state();
            state.awaited.retain(|(other, _)| *other != thread);
            state.writers == 0
        };
        if nobody_writes && (change.size.is_some() || change.mtime.is_some()) {
            self.writer()?.finish(body)?;
        }
        body.retire();
        self.getattr_of(ino)
    }

    /// Logs a failure that concerns a name in a directory.
    pub(super) fn note_name(&self, parent: u64, name: &OsStr, what: &str, e: Error) -> FsError {
        let mut path = self.names(parent).unwrap_or_default();
        path.push(name.as_bytes().to_vec());
        self.note_path(&path, what, e)
    }

    /// Logs a failure that concerns a path. An error that answers a program's query is no failure.
    pub(super) fn note_path(&self, path: &[Vec<u8>], what: &str, error: Error) -> FsError {
        let asked = [libc::EEXIST, libc::ENOTEMPTY, libc::EXDEV];
        // These operations write to a disk, for which a change to read-only is a failure.
        let stores = matches!(what, "close" | "fsync" | "sync");
        let is_answer = asked.contains(&error.errno()) || (error.errno() == libc::EROFS && !stores);
        if !matches!(error.kind, ErrorKind::NotFound | ErrorKind::Stale) && !is_answer {
            self.refuse(&path.join(&b'/'), what, &error);
        }
        error.into()
    }
}

/// Turns an answer for the kernel back into an error.
fn back(error: FsError) -> Error {
    Error::new(ErrorKind::Os(error.errno), error.message)
}
