//! The payload of one dataset: its elements in C order, as `np.save` writes them.
//!
//! Bytes come from the file itself where they lie there as they are served, else from decoded blocks in
//! the cache, or, where the blocks that a reader of rows comes back to are too many for it, in a temporary
//! file. A read never decodes more than the blocks it touches.

use std::ops::Range;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, OnceLock};

use crate::dataset::access_pattern::AccessPattern;
use crate::dataset::backing::{Backing, Form, read_raw};
use crate::dataset::blocks::{APART, BlockReader, Blocks, SHARE};
use crate::dataset::cache::Block;
use crate::dataset::grid::{ChunkRow, Grid};
use crate::dataset::opened::OpenStore;
use crate::dataset::prefetch::BlockSequence;
use crate::dataset::stored;
use crate::error::{Error, ErrorKind, Result};
use crate::io::buffer::Buffer;
use crate::io::content::{Content, Data};
use crate::io::provenance::Provenance;
use crate::io::thread::is_background;

/// The elements of a dataset as bytes, for one open file.
#[derive(Clone)]
pub struct Payload(pub(super) Arc<BlockReader>);

impl Payload {
    /// Creates the payload of an open dataset. `rank` is the dataset's own; dimensions of an array datatype follow in
    /// the grid. The pattern is that of others, too, who read the dataset part by part, or new.
    pub fn new(
        store: Arc<OpenStore>,
        object: u64,
        rank: usize,
        len: u64,
        (backing, pattern): (Arc<Backing>, Arc<AccessPattern>),
    ) -> Self {
        Self(Arc::new(BlockReader {
            store,
            object,
            rank,
            len,
            backing,
            pattern,
            spill: OnceLock::new(),
            spilling: Mutex::new(()),
        }))
    }

    /// Returns whether no element was ever written.
    pub fn is_unwritten(&self) -> bool {
        matches!(&*self.0.backing, Backing::Fill(_))
    }

    /// Returns whether any element of a block of the dataset was ever written, which begins at the corner of a chunk; `None` if that
    /// takes reading.
    pub fn has_written(&self, start: &[u64], shape: &[u64]) -> Option<bool> {
        match &*self.0.backing {
            Backing::Fill(_) => Some(false),
            Backing::Blocks {
                direct: Some(chunks),
                ..
            } => Some(chunks.has_any(start, shape)),
            _ => None,
        }
    }

    /// Asks for the blocks that a sequential reader of `number` will want next.
    fn look_ahead(&self, grid: &Grid, chunk_row: ChunkRow, form: Form, number: u64) {
        if is_background() {
            return;
        }
        let context = &self.0.store.context;
        let under_way = context.prefetch.under_way();
        // What is fetched ahead must not push out what is being read: all chunk rows of which requests are under way, or,
        // where chunk rows are on disk, the blocks on their way there.
        let block = grid.block_bytes().max(1);
        let reading = match self.0.is_wide(chunk_row) {
            true => 2 + under_way.div_ceil(block),
            false => grid
                .chunk_rows_within(under_way)
                .saturating_mul(chunk_row.blocks),
        };
        let blocks = BlockSequence {
            bytes: block,
            count: grid.blocks(),
            row: chunk_row.blocks,
            reading,
        };
        let key = self.0.key(form.number(), number);
        let is_awaited = || context.decoders.is_idle() && context.cache.is_under_way(&key);
        let pattern = &self.0.pattern;
        let wanted = context.prefetch.reads(pattern, blocks, number, is_awaited);
        for next in wanted {
            if context.cache.has(&self.0.key(form.number(), next)) || self.0.is_spilled(next) {
                continue;
            }
            self.0.when_there(grid, next, move |inner| {
                let store = inner.store.clone();
                store.context.decoders.submit(move || {
                    if let Backing::Blocks { grid, .. } = &*inner.backing {
                        inner.fetch_ahead(grid, form, next, || !inner.pattern.has_reached(next));
                    }
                });
            });
        }
    }
}

/// Fills `buf` with the pattern as it stands at `offset` of an endless repetition.
pub fn repeat(pattern: &[u8], offset: u64, buf: &mut [u8]) {
    if pattern.iter().all(|&b| b == 0) {
        buf.fill(0);
        return;
    }
    let len = pattern.len();
    // A remainder is smaller than the length, which is a usize.
    let skip = (offset % len as u64) as usize;
    for (i, byte) in buf.iter_mut().enumerate() {
        *byte = pattern[(skip + i % len) % len];
    }
}

