//! How far the kernel reads ahead, which it notes for each handle when the handle is opened.
//!
//! The setting belongs to the mount; a handle keeps what it was a moment after the open was answered. Only root may
//! change it.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use rustix::fs::{Access, Dev, access, major, minor};

/// How long the least read-ahead stays after an open that needs it: until the kernel has noted it for the handle. Other
/// handles that are opened meanwhile have it as well.
const NOTED: Duration = Duration::from_millis(10);

/// The setting of one mount.
pub(super) struct ReadAhead {
    setting: File,
    /// KiB for files that are read in order.
    usual: u64,
    /// KiB of a page.
    least: u64,
    now: Mutex<Setting>,
}

struct Setting {
    kib: u64,
    /// When the last handle was opened for which the kernel is to ask page by page.
    by_page: Option<Instant>,
}

impl ReadAhead {
    /// Returns true if the setting can be changed, as far as can be told before there is a mount.
    pub(super) fn is_settable() -> bool {
        access("/sys/class/bdi", Access::WRITE_OK).is_ok()
    }

    /// Raises the setting of a mount to `kib`. Must follow the handshake, which sets the kernel's proposal: 128 KiB,
    /// and no more.
    pub(super) fn raise(device: Dev, kib: u64) -> Result<Self, String> {
        let path = format!(
            "/sys/class/bdi/{}:{}/read_ahead_kb",
            major(device),
            minor(device)
        );
        let path = PathBuf::from(path);
        let refused = |e: io::Error| format!("{}: {e}", path.display());
        let setting = File::options().write(true).open(&path).map_err(refused)?;
        let own = Self {
            setting,
            usual: kib,
            least: rustix::param::page_size() as u64 >> 10,
            now: Mutex::new(Setting { kib, by_page: None }),
        };
        own.write(kib).map_err(refused)?;
        Ok(own)
    }

    fn write(&self, kib: u64) -> io::Result<()> {
        self.setting.write_all_at(kib.to_string().as_bytes(), 0)
    }

    /// Sets it for the handle that is about to be opened, and returns whether the kernel will ask for its pages one by
    /// one. If setting it fails, the handle has the setting of the one before.
    pub(super) fn set(&self, by_page: bool) -> bool {
        let mut now = self.now.lock();
        if by_page {
            now.by_page = Some(Instant::now());
        }
        let stays = now.by_page.is_some_and(|at| at.elapsed() < NOTED);
        let kib = if stays { self.least } else { self.usual };
        if now.kib != kib && self.write(kib).is_ok() {
            now.kib = kib;
        }
        now.kib == self.least
    }
}
