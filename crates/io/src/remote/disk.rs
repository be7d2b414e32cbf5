//! The fetched bytes of one version in a sparse file, with a checksum for each block. Objects are fetched and kept in
//! blocks.
//!
//! The checksums follow the bytes, and a page that describes the file follows the checksums. A block is present if its
//! bytes match its checksum: a write that was interrupted between the two, or lost in a power failure, is fetched
//! again.
//!
//! Several processes fill one file, and all of them write the same bytes. Each of them may free blocks, which then read
//! as zeros. So the page holds a number, the file's generation: it is odd while blocks are being freed, and different
//! afterwards. Bytes that were read are valid if their blocks were checked under the generation that the file still has
//! after the read, or if they match their checksums.

use std::fs::File;
use std::io;
use std::ops::Range;
use std::os::unix::fs::FileExt;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{SystemTime, UNIX_EPOCH};

use rustix::fs::{FallocateFlags, MemfdFlags, SeekFrom, fallocate, memfd_create, seek};
use rustix::io::Errno;
use xxhash_rust::xxh3::xxh3_64;

use crate::blobs::{Bits, room};

/// Bytes of a block. HDF5 metadata is scattered: larger blocks cost bytes, smaller ones cost requests.
pub(super) const BLOCK: u64 = 8 << 10;

/// Bytes of a checksum.
const SUM: u64 = 8;

/// Bytes of the last page, and the alignment of the checksums.
const PAGE: u64 = 4096;

/// The format and its version, at the start of the last page: the bytes of the object are at their own offsets.
const MAGIC: [u8; 8] = *b"npyfsob1";

/// Offsets of the generation and of the description in the last page.
const GENERATION: u64 = 8;
const ABOUT: u64 = 16;

/// Blocks of an extent, the unit in which space is freed: 1 MiB.
const EXTENT: u64 = (1 << 20) / BLOCK;

/// Bytes of an extent.
pub(super) const EXTENT_BYTES: u64 = EXTENT * BLOCK;

/// The bytes of one version.
pub(super) struct DiskFile {
    file: File,
    size: u64,
    /// The offset of the checksums.
    sums: u64,
    /// The offset of the last page.
    page: u64,
}

/// The bit of a checksum that marks a block of metadata. Metadata is freed last.
const METADATA: u64 = 2;

/// Returns the checksum of a block. It differs from that of a hole, and its metadata bit is clear.
fn sum(block: &[u8]) -> u64 {
    (xxh3_64(block) | 1) & !METADATA
}

/// An extent that has at least one block present.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Extent {
    /// The number.
    pub(super) number: u64,
    /// Bytes of data and of metadata in the extent.
    pub(super) data: u64,
    pub(super) metadata: u64,
}

/// Returns an odd generation that no file has had.
fn fresh() -> u64 {
    static COUNT: AtomicU64 = AtomicU64::new(0);
    let now = SystemTime::now().duration_since(UNIX_EPOCH);
    let mut seed = [0; 24];
    let nanos = now.map_or(0, |now| now.as_nanos() as u64);
    seed[..8].copy_from_slice(&nanos.to_le_bytes());
    seed[8..16].copy_from_slice(&u64::from(std::process::id()).to_le_bytes());
    seed[16..].copy_from_slice(&COUNT.fetch_add(1, Ordering::Relaxed).to_le_bytes());
    sum(&seed)
}

/// Returns the blocks that a byte range overlaps.
pub(super) fn touched(bytes: &Range<u64>) -> Range<u64> {
    match bytes.is_empty() {
        true => 0..0,
        false => bytes.start / BLOCK..bytes.end.div_ceil(BLOCK),
    }
}

/// Returns the byte range of some blocks of an object.
pub(super) fn bytes_of(blocks: &Range<u64>, size: u64) -> Range<u64> {
    let end = blocks.end.saturating_mul(BLOCK).min(size);
    blocks.start.saturating_mul(BLOCK).min(end)..end
}

/// Makes an empty set of the blocks of an object; `None` if it is too large to count them.
pub(super) fn no_blocks(size: u64) -> Option<Bits> {
    Bits::new(size.div_ceil(BLOCK))
}

