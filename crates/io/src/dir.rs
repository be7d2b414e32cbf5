//! A directory of checkouts, held open. Everything below it is opened relative to its descriptor, one name at a time.
//!
//! Other users may be able to write beside a store. So symbolic links are never followed, an opened file is checked
//! before it is used, and files of users that are not trusted (`rights`) are refused by name. A file with several hard
//! links is refused, too: another link may be anywhere. A change of a name changes one name in the directory, never the
//! target of a symbolic link.

use std::any::Any;
use std::ffi::OsString;
use std::fmt;
use std::fs::{File, Metadata};
use std::io;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::os::unix::ffi::OsStringExt;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use rustix::fs::{
    AtFlags, CWD, Dir as Entries, FileType, Mode, OFlags, RenameFlags, ResolveFlags, fstatfs,
    fsync, linkat, mkdirat, openat, openat2, renameat, renameat_with, statat, unlinkat,
};
use rustix::io::Errno;

use super::own_dir;
use super::rights::Rights;
use npyfs_base::error::{Error, ErrorKind, Result};

/// Flags for every open: no symbolic link, and no blocking on a FIFO or a terminal.
const PLAIN: OFlags = OFlags::NOFOLLOW
    .union(OFlags::CLOEXEC)
    .union(OFlags::NONBLOCK)
    .union(OFlags::NOCTTY);

/// The prefix of the temporary names of unnamed files on file systems where every file needs a name.
pub const SCRATCH: &str = ".scratch-";

const DIRECTORY: OFlags = OFlags::DIRECTORY
    .union(OFlags::NOFOLLOW)
    .union(OFlags::CLOEXEC);

/// The source that a directory is a copy of. Files are copied when they are needed.
pub trait Original: Any + fmt::Debug + Send + Sync {
    /// Copies a file that the directory lacks. False if the source has none.
    fn fetch(&self, dir: &Dir, name: &str) -> Result<bool>;

    /// Returns the size of a file in bytes, copied or not; `None` if it does not exist.
    fn size(&self, dir: &Dir, name: &str) -> Result<Option<u64>>;
}

/// A trusted directory. Clones share the descriptor.
#[derive(Clone, Debug)]
pub struct Dir(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    /// For messages, and to check whether the directory is still there.
    path: PathBuf,
    rights: Rights,
    /// `None` if the directory is opened for each use.
    held: Option<OwnedFd>,
    /// The parent directory and the name in it, unless the directory was opened by its path.
    above: Option<(Dir, String)>,
    original: Option<Arc<dyn Original>>,
}

impl Dir {
    /// Opens the directory at `path`. Unless `follow`, the last name must not be a symbolic link. ENOENT if it is
    /// missing.
    pub fn open(path: &Path, rights: &Rights, follow: bool) -> Result<Self> {
        let flags = match follow {
            true => DIRECTORY.difference(OFlags::NOFOLLOW),
            false => DIRECTORY,
        };
        let opened = openat(CWD, path, flags, Mode::empty());
        let is_link = || path.symlink_metadata().is_ok_and(|meta| meta.is_symlink());
        let fd = opened.map_err(|e| refusal(e, path, is_link))?;
        Self::checked(fd, path, rights, None)
    }

    fn checked(
        fd: OwnedFd,
        path: &Path,
        rights: &Rights,
        above: Option<(Dir, String)>,
    ) -> Result<Self> {
        let file = File::from(fd);
        let meta = file.metadata().map_err(|e| about(e.into(), path))?;
        if let Some(why) = rights.distrusts(&meta) {
            return Err(about(Error::new(ErrorKind::Denied, why), path));
        }
        let original = above
            .as_ref()
            .and_then(|(above, _)| above.0.original.clone());
        Ok(Self(Arc::new(Inner {
            path: path.to_owned(),
            rights: rights.clone(),
            held: Some(file.into()),
            above,
            original,
        })))
    }

    /// Marks the directory as a copy of `original`. It must have been opened by its path.
    pub fn copy_of(self, original: Arc<dyn Original>) -> Result<Self> {
        let held = self.with(|fd| fd.try_clone());
        let held = held.map_err(|e| about(e.into(), self.path()))?;
        Ok(Self(Arc::new(Inner {
            path: self.path().to_owned(),
            rights: self.rights().clone(),
            held: Some(held),
            above: None,
            original: Some(original),
        })))
    }

