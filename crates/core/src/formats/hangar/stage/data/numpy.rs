//! Rows of backend `10`: an `.npy` file with one row for each sample, which fills the first elements of the row along
//! each axis.
//!
//! Strides are counted in bytes of the file, for which ndarray has no view.

use std::fs::File;
use std::os::unix::fs::FileExt;

use crate::formats::hangar::stage::sample::NewSample;
use npyfs_base::error::{Error, ErrorKind, Result};
use npyfs_base::npy;
use npyfs_base::npy::dtype::DType;

/// The number of rows of a file.
pub(super) const ROWS: u64 = 1000;

fn too_large() -> Error {
    Error::new(ErrorKind::TooLarge, "larger than a row can be")
}

/// Writes a sample into its row; a sample smaller than the row takes the first elements along each axis.
pub(super) fn write_row(
    file: &File,
    row_shape: &[u64],
    row: u64,
    sample: &NewSample,
    bytes: &[u8],
) -> Result<()> {
    let dtype: &DType = sample.dtype.as_ref().ok_or_else(too_large)?;
    let size = dtype.size() as u64;
    let start = npy::header(dtype, &[&[ROWS], row_shape].concat()).len() as u64;
    let whole = row_shape.iter().product::<u64>() * size;
    let begin = start + row * whole;
    // The longest run that is contiguous in both the sample and the row.
    let same = sample
        .shape
        .iter()
        .zip(row_shape)
        .rev()
        .take_while(|(a, b)| a == b)
        .count();
    let outer = sample.shape.len().saturating_sub(same + 1);
    let together: u64 = sample.shape[outer..].iter().product::<u64>() * size;
    let strides: Vec<u64> = (0..outer)
        .map(|axis| row_shape[axis + 1..].iter().product::<u64>() * size)
        .collect();
    let runs: u64 = sample.shape[..outer].iter().product();
    let run_len = usize::try_from(together).map_err(|_| too_large())?;
    for (number, run) in (0..runs).zip(bytes.chunks(run_len.max(1))) {
        let mut left = number;
        let mut at = begin;
        for axis in (0..outer).rev() {
            at += left % sample.shape[axis] * strides[axis];
            left /= sample.shape[axis];
        }
        file.write_all_at(run, at)?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn smaller_samples_take_the_first_places_of_a_row() {
        let file = tempfile::tempfile().unwrap();
        let dtype = DType::int(2);
        let start = npy::header(&dtype, &[1000, 3, 4, 2]).len();
        for (row, shape) in [[3, 4, 2], [2, 3, 2], [1, 4, 1], [3, 1, 2], [2, 4, 2]]
            .iter()
            .enumerate()
        {
            let count: u64 = shape.iter().product();
            let values: Vec<u8> = (0..count)
                .flat_map(|n| (n as i16 + 1).to_le_bytes())
                .collect();
            let sample = NewSample::array(dtype.clone(), shape.to_vec(), values).unwrap();
            write_row(
                &file,
                &[3, 4, 2],
                row as u64,
                &sample,
                &sample.held().unwrap(),
            )
            .unwrap();
            let mut stored = vec![0; 48];
            let len = file.metadata().unwrap().len() as usize;
            let at = start + 48 * row;
            stored.truncate(48.min(len - at));
            file.read_exact_at(&mut stored, at as u64).unwrap();
            stored.resize(48, 0);
            let mut next = 0;
            for (i, pair) in stored.chunks(2).enumerate() {
                let (x, y, z) = (i / 8, i / 2 % 4, i % 2);
                let inside =
                    (x as u64) < shape[0] && (y as u64) < shape[1] && (z as u64) < shape[2];
                next += i16::from(inside);
                let want = if inside { next } else { 0 };
                assert_eq!(
                    i16::from_le_bytes([pair[0], pair[1]]),
                    want,
                    "{shape:?} {i}"
                );
            }
        }
    }
}
