//! Writing: the files that programs change in a writable mount, until a target stores the finished ones.
//!
//! A file that is opened for writing becomes a scratch file with its own inode number, and every program sees it from
//! then on; a program that has the old version open keeps that version. The scratch file is stored when it is closed,
//! synced or renamed to the name of an object, and again at the last close if it changed after that. A file that cannot
//! be stored is dropped at the last close, and its predecessor is visible again.
//!
//! An attribute that a program writes or removes goes to the target at once, and needs a complete object.

mod body;
mod commit;
mod files;
mod keep;
mod names;
mod pending;
mod two_forms;

use std::collections::{BTreeMap, HashMap};
use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant, SystemTime};

use parking_lot::{Mutex, RwLock};
use serde_json::json;

use crate::mount::fs::{Fs, FsResult};
use npyfs_base::error::{Error, ErrorKind, Result, retry_stale};
use npyfs_core::checkout::verbs::commit::RESULT;
use npyfs_core::store::part::PartPlace;
use npyfs_core::store::target::{AttributeChange, Role, Target, describe_incomplete};
use npyfs_core::tree::path::walk;
use npyfs_core::tree::{Directory, Node, control};

use body::{Body, ScratchFile, Unreadable};
use names::{Changing, Naming};
use pending::{Path, Pending, PendingDirectory, PendingEntry};

pub use body::Maker;
pub use names::Replace;

/// The number of objects that may be stored at the same time.
const LOCKS: usize = 64;

/// The time for which a thread number stands for the same process: shorter than the time in which all numbers are used
/// up.
const SAME_THREAD: Duration = Duration::from_millis(100);

/// The state of a writable mount in addition to that of a read-only one.
pub struct Writer {
    target: Arc<dyn Target>,
    pending: Arc<Pending>,
    handles: RwLock<HashMap<u64, WriteHandle>>,
    /// Locks by hash of the object key: one thread at a time stores an object.
    locks: [Mutex<()>; LOCKS],
    naming: Naming,
    /// The thread that opened a file last, its process, and the time.
    opener: Mutex<Option<(u32, u32, Instant)>>,
    /// Objects that are incomplete.
    waiting: Mutex<BTreeMap<String, Waiting>>,
    /// Files of removed objects, kept for programs that have their directory open.
    remnants: Mutex<Vec<names::Remnant>>,
    /// The error that kept earlier changes from becoming durable; the next sync reports it.
    owed: Mutex<Option<Error>>,
    /// The report on the last commit that this mount made.
    committed: Mutex<Option<serde_json::Value>>,
}

/// An object that is incomplete.
#[derive(Default)]
struct Waiting {
    /// The path and the place of one of its files.
    place: Option<(Path, PartPlace)>,
    missing: Vec<String>,
    /// The reason why its present parts and its stored parts do not form an object.
    why: Option<String>,
    /// The ids under which its parts were kept for later mounts, if they were, and the parts that were reported missing
    /// then.
    kept: Vec<u64>,
    told: (Vec<String>, Option<String>),
}

/// A handle that may write.
struct WriteHandle {
    body: Arc<Body>,
    /// The process that opened it.
    opener: u32,
    /// A descriptor of the handle was closed, and nothing was written since. If it was the last descriptor, the kernel
    /// will report that later.
    is_closed: AtomicBool,
}

impl WriteHandle {
    /// Notes that a descriptor was closed, or that the handle was written.
    fn mark(&self, is_closed: bool) {
        if self.is_closed.load(Ordering::Acquire) == is_closed {
            return;
        }
        let mut state = self.body.state();
        if self.is_closed.swap(is_closed, Ordering::AcqRel) != is_closed {
            state.unclosed = match is_closed {
                true => state.unclosed.saturating_sub(1),
                false => state.unclosed + 1,
            };
        }
    }
}

/// A file that a thread is about to open for writing.
pub(super) struct FoundBody(Arc<Body>);

impl FoundBody {
    pub(super) fn node(&self) -> Node {
        Node::File(Arc::new(ScratchFile(self.0.clone())))
    }
}

/// The changes that `setattr` is to make.
#[derive(Clone, Copy, Debug, Default)]
pub struct AttrChange {
    /// The new size in bytes.
    pub size: Option<u64>,
    /// The new time.
    pub mtime: Option<SystemTime>,
    /// The new permissions.
    pub mode: Option<u32>,
    /// The new owner.
    pub uid: Option<u32>,
    /// The new group.
    pub gid: Option<u32>,
}

/// The flags with which a file is opened.
#[derive(Clone, Copy, Debug, Default)]
pub struct Flags {
    /// The number of the opening thread.
    pub thread: u32,
    /// The file is truncated to zero length.
    pub truncate: bool,
    /// The call must create the file.
    pub exclusive: bool,
    /// The file is also open for reading.
    pub reads: bool,
}