/// Returns true if nothing is being freed in a generation.
pub(super) fn settled(generation: u64) -> bool {
    generation.is_multiple_of(2)
}

/// Returns the extents that a byte range overlaps.
pub(super) fn extents_of(bytes: &Range<u64>) -> Range<u64> {
    bytes.start / EXTENT_BYTES..bytes.end.div_ceil(EXTENT_BYTES)
}

/// Returns the description in the last page of a file.
pub(super) fn about(file: &File) -> Option<serde_json::Value> {
    let page = file.metadata().ok()?.len().checked_sub(PAGE)?;
    let mut bytes = [0; PAGE as usize];
    file.read_exact_at(&mut bytes, page).ok()?;
    let text = bytes.strip_prefix(&MAGIC)?.get(8..)?;
    let text = text.split(|&byte| byte == 0).next()?;
    serde_json::from_slice(text).ok()
}

impl DiskFile {
    /// Uses a file for a version of `size` bytes; `about` is the description in its last page. A file of another
    /// version of the format is refused and left alone.
    pub(super) fn new(file: File, size: u64, about: &str) -> io::Result<Self> {
        let large = || io::Error::from_raw_os_error(libc::EFBIG);
        let sums = size.checked_next_multiple_of(PAGE).ok_or_else(large)?;
        let table = size.div_ceil(BLOCK).saturating_mul(SUM);
        let page = table
            .checked_next_multiple_of(PAGE)
            .and_then(|table| sums.checked_add(table));
        let page = page.ok_or_else(large)?;
        let len = page.checked_add(PAGE).ok_or_else(large)?;
        if file.metadata()?.len() != len {
            file.set_len(len)?;
        }
        let mut magic = [0; 8];
        file.read_exact_at(&mut magic, page)?;
        if magic != MAGIC {
            if magic != [0; 8] {
                let why = "a file of another version of the format";
                return Err(io::Error::new(io::ErrorKind::Unsupported, why));
            }
            let mut text = about.as_bytes().to_vec();
            text.truncate((PAGE - ABOUT - 1) as usize);
            text.push(0);
            file.write_all_at(&text, page + ABOUT)?;
            file.write_all_at(&MAGIC, page)?;
        }
        Ok(Self {
            file,
            size,
            sums,
            page,
        })
    }

    /// Makes a file in memory.
    pub(super) fn in_memory(size: u64) -> io::Result<Self> {
        let file = memfd_create(c"npyfs", MemfdFlags::CLOEXEC).map(File::from)?;
        Self::new(file, size, "")
    }

    /// Returns the file's generation.
    pub(super) fn generation(&self) -> io::Result<u64> {
        let mut bytes = [0; 8];
        self.file
            .read_exact_at(&mut bytes, self.page + GENERATION)?;
        Ok(u64::from_le_bytes(bytes))
    }

    fn set_generation(&self, generation: u64) -> io::Result<()> {
        self.file
            .write_all_at(&generation.to_le_bytes(), self.page + GENERATION)
    }

    /// Returns the bytes that the file occupies on disk.
    pub(super) fn room(&self) -> io::Result<u64> {
        Ok(room(&self.file.metadata()?))
    }

    /// Notes the time of its last use.
    pub(super) fn set_modified(&self, time: SystemTime) {
        // A wrong time makes the file look older or newer than it is, which only costs requests.
        let _ = self.file.set_modified(time);
    }

    /// Returns the checksums of some blocks.
    fn known(&self, blocks: &Range<u64>) -> io::Result<Vec<u64>> {
        let count = blocks.end.saturating_sub(blocks.start);
        let len = usize::try_from(count.saturating_mul(SUM)).unwrap_or(usize::MAX);
        let mut bytes = vec![0; len];
        let at = self.sums.saturating_add(blocks.start.saturating_mul(SUM));
        self.file.read_exact_at(&mut bytes, at)?;
        let sums = bytes.chunks_exact(SUM as usize);
        let number = |sum: &[u8]| sum.try_into().map_or(0, u64::from_le_bytes);
        Ok(sums.map(number).collect())
    }

    /// Fills `buf` from `offset`, without checking checksums.
    pub(super) fn read(&self, buf: &mut [u8], offset: u64) -> io::Result<()> {
        self.file.read_exact_at(buf, offset)
    }

