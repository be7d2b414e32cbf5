//! File system operations on the virtual tree, as the kernel asks them but without the kernel.
//!
//! Assumes nothing about callers: every method may run on any thread. Never changes a store. Answers with plain values
//! close to those of `stat`, `readdir` and `statvfs`.

mod handles;
mod keeper;
mod maps;
pub mod open;
mod reopened;
mod samples;
mod write;
mod xattr;

use std::collections::HashMap;
use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::SystemTime;

use npyfs_base::error::{Error, ErrorKind, Result};
use npyfs_base::journal::{LineSink, Refusal};
use npyfs_base::options::{External, View};
use npyfs_base::thread;
use npyfs_core::checkout::layer::lock::LayerLock;
use npyfs_core::checkout::view::follow::Follower;
use npyfs_core::dataset::context::{Context, Report};
use npyfs_core::store::format::Registry;
pub use npyfs_core::tree::inode::ROOT_INO;
use npyfs_core::tree::inode::{InodeTable, KnownInode, number, number_of_name};
use npyfs_core::tree::{Directory, Node, VirtualFile, control, name};
use npyfs_core::views;
use npyfs_io::file::Ownership;
use npyfs_io::remote::Address;
use parking_lot::{Mutex, RwLock};

use handles::{OpenDir, OpenFile};
use keeper::Keeper;
use maps::MappedFiles;
use reopened::ReopenedFiles;
use samples::SampledFiles;

pub use handles::ReadReply;
pub use write::{AttrChange, Flags, Maker, Replace, Writer};

/// A view of one store. All methods may be called from any thread.
pub struct Fs {
    store: PathBuf,
    formats: Registry,
    context: Arc<Context>,
    root: Arc<dyn Directory>,
    /// The names that lead from the root of what is opened to the root of what is shown.
    above: Vec<Vec<u8>>,
    control: Arc<dyn Directory>,
    lists_names: bool,
    inodes: Mutex<InodeTable>,
    files: RwLock<HashMap<u64, Arc<OpenFile>>>,
    dirs: RwLock<HashMap<u64, Arc<OpenDir>>>,
    next_handle: AtomicU64,
    samples: SampledFiles,
    maps: MappedFiles,
    /// The kernel asks page by page for every file: its read-ahead cannot be raised for those that are read in order.
    by_page: AtomicBool,
    again: ReopenedFiles,
    /// Memory was made ready for long files.
    is_prepared: AtomicBool,
    /// `None`: no copies are kept.
    keeper: Option<Keeper>,
    /// `None`: nothing can be written.
    writer: Option<Arc<Writer>>,
    /// Shows new commits; `None`: the mount stays as it is.
    follower: Option<Follower>,
    _held: Option<LayerLock>,
}

/// Bytes of the longest name, as `statvfs` says.
const LONGEST_NAME: u32 = 255;

/// Bytes of a block where there is no volume.
const NO_VOLUME: u32 = 4096;

type FsResult<T> = std::result::Result<T, FsError>;

/// The answer for a name that is not there.
fn absent(name: &[u8]) -> Error {
    if name.len() > LONGEST_NAME as usize {
        return Error::new(
            ErrorKind::Os(libc::ENAMETOOLONG),
            "a name of over 255 bytes",
        );
    }
    Error::new(ErrorKind::NotFound, "no such name")
}

impl Fs {
    /// The root directory, for callers without a kernel.
    pub fn root(&self) -> &Arc<dyn Directory> {
        &self.root
    }

    /// Returns the path of the store, without links, or its address.
    pub fn store_path(&self) -> &Path {
        &self.store
    }

    /// Returns the root of a view of the store.
    pub fn view(&self, view: View) -> Arc<dyn Directory> {
        views::open(view, &self.root, &self.context, &self.formats)
    }

    /// Returns the policy for files that the store refers to.
    pub fn external(&self) -> External {
        self.context.options.external
    }

