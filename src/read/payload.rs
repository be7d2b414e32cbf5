//! The payload of one dataset: its elements in C order, as `np.save` writes them.
//!
//! Bytes come from the file itself where they lie there as they are served, else from decoded pieces in
//! the cache. A read never decodes more than the pieces it touches.

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::sync::{Arc, Mutex};

use crate::cache::{Key, Piece};
use crate::content::{Content, Data};
use crate::error::{Error, ErrorKind, Result};
use crate::h5::TextForm;
use crate::read::ahead::Sequence;
use crate::read::chunked::Chunks;
use crate::read::grid::Grid;
use crate::store::opened::OpenStore;

/// Pieces that libhdf5 reads where the file names no chunks, in bytes.
pub const ROW_PIECE: u64 = 1 << 20;

/// Where the bytes come from.
pub enum Backing {
    /// The same element again and again.
    Fill(Vec<u8>),
    Memory(Arc<Vec<u8>>),
    /// At this address in the store file.
    Contiguous(u64),
    /// Parts of raw files, in order; behind them comes the fill value.
    Raw {
        parts: Vec<RawFile>,
        fill: Vec<u8>,
    },
    Pieces {
        grid: Grid,
        /// The chunks themselves, where a piece gathers several: one that is damaged must not cost the
        /// others.
        chunks: Option<Grid>,
        form: Form,
        /// Reads pieces here; otherwise libhdf5 does.
        direct: Option<Box<Chunks>>,
    },
}

impl Backing {
    /// Whether bytes come from files other than the store's own.
    pub fn is_outside(&self) -> bool {
        matches!(
            self,
            Self::Raw { .. }
                | Self::Pieces {
                    form: Form::Virtual,
                    ..
                }
        )
    }
}

/// A part of an external raw file that was opened under the policy.
pub struct RawFile {
    pub file: File,
    pub offset: u64,
    /// Where the part ends in the payload.
    pub end: u64,
}

/// In which form a piece is asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Form {
    Elements,
    /// Elements of a virtual dataset whose sources were checked.
    Virtual,
    Text(TextForm),
}

impl Form {
    /// A number that keeps the forms of one object apart in the cache.
    pub fn number(self) -> u32 {
        match self {
            Self::Elements | Self::Virtual => 0,
            Self::Text(TextForm::Bytes(_)) => 1,
            Self::Text(TextForm::Ucs4(_)) => 2,
            Self::Text(TextForm::Values) => 3,
            Self::Text(TextForm::Lengths) => 4,
        }
    }
}

/// The elements of a dataset as bytes, for one open file.
#[derive(Clone)]
pub struct Payload(Arc<Inner>);

/// What a payload consists of; jobs that read ahead share it with the open file.
pub struct Inner {
    store: Arc<OpenStore>,
    /// Address of the dataset.
    object: u64,
    /// Dimensions of the dataset itself; those of an array datatype follow in the grid.
    rank: usize,
    len: u64,
    backing: Arc<Backing>,
    /// The last piece that is larger than the whole cache: the next read wants it again.
    large: Mutex<Option<(u64, Piece)>>,
    sequence: Sequence,
}

/// The form number of chunks that are read one by one.
const SINGLE: u32 = 5;

/// What the kernel may ask for ahead of a sequential reader, in bytes: twice two windows of 1 MiB.
const KERNEL_AHEAD: u64 = 4 << 20;

/// Pieces that are decoded ahead of a sequential reader.
const DEPTH: u64 = 8;

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
            large: Mutex::default(),
            sequence: Sequence::default(),
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
        for next in self
            .0
            .sequence
            .reads(number, DEPTH.min(room), grid.pieces())
        {
            let inner = self.0.clone();
            context.ahead.submit(move || {
                if let Backing::Pieces { grid, .. } = &*inner.backing
                    && !inner.sequence.has_reached(next)
                {
                    let _ = inner.decoded(grid, form, form.number(), next);
                }
            });
        }
    }
}

impl Inner {
    /// One piece, decoded.
    fn piece(&self, grid: &Grid, form: Form, number: u64) -> Result<Piece> {
        let mut large = self.large.lock().unwrap_or_else(|e| e.into_inner());
        match &*large {
            Some((held, piece)) if *held == number => return Ok(piece.clone()),
            _ => *large = None,
        }
        drop(large);
        let piece = self.decoded(grid, form, form.number(), number)?;
        if !self.store.context.cache.holds(piece.len()) {
            let mut large = self.large.lock().unwrap_or_else(|e| e.into_inner());
            *large = Some((number, piece.clone()));
        }
        Ok(piece)
    }

