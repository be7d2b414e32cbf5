//! A copy that is being made: blocks come in any order, and are checksummed on their way.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::sync::Arc;

use xxhash_rust::xxh3::xxh3_64;

use super::copy::{Checked, KeptCopy};
use super::sums::{About, BLOCK, Sums};
use super::{KeptDir, PART};

/// A copy that has no name yet. Dropping it gives it up.
#[derive(Debug)]
pub struct Making {
    dir: Arc<KeptDir>,
    key: String,
    /// Locked for this process alone.
    file: File,
    len: u64,
    sums: Vec<Option<u64>>,
    finished: bool,
}

impl Making {
    pub(super) fn new(dir: Arc<KeptDir>, key: &str, file: File, len: u64) -> Self {
        let blocks = usize::try_from(len.div_ceil(BLOCK)).unwrap_or(usize::MAX);
        Self {
            dir,
            key: key.to_owned(),
            file,
            len,
            sums: vec![None; blocks],
            finished: false,
        }
    }

    pub(super) fn file(&self) -> &File {
        &self.file
    }

    /// Returns the first block from `from` on that is missing.
    pub fn missing(&self, from: u64) -> Option<u64> {
        let from = usize::try_from(from)
            .unwrap_or(usize::MAX)
            .min(self.sums.len());
        let found = self.sums[from..].iter().position(Option::is_none)?;
        Some((from + found) as u64)
    }

    /// Returns the bytes of a block.
    pub fn bytes_of(&self, block: u64) -> usize {
        let left = self.len.saturating_sub(block.saturating_mul(BLOCK));
        usize::try_from(left.min(BLOCK)).unwrap_or(0)
    }

    /// Writes a block, all of it.
    pub fn put(&mut self, block: u64, bytes: &[u8]) -> io::Result<()> {
        let at = usize::try_from(block).unwrap_or(usize::MAX);
        if bytes.len() != self.bytes_of(block) || at >= self.sums.len() {
            return Err(io::ErrorKind::InvalidInput.into());
        }
        self.file.write_all_at(bytes, block.saturating_mul(BLOCK))?;
        self.sums[at] = Some(xxh3_64(bytes));
        Ok(())
    }

    /// Gives it its name, if all blocks are there, and opens it.
    pub fn finish(mut self, about: About) -> io::Result<KeptCopy> {
        let blocks: Option<Vec<u64>> = self.sums.iter().copied().collect();
        let blocks = blocks.ok_or(io::ErrorKind::UnexpectedEof)?;
        let sums = Sums {
            about,
            len: self.len,
            blocks,
        };
        self.dir.finish(&self.key, &self.file, &sums)?;
        self.finished = true;
        // The lock goes with it.
        let file = self.file.try_clone()?;
        let checked = Checked::all(&file.metadata()?, sums.blocks);
        Ok(KeptCopy::new(&self.key, file, self.len, Arc::new(checked)))
    }
}

impl Drop for Making {
    fn drop(&mut self) {
        if !self.finished {
            // What stays is removed by whoever makes room next.
            let _ = self.dir.dir.remove(&format!("{}{PART}", self.key));
        }
    }
}
