//! The decoded blocks of one open dataset: from the cache, or, where those that a reader of rows comes back to
//! are too many for it, from a temporary file.

use std::sync::{Arc, Mutex, OnceLock};

use super::backing::{Backing, Form, SINGLE};
use super::chunked::{Chunks, LARGEST, Source};
use super::grid::{ChunkRow, Grid};
use super::payload::{short, slice};
use super::spill::Spill;
use crate::codec::Means;
use crate::dataset::access_pattern::AccessPattern;
use crate::dataset::cache::{Block, Key, Need};
use crate::dataset::opened::OpenStore;
use crate::error::{Error, ErrorKind, Result};
use crate::hdf5::{Request, Sink};
use crate::io::thread::is_background;

/// The share of the cache that the blocks of one chunk row, or the making of one block, may take.
pub(super) const SHARE: u64 = 4;

/// Added to the form number of blocks that nobody waits for: who wants the same block decodes it, and does not wait for a
/// thread that gives way to all others.
pub(super) const APART: u32 = 1 << 16;

/// Chunk rows that there is room for on disk; more than large ones need.
const MOST_CHUNK_ROWS: u64 = 16;

/// The state of a payload; jobs that read ahead share it with the open file.
pub(super) struct BlockReader {
    pub(super) store: Arc<OpenStore>,
    /// Address of the dataset.
    pub(super) object: u64,
    /// Dimensions of the dataset itself; those of an array datatype follow in the grid.
    pub(super) rank: usize,
    pub(super) len: u64,
    pub(super) backing: Arc<Backing>,
    pub(super) pattern: Arc<AccessPattern>,
    /// The file for decoded blocks that the cache cannot hold; `None` if there is no room for them.
    pub(super) spill: OnceLock<Spill>,
    /// Held while a block is decoded that only the spill has room for.
    pub(super) spilling: Mutex<()>,
}

/// The blocks of a payload, with all that reading them takes.
#[derive(Clone, Copy)]
pub(super) struct Blocks<'a> {
    pub(super) grid: &'a Grid,
    pub(super) chunks: Option<&'a Grid>,
    pub(super) form: Form,
}

impl BlockReader {
    pub(super) fn key(&self, form_number: u32, block: u64) -> Key {
        Key {
            file: self.store.file.serial,
            object: self.object,
            form: form_number,
            block,
        }
    }

    pub(super) fn need(&self, grid: &Grid, number: u64) -> Result<Need> {
        let bytes = grid.bytes_of(number);
        if bytes > LARGEST {
            let why = format!("a chunk of {bytes} bytes: one of more than 1 GiB is not decoded");
            return Err(Error::new(ErrorKind::TooLarge, why));
        }
        let len = usize::try_from(bytes)
            .map_err(|_| Error::damaged("a block too large for this machine"))?;
        Ok(match &*self.backing {
            Backing::Blocks {
                direct: Some(chunks),
                ..
            } => {
                let (start, shape) = grid.bounds(number);
                chunks.need(&start, &shape, len)
            }
            // The answer of a worker.
            _ => Need {
                len,
                beside: len,
                ..Need::default()
            },
        })
    }

    /// Decodes a block into a buffer of its size.
    pub(super) fn fill(
        &self,
        grid: &Grid,
        form: Form,
        number: u64,
        settled: bool,
        out: &mut [u8],
    ) -> Result<()> {
        let (start, shape) = grid.bounds(number);
        if let Some(chunks) = self.direct() {
            let context = &self.store.context;
            // A reader in order has the next chunks decoded at the same time, and so have several readers theirs.
            let alone = context.cache.decoding() <= 1;
            if !alone && !settled {
                context.decoders.rest();
            }
            let source = Source {
                file: &self.store.file,
                means: Means {
                    pool: context.cache.pool(),
                    helpers: (alone && !settled && !is_background()).then_some(&context.decoders),
                },
                streaming: settled,
            };
            return chunks.block(source, &start, &shape, out);
        }
        let bytes =
            self.store
                .block(self.object, &start[..self.rank], &shape[..self.rank], form)?;
        if bytes.len() != out.len() {
            return Err(short());
        }
        out.copy_from_slice(&bytes);
        Ok(())
    }

    /// Returns true if others have the dataset open, too, who may want a block that this reader is done with: its
    /// backing is held by every open file, and by those that are kept between opens.
    pub(super) fn is_shared(&self) -> bool {
        Arc::strong_count(&self.backing) > 2
    }

    pub(super) fn direct(&self) -> Option<&Chunks> {
        match &*self.backing {
            Backing::Blocks { direct, .. } => direct.as_deref(),
            _ => None,
        }
    }

    pub(super) fn decoded(
        &self,
        grid: &Grid,
        form: Form,
        form_number: u32,
        number: u64,
    ) -> Result<Block> {
        let need = self.need(grid, number)?;
        let settled = self.pattern.is_settled();
        let cache = &self.store.context.cache;
        let mut key = self.key(form_number, number);
        if is_background() && !cache.is_ready(&key) {
            key.form |= APART;
        }
        cache.read(key, need, |out| self.fill(grid, form, number, settled, out))
    }

    pub(super) fn fetch_ahead(
        &self,
        grid: &Grid,
        form: Form,
        number: u64,
        wanted: impl FnOnce() -> bool,
    ) {
        // Whatever is wrong, the reader meets it himself.
        let Ok(need) = self.need(grid, number) else {
            return;
        };
        if self.is_large(need) || self.is_spilled(number) {
            return;
        }
        let key = self.key(form.number(), number);
        self.store.context.cache.ahead(key, need, wanted, |out| {
            self.fill(grid, form, number, true, out)
        });
    }

