//! The bytes of one version that were fetched, in a file with holes, and a checksum for each of its blocks.
//!
//! A block is there if its bytes have its checksum: whatever was interrupted between the two, or lost with the power, is fetched
//! again. Several processes may fill one file; they write the same. Without a directory both files are in memory only.

use std::fs::{DirBuilder, File, OpenOptions};
use std::io;
use std::ops::Range;
use std::os::unix::fs::{DirBuilderExt, FileExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use rustix::fs::{FallocateFlags, MemfdFlags, fallocate, memfd_create};
use xxhash_rust::xxh3::xxh3_64;

use super::blocks::{BLOCK, bytes_of};

/// Bytes of a checksum.
const SUM: u64 = 8;

/// The bytes of one version.
pub(super) struct DiskFile {
    bytes: File,
    sums: File,
    size: u64,
    /// Something may be there that an earlier process fetched.
    inherited: bool,
}

/// Returns the checksum of a block, which is never that of a hole.
fn sum(block: &[u8]) -> [u8; SUM as usize] {
    (xxh3_64(block) | 1).to_le_bytes()
}

/// Returns the two files of a version.
pub(super) fn paths(dir: &Path, key: &str) -> [PathBuf; 2] {
    ["bytes", "sums"].map(|ending| dir.join(format!("{key}.{ending}")))
}

impl DiskFile {
    /// Opens the files of a version in a directory, which is made for this user alone if it is not there.
    pub(super) fn open(dir: &Path, key: &str, size: u64) -> io::Result<Self> {
        DirBuilder::new().recursive(true).mode(0o700).create(dir)?;
        let mut options = OpenOptions::new();
        options
            .read(true)
            .write(true)
            .create(true)
            .truncate(false)
            .mode(0o600)
            .custom_flags(libc::O_NOFOLLOW);
        let [bytes, sums] = paths(dir, key);
        let (bytes, sums) = (options.open(bytes)?, options.open(sums)?);
        let inherited = sums.metadata()?.len() > 0;
        Self::sized(bytes, sums, size, inherited)
    }

    /// Makes files in memory.
    pub(super) fn in_memory(size: u64) -> io::Result<Self> {
        let make = || memfd_create(c"npyfs", MemfdFlags::CLOEXEC).map(File::from);
        Self::sized(make()?, make()?, size, false)
    }

    fn sized(bytes: File, sums: File, size: u64, inherited: bool) -> io::Result<Self> {
        if bytes.metadata()?.len() != size {
            bytes.set_len(size)?;
        }
        let len = size.div_ceil(BLOCK).saturating_mul(SUM);
        if sums.metadata()?.len() != len {
            sums.set_len(len)?;
        }
        Ok(Self {
            bytes,
            sums,
            size,
            inherited,
        })
    }

    /// Returns true if a block of an earlier process is there, with its checksum.
    pub(super) fn inherits(&self, block: u64) -> bool {
        self.inherited && self.check(block).unwrap_or(false)
    }

    fn check(&self, block: u64) -> io::Result<bool> {
        let mut known = [0; SUM as usize];
        self.sums
            .read_exact_at(&mut known, block.saturating_mul(SUM))?;
        if known == [0; SUM as usize] {
            return Ok(false);
        }
        let range = bytes_of(&(block..block + 1), self.size);
        let mut bytes = [0; BLOCK as usize];
        let bytes = &mut bytes[..usize::try_from(range.end - range.start).unwrap_or(0)];
        self.bytes.read_exact_at(bytes, range.start)?;
        Ok(sum(bytes) == known)
    }

    /// Writes whole blocks, the first of which begins at `start`: their bytes, then their checksums.
    pub(super) fn write(&self, start: u64, bytes: &[u8]) -> io::Result<()> {
        self.bytes.write_all_at(bytes, start)?;
        let sums: Vec<u8> = bytes.chunks(BLOCK as usize).flat_map(sum).collect();
        self.sums.write_all_at(&sums, start / BLOCK * SUM)
    }

    /// Reads bytes of blocks that are there.
    pub(super) fn read(&self, buf: &mut [u8], offset: u64) -> io::Result<()> {
        self.bytes.read_exact_at(buf, offset)
    }

    /// Gives the room of some blocks back.
    pub(super) fn punch(&self, blocks: &Range<u64>) -> io::Result<()> {
        let count = blocks.end.saturating_sub(blocks.start);
        let zeros = vec![0; usize::try_from(count.saturating_mul(SUM)).unwrap_or(0)];
        // Their checksums first: what is a hole has none.
        self.sums
            .write_all_at(&zeros, blocks.start.saturating_mul(SUM))?;
        let range = bytes_of(blocks, self.size);
        let flags = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
        Ok(fallocate(
            &self.bytes,
            flags,
            range.start,
            range.end - range.start,
        )?)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_interrupted_is_not_there() {
        let dir = tempfile::tempdir().unwrap();
        let dir = dir.path().join("cache");
        let size = 3 * BLOCK + 5;
        let open = || DiskFile::open(&dir, "k", size).unwrap();
        let block = vec![7; BLOCK as usize];
        open().write(BLOCK, &block).unwrap();
        open().write(3 * BLOCK, &[1; 5]).unwrap();
        let file = open();
        assert!(file.inherits(1) && file.inherits(3) && !file.inherits(0) && !file.inherits(2));
        // Bytes without a checksum, and others than it is of.
        let [bytes, _] = paths(&dir, "k");
        let raw = OpenOptions::new().write(true).open(bytes).unwrap();
        raw.write_all_at(&block, 2 * BLOCK).unwrap();
        raw.write_all_at(&[8], BLOCK).unwrap();
        assert!(!file.inherits(1) && !file.inherits(2) && file.inherits(3));
        file.punch(&(3..4)).unwrap();
        assert!(!file.inherits(3));
    }
}
