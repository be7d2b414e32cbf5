//! The system calls by which a checkout changes the disk: the seam at which tests inject failures.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;

use rustix::fs::{Advice, fadvise};

use crate::dir::Dir;

/// Every change that a layer makes to the disk. A failed call may have taken effect in part.
pub trait Storage: Send + Sync {
    /// Creates a new file, open for reading and writing. The caller settles its permissions after filling it.
    fn create(&self, dir: &Dir, name: &str) -> io::Result<File>;

    /// Writes all of `bytes` at `offset`.
    fn write_at(&self, file: &File, bytes: &[u8], offset: u64) -> io::Result<()>;

    /// Truncates a file to `len` bytes, or appends zeros.
    fn set_len(&self, file: &File, len: u64) -> io::Result<()>;

    /// Begins to write the file's content to the disk, so that `sync` of many files waits less for each of them.
    fn begin_sync(&self, _file: &File) {}

    /// Makes the file's content durable: returns once it would survive a loss of power.
    fn sync(&self, file: &File) -> io::Result<()>;

    /// Gives an open, unnamed file a new name.
    fn link(&self, file: &File, dir: &Dir, name: &str) -> io::Result<()>;

    /// Gives a file a name that must be free, otherwise `EEXIST`. The first name may or may not remain.
    fn name_once(&self, dir: &Dir, from: &str, to: &str) -> io::Result<()>;

    /// Renames a file; replaces a file that has the new name.
    fn rename(&self, dir: &Dir, from: &str, to: &str) -> io::Result<()>;

    /// Makes the names in a directory durable: returns once they would survive a loss of power.
    fn sync_dir(&self, dir: &Dir) -> io::Result<()>;

    /// Removes the name of a file.
    fn remove(&self, dir: &Dir, name: &str) -> io::Result<()>;
}

/// The real disk.
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
        // Dropping pages from the cache writes them first. `sync` reports errors.
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

#[doc(hidden)]
pub mod faulty {
    //! A disk that fails at a chosen call, for tests.

    use super::*;
    use std::sync::atomic::{AtomicU64, Ordering};

    /// Fails call number `at` (from 0) with `errno`; with `dead`, all later calls fail, too.
    pub struct Faulty {
        /// The number of the failing call, from 0.
        pub at: u64,
        /// The error of the failing call.
        pub errno: i32,
        /// Whether the process dies at the call: all later calls fail.
        pub dead: bool,
        /// Whether a naming call takes effect before it fails.
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

        /// Makes naming calls take effect and lose the response.
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
                // A full disk accepts a part of the bytes.
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