/// Blocks that are decoded for a request; when it is over nobody waits for those not begun yet.
#[derive(Default)]
struct Begun(Arc<AtomicBool>);

impl Drop for Begun {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Release);
    }
}

/// A part of a block that a request has at hand.
pub(super) struct Held {
    block: u64,
    /// Offset in the block.
    pub(super) from: u64,
    pub(super) bytes: Block,
}

impl Payload {
    /// Returns where contiguous elements lie that begin at an address.
    fn stored_at(&self, addr: u64) -> Range<u64> {
        addr..addr.saturating_add(self.0.len)
    }

    fn read_blocks(&self, blocks: Blocks<'_>, offset: u64, buf: &mut [u8]) -> Result<()> {
        let chunk_row = blocks.grid.chunk_row();
        let end = offset + buf.len() as u64;
        // Rows of a chunk that cuts across them come back to the same blocks: they stand where their
        // number in the chunk row says.
        let mut held: Vec<Option<Held>> = Vec::new();
        let mut bytes = 0;
        let mut done = 0;
        // A block that cannot be decoded whole: the rest of it is read chunk by chunk, too.
        let mut broken = None;
        let whole = self.0.fetch(blocks, offset, buf.len() as u64);
        let together = chunk_row.blocks == 1 && whole && !is_background();
        let _begun = (together && !buf.is_empty()).then(|| {
            let first = blocks.grid.run_at(offset).block;
            self.begin(blocks, first + 1..blocks.grid.run_at(end - 1).block + 1)
        });
        while done < buf.len() {
            let at = offset + done as u64;
            let run = blocks.grid.run_at(at);
            let n = usize::try_from(run.len)
                .unwrap_or(usize::MAX)
                .min(buf.len() - done);
            let out = &mut buf[done..done + n];
            let slot = usize::try_from(run.block % chunk_row.blocks).unwrap_or(usize::MAX);
            if let Some(Some(part)) = held.get(slot)
                && part.block == run.block
                && let Some(at) = run.at.checked_sub(part.from)
                && let Ok(found) = slice(&part.bytes, at, n)
            {
                out.copy_from_slice(found);
                done += n;
                continue;
            }
            // Of a chunk row the request wants at most these rows, and never more than it still lacks itself.
            let rows = (end - at) / chunk_row.row.max(1) + 2;
            let wanted = rows
                .saturating_mul(chunk_row.block_row)
                .clamp(n as u64, end - at);
            let form = blocks.form.number();
            let cache = &self.0.store.context.cache;
            let alone = || !whole && !cache.has(&self.0.key(form, run.block));
            if let Some(chunks) = blocks.chunks
                && (broken == Some(run.block) || alone())
            {
                done += self
                    .0
                    .read_chunk(chunks, blocks.form, at, &mut buf[done..])?;
                continue;
            }
            let part = match self.part(blocks, chunk_row, run.block, run.at, wanted) {
                Err(e) if e.kind == ErrorKind::Damaged && blocks.chunks.is_some() => {
                    broken = Some(run.block);
                    continue;
                }
                part => part?,
            };
            out.copy_from_slice(slice(&part.bytes, run.at - part.from, n)?);
            done += n;
            if chunk_row.blocks > 1 && slot < 1 << 16 {
                bytes += part.bytes.len();
                if bytes > self.0.store.context.tuning.held {
                    held.clear();
                    bytes = 0;
                }
                if held.len() <= slot {
                    held.resize_with(slot + 1, || None);
                }
                held[slot] = Some(part);
            }
        }
        Ok(())
    }

    /// Starts the decoding of blocks that this request will come to, while it decodes the first itself.
    fn begin(&self, blocks: Blocks<'_>, wanted: std::ops::Range<u64>) -> Begun {
        let context = &self.0.store.context;
        let begun = Begun::default();
        for next in wanted.take(context.tuning.begun) {
            if context.cache.has(&self.0.key(blocks.form.number(), next)) {
                continue;
            }
            let (form, over) = (blocks.form, begun.0.clone());
            self.0.when_there(blocks.grid, next, move |inner| {
                let store = inner.store.clone();
                store.context.decoders.submit_first(move || {
                    if let Backing::Blocks { grid, .. } = &*inner.backing {
                        inner.fetch_ahead(grid, form, next, || !over.load(Ordering::Acquire));
                    }
                });
            });
        }
        begun
    }