    /// Fills `buf` from `offset` with the blocks that match their checksums, and returns the blocks that are absent.
    pub(super) fn read_checked(&self, buf: &mut [u8], offset: u64) -> io::Result<Vec<u64>> {
        let range = offset..offset.saturating_add(buf.len() as u64);
        let blocks = touched(&range);
        let known = self.known(&blocks)?;
        if known.iter().all(|&known| known == 0) {
            return Ok(blocks.collect());
        }
        self.read(buf, offset)?;
        let mut absent = Vec::new();
        let mut edge = [0; BLOCK as usize];
        for (block, known) in blocks.zip(known) {
            let whole = bytes_of(&(block..block + 1), self.size);
            let inside = whole.start.max(range.start)..whole.end.min(range.end);
            let at = |place: u64, from: u64| usize::try_from(place - from).unwrap_or(usize::MAX);
            let part = buf.get_mut(at(inside.start, offset)..at(inside.end, offset));
            let Some(part) = part.filter(|_| known != 0) else {
                absent.push(block);
                continue;
            };
            let good = if inside == whole {
                sum(part) == known & !METADATA
            } else {
                // The requested part of a block is taken from the bytes that were checked.
                let edge = &mut edge[..at(whole.end, whole.start)];
                self.read(edge, whole.start)?;
                part.copy_from_slice(&edge[at(inside.start, whole.start)..][..part.len()]);
                sum(edge) == known & !METADATA
            };
            if !good {
                absent.push(block);
            }
        }
        Ok(absent)
    }

    /// Returns the blocks that have no checksum. A read determines whether the others match theirs.
    pub(super) fn absent(&self, blocks: Range<u64>) -> io::Result<Vec<u64>> {
        let known = self.known(&blocks)?;
        let absent = blocks.zip(known).filter(|(_, known)| *known == 0);
        Ok(absent.map(|(block, _)| block).collect())
    }

    /// Writes whole blocks, the first of which begins at `start`: first their bytes, then their checksums.
    pub(super) fn write(&self, start: u64, bytes: &[u8], metadata: bool) -> io::Result<()> {
        self.file.write_all_at(bytes, start)?;
        let bit = if metadata { METADATA } else { 0 };
        let sums = bytes.chunks(BLOCK as usize).map(|block| sum(block) | bit);
        let sums: Vec<u8> = sums.flat_map(u64::to_le_bytes).collect();
        self.file.write_all_at(&sums, self.place(start / BLOCK))
    }

    /// Returns the offset of the checksum of a block.
    fn place(&self, block: u64) -> u64 {
        self.sums.saturating_add(block.saturating_mul(SUM))
    }

    /// Marks a block that is present as metadata.
    pub(super) fn mark(&self, block: u64) -> io::Result<()> {
        let known = self.known(&(block..block + 1))?;
        let known = known.first().copied().unwrap_or(0);
        if known == 0 || known & METADATA != 0 {
            return Ok(());
        }
        // If the block is freed in the meantime, its zeros do not match this checksum.
        let marked = (known | METADATA).to_le_bytes();
        self.file.write_all_at(&marked, self.place(block))
    }

    /// Frees some extents, their metadata only with `all`, and returns the file's new generation. Only one process at a
    /// time may do so.
    pub(super) fn punch(
        &self,
        extents: impl IntoIterator<Item = u64>,
        all: bool,
    ) -> io::Result<u64> {
        let begun = fresh();
        self.set_generation(begun)?;
        let mut extents = extents.into_iter();
        let punched = extents.try_for_each(|extent| self.punch_extent(extent, all));
        // Nothing is being freed any more, however the earlier attempt ended.
        let ended = begun & !1;
        self.set_generation(ended)?;
        punched.map(|()| ended)
    }

