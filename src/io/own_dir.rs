//! A directory that belongs to the user who runs this process, alone: for what is kept between processes.
//!
//! Files in it are opened by their names alone, never through links. One process at a time has the lock of the directory.

use std::fs::{DirBuilder, File};
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::fs::{DirBuilderExt, MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};

use rustix::fs::{
    AtFlags, CWD, Dir, FlockOperation, Mode, OFlags, flock, fstatfs, fstatvfs, openat, renameat,
    unlinkat,
};
use rustix::io::Errno;

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
    OVERLAY,
    0xf2f5_2010,
    0x2fc1_2fc1,
    0xca45_1a4e,
];

/// Returns true if what another host writes is never on a file system of this type.
pub(super) fn is_local(system: u64) -> bool {
    LOCAL.contains(&system)
}

const OVERLAY: u64 = 0x794c_7630;

/// FUSE, of which npyfs is.
const FUSE: u64 = 0x6573_5546;

/// Flags of every file that is opened.
const PLAIN: OFlags = OFlags::RDWR
    .union(OFlags::NOFOLLOW)
    .union(OFlags::CLOEXEC)
    .union(OFlags::NONBLOCK);

/// A directory of this user.
#[derive(Debug)]
pub struct OwnDir {
    fd: OwnedFd,
    /// The type of its file system.
    system: u64,
}

/// The lock of a directory; given back at the end.
pub struct Turn(#[allow(dead_code)] OwnedFd);

/// Returns the user's own directory for what may be lost; `None` for a user without a home.
pub fn cache_home() -> Option<PathBuf> {
    let cache = std::env::var_os("XDG_CACHE_HOME").filter(|dir| !dir.is_empty());
    let home = || Some(PathBuf::from(std::env::var_os("HOME")?).join(".cache"));
    let cache = cache.map_or_else(home, |dir| Some(dir.into()))?;
    Some(cache.join("npyfs"))
}

/// Returns the user's own directory for what must not be lost; `None` for a user without a home.
pub fn state_home() -> Option<PathBuf> {
    let state = std::env::var_os("XDG_STATE_HOME").filter(|dir| !dir.is_empty());
    let home = || Some(PathBuf::from(std::env::var_os("HOME")?).join(".local/state"));
    let state = state.map_or_else(home, |dir| Some(dir.into()))?;
    Some(state.join("npyfs"))
}

/// Returns true if a file can be locked by this process alone.
pub fn alone(file: &File) -> bool {
    flock(file, FlockOperation::NonBlockingLockExclusive).is_ok()
}

impl OwnDir {
    /// Opens a directory, which is made for this user alone if it is not there.
    ///
    /// # Errors
    ///
    /// It is a link, somebody else's, writable for others or on a mount of npyfs.
    pub fn make(path: &Path) -> io::Result<Self> {
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
            system,
        })
    }

    /// Returns true if other hosts may write to it, and be seen late.
    pub fn is_shared(&self) -> bool {
        !is_local(self.system)
    }

    /// Returns the bytes that are free on its file system.
    pub fn room(&self) -> u64 {
        let system = fstatvfs(&self.fd);
        system.map_or(0, |system| system.f_bavail.saturating_mul(system.f_frsize))
    }

    /// Returns true if its file system lies over others.
    pub fn is_overlay(&self) -> bool {
        self.system == OVERLAY
    }

    /// Opens a file of this user to read and to write.
    pub fn file(&self, name: &str, flags: OFlags) -> io::Result<File> {
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

    /// Returns the names in it.
    pub fn names(&self) -> io::Result<Vec<String>> {
        let mut names = Vec::new();
        for entry in Dir::read_from(&self.fd)? {
            if let Ok(name) = entry?.file_name().to_str() {
                names.push(name.to_owned());
            }
        }
        Ok(names)
    }

    /// Returns the lock of the directory, unless somebody has it.
    pub fn turn(&self) -> Option<Turn> {
        let file = self.file(LOCK, OFlags::CREATE).ok()?;
        alone(&file).then(|| Turn(file.into()))
    }

    /// Returns true if nobody has a file open that was opened by its name here, as long as it is open.
    pub fn is_unused(&self, file: &File) -> bool {
        // What has its name now may be another file than the one that is locked.
        alone(file) && file.metadata().is_ok_and(|meta| meta.nlink() > 0)
    }

    /// Removes a name.
    pub fn remove(&self, name: &str) -> io::Result<()> {
        Ok(unlinkat(&self.fd, name, AtFlags::empty())?)
    }

    /// Gives a file another name, in the place of what has that name.
    pub fn rename(&self, from: &str, to: &str) -> io::Result<()> {
        Ok(renameat(&self.fd, from, &self.fd, to)?)
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

    #[test]
    fn directories_of_others_are_refused() {
        let parent = tempfile::tempdir().unwrap();
        let path = parent.path().join("objects");
        std::fs::create_dir(&path).unwrap();
        let mode = |mode| std::fs::set_permissions(&path, std::fs::Permissions::from_mode(mode));
        mode(0o777).unwrap();
        assert!(OwnDir::existing(&path).is_err());
        mode(0o755).unwrap();
        OwnDir::existing(&path).unwrap();
        assert_eq!(path.metadata().unwrap().mode() & 0o777, 0o700);
        let link = parent.path().join("link");
        symlink(&path, &link).unwrap();
        assert!(OwnDir::existing(&link).is_err());
    }
}
