//! Writing: what programs do to files of a writable mount, until a target stores what is finished.
//!
//! A file that is opened for writing becomes a scratch file with an inode number of its own, and everybody
//! sees it from then on; who has the old version open keeps that. It is stored when it is closed, synced or
//! renamed to a name that objects have, and again at the last close if it changed after that. What cannot be
//! stored is dropped at the last close, and what stood there before is there again.

mod body;
mod commit;
mod durable;
mod files;
mod keep;

mod names;
mod naming;
mod pending;
mod remnants;
mod twins;
mod unfinished;
mod unreadable;

use std::collections::{BTreeMap, HashMap};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, RwLock};
use std::time::{Duration, Instant, SystemTime};

use crate::checkout::target::{PartPlace, Role, Target, describe_incomplete};
use crate::error::{Error, ErrorKind, Result, retry_stale};
use crate::tree::{Directory, Node};
use serde_json::json;

pub use body::Maker;
use body::{Body, ScratchFile};
pub use names::Replace;
use naming::{Changing, Naming};
use pending::{Path, Pending, PendingDirectory, PendingEntry};
use unreadable::Unreadable;

/// Objects that may be stored at the same time.
const LOCKS: usize = 64;

/// The time for which the number of a thread stands for the same process: less than it takes to use up all numbers.
const SAME_THREAD: Duration = Duration::from_millis(100);

/// The state that a writable mount has beside a read-only one.
pub struct Writer {
    target: Arc<dyn Target>,
    pending: Arc<Pending>,
    handles: RwLock<HashMap<u64, WriteHandle>>,
    /// One object is stored by one thread at a time; by a hash of its key.
    locks: [Mutex<()>; LOCKS],
    naming: Naming,
    /// The thread that opened a file last, its process, and when.
    opener: Mutex<Option<(u32, u32, Instant)>>,
    /// Objects that are not complete.
    waiting: Mutex<BTreeMap<String, Waiting>>,
    /// Files of objects that went, for programs that have its directory open.
    remnants: Mutex<Vec<remnants::Remnant>>,
    /// The reason why what has happened is not durable, for whoever syncs next.
    owed: Mutex<Option<Error>>,
}

/// An object that is not complete.
#[derive(Default)]
struct Waiting {
    /// The path of one of its files, and the place of that.
    place: Option<(Path, PartPlace)>,
    missing: Vec<String>,
    /// The reason why the parts that are there make no object together with what is stored of it.
    why: Option<String>,
    /// As what its parts were kept for later mounts, if they were, and what was said to be missing then.
    kept: Vec<u64>,
    told: (Vec<String>, Option<String>),
}

/// A handle that may write.
struct WriteHandle {
    body: Arc<Body>,
    /// The process that opened it.
    opener: u32,
    /// A descriptor of it was closed, and nothing was written through it since: if that was the last one, the kernel says
    /// so at some time.
    is_closed: AtomicBool,
}

