//! An array that is read in blocks: from the cache, or from a temporary file if the blocks that a reader of rows
//! returns to do not fit into the cache.
//!
//! The source of an array knows what blocks are made of: chunks of a dataset, or samples of many files. A read decodes
//! only the blocks that it touches, and each block once.

use std::ops::Range;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};

use parking_lot::Mutex;

use super::backing::SINGLE;
use super::chunked::{LARGEST, StoredChunks};
use super::elements::{short, slice};
use super::grid::{ChunkRow, Grid};
use super::spill::Spill;
use crate::dataset::access_pattern::AccessPattern;
use crate::dataset::cache::{Block, Key, Need};
use crate::dataset::context::Context;
use crate::dataset::prefetch::BlockSequence;
use npyfs_base::error::{Error, ErrorKind, Result};
use npyfs_base::thread::is_background;
use npyfs_hdf5::Sink;
use npyfs_io::content::Data;
use npyfs_io::file::Far;

/// The share of the cache that the blocks of one chunk row, or the decoding of one block, may take.
pub(super) const SHARE: u64 = 4;

/// Added to the form number of blocks that a background thread decodes, so that a reader of the same block never waits
/// for that thread, which yields to all others.
const APART: u32 = 1 << 16;

/// Bytes of the smallest chunk for which waking another thread pays.
const WORTH_A_THREAD: u64 = 64 << 10;

/// The largest number of chunk rows on disk; more than large ones need.
const MOST_CHUNK_ROWS: u64 = 16;

/// Stored ranges of one remote file.
pub type FarRanges = (Arc<dyn Far>, Vec<Range<u64>>);

/// An array cut into blocks, and the way to decode them.
pub trait BlockSource: Send + Sync {
    /// Returns the grid of the blocks.
    fn grid(&self) -> &Grid;

    /// Returns the grid of the chunks if a block gathers several chunks: a damaged chunk must not affect the others.
    fn chunks(&self) -> Option<&Grid> {
        None
    }

    /// Returns the key of the first block.
    fn key(&self) -> Key;

    /// Returns the name of the file, for messages.
    fn name(&self) -> String;

    /// Returns the memory that decoding a block or a chunk of `len` bytes takes.
    fn need(&self, grid: &Grid, number: u64, len: usize) -> Need;

    /// Fills `out` with a block or a chunk; `streaming` says that the reader is sequential.
    fn fill(&self, grid: &Grid, number: u64, streaming: bool, out: &mut [u8]) -> Result<()>;

    /// Returns the address of a chunk in the file if it is stored there as it is served; `read_plain` then reads from
    /// there.
    fn plain(&self, _grid: &Grid, _number: u64) -> Option<u64> {
        None
    }

    /// Fills `out` from an address in the file.
    fn read_plain(&self, _address: u64, _out: &mut [u8]) -> Result<()> {
        Err(short())
    }

    /// Reads some chunks of a local file together; `None` if they are stored apart or otherwise.
    fn read_together(
        &self,
        _grid: &Grid,
        _numbers: Range<u64>,
    ) -> Result<Option<StoredChunks<'_>>> {
        Ok(None)
    }

    /// Has the kernel read some chunks of a local file together that are about to be decoded one by one.
    fn will_need(&self, _grid: &Grid, _numbers: Range<u64>) {}

    /// Hands on the bytes of a block or a chunk for which memory has no room, each part with its offset. After a
    /// failure on the way the parts may begin again at 0.
    fn stream(&self, grid: &Grid, number: u64, sink: &mut Sink<'_>) -> Result<()>;

    /// Returns the share of the cache that making one block may take; larger blocks are made on disk.
    fn share(&self) -> u64 {
        SHARE
    }

    /// Returns true if a block stays in the cache after this reader has read it to its end, because other readers may
    /// want it. `small` says that there is room for the array beside others.
    fn keeps(&self, small: bool) -> bool;

    /// Returns true if the array is stored in remote files; `stored` then returns the ranges in them.
    fn is_far(&self) -> bool {
        false
    }

    /// Returns the stored ranges of blocks or chunks. A range that cannot be determined is omitted and left to the
    /// reader.
    fn stored(&self, _grid: &Grid, _numbers: &[u64]) -> Vec<FarRanges> {
        Vec::new()
    }

    /// Returns the stored ranges of parts of chunks: of each chunk its number, and a range of its bytes.
    fn stored_parts(&self, grid: &Grid, parts: &[(u64, Range<u64>)]) -> Vec<FarRanges> {
        let numbers: Vec<u64> = parts.iter().map(|(number, _)| *number).collect();
        self.stored(grid, &numbers)
    }

    /// Returns true if `stored` itself may have to wait for a network.
    fn looks_up(&self) -> bool {
        false
    }

    /// Returns the stored size in bytes of all blocks, if it is known.
    fn stored_bytes(&self) -> Option<u64> {
        None
    }
}