    /// Returns a block, or of one in the spill the `wanted` bytes from `at` on: it may be larger than all memory.
    pub(super) fn part(
        &self,
        blocks: Blocks<'_>,
        chunk_row: ChunkRow,
        number: u64,
        at: u64,
        wanted: u64,
    ) -> Result<Held> {
        let inner = &self.0;
        self.look_ahead(blocks.grid, chunk_row, blocks.form, number);
        if let Some(spill) = inner.spill(blocks.grid, chunk_row, number)? {
            let left = blocks.grid.bytes_of(number) - at;
            let len = usize::try_from(left.min(wanted)).map_err(|_| short())?;
            let mut bytes = inner.store.context.cache.pool().take(len);
            inner.read_spilled(spill, blocks, number, at, &mut bytes)?;
            return Ok(Held {
                block: number,
                from: at,
                bytes: Arc::new(bytes),
            });
        }
        let need = inner.need(blocks.grid, number)?;
        let bytes = (need.len as u64).saturating_add(need.beside as u64);
        if bytes > inner.store.context.cache.limit() {
            let why = format!(
                "a chunk takes {bytes} bytes to decode: that is more than cache_size, and there is no room for a temporary file"
            );
            return Err(Error::new(ErrorKind::Os(libc::ENOSPC), why));
        }
        Ok(Held {
            block: number,
            from: 0,
            bytes: inner.decoded(blocks.grid, blocks.form, blocks.form.number(), number)?,
        })
    }

    /// Gives up chunk rows that this reader has read to their end: the kernel has their bytes now, or somebody
    /// who takes samples at random from more than there is room for.
    fn note_read(&self, blocks: Blocks<'_>, offset: u64, len: usize) {
        let inner = &self.0;
        let cache = &inner.store.context.cache;
        // Small arrays may stay: there is room for others beside them.
        let background = is_background();
        if !background && (inner.len <= cache.limit() / SHARE || inner.is_shared()) {
            return;
        }
        let chunk_row = blocks.grid.chunk_row();
        let end = offset + len as u64;
        let mut at = offset;
        while at < end {
            let (number, range) = blocks.grid.chunk_row_at(at);
            let here = range.end.min(end) - at;
            if inner
                .pattern
                .is_consumed(number, here, range.end - range.start)
            {
                for block in number * chunk_row.blocks..(number + 1) * chunk_row.blocks {
                    let apart = if background { APART } else { 0 };
                    let key = inner.key(blocks.form.number() | apart, block);
                    cache.consumed(&key);
                }
            }
            at += here;
        }
    }
}

impl Content for Payload {
    fn len(&self) -> u64 {
        self.0.len
    }

    fn read_at(&self, offset: u64, buf: &mut [u8]) -> Result<()> {
        let store = &self.0.store;
        match &*self.0.backing {
            Backing::Fill(pattern) => repeat(pattern, offset, buf),
            Backing::Memory(bytes) => {
                let start = usize::try_from(offset).unwrap_or(usize::MAX);
                let part = start
                    .checked_add(buf.len())
                    .and_then(|end| bytes.get(start..end))
                    .ok_or_else(short)?;
                buf.copy_from_slice(part);
            }
            Backing::Contiguous(addr) => {
                let at = addr.checked_add(offset).ok_or_else(short)?;
                stored::read(store, &self.0.pattern, self.stored_at(*addr), at, buf)?;
            }
            Backing::Raw { parts, fill } => read_raw(parts, fill, offset, buf)?,
            Backing::Blocks {
                grid, chunks, form, ..
            } => {
                let blocks = Blocks {
                    grid,
                    chunks: chunks.as_ref(),
                    form: *form,
                };
                self.read_blocks(blocks, offset, buf)?;
                self.note_read(blocks, offset, buf.len());
            }
        }
        Ok(())
    }

