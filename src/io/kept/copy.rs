//! A finished copy that is open: its blocks are checked when they are read first.

use std::cell::RefCell;
use std::fs::{File, Metadata};
use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::fs::FileExt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};

use xxhash_rust::xxh3::xxh3_64;

use super::sums::BLOCK;
use crate::io::file::Identity;

thread_local! {
    /// A block that is checked for the sake of a part of it.
    static WHOLE: RefCell<Vec<u8>> = const { RefCell::new(Vec::new()) };
}

/// What was checked of one copy, for as long as the file is what it was.
#[derive(Debug)]
pub struct Checked {
    identity: Identity,
    sums: Vec<u64>,
    /// A bit for each block that has its checksum.
    blocks: Vec<AtomicU64>,
    /// The number of blocks that were not looked at.
    left: AtomicUsize,
    /// A block had another checksum, or could not be read.
    spoiled: AtomicBool,
}

impl Checked {
    /// Nothing of a file with these checksums.
    pub(super) fn nothing(meta: &Metadata, sums: Vec<u64>) -> Self {
        Self {
            identity: Identity::of(meta),
            blocks: (0..sums.len().div_ceil(64))
                .map(|_| AtomicU64::new(0))
                .collect(),
            left: AtomicUsize::new(sums.len()),
            spoiled: AtomicBool::new(false),
            sums,
        }
    }

    /// All of a file that this process wrote.
    pub(super) fn all(meta: &Metadata, sums: Vec<u64>) -> Self {
        let own = Self::nothing(meta, sums);
        own.left.store(0, Ordering::Release);
        own
    }

    /// Returns true if it is about this file, which nobody wrote to since.
    pub(super) fn is_of(&self, meta: &Metadata) -> bool {
        Identity::of(meta) == self.identity
    }

    /// Returns true if every block has its checksum.
    fn is_whole(&self) -> bool {
        self.left.load(Ordering::Acquire) == 0 && !self.is_spoiled()
    }

    fn is_spoiled(&self) -> bool {
        self.spoiled.load(Ordering::Acquire)
    }

    /// Returns the word and the bit of a block.
    fn bit(&self, block: usize) -> Option<(&AtomicU64, u64)> {
        Some((self.blocks.get(block / 64)?, 1 << (block % 64)))
    }

    fn has(&self, block: usize) -> bool {
        self.left.load(Ordering::Acquire) == 0
            || self
                .bit(block)
                .is_some_and(|(word, bit)| word.load(Ordering::Acquire) & bit != 0)
    }

    fn note(&self, block: usize) {
        if let Some((word, bit)) = self.bit(block)
            && word.fetch_or(bit, Ordering::AcqRel) & bit == 0
        {
            self.left.fetch_sub(1, Ordering::AcqRel);
        }
    }
}

/// A copy that is open. Nobody removes it to make room meanwhile.
#[derive(Debug)]
pub struct KeptCopy {
    key: String,
    file: File,
    len: u64,
    checked: Arc<Checked>,
}

/// Says that a copy is not what was kept.
#[derive(Debug)]
pub struct Spoiled;

impl KeptCopy {
    pub(super) fn new(key: &str, file: File, len: u64, checked: Arc<Checked>) -> Self {
        // No advice: what is read at random lies in single pages from then on, and the kernel serves copies from these.
        Self {
            key: key.to_owned(),
            file,
            len,
            checked,
        }
    }

    /// Returns its key.
    pub fn key(&self) -> &str {
        &self.key
    }

    /// Returns what was checked of it.
    pub fn checked(&self) -> &Arc<Checked> {
        &self.checked
    }

    /// Returns true if all of it was checked, so that it may be shown unread.
    pub fn is_whole(&self) -> bool {
        self.checked.is_whole()
    }

    /// Returns true if it was found to be another than was kept.
    pub fn is_spoiled(&self) -> bool {
        self.checked.is_spoiled()
    }

    /// Fills `buf` from `offset`.
    ///
    /// # Errors
    ///
    /// It is not what was kept: what is in `buf` is worth nothing, and no later read succeeds.
    pub fn read_at(&self, offset: u64, buf: &mut [u8]) -> Result<(), Spoiled> {
        if self.is_spoiled() {
            return Err(Spoiled);
        }
        self.checked_read(offset, buf).map_err(|_| {
            self.checked.spoiled.store(true, Ordering::Release);
            Spoiled
        })
    }

    /// Checks the next block from `block` on that was not looked at, and returns the one behind it; `None`: there is none.
    pub fn check_next(&self, block: u64, buf: &mut Vec<u8>) -> Result<Option<u64>, Spoiled> {
        let count = self.checked.sums.len();
        let first = usize::try_from(block).unwrap_or(usize::MAX);
        let Some(next) = (first..count).find(|&block| !self.checked.has(block)) else {
            return Ok(None);
        };
        match self.load(next, buf) {
            Ok(()) => Ok(Some(next as u64 + 1)),
            Err(_) => {
                self.checked.spoiled.store(true, Ordering::Release);
                Err(Spoiled)
            }
        }
    }

    /// Reads a block that was not looked at, whole, and checks it.
    fn load(&self, block: usize, buf: &mut Vec<u8>) -> io::Result<()> {
        let start = block as u64 * BLOCK;
        let len = self.len.saturating_sub(start).min(BLOCK);
        buf.resize(usize::try_from(len).unwrap_or(0), 0);
        self.load_into(block, buf)
    }

    /// Reads a block into all of `buf`, which has its length, and checks it.
    fn load_into(&self, block: usize, buf: &mut [u8]) -> io::Result<()> {
        self.file.read_exact_at(buf, block as u64 * BLOCK)?;
        if self.checked.sums.get(block) != Some(&xxh3_64(buf)) {
            return Err(io::ErrorKind::InvalidData.into());
        }
        self.checked.note(block);
        Ok(())
    }

    fn checked_read(&self, offset: u64, buf: &mut [u8]) -> io::Result<()> {
        if self.checked.is_whole() {
            return self.file.read_exact_at(buf, offset);
        }
        let mut done = 0;
        while done < buf.len() {
            let at = offset.saturating_add(done as u64);
            let (block, inside) = (
                usize::try_from(at / BLOCK).unwrap_or(usize::MAX),
                at % BLOCK,
            );
            // At most a block.
            let n = ((BLOCK - inside) as usize).min(buf.len() - done);
            let part = &mut buf[done..done + n];
            let len = self.len.saturating_sub(block as u64 * BLOCK).min(BLOCK);
            if self.checked.has(block) {
                self.file.read_exact_at(part, at)?;
            } else if part.len() as u64 == len {
                self.load_into(block, part)?;
            } else {
                WHOLE.with_borrow_mut(|whole| {
                    self.load(block, whole)?;
                    let from = inside as usize;
                    let found = whole.get(from..from + n);
                    part.copy_from_slice(found.ok_or(io::ErrorKind::UnexpectedEof)?);
                    Ok::<_, io::Error>(())
                })?;
            }
            done += n;
        }
        Ok(())
    }
}

impl AsFd for KeptCopy {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.file.as_fd()
    }
}
