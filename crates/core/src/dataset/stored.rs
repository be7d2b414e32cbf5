//! Elements that are stored in the file exactly as they are served.
//!
//! Bytes in the kernel's page cache are copied from there. Other bytes of a sequential reader are read ahead in blocks,
//! bypassing the page cache: the virtual file will be in that cache, and once is enough. Blocks are aligned to the
//! reader's requests, so that a request is answered from a single one without another copy.

use std::ops::Range;
use std::sync::Arc;

use super::backing::STORED;
use super::fetch;
use crate::dataset::access_pattern::AccessPattern;
use crate::dataset::cache::{Block, Key, Need};
use crate::dataset::opened::OpenStore;
use crate::dataset::prefetch::BlockSequence;
use npyfs_base::buffer::ALIGNMENT;
use npyfs_base::error::{Error, Result};
use npyfs_base::tuning::Tuning;
use npyfs_io::content::Data;
use npyfs_io::file::StoreFile;

/// Bytes of a block.
const BLOCK: u64 = Tuning::STORED_BLOCK;

/// Shorter reads bypass the blocks.
const LEAST: usize = Tuning::STORED_LEAST;

/// The blocks that a file is divided into; the first is shorter, or empty.
#[derive(Clone, Copy)]
struct FileBlocks {
    /// The offset of the second block, below `BLOCK`.
    phase: u64,
    /// Bytes of the file.
    size: u64,
}

impl FileBlocks {
    fn number(self, at: u64) -> u64 {
        // A file is far below 16 EiB.
        at.saturating_add(BLOCK - self.phase) / BLOCK
    }

    fn range(self, number: u64) -> Range<u64> {
        let start = |n: u64| {
            let end = n.saturating_mul(BLOCK).saturating_add(self.phase);
            end.saturating_sub(BLOCK).min(self.size)
        };
        start(number)..start(number.saturating_add(1))
    }
}

/// Bytes from `at` on in a block.
struct FoundBytes {
    block: Block,
    /// The range of the block's buffer.
    range: Range<usize>,
}

/// Records a read of `len` bytes at `at` and requests the next blocks; `None` as long as normal reads are better.
fn begin(
    store: &Arc<OpenStore>,
    pattern: &Arc<AccessPattern>,
    data: &Range<u64>,
    at: u64,
    len: usize,
) -> Option<FileBlocks> {
    let size = store.file.identity.size;
    let len = len as u64;
    let end = at.checked_add(len).filter(|&end| end <= size)?;
    if let Some(far) = store.file.far() {
        fetch::contiguous((store, far), pattern, at..end, data);
        return None;
    }
    if len < LEAST as u64 {
        return None;
    }
    let phase = match pattern.is_settled() {
        true => pattern.phase(at, len, BLOCK),
        false => at % BLOCK,
    };
    let blocks = FileBlocks { phase, size };
    let last = blocks.number(size.saturating_sub(1));
    let context = &store.context;
    let sequence = BlockSequence {
        bytes: BLOCK,
        count: last + 1,
        row: 1,
        reading: 2 + context.prefetch.under_way().div_ceil(BLOCK),
    };
    let number = blocks.number(end - 1);
    let is_awaited = || {
        let key = key(&store.file, &blocks.range(number));
        context.decoders.is_idle() && context.cache.is_under_way(&key)
    };
    let wanted = context
        .prefetch
        .reads(pattern, sequence, number, is_awaited);
    if !pattern.is_settled() {
        return None;
    }
    for number in wanted {
        let (here, pattern) = (store.clone(), pattern.clone());
        context.decoders.submit(move || {
            let range = blocks.range(number);
            if is_direct(&here.file, &range) {
                let wanted = || !pattern.has_reached(number);
                let fill = |out: &mut [u8]| fill(&here.file, &range, out);
                let key = key(&here.file, &range);
                here.context.cache.ahead(key, need(&range), wanted, fill);
            }
        });
    }
    Some(blocks)
}

/// Fills `buf` from byte `at` of the store file; `data` is the range of the elements.
pub fn read(
    store: &Arc<OpenStore>,
    pattern: &Arc<AccessPattern>,
    data: Range<u64>,
    at: u64,
    buf: &mut [u8],
) -> Result<()> {
    match begin(store, pattern, &data, at, buf.len()) {
        Some(blocks) => copy(store, blocks, at, buf),
        None => usual(&store.file, buf, at),
    }
}

/// Copies from blocks, or from the kernel's page cache.
fn copy(store: &Arc<OpenStore>, blocks: FileBlocks, at: u64, buf: &mut [u8]) -> Result<()> {
    let mut done = 0;
    while done < buf.len() {
        let from = at + done as u64;
        let range = blocks.range(blocks.number(from));
        let left = usize::try_from(range.end.saturating_sub(from)).unwrap_or(usize::MAX);
        let n = left.min(buf.len() - done);
        if n == 0 {
            return Err(Error::damaged("a block without bytes"));
        }
        let out = &mut buf[done..done + n];
        match found(store, &range, from, n)? {
            Some(found) => out.copy_from_slice(&found.block[found.range]),
            None => usual(&store.file, out, from)?,
        }
        done += n;
    }
    Ok(())
}

