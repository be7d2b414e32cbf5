//! The bytes of one version that were fetched, in a file with holes, and a checksum for each of its blocks.
//!
//! Behind the bytes stand the checksums, and behind these a page that says what the file is of. A block is there if its bytes
//! have its checksum: whatever was interrupted between the two, or lost with the power, is fetched again.
//!
//! Several processes fill one file; they write the same. Any of them may give the room of blocks back, which then read as
//! zeros. So the page has a number, the file's generation: it is odd while that happens, and another one afterwards. Bytes
//! that were read are good if their blocks were checked under the generation that the file still has after the read, or if
//! they have their checksums themselves.

use std::fs::File;
use std::io;
use std::ops::Range;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{SystemTime, UNIX_EPOCH};

use rustix::fs::{FallocateFlags, MemfdFlags, SeekFrom, fallocate, memfd_create, seek};
use rustix::io::Errno;
use xxhash_rust::xxh3::xxh3_64;

use super::blocks::{BLOCK, bytes_of, touched};

/// Bytes of a checksum.
const SUM: u64 = 8;

/// Bytes of the last page, and what checksums begin at a multiple of.
pub(super) const PAGE: u64 = 4096;

/// What the last page begins with.
const MAGIC: [u8; 8] = *b"npyfsob1";

/// Where the generation and the description stand in it.
const GENERATION: u64 = 8;
const ABOUT: u64 = 16;

/// Blocks of an extent, which is what is given back at a time: 1 MiB.
const EXTENT: u64 = (1 << 20) / BLOCK;

/// Bytes of an extent.
pub(super) const EXTENT_BYTES: u64 = EXTENT * BLOCK;

/// The bytes of one version.
pub(super) struct DiskFile {
    file: File,
    size: u64,
    /// Where the checksums begin.
    sums: u64,
    /// Where the last page begins.
    page: u64,
}

/// The bit of a checksum that says that the block is of metadata, which are given back last.
const METADATA: u64 = 2;

/// Returns the checksum of a block, which is never that of a hole, and does not have the bit for metadata.
fn sum(block: &[u8]) -> u64 {
    (xxh3_64(block) | 1) & !METADATA
}

/// An extent in which there is something.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Extent {
    /// Its number.
    pub(super) number: u64,
    /// Bytes of data in it, and of metadata.
    pub(super) data: u64,
    pub(super) metadata: u64,
}

/// Returns a generation that no file had, which is odd.
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

/// Returns true if a generation is one in which nothing is taken away.
pub(super) fn settled(generation: u64) -> bool {
    generation.is_multiple_of(2)
}

/// Returns the extents that a range of bytes touches.
pub(super) fn extents_of(bytes: &Range<u64>) -> Range<u64> {
    bytes.start / EXTENT_BYTES..bytes.end.div_ceil(EXTENT_BYTES)
}

/// Returns what the last page of a file says about it.
pub(super) fn about(file: &File) -> Option<serde_json::Value> {
    let page = file.metadata().ok()?.len().checked_sub(PAGE)?;
    let mut bytes = [0; PAGE as usize];
    file.read_exact_at(&mut bytes, page).ok()?;
    let text = bytes.strip_prefix(&MAGIC)?.get(8..)?;
    let text = text.split(|&byte| byte == 0).next()?;
    serde_json::from_slice(text).ok()
}

impl DiskFile {
    /// Takes a file for a version of `size` bytes; `about` says in its last page what it is of.
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

    /// Returns its generation.
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

    /// Returns the bytes that it takes on disk.
    pub(super) fn room(&self) -> io::Result<u64> {
        Ok(self.file.metadata()?.blocks().saturating_mul(512))
    }

    /// Returns the time of its last use.
    pub(super) fn modified(&self) -> SystemTime {
        let modified = self.file.metadata().and_then(|meta| meta.modified());
        modified.unwrap_or(UNIX_EPOCH)
    }

