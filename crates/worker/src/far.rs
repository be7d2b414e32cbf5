//! The worker's end of a remote file, whose bytes the daemon provides on request.

use std::fmt;
use std::num::NonZeroUsize;
use std::ops::Range;
use std::sync::Arc;

use lru::LruCache;
use parking_lot::Mutex;

use npyfs_base::error::{Error, ErrorKind};
use npyfs_hdf5::protocol::Wire;
use npyfs_hdf5::walk;
use npyfs_io::file::Far;

/// The unit of requests in bytes; metadata lies close to other metadata.
const BLOCK: u64 = 8 << 10;

/// The largest number of blocks in one request if consecutive blocks are wanted, as in the heaps that hold text.
const MOST_AHEAD: u64 = 128;

/// The number of consecutive blocks before more than one is requested: nodes of indexes take fewer, and are followed by
/// data that no reader wants.
const IN_A_ROW: u32 = 4;

/// The number of blocks that are remembered: 32 MiB.
const BLOCKS: NonZeroUsize = NonZeroUsize::new(4096).unwrap();

/// The largest number of blocks in one request.
const TOGETHER: usize = 1024;

/// Longer reads, in bytes, are reads of data, which are not repeated.
const LARGE: u64 = 4 * BLOCK;

/// The number of chunks of a dataset from which on the memory for their index is worth reopening the file.
pub(super) const MANY_CHUNKS: usize = 16 << 10;

/// A file whose bytes the daemon has.
pub(super) struct AskedFile {
    wire: Arc<Wire>,
    size: u64,
    blocks: Mutex<LruCache<u64, Vec<u8>>>,
    ahead: Mutex<Readahead>,
}

/// The last request for blocks that were not remembered.
#[derive(Default)]
struct Readahead {
    /// The block after the last one requested.
    next: u64,
    /// The number of blocks.
    run: u64,
    /// The number of consecutive requests.
    row: u32,
}

impl AskedFile {
    /// Makes a file of this size. The daemon knows which file is meant, as it waits for the answer to a request about
    /// it.
    pub(super) fn new(wire: &Arc<Wire>, size: u64) -> Self {
        Self {
            wire: wire.clone(),
            size,
            blocks: Mutex::new(LruCache::new(BLOCKS)),
            ahead: Mutex::default(),
        }
    }

    fn range(&self, block: u64) -> Range<u64> {
        let start = block.saturating_mul(BLOCK).min(self.size);
        start..start.saturating_add(BLOCK).min(self.size)
    }

    /// Requests blocks that are not remembered, all together.
    fn ask(&self, blocks: &[u64]) -> Result<(), Error> {
        for blocks in blocks.chunks(TOGETHER) {
            let ranges: Vec<_> = blocks.iter().map(|&block| self.range(block)).collect();
            let len: u64 = ranges.iter().map(|range| range.end - range.start).sum();
            let mut bytes = vec![0; usize::try_from(len).unwrap_or(0)];
            self.wire.fetch(ranges.clone(), &mut bytes)?;
            let mut rest = &bytes[..];
            let mut known = self.blocks.lock();
            for (&block, range) in blocks.iter().zip(ranges) {
                let len = usize::try_from(range.end - range.start).unwrap_or(0);
                let (now, behind) = rest.split_at(len.min(rest.len()));
                known.put(block, now.to_vec());
                rest = behind;
            }
        }
        Ok(())
    }

    /// Returns a block that is not remembered, with the following blocks that will probably be wanted next. After the
    /// first few consecutive blocks, their number doubles each time that the block after the last one is wanted.
    fn wanted_with(&self, block: u64) -> Vec<u64> {
        let mut ahead = self.ahead.lock();
        let row = match block == ahead.next {
            true => ahead.row.saturating_add(1),
            false => 0,
        };
        let run = match row >= IN_A_ROW {
            true => (ahead.run * 2).min(MOST_AHEAD),
            false => 1,
        };
        let end = block.saturating_add(run);
        let end = end.min(self.size.div_ceil(BLOCK)).max(block + 1);
        let next = end;
        *ahead = Readahead { next, run, row };
        drop(ahead);
        let known = self.blocks.lock();
        let absent = |next: &u64| *next == block || !known.contains(next);
        (block..end).filter(absent).collect()
    }

