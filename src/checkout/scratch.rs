//! A scratch file: what a program is writing, before anybody knows what it will be.
//!
//! It has no name, so that nothing is left of it when the process dies, and it is sparse: what was never
//! written takes no space and reads as zeros.

use std::fs::File;
use std::io;
use std::ops::Range;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::Arc;

use rustix::fs::{FallocateFlags, SeekFrom, fallocate, seek};

use super::storage::Storage;
use crate::content::Content;
use crate::error::{Error, ErrorKind, Result};

/// Bytes under construction, on the disk of the layer. All methods may be called from any thread.
pub struct Scratch {
    file: File,
    storage: Arc<dyn Storage>,
}

impl Scratch {
    /// An empty one on the disk that `dir` is on.
    pub fn new(dir: &Path, storage: Arc<dyn Storage>) -> io::Result<Self> {
        let file = tempfile::tempfile_in(dir)?;
        Ok(Self { file, storage })
    }

    /// Bytes in all.
    pub fn len(&self) -> io::Result<u64> {
        Ok(self.file.metadata()?.len())
    }

    pub fn is_empty(&self) -> io::Result<bool> {
        Ok(self.len()? == 0)
    }

    pub fn write_at(&self, bytes: &[u8], offset: u64) -> io::Result<()> {
        self.storage.write_at(&self.file, bytes, offset)
    }

    /// Cuts it off, or makes it longer by zeros.
    pub fn set_len(&self, len: u64) -> io::Result<()> {
        self.storage.set_len(&self.file, len)
    }

    /// Makes room, or a hole, as fallocate(2) with these flags does.
    pub fn allocate(&self, mode: i32, offset: u64, len: u64) -> io::Result<()> {
        let flags = u32::try_from(mode).map_err(|_| io::ErrorKind::InvalidInput)?;
        let flags = FallocateFlags::from_bits_retain(flags);
        Ok(fallocate(&self.file, flags, offset, len)?)
    }

    /// Reads as much as there is from `offset`, at most all of `buf`; says how many bytes.
    pub fn read_at(&self, buf: &mut [u8], offset: u64) -> io::Result<usize> {
        let mut have = 0;
        while let Some(rest) = buf.get_mut(have..).filter(|rest| !rest.is_empty()) {
            match self.file.read_at(rest, offset.saturating_add(have as u64)) {
                Ok(0) => break,
                Ok(n) => have += n,
                Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
                Err(e) => return Err(e),
            }
        }
        Ok(have)
    }

    /// The next bytes from `from` on that were written; `None` if there are only holes.
    pub fn written(&self, from: u64) -> io::Result<Option<Range<u64>>> {
        // The position of the descriptor moves, but nothing here reads or writes at it.
        let start = match seek(&self.file, SeekFrom::Data(from)) {
            Ok(start) => start,
            Err(rustix::io::Errno::NXIO) => return Ok(None),
            Err(e) => return Err(e.into()),
        };
        Ok(Some(start..seek(&self.file, SeekFrom::Hole(start))?))
    }
}

impl Content for Scratch {
    fn len(&self) -> u64 {
        Self::len(self).unwrap_or(0)
    }

    fn read_at(&self, offset: u64, buf: &mut [u8]) -> Result<()> {
        let have = Self::read_at(self, buf, offset)?;
        if have < buf.len() {
            return Err(Error::new(ErrorKind::Stale, "it was cut off meanwhile"));
        }
        Ok(())
    }

    fn written(&self, from: u64) -> Result<Option<Range<u64>>> {
        Ok(Self::written(self, from)?)
    }
}

#[cfg(test)]
mod tests {
    use super::super::storage::Disk;
    use super::*;

    #[test]
    fn holes_read_as_zeros_and_are_passed_over() {
        let dir = tempfile::tempdir().unwrap();
        let scratch = Scratch::new(dir.path(), Arc::new(Disk)).unwrap();
        assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 0);
        assert!(scratch.is_empty().unwrap());
        scratch.write_at(b"abc", 0).unwrap();
        scratch.set_len(8 << 20).unwrap();
        scratch.write_at(b"xyz", 4 << 20).unwrap();
        let mut buf = [9; 5];
        assert_eq!(scratch.read_at(&mut buf, (4 << 20) - 1).unwrap(), 5);
        assert_eq!(&buf, b"\0xyz\0");
        assert_eq!(scratch.read_at(&mut buf, (8 << 20) - 2).unwrap(), 2);
        let mut seen = Vec::new();
        let mut at = 0;
        while let Some(range) = scratch.written(at).unwrap() {
            at = range.end;
            seen.push(range);
        }
        // A file system may know no holes: then all of it counts as written.
        let holds = |n: u64| seen.iter().any(|range| range.contains(&n));
        assert!(holds(0) && holds(4 << 20), "{seen:?}");
        scratch.set_len(2).unwrap();
        assert_eq!(scratch.read_at(&mut buf, 0).unwrap(), 2);
        assert_eq!(&buf[..2], b"ab");
    }
}