    /// Returns the source that the directory is a copy of, if it has this type.
    pub fn original<T: Original>(&self) -> Option<Arc<T>> {
        let original: Arc<dyn Any + Send + Sync> = self.0.original.clone()?;
        original.downcast().ok()
    }

    /// Opens the directory at `path` as `open` does, and creates it if it is missing; true if it was created.
    pub fn make_at(path: &Path, rights: &Rights, follow: bool) -> Result<(Self, bool)> {
        let failed = |e: io::Error| about(e.into(), path);
        let made = match mkdirat(CWD, path, rights.first_mode(true)) {
            Ok(()) => true,
            Err(Errno::EXIST) => false,
            Err(e) => return Err(failed(e.into())),
        };
        let dir = Self::open(path, rights, follow)?;
        if made {
            dir.with(|fd| rights.settle(fd)).map_err(failed)?;
        }
        Ok((dir, made))
    }

    /// Opens a directory that is not beside a store, and creates it if it is missing. Files in it are as private as the
    /// directory.
    pub fn alone(path: &Path) -> Result<Self> {
        Ok(Self::make_at(path, &Rights::beside(path), false)?.0)
    }

    /// Opens or creates a directory that is not beside a store, for a test.
    #[doc(hidden)]
    pub fn own(path: &Path) -> Self {
        Self::alone(path).expect("a directory of a test")
    }

    /// Returns the path that it was opened by, for messages.
    pub fn path(&self) -> &Path {
        &self.0.path
    }

    /// Returns the rights that files in it must have.
    pub fn rights(&self) -> &Rights {
        &self.0.rights
    }

    /// Returns the parent directory, unless the directory was opened by its path.
    pub fn above(&self) -> Option<&Dir> {
        self.0.above.as_ref().map(|(above, _)| above)
    }

    /// Returns the metadata of the directory itself: owner, permissions, times.
    pub fn own_metadata(&self) -> io::Result<Metadata> {
        self.with(|fd| File::from(fd.try_clone()?).metadata())
    }

    /// Returns the last name of its path.
    pub fn name(&self) -> String {
        let name = self.0.path.file_name().unwrap_or_default();
        name.to_string_lossy().into_owned()
    }

    /// Calls `act` with the directory's descriptor.
    fn with<T>(&self, act: impl FnOnce(&OwnedFd) -> io::Result<T>) -> io::Result<T> {
        match (&self.0.held, &self.0.above) {
            (Some(held), _) => act(held),
            (None, Some((above, name))) => {
                let opened = above.below(name).map_err(into_io)?;
                opened.with(act)
            }
            (None, None) => Err(io::ErrorKind::NotFound.into()),
        }
    }

    /// Returns a path by which a process of the same user can open the directory, even if its own path now leads
    /// elsewhere. Valid while this value is alive.
    pub fn path_of_descriptor(&self) -> PathBuf {
        match &self.0.held {
            Some(held) => {
                let (process, number) = (std::process::id(), held.as_raw_fd());
                format!("/proc/{process}/fd/{number}").into()
            }
            None => self.0.path.clone(),
        }
    }

    /// Returns true if its path, or its name in the parent directory, still leads to it.
    pub fn is_in_place(&self) -> bool {
        let identity = |dir: &Dir| {
            dir.with(|fd| {
                let meta = File::from(fd.try_clone()?).metadata()?;
                Ok((meta.dev(), meta.ino()))
            })
        };
        let now = match &self.0.above {
            Some((above, name)) => above.below(name),
            None => Dir::open(&self.0.path, &self.0.rights, true),
        };
        let (Ok(now), Ok(own)) = (now.map(|now| identity(&now)), identity(self)) else {
            return false;
        };
        now.is_ok_and(|now| now == own)
    }

    /// Opens a subdirectory; ENOENT if it is missing.
    pub fn below(&self, name: &str) -> Result<Self> {
        let path = self.path().join(name);
        let opened = self.with(|fd| beneath(fd, name, DIRECTORY));
        let fd = opened.map_err(|e| self.refused(e, name))?;
        let above = Some((self.clone(), name.to_owned()));
        Self::checked(fd, &path, self.rights(), above)
    }