/// The blocks of one open file. Read-ahead jobs share this reader.
pub struct BlockReader {
    pub(super) context: Arc<Context>,
    pub(super) source: Arc<dyn BlockSource>,
    pub(super) len: u64,
    pub(super) pattern: Arc<AccessPattern>,
    /// The file for decoded blocks that the cache cannot hold; `None` if there is no room for them.
    spill: OnceLock<Spill>,
    /// Held during the decoding of a block that only the spill has room for.
    spilling: Mutex<()>,
}

/// The blocks that are decoded for a request; at its end, blocks not begun yet are no longer wanted.
#[derive(Default)]
struct RequestedBlocks(Arc<AtomicBool>);

impl Drop for RequestedBlocks {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Release);
    }
}

/// A part of a block that a request holds.
pub(super) struct HeldPart {
    block: u64,
    /// The offset in the block.
    pub(super) from: u64,
    pub(super) bytes: Block,
}

/// Returns true if a failure to make a block may come from one of its chunks alone.
pub(super) fn is_of_one(e: &Error) -> bool {
    matches!(
        e.kind,
        ErrorKind::Damaged | ErrorKind::Os(libc::ENODATA | libc::EACCES)
    )
}

/// Reading.
impl BlockReader {
    /// Creates a reader of `len` bytes. The pattern is new, or shared with other readers that read the array part by
    /// part.
    pub fn new(
        context: &Arc<Context>,
        source: Arc<dyn BlockSource>,
        len: u64,
        pattern: Arc<AccessPattern>,
    ) -> Arc<Self> {
        Arc::new(Self {
            context: context.clone(),
            source,
            len,
            pattern,
            spill: OnceLock::new(),
            spilling: Mutex::new(()),
        })
    }

    /// Returns the size of the array in bytes.
    pub fn len(&self) -> u64 {
        self.len
    }

    /// Fills `buf` from `offset`.
    pub fn read_at(self: &Arc<Self>, offset: u64, buf: &mut [u8]) -> Result<()> {
        let grid = self.source.grid();
        let chunk_row = grid.chunk_row();
        let end = offset + buf.len() as u64;
        // Rows of a chunk that is cut by them return to the same blocks, which are stored here by their number in the
        // chunk row.
        let mut held: Vec<Option<HeldPart>> = Vec::new();
        let mut bytes = 0;
        let mut done = 0;
        // A block that cannot be decoded as a whole: the rest of it is read chunk by chunk, too.
        let mut broken = None;
        let whole = self.fetch(offset, buf.len() as u64);
        let together = chunk_row.blocks == 1 && !is_background();
        if !whole && together && self.read_samples(offset, buf) {
            return Ok(());
        }
        let _begun = (together && !buf.is_empty()).then(|| {
            let grid = self.source.chunks().filter(|_| !whole).unwrap_or(grid);
            let first = grid.run_at(offset).block;
            self.begin(grid, first + 1..grid.run_at(end - 1).block + 1)
        });
        while done < buf.len() {
            let at = offset + done as u64;
            let run = grid.run_at(at);
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
            // The request wants at most these rows of a chunk row, and never more than it still lacks.
            let rows = (end - at) / chunk_row.row.max(1) + 2;
            let wanted = rows
                .saturating_mul(chunk_row.block_row)
                .clamp(n as u64, end - at);
            let alone = || !whole && !self.has(run.block);
            if let Some(chunks) = self.source.chunks()
                && (broken == Some(run.block) || alone())
            {
                let read = match self.read_plain(chunks, at, &mut buf[done..])? {
                    0 => self.read_chunk(chunks, at, &mut buf[done..])?,
                    read => read,
                };
                done += read;
                continue;
            }
            let part = match self.part(chunk_row, run.block, run.at, wanted) {
                Err(e) if is_of_one(&e) && self.source.chunks().is_some() => {
                    broken = Some(run.block);
                    continue;
                }
                part => part?,
            };
            out.copy_from_slice(slice(&part.bytes, run.at - part.from, n)?);
            done += n;
            if chunk_row.blocks > 1 && slot < 1 << 16 {
                bytes += part.bytes.len();
                if bytes > self.context.tuning.held {
                    held.clear();
                    bytes = 0;
                }
                if held.len() <= slot {
                    held.resize_with(slot + 1, || None);
                }
                held[slot] = Some(part);
            }
        }
        self.note_read(offset, buf.len());
        Ok(())
    }

