//! A copy being made: by the thread that decodes its blocks, and by readers that contribute the bytes they read.

use std::collections::BTreeMap;
use std::fs::File;
use std::io;
use std::ops::Range;
use std::os::unix::fs::FileExt;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};

use xxhash_rust::xxh3::xxh3_64;

use super::copy::{About, BLOCK, Checked, KeptCopy, Sums};
use super::{KeptDir, PART};
use crate::content::Content;
use npyfs_base::error::{Error, Result};

/// A copy without a name yet. Dropping it discards it.
#[derive(Debug)]
pub struct Making {
    dir: Arc<KeptDir>,
    key: String,
    /// Locked exclusively by this process.
    file: File,
    len: u64,
    done: Mutex<Done>,
    finished: AtomicBool,
}

/// The blocks and parts of blocks that are written.
#[derive(Debug)]
struct Done {
    /// The checksum of each complete block.
    sums: Vec<Option<u64>>,
    /// The written ranges of incomplete blocks: from start to end.
    parts: BTreeMap<u64, u64>,
}

impl Done {
    /// Returns true if all of a part of a block is written.
    fn has(&self, part: &Range<u64>, block: u64) -> bool {
        let at = usize::try_from(block).unwrap_or(usize::MAX);
        let whole = !matches!(self.sums.get(at), Some(None));
        whole || {
            let before = self.parts.range(..=part.start).next_back();
            before.is_some_and(|(_, &end)| end >= part.end)
        }
    }

    /// Records that a part of a block is written; returns true if the block is complete.
    fn add(&mut self, part: Range<u64>, block: &Range<u64>) -> bool {
        let (mut start, mut end) = (part.start, part.end);
        let near = self.parts.range(block.start..block.end);
        let touching: Vec<(u64, u64)> = near
            .map(|(&from, &to)| (from, to))
            .filter(|&(from, to)| from <= end && to >= start)
            .collect();
        for (from, to) in touching {
            self.parts.remove(&from);
            (start, end) = (start.min(from), end.max(to));
        }
        if start <= block.start && end >= block.end {
            return true;
        }
        self.parts.insert(start, end);
        false
    }
}

impl Making {
    pub(super) fn new(dir: Arc<KeptDir>, key: &str, file: File, len: u64) -> Self {
        let blocks = usize::try_from(len.div_ceil(BLOCK)).unwrap_or(usize::MAX);
        let done = Done {
            sums: vec![None; blocks],
            parts: BTreeMap::new(),
        };
        Self {
            dir,
            key: key.to_owned(),
            file,
            len,
            done: Mutex::new(done),
            finished: AtomicBool::new(false),
        }
    }

    fn done(&self) -> MutexGuard<'_, Done> {
        // Nothing that can panic runs under the lock except allocation.
        self.done.lock().unwrap_or_else(|e| e.into_inner())
    }

    pub(super) fn file(&self) -> &File {
        &self.file
    }

    /// Returns the first missing block at or after `from`.
    pub fn missing(&self, from: u64) -> Option<u64> {
        let done = self.done();
        let from = usize::try_from(from)
            .unwrap_or(usize::MAX)
            .min(done.sums.len());
        let found = done.sums[from..].iter().position(Option::is_none)?;
        Some((from + found) as u64)
    }

    /// Returns the length of a block in bytes.
    pub fn bytes_of(&self, block: u64) -> usize {
        let left = self.len.saturating_sub(block.saturating_mul(BLOCK));
        usize::try_from(left.min(BLOCK)).unwrap_or(0)
    }

    fn note(&self, block: u64, sum: u64) {
        let mut done = self.done();
        let at = usize::try_from(block).unwrap_or(usize::MAX);
        if let Some(place) = done.sums.get_mut(at) {
            *place = Some(sum);
        }
        let start = block.saturating_mul(BLOCK);
        let inside = start..start.saturating_add(BLOCK);
        while let Some((&from, _)) = done.parts.range(inside.clone()).next() {
            done.parts.remove(&from);
        }
    }

    /// Writes a complete block.
    pub fn put(&self, block: u64, bytes: &[u8]) -> io::Result<()> {
        if bytes.is_empty() || bytes.len() != self.bytes_of(block) {
            return Err(io::ErrorKind::InvalidInput.into());
        }
        self.file.write_all_at(bytes, block.saturating_mul(BLOCK))?;
        self.note(block, xxh3_64(bytes));
        Ok(())
    }

    /// Writes the missing ones of the bytes from `offset` on. Returns the number of bytes written.
    pub fn add(&self, offset: u64, bytes: &[u8]) -> io::Result<u64> {
        let mut written = 0;
        let mut rest = bytes;
        let mut at = offset;
        while !rest.is_empty() && at < self.len {
            let block = at / BLOCK;
            let whole = block * BLOCK..(block * BLOCK).saturating_add(self.bytes_of(block) as u64);
            let n = usize::try_from(whole.end - at)
                .unwrap_or(usize::MAX)
                .min(rest.len());
            let (part, behind) = rest.split_at(n);
            let range = at..at + n as u64;
            let there = self.done().has(&range, block);
            if !there {
                if range == whole {
                    self.put(block, part)?;
                } else {
                    self.file.write_all_at(part, at)?;
                    let all = self.done().add(range, &whole);
                    if all {
                        // The part was written just now and is in the page cache.
                        let mut read = vec![0; self.bytes_of(block)];
                        self.file.read_exact_at(&mut read, whole.start)?;
                        self.note(block, xxh3_64(&read));
                    }
                }
                written += n as u64;
            }
            at += n as u64;
            rest = behind;
        }
        Ok(written)
    }

    /// Gives the copy its name, if all blocks are written, and opens it.
    pub fn finish(&self, about: About) -> io::Result<KeptCopy> {
        let blocks: Option<Vec<u64>> = self.done().sums.iter().copied().collect();
        let blocks = blocks.ok_or(io::ErrorKind::UnexpectedEof)?;
        let sums = Sums {
            about,
            len: self.len,
            blocks,
        };
        self.dir.finish(&self.key, &self.file, &sums)?;
        self.finished.store(true, Ordering::Release);
        // The clone holds the same lock.
        let file = self.file.try_clone()?;
        let checked = Checked::all(&file.metadata()?, sums.blocks);
        let checked = checked.ok_or(io::ErrorKind::OutOfMemory)?;
        Ok(KeptCopy::new(&self.key, file, self.len, Arc::new(checked)))
    }
}

impl Drop for Making {
    fn drop(&mut self) {
        if !self.finished.load(Ordering::Acquire) {
            // The process that makes room next removes the remaining files.
            let _ = self.dir.blobs.dir.remove(&format!("{}{PART}", self.key));
        }
    }
}

/// Reads all blocks that a copy lacks. `goes_on` is called with the bytes of each block, and returns false to stop.
pub fn fill(
    making: &Making,
    content: &dyn Content,
    mut goes_on: impl FnMut(u64) -> bool,
) -> Result<bool> {
    let mut buf = Vec::new();
    let mut at = 0;
    while let Some(block) = making.missing(at) {
        buf.resize(making.bytes_of(block), 0);
        content.read_at(block.saturating_mul(BLOCK), &mut buf)?;
        making.put(block, &buf).map_err(Error::from)?;
        if !goes_on(buf.len() as u64) {
            return Ok(false);
        }
        at = block + 1;
    }
    Ok(true)
}
