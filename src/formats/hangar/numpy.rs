//! Backend `10`: an `.npy` file with one sample a row, made by NumPy's `open_memmap`.
//!
//! Only what Hangar writes is read: version 1.0, C order, numbers and booleans in native byte order.

use super::rows::LARGEST;
use super::schema::described;
use crate::dataset::hyperslab::{SlabPlace, copy};
use crate::error::{Error, Result};
use crate::hdf5::Sink;
use crate::io::file::{RawError, StoreFile};
use crate::npy::{self, dtype::DType};

/// Bytes that are handed on at a time, unless one run is more.
const PART: usize = 1 << 20;

/// The header of an `.npy` file.
#[derive(Debug)]
pub(super) struct NumpyHeader {
    pub dtype: DType,
    pub shape: Vec<u64>,
    /// The offset at which the data begin.
    start: u64,
}

impl NumpyHeader {
    pub(super) fn read(file: &StoreFile) -> Result<Self> {
        let about = |why: &str| Error::damaged(format!("{}: {why}", file.path.display()));
        let short = |e| match e {
            RawError::Far(e) => e,
            _ => about("not an .npy file"),
        };
        let mut head = vec![0; 10];
        file.read_growing_at(&mut head, 0).map_err(short)?;
        if head[..8] != *b"\x93NUMPY\x01\x00" {
            return Err(about("not an .npy file of version 1.0"));
        }
        head.resize(10 + usize::from(u16::from_le_bytes([head[8], head[9]])), 0);
        file.read_growing_at(&mut head, 0).map_err(short)?;
        Self::parse(&head).ok_or_else(|| about("an .npy header that Hangar does not write"))
    }

    fn parse(head: &[u8]) -> Option<Self> {
        let header = npy::parse::parse(head).ok()?;
        if header.fortran_order || header.shape.is_empty() {
            return None;
        }
        Some(Self {
            dtype: described(&header.dtype.name())?,
            shape: header.shape,
            start: header.start,
        })
    }

    /// Returns where the row with a sample begins, and its bytes; the sample is the first elements along each axis.
    pub(super) fn place(&self, file: &StoreFile, row: u64, shape: &[u64]) -> Result<(u64, u64)> {
        let outside = || self.outside(file, row, shape);
        let inner = &self.shape[1..];
        let fits = shape.len() == inner.len() && shape.iter().zip(inner).all(|(s, d)| s <= d);
        if row >= self.shape[0] || !fits {
            return Err(outside());
        }
        let element = self.dtype.size() as u64;
        let whole = inner.iter().try_fold(element, |n, &d| n.checked_mul(d));
        let whole = whole.filter(|&n| n <= LARGEST).ok_or_else(outside)?;
        let at = row
            .checked_mul(whole)
            .and_then(|n| n.checked_add(self.start))
            .ok_or_else(outside)?;
        Ok((at, whole))
    }

    fn outside(&self, file: &StoreFile, row: u64, shape: &[u64]) -> Error {
        Error::damaged(format!(
            "{}: row {row} of shape {shape:?} lies outside the array of shape {:?}",
            file.path.display(),
            self.shape
        ))
    }

    /// Hands on the bytes of a sample that is not all of its row, in parts.
    pub(super) fn crop(
        &self,
        file: &StoreFile,
        row: u64,
        shape: &[u64],
        sink: &mut Sink<'_>,
    ) -> Result<()> {
        let outside = || self.outside(file, row, shape);
        let (start, _) = self.place(file, row, shape)?;
        let (inner, rank) = (&self.shape[1..], shape.len());
        if shape.contains(&0) || rank == 0 {
            return Ok(());
        }
        let element = self.dtype.size() as u64;
        // Neither is larger than the row.
        let run = usize::try_from(shape[rank - 1] * element).map_err(|_| outside())?;
        if let Some(far) = file.far() {
            // Its runs lie near each other.
            let last = shape.iter().zip(inner).fold(0, |at, (s, d)| at * d + s - 1);
            let end = start.saturating_add((last + 1).saturating_mul(element));
            far.fetch(std::slice::from_ref(&(start..end)))?;
        }
        let mut index = vec![0; rank - 1];
        let mut part = Vec::with_capacity(PART.max(run));
        let mut done = 0;
        loop {
            let places = index.iter().zip(inner).fold(0, |at, (i, d)| at * d + i);
            let at = start + places * inner[rank - 1] * element;
            let from = part.len();
            part.resize(from + run, 0);
            file.read_growing_at(&mut part[from..], at)?;
            let next = (0..rank - 1).rev().find(|&k| index[k] + 1 < shape[k]);
            if next.is_none() || part.len() + run > PART {
                sink(done, &part)?;
                done += part.len() as u64;
                part.clear();
            }
            let Some(k) = next else {
                return Ok(());
            };
            index[k] += 1;
            index[k + 1..].fill(0);
        }
    }

