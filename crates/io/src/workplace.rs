//! The temporary directory of an export. Nothing of it remains, however the export ends.
//!
//! The directory is removed when the export succeeds or fails, and when a signal ends the process. If the process was
//! killed, the next export to the same place removes the directory: its lock (flock(2)) is free then.

use std::ffi::OsStr;
use std::fs::{DirBuilder, File};
use std::io::{self, Write};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use parking_lot::Mutex;
use rustix::fs::{FlockOperation, flock};
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use signal_hook::iterator::Signals;
use signal_hook::low_level::emulate_default_handler;

use npyfs_base::thread;

const PREFIX: &str = ".npyfs-export-";

/// The subdirectory for several files that are published together.
pub const WHOLE: &str = "whole";

/// Records which files of `WHOLE` are being renamed to names beside the workplace.
const NAMING: &str = "naming";

/// How long a worker may continue to create files after a signal.
const PATIENCE: Duration = Duration::from_secs(5);

/// The workplaces of this process.
static OPEN: Mutex<Vec<PathBuf>> = Mutex::new(Vec::new());

/// A directory for new files that only its owner can enter.
#[derive(Debug)]
pub struct Workplace {
    path: PathBuf,
    _lock: File,
}

impl Workplace {
    /// Creates a workplace in `parent`, and removes those of killed processes there.
    pub fn new_in(parent: &Path) -> io::Result<Self> {
        static NUMBER: AtomicU64 = AtomicU64::new(0);
        sweep(parent);
        loop {
            // From here on, a signal handler waits until the directory is registered.
            let mut open = OPEN.lock();
            let number = NUMBER.fetch_add(1, Ordering::Relaxed);
            let name = format!("{PREFIX}{}-{number}", std::process::id());
            let path = std::path::absolute(parent.join(name))?;
            match DirBuilder::new().mode(0o700).create(&path) {
                Err(e) if e.kind() == io::ErrorKind::AlreadyExists => continue,
                made => made?,
            }
            // Another process may take the directory for abandoned before it is locked.
            let lock = match open_dir(&path) {
                Err(e) if e.kind() == io::ErrorKind::NotFound => continue,
                lock => lock?,
            };
            // Some file systems cannot lock directories. There, no process takes the directory for abandoned, either.
            let locked = flock(&lock, FlockOperation::NonBlockingLockExclusive);
            if matches!(locked, Err(rustix::io::Errno::WOULDBLOCK)) || !path.is_dir() {
                continue;
            }
            open.push(path.clone());
            return Ok(Self { path, _lock: lock });
        }
    }

    /// Returns the path of the directory.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Renames a file or directory of the workplace to its final name. No signal interrupts this.
    pub fn name(&self, from: &Path, to: &Path) -> io::Result<()> {
        let _open = OPEN.lock();
        rename_new(from, to)
    }

    /// Renames files of `WHOLE` to names beside the workplace, in this order: all of them or none.
    pub fn name_all(&self, names: &[&Path]) -> io::Result<()> {
        let _open = OPEN.lock();
        let parent = self.path.parent().unwrap_or(Path::new("/"));
        let mut list = File::create_new(self.path.join(NAMING))?;
        for name in names {
            let inode = std::fs::symlink_metadata(self.path.join(WHOLE).join(name))?.ino();
            write!(list, "{inode} ")?;
            list.write_all(name.as_os_str().as_bytes())?;
            list.write_all(b"\0")?;
        }
        list.sync_all()?;
        File::open(&self.path)?.sync_all()?;
        for name in names {
            if let Err(e) = rename_new(&self.path.join(WHOLE).join(name), &parent.join(name)) {
                take_names_back(&self.path);
                return Err(e);
            }
        }
        Ok(())
    }
}

impl Drop for Workplace {
    fn drop(&mut self) {
        let mut open = OPEN.lock();
        // If this fails, the next export removes it.
        let _ = std::fs::remove_dir_all(&self.path);
        open.retain(|path| *path != self.path);
    }
}

