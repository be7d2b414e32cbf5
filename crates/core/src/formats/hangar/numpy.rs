//! Backend `10`: an `.npy` file with one sample a row, made by NumPy's `open_memmap`.
//!
//! Only the files that Hangar writes are read: version 1.0, C order, numbers and booleans in native byte order.

use super::schema::described;
use crate::dataset::chunked::LARGEST;
use npyfs_base::error::{Error, Result};
use npyfs_base::npy::{self, dtype::DType};
use npyfs_hdf5::Sink;
use npyfs_io::file::{RawError, StoreFile};

/// The number of bytes of a sample that are handed on at a time.
pub(super) const PART: usize = 1 << 20;

/// The header of an `.npy` file.
#[derive(Debug)]
pub(super) struct NumpyHeader {
    pub dtype: DType,
    pub shape: Vec<u64>,
    /// The offset of the data.
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

    /// Returns the offset and size in bytes of the row that holds a sample; the sample is the first elements along each
    /// axis.
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

    /// Hands on the bytes of a sample in parts: of row `row`, the first elements along each axis.
    pub(super) fn sample(
        &self,
        file: &StoreFile,
        row: u64,
        shape: &[u64],
        sink: &mut Sink<'_>,
    ) -> Result<()> {
        let (start, _) = self.place(file, row, shape)?;
        if shape.contains(&0) {
            return Ok(());
        }
        // An axis that the sample fills joins the run. No axis of the sample is larger than that of the row.
        let inner = &self.shape[1..];
        let (mut outer, mut run) = (shape.len(), self.dtype.size() as u64);
        while let Some(k) = outer.checked_sub(1) {
            run *= shape[k];
            outer = k;
            if shape[k] != inner[k] {
                break;
            }
        }
        let offset = |index: &[u64]| {
            let places = (0..inner.len()).fold(0, |at, k| {
                at * inner[k] + index.get(k).copied().unwrap_or(0)
            });
            start + places * self.dtype.size() as u64
        };
        let mut index = vec![0; outer];
        if let Some(far) = file.far() {
            // The runs of the sample lie close together.
            let last: Vec<u64> = shape[..outer].iter().map(|s| s - 1).collect();
            let range = start..offset(&last).saturating_add(run);
            far.fetch(std::slice::from_ref(&range))?;
        }
        let (mut part, mut done) = (Vec::new(), 0);
        loop {
            let (mut at, end) = (offset(&index), offset(&index) + run);
            while at < end {
                let from = part.len();
                // The number is smaller than a part.
                let n = (end - at).min((PART - from) as u64) as usize;
                part.resize(from + n, 0);
                file.read_growing_at(&mut part[from..], at)?;
                at += n as u64;
                if part.len() == PART {
                    sink(done, &part)?;
                    done += part.len() as u64;
                    part.clear();
                }
            }
            let Some(k) = (0..outer).rev().find(|&k| index[k] + 1 < shape[k]) else {
                break;
            };
            index[k] += 1;
            index[k + 1..].fill(0);
        }
        if !part.is_empty() {
            sink(done, &part)?;
        }
        Ok(())
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
        let sample = |row, shape: &[u64]| {
            let mut bytes = Vec::new();
            let sink = &mut |at, part: &[u8]| {
                assert_eq!(at, bytes.len() as u64);
                bytes.extend_from_slice(part);
                Ok(())
            };
            header.sample(&file, row, shape, sink).map(|()| bytes)
        };
        let values = |row, shape: &[u64]| {
            let bytes = sample(row, shape).unwrap();
            let pairs = bytes.chunks_exact(2);
            pairs
                .map(|b| i16::from_le_bytes([b[0], b[1]]))
                .collect::<Vec<_>>()
        };
        assert_eq!(values(0, &[2, 3]), [0, 1, 2, 3, 4, 5]);
        assert_eq!(values(1, &[2, 2]), [6, 7, 9, 10]);
        assert_eq!(values(1, &[1, 3]), [6, 7, 8]);
        assert_eq!(values(1, &[2, 1]), [6, 9]);
        assert!(sample(2, &[2, 3]).is_err());
        assert!(sample(0, &[3, 3]).is_err());
        assert!(sample(0, &[6]).is_err());
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