    /// Fills `buf` from `offset` with small whole chunks and the edges of those beside them, past the cache: the kernel
    /// keeps what it is given. Returns false if the bytes are better read in another way, or if reading failed, for the
    /// usual way to tell why.
    fn read_samples(&self, offset: u64, buf: &mut [u8]) -> bool {
        let Some(chunks) = self.source.chunks().filter(|_| !self.source.is_far()) else {
            return false;
        };
        let bytes = chunks.block_bytes();
        let end = offset + buf.len() as u64;
        if !(1..WORTH_A_THREAD).contains(&bytes) || chunks.chunk_row().blocks != 1 {
            return false;
        }
        if offset.div_ceil(bytes) >= end / bytes {
            return false;
        }
        let numbers = offset / bytes..end.div_ceil(bytes);
        let first_block = self.source.grid().run_at(offset).block;
        if self.has(first_block) || self.source.plain(chunks, numbers.start).is_some() {
            return false;
        }
        let Ok(Some(stored)) = self.source.read_together(chunks, numbers.clone()) else {
            return false;
        };
        let mut edge = Vec::new();
        let mut left = buf;
        for (index, number) in numbers.enumerate() {
            let start = number * bytes;
            let from = start.max(offset);
            // Both are in a request.
            let (skip, len) = (
                (from - start) as usize,
                ((start + bytes).min(end) - from) as usize,
            );
            let (out, rest) = left.split_at_mut(len);
            let decoded = if len as u64 == bytes {
                stored.decode(index, out)
            } else {
                edge.resize(bytes as usize, 0);
                let decoded = stored.decode(index, &mut edge);
                out.copy_from_slice(&edge[skip..skip + len]);
                decoded
            };
            if decoded.is_err() {
                return false;
            }
            self.context.cache.passed_on(bytes as usize);
            left = rest;
        }
        true
    }

    /// Returns `len` bytes from `offset` without a copy, if they are contiguous in a block.
    pub fn share(self: &Arc<Self>, offset: u64, len: usize) -> Result<Option<Data>> {
        let grid = self.source.grid();
        let run = grid.run_at(offset);
        if run.len < len as u64 {
            return Ok(None);
        }
        let gathers = self.source.chunks().is_some();
        if gathers && !self.is_in_order() && !self.has(run.block) {
            return Ok(None);
        }
        if !self.fetch(offset, len as u64) && gathers && !self.has(run.block) {
            return Ok(None);
        }
        let part = match self.part(grid.chunk_row(), run.block, run.at, len as u64) {
            // `read_at` determines which of the chunks is damaged.
            Err(e) if gathers && is_of_one(&e) => return Ok(None),
            part => part?,
        };
        let from = run.at - part.from;
        slice(&part.bytes, from, len)?;
        self.note_read(offset, len);
        let at = usize::try_from(from).map_err(|_| short())?;
        Ok(Some(Data::Shared(part.bytes, at..at + len)))
    }

    /// Starts decoding the first blocks for a reader that is about to begin.
    pub fn expect(self: &Arc<Self>) {
        let blocks = self.sequence(self.source.grid().chunk_row());
        for number in self.context.prefetch.first(blocks) {
            let pattern = self.pattern.clone();
            let wanted = move || !pattern.has_reached(number);
            self.clone().submit_ahead(number, false, wanted);
        }
    }

    /// Has the decoder threads decode a block, if it is still wanted then. `first` says that a request waits for the
    /// block.
    fn submit_ahead(
        self: Arc<Self>,
        number: u64,
        first: bool,
        wanted: impl FnOnce() -> bool + Send + 'static,
    ) {
        let context = self.context.clone();
        let job = move || self.fetch_ahead(number, wanted);
        match first {
            true => context.decoders.submit_first(job),
            false => context.decoders.submit(job),
        }
    }

