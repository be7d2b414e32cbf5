//! The payload of one dataset: its elements in C order, as `np.save` writes them.
//!
//! Bytes come from the file itself where they lie there as they are served, else from decoded pieces in
//! the cache, or, where the pieces that a reader of rows comes back to are too many for it, in a temporary
//! file. A read never decodes more than the pieces it touches.

use std::sync::{Arc, Mutex, OnceLock};

use crate::buffer::Buffer;
use crate::cache::{Key, Need, Piece};
use crate::content::{Content, Data};
use crate::error::{Error, ErrorKind, Result};
use crate::h5::{Request, Sink};
use crate::read::backing::{Backing, Form, SINGLE, read_raw};
use crate::read::chunked::{Chunks, Source};
use crate::read::grid::{Band, Grid};
use crate::read::sequence::Sequence;
use crate::read::spill::Spill;
use crate::read::stored;
use crate::store::opened::OpenStore;

/// The elements of a dataset as bytes, for one open file.
#[derive(Clone)]
pub struct Payload(Arc<Inner>);

/// What a payload consists of; jobs that read ahead share it with the open file.
struct Inner {
    store: Arc<OpenStore>,
    /// Address of the dataset.
    object: u64,
    /// Dimensions of the dataset itself; those of an array datatype follow in the grid.
    rank: usize,
    len: u64,
    backing: Arc<Backing>,
    sequence: Sequence,
    /// Where decoded pieces go that the cache cannot hold; `None` if there is no room for them.
    spill: OnceLock<Option<Spill>>,
    /// Held while a piece is decoded that only the spill has room for.
    spilling: Mutex<()>,
}

/// What the kernel may ask for ahead of a sequential reader, in bytes: twice two windows of 1 MiB.
const KERNEL_AHEAD: u64 = 4 << 20;

/// What is decoded ahead of a sequential reader: so many bytes, but not fewer or more pieces.
const AHEAD: u64 = 8 << 20;
const AHEAD_PIECES: std::ops::RangeInclusive<u64> = 2..=32;

/// The share of the cache that the pieces of one band, or the making of one piece, may take.
const SHARE: u64 = 4;

/// Pieces of one request that are decoded at the same time.
const MOST_BEGUN: usize = 8;

/// Bytes of pieces that one request keeps at hand.
const HELD: usize = 4 << 20;

/// The pieces of a payload, all that reading them takes.
#[derive(Clone, Copy)]
struct Pieces<'a> {
    grid: &'a Grid,
    chunks: Option<&'a Grid>,
    form: Form,
}

impl Payload {
    /// `rank` is the dataset's own; dimensions of an array datatype follow in the grid.
    pub fn new(
        store: Arc<OpenStore>,
        object: u64,
        rank: usize,
        len: u64,
        backing: Arc<Backing>,
    ) -> Self {
        Self(Arc::new(Inner {
            store,
            object,
            rank,
            len,
            backing,
            sequence: Sequence::default(),
            spill: OnceLock::new(),
            spilling: Mutex::new(()),
        }))
    }

    /// Asks for the pieces that a sequential reader of `number` will want next.
    fn look_ahead(&self, grid: &Grid, form: Form, number: u64) {
        let context = &self.0.store.context;
        // What is fetched ahead must not push out what is being read: the piece itself, the one before,
        // and those in the requests that the kernel has under way.
        let piece = grid.piece_bytes().max(1);
        let reading = 2 + KERNEL_AHEAD.div_ceil(piece);
        let room = (context.options.cache_size / piece).saturating_sub(reading) / 2;
        let depth = (AHEAD / piece).clamp(*AHEAD_PIECES.start(), *AHEAD_PIECES.end());
        let wanted = self
            .0
            .sequence
            .reads(number, depth.min(room), grid.pieces());
        for next in wanted {
            if context.cache.has(&self.0.key(form.number(), next)) || self.0.is_spilled(next) {
                continue;
            }
            let inner = self.0.clone();
            context.ahead.submit(move || {
                if let Backing::Pieces { grid, .. } = &*inner.backing
                    && !inner.sequence.has_reached(next)
                {
                    inner.fetch_ahead(grid, form, next);
                }
            });
        }
    }
}