impl Writer {
    /// Creates the state, with the files that earlier mounts kept.
    pub fn new(target: Arc<dyn Target>) -> Self {
        let writer = Self {
            target,
            pending: Arc::default(),
            handles: RwLock::default(),
            locks: std::array::from_fn(|_| Mutex::default()),
            naming: Naming::default(),
            opener: Mutex::default(),
            waiting: Mutex::default(),
            remnants: Mutex::default(),
            owed: Mutex::default(),
            committed: Mutex::default(),
        };
        writer.restore();
        writer
    }

    /// Returns the visible tree.
    pub fn root(&self) -> Arc<dyn Directory> {
        let root = PendingDirectory::root(self.pending.clone(), self.target.clone());
        Arc::new(root)
    }

    /// Returns the target that stores finished files.
    pub fn target(&self) -> &Arc<dyn Target> {
        &self.target
    }

    /// Returns the entry for `status.json`.
    pub fn status(&self) -> serde_json::Value {
        let mut status = self.target.status();
        if let serde_json::Value::Object(map) = &mut status {
            map.insert("scratch_files".to_owned(), self.pending.files().into());
            let waiting = self.waiting.lock();
            let lines = waiting.iter().map(|(object, waiting)| {
                describe_incomplete(object, &waiting.missing, waiting.why.as_deref())
            });
            map.insert("waiting".to_owned(), lines.collect());
            map.insert("unfinished".to_owned(), json!(self.unfinished()));
            let committed = self.committed.lock();
            if let Some(report) = &*committed {
                map.insert(RESULT.to_owned(), report.clone());
            }
        }
        status
    }

    /// Keeps a failure to make changes durable, for the next sync to report.
    fn owe(&self, why: Error) {
        *self.owed.lock() = Some(why);
    }

    /// Makes all stored changes durable. Reports an earlier failure to do so that was not reported yet.
    fn sync(&self) -> Result<()> {
        let owed = self.owed.lock().take();
        self.target.sync()?;
        owed.map_or(Ok(()), Err)
    }

    /// Commits what is stored, and keeps the report for `status.json`.
    fn commit_all(&self, request: &serde_json::Value) -> Result<()> {
        self.keep_all()?;
        let report = self.target.commit(request)?;
        *self.committed.lock() = Some(report);
        Ok(())
    }

    /// Returns the node at a path of the stored tree.
    fn stored(&self, path: &[Vec<u8>]) -> Result<Option<Node>> {
        walk(self.target.root(), path)
    }

    /// Returns the node at a path of the visible tree; its directories contain scratch files.
    fn merged(&self, path: &[Vec<u8>]) -> Result<Option<Node>> {
        walk(self.root(), path)
    }

    /// Returns the node at a path as a program sees it.
    fn shown(&self, path: &[Vec<u8>]) -> Result<Option<Node>> {
        match self.pending.get(path) {
            Some(PendingEntry::File(body)) => Ok(Some(Node::File(Arc::new(ScratchFile(body))))),
            Some(PendingEntry::Hidden | PendingEntry::Unwritten) => Ok(None),
            Some(PendingEntry::Directory(_)) => self.merged(path),
            None => self.stored(path),
        }
    }

    /// Returns the scratch file for a path and creates it if necessary.
    fn edit(&self, path: &[Vec<u8>]) -> Result<Arc<Body>> {
        retry_stale(|| self.edit_once(path))
    }

    fn edit_once(&self, path: &[Vec<u8>]) -> Result<Arc<Body>> {
        if let Some(body) = self.pending.body(path) {
            return Ok(body);
        }
        self.target.role(path)?;
        let Some(Node::File(file)) = self.shown(path)? else {
            return Err(Error::new(ErrorKind::NotFound, "no such file"));
        };
        let own = file.ownership();
        let maker = Maker {
            uid: own.uid,
            gid: own.gid,
            mode: own.mode & 0o666 | 0o200,
        };
        let content = match file.open() {
            Ok(content) => content,
            Err(e) if e.kind == ErrorKind::Stale => return Err(e),
            // An unreadable file can still be written anew.
            Err(_) => Arc::new(Unreadable(file.clone())),
        };
        let scratch = self.target.scratch();
        let body = Body::new(path.to_vec(), scratch, Some(content), own.mtime, maker);
        let mut entries = self.pending.entries();
        match entries.get(path) {
            Some(PendingEntry::File(other)) => Ok(other.clone()),
            _ => {
                let body = Arc::new(body);
                entries.insert(path.to_vec(), PendingEntry::File(body.clone()));
                Ok(body)
            }
        }
    }

    /// Ensures that a thread that looks a path up again finds its scratch file and can open it.
    fn offer(&self, path: &[Vec<u8>], thread: u32) -> Result<Arc<Body>> {
        let _changing = self.change_names(&[path]);
        loop {
            let body = self.edit(path)?;
            if self.pending.await_writer(&body, thread).is_some() {
                return Ok(body);
            }
        }
    }