    fn punch_extent(&self, extent: u64, all: bool) -> io::Result<()> {
        let blocks = self.size.div_ceil(BLOCK);
        let first = extent.saturating_mul(EXTENT).min(blocks);
        let last = first.saturating_add(EXTENT).min(blocks);
        let known = self.known(&(first..last))?;
        let stays = |block: u64| {
            let known = usize::try_from(block - first)
                .ok()
                .and_then(|at| known.get(at));
            !all && known.is_some_and(|known| known & METADATA != 0)
        };
        let mut at = first;
        while at < last {
            let end = (at..last).find(|&block| stays(block)).unwrap_or(last);
            if end > at {
                let zeros = vec![0; usize::try_from((end - at) * SUM).unwrap_or(0)];
                // The checksums go first: a hole has none.
                self.file.write_all_at(&zeros, self.place(at))?;
                let range = bytes_of(&(at..end), self.size);
                let flags = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
                fallocate(&self.file, flags, range.start, range.end - range.start)?;
            }
            at = end + 1;
        }
        Ok(())
    }

    /// Completes a change that another process began and did not finish. No other process may be changing the file.
    pub(super) fn settle(&self) -> io::Result<()> {
        self.set_generation(fresh() & !1)
    }

    /// Calls `look` with the checksums of each extent that has blocks present.
    fn look_through(&self, mut look: impl FnMut(u64, &[u64])) -> io::Result<()> {
        let blocks = self.size.div_ceil(BLOCK);
        let end = self.place(blocks);
        let mut at = self.sums;
        while at < end {
            let data = match seek(&self.file, SeekFrom::Data(at)) {
                Ok(data) if data < end => data,
                Ok(_) | Err(Errno::NXIO) => break,
                Err(e) => return Err(e.into()),
            };
            let first = (data - self.sums) / SUM / EXTENT * EXTENT;
            // About a page of the file system.
            let some = first..first.saturating_add(4 * EXTENT).min(blocks);
            let known = self.known(&some)?;
            for (extent, sums) in (first / EXTENT..).zip(known.chunks(EXTENT as usize)) {
                if sums.iter().any(|&sum| sum != 0) {
                    look(extent, sums);
                }
            }
            at = self.place(some.end);
        }
        Ok(())
    }

    /// Copies the blocks that are present to another file.
    pub(super) fn copy_to(&self, other: &Self) -> io::Result<()> {
        let blocks = self.size.div_ceil(BLOCK);
        for extent in self.extents()? {
            let first = extent.number.saturating_mul(EXTENT);
            let some = first..first.saturating_add(EXTENT).min(blocks);
            for (block, known) in some.clone().zip(self.known(&some)?) {
                let range = bytes_of(&(block..block + 1), self.size);
                let mut bytes = vec![0; usize::try_from(range.end - range.start).unwrap_or(0)];
                if known != 0 && self.read_checked(&mut bytes, range.start)?.is_empty() {
                    other.write(range.start, &bytes, known & METADATA != 0)?;
                }
            }
        }
        Ok(())
    }