    /// Returns a subdirectory that is opened for each use, and need not exist before the first.
    pub fn below_later(&self, name: &str) -> Self {
        Self(Arc::new(Inner {
            path: self.path().join(name),
            rights: self.rights().clone(),
            held: None,
            above: Some((self.clone(), name.to_owned())),
            original: self.0.original.clone(),
        }))
    }

    /// Opens a subdirectory, and creates it if it is missing; true if it was created.
    pub fn make(&self, name: &str) -> Result<(Self, bool)> {
        let about = |e: io::Error| Error::from(e).about(self.path().join(name).display());
        let mode = self.rights().first_mode(true);
        let made = self.with(|fd| Ok(mkdirat(fd, plain(name)?, mode)?));
        let made = match made {
            Ok(()) => true,
            Err(e) if e.kind() == io::ErrorKind::AlreadyExists => false,
            Err(e) => return Err(about(e)),
        };
        let dir = self.below(name)?;
        if made {
            dir.with(|fd| self.rights().settle(fd)).map_err(about)?;
        }
        Ok((dir, made))
    }

    /// Opens a file for reading; ENOENT if it is missing.
    pub fn read(&self, name: &str) -> Result<File> {
        self.open_file(name, OFlags::RDONLY)
    }

    /// Opens a file for reading and writing; ENOENT if it is missing.
    pub fn write(&self, name: &str) -> Result<File> {
        self.open_file(name, OFlags::RDWR)
    }

    /// Opens a file for reading and writing, and creates it if it is missing.
    pub fn write_or_create(&self, name: &str) -> Result<File> {
        loop {
            match self.write(name) {
                Err(e) if e.kind == ErrorKind::NotFound => {}
                opened => return opened,
            }
            let about = |e: io::Error| Error::from(e).about(self.path().join(name).display());
            match self.create(name) {
                // Another process created it in the meantime.
                Err(e) if e.kind() == io::ErrorKind::AlreadyExists => {}
                created => {
                    let file = created.map_err(about)?;
                    self.rights().settle(&file).map_err(about)?;
                    return Ok(file);
                }
            }
        }
    }

    /// Opens a file for reading that may have a second hard link, if that is in this directory and its name starts with
    /// `beginning`; ENOENT if the file is missing.
    pub fn read_linked(&self, name: &str, beginning: &str) -> Result<File> {
        let opened = self.with(|fd| beneath(fd, name, OFlags::RDONLY.union(PLAIN)));
        let file = File::from(opened.map_err(|e| self.refused(e, name))?);
        let check = || {
            let meta = file.metadata()?;
            self.check(&meta)
        };
        // The second link may be removed between the two checks.
        let has_known_names = || {
            let names = self.names().unwrap_or_default();
            let mut names = names.iter().filter_map(|(name, _)| name.to_str());
            let is_second = |name: &str| name.starts_with(beginning) && self.is_named(name, &file);
            let meta = file.metadata();
            names.any(is_second)
                && meta.is_ok_and(|meta| {
                    meta.is_file() && meta.nlink() <= 2 && self.rights().distrusts(&meta).is_none()
                })
        };
        let checked = match check() {
            Err(_) if has_known_names() => Ok(()),
            Err(_) => check(),
            Ok(()) => Ok(()),
        };
        checked.map_err(|e| about(e, &self.path().join(name)))?;
        Ok(file)
    }

    fn open_file(&self, name: &str, flags: OFlags) -> Result<File> {
        let opened = self.with(|fd| beneath(fd, name, flags.union(PLAIN)));
        let opened = match opened {
            Err(e) if e.kind() == io::ErrorKind::NotFound && self.fetch(name)? => {
                self.with(|fd| beneath(fd, name, flags.union(PLAIN)))
            }
            opened => opened,
        };
        let file = File::from(opened.map_err(|e| self.refused(e, name))?);
        let path = self.path().join(name);
        let meta = file.metadata().map_err(|e| about(e.into(), &path))?;
        self.check(&meta).map_err(|e| about(e, &path))?;
        Ok(file)
    }

    /// Copies a file from the source of the directory; false if there is none.
    pub fn fetch(&self, name: &str) -> Result<bool> {
        let original = self.0.original.as_ref();
        original.map_or(Ok(false), |original| original.fetch(self, name))
    }