    /// Returns the process of a thread that opens a file.
    fn opener(&self, thread: u32) -> u32 {
        let mut last = self.opener.lock();
        if let Some((known, process, when)) = *last
            && known == thread
            && when.elapsed() < SAME_THREAD
        {
            return process;
        }
        let process = process_of(thread);
        *last = Some((thread, process, Instant::now()));
        process
    }

    /// Waits until no other thread changes these names, or other names of the same objects.
    fn change_names(&self, paths: &[&[Vec<u8>]]) -> Changing<'_> {
        let of_object = |path: &&[Vec<u8>]| match self.target.role(path) {
            Ok(Role::Stored(place)) => commit::top(path, &place).to_vec(),
            _ => path.to_vec(),
        };
        self.naming.change(paths.iter().map(of_object).collect())
    }

    /// Waits until no other thread changes the name of a file. The file keeps its name while the guard lives. Returns
    /// `None` if the file has no name.
    fn hold_name(&self, body: &Body) -> Option<Changing<'_>> {
        loop {
            let path = body.path()?;
            let held = self.change_names(&[&path]);
            if body.path().as_ref() == Some(&path) {
                return Some(held);
            }
        }
    }

    /// Returns the file that a handle writes.
    fn writing(&self, handle: u64) -> Option<Arc<Body>> {
        self.mark(handle, false)
    }

    /// Returns the file of a handle one of whose descriptors is being closed.
    fn closing(&self, handle: u64) -> Option<Arc<Body>> {
        self.mark(handle, true)
    }

    fn mark(&self, handle: u64, is_closed: bool) -> Option<Arc<Body>> {
        let handles = self.handles.read();
        handles.get(&handle).map(|handle| {
            handle.mark(is_closed);
            handle.body.clone()
        })
    }

    fn handle(&self, handle: u64) -> Option<Arc<Body>> {
        let handles = self.handles.read();
        handles.get(&handle).map(|handle| handle.body.clone())
    }
}

/// Returns the process of a thread, or the thread number if the process is unknown.
fn process_of(thread: u32) -> u32 {
    let status = std::fs::read_to_string(format!("/proc/{thread}/status")).unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix("Tgid:"));
    line.and_then(|id| id.trim().parse().ok()).unwrap_or(thread)
}

fn refused(errno: i32, message: &str) -> Error {
    Error::new(ErrorKind::Os(errno), message)
}

impl Writer {
    fn set_attribute(
        &self,
        path: &[Vec<u8>],
        name: &[u8],
        change: AttributeChange<'_>,
    ) -> Result<()> {
        let _changing = self.change_names(&[path]);
        let is_unstored = match self.pending.get(path) {
            Some(PendingEntry::File(body)) => body.is_dirty() || self.stored(path)?.is_none(),
            Some(PendingEntry::Directory(_)) => self.stored(path)?.is_none(),
            _ => false,
        };
        if is_unstored {
            let why = "it is not stored yet: an attribute needs a complete object";
            return Err(refused(libc::EOPNOTSUPP, why));
        }
        // Not while another thread stores the object, whose attributes go with the old one.
        let object = match self.target.role(path) {
            Ok(Role::Stored(place)) => place.object,
            _ => String::new(),
        };
        let _one = self.lock(&object);
        self.target.set_attribute(path, name, change)
    }
}

impl Fs {
    /// Sets or removes an attribute of an inode. It is durable when this returns.
    pub fn set_xattr(&self, ino: u64, name: &OsStr, change: AttributeChange<'_>) -> FsResult<()> {
        let set = || {
            let Some(name) = name.as_bytes().strip_prefix(b"user.") else {
                // `cp -p` takes this error as: there are no access control lists.
                return Err(refused(libc::EOPNOTSUPP, "only attributes of users"));
            };
            let writer = self.writer()?;
            let path = self.names(ino)?;
            if path.first().is_some_and(|first| first == control::NAME) {
                return Err(refused(libc::EPERM, "nothing can be changed in .npyfs"));
            }
            writer.set_attribute(&path, name, change)
        };
        set().map_err(|e| match e.errno() {
            libc::EOPNOTSUPP | libc::ENODATA => e.into(),
            _ => self.note(ino, "setxattr", e),
        })
    }

    /// Returns the stored node of an inode, with the attributes that it has now.
    pub(super) fn stored_node(&self, ino: u64) -> Result<Option<Node>> {
        match (&self.writer, &self.follower) {
            (Some(writer), _) => writer.stored(&self.names(ino)?),
            (None, Some(_)) => {
                let names = self.inodes.lock().names(ino);
                walk(self.root.clone(), names.unwrap_or_default())
            }
            (None, None) => Ok(None),
        }
    }
}