impl Inner {
    fn key(&self, form_number: u32, piece: u64) -> Key {
        Key {
            file: self.store.file.serial,
            object: self.object,
            form: form_number,
            piece,
        }
    }

    fn need(&self, grid: &Grid, number: u64) -> Result<Need> {
        let len = usize::try_from(grid.bytes_of(number))
            .map_err(|_| Error::damaged("a piece too large for this machine"))?;
        Ok(match &*self.backing {
            Backing::Pieces {
                direct: Some(chunks),
                ..
            } => chunks.need(&grid.block(number).0, len),
            // The answer of a worker.
            _ => Need { len, beside: len },
        })
    }

    /// Decodes a piece into a buffer of its size.
    fn fill(
        &self,
        grid: &Grid,
        form: Form,
        number: u64,
        settled: bool,
        out: &mut [u8],
    ) -> Result<()> {
        let (start, shape) = grid.block(number);
        if let Some(chunks) = self.direct() {
            let source = Source {
                file: &self.store.file,
                pool: self.store.context.cache.pool(),
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

    fn direct(&self) -> Option<&Chunks> {
        match &*self.backing {
            Backing::Pieces { direct, .. } => direct.as_deref(),
            _ => None,
        }
    }

    fn decoded(&self, grid: &Grid, form: Form, form_number: u32, number: u64) -> Result<Piece> {
        let need = self.need(grid, number)?;
        let settled = self.sequence.is_settled();
        let key = self.key(form_number, number);
        self.store
            .context
            .cache
            .read(key, need, |out| self.fill(grid, form, number, settled, out))
    }

    fn fetch_ahead(&self, grid: &Grid, form: Form, number: u64) {
        // Whatever is wrong, the reader meets it himself.
        let Ok(need) = self.need(grid, number) else {
            return;
        };
        if self.is_large(need) || self.is_spilled(number) {
            return;
        }
        let key = self.key(form.number(), number);
        self.store
            .context
            .cache
            .ahead(key, need, |out| self.fill(grid, form, number, true, out));
    }

    /// Copies out of the chunk that holds `offset`; for pieces of which a part is damaged.
    fn read_chunk(&self, chunks: &Grid, form: Form, offset: u64, buf: &mut [u8]) -> Result<usize> {
        let run = chunks.run_at(offset);
        let piece = self.decoded(chunks, form, SINGLE, run.piece)?;
        let n = usize::try_from(run.len)
            .unwrap_or(usize::MAX)
            .min(buf.len());
        buf[..n].copy_from_slice(slice(&piece, run.at, n)?);
        Ok(n)
    }
}

/// Pieces that the cache cannot hold.
impl Inner {
    /// Whether decoding a piece takes more of the cache than one piece may.
    fn is_large(&self, need: Need) -> bool {
        let bytes = (need.len as u64).saturating_add(need.beside as u64);
        bytes > self.store.context.cache.limit() / SHARE
    }

    /// Where the pieces go that a reader comes back to, if the cache cannot hold a band of them.
    fn spill(&self, grid: &Grid, band: Band, number: u64) -> Result<Option<&Spill>> {
        let large = self.is_large(self.need(grid, number)?);
        let many = band.pieces > 1 && band.bytes > self.store.context.cache.limit() / SHARE;
        if !large && !many {
            return Ok(None);
        }
        let spill = self.spill.get_or_init(|| {
            Spill::new(grid.piece_bytes(), band.pieces)
                .inspect_err(|e| {
                    let path = self.store.file.path.display();
                    let note = format!("{path}: decoding again and again: no temporary file: {e}");
                    self.store.context.journal.add(&note);
                })
                .ok()
        });
        Ok(spill.as_ref())
    }

    fn is_spilled(&self, number: u64) -> bool {
        matches!(self.spill.get(), Some(Some(spill)) if spill.has(number))
    }

    /// Fills `buf` from a piece that is in the spill, or is put there now.
    fn read_spilled(
        &self,
        spill: &Spill,
        pieces: Pieces<'_>,
        number: u64,
        at: u64,
        buf: &mut [u8],
    ) -> Result<()> {
        if spill.read(number, at, buf)? {
            return Ok(());
        }
        if self.is_large(self.need(pieces.grid, number)?) {
            let _one = self.spilling.lock().unwrap_or_else(|e| e.into_inner());
            if !spill.has(number) {
                spill.put(number, |write| self.decode_elsewhere(pieces, number, write))?;
            }
        } else {
            let piece = self.decoded(pieces.grid, pieces.form, pieces.form.number(), number)?;
            spill.put(number, |write| write(0, &piece).map_err(Error::from))?;
            let key = self.key(pieces.form.number(), number);
            self.store.context.cache.consumed(&key);
            buf.copy_from_slice(slice(&piece, at, buf.len())?);
            return Ok(());
        }
        // Another request may have turned to another band meanwhile.
        if spill.read(number, at, buf)? {
            return Ok(());
        }
        Err(Error::new(
            ErrorKind::Os(libc::EAGAIN),
            "read from too many places at once",
        ))
    }

    /// Has a piece decoded in another process, and takes it in parts.
    fn decode_elsewhere(&self, pieces: Pieces<'_>, number: u64, sink: &mut Sink<'_>) -> Result<()> {
        let (start, shape) = pieces.grid.block(number);
        let request: Request = match self.direct() {
            Some(chunks) => chunks.request(self.object, &start, &shape)?,
            None => OpenStore::block_request(
                self.object,
                &start[..self.rank],
                &shape[..self.rank],
                pieces.form,
            ),
        };
        let context = &self.store.context;
        Ok(context.h5.stream(&self.store.file, request, sink)?)
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

/// A part of a piece that a request has at hand.
struct Held {
    piece: u64,
    /// Offset in the piece.
    from: u64,
    bytes: Piece,
}

impl Payload {
    fn read_pieces(&self, pieces: Pieces<'_>, offset: u64, buf: &mut [u8]) -> Result<()> {
        let band = pieces.grid.band();
        let end = offset + buf.len() as u64;
        // Rows of a chunk that cuts across them come back to the same pieces: they stand where their
        // number in the band says.
        let mut held: Vec<Option<Held>> = Vec::new();
        let mut bytes = 0;
        let mut done = 0;
        if band.pieces == 1 && !buf.is_empty() {
            let first = pieces.grid.run_at(offset).piece;
            self.begin(pieces, first + 1..pieces.grid.run_at(end - 1).piece + 1);
        }
        while done < buf.len() {
            let at = offset + done as u64;
            let run = pieces.grid.run_at(at);
            let n = usize::try_from(run.len)
                .unwrap_or(usize::MAX)
                .min(buf.len() - done);
            let out = &mut buf[done..done + n];
            let slot = usize::try_from(run.piece % band.pieces).unwrap_or(usize::MAX);
            if let Some(Some(part)) = held.get(slot)
                && part.piece == run.piece
                && let Some(at) = run.at.checked_sub(part.from)
                && let Ok(found) = slice(&part.bytes, at, n)
            {
                out.copy_from_slice(found);
                done += n;
                continue;
            }
            // Of a band the request wants at most these rows.
            let rows = (end - at) / band.row.max(1) + 2;
            let part = match self.part(pieces, band, run.piece, run.at, rows) {
                Err(e) if e.kind == ErrorKind::Damaged => match pieces.chunks {
                    Some(chunks) => {
                        done += self
                            .0
                            .read_chunk(chunks, pieces.form, at, &mut buf[done..])?;
                        continue;
                    }
                    None => return Err(e),
                },
                part => part?,
            };
            out.copy_from_slice(slice(&part.bytes, run.at - part.from, n)?);
            done += n;
            if band.pieces > 1 && slot < 1 << 16 {
                bytes += part.bytes.len();
                if bytes > HELD {
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

    /// Has pieces decoded that this request will come to, while it decodes the first itself.
    fn begin(&self, pieces: Pieces<'_>, wanted: std::ops::Range<u64>) {
        let context = &self.0.store.context;
        for next in wanted.take(MOST_BEGUN) {
            if context.cache.has(&self.0.key(pieces.form.number(), next)) {
                continue;
            }
            let (inner, form) = (self.0.clone(), pieces.form);
            context.ahead.submit_first(move || {
                if let Backing::Pieces { grid, .. } = &*inner.backing {
                    inner.fetch_ahead(grid, form, next);
                }
            });
        }
    }

    /// A piece, or of one in the spill what `rows` rows of the band take from `at` on.
    fn part(
        &self,
        pieces: Pieces<'_>,
        band: Band,
        number: u64,
        at: u64,
        rows: u64,
    ) -> Result<Held> {
        let inner = &self.0;
        self.look_ahead(pieces.grid, pieces.form, number);
        if let Some(spill) = inner.spill(pieces.grid, band, number)? {
            let left = pieces.grid.bytes_of(number) - at;
            let len = left.min(rows.saturating_mul(band.piece_row));
            let len = usize::try_from(len).map_err(|_| short())?;
            let mut bytes = inner.store.context.cache.pool().take(len.min(1 << 30));
            inner.read_spilled(spill, pieces, number, at, &mut bytes)?;
            return Ok(Held {
                piece: number,
                from: at,
                bytes: Arc::new(bytes),
            });
        }
        let need = inner.need(pieces.grid, number)?;
        let bytes = (need.len as u64).saturating_add(need.beside as u64);
        if bytes > inner.store.context.cache.limit() {
            let why = format!(
                "a chunk takes {bytes} bytes to decode: that is more than cache_size, and there is no room for a temporary file"
            );
            return Err(Error::new(ErrorKind::Os(libc::ENOSPC), why));
        }
        Ok(Held {
            piece: number,
            from: 0,
            bytes: inner.decoded(pieces.grid, pieces.form, pieces.form.number(), number)?,
        })
    }

    /// Gives up bands that this reader has read to their end: the kernel has their bytes now, or somebody
    /// who takes samples at random from more than there is room for.
    fn note_read(&self, pieces: Pieces<'_>, offset: u64, len: usize) {
        let inner = &self.0;
        let cache = &inner.store.context.cache;
        // Small arrays may stay: there is room for others beside them.
        if inner.len <= cache.limit() / SHARE {
            return;
        }
        let band = pieces.grid.band();
        let end = offset + len as u64;
        let mut at = offset;
        while at < end {
            let (number, range) = pieces.grid.band_at(at);
            let here = range.end.min(end) - at;
            if inner
                .sequence
                .is_consumed(number, here, range.end - range.start)
            {
                for piece in number * band.pieces..(number + 1) * band.pieces {
                    let key = inner.key(pieces.form.number(), piece);
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
                stored::read(store, &self.0.sequence, at, buf)?;
            }
            Backing::Raw { parts, fill } => read_raw(parts, fill, offset, buf)?,
            Backing::Pieces {
                grid, chunks, form, ..
            } => {
                let pieces = Pieces {
                    grid,
                    chunks: chunks.as_ref(),
                    form: *form,
                };
                self.read_pieces(pieces, offset, buf)?;
                self.note_read(pieces, offset, buf.len());
            }
        }
        Ok(())
    }

    fn is_costly(&self) -> bool {
        matches!(&*self.0.backing, Backing::Pieces { .. })
    }

    fn share(&self, offset: u64, len: usize) -> Result<Option<Data>> {
        let Backing::Pieces {
            grid, chunks, form, ..
        } = &*self.0.backing
        else {
            return Ok(None);
        };
        let pieces = Pieces {
            grid,
            chunks: chunks.as_ref(),
            form: *form,
        };
        let run = grid.run_at(offset);
        if run.len < len as u64 {
            return Ok(None);
        }
        let band = grid.band();
        let rows = (len as u64).div_ceil(band.piece_row.max(1));
        let part = match self.part(pieces, band, run.piece, run.at, rows) {
            // `read_at` finds out which of the chunks is damaged.
            Err(e) if chunks.is_some() && e.kind == ErrorKind::Damaged => return Ok(None),
            part => part?,
        };
        let from = run.at - part.from;
        slice(&part.bytes, from, len)?;
        self.note_read(pieces, offset, len);
        let at = usize::try_from(from).map_err(|_| short())?;
        Ok(Some(Data::Shared(part.bytes, at..at + len)))
    }
}

fn slice(piece: &Buffer, at: u64, len: usize) -> Result<&[u8]> {
    let at = usize::try_from(at).map_err(|_| short())?;
    at.checked_add(len)
        .and_then(|end| piece.get(at..end))
        .ok_or_else(short)
}

fn short() -> Error {
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
