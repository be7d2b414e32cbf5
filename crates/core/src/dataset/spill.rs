//! Decoded blocks in a temporary file, for blocks that do not fit into the cache.
//!
//! A reader of rows that cut across chunks returns to each chunk once per row: without the file, chunks that do not fit
//! into the cache would be decoded repeatedly. The file is unnamed and ends with its handle. It has room for the blocks
//! of as many chunk rows as requests in flight may overlap.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::path::PathBuf;
use std::sync::atomic::{AtomicU64, Ordering};

use npyfs_io::file::handle::make_room;
use parking_lot::RwLock;

/// Bytes that a spill leaves free on the disk.
const LEAVE: u64 = 256 << 20;

/// The blocks of one chunk row that are present.
struct SpilledRow {
    chunk_row: Option<u64>,
    /// One bit per block.
    present: Vec<AtomicU64>,
}

/// Room for the blocks of several chunk rows on disk; a further chunk row replaces an earlier one.
pub struct Spill {
    file: File,
    /// Bytes of a block.
    slot: u64,
    /// Blocks of a chunk row.
    blocks: u64,
    chunk_rows: Vec<RwLock<SpilledRow>>,
}

/// Returns the directory for temporary files of any size: not in memory, if possible.
fn directory() -> PathBuf {
    match std::env::var_os("TMPDIR") {
        Some(named) => named.into(),
        None if PathBuf::from("/var/tmp").is_dir() => "/var/tmp".into(),
        None => std::env::temp_dir(),
    }
}

/// Creates an unnamed file for `need` bytes; an error names the directory that has no room.
pub fn nameless(need: u64) -> io::Result<File> {
    let dir = directory();
    let about = |e: io::Error| io::Error::new(e.kind(), format!("{}: {e}", dir.display()));
    let room = rustix::fs::statvfs(&dir).map_err(|e| about(e.into()))?;
    if room.f_bavail.saturating_mul(room.f_frsize) < need.saturating_add(LEAVE) {
        return Err(about(io::ErrorKind::StorageFull.into()));
    }
    tempfile::tempfile_in(&dir)
        // Its error does not tell whether descriptors are exhausted.
        .or_else(|_| {
            make_room();
            tempfile::tempfile_in(&dir)
        })
        .map_err(about)
}

impl Spill {
    /// Allocates `chunk_rows` chunk rows of `blocks` blocks of at most `slot` bytes; an error names the directory that
    /// has no room.
    pub fn new(slot: u64, blocks: u64, chunk_rows: u64) -> io::Result<Self> {
        let need = slot
            .checked_mul(blocks)
            .and_then(|chunk_row| chunk_row.checked_mul(chunk_rows.max(1)))
            .filter(|&n| i64::try_from(n).is_ok())
            .ok_or_else(|| io::Error::from(io::ErrorKind::FileTooLarge))?;
        let file = nameless(need)?;
        let words = usize::try_from(blocks.div_ceil(64)).map_err(io::Error::other)?;
        let kept = |_| {
            RwLock::new(SpilledRow {
                chunk_row: None,
                present: (0..words).map(|_| AtomicU64::new(0)).collect(),
            })
        };
        Ok(Self {
            file,
            slot,
            blocks,
            chunk_rows: (0..chunk_rows.max(1)).map(kept).collect(),
        })
    }

    fn place(&self, block: u64) -> (&RwLock<SpilledRow>, u64, u64, u64) {
        let (chunk_row, number) = (block / self.blocks, block % self.blocks);
        let place = chunk_row % self.chunk_rows.len() as u64;
        // Less than the length, which is a usize.
        let kept = &self.chunk_rows[place as usize];
        let offset = (place * self.blocks + number) * self.slot;
        (kept, chunk_row, number, offset)
    }

    /// Returns true if a block is present.
    pub fn has(&self, block: u64) -> bool {
        let (kept, chunk_row, number, _) = self.place(block);
        kept.read().has(chunk_row, number)
    }

    /// Returns true if a block is present, without waiting; false while the chunk row is about to change.
    pub fn has_for_sure(&self, block: u64) -> bool {
        let (kept, chunk_row, number, _) = self.place(block);
        kept.try_read()
            .is_some_and(|kept| kept.has(chunk_row, number))
    }

    /// Fills `buf` from byte `at` of a block; false if the block is not present.
    pub fn read(&self, block: u64, at: u64, buf: &mut [u8]) -> io::Result<bool> {
        let (kept, chunk_row, number, offset) = self.place(block);
        let kept = kept.read();
        if !kept.has(chunk_row, number) {
            return Ok(false);
        }
        self.file.read_exact_at(buf, offset + at)?;
        Ok(true)
    }

    /// Stores a block; `write` is given a function that stores bytes at an offset in the block.
    pub fn put<E: From<io::Error>>(
        &self,
        block: u64,
        write: impl FnOnce(&mut dyn FnMut(u64, &[u8]) -> io::Result<()>) -> Result<(), E>,
    ) -> Result<(), E> {
        let (lock, chunk_row, number, offset) = self.place(block);
        let kept = loop {
            let kept = lock.read();
            if kept.chunk_row == Some(chunk_row) {
                break kept;
            }
            drop(kept);
            let mut kept = lock.write();
            if kept.chunk_row != Some(chunk_row) {
                kept.chunk_row = Some(chunk_row);
                kept.present
                    .iter()
                    .for_each(|word| word.store(0, Ordering::Relaxed));
            }
        };
        write(&mut |at, bytes| {
            let end = at.saturating_add(bytes.len() as u64);
            if end > self.slot {
                return Err(io::ErrorKind::InvalidInput.into());
            }
            self.file.write_all_at(bytes, offset + at)
        })?;
        if let Some(word) = kept.word(number) {
            word.fetch_or(1 << (number % 64), Ordering::Release);
        }
        Ok(())
    }
}

impl SpilledRow {
    fn word(&self, number: u64) -> Option<&AtomicU64> {
        self.present.get(usize::try_from(number / 64).ok()?)
    }

    fn has(&self, chunk_row: u64, number: u64) -> bool {
        self.chunk_row == Some(chunk_row)
            && self
                .word(number)
                .is_some_and(|word| word.load(Ordering::Acquire) >> (number % 64) & 1 == 1)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn put(spill: &Spill, block: u64, value: u8) {
        spill
            .put(block, |write| {
                write(0, &[value; 100]).and_then(|()| write(100, &[value; 50]))
            })
            .unwrap();
    }

    #[test]
    fn blocks_of_two_chunk_rows_are_kept() {
        let spill = Spill::new(150, 70, 2).unwrap();
        let mut buf = [0; 20];
        assert!(!spill.read(69, 0, &mut buf).unwrap());
        put(&spill, 69, 1);
        put(&spill, 70, 2);
        assert!(spill.has(69) && spill.has(70) && !spill.has(71));
        assert!(spill.read(69, 90, &mut buf).unwrap());
        assert_eq!(buf, [1; 20]);
        // The third chunk row replaces the first.
        put(&spill, 140, 3);
        assert!(!spill.has(69) && spill.has(70));
        assert!(spill.read(140, 0, &mut buf).unwrap());
        assert_eq!(buf, [3; 20]);
    }

    #[test]
    fn more_than_a_block_is_refused_and_what_failed_is_not_there() {
        let spill = Spill::new(150, 2, 2).unwrap();
        let refused = spill.put(0, |write| write(100, &[0; 51]));
        assert_eq!(refused.unwrap_err().kind(), io::ErrorKind::InvalidInput);
        assert!(!spill.has(0));
        assert!(Spill::new(1 << 50, 1 << 10, 1).is_err());
    }
}