    fn stored(&self, from: u64) -> Option<Range<u64>> {
        let all = from..self.0.len;
        match &*self.0.backing {
            Backing::Fill(_) => None,
            Backing::Blocks {
                grid,
                direct: Some(chunks),
                ..
            } => {
                // A chunk row is all that lies between two offsets of the payload.
                let mut at = from;
                while at < self.0.len {
                    let (number, range) = grid.chunk_row_at(at);
                    let blocks = grid.chunk_row().blocks;
                    let has = |block| {
                        let (start, shape) = grid.bounds(block);
                        chunks.has_any(&start, &shape)
                    };
                    if (number * blocks..(number + 1) * blocks).any(has) {
                        return Some(at..range.end);
                    }
                    at = range.end;
                }
                None
            }
            _ => (!all.is_empty()).then_some(all),
        }
    }

    fn repeats(&self, from: u64) -> Option<(u64, u64)> {
        let element = match &*self.0.backing {
            Backing::Fill(element) => element.len(),
            Backing::Blocks {
                direct: Some(chunks),
                ..
            } => chunks.fill_value().len(),
            _ => return None,
        };
        let end = self.stored(from).map_or(self.0.len, |next| next.start);
        (end > from).then_some((end, element as u64))
    }

    fn is_costly(&self) -> bool {
        matches!(&*self.0.backing, Backing::Blocks { .. })
    }

    fn is_at_hand(&self) -> bool {
        let Some(far) = self.0.store.file.far() else {
            return true;
        };
        match &*self.0.backing {
            Backing::Fill(_) | Backing::Memory(_) => true,
            Backing::Contiguous(addr) => far.has(std::slice::from_ref(&self.stored_at(*addr))),
            Backing::Blocks {
                direct: Some(chunks),
                ..
            } => far.has(&chunks.places()),
            _ => false,
        }
    }

    fn tell_provenance(&self, to: &mut Provenance) -> bool {
        let file = &self.0.store.file;
        if file.far().is_some_and(|far| !far.is_told_apart()) {
            return false;
        }
        to.file(&file.path, &file.identity);
        to.numbers("dataset", &[self.0.object, self.0.len]);
        self.0.backing.tell_provenance(to)
    }

    fn share(&self, offset: u64, len: usize) -> Result<Option<Data>> {
        if let Backing::Contiguous(addr) = &*self.0.backing {
            let at = addr.checked_add(offset).ok_or_else(short)?;
            let data = self.stored_at(*addr);
            return stored::share(&self.0.store, &self.0.pattern, data, at, len);
        }
        let Backing::Blocks {
            grid, chunks, form, ..
        } = &*self.0.backing
        else {
            return Ok(None);
        };
        let blocks = Blocks {
            grid,
            chunks: chunks.as_ref(),
            form: *form,
        };
        let run = grid.run_at(offset);
        if run.len < len as u64 {
            return Ok(None);
        }
        let chunk_row = grid.chunk_row();
        let gathers = chunks.is_some();
        if gathers && !self.0.reads_whole_blocks() {
            return Ok(None);
        }
        let cached = || {
            let key = self.0.key(form.number(), run.block);
            self.0.store.context.cache.has(&key)
        };
        if !self.0.fetch(blocks, offset, len as u64) && gathers && !cached() {
            return Ok(None);
        }
        let part = match self.part(blocks, chunk_row, run.block, run.at, len as u64) {
            // `read_at` finds out which of the chunks is damaged.
            Err(e) if chunks.is_some() && e.kind == ErrorKind::Damaged => return Ok(None),
            part => part?,
        };
        let from = run.at - part.from;
        slice(&part.bytes, from, len)?;
        self.note_read(blocks, offset, len);
        let at = usize::try_from(from).map_err(|_| short())?;
        Ok(Some(Data::Shared(part.bytes, at..at + len)))
    }
}

pub(super) fn slice(block: &Buffer, at: u64, len: usize) -> Result<&[u8]> {
    let at = usize::try_from(at).map_err(|_| short())?;
    at.checked_add(len)
        .and_then(|end| block.get(at..end))
        .ok_or_else(short)
}

pub(super) fn short() -> Error {
    Error::new(ErrorKind::Damaged, "fewer bytes than the shape needs")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fill_values_repeat_from_any_offset() {
        let mut buf = [0; 7];
        repeat(b"abc", 2, &mut buf);
        assert_eq!(&buf, b"cabcabc");
        repeat(&[0, 0], 5, &mut buf);
        assert_eq!(buf, [0; 7]);
    }
}
