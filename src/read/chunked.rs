//! Chunks read from the store file and decoded here, without libhdf5.

use super::block::{Place, copy};
use super::payload::repeat;
use crate::error::{Error, Result};
use crate::h5::{Direct, Slot};
use crate::raw::StoreFile;

/// Most bytes of one chunk.
const LARGEST: u64 = 1 << 30;

/// The chunks of one dataset.
pub struct Chunks {
    /// Shapes of the dataset and of a chunk, with the dimensions of an array datatype behind.
    shape: Vec<u64>,
    chunk: Vec<u64>,
    element: u64,
    chunk_len: usize,
    direct: Direct,
}

impl Chunks {
    /// `None` if a chunk is too large to be held; libhdf5 then reads it in parts.
    pub fn new(shape: &[u64], chunk: &[u64], element: u64, direct: Direct) -> Option<Self> {
        let len = chunk
            .iter()
            .try_fold(element, |n, &d| n.checked_mul(d))
            .filter(|&n| n <= LARGEST)?;
        Some(Self {
            shape: shape.to_vec(),
            chunk: chunk.to_vec(),
            element,
            chunk_len: usize::try_from(len).ok()?,
            direct,
        })
    }

    /// The block of the dataset at `start`, which is at a corner of a chunk.
    pub fn block(&self, file: &StoreFile, start: &[u64], shape: &[u64]) -> Result<Vec<u8>> {
        let rank = shape.len();
        let len = shape
            .iter()
            .try_fold(self.element, |n, &d| n.checked_mul(d))
            .and_then(|n| usize::try_from(n).ok())
            .ok_or_else(|| Error::damaged("block too large"))?;
        let first: Vec<u64> = (0..rank).map(|k| start[k] / self.chunk[k]).collect();
        let last: Vec<u64> = (0..rank)
            .map(|k| (start[k] + shape[k]).div_ceil(self.chunk[k]))
            .collect();
        if shape == self.chunk {
            return self.chunk(file, &first);
        }
        let mut out = vec![0; len];
        let mut place = first.clone();
        loop {
            let corner: Vec<u64> = (0..rank).map(|k| place[k] * self.chunk[k]).collect();
            let inside: Vec<u64> = (0..rank).map(|k| corner[k] - start[k]).collect();
            let count: Vec<u64> = (0..rank)
                .map(|k| self.chunk[k].min(shape[k] - inside[k]))
                .collect();
            let bytes = self.chunk(file, &place)?;
            let from = Place {
                shape: &self.chunk,
                start: &vec![0; rank],
            };
            let to = Place {
                shape,
                start: &inside,
            };
            copy(&bytes, from, &mut out, to, &count, self.element)
                .ok_or_else(|| Error::damaged("a chunk does not fit the shape"))?;
            let Some(k) = (0..rank).rev().find(|&k| place[k] + 1 < last[k]) else {
                return Ok(out);
            };
            place[k] += 1;
            place[k + 1..].copy_from_slice(&first[k + 1..]);
        }
    }

    /// One whole chunk, decoded; where none is stored, the fill value.
    fn chunk(&self, file: &StoreFile, place: &[u64]) -> Result<Vec<u8>> {
        let at = place.iter().enumerate().fold(0, |at, (k, p)| {
            at * self.shape[k].div_ceil(self.chunk[k]) + p
        });
        let slot = usize::try_from(at)
            .ok()
            .and_then(|at| self.direct.table.slots.get(at))
            .ok_or_else(|| Error::damaged("a chunk outside the table"))?;
        let &Slot { addr, size, mask } = slot;
        if size == 0 {
            let mut out = vec![0; self.chunk_len];
            repeat(&self.direct.fill, 0, &mut out);
            return Ok(out);
        }
        if u64::from(size) > LARGEST {
            return Err(Error::damaged("a stored chunk of more than 1 GiB"));
        }
        let mut stored = vec![0; size as usize];
        file.read_exact_at(&mut stored, addr)?;
        self.direct
            .pipeline
            .decode(stored, mask, self.chunk_len)
            .map_err(|e| Error::damaged(format!("chunk {place:?}: {e}")))
    }
}