    /// Returns the extents that have blocks present.
    pub(super) fn extents(&self) -> io::Result<Vec<Extent>> {
        let mut found = Vec::new();
        self.look_through(|number, sums| {
            let there = sums.iter().filter(|&&sum| sum != 0).count() as u64;
            let marked = sums.iter().filter(|&&sum| sum & METADATA != 0).count() as u64;
            found.push(Extent {
                number,
                data: (there - marked) * BLOCK,
                metadata: marked * BLOCK,
            });
        })?;
        Ok(found)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SIZE: u64 = 3 * BLOCK + 5;

    /// Returns the blocks of a file that are absent or damaged.
    fn wrong(file: &DiskFile) -> Vec<u64> {
        file.read_checked(&mut [0; SIZE as usize], 0).unwrap()
    }

    fn file() -> (tempfile::NamedTempFile, DiskFile) {
        let named = tempfile::NamedTempFile::new().unwrap();
        let file = DiskFile::new(named.reopen().unwrap(), SIZE, r#"{"url":"u"}"#).unwrap();
        (named, file)
    }

    #[test]
    fn a_file_of_another_version_of_the_format_is_left_alone() {
        let (named, file) = file();
        file.write(0, &[1; SIZE as usize], false).unwrap();
        named
            .as_file()
            .write_all_at(b"npyfsob2", file.page)
            .unwrap();
        let before = std::fs::read(named.path()).unwrap();
        let refused = DiskFile::new(named.reopen().unwrap(), SIZE, "")
            .err()
            .unwrap();
        assert!(refused.to_string().contains("another version"), "{refused}");
        assert!(about(named.as_file()).is_none());
        assert_eq!(std::fs::read(named.path()).unwrap(), before);
    }

    #[test]
    fn what_was_interrupted_is_not_there() {
        let (named, file) = file();
        let block = vec![7; BLOCK as usize];
        file.write(BLOCK, &block, false).unwrap();
        file.write(3 * BLOCK, &[1; 5], true).unwrap();
        let other = DiskFile::new(named.reopen().unwrap(), SIZE, "").unwrap();
        assert_eq!(other.absent(0..4).unwrap(), [0, 2]);
        assert_eq!(wrong(&other), [0, 2]);
        assert_eq!(about(named.as_file()).unwrap()["url"], "u");
        // Bytes without a checksum, and bytes that do not match theirs.
        named.as_file().write_all_at(&block, 2 * BLOCK).unwrap();
        named.as_file().write_all_at(&[8], BLOCK).unwrap();
        assert_eq!(wrong(&other), [0, 1, 2]);
    }

    #[test]
    fn reads_of_parts_of_blocks_are_checked() {
        let (named, file) = file();
        let bytes: Vec<u8> = (0..SIZE).map(|n| (n % 251) as u8).collect();
        file.write(0, &bytes, false).unwrap();
        let mut buf = vec![0; 2 * BLOCK as usize];
        assert_eq!(file.read_checked(&mut buf, 100).unwrap(), Vec::<u64>::new());
        assert_eq!(buf, bytes[100..][..buf.len()]);
        // Outside of the requested range, but in one of its blocks.
        named.as_file().write_all_at(&[255], 3 * BLOCK - 1).unwrap();
        assert_eq!(file.read_checked(&mut buf, 100).unwrap(), [2]);
    }

    #[test]
    fn what_is_given_back_is_seen_by_others() {
        let (named, file) = file();
        file.write(0, &[3; 2 * BLOCK as usize], false).unwrap();
        file.write(2 * BLOCK, &[4; BLOCK as usize], true).unwrap();
        file.mark(1).unwrap();
        file.mark(3).unwrap();
        let other = DiskFile::new(named.reopen().unwrap(), SIZE, "").unwrap();
        let before = other.generation().unwrap();
        let extent = |data, metadata| Extent {
            number: 0,
            data,
            metadata,
        };
        assert_eq!(other.extents().unwrap(), [extent(BLOCK, 2 * BLOCK)]);
        let after = file.punch([0], false).unwrap();
        assert!(settled(after) && after != before);
        assert_eq!(other.generation().unwrap(), after);
        assert_eq!(other.absent(0..4).unwrap(), [0, 3]);
        assert_eq!(other.extents().unwrap(), [extent(0, 2 * BLOCK)]);
        file.punch([0], true).unwrap();
        assert_eq!(other.absent(0..3).unwrap(), [0, 1, 2]);
        assert!(other.extents().unwrap().is_empty());
        let mut bytes = [1];
        file.read(&mut bytes, BLOCK).unwrap();
        assert_eq!(bytes, [0]);
    }

    #[test]
    fn sparse_files_are_looked_through_by_what_they_hold() {
        let file = DiskFile::in_memory(1 << 40).unwrap();
        let extents = [0, 3, 77_777, (1 << 20) - 1];
        for extent in extents {
            let start = extent * EXTENT_BYTES + 2 * BLOCK;
            file.write(start, &[1; BLOCK as usize], false).unwrap();
        }
        let found = file.extents().unwrap();
        assert_eq!(found.iter().map(|e| e.number).collect::<Vec<_>>(), extents);
        assert!(found.iter().all(|e| (e.data, e.metadata) == (BLOCK, 0)));
    }

    #[test]
    fn ranges_and_blocks() {
        assert_eq!(touched(&(0..1)), 0..1);
        assert_eq!(touched(&(BLOCK - 1..BLOCK + 1)), 0..2);
        assert!(touched(&(5..5)).is_empty());
        assert_eq!(bytes_of(&(1..3), 2 * BLOCK + 7), BLOCK..2 * BLOCK + 7);
        assert_eq!(bytes_of(&(9..10), 5), 5..5);
    }
}
