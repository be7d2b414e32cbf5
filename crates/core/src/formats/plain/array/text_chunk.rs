//! A chunk of variable-length text in a length-prefixed form: the number of texts, then the length and the bytes of
//! each. Numbers are little-endian with 32 bits. Text that is not UTF-8 has no such form.

use std::sync::Arc;

use crate::dataset::backing::{Form, TEXT_CHUNK};
use crate::dataset::cache::{Block, Key, Need};
use crate::dataset::opened::OpenStore;
use crate::dataset::text::stays_inside;
use npyfs_base::error::{Error, ErrorKind, Result};
use npyfs_hdf5::{Dataset, TextForm};
use npyfs_io::content::{Content, Data};

/// The most bytes of a chunk.
const LARGEST: u64 = 256 << 20;

/// Refuses text that may be in other files.
pub(super) fn check(store: &Arc<OpenStore>, dataset: &Dataset) -> Result<()> {
    let map = store.context.h5.map(&store.file, dataset.addr)?;
    stays_inside(store, &map.source)
}

/// Returns the lengths of the texts of a block in bytes.
fn lengths(store: &OpenStore, dataset: &Dataset, start: &[u64], count: &[u64]) -> Result<Vec<u32>> {
    if count.contains(&0) {
        return Ok(Vec::new());
    }
    let form = Form::Text(TextForm::Lengths);
    let bytes = store.block(dataset.addr, start, count, form)?;
    let (lengths, _) = bytes.as_chunks::<8>();
    let short = |len: &[u8; 8]| u32::try_from(u64::from_le_bytes(*len)).map_err(|_| too_large());
    lengths.iter().map(short).collect()
}

fn too_large() -> Error {
    Error::new(ErrorKind::TooLarge, "a chunk of more than 256 MiB of text")
}

/// Returns the bytes of a chunk of `all` texts.
fn len_of(lengths: &[u32], all: u64) -> Result<u64> {
    let own: u64 = lengths.iter().map(|&n| u64::from(n)).sum();
    let beside = all.checked_add(1).and_then(|n| n.checked_mul(4));
    let len = beside.and_then(|n| n.checked_add(own));
    len.filter(|&n| n <= LARGEST).ok_or_else(too_large)
}

/// Returns the exact number of bytes of a chunk of `all` texts, of which those of a block are inside the array.
pub(super) fn measure(
    store: &OpenStore,
    dataset: &Dataset,
    start: &[u64],
    count: &[u64],
    all: u64,
) -> Result<u64> {
    len_of(&lengths(store, dataset, start, count)?, all)
}

/// Opens chunk `number` with a shape, of which a block is inside the array.
pub(super) fn open(
    store: &Arc<OpenStore>,
    dataset: &Dataset,
    bounds: (Vec<u64>, Vec<u64>),
    (number, chunk): (u64, &[u64]),
) -> Result<Arc<dyn Content>> {
    let lengths = lengths(store, dataset, &bounds.0, &bounds.1)?;
    let all = chunk.iter().try_fold(1_u64, |n, &d| n.checked_mul(d));
    let all = all.ok_or_else(too_large)?;
    Ok(Arc::new(TextChunk {
        len: len_of(&lengths, all)?,
        store: store.clone(),
        object: dataset.addr,
        bounds,
        lengths,
        number,
        chunk: chunk.to_vec(),
    }))
}

struct TextChunk {
    store: Arc<OpenStore>,
    object: u64,
    /// The start and shape of the block inside the array.
    bounds: (Vec<u64>, Vec<u64>),
    lengths: Vec<u32>,
    number: u64,
    /// The shape of the chunk.
    chunk: Vec<u64>,
    len: u64,
}

impl TextChunk {
    /// Returns the chunk, which is assembled once for all readers.
    fn block(&self) -> Result<Block> {
        let len = usize::try_from(self.len).map_err(|_| too_large())?;
        let key = Key {
            file: self.store.file.serial,
            object: self.object,
            form: TEXT_CHUNK,
            block: self.number,
        };
        let need = Need {
            len,
            beside: len.saturating_mul(2),
            ..Need::default()
        };
        self.store
            .context
            .cache
            .read(key, need, |out| self.fill(out))
    }

