//! A private directory of the user who runs this process, for data that is shared between processes.
//!
//! Files in it are opened by name only, never through symbolic links. One process at a time holds the directory's lock.

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

/// The file that a process locks while it frees space.
const LOCK: &str = "lock";

/// File systems on which writes of other processes are visible at once and holes can be punched: ext4, XFS, btrfs,
/// tmpfs, ramfs, overlay, F2FS, ZFS, bcachefs.
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

/// Returns true if other hosts cannot write to file systems of this type.
pub(super) fn is_local(system: u64) -> bool {
    LOCAL.contains(&system)
}

const OVERLAY: u64 = 0x794c_7630;

/// FUSE, which includes npyfs.
const FUSE: u64 = 0x6573_5546;

/// Flags for every open.
const PLAIN: OFlags = OFlags::RDWR
    .union(OFlags::NOFOLLOW)
    .union(OFlags::CLOEXEC)
    .union(OFlags::NONBLOCK);

/// A private directory of this user.
#[derive(Debug)]
pub struct OwnDir {
    fd: OwnedFd,
    /// The type of its file system.
    system: u64,
}

/// The lock of a directory; released on drop.
pub struct Turn(#[allow(dead_code)] OwnedFd);

/// Returns the user's directory for data that may be lost; `None` for a user without a home.
///
/// systemd does not set HOME for mounts of fstab and for services of the system: then the home is that of the user's
/// entry in the passwd database.
pub fn cache_home() -> Option<PathBuf> {
    let cache = std::env::var_os("XDG_CACHE_HOME").filter(|dir| !dir.is_empty());
    let home = || Some(std::env::home_dir()?.join(".cache"));
    let cache = cache.map_or_else(home, |dir| Some(dir.into()))?;
    Some(cache.join("npyfs"))
}

/// Returns the user's directory for data that must not be lost; `None` for a user without a home.
pub fn state_home() -> Option<PathBuf> {
    let state = std::env::var_os("XDG_STATE_HOME").filter(|dir| !dir.is_empty());
    let home = || Some(std::env::home_dir()?.join(".local/state"));
    let state = state.map_or_else(home, |dir| Some(dir.into()))?;
    Some(state.join("npyfs"))
}

/// Locks a file exclusively; returns false if another process has a lock.
pub fn alone(file: &File) -> bool {
    flock(file, FlockOperation::NonBlockingLockExclusive).is_ok()
}

impl OwnDir {
    /// Opens a directory, which is created for this user alone if it is missing.
    ///
    /// # Errors
    ///
    /// The directory is a symbolic link, belongs to another user, is below a directory of another user, is writable by
    /// others or lies on a mount of npyfs.
    pub fn make(path: &Path) -> io::Result<Self> {
        check_above(path)?;
        DirBuilder::new().recursive(true).mode(0o700).create(path)?;
        Self::existing(path)
    }

    /// Opens an existing directory.
    pub fn existing(path: &Path) -> io::Result<Self> {
        check_above(path)?;
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

    /// Returns true if other hosts may write to it, with changes visible late.
    pub fn is_shared(&self) -> bool {
        !is_local(self.system)
    }

    /// Returns the free bytes of its file system.
    pub fn room(&self) -> u64 {
        let system = fstatvfs(&self.fd);
        system.map_or(0, |system| system.f_bavail.saturating_mul(system.f_frsize))
    }

    /// Returns true if it is on an overlay file system.
    pub fn is_overlay(&self) -> bool {
        self.system == OVERLAY
    }

    /// Opens a file of this user for reading and writing.
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

    /// Returns the names in the directory.
    pub fn names(&self) -> io::Result<Vec<String>> {
        let mut names = Vec::new();
        for entry in Dir::read_from(&self.fd)? {
            if let Ok(name) = entry?.file_name().to_str() {
                names.push(name.to_owned());
            }
        }
        Ok(names)
    }

    /// Returns the lock of the directory, unless another process holds it.
    pub fn turn(&self) -> Option<Turn> {
        let file = self.file(LOCK, OFlags::CREATE).ok()?;
        alone(&file).then(|| Turn(file.into()))
    }

    /// Returns true if no process has the file open under its name here. Holds as long as `file` is open.
    pub fn is_unused(&self, file: &File) -> bool {
        // Another file may have its name by now.
        alone(file) && file.metadata().is_ok_and(|meta| meta.nlink() > 0)
    }

    /// Removes a name.
    pub fn remove(&self, name: &str) -> io::Result<()> {
        Ok(unlinkat(&self.fd, name, AtFlags::empty())?)
    }

    /// Renames a file; replaces a file that has the new name.
    pub fn rename(&self, from: &str, to: &str) -> io::Result<()> {
        Ok(renameat(&self.fd, from, &self.fd, to)?)
    }
}

/// Fails if an existing directory above a path belongs to neither this user nor root: its owner could replace the
/// directories below it.
fn check_above(path: &Path) -> io::Result<()> {
    let mut above = path.parent().unwrap_or(Path::new("/"));
    let real = loop {
        match above.canonicalize() {
            Ok(real) => break real,
            Err(e) if e.kind() == io::ErrorKind::NotFound => match above.parent() {
                Some(next) => above = next,
                None => return Err(e),
            },
            Err(e) => return Err(e),
        }
    };
    let me = rustix::process::geteuid().as_raw();
    let unmapped = unmapped_owner();
    for dir in real.ancestors() {
        let owner = dir.metadata()?.uid();
        if owner != me && owner != 0 && Some(owner) != unmapped {
            let why = format!("{} belongs to somebody else", dir.display());
            return Err(io::Error::new(io::ErrorKind::PermissionDenied, why));
        }
    }
    Ok(())
}

/// Returns the number that stands for all users who are unmapped in the user namespace of this process, among them the
/// machine's root; `None` if every user is mapped.
fn unmapped_owner() -> Option<u32> {
    let read = |path: &str| std::fs::read_to_string(path).unwrap_or_default();
    let map = read("/proc/self/uid_map");
    match map.split_whitespace().eq(["0", "0", "4294967295"]) {
        true => None,
        false => read("/proc/sys/kernel/overflowuid").trim().parse().ok(),
    }
}

/// Returns true if the file system of a device is mounted by npyfs.
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
