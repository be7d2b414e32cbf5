//! Who writes in a layer: one process, on one host.
//!
//! The lock is flock(2) on the file `holder`, so it ends with its process. The file names host and process
//! for people; what it says is never acted upon.

use std::fs::File;
use std::io::{self, Read};
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::Path;
use std::time::Duration;

use rustix::fs::{FlockOperation, flock};
use rustix::io::Errno;

use crate::error::{Error, ErrorKind, Result};

/// The name of the lock file.
pub const NAME: &str = "holder";

/// Longest text that is shown of who holds a layer.
const LONGEST: u64 = 200;

/// Who only looks (`Holder::look`) has the lock for a moment: long enough ago by then.
const MOMENT: Duration = Duration::from_millis(50);

/// The right to write in a layer, as long as it lives.
#[derive(Debug)]
pub struct Holder {
    _file: File,
}

impl Holder {
    /// Takes the layer in `dir`; EBUSY, with the name of the other, if somebody has it.
    pub fn take(dir: &Path) -> Result<Self> {
        let path = dir.join(NAME);
        let about = |e: io::Error| Error::from(e).about(path.display());
        let file = File::options()
            .read(true)
            .write(true)
            .create(true)
            .truncate(false)
            .open(&path)
            .map_err(about)?;
        let take = || lock(&file, FlockOperation::NonBlockingLockExclusive).map_err(about);
        if !take()? {
            std::thread::sleep(MOMENT);
            if !take()? {
                let busy = ErrorKind::Os(libc::EBUSY);
                let message = format!("{}: {} writes in this checkout", dir.display(), who(&file));
                return Err(Error::new(busy, message));
            }
        }
        // A lock on a file that was deleted since keeps nobody out.
        let is_there = std::fs::metadata(&path).is_ok_and(|there| {
            let ours = file.metadata();
            ours.is_ok_and(|ours| (ours.dev(), ours.ino()) == (there.dev(), there.ino()))
        });
        if !is_there {
            let message = "it was discarded by another process";
            return Err(Error::new(ErrorKind::Stale, message).about(dir.display()));
        }
        let host = std::fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_default();
        let who = format!("host {}, process {}\n", host.trim(), std::process::id());
        file.set_len(0).map_err(about)?;
        file.write_all_at(who.as_bytes(), 0).map_err(about)?;
        Ok(Self { _file: file })
    }

    /// Who has the layer in `dir` now; `None` if nobody has.
    pub fn look(dir: &Path) -> Result<Option<String>> {
        let path = dir.join(NAME);
        let about = |e: io::Error| Error::from(e).about(path.display());
        let file = match File::open(&path) {
            Ok(file) => file,
            Err(e) if e.kind() == io::ErrorKind::NotFound => return Ok(None),
            Err(e) => return Err(about(e)),
        };
        let is_free = lock(&file, FlockOperation::NonBlockingLockShared).map_err(about)?;
        Ok((!is_free).then(|| who(&file)))
    }
}

/// Whether the lock was to be had.
fn lock(file: &File, operation: FlockOperation) -> io::Result<bool> {
    match flock(file, operation) {
        Ok(()) => Ok(true),
        Err(Errno::WOULDBLOCK) => Ok(false),
        Err(e) => Err(e.into()),
    }
}

/// What the file says of who has it.
fn who(file: &File) -> String {
    let mut who = String::new();
    match file.take(LONGEST).read_to_string(&mut who) {
        Ok(_) if !who.trim().is_empty() => who.trim().to_owned(),
        _ => "another process".to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_second_is_told_who_is_first() {
        let dir = tempfile::tempdir().unwrap();
        assert_eq!(Holder::look(dir.path()).unwrap(), None);
        let first = Holder::take(dir.path()).unwrap();
        let refused = Holder::take(dir.path()).unwrap_err();
        assert_eq!(refused.errno(), libc::EBUSY);
        let process = format!("process {}", std::process::id());
        assert!(
            refused.message.contains(&format!("{process} ")),
            "{refused}"
        );
        assert!(
            Holder::look(dir.path())
                .unwrap()
                .unwrap()
                .ends_with(&process)
        );
        drop(first);
        assert_eq!(Holder::look(dir.path()).unwrap(), None);
        Holder::take(dir.path()).unwrap();
    }
}