    fn fill(&self, block: u64, offset: u64, to: &mut [u8]) -> Result<(), Error> {
        if !self.blocks.lock().contains(&block) {
            self.ask(&self.wanted_with(block))?;
        }
        let at = usize::try_from(offset % BLOCK).unwrap_or(0);
        let mut blocks = self.blocks.lock();
        let known = blocks
            .get(&block)
            .and_then(|bytes| bytes.get(at..at + to.len()));
        let known = known.ok_or_else(|| Error::damaged("a read behind the end of the file"))?;
        to.copy_from_slice(known);
        Ok(())
    }
}

impl Far for AskedFile {
    fn read(&self, mut buf: &mut [u8], mut offset: u64) -> Result<(), Error> {
        let len = buf.len() as u64;
        if len >= LARGE {
            let end = offset.saturating_add(len);
            return self.wire.fetch(std::iter::once(offset..end).collect(), buf);
        }
        while !buf.is_empty() {
            let inside = usize::try_from(BLOCK - offset % BLOCK).unwrap_or(usize::MAX);
            let (now, rest) = buf.split_at_mut(inside.min(buf.len()));
            self.fill(offset / BLOCK, offset, now)?;
            offset = offset.saturating_add(now.len() as u64);
            buf = rest;
        }
        Ok(())
    }

    fn fetch(&self, ranges: &[Range<u64>]) -> Result<(), Error> {
        let mut wanted: Vec<u64> = Vec::new();
        for range in ranges {
            let end = range.end.min(self.size);
            if range.start < end {
                wanted.extend(range.start / BLOCK..end.div_ceil(BLOCK));
            }
        }
        wanted.sort_unstable();
        wanted.dedup();
        let known = self.blocks.lock();
        wanted.retain(|block| !known.contains(block));
        drop(known);
        self.ask(&wanted)
    }

    fn is_unchanged(&self) -> bool {
        // The daemon decides that.
        true
    }

    fn is_current(&self) -> bool {
        true
    }
}

impl fmt::Debug for AskedFile {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("AskedFile")
            .field("size", &self.size)
            .finish_non_exhaustive()
    }
}

/// The metadata of a remote file, for the walk that fetches them before libhdf5 needs them.
struct Metadata<'a>(&'a Arc<dyn Far>);

impl walk::Pages for Metadata<'_> {
    type Error = Error;

    fn fetch(&mut self, ranges: &[Range<u64>]) -> Result<(), Error> {
        self.0.fetch(ranges)
    }

    fn bytes(&mut self, range: Range<u64>) -> Result<Vec<u8>, Error> {
        let len = range.end.saturating_sub(range.start);
        let mut bytes = vec![0; usize::try_from(len).unwrap_or(0)];
        self.0.read(&mut bytes, range.start)?;
        Ok(bytes)
    }
}

/// Fetches the index of the chunks of the dataset at an address in few round trips, before libhdf5 reads it.
pub(super) fn warm_index(far: &Arc<dyn Far>, size: u64, dataset: u64) -> Result<(), Error> {
    match walk::walk_dataset(&mut Metadata(far), size, dataset) {
        Err(e) if e.kind != ErrorKind::Damaged => Err(e),
        _ => Ok(()),
    }
}

/// Fetches the metadata of a file, without the indexes of many chunks, in few round trips. Errors in the metadata are
/// left to libhdf5, which meets them itself.
///
/// # Errors
///
/// The bytes cannot be fetched: libhdf5 would wait for them once more.
pub(super) fn warm(far: &Arc<dyn Far>, size: u64) -> Result<(), Error> {
    match walk::walk(&mut Metadata(far), size) {
        Err(e) if e.kind != ErrorKind::Damaged => Err(e),
        _ => Ok(()),
    }
}
