//! Who writes in a layer: one process, on one host.
//!
//! The lock is flock(2) on the file `holder`, so it ends with its process. The file names host and process
//! for people; what it says is never acted upon.

use std::fs::File;
use std::io::{self, Read};
use std::path::Path;

use rustix::fs::{FlockOperation, flock};
use rustix::io::Errno;

use crate::error::{Error, ErrorKind, Result};

/// The name of the lock file.
pub const NAME: &str = "holder";

/// Longest text that is shown of who holds a layer.
const LONGEST: u64 = 200;

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
        let mut file = File::options()
            .read(true)
            .write(true)
            .create(true)
            .truncate(false)
            .open(&path)
            .map_err(about)?;
        match flock(&file, FlockOperation::NonBlockingLockExclusive) {
            Ok(()) => {}
            Err(Errno::WOULDBLOCK) => {
                let mut who = String::new();
                let read = (&mut file).take(LONGEST).read_to_string(&mut who);
                let who = match read {
                    Ok(_) if !who.trim().is_empty() => who.trim().to_owned(),
                    _ => "another process".to_owned(),
                };
                let busy = ErrorKind::Os(libc::EBUSY);
                let message = format!("{}: {who} writes in this checkout", dir.display());
                return Err(Error::new(busy, message));
            }
            Err(e) => return Err(about(e.into())),
        }
        let host = std::fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_default();
        let who = format!("host {}, process {}\n", host.trim(), std::process::id());
        file.set_len(0).map_err(about)?;
        std::os::unix::fs::FileExt::write_all_at(&file, who.as_bytes(), 0).map_err(about)?;
        Ok(Self { _file: file })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_second_is_told_who_is_first() {
        let dir = tempfile::tempdir().unwrap();
        let first = Holder::take(dir.path()).unwrap();
        let refused = Holder::take(dir.path()).unwrap_err();
        assert_eq!(refused.errno(), libc::EBUSY);
        let process = format!("process {} ", std::process::id());
        assert!(refused.message.contains(&process), "{}", refused.message);
        drop(first);
        Holder::take(dir.path()).unwrap();
    }
}