    /// Notes the time of its last use.
    pub(super) fn set_modified(&self, time: SystemTime) {
        // A time that is not noted makes it older or younger than it is, which costs requests.
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

    /// Fills `buf` from `offset`, without a look at the checksums.
    pub(super) fn read(&self, buf: &mut [u8], offset: u64) -> io::Result<()> {
        self.file.read_exact_at(buf, offset)
    }

    /// Fills `buf` from `offset` with what has its checksum, and returns the blocks that are absent.
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
                // What is wanted of a block is taken from the bytes that were checked.
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

    /// Returns those of some blocks that have no checksum. Whether the others have theirs, a read finds out.
    pub(super) fn absent(&self, blocks: Range<u64>) -> io::Result<Vec<u64>> {
        let known = self.known(&blocks)?;
        let absent = blocks.zip(known).filter(|(_, known)| *known == 0);
        Ok(absent.map(|(block, _)| block).collect())
    }

    /// Writes whole blocks, the first of which begins at `start`: their bytes, then their checksums.
    pub(super) fn write(&self, start: u64, bytes: &[u8], metadata: bool) -> io::Result<()> {
        self.file.write_all_at(bytes, start)?;
        let bit = if metadata { METADATA } else { 0 };
        let sums = bytes.chunks(BLOCK as usize).map(|block| sum(block) | bit);
        let sums: Vec<u8> = sums.flat_map(u64::to_le_bytes).collect();
        self.file.write_all_at(&sums, self.place(start / BLOCK))
    }

    /// Returns where the checksum of a block stands.
    fn place(&self, block: u64) -> u64 {
        self.sums.saturating_add(block.saturating_mul(SUM))
    }

    /// Notes that a block that is there is of metadata.
    pub(super) fn mark(&self, block: u64) -> io::Result<()> {
        let known = self.known(&(block..block + 1))?;
        let known = known.first().copied().unwrap_or(0);
        if known == 0 || known & METADATA != 0 {
            return Ok(());
        }
        // If the block is taken away meanwhile, this is a checksum that its zeros do not have.
        let marked = (known | METADATA).to_le_bytes();
        self.file.write_all_at(&marked, self.place(block))
    }

    /// Gives the room of some extents back, that of metadata only with `all`, and returns the file's new generation. One
    /// process at a time may do so.
    pub(super) fn punch(
        &self,
        extents: impl IntoIterator<Item = u64>,
        all: bool,
    ) -> io::Result<u64> {
        let begun = fresh();
        self.set_generation(begun)?;
        let mut extents = extents.into_iter();
        let punched = extents.try_for_each(|extent| self.punch_extent(extent, all));
        // Nothing is being taken away any more, however it ended.
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
                // Their checksums first: what is a hole has none.
                self.file.write_all_at(&zeros, self.place(at))?;
                let range = bytes_of(&(at..end), self.size);
                let flags = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
                fallocate(&self.file, flags, range.start, range.end - range.start)?;
            }
            at = end + 1;
        }
        Ok(())
    }

    /// Ends what another process began and did not end. Nobody may be at it.
    pub(super) fn settle(&self) -> io::Result<()> {
        self.set_generation(fresh() & !1)
    }

    /// Calls `look` with the checksums of each extent in which there is something.
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

    /// Writes to another file what there is in this one.
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

    /// Returns the extents in which there is something.
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
    fn what_was_interrupted_is_not_there() {
        let (named, file) = file();
        let block = vec![7; BLOCK as usize];
        file.write(BLOCK, &block, false).unwrap();
        file.write(3 * BLOCK, &[1; 5], true).unwrap();
        let other = DiskFile::new(named.reopen().unwrap(), SIZE, "").unwrap();
        assert_eq!(other.absent(0..4).unwrap(), [0, 2]);
        assert_eq!(wrong(&other), [0, 2]);
        assert_eq!(about(named.as_file()).unwrap()["url"], "u");
        // Bytes without a checksum, and others than it is of.
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
        // Outside of what is wanted, but in a block of it.
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
}
