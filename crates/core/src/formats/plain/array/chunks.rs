//! A dataset as an array in chunks: those of the file, or rows of about 4 MiB if it has none.
//!
//! A chunk of variable-length text has a length-prefixed form: the number of texts, then the length and the bytes of
//! each. Numbers are little-endian with 32 bits. Text that is not UTF-8 has no such form.

use std::sync::Arc;

use super::ArrayFile;
use crate::dataset::backing::{Form, TEXT_CHUNK};
use crate::dataset::cache::{Block, Key, Need};
use crate::dataset::chunk::{BlockChunk, LinearChunk};
use crate::dataset::grid::row_block;
use crate::dataset::opened::OpenStore;
use crate::dataset::record::RecordBytes;
use crate::dataset::text::stays_inside;
use crate::tree::array::{ArrayDescription, Elements, Presence, StoredArray};
use npyfs_base::error::{Error, ErrorKind, Result};
use npyfs_base::npy::dtype::DType;
use npyfs_hdf5::{Dataset, Details, ElementType, TextForm};
use npyfs_io::content::{Content, Data, InMemory};

/// The approximate bytes of a chunk, for a dataset without chunks.
const ROWS: u64 = 4 << 20;

/// The most elements of a chunk of text: its size is known only after a pass over all of them.
const MOST_TEXTS: u64 = 1 << 16;

fn product(dims: &[u64]) -> Option<u64> {
    dims.iter().try_fold(1_u64, |n, &d| n.checked_mul(d))
}

fn too_large() -> Error {
    Error::new(ErrorKind::TooLarge, "a chunk larger than a file can be")
}

fn outside() -> Error {
    Error::new(ErrorKind::NotFound, "no such chunk")
}

/// Returns the start of a chunk, and the shape of its part in the dataset, whose `own` shape may be smaller than the
/// array's.
fn bounds(of: &ArrayDescription, own: &[u64], place: &[u64]) -> Result<(Vec<u64>, Vec<u64>)> {
    let rank = of.shape.len();
    if place.len() != rank || of.chunk.len() != rank || own.len() != rank {
        return Err(outside());
    }
    let mut start = Vec::with_capacity(place.len());
    let mut count = Vec::with_capacity(place.len());
    for k in 0..rank {
        let from = place[k].checked_mul(of.chunk[k]);
        let from = from.filter(|from| *from < of.shape[k]);
        let from = from.ok_or_else(outside)?;
        start.push(from);
        count.push(of.chunk[k].min(own[k].saturating_sub(from)));
    }
    Ok((start, count))
}

impl ArrayFile {
    /// Returns the chunk shape of the file, if elements are read by chunk.
    fn own_chunk(&self, details: &Details) -> Option<Vec<u64>> {
        let mut chunk = details.chunks.clone()?;
        let inner = self.dataset.element.inner();
        chunk.extend(inner.iter().map(|&d| d.max(1)));
        let whole = chunk.len() == self.dataset.shape.len() && !chunk.contains(&0);
        let wanted = match &self.dataset.element {
            ElementType::Fixed { .. } => true,
            ElementType::Text { fixed: None, .. } => {
                product(&chunk).is_some_and(|n| n <= MOST_TEXTS)
            }
            ElementType::Text { fixed: Some(_), .. } | ElementType::Record { .. } => false,
        };
        (whole && wanted).then_some(chunk)
    }

    /// Returns the contiguous bytes of a chunk among all elements.
    fn linear(
        &self,
        dtype: &DType,
        of: &ArrayDescription,
        (start, count): (&[u64], &[u64]),
    ) -> Result<Arc<dyn Content>> {
        let elements: Arc<dyn Content> = match self.dataset.element {
            ElementType::Record { .. } => {
                let len = self.payload_len(dtype)?;
                Arc::new(RecordBytes::new(&self.store, &self.dataset, len)?)
            }
            _ => {
                let pattern = self.store.pattern(self.dataset.addr);
                Arc::new(self.payload_of(pattern)?)
            }
        };
        let size = dtype.size() as u64;
        let steps = start.iter().zip(&self.dataset.shape);
        let first = steps.fold(0_u64, |at, (i, n)| at.saturating_mul(*n).saturating_add(*i));
        let first = first.saturating_mul(size);
        let bytes = product(count).and_then(|n| n.checked_mul(size));
        let bytes = bytes.ok_or_else(too_large)?;
        let len = self.fixed_len(dtype, of)?;
        let range = first..first.saturating_add(bytes);
        Ok(Arc::new(LinearChunk::new(
            elements,
            range,
            fill(dtype, of),
            len,
        )?))
    }

    fn fixed_len(&self, dtype: &DType, of: &ArrayDescription) -> Result<u64> {
        let size = dtype.size() as u64;
        let len = product(&of.chunk).and_then(|n| n.checked_mul(size));
        let len = len.filter(|&n| i64::try_from(n).is_ok());
        len.ok_or_else(too_large)
    }
}