    fn decoded(&self, grid: &Grid, form: Form, form_number: u32, number: u64) -> Result<Piece> {
        let key = Key {
            file: self.store.file.serial,
            object: self.object,
            form: form_number,
            piece: number,
        };
        self.store.context.cache.get(key, || {
            let (start, shape) = grid.block(number);
            if let Backing::Pieces {
                direct: Some(chunks),
                ..
            } = &*self.backing
            {
                return chunks.block(&self.store.file, &start, &shape);
            }
            self.store
                .block(self.object, &start[..self.rank], &shape[..self.rank], form)
        })
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

    fn read_raw(parts: &[RawFile], fill: &[u8], offset: u64, buf: &mut [u8]) -> Result<()> {
        let mut at = offset;
        let mut left = buf;
        let mut start = 0;
        for part in parts {
            if at < part.end && !left.is_empty() {
                let here = usize::try_from(part.end - at)
                    .unwrap_or(usize::MAX)
                    .min(left.len());
                let (now, rest) = left.split_at_mut(here);
                let read = read_up_to(&part.file, now, part.offset.saturating_add(at - start))?;
                // libhdf5 reads zeros behind the end of a raw file.
                now[read..].fill(0);
                at += here as u64;
                left = rest;
            }
            start = part.end;
        }
        repeat(fill, at, left);
        Ok(())
    }
}

fn read_up_to(file: &File, buf: &mut [u8], offset: u64) -> Result<usize> {
    let mut done = 0;
    while done < buf.len() {
        match file.read_at(&mut buf[done..], offset.saturating_add(done as u64))? {
            0 => break,
            n => done += n,
        }
    }
    Ok(done)
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

impl Content for Payload {
    fn len(&self) -> u64 {
        self.0.len
    }

    fn read_at(&self, offset: u64, buf: &mut [u8]) -> Result<()> {
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
                self.0.store.file.read_exact_at(buf, at)?;
            }
            Backing::Raw { parts, fill } => Inner::read_raw(parts, fill, offset, buf)?,
            Backing::Pieces {
                grid, chunks, form, ..
            } => {
                let mut done = 0;
                // Rows of a chunk that cuts across them come back to the same few pieces.
                let mut held: Vec<(u64, Piece)> = Vec::new();
                while done < buf.len() {
                    let at = offset + done as u64;
                    let run = grid.run_at(at);
                    let known = held.iter().find(|(number, _)| *number == run.piece);
                    let piece = match known {
                        Some((_, piece)) => Ok(piece.clone()),
                        None => {
                            self.look_ahead(grid, *form, run.piece);
                            self.0.piece(grid, *form, run.piece)
                        }
                    };
                    let piece = match (piece, chunks) {
                        (Ok(piece), _) => piece,
                        (Err(e), Some(chunks)) if e.kind == ErrorKind::Damaged => {
                            done += self.0.read_chunk(chunks, *form, at, &mut buf[done..])?;
                            continue;
                        }
                        (Err(e), _) => return Err(e),
                    };
                    let n = usize::try_from(run.len)
                        .unwrap_or(usize::MAX)
                        .min(buf.len() - done);
                    buf[done..done + n].copy_from_slice(slice(&piece, run.at, n)?);
                    if known.is_none() {
                        if held.len() >= 16 {
                            held.remove(0);
                        }
                        held.push((run.piece, piece));
                    }
                    done += n;
                }
            }
        }
        Ok(())
    }

    fn share(&self, offset: u64, len: usize) -> Result<Option<Data>> {
        let Backing::Pieces {
            grid, chunks, form, ..
        } = &*self.0.backing
        else {
            return Ok(None);
        };
        let run = grid.run_at(offset);
        if run.len < len as u64 {
            return Ok(None);
        }
        self.look_ahead(grid, *form, run.piece);
        let piece = match self.0.piece(grid, *form, run.piece) {
            // `read_at` finds out which of the chunks is damaged.
            Err(e) if chunks.is_some() && e.kind == ErrorKind::Damaged => return Ok(None),
            piece => piece?,
        };
        slice(&piece, run.at, len)?;
        let at = usize::try_from(run.at).map_err(|_| short())?;
        Ok(Some(Data::Shared(piece, at..at + len)))
    }
}

fn slice(piece: &Piece, at: u64, len: usize) -> Result<&[u8]> {
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
