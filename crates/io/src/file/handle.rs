//! File descriptors: a bounded resource that all open files of the process share.
//!
//! A shared file gives its descriptors back when others need them, the least recently used file first. It is reopened
//! by its path at its next use, if the same version is still there. A shortage of descriptors says nothing about a
//! file.

use std::fs::File;
use std::io;
use std::num::NonZeroU64;
use std::ops::{Deref, Range};
use std::os::fd::AsRawFd;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock, Weak};

use parking_lot::Mutex;
use rustix::fs::{Advice, Mode, OFlags, fadvise};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

use super::Identity;
use npyfs_base::buffer::ALIGNMENT;

/// Descriptors that are reserved for everything else: workers, the FUSE device, scratch and temporary files.
const RESERVED: u64 = 40;

/// Descriptors of one file: the normal one, one for direct reads, one for reads without read-ahead.
const EACH: u64 = 3;

/// The least number of files that may be open.
const LEAST: u64 = 4;

/// The number of descriptors to request from the system.
const WANTED: u64 = 1 << 16;

/// The number of cachestat(2) on every architecture (Linux 6.5).
const CACHESTAT: libc::c_long = 451;

/// Returns true if an error means a shortage of descriptors.
pub fn is_short(error: &io::Error) -> bool {
    error
        .raw_os_error()
        .is_some_and(npyfs_base::error::is_shortage)
}

/// Runs work that opens descriptors. If there are none left, closes idle ones and tries again.
pub fn with_room<T>(mut work: impl FnMut() -> io::Result<T>) -> io::Result<T> {
    match work() {
        Err(e) if matches!(e.raw_os_error(), Some(libc::EMFILE | libc::ENFILE)) => {
            make_room();
            work()
        }
        outcome => outcome,
    }
}

/// Closes all descriptors of shared files that are not in use.
pub fn make_room() {
    close_older(0);
}

/// Returns the descriptor limit of this process, after raising it.
pub fn allowance() -> u64 {
    static ALLOWANCE: OnceLock<u64> = OnceLock::new();
    *ALLOWANCE.get_or_init(|| {
        let limit = getrlimit(Resource::Nofile);
        let wanted = limit.maximum.map_or(WANTED, |most| most.min(WANTED));
        let more = Rlimit {
            current: Some(wanted),
            maximum: limit.maximum,
        };
        if limit.current.is_some_and(|now| now < wanted)
            && setrlimit(Resource::Nofile, more).is_ok()
        {
            return wanted;
        }
        limit.current.unwrap_or(WANTED)
    })
}

/// A second descriptor of a file, for large reads that bypass the kernel's page cache.
///
/// The bytes of a sequential read enter the page cache once, as the virtual file. Reading the store file through the
/// cache as well takes twice the memory, and on many machines most of the time. Used only for bytes that are not in
/// memory yet, and only where the file system supports direct reads. All other bytes are read normally.
#[derive(Debug)]
pub struct Direct(File);

impl Direct {
    /// Opens a file again for direct reads; `None` where the file system does not support them or /proc is not mounted.
    pub fn open(file: &File) -> Option<Self> {
        // Through the descriptor: the path may lead elsewhere by now.
        File::options()
            .read(true)
            .custom_flags(libc::O_DIRECT)
            .open(format!("/proc/self/fd/{}", file.as_raw_fd()))
            .ok()
            .map(Self)
    }

    /// Returns true if a range is better read directly: most of it is not in memory, and none of it is dirty.
    pub fn suits(file: &File, offset: u64, len: u64) -> bool {
        let pages = len.div_ceil(ALIGNMENT as u64);
        pages_of(file, offset, len).is_some_and(|(dirty, cached)| dirty == 0 && cached * 4 <= pages)
    }

    /// Fills an aligned buffer from an aligned offset; fewer bytes only at the end of the file.
    pub fn read(&self, buf: &mut [u8], offset: u64) -> io::Result<usize> {
        let mut done = 0;
        while done < buf.len() {
            match self.0.read_at(&mut buf[done..], offset + done as u64) {
                Ok(n) => {
                    done += n;
                    // A short read that ends at an unaligned offset is the end of the file.
                    if n == 0 || n % ALIGNMENT != 0 {
                        break;
                    }
                }
                Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
                Err(e) => return Err(e),
            }
        }
        Ok(done)
    }
}

