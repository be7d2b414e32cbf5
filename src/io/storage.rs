//! The calls by which a checkout changes something on the disk: the seam at which tests make it fail.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;

use rustix::fs::{Advice, fadvise};

use crate::io::dir::Dir;

/// Every change a layer makes to the disk. A failed call may have been done in part.
pub trait Storage: Send + Sync {
    /// Makes a file that did not exist, open for reading and writing. Whoever has filled it settles its rights.
    fn create(&self, dir: &Dir, name: &str) -> io::Result<File>;

    /// Writes all of `bytes` at `offset`.
    fn write_at(&self, file: &File, bytes: &[u8], offset: u64) -> io::Result<()>;

    /// Cuts a file off at `len` bytes, or adds zeros.
    fn set_len(&self, file: &File, len: u64) -> io::Result<()>;

    /// Begins to write the file's content to the disk, so that `sync` of many files waits less for each.
    fn begin_sync(&self, _file: &File) {}

    /// Returns once the file's content would survive a loss of power.
    fn sync(&self, file: &File) -> io::Result<()>;

    /// Gives an open file that has no name a new one.
    fn link(&self, file: &File, dir: &Dir, name: &str) -> io::Result<()>;

    /// Gives a file a name that nothing else has; `EEXIST` if something has. Whether the first name is left is not said.
    fn name_once(&self, dir: &Dir, from: &str, to: &str) -> io::Result<()>;

    /// Gives a file another name, in the place of a file that may have it.
    fn rename(&self, dir: &Dir, from: &str, to: &str) -> io::Result<()>;

    /// Returns once the names in a directory would survive a loss of power.
    fn sync_dir(&self, dir: &Dir) -> io::Result<()>;

    /// Removes the name of a file.
    fn remove(&self, dir: &Dir, name: &str) -> io::Result<()>;
}

/// The disk itself.
pub struct Disk;

impl Storage for Disk {
    fn create(&self, dir: &Dir, name: &str) -> io::Result<File> {
        dir.create(name)
    }

    fn write_at(&self, file: &File, bytes: &[u8], offset: u64) -> io::Result<()> {
        file.write_all_at(bytes, offset)
    }

    fn set_len(&self, file: &File, len: u64) -> io::Result<()> {
        file.set_len(len)
    }

    fn begin_sync(&self, file: &File) {
        // What is to be dropped from memory is written first. That it may fail, `sync` finds out.
        let _ = fadvise(file, 0, None, Advice::DontNeed);
    }

    fn sync(&self, file: &File) -> io::Result<()> {
        file.sync_all()
    }

    fn link(&self, file: &File, dir: &Dir, name: &str) -> io::Result<()> {
        dir.link(file, name)
    }

    fn name_once(&self, dir: &Dir, from: &str, to: &str) -> io::Result<()> {
        dir.name_once(from, to)
    }

    fn rename(&self, dir: &Dir, from: &str, to: &str) -> io::Result<()> {
        dir.rename(from, to)
    }

    fn sync_dir(&self, dir: &Dir) -> io::Result<()> {
        dir.sync()
    }

    fn remove(&self, dir: &Dir, name: &str) -> io::Result<()> {
        dir.remove(name)
    }
}

#[cfg(test)]
pub mod faulty {
    //! A disk that fails at a chosen call.

    use super::*;
    use std::sync::atomic::{AtomicU64, Ordering};

    /// Fails call number `at` (from 0 on) with `errno`, and with `dead` every later one as well.
    pub struct Faulty {
        /// The number of the call that fails, from 0 on.
        pub at: u64,
        /// The error that it fails with.
        pub errno: i32,
        /// True if the process died there, as far as the disk can tell.
        pub dead: bool,
        /// True if a name is given and the answer is lost.
        done: bool,
        calls: AtomicU64,
    }

    impl Faulty {
        /// Creates a disk whose call number `at` fails with `errno`.
        pub fn new(at: u64, errno: i32, dead: bool) -> Self {
            let calls = AtomicU64::new(0);
            Self {
                at,
                errno,
                dead,
                done: false,
                calls,
            }
        }

        /// Has the answer lost when a name is given, instead of the name.
        pub fn answering(self) -> Self {
            Self { done: true, ..self }
        }

        /// Returns the number of calls so far.
        pub fn calls(&self) -> u64 {
            self.calls.load(Ordering::Relaxed)
        }

        fn judge(&self) -> io::Result<()> {
            let call = self.calls.fetch_add(1, Ordering::Relaxed);
            if call == self.at || (self.dead && call > self.at) {
                return Err(io::Error::from_raw_os_error(self.errno));
            }
            Ok(())
        }
    }

    impl Storage for Faulty {
        fn create(&self, dir: &Dir, name: &str) -> io::Result<File> {
            self.judge()?;
            Disk.create(dir, name)
        }

        fn write_at(&self, file: &File, bytes: &[u8], offset: u64) -> io::Result<()> {
            if let Err(e) = self.judge() {
                // A full disk takes a part.
                let half = bytes.get(..bytes.len() / 2).unwrap_or_default();
                Disk.write_at(file, half, offset)?;
                return Err(e);
            }
            Disk.write_at(file, bytes, offset)
        }

        fn set_len(&self, file: &File, len: u64) -> io::Result<()> {
            self.judge()?;
            Disk.set_len(file, len)
        }

        fn sync(&self, file: &File) -> io::Result<()> {
            self.judge()?;
            Disk.sync(file)
        }

        fn link(&self, file: &File, dir: &Dir, name: &str) -> io::Result<()> {
            self.judge()?;
            Disk.link(file, dir, name)
        }

        fn name_once(&self, dir: &Dir, from: &str, to: &str) -> io::Result<()> {
            let judged = self.judge();
            if judged.is_ok() || self.done {
                Disk.name_once(dir, from, to)?;
            }
            judged
        }

        fn rename(&self, dir: &Dir, from: &str, to: &str) -> io::Result<()> {
            self.judge()?;
            Disk.rename(dir, from, to)
        }

        fn sync_dir(&self, dir: &Dir) -> io::Result<()> {
            self.judge()?;
            Disk.sync_dir(dir)
        }

        fn remove(&self, dir: &Dir, name: &str) -> io::Result<()> {
            self.judge()?;
            Disk.remove(dir, name)
        }
    }
}
