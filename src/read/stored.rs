//! Bytes that lie in the store file as they are served.
//!
//! What is in memory is copied from there. What is not, and is read in order, is read past the kernel's page
//! cache in blocks, ahead of the reader: the virtual file will be in that cache, and once is enough.

use std::sync::Arc;

use super::backing::STORED;
use super::sequence::Sequence;
use crate::cache::{Cache, Key, Need};
use crate::error::{Error, Result};
use crate::raw::StoreFile;
use crate::store::opened::OpenStore;

/// Bytes of a block; blocks begin at its multiples in the file.
const BLOCK: u64 = 1 << 20;

/// Smaller reads go the usual way.
const LEAST: usize = 128 << 10;

/// Blocks that are read ahead.
const DEPTH: u64 = 4;

/// Fills `buf` from byte `at` of the store file.
pub fn read(
    store: &Arc<OpenStore>,
    sequence: &Arc<Sequence>,
    at: u64,
    buf: &mut [u8],
) -> Result<()> {
    let file = &store.file;
    let end = at.saturating_add(buf.len() as u64);
    if buf.len() < LEAST || end > file.identity.size {
        return Ok(file.read_exact_at(buf, at)?);
    }
    let blocks = at / BLOCK..end.div_ceil(BLOCK);
    let wanted = sequence.reads(blocks.end - 1, DEPTH, file.identity.size.div_ceil(BLOCK), 4);
    if !sequence.is_settled() {
        return Ok(file.read_exact_at(buf, at)?);
    }
    for block in wanted {
        let (here, sequence) = (store.clone(), sequence.clone());
        store.context.ahead.submit(move || {
            if here.file.direct_range(block * BLOCK, BLOCK).is_some() {
                let wanted = || !sequence.has_reached(block);
                let fill = |out: &mut [u8]| fill(&here.file, block, out);
                let key = key(&here.file, block);
                here.context.cache.ahead(key, need(), wanted, fill);
            }
        });
    }
    for block in blocks {
        let start = block * BLOCK;
        let from = at.max(start);
        let to = end.min(start + BLOCK);
        let place = |n: u64| usize::try_from(n - at).map_err(|_| Error::damaged("too large"));
        let out = &mut buf[place(from)?..place(to)?];
        part(&store.context.cache, file, block, from - start, out)?;
        if to == start + BLOCK {
            store.context.cache.consumed(&key(file, block));
        }
    }
    Ok(())
}

/// Fills `out` from byte `inside` of a block.
fn part(cache: &Cache, file: &StoreFile, block: u64, inside: u64, out: &mut [u8]) -> Result<()> {
    let key = key(file, block);
    if !cache.has(&key) && file.direct_range(block * BLOCK, BLOCK).is_none() {
        return Ok(file.read_exact_at(out, block * BLOCK + inside)?);
    }
    let piece = cache.read(key, need(), |out| fill(file, block, out))?;
    let bytes = usize::try_from(inside)
        .ok()
        .and_then(|at| piece.get(at..at + out.len()))
        .ok_or_else(|| Error::damaged("a block is shorter than the file"))?;
    out.copy_from_slice(bytes);
    Ok(())
}

/// Reads a block; behind the end of the file nothing is defined, and nobody asks for it.
fn fill(file: &StoreFile, block: u64, out: &mut [u8]) -> Result<()> {
    let start = block * BLOCK;
    let want = file.identity.size.saturating_sub(start).min(BLOCK);
    // A file system may refuse what it promised: the usual way is still there.
    match file.read_direct(out, start) {
        Ok(got) if got as u64 >= want => Ok(()),
        _ => {
            let want = usize::try_from(want).unwrap_or(out.len());
            Ok(file.read_exact_at(&mut out[..want], start)?)
        }
    }
}

fn need() -> Need {
    Need {
        len: 1 << 20,
        beside: 0,
    }
}

fn key(file: &StoreFile, block: u64) -> Key {
    Key {
        file: file.serial,
        object: u64::MAX,
        form: STORED,
        piece: block,
    }
}
