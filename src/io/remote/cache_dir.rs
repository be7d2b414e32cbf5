//! The directory in which the bytes of objects are kept, shared by all processes of a user.
//!
//! Each version is a file, on which whoever has it open holds a shared lock: a file is removed only under an exclusive one, and
//! looked up again by whoever opened it meanwhile. One process at a time, the holder of the directory's lock, takes bytes away.

use std::collections::{HashMap, HashSet};
use std::fs::{DirBuilder, File};
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::fs::{DirBuilderExt, MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, LazyLock, Mutex};
use std::thread::sleep;
use std::time::{Duration, Instant, SystemTime};

use rustix::fs::{
    AtFlags, CWD, Dir, FlockOperation, Mode, OFlags, flock, fstatfs, fstatvfs, openat, unlinkat,
};
use rustix::io::Errno;
use serde_json::Value as Json;

use super::disk::{self, DiskFile};
use crate::options::RemoteSettings;

/// What the file of a version ends with.
const BYTES: &str = ".bytes";

/// The file that whoever takes bytes away holds a lock on.
const LOCK: &str = "lock";

/// File systems on which what another process wrote is seen at once, and holes can be made: ext4, XFS, btrfs, tmpfs, ramfs,
/// overlay, F2FS, ZFS, bcachefs.
const LOCAL: [u64; 9] = [
    0xef53,
    0x5846_5342,
    0x9123_683e,
    0x0102_1994,
    0x8584_58f6,
    0x794c_7630,
    0xf2f5_2010,
    0x2fc1_2fc1,
    0xca45_1a4e,
];

/// FUSE, of which npyfs is.
const FUSE: u64 = 0x6573_5546;

/// The time after which a version that a process has open, and does not read, may lose what is kept of it.
const IDLE: Duration = Duration::from_secs(60);

/// The time for which it is remembered of which objects there are versions.
const LISTED: Duration = Duration::from_secs(10);

/// Flags of every file that is opened.
const PLAIN: OFlags = OFlags::RDWR
    .union(OFlags::NOFOLLOW)
    .union(OFlags::CLOEXEC)
    .union(OFlags::NONBLOCK);

/// A directory of versions.
#[derive(Debug)]
pub struct CacheDir {
    fd: OwnedFd,
    /// What is read is checked each time: other hosts may write here, and be seen late.
    wary: bool,
    /// Bytes that this process kept since it last looked how much there is in all.
    since: AtomicU64,
    /// The beginnings of the keys that were there at a time.
    objects: Mutex<(Option<Instant>, HashSet<String>)>,
}

/// A version in a directory.
#[derive(Debug)]
pub struct KeptVersion {
    /// What it is of: "url", "version", "size".
    pub about: Json,
    /// Bytes on disk.
    pub kept: u64,
    /// The time at which it was last used.
    pub used: SystemTime,
    /// A process has it open.
    pub in_use: bool,
    name: String,
}

