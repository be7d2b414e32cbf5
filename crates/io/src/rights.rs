//! The trusted owners of files in directories of checkouts, and the permissions of files created there.
//!
//! A file is trusted if it belongs to the caller, to root or to the store's owner. If only one group may write in the
//! store's own directory, files of that group are trusted, too. New files are as private as the store: they get its
//! permissions without write access for others, its group, and its owner if root creates them.

use std::fs::{File, Metadata};
use std::io;
use std::os::fd::AsFd;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::sync::{Arc, OnceLock};

use rustix::fs::{FileType, Gid, Mode, Uid, fchmod, fchown, fstat};

use crate::file::has_hdf5_signature;

/// The most files of a store whose permissions are read.
const MOST_FILES: usize = 10_000;

/// The owners and permissions that apply beside a store, taken from its file. Clones share one object.
#[derive(Clone, Debug)]
pub struct Rights(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    /// Users whose files are trusted.
    users: Vec<u32>,
    /// The group whose files are trusted.
    group: Option<u32>,
    /// The owner of new files, if not the caller.
    owner: Option<u32>,
    /// The group of new files.
    new_group: u32,
    /// Permissions of new files.
    mode: u32,
}

impl Rights {
    /// Returns the rights that apply beside `store`. If it cannot be inspected, only the caller is trusted.
    pub fn beside(store: &Path) -> Self {
        let caller = rustix::process::geteuid().as_raw();
        let Ok(meta) = std::fs::metadata(store) else {
            return Self::new(vec![caller, 0], None, None, caller_group(), 0);
        };
        let home = match meta.is_dir() {
            true => Some(store),
            false => store.parent(),
        };
        // In a directory that is writable by all users the group proves nothing: new files inherit it from the
        // directory.
        let group = home
            .and_then(|home| std::fs::metadata(home).ok())
            .filter(|home| home.mode() & 0o022 == 0o020)
            .map(|home| home.gid());
        let mode = match meta.is_dir() {
            true => meta.mode() & modes_below(store),
            false => meta.mode(),
        };
        let owner = (caller == 0 && meta.uid() != 0).then_some(meta.uid());
        Self::new(
            vec![caller, 0, meta.uid()],
            group,
            owner,
            meta.gid(),
            mode & !umask(),
        )
    }

    /// Returns the rights of a copy of a file or directory, whatever else the copy is built from: as private as the
    /// original, and owned by the caller.
    pub fn copy_of(original: &Path) -> io::Result<Self> {
        let meta = std::fs::metadata(original)?;
        let mode = meta.mode() & !umask();
        Ok(Self::new(Vec::new(), None, None, meta.gid(), mode))
    }

    /// Returns the rights of files that are not beside a store: the caller's, with the umask applied.
    pub fn of_new() -> Self {
        let caller = rustix::process::geteuid().as_raw();
        Self::new(
            vec![caller, 0],
            None,
            None,
            caller_group(),
            0o666 & !umask(),
        )
    }

    fn new(
        users: Vec<u32>,
        group: Option<u32>,
        owner: Option<u32>,
        new_group: u32,
        mode: u32,
    ) -> Self {
        Self(Arc::new(Inner {
            users,
            group,
            owner,
            new_group,
            mode: mode & 0o664 | 0o600,
        }))
    }

    /// Returns the reason why a file with these properties is not trusted, if it is not.
    pub fn distrusts(&self, meta: &Metadata) -> Option<String> {
        let (uid, gid) = (meta.uid(), meta.gid());
        if self.0.users.contains(&uid) || self.0.group == Some(gid) {
            return None;
        }
        Some(format!(
            "it belongs to user {uid}, who is neither the caller nor the store's owner: not trusted"
        ))
    }

    /// Returns the initial permissions of a new file: the caller's alone if `settle` must change owner or group.
    pub fn first_mode(&self, is_dir: bool) -> Mode {
        let mode = match self.0.owner.is_some() || self.0.new_group != caller_group() {
            true => 0o600,
            false => self.0.mode,
        };
        Mode::from_raw_mode(mode_of(mode, is_dir))
    }

    /// Gives a new file the owner, group and permissions that apply beside the store. A change that the system does not
    /// allow is skipped, and never makes the file less private.
    pub fn settle(&self, file: impl AsFd) -> io::Result<()> {
        let now = fstat(&file)?;
        let is_dir = FileType::from_raw_mode(now.st_mode).is_dir();
        let mut mode = mode_of(self.0.mode, is_dir);
        let group = self.0.new_group;
        if now.st_gid != group && fchown(&file, None::<Uid>, Some(Gid::from_raw(group))).is_err() {
            // A different group gets the permissions of others.
            mode = mode & !0o070 | (mode & 0o007) << 3;
        }
        // The set-group-ID bit of a directory stays.
        let wanted = now.st_mode & 0o2000 | mode;
        if now.st_mode & 0o7777 != wanted {
            fchmod(&file, Mode::from_raw_mode(wanted))?;
        }
        if let Some(owner) = self.0.owner.filter(|&owner| owner != now.st_uid) {
            // If root is not allowed to do this, the mount reports it (`keeps_out_owner`).
            let _ = fchown(&file, Some(Uid::from_raw(owner)), None::<Gid>);
        }
        Ok(())
    }