    /// Returns the blocks in the order in which the reader goes through them.
    fn sequence(&self, chunk_row: ChunkRow) -> BlockSequence {
        let grid = self.source.grid();
        let under_way = self.context.prefetch.under_way();
        let block = grid.block_bytes().max(1);
        // Blocks that are fetched ahead must not evict blocks that are being read: all chunk rows of the requests under
        // way or, if chunk rows are on disk, the blocks on their way there.
        let reading = match self.is_wide(chunk_row) {
            true => 2 + under_way.div_ceil(block),
            false => grid
                .chunk_rows_within(under_way)
                .saturating_mul(chunk_row.blocks),
        };
        BlockSequence {
            bytes: block,
            count: grid.blocks(),
            row: chunk_row.blocks,
            reading,
        }
    }

    /// Requests the blocks that a sequential reader of `number` will want next.
    fn look_ahead(self: &Arc<Self>, chunk_row: ChunkRow, number: u64) {
        if is_background() {
            return;
        }
        let context = &self.context;
        let key = self.key(number);
        let is_awaited = || context.decoders.is_idle() && context.cache.is_under_way(&key);
        let blocks = self.sequence(chunk_row);
        let wanted = context
            .prefetch
            .reads(&self.pattern, blocks, number, is_awaited);
        for next in wanted {
            if self.has(next) || self.is_spilled(next) {
                continue;
            }
            self.when_there(next, move |own| {
                let pattern = own.pattern.clone();
                own.submit_ahead(next, false, move || !pattern.has_reached(next));
            });
        }
    }

    /// Starts decoding the blocks or the chunks that this request will reach, while the request itself decodes the
    /// first.
    fn begin(self: &Arc<Self>, grid: &Grid, wanted: Range<u64>) -> RequestedBlocks {
        let begun = RequestedBlocks::default();
        let single = !std::ptr::eq(grid, self.source.grid());
        if single && !wanted.is_empty() {
            let first = wanted.start - 1;
            if self.plain(grid, first).is_some() {
                return begun;
            }
            if !self.source.is_far() {
                self.source.will_need(grid, first..wanted.end);
            }
        }
        if single && grid.block_bytes() < WORTH_A_THREAD {
            return begun;
        }
        for next in wanted.take(self.context.tuning.begun) {
            let over = begun.0.clone();
            let wanted = move || !over.load(Ordering::Acquire);
            if single {
                if !self.context.cache.has(&self.single(next)) {
                    let own = self.clone();
                    let job = move || own.fetch_single_ahead(next, wanted);
                    self.context.decoders.submit_first(job);
                }
            } else if !self.has(next) {
                self.when_there(next, move |own| own.submit_ahead(next, true, wanted));
            }
        }
        begun
    }

    /// Returns a block, or, for a block in the spill, the `wanted` bytes from `at` on: such a block may be larger than
    /// memory.
    pub(super) fn part(
        self: &Arc<Self>,
        chunk_row: ChunkRow,
        number: u64,
        at: u64,
        wanted: u64,
    ) -> Result<HeldPart> {
        self.look_ahead(chunk_row, number);
        let grid = self.source.grid();
        if let Some(spill) = self.spill(chunk_row, number)? {
            let left = grid.bytes_of(number) - at;
            let len = usize::try_from(left.min(wanted)).map_err(|_| short())?;
            let mut bytes = self.context.cache.pool().take(len);
            self.read_spilled(spill, number, at, &mut bytes)?;
            return Ok(HeldPart {
                block: number,
                from: at,
                bytes: Arc::new(bytes),
            });
        }
        let need = self.need(grid, number)?;
        let bytes = (need.len as u64).saturating_add(need.beside as u64);
        if bytes > self.context.cache.limit() {
            let why = format!(
                "a chunk takes {bytes} bytes to decode: that is more than cache_size, and there is no room for a temporary file"
            );
            return Err(Error::new(ErrorKind::Os(libc::ENOSPC), why));
        }
        Ok(HeldPart {
            block: number,
            from: 0,
            bytes: self.decoded(grid, self.key(number))?,
        })
    }