impl WriteHandle {
    /// Notes that a descriptor was closed, or that something is written.
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
#[derive(Clone)]
pub(super) struct FoundBody(Arc<Body>);

impl FoundBody {
    pub(super) fn number(&self) -> u64 {
        self.0.number
    }

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
    /// Number of the thread that opens it.
    pub thread: u32,
    /// It is cut to nothing.
    pub truncate: bool,
    /// It must be made by this call.
    pub exclusive: bool,
    /// It is open to read, too.
    pub reads: bool,
}

impl Writer {
    /// Creates the state, with what earlier mounts kept.
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
        };
        writer.restore();
        writer
    }

    /// The tree that is shown.
    pub fn root(&self) -> Arc<dyn Directory> {
        let root = PendingDirectory::root(self.pending.clone(), self.target.clone());
        Arc::new(root)
    }

    /// Returns what stores the files that are finished.
    pub fn target(&self) -> &Arc<dyn Target> {
        &self.target
    }

    /// Returns what `status.json` says.
    pub fn status(&self) -> serde_json::Value {
        let mut status = self.target.status();
        if let serde_json::Value::Object(map) = &mut status {
            map.insert("scratch_files".to_owned(), self.pending.files().into());
            let waiting = self.waiting();
            let lines = waiting.iter().map(|(object, waiting)| {
                describe_incomplete(object, &waiting.missing, waiting.why.as_deref())
            });
            map.insert("waiting".to_owned(), lines.collect());
            map.insert("unfinished".to_owned(), json!(self.unfinished()));
        }
        status
    }

    /// Keeps a failure to make durable what has happened, for whoever syncs next.
    fn owe(&self, why: Error) {
        *self.owed.lock().unwrap_or_else(|e| e.into_inner()) = Some(why);
    }

    /// Makes all that was stored durable. A failure to do so that nobody was told is told now.
    fn sync(&self) -> Result<()> {
        let owed = self.owed.lock().unwrap_or_else(|e| e.into_inner()).take();
        self.target.sync()?;
        owed.map_or(Ok(()), Err)
    }

    fn waiting(&self) -> MutexGuard<'_, BTreeMap<String, Waiting>> {
        self.waiting.lock().unwrap_or_else(|e| e.into_inner())
    }

    /// Returns what stands at a path in the tree that is stored.
    fn stored(&self, path: &[Vec<u8>]) -> Result<Option<Node>> {
        walk(self.target.root(), path)
    }

    /// Returns what stands at a path in the tree that is shown; directories have scratch files in them.
    fn merged(&self, path: &[Vec<u8>]) -> Result<Option<Node>> {
        walk(self.root(), path)
    }

    /// Returns what stands at a path for whoever looks.
    fn shown(&self, path: &[Vec<u8>]) -> Result<Option<Node>> {
        match self.pending.get(path) {
            Some(PendingEntry::File(body)) => Ok(Some(Node::File(Arc::new(ScratchFile(body))))),
            Some(PendingEntry::Hidden | PendingEntry::Unwritten) => Ok(None),
            Some(PendingEntry::Directory(_)) => self.merged(path),
            None => self.stored(path),
        }
    }

    /// The scratch file for what stands at a path; made if there is none.
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
            // What cannot be read can be written anew.
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

    /// Makes sure that a thread that looks a path up again finds its scratch file, and can open that.
    fn offer(&self, path: &[Vec<u8>], thread: u32) -> Result<Arc<Body>> {
        loop {
            let body = self.edit(path)?;
            if self.pending.await_writer(&body, thread).is_some() {
                return Ok(body);
            }
        }
    }

    /// The process of a thread that opens a file.
    fn opener(&self, thread: u32) -> u32 {
        let mut last = self.opener.lock().unwrap_or_else(|e| e.into_inner());
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

    /// Waits until nobody else changes these names, nor others of the same objects.
    fn change_names(&self, paths: &[&[Vec<u8>]]) -> Changing<'_> {
        let of_object = |path: &&[Vec<u8>]| match self.target.role(path) {
            Ok(Role::Stored(place)) => commit::top(path, &place).to_vec(),
            _ => path.to_vec(),
        };
        self.naming.change(paths.iter().map(of_object).collect())
    }

    /// The file that is written through a handle now.
    fn writing(&self, handle: u64) -> Option<Arc<Body>> {
        self.mark(handle, false)
    }

    /// The file of a handle of which a descriptor is closed.
    fn closing(&self, handle: u64) -> Option<Arc<Body>> {
        self.mark(handle, true)
    }

    fn mark(&self, handle: u64, is_closed: bool) -> Option<Arc<Body>> {
        let handles = self.handles.read().unwrap_or_else(|e| e.into_inner());
        handles.get(&handle).map(|handle| {
            handle.mark(is_closed);
            handle.body.clone()
        })
    }

    fn handle(&self, handle: u64) -> Option<Arc<Body>> {
        let handles = self.handles.read().unwrap_or_else(|e| e.into_inner());
        handles.get(&handle).map(|handle| handle.body.clone())
    }
}

/// Returns what stands at a path of a tree.
fn walk(root: Arc<dyn Directory>, path: &[Vec<u8>]) -> Result<Option<Node>> {
    let mut node = Node::Directory(root);
    for name in path {
        let Node::Directory(dir) = node else {
            return Ok(None);
        };
        match dir.lookup(name)? {
            Some(below) => node = below,
            None => return Ok(None),
        }
    }
    Ok(Some(node))
}

/// The process of a thread; the thread itself where that is not known.
fn process_of(thread: u32) -> u32 {
    let status = std::fs::read_to_string(format!("/proc/{thread}/status")).unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix("Tgid:"));
    line.and_then(|id| id.trim().parse().ok()).unwrap_or(thread)
}

fn refused(errno: i32, message: &str) -> Error {
    Error::new(ErrorKind::Os(errno), message)
}