    /// Returns the size of a file that may be opened, without copying it; ENOENT if it is missing.
    pub fn size(&self, name: &str) -> Result<u64> {
        match (self.metadata_here(name), &self.0.original) {
            (Err(e), Some(original)) if e.kind == ErrorKind::NotFound => {
                original.size(self, name)?.ok_or(e)
            }
            (meta, _) => meta.map(|meta| meta.len()),
        }
    }

    fn check(&self, meta: &Metadata) -> Result<()> {
        let why = match (meta.is_file(), self.rights().distrusts(meta)) {
            (false, _) => "no regular file".to_owned(),
            (_, Some(why)) => why,
            (true, None) if meta.nlink() > 1 => {
                "it has another name somewhere (a hard link): not trusted".to_owned()
            }
            (true, None) => return Ok(()),
        };
        Err(Error::new(ErrorKind::Denied, why))
    }

    /// Returns the metadata of a file that may be opened; ENOENT if it is missing.
    pub fn metadata(&self, name: &str) -> Result<Metadata> {
        match self.metadata_here(name) {
            Err(e) if e.kind == ErrorKind::NotFound && self.fetch(name)? => {
                self.metadata_here(name)
            }
            looked => looked,
        }
    }

    /// Returns the metadata of a file in the directory itself, not in its source; ENOENT if it is missing.
    pub fn metadata_here(&self, name: &str) -> Result<Metadata> {
        let opened = self.with(|fd| beneath(fd, name, OFlags::PATH.union(PLAIN)));
        let file = File::from(opened.map_err(|e| self.refused(e, name))?);
        let path = self.path().join(name);
        let meta = file.metadata().map_err(|e| about(e.into(), &path))?;
        if meta.is_symlink() {
            return Err(about(Error::new(ErrorKind::Denied, LINK), &path));
        }
        self.check(&meta).map_err(|e| about(e, &path))?;
        Ok(meta)
    }

    /// Returns true if a name in the directory leads to an open file.
    pub fn leads_to(&self, name: &str, file: &File) -> bool {
        let identity = |meta: Metadata| (meta.dev(), meta.ino());
        let there = self.metadata(name).map(identity);
        there.is_ok_and(|there| file.metadata().is_ok_and(|own| identity(own) == there))
    }

    /// Returns true if a name in the directory is one of the hard links of an open file.
    pub fn is_named(&self, name: &str, file: &File) -> bool {
        let there = self.with(|fd| Ok(statat(fd, plain(name)?, AtFlags::SYMLINK_NOFOLLOW)?));
        let own = file.metadata().map(|own| (own.dev(), own.ino()));
        there.is_ok_and(|there| own.is_ok_and(|own| own == (there.st_dev, there.st_ino)))
    }

    /// Returns the time of the last change of a name's file, in seconds since 1970.
    pub fn modified(&self, name: &str) -> io::Result<i64> {
        self.with(|fd| Ok(statat(fd, plain(name)?, AtFlags::SYMLINK_NOFOLLOW)?.st_mtime))
    }

    /// Returns the bytes that removing a name would free, and the time of the last change (ctime) of its file, in
    /// nanoseconds since 1970.
    pub fn size_and_change(&self, name: &str) -> io::Result<(u64, i64)> {
        let stat = self.with(|fd| Ok(statat(fd, plain(name)?, AtFlags::SYMLINK_NOFOLLOW)?))?;
        let bytes = u64::try_from(stat.st_size).unwrap_or(0);
        let changed = stat.st_ctime.saturating_mul(1_000_000_000);
        let changed = changed.saturating_add(stat.st_ctime_nsec);
        Ok((if stat.st_nlink > 1 { 0 } else { bytes }, changed))
    }

    /// Returns true if other hosts may write to the directory.
    pub fn is_shared(&self) -> io::Result<bool> {
        let system = self.with(|fd| Ok(fstatfs(fd)?.f_type))?;
        Ok(!own_dir::is_local(system as u64 & 0xffff_ffff))
    }

    /// Returns all names in the directory, with their file types.
    pub fn names(&self) -> io::Result<Vec<(OsString, FileType)>> {
        self.with(|fd| {
            let mut names = Vec::new();
            for entry in Entries::read_from(fd)? {
                let entry = entry?;
                let name = entry.file_name().to_bytes().to_vec();
                if matches!(&*name, b"." | b"..") {
                    continue;
                }
                let stat = || statat(fd, entry.file_name(), AtFlags::SYMLINK_NOFOLLOW);
                let kind = match entry.file_type() {
                    FileType::Unknown => stat().map_or(FileType::Unknown, |stat| {
                        FileType::from_raw_mode(stat.st_mode)
                    }),
                    kind => kind,
                };
                names.push((OsString::from_vec(name), kind));
            }
            Ok(names)
        })
    }

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