    /// Returns the character that is shown in the place of `#`.
    pub fn sep(&self) -> u8 {
        self.context.options.sep
    }

    /// The directory `.npyfs`.
    pub fn control(&self) -> &Arc<dyn Directory> {
        &self.control
    }

    /// Reads in what the first visitor will probably ask for, beside everything else.
    pub fn warm(&self) {
        let root = self.root.clone();
        if self.lies_elsewhere() {
            // The thread waits for a network, which threads that decode never do. Without it the first reader waits.
            let _ = thread::spawn("warm", move || root.warm());
            return;
        }
        self.context.decoders.submit(move || root.warm());
    }

    /// Returns true if the store lies in a bucket or on a web server.
    pub fn lies_elsewhere(&self) -> bool {
        Address::parse(&self.store).is_some()
    }

    /// Returns how many commits are shown by a mount that goes on with those of others; `None` if this one does not.
    pub fn followed(&self) -> Option<usize> {
        self.follower.as_ref().map(Follower::shown)
    }

    /// Has `status.json` say how the kernel is served.
    pub fn report_serving(&self, report: Report) {
        // There is one session.
        let _ = self.context.serving.set(report);
    }

    /// Returns true if the threads that serve the mount may be placed.
    pub fn schedules(&self) -> bool {
        self.context.options.scheduling
    }

    /// Returns the bytes that the kernel is to read ahead.
    pub fn window(&self) -> u64 {
        self.context.prefetch.window()
    }

    /// Notes that the kernel asks for the pages of all files one by one.
    pub fn asks_by_page(&self) {
        self.by_page.store(true, Ordering::Relaxed);
    }

    /// Returns the cell in which the mount notes what became of raising the kernel's read-ahead.
    pub fn read_ahead(&self) -> &Arc<OnceLock<std::result::Result<u64, String>>> {
        &self.context.read_ahead
    }

    /// Returns true if directories may be so large that only their names are to be listed unless more is wanted: in the
    /// kernel an entry with attributes costs some 5 µs and 1 KiB, a name a tenth of a microsecond.
    pub fn lists_names(&self) -> bool {
        self.lists_names
    }

    /// Notes a failure in `errors.log`, with the path it is about.
    fn note(&self, ino: u64, what: &str, error: Error) -> FsError {
        let path = self.inodes.lock().path(ino);
        // A name that is not there, or a version that is gone, is an answer and no failure. But what is open was there.
        let is_answer = match error.kind {
            ErrorKind::NotFound | ErrorKind::Stale => what != "read",
            _ => false,
        };
        if !is_answer {
            self.refuse(&path, what, &error);
        }
        error.into()
    }

    /// Notes that an operation on a path was refused.
    fn refuse(&self, path: &[u8], what: &str, error: &Error) {
        let path = String::from_utf8_lossy(path).into_owned();
        let store = self.store.display();
        let message = format!("{store}: {path}: {what}: {}", error.message);
        let syncs = matches!(what, "fsync" | "sync");
        let refusal = Refusal {
            path,
            operation: what.to_owned(),
            errno: error.errno(),
            waits: syncs && matches!(error.kind, ErrorKind::Waits(_) | ErrorKind::Unreached(_)),
        };
        self.context.journal.refuse(&message, refusal);
    }

    /// Has what is refused kept in another place as well.
    pub fn keep_lines(&self, sink: Box<dyn LineSink>) {
        self.context.journal.keep(sink);
    }

    fn node(&self, ino: u64) -> Result<Node> {
        if ino == ROOT_INO {
            return Ok(Node::Directory(self.root.clone()));
        }
        let known = self.inodes.lock().known(ino);
        match known {
            Some(KnownInode::Node(node)) => Ok(node),
            Some(KnownInode::Place(parent, name)) => self.remade(ino, parent, &name),
            None => Err(Error::new(ErrorKind::Stale, "no such inode")),
        }
    }