    /// Gives up chunk rows that this reader has read to their end: the kernel has their bytes now, or a program takes
    /// random samples from an array that is larger than the cache.
    fn note_read(&self, offset: u64, len: usize) {
        let cache = &self.context.cache;
        let grid = self.source.grid();
        let chunk_row = grid.chunk_row();
        if chunk_row.blocks == 1 {
            self.pattern.took(grid.chunk_row_at(offset).0, len as u64);
        }
        let background = is_background();
        let small = self.len <= cache.limit() / SHARE;
        if !background && self.source.keeps(small) {
            return;
        }
        let end = offset + len as u64;
        let mut at = offset;
        while at < end {
            let (number, range) = grid.chunk_row_at(at);
            let here = range.end.min(end) - at;
            if self
                .pattern
                .is_consumed(number, here, range.end - range.start)
            {
                for block in number * chunk_row.blocks..(number + 1) * chunk_row.blocks {
                    let mut key = self.key(block);
                    key.form |= if background { APART } else { 0 };
                    cache.consumed(&key);
                }
            }
            at += here;
        }
    }
}

/// Single blocks and chunks.
impl BlockReader {
    /// Returns the key of a block.
    pub(super) fn key(&self, block: u64) -> Key {
        Key {
            block,
            ..self.source.key()
        }
    }

    /// Returns the key of a chunk that is read alone.
    pub(super) fn single(&self, chunk: u64) -> Key {
        Key {
            form: self.source.key().form + SINGLE,
            ..self.key(chunk)
        }
    }

    /// Returns true if a block is decoded, or will be soon.
    pub(super) fn has(&self, block: u64) -> bool {
        self.context.cache.has(&self.key(block))
    }

    fn need(&self, grid: &Grid, number: u64) -> Result<Need> {
        let bytes = grid.bytes_of(number);
        if bytes > LARGEST {
            let why = format!("a chunk of {bytes} bytes: one of more than 1 GiB is not decoded");
            return Err(Error::new(ErrorKind::TooLarge, why));
        }
        let len = usize::try_from(bytes)
            .map_err(|_| Error::damaged("a block too large for this machine"))?;
        Ok(self.source.need(grid, number, len))
    }

    /// Returns the decoded block or chunk of a key.
    pub(super) fn decoded(&self, grid: &Grid, mut key: Key) -> Result<Block> {
        let (number, need) = (key.block, self.need(grid, key.block)?);
        let settled = self.pattern.is_settled();
        let cache = &self.context.cache;
        if is_background() && !cache.is_ready(&key) {
            key.form |= APART;
        }
        cache.read(key, need, |out| {
            self.source.fill(grid, number, settled, out)
        })
    }

    fn fetch_ahead(&self, number: u64, wanted: impl FnOnce() -> bool) {
        let grid = self.source.grid();
        // The reader meets the same failure.
        let Ok(need) = self.need(grid, number) else {
            return;
        };
        if self.is_large(need) || self.is_spilled(number) {
            return;
        }
        self.context
            .cache
            .ahead(self.key(number), need, wanted, |out| {
                self.source.fill(grid, number, true, out)
            });
    }

    fn fetch_single_ahead(&self, chunk: u64, wanted: impl FnOnce() -> bool) {
        let Some(grid) = self.source.chunks() else {
            return;
        };
        if let Ok(need) = self.need(grid, chunk)
            && !self.is_large(need)
        {
            let fill = |out: &mut [u8]| self.source.fill(grid, chunk, false, out);
            let key = self.single(chunk);
            self.context.cache.ahead(key, need, wanted, fill);
        }
    }

    /// Returns the address of a chunk that is read from the file as it is served. A remote chunk that rows cut is
    /// fetched as a whole: a reader of some rows wants other ones, too.
    fn plain(&self, chunks: &Grid, number: u64) -> Option<u64> {
        let is_whole = self.source.is_far() && chunks.chunk_row().blocks != 1;
        match is_whole {
            true => None,
            false => self.source.plain(chunks, number),
        }
    }

    /// Fills the first part of `buf` from chunks that are stored one after the other as they are served. Returns the
    /// number of bytes: 0 if there are none.
    fn read_plain(&self, chunks: &Grid, offset: u64, buf: &mut [u8]) -> Result<usize> {
        let (mut begin, mut len) = (None, 0);
        while len < buf.len() {
            let run = chunks.run_at(offset.saturating_add(len as u64));
            let Some(address) = self.plain(chunks, run.block) else {
                break;
            };
            let address = address.checked_add(run.at).ok_or_else(short)?;
            let begin = *begin.get_or_insert(address);
            if begin.checked_add(len as u64) != Some(address) {
                break;
            }
            let n = usize::try_from(run.len).unwrap_or(usize::MAX);
            if n == 0 {
                break;
            }
            len += n.min(buf.len() - len);
        }
        if let Some(begin) = begin {
            self.source.read_plain(begin, &mut buf[..len])?;
        }
        Ok(len)
    }