/// The lock of a directory; given back at the end.
struct Turn(#[allow(dead_code)] OwnedFd);

/// Returns the directory that settings name, or the user's own; `None` for a user without a home.
pub fn cache_path(settings: &RemoteSettings) -> Option<PathBuf> {
    let user = || {
        let cache = std::env::var_os("XDG_CACHE_HOME").filter(|dir| !dir.is_empty());
        let home = || Some(PathBuf::from(std::env::var_os("HOME")?).join(".cache"));
        let cache = cache.map_or_else(home, |dir| Some(dir.into()))?;
        Some(cache.join("npyfs"))
    };
    Some(settings.cache_dir.clone().or_else(user)?.join("objects"))
}

/// Returns the bytes that a process keeps before it looks how much there is in all.
fn step(limit: u64) -> u64 {
    (limit / 16).clamp(64 << 10, 64 << 20)
}

/// Returns true if a file can be locked by this process alone.
fn alone(file: &File) -> bool {
    flock(file, FlockOperation::NonBlockingLockExclusive).is_ok()
}

impl CacheDir {
    /// Opens a directory, which is made for this user alone if it is not there. Within a process each is opened once.
    ///
    /// # Errors
    ///
    /// It is a link, somebody else's, writable for others or on a mount of npyfs.
    pub(super) fn open(path: &Path) -> io::Result<Arc<Self>> {
        static OPEN: LazyLock<Mutex<HashMap<PathBuf, Arc<CacheDir>>>> =
            LazyLock::new(Mutex::default);
        let mut open = OPEN.lock().unwrap_or_else(|e| e.into_inner());
        // By its descriptor: its path may lead into a mount that this process serves by now.
        if let Some(dir) = open.get(path) {
            return Ok(dir.clone());
        }
        let dir = Arc::new(Self::make(path)?);
        open.insert(path.to_owned(), dir.clone());
        Ok(dir)
    }

    fn make(path: &Path) -> io::Result<Self> {
        DirBuilder::new().recursive(true).mode(0o700).create(path)?;
        Self::existing(path)
    }

    /// Opens a directory that is there.
    pub fn existing(path: &Path) -> io::Result<Self> {
        let refuse = |why: &str| Err(io::Error::new(io::ErrorKind::PermissionDenied, why));
        let flags = OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let fd = match openat(CWD, path, flags, Mode::empty()) {
            Ok(fd) => fd,
            Err(Errno::NOTDIR | Errno::LOOP) => return refuse("not a directory, or a link to one"),
            Err(e) => return Err(e.into()),
        };
        let dir = File::from(fd);
        let meta = dir.metadata()?;
        if meta.uid() != rustix::process::geteuid().as_raw() {
            return refuse("it belongs to somebody else");
        }
        if meta.mode() & 0o022 != 0 {
            return refuse("others may write to it");
        }
        let system = fstatfs(&dir)?.f_type as u64 & 0xffff_ffff;
        if system == FUSE && is_npyfs(meta.dev()) {
            return refuse("it is on a mount of npyfs");
        }
        if meta.mode() & 0o077 != 0 {
            dir.set_permissions(std::fs::Permissions::from_mode(0o700))?;
        }
        Ok(Self {
            fd: dir.into(),
            wary: !LOCAL.contains(&system),
            since: AtomicU64::new(u64::MAX / 2),
            objects: Mutex::default(),
        })
    }

    /// Returns true if what is read from it is to be checked each time.
    pub(super) fn is_wary(&self) -> bool {
        self.wary
    }

    /// Returns the bytes that are free on its file system.
    pub(super) fn room(&self) -> u64 {
        let system = fstatvfs(&self.fd);
        system.map_or(0, |system| system.f_bavail.saturating_mul(system.f_frsize))
    }

    fn file(&self, name: &str, flags: OFlags) -> io::Result<File> {
        let mode = Mode::RUSR | Mode::WUSR;
        let file = File::from(openat(&self.fd, name, PLAIN | flags, mode)?);
        let meta = file.metadata()?;
        let own = meta.uid() == rustix::process::geteuid().as_raw();
        match meta.is_file() && own {
            true => Ok(file),
            false => Err(io::Error::new(
                io::ErrorKind::PermissionDenied,
                "not a file of this user",
            )),
        }
    }

    /// Opens the file of a version, which is made if it is not there. As long as it is open nobody removes it.
    pub(super) fn version(&self, key: &str) -> io::Result<File> {
        let name = format!("{key}{BYTES}");
        for _ in 0..200 {
            let file = self.file(&name, OFlags::CREATE)?;
            match flock(&file, FlockOperation::NonBlockingLockShared) {
                // It may have been removed before it was locked.
                Ok(()) if file.metadata()?.nlink() > 0 => return Ok(file),
                Ok(()) => {}
                Err(Errno::WOULDBLOCK | Errno::INTR) => sleep(Duration::from_millis(5)),
                Err(e) => return Err(e.into()),
            }
        }
        Err(io::ErrorKind::WouldBlock.into())
    }

    /// Returns true if a version is there whose key is `beginning` and a hyphen in front of the rest.
    pub(super) fn has_version_of(&self, beginning: &str) -> bool {
        let mut objects = self.objects.lock().unwrap_or_else(|e| e.into_inner());
        // Many objects are opened one after the other. What came since costs a request.
        if objects.0.is_none_or(|seen| seen.elapsed() > LISTED) {
            let names = self.names().unwrap_or_default();
            let object = |name: &String| Some(name.split_once('-')?.0.to_owned());
            *objects = (
                Some(Instant::now()),
                names.iter().filter_map(object).collect(),
            );
        }
        objects.1.contains(beginning)
    }

    fn names(&self) -> io::Result<Vec<String>> {
        let mut names = Vec::new();
        for entry in Dir::read_from(&self.fd)? {
            if let Ok(name) = entry?.file_name().to_str() {
                names.push(name.to_owned());
            }
        }
        Ok(names)
    }

    /// Returns the lock of the directory, unless somebody has it.
    fn turn(&self) -> Option<Turn> {
        let file = self.file(LOCK, OFlags::CREATE).ok()?;
        alone(&file).then(|| Turn(file.into()))
    }

    /// Does what takes bytes away from a file, under the lock of the directory; `None`: another process has it.
    pub(super) fn alone<T>(&self, act: impl FnOnce() -> T) -> Option<T> {
        let _turn = self.turn()?;
        Some(act())
    }

    /// Returns the versions in it.
    pub fn versions(&self) -> io::Result<Vec<KeptVersion>> {
        let mut versions = Vec::new();
        for name in self.names()? {
            if !name.ends_with(BYTES) {
                continue;
            }
            // It may be gone by now.
            let Ok(file) = self.file(&name, OFlags::empty()) else {
                continue;
            };
            let Ok(meta) = file.metadata() else { continue };
            versions.push(KeptVersion {
                about: disk::about(&file).unwrap_or_default(),
                kept: meta.blocks().saturating_mul(512),
                used: meta.modified().unwrap_or(SystemTime::UNIX_EPOCH),
                in_use: !alone(&file),
                name,
            });
        }
        Ok(versions)
    }

    /// Removes a version that nobody has open; false if somebody has.
    pub fn discard(&self, version: &KeptVersion) -> io::Result<bool> {
        let file = match self.file(&version.name, OFlags::empty()) {
            Ok(file) => file,
            Err(e) if e.kind() == io::ErrorKind::NotFound => return Ok(true),
            Err(e) => return Err(e),
        };
        let removed = self.is_unused(&file);
        if removed {
            self.remove(&version.name)?;
        }
        Ok(removed)
    }

    /// Returns true if nobody has a file open that was opened by its name here, as long as it is open.
    fn is_unused(&self, file: &File) -> bool {
        // What has its name now may be another file than the one that is locked.
        alone(file) && file.metadata().is_ok_and(|meta| meta.nlink() > 0)
    }

    fn remove(&self, name: &str) -> io::Result<()> {
        Ok(unlinkat(&self.fd, name, AtFlags::empty())?)
    }

    /// Notes that bytes are about to be kept, and returns true if it is time to see how much there is in all.
    pub(super) fn keeps(&self, more: u64, limit: u64) -> bool {
        let since = self.since.fetch_add(more, Ordering::Relaxed);
        since.saturating_add(more) >= step(limit)
    }

    /// Makes room for some bytes more where `limit` holds for all versions together. Returns the bytes that the version `key`,
    /// which this process has open, must give back itself. The metadata of other versions stay, up to `spared` bytes.
    pub(super) fn make_room(
        &self,
        more: u64,
        limit: u64,
        key: &str,
        spared: u64,
    ) -> io::Result<u64> {
        let Some(_turn) = self.turn() else {
            // Whoever has it makes room. The next bytes that are kept look again.
            return Ok(0);
        };
        self.since.store(more, Ordering::Relaxed);
        let mut versions = self.by_use()?;
        let total: u64 = versions.iter().map(|(_, _, kept)| *kept).sum();
        let wanted = limit.saturating_sub(step(limit).max(more));
        versions.retain(|(_, name, _)| !name.starts_with(key));
        let mut others: u64 = versions.iter().map(|(_, _, kept)| *kept).sum();
        let own = total.saturating_sub(others);
        for all in [false, true] {
            for (used, name, _) in &versions {
                let spares = all && others <= spared;
                if own.saturating_add(others) <= wanted || spares {
                    break;
                }
                let idle = used.elapsed().is_ok_and(|idle| idle > IDLE);
                // One that cannot be had does not keep others from being taken.
                let freed = self.take_away(name, idle, all).unwrap_or(0);
                others = others.saturating_sub(freed);
            }
        }
        Ok(own.saturating_add(others).saturating_sub(wanted))
    }

    /// Returns the times of the last use, the names and the bytes of all versions; first what was not used for longest.
    fn by_use(&self) -> io::Result<Vec<(SystemTime, String, u64)>> {
        let mut versions = Vec::new();
        for name in self.names()? {
            if !name.ends_with(BYTES) {
                continue;
            }
            let Ok(meta) = self
                .file(&name, OFlags::empty())
                .and_then(|file| file.metadata())
            else {
                continue;
            };
            let used = meta.modified().unwrap_or(SystemTime::UNIX_EPOCH);
            versions.push((used, name, meta.blocks().saturating_mul(512)));
        }
        versions.sort();
        Ok(versions)
    }

    /// Takes the data of a version away that nobody has open or reads, or all of it. Returns the bytes that this frees.
    fn take_away(&self, name: &str, idle: bool, all: bool) -> io::Result<u64> {
        let file = self.file(name, OFlags::empty())?;
        let before = file.metadata()?.blocks().saturating_mul(512);
        let unused = self.is_unused(&file);
        if unused && all {
            self.remove(name)?;
            return Ok(before);
        }
        let size = disk::about(&file).and_then(|about| about["size"].as_u64());
        let Some(size) = size.filter(|_| unused || idle) else {
            return Ok(0);
        };
        let file = DiskFile::new(file, size, "")?;
        let extents = file.extents()?.into_iter().map(|extent| extent.number);
        let used = file.modified();
        file.punch(extents, all)?;
        // This was no use of it.
        file.set_modified(used);
        Ok(before.saturating_sub(file.room()?))
    }
}

/// Returns true if a file system is mounted by npyfs.
fn is_npyfs(device: u64) -> bool {
    let table = std::fs::read_to_string("/proc/self/mountinfo").unwrap_or_default();
    let number = format!(
        "{}:{}",
        rustix::fs::major(device),
        rustix::fs::minor(device)
    );
    table.lines().any(|line| {
        let is_it = line.split(' ').nth(2) == Some(&number);
        let kind = line.split(" - ").nth(1).unwrap_or_default();
        is_it && kind.starts_with("fuse.npyfs")
    })
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;

    use super::*;

    fn only(dir: &CacheDir) -> KeptVersion {
        let mut versions = dir.versions().unwrap();
        assert_eq!(versions.len(), 1);
        versions.remove(0)
    }

    #[test]
    fn what_is_open_stays() {
        let parent = tempfile::tempdir().unwrap();
        let path = parent.path().join("objects");
        let dir = CacheDir::open(&path).unwrap();
        let open = dir.version("a").unwrap();
        let version = only(&dir);
        assert!(version.in_use && !dir.discard(&version).unwrap());
        drop(open);
        let version = only(&dir);
        assert!(!version.in_use && dir.discard(&version).unwrap());
        assert!(dir.versions().unwrap().is_empty());
        assert!(dir.discard(&version).unwrap());
    }

    #[test]
    fn versions_that_nobody_has_open_go_first() {
        let parent = tempfile::tempdir().unwrap();
        let dir = CacheDir::open(&parent.path().join("objects")).unwrap();
        let make = |key: &str| {
            let about = r#"{"size":4194304}"#;
            let file = DiskFile::new(dir.version(key).unwrap(), 4 << 20, about).unwrap();
            file.write(0, &vec![1; 4 << 20], false).unwrap();
            file
        };
        let (own, other) = (make("own"), make("other"));
        drop(make("unused"));
        let limit = 10 << 20;
        let excess = dir.make_room(0, limit, "own", limit).unwrap();
        assert_eq!(excess, 0);
        assert!(own.room().unwrap() >= 4 << 20 && other.room().unwrap() >= 4 << 20);
        let unused = DiskFile::new(dir.version("unused").unwrap(), 4 << 20, "").unwrap();
        assert!(unused.room().unwrap() < 1 << 20);
        let excess = dir.make_room(0, 4 << 20, "own", 0).unwrap();
        assert!(excess >= 4 << 20, "{excess}");
    }

    #[test]
    fn directories_of_others_are_refused() {
        let parent = tempfile::tempdir().unwrap();
        let path = parent.path().join("objects");
        std::fs::create_dir(&path).unwrap();
        let mode = |mode| std::fs::set_permissions(&path, std::fs::Permissions::from_mode(mode));
        mode(0o777).unwrap();
        assert!(CacheDir::existing(&path).is_err());
        mode(0o755).unwrap();
        CacheDir::existing(&path).unwrap();
        assert_eq!(path.metadata().unwrap().mode() & 0o777, 0o700);
        let link = parent.path().join("link");
        symlink(&path, &link).unwrap();
        assert!(CacheDir::existing(&link).is_err());
    }
}
