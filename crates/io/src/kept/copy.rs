//! A finished copy, and its checksums: each block is compared with its own when it is read first. The content of an
//! array that has a copy is read from the copy, and from the store once the copy is found to be spoiled.

use std::cell::RefCell;
use std::fs::{File, Metadata};
use std::io;
use std::ops::Range;
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::fs::FileExt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use serde::{Deserialize, Serialize};
use xxhash_rust::xxh3::xxh3_64;

use crate::blobs::Bits;
use crate::content::{Content, Data};
use crate::file::Identity;
use crate::provenance::Provenance;
use npyfs_base::error::Error;

/// Bytes that have one checksum.
pub(super) const BLOCK: u64 = 1 << 20;

/// Bytes of the largest such file that is read: that of a copy of 2 TiB.
const LARGEST: u64 = 32 << 20;

/// The first bytes of a file of checksums: its format and version.
const MAGIC: &[u8; 8] = b"npyfskp1";

/// The source of a copy, for people.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct About {
    /// The store.
    pub store: String,
    /// The path in it.
    pub path: String,
}

/// The checksums of a copy.
#[derive(Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Sums {
    /// The source of the copy.
    pub about: About,
    /// The bytes.
    pub len: u64,
    /// A checksum for each block.
    pub blocks: Vec<u64>,
}

fn damaged() -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, "damaged checksums")
}

impl Sums {
    /// Reads the checksums of a copy of `len` bytes.
    pub(super) fn read(file: &File, len: u64) -> io::Result<Self> {
        let size = file.metadata()?.len();
        let size = usize::try_from(size.min(LARGEST)).unwrap_or(0);
        let mut bytes = vec![0; size];
        file.read_exact_at(&mut bytes, 0)?;
        if !bytes.starts_with(MAGIC) {
            let why = "checksums of another version of the format";
            return Err(io::Error::new(io::ErrorKind::Unsupported, why));
        }
        let (text, sum) = bytes.split_last_chunk::<8>().ok_or_else(damaged)?;
        let rest = text.strip_prefix(MAGIC).ok_or_else(damaged)?;
        let sums: Self = match xxh3_64(text) == u64::from_le_bytes(*sum) {
            true => postcard::from_bytes(rest).map_err(|_| damaged())?,
            false => return Err(damaged()),
        };
        let fits = sums.len == len && sums.blocks.len() as u64 == len.div_ceil(BLOCK);
        fits.then_some(sums).ok_or_else(damaged)
    }

    /// Writes the checksums into an empty file.
    pub(super) fn write(&self, file: &File) -> io::Result<()> {
        let mut bytes = MAGIC.to_vec();
        bytes.extend(postcard::to_stdvec(self).map_err(io::Error::other)?);
        let sum = xxh3_64(&bytes);
        bytes.extend(sum.to_le_bytes());
        file.write_all_at(&bytes, 0)
    }
}

thread_local! {
    /// A buffer for a block that is checked although only a part of it is requested.
    static WHOLE: RefCell<Vec<u8>> = const { RefCell::new(Vec::new()) };
}

/// The checked blocks of one copy. Valid while the file stays the same.
#[derive(Debug)]
pub struct CheckedBlocks {
    identity: Identity,
    sums: Vec<u64>,
    /// The blocks that have their checksums.
    blocks: Bits,
    /// The number of blocks that were not looked at.
    left: AtomicUsize,
    /// Whether a block did not match its checksum, or could not be read.
    spoiled: AtomicBool,
}

impl CheckedBlocks {
    /// Nothing of a file with these checksums; `None` if there is no memory for it.
    pub(super) fn nothing(meta: &Metadata, sums: Vec<u64>) -> Option<Self> {
        Some(Self {
            identity: Identity::from_metadata(meta),
            blocks: Bits::new(sums.len() as u64)?,
            left: AtomicUsize::new(sums.len()),
            spoiled: AtomicBool::new(false),
            sums,
        })
    }

    /// All of a file that this process wrote; `None` if there is no memory for it.
    pub(super) fn all(meta: &Metadata, sums: Vec<u64>) -> Option<Self> {
        let own = Self::nothing(meta, sums)?;
        own.left.store(0, Ordering::Release);
        Some(own)
    }

    /// Returns true if this is about the same file, unchanged since.
    pub(super) fn is_of(&self, meta: &Metadata) -> bool {
        Identity::from_metadata(meta) == self.identity
    }

    /// Returns true if every block was checked.
    fn is_whole(&self) -> bool {
        self.left.load(Ordering::Acquire) == 0 && !self.is_spoiled()
    }

    fn is_spoiled(&self) -> bool {
        self.spoiled.load(Ordering::Acquire)
    }

    fn has(&self, block: usize) -> bool {
        self.left.load(Ordering::Acquire) == 0 || self.blocks.has(block as u64)
    }

    fn note(&self, block: usize) {
        if self.blocks.add(block as u64) {
            self.left.fetch_sub(1, Ordering::AcqRel);
        }
    }
}

/// A copy that is open, and not removed to make room meanwhile.
#[derive(Debug)]
pub struct KeptCopy {
    key: String,
    file: File,
    len: u64,
    checked: Arc<CheckedBlocks>,
}

/// The error of a copy whose bytes are not those that were kept.
#[derive(Debug)]
pub struct Spoiled;