    /// Returns the file of a number that its directory makes anew for each lookup: of the version that the number
    /// stands for. ESTALE if that is gone.
    fn remade(&self, ino: u64, parent: u64, name: &[u8]) -> Result<Node> {
        let last = self.comes_last(name);
        let is_it = |node: &Node| number(parent, name, node, last) == ino;
        // First in the directory as it was found last, which may be older than the store.
        let found = match self.node(parent)? {
            Node::Directory(dir) => dir.lookup(name).ok().flatten().filter(is_it),
            _ => None,
        };
        let found = match found {
            Some(node) => Some(node),
            None => match self.child(parent, name) {
                Ok(now) => now.filter(is_it),
                Err(e) if e.is_passing() => return Err(e),
                Err(_) => None,
            },
        };
        if let Some(node) = found {
            self.inodes.lock().remember(ino, &node);
            return Ok(node);
        }
        // Open files stay.
        let files = self.files.read();
        let open = files.values().find(|open| open.ino == ino);
        let open = open.map(|open| Node::File(open.file.clone()));
        open.ok_or_else(|| Error::new(ErrorKind::Stale, "gone from the store"))
    }

    /// The directory of a number; looked up again by its path if its store changed on disk.
    fn directory(&self, ino: u64) -> Result<Arc<dyn Directory>> {
        let Node::Directory(dir) = self.node(ino)? else {
            return Err(Error::new(ErrorKind::NotDirectory, "not a directory"));
        };
        if dir.is_current() {
            return Ok(dir);
        }
        let place = self.inodes.lock().place_of(ino);
        let Some((parent, name)) = place else {
            return Ok(dir);
        };
        match self.child(parent, &name)? {
            Some(Node::Directory(dir)) => {
                self.inodes
                    .lock()
                    .replace(ino, Node::Directory(dir.clone()));
                Ok(dir)
            }
            _ => Err(Error::new(ErrorKind::Stale, "gone from the store")),
        }
    }

    fn child(&self, parent: u64, name: &[u8]) -> Result<Option<Node>> {
        if parent == ROOT_INO && name == control::NAME {
            return Ok(Some(Node::Directory(self.control.clone())));
        }
        self.directory(parent)?.lookup(name)
    }

    fn file(&self, ino: u64) -> Result<Arc<dyn VirtualFile>> {
        match self.node(ino)? {
            Node::File(file) => Ok(file),
            Node::Directory(_) => Err(Error::new(ErrorKind::IsDirectory, "is a directory")),
            Node::Symlink(_) => Err(Error::new(ErrorKind::Os(libc::ELOOP), "is a symbolic link")),
        }
    }

    fn attr(&self, ino: u64, node: &Node) -> Attr {
        // Every entry of a checkout looks writable; a write that the format does not allow is refused when it is tried.
        let write = if self.is_writable() { 0o200 } else { 0 };
        let (kind, size, own, mode, volatile) = match node {
            Node::Directory(dir) => {
                let own = dir.ownership();
                let read = own.mode & 0o444;
                let mode = own.mode & 0o666 | read >> 2 | write;
                (FileKind::Directory, 4096, own, mode, false)
            }
            Node::Symlink(link) => {
                let size = link.target.len() as u64;
                (FileKind::Symlink, size, link.ownership, 0o777, false)
            }
            Node::File(file) => {
                let own = file.ownership();
                // A file without a size can be seen, and says what is wrong when it is opened.
                let size = file.size().unwrap_or_else(|e| {
                    self.note(ino, "size", e);
                    0
                });
                // A scratch file has the permissions that it was given.
                let write = if file.number().is_some() { 0 } else { write };
                (
                    FileKind::File,
                    size,
                    own,
                    own.mode & file.mode() | write,
                    file.volatile() || self.is_writable(),
                )
            }
        };
        let Ownership {
            uid, gid, mtime, ..
        } = own;
        let options = &self.context.options;
        let shown = if write != 0 && kind == FileKind::File {
            let place = self.inodes.lock().place_of(ino);
            place.map_or(ino, |(parent, name)| self.shown_number(parent, &name))
        } else {
            ino
        };
        Attr {
            ino,
            shown,
            kind,
            size,
            blocks: size.div_ceil(512),
            mtime,
            perm: u16::try_from(mode & !options.umask.unwrap_or(0) & 0o777).unwrap_or(0),
            nlink: if kind == FileKind::Directory { 2 } else { 1 },
            uid: options.uid.unwrap_or(uid),
            gid: options.gid.unwrap_or(gid),
            volatile,
            lasting: match node {
                Node::Directory(dir) => dir.is_lasting(),
                Node::File(file) => file.is_lasting(),
                Node::Symlink(_) => false,
            },
        }
    }

