//! One object of a layer: an array from a scratch file in an HDF5 file of its own.

use std::fs::File;
use std::path::Path;

use super::storage::Storage;
use crate::content::Content;
use crate::error::{Error, ErrorKind, Result};
use crate::h5::{Creator, H5Error, NewDataset};
use crate::npy::parse::{self, Header, LONGEST_HEADER, NpyError};
use crate::raw::StoreFile;

/// Bytes that are copied at a time.
const BLOCK: usize = 1 << 20;

/// Largest array in Fortran order that is turned round, in bytes: it is held in memory.
pub const LARGEST_FORTRAN: u64 = 256 << 20;

impl From<NpyError> for Error {
    fn from(error: NpyError) -> Self {
        let kind = match &error {
            NpyError::Pickled | NpyError::Unsupported(_) => ErrorKind::Os(libc::EOPNOTSUPP),
            NpyError::TooLarge => ErrorKind::TooLarge,
            _ => ErrorKind::Os(libc::EINVAL),
        };
        Self::new(kind, error.to_string())
    }
}

/// What the scratch file says it is; an error unless it is a whole `.npy`.
pub fn header(scratch: &dyn Content) -> Result<Header> {
    let head = scratch.len().min(LONGEST_HEADER as u64);
    let mut bytes = vec![0; usize::try_from(head).unwrap_or(LONGEST_HEADER)];
    scratch.read_at(0, &mut bytes)?;
    let header = parse::parse(&bytes)?;
    header.check_len(scratch.len())?;
    Ok(header)
}

/// Makes the file `to`, with the array of `scratch` at `path` in it, and syncs it.
///
/// On failure the file may be there, in part.
pub fn write(
    to: &Path,
    path: &[String],
    scratch: &dyn Content,
    creator: &Creator,
    storage: &dyn Storage,
) -> Result<()> {
    let header = header(scratch)?;
    let transpose = header.fortran_order && header.shape.len() > 1 && header.len > 0;
    if transpose && header.len > LARGEST_FORTRAN {
        let message = format!(
            "an array in Fortran order of more than {LARGEST_FORTRAN} bytes: save it in C order \
             (numpy.ascontiguousarray)"
        );
        return Err(Error::new(ErrorKind::TooLarge, message));
    }
    let file = storage.create(to)?;
    let target = StoreFile::open(to)?;
    let new = NewDataset {
        path: path.to_vec(),
        dtype: header.dtype.clone(),
        shape: header.shape.clone(),
    };
    let addr = creator.create(&target, new).map_err(|e| match e {
        H5Error::Unsupported(why) => Error::new(ErrorKind::Os(libc::EOPNOTSUPP), why),
        other => other.into(),
    })?;
    if transpose {
        turn(&header, scratch, &file, addr, storage)?;
    } else {
        copy(&header, scratch, &file, addr, storage)?;
    }
    Ok(storage.sync(&file)?)
}

/// Copies the payload as it is; holes stay holes.
fn copy(
    header: &Header,
    scratch: &dyn Content,
    file: &File,
    addr: u64,
    storage: &dyn Storage,
) -> Result<()> {
    let end = header.start.saturating_add(header.len);
    let mut block = vec![0; BLOCK];
    let mut at = header.start;
    while at < end
        && let Some(range) = scratch.written(at)?
    {
        at = range.start.max(at);
        let stop = range.end.min(end);
        while at < stop {
            let size = usize::try_from(stop - at).unwrap_or(BLOCK).min(BLOCK);
            let wanted = block.get_mut(..size).unwrap_or_default();
            scratch.read_at(at, wanted)?;
            storage.write_at(file, wanted, addr + (at - header.start))?;
            at += size as u64;
        }
    }
    Ok(())
}

/// Copies the payload from Fortran order to C order. At least two dimensions, none of them 0.
fn turn(
    header: &Header,
    scratch: &dyn Content,
    file: &File,
    addr: u64,
    storage: &dyn Storage,
) -> Result<()> {
    let too_large = || Error::new(ErrorKind::TooLarge, "the array does not fit in memory");
    let len = usize::try_from(header.len).map_err(|_| too_large())?;
    let mut payload = vec![0; len];
    scratch.read_at(header.start, &mut payload)?;
    let element = header.dtype.size();
    // Bytes from one element to the next along each axis; their products are below `len`.
    let mut step = element;
    let mut axes = Vec::with_capacity(header.shape.len());
    for &n in &header.shape {
        let n = usize::try_from(n).map_err(|_| too_large())?;
        axes.push((n, step));
        step = step.saturating_mul(n);
    }
    let mut index = vec![0_usize; axes.len()];
    let mut out = Vec::with_capacity(BLOCK + element);
    let mut written = addr;
    let mut from = 0;
    loop {
        out.extend_from_slice(payload.get(from..from + element).unwrap_or_default());
        // The next element in C order: the last axis first.
        let mut more = false;
        for (place, &(n, step)) in index.iter_mut().zip(&axes).rev() {
            *place += 1;
            from += step;
            if *place < n {
                more = true;
                break;
            }
            from -= step * n;
            *place = 0;
        }
        if !more || out.len() >= BLOCK {
            storage.write_at(file, &out, written)?;
            written += out.len() as u64;
            out.clear();
        }
        if !more {
            return Ok(());
        }
    }
}
