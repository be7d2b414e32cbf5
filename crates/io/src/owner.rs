//! The owner of a directory in which root writes. Files that root creates there are given to the owner, and workers
//! that write there switch to the owner's user.
//!
//! The owner is determined once, when the directory is opened, and then passed on: a user who replaces the directory
//! later cannot make root write in the name of the replacement's owner. A caller who is not root creates files of its
//! own, and files in root's own directory stay root's.

use std::ffi::OsStr;
use std::fs::{DirBuilder, File, Metadata};
use std::io::{self, ErrorKind};
use std::os::fd::AsFd;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use rustix::fs::{Gid, Uid, fchown};
use rustix::process::geteuid;
use rustix::thread::{
    CapabilitySet, CapabilitySets, capabilities, set_capabilities, set_keep_capabilities,
    set_thread_gid, set_thread_groups, set_thread_uid,
};

/// A user and group other than the caller's; `None` if nothing needs to be given away.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Owner(Option<(u32, u32)>);

impl Owner {
    /// Returns the owner of a directory if the caller is root and the owner is another user.
    pub fn of_dir(dir: &Path) -> io::Result<Self> {
        if !geteuid().is_root() {
            return Ok(Self(None));
        }
        let meta = std::fs::metadata(dir)?;
        Ok(Self::in_metadata(&meta))
    }

    fn in_metadata(meta: &Metadata) -> Self {
        Self((meta.uid() != 0).then_some((meta.uid(), meta.gid())))
    }

    /// Gives a newly created file or directory to the owner.
    pub fn assign(self, made: impl AsFd) -> io::Result<()> {
        let Some((user, group)) = self.0 else {
            return Ok(());
        };
        let meta = File::from(made.as_fd().try_clone_to_owned()?).metadata()?;
        // On file systems without owners, all files belong to one user.
        if (meta.uid(), meta.gid()) == (user, group) {
            return Ok(());
        }
        let (uid, gid) = (Uid::from_raw(user), Gid::from_raw(group));
        fchown(made, Some(uid), Some(gid)).map_err(|e| {
            let why = format!("cannot be given to user {user}, who owns the directory: {e}");
            io::Error::new(io::Error::from(e).kind(), why)
        })
    }

    /// Creates a new file and gives it away. A file that cannot be given away is removed.
    pub fn make_file(self, path: &Path) -> io::Result<File> {
        let made = File::options()
            .read(true)
            .write(true)
            .create_new(true)
            .open(path)?;
        self.assign(&made).inspect_err(|_| {
            let _ = std::fs::remove_file(path);
        })?;
        Ok(made)
    }

    /// Creates a new directory and gives it away.
    pub fn make_dir(self, path: &Path) -> io::Result<()> {
        DirBuilder::new().create(path)?;
        if self.0.is_none() {
            return Ok(());
        }
        let flags = libc::O_DIRECTORY | libc::O_NOFOLLOW;
        let made = File::options().read(true).custom_flags(flags).open(path);
        made.and_then(|made| self.assign(made)).inspect_err(|_| {
            let _ = std::fs::remove_dir(path);
        })
    }

    /// Creates a directory and the missing ones above it.
    pub fn make_dirs(self, path: &Path) -> io::Result<()> {
        if path.is_dir() {
            return Ok(());
        }
        match self.make_dir(path) {
            Err(e) if e.kind() == ErrorKind::NotFound => {
                let above = path.parent().ok_or(e)?;
                self.make_dirs(above)?;
                self.make_dir(path)
            }
            Err(e) if e.kind() == ErrorKind::AlreadyExists && path.is_dir() => Ok(()),
            made => made,
        }
    }

    /// Returns the argument that passes the owner to a worker.
    pub fn argument(self) -> Option<PathBuf> {
        let (user, group) = self.0?;
        Some(format!("{user}:{group}").into())
    }

    /// Returns the owner that an argument names; without an argument, no owner.
    pub fn of_argument(argument: Option<&OsStr>) -> io::Result<Self> {
        let Some(argument) = argument else {
            return Ok(Self(None));
        };
        let ids = argument.to_str().and_then(|text| {
            let (user, group) = text.split_once(':')?;
            Some((user.parse().ok()?, group.parse().ok()?))
        });
        let ids = ids.filter(|&(user, group)| user != 0 && user != u32::MAX && group != u32::MAX);
        ids.map(|ids| Self(Some(ids)))
            .ok_or_else(|| ErrorKind::InvalidInput.into())
    }

    /// Switches a single-threaded process to the owner for good: the owner's user and group, and no other groups. A
    /// process started by root keeps the right to read, without which a worker could not reach a directory below one of
    /// root's. `None` if there is no owner to switch to.
    pub fn become_him(self) -> Option<Result<(), String>> {
        let (user, group) = self.0?;
        let become_him = || {
            set_keep_capabilities(true)?;
            set_thread_groups(&[])?;
            set_thread_gid(Gid::from_raw(group))?;
            set_thread_uid(Uid::from_raw(user))?;
            let kept = capabilities(None)?.permitted & CapabilitySet::DAC_READ_SEARCH;
            let sets = CapabilitySets {
                effective: kept,
                permitted: kept,
                inheritable: CapabilitySet::empty(),
            };
            set_capabilities(None, sets)
        };
        let done = become_him();
        Some(done.map_err(|e| format!("cannot become user {user}, who owns the files: {e}")))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn arguments_name_users_but_not_root() {
        let of = |text: &str| Owner::of_argument(Some(OsStr::new(text)));
        let owner = of("2001:3000").unwrap();
        assert_eq!(owner, Owner(Some((2001, 3000))));
        assert_eq!(owner.argument().unwrap(), Path::new("2001:3000"));
        for bad in [
            "",
            "1",
            "0:1",
            "1:-1",
            "4294967295:1",
            "1:4294967295",
            "1:2:3",
        ] {
            assert!(of(bad).is_err(), "{bad:?}");
        }
        assert_eq!(Owner::of_argument(None).unwrap().argument(), None);
    }

    #[test]
    fn what_is_made_belongs_to_the_owner_of_the_directory() {
        let dir = tempfile::tempdir().unwrap();
        let home = dir.path().join("home");
        std::fs::create_dir(&home).unwrap();
        let caller = std::fs::metadata(&home).unwrap().uid();
        assert_eq!(Owner::of_dir(&home).unwrap(), Owner(None));
        if caller != 0 {
            eprintln!("NOT TESTED: only root can give files away");
            return;
        }
        std::os::unix::fs::chown(&home, Some(2001), Some(3000)).unwrap();
        let owner = Owner::of_dir(&home).unwrap();
        owner.make_dirs(&home.join("a/b")).unwrap();
        owner.make_dirs(&home.join("a/b")).unwrap();
        owner.make_file(&home.join("a/b/c")).unwrap();
        assert!(owner.make_file(&home.join("a/b/c")).is_err());
        for path in ["a", "a/b", "a/b/c"] {
            let meta = std::fs::metadata(home.join(path)).unwrap();
            assert_eq!((meta.uid(), meta.gid()), (2001, 3000), "{path}");
        }
        std::os::unix::fs::symlink("/", home.join("link")).unwrap();
        assert!(owner.make_dir(&home.join("link")).is_err());
        assert_eq!(std::fs::metadata("/").unwrap().uid(), 0);
    }
}