/// The range that cachestat(2) is asked about (linux/mman.h: cachestat_range).
#[repr(C)]
struct FileRange {
    offset: u64,
    len: u64,
}

/// What cachestat(2) answers (linux/mman.h: cachestat).
#[repr(C)]
#[derive(Default)]
struct Pages {
    cached: u64,
    dirty: u64,
    writeback: u64,
    evicted: u64,
    recently_evicted: u64,
}

/// Returns how many pages of a file range are dirty, and how many are in memory; `None` if the kernel does not say: it
/// is too old, or the file belongs to another user.
#[allow(unsafe_code)]
fn pages_of(file: &File, offset: u64, len: u64) -> Option<(u64, u64)> {
    let range = FileRange { offset, len };
    let mut pages = Pages::default();
    // SAFETY: the kernel reads one FileRange and writes one Pages, both of the kernel's layout and alive during the
    // call; the descriptor is open.
    let failed = unsafe {
        libc::syscall(
            CACHESTAT,
            file.as_raw_fd(),
            &raw const range,
            &raw mut pages,
            0,
        )
    };
    (failed == 0).then_some((pages.dirty.saturating_add(pages.writeback), pages.cached))
}

/// The descriptors of one open file.
#[derive(Debug)]
pub struct Handle {
    file: File,
    /// For direct reads; opened at the first one, `None` where they are not supported.
    direct: OnceLock<Option<Direct>>,
    /// A descriptor without read-ahead; opened at its first use.
    alone: OnceLock<Option<File>>,
}

impl Handle {
    fn new(file: File) -> Self {
        Self {
            file,
            direct: OnceLock::new(),
            alone: OnceLock::new(),
        }
    }

    /// Returns the descriptor for direct reads; `None` where they are not supported.
    pub fn direct(&self) -> Option<&Direct> {
        self.direct
            .get_or_init(|| Direct::open(&self.file))
            .as_ref()
    }

    /// Returns the file for isolated reads, without read-ahead.
    pub fn alone(&self) -> &File {
        let alone = self.alone.get_or_init(|| {
            let file = File::open(self.path()).ok()?;
            fadvise(&file, 0, None, Advice::Random).ok()?;
            Some(file)
        });
        alone.as_ref().unwrap_or(&self.file)
    }

    /// Has the kernel read a range ahead. If that fails, it is read when it is wanted.
    pub fn will_need(&self, range: &Range<u64>) {
        let len = NonZeroU64::new(range.end.saturating_sub(range.start));
        let _ = fadvise(&self.file, range.start, len, Advice::WillNeed);
    }

    /// Returns a path by which this process can open the same file again, wherever its own path leads. Valid while this
    /// handle is alive.
    pub fn path(&self) -> String {
        format!("/proc/self/fd/{}", self.file.as_raw_fd())
    }
}

impl Deref for Handle {
    type Target = File;

    fn deref(&self) -> &File {
        &self.file
    }
}

/// One version of a file, whose descriptors may be closed while they are not in use.
#[derive(Debug)]
pub struct Shared {
    path: PathBuf,
    identity: Identity,
    handle: Mutex<Option<Arc<Handle>>>,
    /// The last use: a counter that grows with each use of any file.
    used: AtomicU64,
}

/// All shared files.
static SHARED: Mutex<Vec<Weak<Shared>>> = Mutex::new(Vec::new());

impl Shared {
    /// Creates a file that stays open until it is dropped.
    pub fn pinned(path: &Path, identity: Identity, file: File) -> Arc<Self> {
        Arc::new(Self {
            path: path.to_owned(),
            identity,
            handle: Mutex::new(Some(Arc::new(Handle::new(file)))),
            used: AtomicU64::new(0),
        })
    }

    /// Allows its descriptors to be closed from now on.
    pub fn share(self: &Arc<Self>) {
        self.touch();
        SHARED.lock().push(Arc::downgrade(self));
        close_older(most());
    }

    fn touch(&self) {
        static NOW: AtomicU64 = AtomicU64::new(1);
        let now = NOW.fetch_add(1, Ordering::Relaxed);
        self.used.store(now, Ordering::Relaxed);
    }

