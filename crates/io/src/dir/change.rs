//! Changes of names in a directory. Each changes one name in it, never the target of a symbolic link.

use std::fs::File;
use std::io;
use std::os::fd::AsRawFd;
use std::sync::atomic::{AtomicU64, Ordering};

use rustix::fs::{
    AtFlags, CWD, OFlags, RenameFlags, fsync, linkat, openat, renameat, renameat_with, unlinkat,
};
use rustix::io::Errno;

use super::{Dir, SCRATCH, about, plain};
use npyfs_base::error::Result;

impl Dir {
    /// Creates a file, open for reading and writing; fails if the name exists. The caller sets its permissions.
    pub fn create(&self, name: &str) -> io::Result<File> {
        let flags = OFlags::RDWR | OFlags::CREATE | OFlags::EXCL | OFlags::CLOEXEC;
        let mode = self.rights().first_mode(false);
        self.with(|fd| Ok(File::from(openat(fd, plain(name)?, flags, mode)?)))
    }

    /// Creates an unnamed file.
    pub fn unnamed(&self) -> io::Result<File> {
        static NUMBER: AtomicU64 = AtomicU64::new(0);
        let flags = OFlags::RDWR | OFlags::TMPFILE | OFlags::CLOEXEC;
        let mode = self.rights().first_mode(false);
        match self.with(|fd| Ok(openat(fd, ".", flags, mode)?)) {
            Ok(fd) => Ok(fd.into()),
            // Not every file system supports O_TMPFILE.
            Err(e)
                if matches!(
                    e.raw_os_error(),
                    Some(libc::EOPNOTSUPP | libc::EISDIR | libc::EINVAL)
                ) =>
            {
                let number = NUMBER.fetch_add(1, Ordering::Relaxed);
                let name = format!("{SCRATCH}{}-{number}", std::process::id());
                let file = self.create(&name)?;
                self.remove(&name)?;
                Ok(file)
            }
            Err(e) => Err(e),
        }
    }

    /// Gives an open, unnamed file a name.
    pub fn link(&self, file: &File, name: &str) -> io::Result<()> {
        let own = format!("/proc/self/fd/{}", file.as_raw_fd());
        self.with(|fd| Ok(linkat(CWD, own, fd, plain(name)?, AtFlags::SYMLINK_FOLLOW)?))
    }

    /// Gives a file in the directory a second name; EEXIST if that is taken. Where hard links are not supported,
    /// renames the file.
    pub fn name_once(&self, from: &str, to: &str) -> io::Result<()> {
        let (from, to) = (plain(from)?, plain(to)?);
        self.with(|fd| match linkat(fd, from, fd, to, AtFlags::empty()) {
            Err(e @ (Errno::PERM | Errno::OPNOTSUPP | Errno::NOSYS | Errno::MLINK)) => {
                match renameat_with(fd, from, fd, to, RenameFlags::NOREPLACE) {
                    Err(Errno::INVAL | Errno::NOSYS | Errno::OPNOTSUPP) => Err(e.into()),
                    renamed => Ok(renamed?),
                }
            }
            linked => Ok(linked?),
        })
    }

    /// Renames a file in the directory; replaces a file that has the new name.
    pub fn rename(&self, from: &str, to: &str) -> io::Result<()> {
        self.with(|fd| Ok(renameat(fd, plain(from)?, fd, plain(to)?)?))
    }

    /// Removes the name of a file.
    pub fn remove(&self, name: &str) -> io::Result<()> {
        self.with(|fd| Ok(unlinkat(fd, plain(name)?, AtFlags::empty())?))
    }

    /// Removes an empty directory.
    pub fn remove_dir(&self, name: &str) -> io::Result<()> {
        self.with(|fd| Ok(unlinkat(fd, plain(name)?, AtFlags::REMOVEDIR)?))
    }

    /// Removes a directory with its contents.
    pub fn remove_all(&self, name: &str) -> Result<()> {
        self.below(name)?;
        self.with(|fd| {
            let path = format!("/proc/self/fd/{}/{}", fd.as_raw_fd(), plain(name)?);
            // Symbolic links are removed, not followed.
            std::fs::remove_dir_all(path)
        })
        .map_err(|e| about(e.into(), &self.path().join(name)))
    }

    /// Makes the names in the directory durable: returns once they would survive a loss of power.
    pub fn sync(&self) -> io::Result<()> {
        self.with(|fd| Ok(fsync(fd)?))
    }
}
