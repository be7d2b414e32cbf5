//! A dataset as an array in chunks: those of the file, or rows of about 4 MiB if it has none.

use std::sync::Arc;

use super::{ArrayFile, text_chunk};
use crate::dataset::chunk::{BlockChunk, LinearChunk};
use crate::dataset::grid::row_block;
use crate::dataset::record::RecordBytes;
use crate::tree::array::{ArrayDescription, Elements, Presence, StoredArray};
use npyfs_base::error::{Error, ErrorKind, Result};
use npyfs_base::npy::dtype::DType;
use npyfs_hdf5::{Details, ElementType};
use npyfs_io::content::{Content, InMemory};

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
                text_chunk::check(&self.0.store, &self.0.dataset)?;
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
                text_chunk::measure(&self.0.store, &self.0.dataset, &start, &count, all)
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
                return text_chunk::open(&self.0.store, &self.0.dataset, bounds, chunk);
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