    /// The number of a file of a writable mount, as programs see it.
    fn shown_number(&self, parent: u64, name: &[u8]) -> u64 {
        number_of_name(parent, name, self.comes_last(name))
    }

    /// Returns true for a file that is listed after all others: an axis, which can only be deleted when nothing lies
    /// along it any more. A program that deletes a directory deletes its files in this order.
    fn comes_last(&self, name: &[u8]) -> bool {
        let sep = self.context.options.sep;
        let stem = name.strip_suffix(b".npy");
        stem.is_some_and(|stem| {
            let own = name::own_name(stem, sep);
            std::str::from_utf8(&own).is_ok_and(|own| self.formats.is_axis(own))
        })
    }

    /// Finds a name for a thread and adds one kernel reference to the inode.
    pub fn lookup(&self, parent: u64, name: &OsStr, thread: u32) -> FsResult<Attr> {
        let name = name.as_bytes();
        let (node, kept) = self
            .found(parent, name, thread)
            .map_err(|e| self.note(parent, "lookup", e))?;
        let node = node.ok_or_else(|| absent(name))?;
        let ino = {
            let mut inodes = self.inodes.lock();
            let ino = inodes.enter(parent, name, &node, self.comes_last(name));
            inodes.hold(ino);
            inodes.remember(ino, &node);
            ino
        };
        if let Some(kept) = kept {
            self.again.keep(thread, ino, kept);
        }
        Ok(self.attr(ino, &node))
    }

    /// Takes back `count` kernel references.
    pub fn forget(&self, ino: u64, count: u64) {
        self.inodes.lock().forget(ino, count);
    }

    /// Returns the attributes of an inode.
    pub fn getattr(&self, ino: u64) -> FsResult<Attr> {
        let node = match self.node(ino)? {
            // A directory shows the time of the version on disk; a file keeps that of its own.
            Node::Directory(old) => Node::Directory(self.directory(ino).unwrap_or(old)),
            node => node,
        };
        Ok(self.attr(ino, &node))
    }

    /// Returns the target of a symbolic link; EINVAL for anything else.
    pub fn readlink(&self, ino: u64) -> FsResult<Vec<u8>> {
        match self.node(ino)? {
            Node::Symlink(link) => Ok(link.target.clone()),
            _ => Err(Error::new(ErrorKind::Os(libc::EINVAL), "not a symbolic link").into()),
        }
    }

    /// Returns the state of the volume that holds the store, or what is written. A store in a bucket has none, and a
    /// volume without blocks is returned.
    pub fn statfs(&self) -> FsResult<Statfs> {
        // Writes go there.
        let disk = self
            .writer
            .as_ref()
            .map_or(&*self.store, |writer| writer.target().disk());
        let s = match rustix::fs::statvfs(disk) {
            Err(rustix::io::Errno::NOENT) if self.lies_elsewhere() => {
                return Ok(Statfs {
                    bsize: NO_VOLUME,
                    frsize: NO_VOLUME,
                    namelen: LONGEST_NAME,
                    ..Statfs::default()
                });
            }
            state => state.map_err(|e| Error::from(std::io::Error::from(e)))?,
        };
        let small = |n: u64| u32::try_from(n).unwrap_or(u32::MAX);
        Ok(Statfs {
            blocks: s.f_blocks,
            bfree: s.f_bfree,
            bavail: s.f_bavail,
            files: s.f_files,
            ffree: s.f_ffree,
            bsize: small(s.f_bsize),
            frsize: small(s.f_frsize),
            namelen: LONGEST_NAME,
        })
    }
}