/// Removes the workplaces of this process when a signal ends it, after calling `last`.
pub fn remove_on_signals(last: impl FnOnce() + Send + 'static) -> io::Result<()> {
    let mut signals = Signals::new([SIGHUP, SIGINT, SIGTERM])?;
    let work = move || {
        if let Some(signal) = signals.forever().next() {
            // Held until the process ends, so that nothing new is created or renamed.
            let open = OPEN.lock();
            for path in open.iter() {
                let start = std::time::Instant::now();
                // Workers may still create files there.
                while std::fs::remove_dir_all(path).is_err()
                    && path.exists()
                    && start.elapsed() < PATIENCE
                {
                    std::thread::sleep(Duration::from_millis(10));
                }
            }
            last();
            let _ = emulate_default_handler(signal);
        }
    };
    thread::spawn("signals", work).map(drop)
}

fn open_dir(path: &Path) -> io::Result<File> {
    let flags = libc::O_DIRECTORY | libc::O_NOFOLLOW;
    File::options().read(true).custom_flags(flags).open(path)
}

/// Removes the abandoned workplaces in a directory.
fn sweep(parent: &Path) {
    abandoned(parent).for_each(AbandonedWorkplace::remove);
}

/// A workplace without a process. It stays locked while this value is alive, so that no process uses it.
pub struct AbandonedWorkplace {
    path: PathBuf,
    _lock: File,
}

impl AbandonedWorkplace {
    /// Returns the path of the directory.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Returns the bytes of all files in it and the time of the latest change, in nanoseconds since 1970.
    pub fn size_and_change(&self) -> (u64, i64) {
        size_and_change(&self.path)
    }

    /// Removes the workplace. If that fails, the next export tries again.
    pub fn remove(self) {
        take_names_back(&self.path);
        let _ = std::fs::remove_dir_all(&self.path);
    }
}

/// Adds up the files at and below a path; files that cannot be inspected are skipped.
fn size_and_change(path: &Path) -> (u64, i64) {
    let Ok(meta) = path.symlink_metadata() else {
        return (0, 0);
    };
    let seconds = meta.ctime().saturating_mul(1_000_000_000);
    let own = seconds.saturating_add(meta.ctime_nsec());
    if !meta.is_dir() {
        return (meta.len(), own);
    }
    let below = std::fs::read_dir(path).into_iter().flatten().flatten();
    below.fold((0, own), |(bytes, changed), entry| {
        let (more, at) = size_and_change(&entry.path());
        (bytes + more, changed.max(at))
    })
}

/// Returns the abandoned workplaces in a directory. Those of other users are skipped.
pub fn abandoned(parent: &Path) -> impl Iterator<Item = AbandonedWorkplace> {
    let caller = rustix::process::geteuid().as_raw();
    let entries = std::fs::read_dir(parent).into_iter().flatten().flatten();
    entries.filter_map(move |entry| {
        let is_one = entry.file_name().as_bytes().starts_with(PREFIX.as_bytes());
        let path = entry.path();
        let dir = is_one.then(|| open_dir(&path).ok()).flatten()?;
        let is_own = dir.metadata().is_ok_and(|meta| meta.uid() == caller);
        let is_free = is_own && flock(&dir, FlockOperation::NonBlockingLockExclusive).is_ok();
        is_free.then_some(AbandonedWorkplace { path, _lock: dir })
    })
}