    /// Returns its descriptors, reopened if they were closed. ESTALE means that another version is at the path.
    pub fn handle(&self) -> io::Result<Arc<Handle>> {
        self.touch();
        if let Some(handle) = &*self.handle.lock() {
            return Ok(handle.clone());
        }
        close_older(most().saturating_sub(1));
        let handle = Arc::new(Handle::new(with_room(|| self.open())?));
        Ok(self.handle.lock().get_or_insert(handle).clone())
    }

    /// Returns true if its descriptors are open, so that no path is needed.
    pub fn is_open(&self) -> bool {
        self.handle.lock().is_some()
    }

    fn open(&self) -> io::Result<File> {
        let stale = || io::Error::from_raw_os_error(libc::ESTALE);
        let is_same = |meta: io::Result<std::fs::Metadata>| match meta {
            Ok(meta) => Ok(Identity::from_metadata(&meta) == self.identity),
            Err(e) if is_short(&e) => Err(e),
            Err(_) => Ok(false),
        };
        // Checked before opening: a pipe may be at the path now, and opening it could block.
        if !is_same(std::fs::metadata(&self.path))? {
            return Err(stale());
        }
        let flags = OFlags::RDONLY | OFlags::CLOEXEC | OFlags::NONBLOCK | OFlags::NOCTTY;
        let file = File::from(rustix::fs::open(&self.path, flags, Mode::empty())?);
        match is_same(file.metadata())? {
            true => Ok(file),
            false => Err(stale()),
        }
    }
}

/// Returns the number of shared files that may be open at the same time.
fn most() -> usize {
    let files = allowance().saturating_sub(RESERVED) / EACH;
    usize::try_from(files.max(LEAST)).unwrap_or(usize::MAX)
}

/// Closes the descriptors of the least recently used shared files until at most `most` are open. Files in use stay
/// open.
fn close_older(most: usize) {
    let mut shared = SHARED.lock();
    let mut open: Vec<(u64, Arc<Shared>)> = Vec::new();
    shared.retain(|file| {
        let file = file.upgrade();
        if let Some(file) = &file
            && file.is_open()
        {
            open.push((file.used.load(Ordering::Relaxed), file.clone()));
        }
        file.is_some()
    });
    if open.len() <= most {
        return;
    }
    open.sort_by_key(|(used, _)| *used);
    for (_, file) in &open[..open.len() - most] {
        let mut handle = file.handle.lock();
        if handle
            .as_ref()
            .is_some_and(|handle| Arc::strong_count(handle) == 1)
        {
            *handle = None;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Write;

    fn shared(path: &Path) -> Arc<Shared> {
        let file = File::open(path).unwrap();
        let identity = Identity::from_metadata(&file.metadata().unwrap());
        let shared = Shared::pinned(path, identity, file);
        SHARED.lock().push(Arc::downgrade(&shared));
        shared
    }

    #[test]
    fn a_closed_file_is_opened_again_unless_another_version_stands_there() {
        let mut file = tempfile::NamedTempFile::new().unwrap();
        file.write_all(b"first").unwrap();
        let shared = shared(file.path());
        let held = shared.handle().unwrap();
        close_older(0);
        assert!(shared.is_open(), "it is in use");
        drop(held);
        close_older(0);
        assert!(!shared.is_open());
        let mut bytes = [0; 5];
        shared
            .handle()
            .unwrap()
            .read_exact_at(&mut bytes, 0)
            .unwrap();
        assert_eq!(&bytes, b"first");
        close_older(0);
        file.write_all(b" and more").unwrap();
        let refused = shared.handle().unwrap_err();
        assert_eq!(refused.raw_os_error(), Some(libc::ESTALE));
    }

    #[test]
    fn what_was_just_written_is_in_memory() {
        let mut file = tempfile::tempfile().unwrap();
        file.write_all(&[1; 8 << 12]).unwrap();
        match pages_of(&file, 0, 8 << 12) {
            Some((_, cached)) => assert_eq!(cached, 8),
            None => eprintln!("NOT TESTED: this kernel has no cachestat"),
        }
        if let Some((_, cached)) = pages_of(&file, 1 << 20, 1 << 12) {
            assert_eq!(cached, 0);
        }
    }
}
