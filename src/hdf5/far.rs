//! A worker's end of a file that lies elsewhere: its bytes are asked of the daemon.

use std::fmt;
use std::num::NonZeroUsize;
use std::sync::{Arc, Mutex};

use lru::LruCache;

use super::wire::Wire;
use crate::error::Error;
use crate::io::file::far::Far;

/// Bytes that are asked for at a time; metadata lies near other metadata.
const BLOCK: u64 = 8 << 10;

/// Blocks that are remembered: 16 MiB.
const BLOCKS: NonZeroUsize = NonZeroUsize::new(2048).unwrap();

/// Reads of more bytes are of data, which nobody reads twice.
const LARGE: u64 = 4 * BLOCK;

/// A file whose bytes the daemon has.
pub(super) struct AskedFile {
    wire: Arc<Wire>,
    size: u64,
    blocks: Mutex<LruCache<u64, Vec<u8>>>,
}

impl AskedFile {
    /// Returns a file of a size; the daemon knows which one, as it waits for the answer to a request about it.
    pub(super) fn new(wire: &Arc<Wire>, size: u64) -> Self {
        Self {
            wire: wire.clone(),
            size,
            blocks: Mutex::new(LruCache::new(BLOCKS)),
        }
    }

    fn fill(&self, block: u64, offset: u64, to: &mut [u8]) -> Result<(), Error> {
        let mut blocks = self.blocks.lock().unwrap_or_else(|e| e.into_inner());
        if !blocks.contains(&block) {
            let start = block.saturating_mul(BLOCK);
            let len = self.size.saturating_sub(start).min(BLOCK);
            let mut bytes = vec![0; usize::try_from(len).unwrap_or(0)];
            self.wire.fetch(&mut bytes, start)?;
            blocks.put(block, bytes);
        }
        let at = usize::try_from(offset % BLOCK).unwrap_or(0);
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
        if buf.len() as u64 >= LARGE {
            return self.wire.fetch(buf, offset);
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

    fn is_unchanged(&self) -> bool {
        // The daemon judges.
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