fn usual(file: &StoreFile, buf: &mut [u8], at: u64) -> Result<()> {
    let read = if buf.len() < LEAST {
        file.read_exact_at(buf, at)
    } else {
        // Without read-ahead: otherwise the next bytes would be in the page cache and be copied from there, and so on.
        file.read_alone_at(buf, at)
    };
    Ok(read?)
}

/// Returns bytes as `read` does, without a copy if they are in a single block; `None` until the reader is known to be
/// sequential.
pub fn share(
    store: &Arc<OpenStore>,
    pattern: &Arc<AccessPattern>,
    data: Range<u64>,
    at: u64,
    len: usize,
) -> Result<Option<Data>> {
    let Some(blocks) = begin(store, pattern, &data, at, len) else {
        return Ok(None);
    };
    let range = blocks.range(blocks.number(at));
    if range.end.saturating_sub(at) >= len as u64
        && let Some(found) = found(store, &range, at, len)?
    {
        return Ok(Some(Data::Shared(found.block, found.range)));
    }
    // The decision to read in blocks was made above and is not repeated.
    let mut buf = store.context.cache.pool().take(len);
    copy(store, blocks, at, &mut buf)?;
    Ok(Some(Data::Owned(buf)))
}

/// Returns `len` bytes at `at` of the block; `None` if they are better copied from the page cache.
fn found(
    store: &Arc<OpenStore>,
    range: &Range<u64>,
    at: u64,
    len: usize,
) -> Result<Option<FoundBytes>> {
    let (file, cache) = (&store.file, &store.context.cache);
    let key = key(file, range);
    if !cache.has(&key) && !is_direct(file, range) {
        return Ok(None);
    }
    let block = cache.read(key, need(range), |out| fill(file, range, out))?;
    let from = usize::try_from(at - aligned(range)).ok();
    let bytes = from.and_then(|from| Some(from..from.checked_add(len)?));
    let bytes = bytes.filter(|bytes| bytes.end <= block.len());
    if at + len as u64 == range.end {
        cache.consumed(&key);
    }
    let short = || Error::damaged("a block is shorter than the file");
    Ok(Some(FoundBytes {
        block,
        range: bytes.ok_or_else(short)?,
    }))
}

fn is_direct(file: &StoreFile, range: &Range<u64>) -> bool {
    let len = range.end - range.start;
    len > 0 && file.streams_directly(range.start, len)
}

/// Returns the offset in the file of the beginning of a block's buffer.
fn aligned(range: &Range<u64>) -> u64 {
    range.start / ALIGNMENT as u64 * ALIGNMENT as u64
}

/// Reads a block; bytes after the end of the file are undefined and never requested.
fn fill(file: &StoreFile, range: &Range<u64>, out: &mut [u8]) -> Result<()> {
    let start = aligned(range);
    let want = range.end - start;
    // A file system may fail to do what it reported to support: the normal path remains.
    match file.read_direct(out, start) {
        Ok(got) if got as u64 >= want => Ok(()),
        _ => {
            let want = usize::try_from(want).unwrap_or(out.len()).min(out.len());
            Ok(file.read_exact_at(&mut out[..want], start)?)
        }
    }
}

fn need(range: &Range<u64>) -> Need {
    let len = (range.end - aligned(range)).next_multiple_of(ALIGNMENT as u64);
    Need {
        // A block and a page.
        len: usize::try_from(len).unwrap_or(usize::MAX),
        beside: 0,
        passes: true,
        ..Need::default()
    }
}

fn key(file: &StoreFile, range: &Range<u64>) -> Key {
    Key {
        file: file.serial,
        object: u64::MAX,
        form: STORED,
        block: range.start,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn blocks_cover_the_file_and_begin_at_the_phase() {
        for phase in [0, 1, 4000, BLOCK - 1] {
            for size in [
                1,
                phase + 1,
                BLOCK,
                3 * BLOCK + phase,
                3 * BLOCK + phase + 5,
            ] {
                let blocks = FileBlocks { phase, size };
                let last = blocks.number(size - 1);
                let ranges: Vec<_> = (0..=last).map(|n| blocks.range(n)).collect();
                assert_eq!((ranges[0].start, ranges[ranges.len() - 1].end), (0, size));
                for pair in ranges.windows(2) {
                    assert_eq!(pair[0].end, pair[1].start);
                    assert_eq!(pair[1].start % BLOCK, phase);
                }
                for at in [0, size / 2, size - 1] {
                    assert!(blocks.range(blocks.number(at)).contains(&at));
                }
            }
        }
    }
}