/// Returns the element for positions that were never written.
fn fill(dtype: &DType, of: &ArrayDescription) -> Vec<u8> {
    let size = dtype.size();
    let own = of.details.fill.clone();
    own.filter(|fill| fill.len() == size)
        .unwrap_or_else(|| vec![0; size])
}

/// A dataset as an array in chunks.
pub(super) struct ChunkedArray(pub(super) Arc<ArrayFile>);

impl StoredArray for ChunkedArray {
    fn name(&self) -> &[u8] {
        &self.0.name
    }

    fn dtype(&self) -> Option<&DType> {
        match &self.0.dataset.element {
            ElementType::Fixed { dtype, .. } => Some(dtype),
            ElementType::Text { .. } | ElementType::Record { .. } => None,
        }
    }

    fn shape(&self) -> &[u64] {
        &self.0.dataset.shape
    }

    fn has_members(&self) -> bool {
        let is_record = matches!(self.0.dataset.element, ElementType::Record { .. });
        is_record || matches!(self.dtype(), Some(DType::Struct { .. }))
    }

    fn version(&self) -> u64 {
        self.0.store.file.identity.number()
    }

    fn is_current(&self) -> bool {
        self.0.store.file.is_current()
    }

    fn describe(&self) -> Result<ArrayDescription> {
        let h5 = &self.0.store.context.h5;
        let details = h5.describe(&self.0.store.file, self.0.dataset.addr)?;
        let elements = match self.0.dataset.element {
            ElementType::Text { fixed: None, .. } => {
                check_text(&self.0.store, &self.0.dataset)?;
                Elements::Text
            }
            _ => Elements::Fixed(self.0.dtype()?.0),
        };
        let own = &self.0.dataset.shape;
        let chunk = self
            .0
            .own_chunk(&details)
            .unwrap_or_else(|| match &elements {
                Elements::Fixed(dtype) => row_block(own, dtype.size() as u64, ROWS),
                Elements::Text => row_block(own, 1, MOST_TEXTS),
            });
        let mut shape = own.clone();
        let named = details.dimensions.iter();
        for (n, dimension) in shape
            .iter_mut()
            .zip(named.flat_map(|named| &named.dimensions))
        {
            *n = dimension.length.unwrap_or(*n);
        }
        Ok(ArrayDescription {
            elements,
            shape,
            chunk,
            details,
        })
    }

    fn presence(&self, of: &ArrayDescription) -> Result<Presence> {
        if of.elements == Elements::Text || of.shape.contains(&0) {
            return Ok(Presence::All);
        }
        let own = self.0.dataset.shape.clone();
        if own.contains(&0) {
            return Ok(Presence::Nothing);
        }
        if let ElementType::Record { .. } = self.0.dataset.element {
            return Ok(Presence::All);
        }
        let payload = self
            .0
            .payload_of(self.0.store.pattern(self.0.dataset.addr))?;
        if payload.is_unwritten() {
            return Ok(Presence::Nothing);
        }
        let corner = vec![0; of.shape.len()];
        let is_told = payload.has_written(&corner, &corner).is_some();
        if !is_told || self.0.own_chunk(&of.details).is_none() {
            return Ok(Presence::All);
        }
        let of = of.clone();
        Ok(Presence::Some(Box::new(move |place| {
            bounds(&of, &own, place).is_ok_and(|(start, count)| {
                !count.contains(&0) && payload.has_written(&start, &count) != Some(false)
            })
        })))
    }

    fn chunk_len(&self, of: &ArrayDescription, place: &[u64]) -> Result<u64> {
        let (start, count) = bounds(of, &self.0.dataset.shape, place)?;
        match &of.elements {
            Elements::Fixed(dtype) => self.0.fixed_len(dtype, of),
            Elements::Text => {
                let all = product(&of.chunk).ok_or_else(too_large)?;
                measure_text(&self.0.store, &self.0.dataset, &start, &count, all)
            }
        }
    }

    fn chunk(&self, of: &ArrayDescription, place: &[u64]) -> Result<Arc<dyn Content>> {
        let (start, count) = bounds(of, &self.0.dataset.shape, place)?;
        let dtype = match &of.elements {
            Elements::Fixed(dtype) => dtype,
            Elements::Text => {
                let counts = of.counts();
                let both = place.iter().zip(&counts);
                let number = both.fold(0_u64, |n, (i, count)| {
                    n.saturating_mul(*count).saturating_add(*i)
                });
                let bounds = (start, count);
                let chunk = (number, &of.chunk[..]);
                return open_text(&self.0.store, &self.0.dataset, bounds, chunk);
            }
        };
        let len = self.0.fixed_len(dtype, of)?;
        let unwritten = || {
            let nothing = Arc::new(InMemory(Vec::new()));
            LinearChunk::new(nothing, 0..0, fill(dtype, of), len)
        };
        if count.contains(&0) {
            return Ok(Arc::new(unwritten()?));
        }
        if self.0.own_chunk(&of.details).is_none() {
            return self.0.linear(dtype, of, (&start, &count));
        }
        let payload = self
            .0
            .payload_of(self.0.store.pattern(self.0.dataset.addr))?;
        if payload.has_written(&start, &count) == Some(false) {
            return Ok(Arc::new(unwritten()?));
        }
        let shapes = (&self.0.dataset.shape[..], &of.chunk[..]);
        let chunk = BlockChunk::new(&payload, shapes, &start, fill(dtype, of));
        let chunk = chunk.ok_or_else(|| Error::damaged("not read by its chunks"))?;
        Ok(Arc::new(chunk))
    }
}