fn kind(node: &Node) -> FileKind {
    match node {
        Node::Directory(_) => FileKind::Directory,
        Node::File(_) => FileKind::File,
        Node::Symlink(_) => FileKind::Symlink,
    }
}

/// The kind of a directory entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FileKind {
    /// A directory.
    Directory,
    /// A regular file.
    File,
    /// A symbolic link.
    Symlink,
}

/// The attributes of an entry, as `stat` shows them.
#[derive(Clone, Debug)]
pub struct Attr {
    /// The number of the inode.
    pub ino: u64,
    /// The inode number that programs see. In a writable mount each version of a file has its own number for the
    /// kernel, while this number stays the same: editors compare it before and after they open a file.
    pub shown: u64,
    /// The kind.
    pub kind: FileKind,
    /// The size in bytes.
    pub size: u64,
    /// The size in units of 512 bytes.
    pub blocks: u64,
    /// The time of the last change.
    pub mtime: SystemTime,
    /// Permission bits, without the file type.
    pub perm: u16,
    /// The number of links.
    pub nlink: u32,
    /// The owner.
    pub uid: u32,
    /// The group.
    pub gid: u32,
    /// The size may change at any time (status files), so the kernel must not cache these attributes.
    pub volatile: bool,
    /// The entry never changes: the kernel may cache its attributes and its name without limit.
    pub lasting: bool,
}

/// An open file.
#[derive(Clone, Copy, Debug)]
pub struct OpenedFile {
    /// The number of the handle.
    pub handle: u64,
    /// The kernel must not cache pages of the file (status files), or need not (samples).
    pub direct_io: bool,
    /// The file is short and was never opened before: the kernel has no page of it and can be given all of them at
    /// once.
    pub fresh: bool,
    /// The kernel should read ahead no more than a page: the file is probably mapped.
    pub by_page: bool,
}

/// One name in a directory.
#[derive(Clone, Debug)]
pub struct DirEntry {
    /// The number of the inode, as programs see it.
    pub ino: u64,
    /// The kind.
    pub kind: FileKind,
    /// The name.
    pub name: Vec<u8>,
    /// The offset at which a listing continues after this entry.
    pub next: u64,
}

/// The volume below the store, as `statvfs` describes it.
#[derive(Clone, Copy, Debug, Default)]
pub struct Statfs {
    /// All blocks, in units of `frsize` bytes.
    pub blocks: u64,
    /// Free blocks.
    pub bfree: u64,
    /// Blocks that are free for unprivileged users.
    pub bavail: u64,
    /// All inodes.
    pub files: u64,
    /// Free inodes.
    pub ffree: u64,
    /// The preferred size of requests, in bytes.
    pub bsize: u32,
    /// Bytes of a block.
    pub frsize: u32,
    /// Bytes of the longest name.
    pub namelen: u32,
}

/// A refused operation: the errno for the kernel and a one-line message for people.
#[derive(Debug, thiserror::Error)]
#[error("{message}")]
pub struct FsError {
    /// The errno.
    pub errno: i32,
    /// The message, which names the path or object concerned.
    pub message: String,
}

impl From<Error> for FsError {
    fn from(error: Error) -> Self {
        Self {
            errno: error.errno(),
            message: error.message,
        }
    }
}

/// A store that cannot be opened; the message names the path and the reason.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub struct OpenError(pub String);