impl KeptCopy {
    pub(super) fn new(key: &str, file: File, len: u64, checked: Arc<CheckedBlocks>) -> Self {
        // No fadvise: after random reads the cache would hold single pages, and the kernel would serve the copy from
        // these.
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
    pub fn checked(&self) -> &Arc<CheckedBlocks> {
        &self.checked
    }

    /// Returns true if every block was checked, so that the copy may be shown without a read through npyfs.
    pub fn is_whole(&self) -> bool {
        self.checked.is_whole()
    }

    /// Returns true if a block was found to be spoiled.
    pub fn is_spoiled(&self) -> bool {
        self.checked.is_spoiled()
    }

    /// Fills `buf` from `offset`.
    ///
    /// # Errors
    ///
    /// The copy is spoiled. The bytes in `buf` are not valid, and every later read fails.
    pub fn read_at(&self, offset: u64, buf: &mut [u8]) -> Result<(), Spoiled> {
        if self.is_spoiled() {
            return Err(Spoiled);
        }
        self.checked_read(offset, buf).map_err(|_| {
            self.checked.spoiled.store(true, Ordering::Release);
            Spoiled
        })
    }

    /// Checks the next unchecked block from `block` on, and returns the number of the one after it; `None` if there is
    /// none.
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

    /// Reads an unchecked block completely and checks it.
    fn load(&self, block: usize, buf: &mut Vec<u8>) -> io::Result<()> {
        let start = block as u64 * BLOCK;
        let len = self.len.saturating_sub(start).min(BLOCK);
        buf.resize(usize::try_from(len).unwrap_or(0), 0);
        self.load_into(block, buf)
    }

    /// Reads a block into `buf`, which has the block's length, and checks it.
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

/// A function that is called once when a copy is found to be spoiled.
pub type OnSpoiled = Arc<dyn Fn(&KeptCopy) + Send + Sync>;

/// An array with its copy.
pub struct KeptContent {
    copy: Arc<KeptCopy>,
    store: Arc<dyn Content>,
    on_spoiled: OnSpoiled,
}

impl KeptContent {
    /// Creates the content of an array from a copy and a store with the same bytes.
    pub fn new(copy: Arc<KeptCopy>, store: Arc<dyn Content>, on_spoiled: OnSpoiled) -> Self {
        Self {
            copy,
            store,
            on_spoiled,
        }
    }
}

impl Content for KeptContent {
    fn len(&self) -> u64 {
        self.store.len()
    }

    fn read_at(&self, offset: u64, buf: &mut [u8]) -> Result<(), Error> {
        if self.copy.is_spoiled() {
            return self.store.read_at(offset, buf);
        }
        match self.copy.read_at(offset, buf) {
            Ok(()) => Ok(()),
            Err(Spoiled) => {
                (self.on_spoiled)(&self.copy);
                self.store.read_at(offset, buf)
            }
        }
    }

    fn written(&self, from: u64) -> Result<Option<Range<u64>>, Error> {
        self.store.written(from)
    }

    fn stored(&self, from: u64) -> Option<Range<u64>> {
        self.store.stored(from)
    }

    fn is_costly(&self) -> bool {
        self.copy.is_spoiled() && self.store.is_costly()
    }

    fn tell_provenance(&self, to: &mut Provenance) -> bool {
        self.store.tell_provenance(to)
    }

    fn share(&self, offset: u64, len: usize) -> Result<Option<Data>, Error> {
        match self.copy.is_spoiled() {
            true => self.store.share(offset, len),
            false => Ok(None),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn checksums_of_another_version_of_the_format_are_not_used() {
        let sums = Sums {
            about: About {
                store: "s.h5".to_owned(),
                path: "a.npy".to_owned(),
            },
            len: 1,
            blocks: vec![1],
        };
        let file = tempfile::tempfile().unwrap();
        sums.write(&file).unwrap();
        file.write_all_at(b"npyfskp2", 0).unwrap();
        let refused = Sums::read(&file, 1).unwrap_err();
        assert_eq!(refused.kind(), io::ErrorKind::Unsupported);
    }

    #[test]
    fn checksums_that_were_cut_or_changed_are_refused() {
        let sums = Sums {
            about: About {
                store: "s.h5".to_owned(),
                path: "a.npy".to_owned(),
            },
            len: BLOCK + 1,
            blocks: vec![1, u64::MAX],
        };
        let file = tempfile::tempfile().unwrap();
        sums.write(&file).unwrap();
        assert_eq!(Sums::read(&file, BLOCK + 1).unwrap(), sums);
        assert!(Sums::read(&file, BLOCK).is_err());
        let size = file.metadata().unwrap().len();
        for at in 0..size {
            let mut byte = [0];
            file.read_exact_at(&mut byte, at).unwrap();
            file.write_all_at(&[byte[0] ^ 1], at).unwrap();
            assert!(Sums::read(&file, BLOCK + 1).is_err(), "{at}");
            file.write_all_at(&byte, at).unwrap();
        }
        for len in 0..size {
            let cut = tempfile::tempfile().unwrap();
            sums.write(&cut).unwrap();
            cut.set_len(len).unwrap();
            assert!(Sums::read(&cut, BLOCK + 1).is_err(), "{len}");
        }
    }
}