    fn fill(&self, out: &mut [u8]) -> Result<()> {
        let (start, count) = &self.bounds;
        let form = Form::Text(TextForm::Values);
        let held = match self.lengths.is_empty() {
            true => None,
            false => Some(self.store.block(self.object, start, count, form)?),
        };
        let values = held.as_ref().map_or(&[][..], |values| values);
        if std::str::from_utf8(values).is_err() {
            return Err(Error::damaged("text that is not UTF-8"));
        }
        write(values, &self.lengths, (count, &self.chunk), out)
            .ok_or_else(|| Error::damaged("text of other lengths than it had"))
    }
}

/// Writes the texts of a block, concatenated in `values`, with their lengths as prefixes. `count` and `chunk` are the
/// shapes of the block and of the chunk, at whose start the block is. Texts outside of the block are empty. `None` if
/// that does not fill `out` exactly.
fn write(
    values: &[u8],
    lengths: &[u32],
    (count, chunk): (&[u64], &[u64]),
    out: &mut [u8],
) -> Option<()> {
    let (mut values, mut out) = (values, out);
    let mut put = |bytes: &[u8]| {
        let (now, rest) = std::mem::take(&mut out).split_at_mut_checked(bytes.len())?;
        now.copy_from_slice(bytes);
        out = rest;
        Some(())
    };
    let all = chunk.iter().try_fold(1_u64, |n, &d| n.checked_mul(d))?;
    put(&u32::try_from(all).ok()?.to_le_bytes())?;
    let mut lengths = lengths.iter();
    let mut index = vec![0; chunk.len()];
    for _ in 0..all {
        let is_in = index.iter().zip(count).all(|(at, n)| at < n);
        let len = if is_in { *lengths.next()? } else { 0 };
        let (text, rest) = values.split_at_checked(usize::try_from(len).ok()?)?;
        values = rest;
        put(&len.to_le_bytes())?;
        put(text)?;
        for (at, n) in index.iter_mut().zip(chunk).rev() {
            *at += 1;
            if *at < *n {
                break;
            }
            *at = 0;
        }
    }
    (out.is_empty() && values.is_empty() && lengths.len() == 0).then_some(())
}

impl Content for TextChunk {
    fn len(&self) -> u64 {
        self.len
    }

    fn read_at(&self, offset: u64, buf: &mut [u8]) -> Result<()> {
        let block = self.block()?;
        let at = usize::try_from(offset).map_err(|_| too_large())?;
        let part = at.checked_add(buf.len());
        let part = part.and_then(|end| block.get(at..end));
        buf.copy_from_slice(part.ok_or_else(too_large)?);
        Ok(())
    }

    fn share(&self, offset: u64, len: usize) -> Result<Option<Data>> {
        let at = usize::try_from(offset).map_err(|_| too_large())?;
        let end = at.checked_add(len).ok_or_else(too_large)?;
        Ok(Some(Data::Shared(self.block()?, at..end)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn texts_come_with_their_lengths_and_empty_ones_behind() {
        let lengths = [2, 0, 1];
        assert_eq!(len_of(&lengths, 4).unwrap(), 23);
        let mut out = [7; 23];
        let shapes = (&[3][..], &[4][..]);
        write(b"abc", &lengths, shapes, &mut out).unwrap();
        let wanted = b"\x04\0\0\0\x02\0\0\0ab\0\0\0\0\x01\0\0\0c\0\0\0\0";
        assert_eq!(&out, wanted);
        assert!(write(b"abcd", &lengths, shapes, &mut out).is_none());
        assert!(write(b"ab", &lengths, shapes, &mut out).is_none());
        assert!(write(b"abc", &lengths, shapes, &mut [0; 24]).is_none());
        assert!(write(b"abc", &lengths, shapes, &mut [0; 22]).is_none());
        // Past the last column of two rows.
        let mut out = [7; 31];
        let shapes = (&[2, 2][..], &[2, 3][..]);
        write(b"abc", &[1, 0, 1, 1], shapes, &mut out).unwrap();
        let wanted = b"\x06\0\0\0\x01\0\0\0a\0\0\0\0\0\0\0\0\x01\0\0\0b\x01\0\0\0c\0\0\0\0";
        assert_eq!(&out, wanted);
    }

    #[test]
    fn what_is_too_large_is_refused() {
        assert!(len_of(&[u32::MAX], 1).is_err());
        assert!(len_of(&[], u64::MAX).is_err());
    }
}