    /// Copies out of the chunk that holds `offset`; for blocks of which a part is damaged.
    pub(super) fn read_chunk(
        &self,
        chunks: &Grid,
        form: Form,
        offset: u64,
        buf: &mut [u8],
    ) -> Result<usize> {
        let run = chunks.run_at(offset);
        let n = usize::try_from(run.len)
            .unwrap_or(usize::MAX)
            .min(buf.len());
        let need = self.need(chunks, run.block)?;
        if (need.len as u64).saturating_add(need.beside as u64) > self.store.context.cache.limit() {
            // It lies in more bytes than there is memory for, whatever it decodes to.
            let blocks = Blocks {
                grid: chunks,
                chunks: None,
                form,
            };
            let wanted = run.at..run.at.saturating_add(n as u64);
            self.decode_elsewhere(blocks, run.block, &mut |at, part| {
                let end = at.saturating_add(part.len() as u64).min(wanted.end);
                let from = at.max(wanted.start);
                if from < end {
                    // Both ranges lie in memory.
                    let (here, there) = ((from - at) as usize, (from - wanted.start) as usize);
                    let len = (end - from) as usize;
                    buf[there..there + len].copy_from_slice(&part[here..here + len]);
                }
                Ok(())
            })?;
            return Ok(n);
        }
        let block = self.decoded(chunks, form, SINGLE, run.block)?;
        buf[..n].copy_from_slice(slice(&block, run.at, n)?);
        Ok(n)
    }
}

/// Blocks that the cache cannot hold.
impl BlockReader {
    /// Returns true if decoding a block takes more of the cache than one block may.
    pub(super) fn is_large(&self, need: Need) -> bool {
        let bytes = (need.len as u64).saturating_add(need.beside as u64);
        bytes > self.store.context.cache.limit() / SHARE
    }

    /// Returns true if the blocks of a chunk row take more of the cache than they may.
    pub(super) fn is_wide(&self, chunk_row: ChunkRow) -> bool {
        chunk_row.blocks > 1 && chunk_row.bytes > self.store.context.cache.limit() / SHARE
    }

    /// Returns the file for the blocks that a reader comes back to, if the cache cannot hold a chunk row of them.
    pub(super) fn spill(
        &self,
        grid: &Grid,
        chunk_row: ChunkRow,
        number: u64,
    ) -> Result<Option<&Spill>> {
        let large = self.is_large(self.need(grid, number)?);
        if !large && !self.is_wide(chunk_row) {
            return Ok(None);
        }
        if let Some(spill) = self.spill.get() {
            return Ok(Some(spill));
        }
        let chunk_rows = grid.chunk_rows_within(self.store.context.prefetch.under_way());
        match Spill::new(
            grid.block_bytes(),
            chunk_row.blocks,
            chunk_rows.min(MOST_CHUNK_ROWS),
        ) {
            Ok(spill) => Ok(Some(self.spill.get_or_init(|| spill))),
            // Tried again for the next block.
            Err(e) => {
                let path = self.store.file.path.display();
                let note = format!("{path}: decoding again and again: no temporary file: {e}");
                self.store.context.journal.add(&note);
                Ok(None)
            }
        }
    }

    pub(super) fn is_spilled(&self, number: u64) -> bool {
        self.spill.get().is_some_and(|spill| spill.has(number))
    }

    /// Fills `buf` from a block that is in the spill, or is put there now.
    pub(super) fn read_spilled(
        &self,
        spill: &Spill,
        blocks: Blocks<'_>,
        number: u64,
        at: u64,
        buf: &mut [u8],
    ) -> Result<()> {
        if spill.read(number, at, buf)? {
            return Ok(());
        }
        if self.is_large(self.need(blocks.grid, number)?) {
            let _one = self.spilling.lock().unwrap_or_else(|e| e.into_inner());
            // A request elsewhere may take the place of this block before it is read.
            while !spill.read(number, at, buf)? {
                spill.put(number, |write| self.decode_elsewhere(blocks, number, write))?;
            }
            return Ok(());
        }
        let (grid, form) = (blocks.grid, blocks.form);
        let (key, need) = (self.key(form.number(), number), self.need(grid, number)?);
        let settled = self.pattern.is_settled();
        let cache = &self.store.context.cache;
        // Another request may have put it there meanwhile, and given it up in the cache.
        let spilled = || spill.has_for_sure(number);
        let fill = |out: &mut [u8]| self.fill(grid, form, number, settled, out);
        let Some(block) = cache.read_unless(key, need, spilled, fill)? else {
            return self.read_spilled(spill, blocks, number, at, buf);
        };
        spill.put(number, |write| write(0, &block).map_err(Error::from))?;
        cache.consumed(&key);
        buf.copy_from_slice(slice(&block, at, buf.len())?);
        Ok(())
    }

    /// Asks another process to decode a block, and takes it in parts.
    pub(super) fn decode_elsewhere(
        &self,
        blocks: Blocks<'_>,
        number: u64,
        sink: &mut Sink<'_>,
    ) -> Result<()> {
        let (start, shape) = blocks.grid.bounds(number);
        let request: Request = match self.direct() {
            Some(chunks) => chunks.request(self.object, &start, &shape)?,
            None => OpenStore::block_request(
                self.object,
                &start[..self.rank],
                &shape[..self.rank],
                blocks.form,
            ),
        };
        let context = &self.store.context;
        Ok(context.h5.stream(&self.store.file, request, sink)?)
    }
}
