//! Converts integers of any size and byte order to 64 bits.

use std::sync::Arc;

use super::array::ArrayFile;
use crate::store::encode::array::scalar;
use npyfs_base::error::{Error, Result};
use npyfs_base::npy::dtype::{Kind, Order, integer};
use npyfs_hdf5::ElementType;
use npyfs_io::content::Content;
use npyfs_io::rows::Converted;

/// The largest ratio of a dataset's size to its file's for which the whole dataset is read. No filter compresses more.
/// A dataset that claims to be larger was never written, and reading it might take forever.
const LARGEST: u64 = 1 << 16;

/// Refuses a dataset of `bytes` that is too large to be read as a whole.
pub(crate) fn bounded(array: &ArrayFile, bytes: u64) -> Result<()> {
    let file = array.store.file.identity.size;
    if bytes / LARGEST > file {
        let why = format!("{bytes} bytes in a file of {file}: not looked at");
        return Err(Error::damaged(why).about(array.path()));
    }
    Ok(())
}

/// Returns the elements of an integer dataset as little-endian 64-bit integers. Unsigned ones beyond 2^63 - 1 become
/// negative, and are refused as such.
pub(crate) fn int64(array: &ArrayFile) -> Result<Arc<dyn Content>> {
    let payload: Arc<dyn Content> = Arc::new(array.payload()?);
    bounded(array, payload.len())?;
    let Some((kind, size, order)) = integers(&array.dataset.element) else {
        return Err(Error::damaged("not integers").about(array.path()));
    };
    if size == 8 && order == Order::Little {
        return Ok(payload);
    }
    Ok(Arc::new(Converted::new(
        payload,
        size,
        8,
        move |from, to| {
            for (from, to) in from.chunks_exact(size).zip(to.chunks_exact_mut(8)) {
                let number = integer(from, kind, order).unwrap_or(-1);
                to.copy_from_slice(&number.to_le_bytes());
            }
        },
    )))
}

/// Returns the kind, size and byte order of elements that are integers of at most 8 bytes.
pub(crate) fn integers(element: &ElementType) -> Option<(Kind, usize, Order)> {
    match element {
        ElementType::Fixed { dtype, inner, .. } if inner.is_empty() => {
            scalar(dtype).filter(|(kind, size, _)| {
                matches!(kind, Kind::Int | Kind::Uint) && (1..=8).contains(size)
            })
        }
        _ => None,
    }
}