    /// Copies from the chunk that holds `offset`, for a block of which a part is damaged.
    fn read_chunk(&self, chunks: &Grid, offset: u64, buf: &mut [u8]) -> Result<usize> {
        let run = chunks.run_at(offset);
        let n = usize::try_from(run.len)
            .unwrap_or(usize::MAX)
            .min(buf.len());
        let need = self.need(chunks, run.block)?;
        if (need.len as u64).saturating_add(need.beside as u64) > self.context.cache.limit() {
            // The chunk is stored in more bytes than there is memory for, whatever its decoded size.
            let wanted = run.at..run.at.saturating_add(n as u64);
            self.source.stream(chunks, run.block, &mut |at, part| {
                let end = at.saturating_add(part.len() as u64).min(wanted.end);
                let from = at.max(wanted.start);
                if from < end {
                    // Both ranges are in memory.
                    let (here, there) = ((from - at) as usize, (from - wanted.start) as usize);
                    let len = (end - from) as usize;
                    buf[there..there + len].copy_from_slice(&part[here..here + len]);
                }
                Ok(())
            })?;
            return Ok(n);
        }
        let block = self.decoded(chunks, self.single(run.block))?;
        buf[..n].copy_from_slice(slice(&block, run.at, n)?);
        Ok(n)
    }
}

/// Blocks that do not fit into the cache.
impl BlockReader {
    /// Returns true if decoding a block takes more than one block's share of the cache.
    fn is_large(&self, need: Need) -> bool {
        let bytes = (need.len as u64).saturating_add(need.beside as u64);
        bytes > self.context.cache.limit() / self.source.share()
    }

    /// Returns true if the blocks of a chunk row take more than their share of the cache.
    fn is_wide(&self, chunk_row: ChunkRow) -> bool {
        chunk_row.blocks > 1 && chunk_row.bytes > self.context.cache.limit() / SHARE
    }

    /// Returns the file for the blocks that a reader returns to, if the cache cannot hold a chunk row of them.
    fn spill(&self, chunk_row: ChunkRow, number: u64) -> Result<Option<&Spill>> {
        let grid = self.source.grid();
        let large = self.is_large(self.need(grid, number)?);
        if !large && !self.is_wide(chunk_row) {
            return Ok(None);
        }
        if let Some(spill) = self.spill.get() {
            return Ok(Some(spill));
        }
        let chunk_rows = grid.chunk_rows_within(self.context.prefetch.under_way());
        match Spill::new(
            grid.block_bytes(),
            chunk_row.blocks,
            chunk_rows.min(MOST_CHUNK_ROWS),
        ) {
            Ok(spill) => Ok(Some(self.spill.get_or_init(|| spill))),
            // The next block tries again.
            Err(e) => {
                let name = self.source.name();
                let note = format!("{name}: decoding again and again: no temporary file: {e}");
                self.context.journal.add(&note);
                Ok(None)
            }
        }
    }

    pub(super) fn is_spilled(&self, number: u64) -> bool {
        self.spill.get().is_some_and(|spill| spill.has(number))
    }

    /// Fills `buf` from a block in the spill, after putting it there if necessary.
    fn read_spilled(&self, spill: &Spill, number: u64, at: u64, buf: &mut [u8]) -> Result<()> {
        if spill.read(number, at, buf)? {
            return Ok(());
        }
        let grid = self.source.grid();
        let need = self.need(grid, number)?;
        if self.is_large(need) {
            let _one = self.spilling.lock();
            // A concurrent request may replace this block before it is read.
            while !spill.read(number, at, buf)? {
                spill.put(number, |write| self.source.stream(grid, number, write))?;
            }
            return Ok(());
        }
        let key = self.key(number);
        let settled = self.pattern.is_settled();
        let cache = &self.context.cache;
        // Another request may have put the block there meanwhile, and dropped it from the cache.
        let spilled = || spill.has_for_sure(number);
        let fill = |out: &mut [u8]| self.source.fill(grid, number, settled, out);
        let Some(block) = cache.read_unless(key, need, spilled, fill)? else {
            return self.read_spilled(spill, number, at, buf);
        };
        spill.put(number, |write| write(0, &block).map_err(Error::from))?;
        cache.consumed(&key);
        buf.copy_from_slice(slice(&block, at, buf.len())?);
        Ok(())
    }
}