/// Removes files that a process had renamed from `WHOLE` before it died without finishing.
fn take_names_back(workplace: &Path) {
    let list = std::fs::read(workplace.join(NAMING)).unwrap_or_default();
    let Some(whole) = list.strip_suffix(b"\0") else {
        return;
    };
    let named: Vec<(u64, &OsStr)> = whole
        .split(|&b| b == 0)
        .filter_map(|line| {
            let at = line.iter().position(|&b| b == b' ')?;
            let inode = std::str::from_utf8(&line[..at]).ok()?.parse().ok()?;
            let name = Path::new(OsStr::from_bytes(&line[at + 1..])).file_name()?;
            Some((inode, name))
        })
        .collect();
    let is_complete = |name: &OsStr| workplace.join(WHOLE).join(name).symlink_metadata().is_err();
    let Some(parent) = workplace.parent() else {
        return;
    };
    if named.last().is_none_or(|(_, last)| is_complete(last)) {
        return;
    }
    for (inode, name) in named {
        let path = parent.join(name);
        if path
            .symlink_metadata()
            .is_ok_and(|meta| meta.ino() == inode)
        {
            let _ = std::fs::remove_file(path);
        }
    }
}

/// Renames a file or a directory, if the new name is free.
pub fn rename_new(from: &Path, to: &Path) -> io::Result<()> {
    use rustix::fs::{CWD, RenameFlags, renameat_with};
    match renameat_with(CWD, from, CWD, to, RenameFlags::NOREPLACE) {
        // Not every file system supports RENAME_NOREPLACE.
        Err(rustix::io::Errno::INVAL) if from.is_dir() => {
            std::fs::create_dir(to).and_then(|()| std::fs::rename(from, to))
        }
        Err(rustix::io::Errno::INVAL) => {
            std::fs::hard_link(from, to).and_then(|()| std::fs::remove_file(from))
        }
        done => Ok(done?),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn names(dir: &Path) -> Vec<String> {
        let entries = std::fs::read_dir(dir).unwrap();
        let mut names: Vec<String> = entries
            .map(|entry| entry.unwrap().file_name().into_string().unwrap())
            .collect();
        names.sort();
        names
    }

    #[test]
    fn what_nobody_works_in_is_removed_by_the_next() {
        let dir = tempfile::tempdir().unwrap();
        let left = dir.path().join(format!("{PREFIX}1-1"));
        std::fs::create_dir_all(left.join("below")).unwrap();
        std::os::unix::fs::symlink("/", dir.path().join(format!("{PREFIX}link"))).unwrap();
        let first = Workplace::new_in(dir.path()).unwrap();
        let second = Workplace::new_in(dir.path()).unwrap();
        assert!(!left.exists() && first.path().is_dir() && second.path().is_dir());
        let mode = std::fs::metadata(first.path()).unwrap().mode();
        assert_eq!(mode & 0o777, 0o700);
        drop((first, second));
        assert_eq!(names(dir.path()), [format!("{PREFIX}link")]);
    }

    /// The process dies after each of the renames; the next export finds what it left.
    #[test]
    fn of_files_that_get_names_together_all_are_there_or_none() {
        for named in 0..=3 {
            let dir = tempfile::tempdir().unwrap();
            let work = Workplace::new_in(dir.path()).unwrap();
            let whole = work.path().join(WHOLE);
            std::fs::create_dir(&whole).unwrap();
            let all = ["c", "b", "a"].map(Path::new);
            for name in all {
                std::fs::write(whole.join(name), "x").unwrap();
            }
            work.name_all(&all).unwrap();
            assert_eq!(names(dir.path())[1..], ["a", "b", "c"]);
            for name in &all[named..] {
                std::fs::rename(dir.path().join(name), whole.join(name)).unwrap();
            }
            // Another file has taken one of the names since.
            if named == 2 {
                std::fs::write(dir.path().join("new"), "y").unwrap();
                std::fs::rename(dir.path().join("new"), dir.path().join("b")).unwrap();
            }
            OPEN.lock().retain(|path| path != work.path());
            let path = work.path().to_owned();
            let Workplace { _lock, .. } = &work;
            flock(_lock, FlockOperation::Unlock).unwrap();
            let _next = Workplace::new_in(dir.path()).unwrap();
            assert!(!path.exists());
            let want: &[&str] = match named {
                3 => &["a", "b", "c"],
                2 => &["b"],
                _ => &[],
            };
            assert_eq!(names(dir.path())[1..], *want, "{named}");
        }
    }
}