/// The most bytes of a chunk of text.
const LARGEST_TEXT: u64 = 256 << 20;

/// Refuses text that may be in other files.
fn check_text(store: &Arc<OpenStore>, dataset: &Dataset) -> Result<()> {
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
    let short =
        |len: &[u8; 8]| u32::try_from(u64::from_le_bytes(*len)).map_err(|_| too_much_text());
    lengths.iter().map(short).collect()
}

fn too_much_text() -> Error {
    Error::new(ErrorKind::TooLarge, "a chunk of more than 256 MiB of text")
}

/// Returns the bytes of a chunk of `all` texts.
fn len_of(lengths: &[u32], all: u64) -> Result<u64> {
    let own: u64 = lengths.iter().map(|&n| u64::from(n)).sum();
    let beside = all.checked_add(1).and_then(|n| n.checked_mul(4));
    let len = beside.and_then(|n| n.checked_add(own));
    len.filter(|&n| n <= LARGEST_TEXT).ok_or_else(too_much_text)
}

/// Returns the exact number of bytes of a chunk of `all` texts, of which those of a block are inside the array.
fn measure_text(
    store: &OpenStore,
    dataset: &Dataset,
    start: &[u64],
    count: &[u64],
    all: u64,
) -> Result<u64> {
    len_of(&lengths(store, dataset, start, count)?, all)
}

/// Opens chunk `number` with a shape, of which a block is inside the array.
fn open_text(
    store: &Arc<OpenStore>,
    dataset: &Dataset,
    bounds: (Vec<u64>, Vec<u64>),
    (number, chunk): (u64, &[u64]),
) -> Result<Arc<dyn Content>> {
    let lengths = lengths(store, dataset, &bounds.0, &bounds.1)?;
    let all = chunk.iter().try_fold(1_u64, |n, &d| n.checked_mul(d));
    let all = all.ok_or_else(too_much_text)?;
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
        let len = usize::try_from(self.len).map_err(|_| too_much_text())?;
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
        write_texts(values, &self.lengths, (count, &self.chunk), out)
            .ok_or_else(|| Error::damaged("text of other lengths than it had"))
    }
}

/// Writes the texts of a block, concatenated in `values`, with their lengths as prefixes. `count` and `chunk` are the
/// shapes of the block and of the chunk, at whose start the block is. Texts outside of the block are empty. `None` if
/// that does not fill `out` exactly.
fn write_texts(
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
        let at = usize::try_from(offset).map_err(|_| too_much_text())?;
        let part = at.checked_add(buf.len());
        let part = part.and_then(|end| block.get(at..end));
        buf.copy_from_slice(part.ok_or_else(too_much_text)?);
        Ok(())
    }

    fn share(&self, offset: u64, len: usize) -> Result<Option<Data>> {
        let at = usize::try_from(offset).map_err(|_| too_much_text())?;
        let end = at.checked_add(len).ok_or_else(too_much_text)?;
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
        write_texts(b"abc", &lengths, shapes, &mut out).unwrap();
        let wanted = b"\x04\0\0\0\x02\0\0\0ab\0\0\0\0\x01\0\0\0c\0\0\0\0";
        assert_eq!(&out, wanted);
        assert!(write_texts(b"abcd", &lengths, shapes, &mut out).is_none());
        assert!(write_texts(b"ab", &lengths, shapes, &mut out).is_none());
        assert!(write_texts(b"abc", &lengths, shapes, &mut [0; 24]).is_none());
        assert!(write_texts(b"abc", &lengths, shapes, &mut [0; 22]).is_none());
        // Past the last column of two rows.
        let mut out = [7; 31];
        let shapes = (&[2, 2][..], &[2, 3][..]);
        write_texts(b"abc", &[1, 0, 1, 1], shapes, &mut out).unwrap();
        let wanted = b"\x06\0\0\0\x01\0\0\0a\0\0\0\0\0\0\0\0\x01\0\0\0b\x01\0\0\0c\0\0\0\0";
        assert_eq!(&out, wanted);
    }

    #[test]
    fn what_is_too_large_is_refused() {
        assert!(len_of(&[u32::MAX], 1).is_err());
        assert!(len_of(&[], u64::MAX).is_err());
    }
}