    /// Returns the reason why a name could not be opened.
    fn refused(&self, error: io::Error, name: &str) -> Error {
        let path = self.path().join(name);
        let is_link = || {
            let stat = |fd: &OwnedFd| Ok(statat(fd, name, AtFlags::SYMLINK_NOFOLLOW)?);
            let stat = self.with(stat);
            stat.is_ok_and(|stat| FileType::from_raw_mode(stat.st_mode).is_symlink())
        };
        match error.raw_os_error() {
            Some(errno) => refusal(Errno::from_raw_os_error(errno), &path, is_link),
            None => about(error.into(), &path),
        }
    }
}

const LINK: &str = "a symbolic link: none is followed in a directory of checkouts";

fn about(error: Error, path: &Path) -> Error {
    error.about(path.display())
}

fn refusal(errno: Errno, path: &Path, is_link: impl Fn() -> bool) -> Error {
    let error = match errno {
        Errno::LOOP => Error::new(ErrorKind::Denied, LINK),
        Errno::NOTDIR if is_link() => Error::new(ErrorKind::Denied, LINK),
        Errno::NOTDIR => Error::new(ErrorKind::NotDirectory, "no directory"),
        Errno::NXIO => Error::new(ErrorKind::Denied, "no regular file"),
        errno => io::Error::from(errno).into(),
    };
    about(error, path)
}

/// Wraps an error so that the conversion back to an npyfs error restores it.
fn into_io(error: Error) -> io::Error {
    match error.kind {
        ErrorKind::NotFound => io::Error::from_raw_os_error(libc::ENOENT),
        _ => io::Error::other(error),
    }
}

/// Returns the name itself; fails unless it is a single component.
fn plain(name: &str) -> io::Result<&str> {
    match name.is_empty() || matches!(name, "." | "..") || name.contains('/') {
        true => Err(io::ErrorKind::InvalidInput.into()),
        false => Ok(name),
    }
}