    /// Returns whether a sample of `shape` is all of its row.
    pub(super) fn is_whole(&self, shape: &[u64]) -> bool {
        *shape == self.shape[1..]
    }

    /// The bytes of a sample: row `row`, the first elements along each axis.
    pub(super) fn sample(&self, file: &StoreFile, row: u64, shape: &[u64]) -> Result<Vec<u8>> {
        let outside = || self.outside(file, row, shape);
        let (at, whole) = self.place(file, row, shape)?;
        let inner = &self.shape[1..];
        let element = self.dtype.size() as u64;
        let bytes = |shape: &[u64]| shape.iter().try_fold(element, |n, &d| n.checked_mul(d));
        let mut stored = vec![0; usize::try_from(whole).map_err(|_| outside())?];
        file.read_growing_at(&mut stored, at)?;
        if shape == inner {
            return Ok(stored);
        }
        let len = bytes(shape).and_then(|n| usize::try_from(n).ok());
        let mut out = vec![0; len.ok_or_else(outside)?];
        let zeros = vec![0; shape.len()];
        let place = |shape| SlabPlace {
            shape,
            start: &zeros,
        };
        copy(
            &stored,
            place(inner),
            &mut out,
            place(shape),
            shape,
            element,
        )
        .ok_or_else(outside)?;
        Ok(out)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_are_cropped() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("a.npy");
        let shape = [2, 2, 3];
        let mut bytes = npy::header(&described("<i2").unwrap(), &shape);
        bytes.extend((0..12_i16).flat_map(i16::to_le_bytes));
        std::fs::write(&path, bytes).unwrap();
        let file = StoreFile::open(&path).unwrap();
        let header = NumpyHeader::read(&file).unwrap();
        assert_eq!(header.shape, shape);
        let values = |row, shape: &[u64]| {
            let bytes = header.sample(&file, row, shape).unwrap();
            let pairs = bytes.chunks_exact(2);
            pairs
                .map(|b| i16::from_le_bytes([b[0], b[1]]))
                .collect::<Vec<_>>()
        };
        assert_eq!(values(0, &[2, 3]), [0, 1, 2, 3, 4, 5]);
        assert_eq!(values(1, &[2, 2]), [6, 7, 9, 10]);
        for shape in [[2, 2], [1, 3], [2, 1]] {
            let mut parts = Vec::new();
            let sink = &mut |at, part: &[u8]| {
                assert_eq!(at, parts.len() as u64);
                parts.extend_from_slice(part);
                Ok(())
            };
            header.crop(&file, 1, &shape, sink).unwrap();
            assert_eq!(parts, header.sample(&file, 1, &shape).unwrap());
        }
        assert!(header.sample(&file, 2, &[2, 3]).is_err());
        assert!(header.sample(&file, 0, &[3, 3]).is_err());
        assert!(header.sample(&file, 0, &[6]).is_err());
    }

    #[test]
    fn headers_that_hangar_does_not_write_are_refused() {
        let head = |text: &str| {
            let mut head = b"\x93NUMPY\x01\x00".to_vec();
            head.extend(u16::try_from(text.len()).unwrap().to_le_bytes());
            head.extend(text.bytes());
            head
        };
        let taken = "{'descr': '<f4', 'fortran_order': False, 'shape': (3,), }";
        assert_eq!(NumpyHeader::parse(&head(taken)).unwrap().shape, [3]);
        for text in [
            "{'descr': '>f4', 'fortran_order': False, 'shape': (3,), }",
            "{'descr': '<f4', 'fortran_order': True, 'shape': (3,), }",
            "{'descr': '<f4', 'fortran_order': False, 'shape': (), }",
            "{'descr': [('a', '<f4')], 'fortran_order': False, 'shape': (3,), }",
        ] {
            assert!(NumpyHeader::parse(&head(text)).is_none(), "{text}");
        }
    }
}