    /// Returns the reason why the store's owner cannot continue to use a directory that was created or opened, if so.
    pub fn keeps_out_owner(&self, dir: &Metadata) -> Option<String> {
        let owner = self.0.owner.filter(|&owner| owner != dir.uid())?;
        Some(format!(
            "it belongs to user {}, and this system does not let it be given to user {owner}, who owns the store and \
             cannot write in it",
            dir.uid()
        ))
    }

    /// Returns the permissions of new files.
    pub fn mode(&self, is_dir: bool) -> u32 {
        mode_of(self.0.mode, is_dir)
    }
}

/// Returns the permissions of a file or a directory. Users who may read a file may enter a directory.
fn mode_of(mode: u32, is_dir: bool) -> u32 {
    match is_dir {
        true => mode | (mode & 0o444) >> 2,
        false => mode,
    }
}

fn caller_group() -> u32 {
    rustix::process::getegid().as_raw()
}

/// Returns the permissions that all HDF5 files below a directory have in common: a layer over it may hold bytes of any
/// of them.
fn modes_below(dir: &Path) -> u32 {
    fn walk(dir: &Path, mode: &mut u32, left: &mut usize) {
        for entry in std::fs::read_dir(dir).into_iter().flatten().flatten() {
            let Ok(kind) = entry.file_type() else {
                continue;
            };
            let path = entry.path();
            *left = left.saturating_sub(1);
            if *left == 0 {
                return;
            }
            if kind.is_dir() {
                walk(&path, mode, left);
            } else if kind.is_file() {
                // A file that the caller cannot read is not visible through the caller's mount.
                let Ok(file) = File::open(&path) else {
                    continue;
                };
                if let (Ok(true), Ok(meta)) = (has_hdf5_signature(&file), file.metadata()) {
                    *mode &= meta.mode();
                }
            }
        }
    }
    let mut mode = 0o777;
    let mut left = MOST_FILES;
    walk(dir, &mut mode, &mut left);
    mode
}

/// Returns the caller's file mode creation mask. umask(2) is not used, as it would change the mask of other threads for
/// a moment.
fn umask() -> u32 {
    static UMASK: OnceLock<u32> = OnceLock::new();
    *UMASK.get_or_init(|| {
        let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
        let line = status.lines().find_map(|line| line.strip_prefix("Umask:"));
        let mask = line.and_then(|mask| u32::from_str_radix(mask.trim(), 8).ok());
        // Unknown: the owner alone.
        mask.unwrap_or(0o077)
    })
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    fn store(mode: u32) -> (tempfile::TempDir, Rights) {
        let dir = tempfile::tempdir().unwrap();
        let store = dir.path().join("x.h5");
        std::fs::write(&store, "x").unwrap();
        std::fs::set_permissions(&store, PermissionsExt::from_mode(mode)).unwrap();
        let rights = Rights::beside(&store);
        (dir, rights)
    }

    #[test]
    fn what_is_made_is_no_wider_than_the_store() {
        let mask = umask();
        for (mode, want) in [
            (0o600, 0o600),
            (0o640, 0o640),
            (0o644, 0o644),
            (0o444, 0o644),
            (0o400, 0o600),
            (0o666, 0o664),
        ] {
            let (dir, rights) = store(mode);
            let file = File::create(dir.path().join("new")).unwrap();
            rights.settle(&file).unwrap();
            let got = file.metadata().unwrap().mode() & 0o7777;
            assert_eq!(got, want & !mask | 0o600, "{mode:o}");
            let folder = dir.path().join("folder");
            std::fs::create_dir(&folder).unwrap();
            rights.settle(File::open(&folder).unwrap()).unwrap();
            let got = std::fs::metadata(&folder).unwrap().mode() & 0o7777;
            let want = want & !mask | 0o600;
            assert_eq!(got, want | (want & 0o444) >> 2, "{mode:o}");
        }
    }

    #[test]
    fn a_directory_is_as_private_as_its_most_private_store() {
        let dir = tempfile::tempdir().unwrap();
        std::fs::set_permissions(dir.path(), PermissionsExt::from_mode(0o755)).unwrap();
        let file = |name: &str, bytes: &[u8], mode| {
            let path = dir.path().join(name);
            std::fs::write(&path, bytes).unwrap();
            std::fs::set_permissions(&path, PermissionsExt::from_mode(mode)).unwrap();
        };
        let hdf5 = b"\x89HDF\r\n\x1a\n";
        file("a.h5", hdf5, 0o644);
        file("notes", b"notes", 0o600);
        assert_eq!(Rights::beside(dir.path()).mode(false), 0o644 & !umask());
        file("b.h5", hdf5, 0o600);
        assert_eq!(Rights::beside(dir.path()).mode(false), 0o600);
    }
}