/// Opens one name in a directory.
fn beneath(dir: &OwnedFd, name: &str, flags: OFlags) -> io::Result<OwnedFd> {
    let name = plain(name)?;
    let how = ResolveFlags::BENEATH | ResolveFlags::NO_SYMLINKS | ResolveFlags::NO_MAGICLINKS;
    // An O_PATH open inspects the name itself, even if it is a symbolic link, and needs no openat2(2).
    if !flags.contains(OFlags::PATH) {
        match openat2(dir.as_fd(), name, flags, Mode::empty(), how) {
            // Kernels before 5.6, some sandboxes, and names that are being changed at this moment. A single name that
            // is not a symbolic link leads nowhere else, even without openat2(2).
            Err(Errno::NOSYS | Errno::PERM | Errno::AGAIN | Errno::INVAL) => {}
            opened => return Ok(opened?),
        }
    }
    Ok(openat(dir.as_fd(), name, flags, Mode::empty())?)
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;
    use std::process::Command;

    use super::*;

    fn place() -> (tempfile::TempDir, Dir) {
        let dir = tempfile::tempdir().unwrap();
        std::fs::create_dir(dir.path().join("in")).unwrap();
        std::fs::write(dir.path().join("victim"), "theirs").unwrap();
        let own = Dir::own(&dir.path().join("in"));
        (dir, own)
    }

    /// Asserts that every way to open a name refuses it, with the reason `why`.
    fn refuses(dir: &Dir, name: &str, why: &str) {
        let opened = [
            dir.read(name).err(),
            dir.write(name).err(),
            dir.write_or_create(name).err(),
            dir.metadata(name).err(),
        ];
        for error in opened {
            let error = error.unwrap();
            let path = dir.path().join(name);
            assert!(error.message.contains(why), "{error}");
            assert!(error.message.contains(path.to_str().unwrap()), "{error}");
        }
        assert!(dir.create(name).is_err());
    }

    #[test]
    fn links_fifos_and_second_names_are_refused() {
        let (top, dir) = place();
        let (victim, inside) = (top.path().join("victim"), dir.path());
        symlink(&victim, inside.join("link")).unwrap();
        symlink("../victim", inside.join("relative")).unwrap();
        symlink("/nowhere", inside.join("dangling")).unwrap();
        std::fs::hard_link(&victim, inside.join("hard")).unwrap();
        let fifo = Command::new("mkfifo").arg(inside.join("fifo")).status();
        assert!(fifo.unwrap().success());
        std::fs::create_dir(inside.join("folder")).unwrap();
        for name in ["link", "relative", "dangling"] {
            refuses(&dir, name, "a symbolic link");
        }
        refuses(&dir, "hard", "a hard link");
        refuses(&dir, "fifo", "no regular file");
        assert!(dir.read("folder").is_err() && dir.metadata("folder").is_err());
        assert_eq!(dir.read("none").unwrap_err().errno(), libc::ENOENT);
        assert_eq!(std::fs::read(&victim).unwrap(), b"theirs");
        // `remove` removes the link itself.
        dir.remove("link").unwrap();
        assert!(victim.is_file());
        for name in ["..", ".", "", "a/b", "../victim", "/etc/passwd"] {
            assert!(
                dir.read(name).is_err() && dir.create(name).is_err(),
                "{name:?}"
            );
            assert!(
                dir.remove(name).is_err() && dir.below(name).is_err(),
                "{name:?}"
            );
        }
    }

    #[test]
    fn a_directory_that_is_a_link_is_not_entered_nor_emptied() {
        let (top, dir) = place();
        let away = top.path().join("away");
        std::fs::create_dir(&away).unwrap();
        std::fs::write(away.join("file"), "theirs").unwrap();
        symlink(&away, dir.path().join("layer")).unwrap();
        for refused in [
            dir.below("layer").map(drop),
            dir.make("layer").map(drop),
            dir.remove_all("layer"),
            Dir::open(&dir.path().join("layer"), dir.rights(), false).map(drop),
        ] {
            assert!(refused.unwrap_err().message.contains("a symbolic link"));
        }
        let (own, made) = dir.make("own").unwrap();
        assert!(made && !dir.make("own").unwrap().1 && own.is_in_place());
        symlink(&away, own.path().join("link")).unwrap();
        // The descriptor counts, wherever the path leads now.
        std::fs::rename(own.path(), dir.path().join("moved")).unwrap();
        symlink(&away, own.path()).unwrap();
        assert!(own.create("file").is_ok() && !own.is_in_place());
        dir.remove_all("moved").unwrap();
        assert_eq!(std::fs::read(away.join("file")).unwrap(), b"theirs");
    }

    #[test]
    fn what_belongs_to_strangers_is_refused() {
        if !rustix::process::geteuid().is_root() {
            eprintln!("NOT TESTED: needs root: only root can give files away");
            return;
        }
        let (_top, dir) = place();
        let give = |name: &str| {
            let path = dir.path().join(name);
            std::os::unix::fs::chown(path, Some(12345), Some(12345)).unwrap();
        };
        dir.create("file").unwrap();
        dir.make("layer").unwrap();
        give("file");
        give("layer");
        for error in [
            dir.read("file").err(),
            dir.metadata("file").err(),
            dir.below("layer").err(),
            dir.make("layer").err(),
        ] {
            let error = error.unwrap();
            assert_eq!(error.errno(), libc::EACCES);
            assert!(error.message.contains("user 12345"), "{error}");
        }
    }

    #[test]
    fn one_that_is_not_held_is_checked_each_time() {
        let (_top, dir) = place();
        let (own, _) = dir.make("own").unwrap();
        own.create("file").unwrap();
        let unheld = dir.below_later("own");
        assert!(unheld.read("file").is_ok() && unheld.is_in_place());
        std::fs::rename(own.path(), dir.path().join("moved")).unwrap();
        symlink(dir.path().join("moved"), own.path()).unwrap();
        assert!(unheld.read("file").is_err());
    }

    #[test]
    fn a_file_without_a_name_gets_one() {
        let (_top, dir) = place();
        let file = dir.unnamed().unwrap();
        assert!(dir.names().unwrap().is_empty());
        dir.link(&file, "named").unwrap();
        assert!(dir.leads_to("named", &file));
        assert_eq!(
            dir.names().unwrap(),
            [("named".into(), FileType::RegularFile)]
        );
    }
}
