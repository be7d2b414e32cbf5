//! An open dataset of libhdf5, read in blocks of bounded size.

use std::ops::Range;
use std::sync::Arc;

use super::ffi::{self, Failure, Id};
use npyfs_codec as codec;
use npyfs_hdf5::protocol::{ElementType, H5Error, MAX_BLOCK};
use npyfs_io::file::members::Layout;

/// An open dataset, with the type for reading it.
pub(super) struct OpenDataset {
    /// The address of the dataset.
    pub addr: u64,
    pub id: Id,
    pub element: ElementType,
    /// The type in memory; a pointer for text of variable length.
    pub mem_type: Id,
    /// The type for reading the elements of sequences, if the elements are sequences. Such elements count as text.
    pub sequence: Option<Id>,
    /// The gaps in an element, in bytes, which read as zeros whatever is stored there.
    pub gaps: Vec<Range<usize>>,
    /// The layout of the members of the file.
    pub layout: Option<Arc<Layout>>,
}

impl OpenDataset {
    /// Reads a block of elements of a fixed size; the caller has bounded the block.
    pub(super) fn read(&self, start: &[u64], shape: &[u64]) -> Result<Vec<u8>, H5Error> {
        let size = ffi::size(&self.mem_type);
        let mut bytes = ffi::read_block(&self.id, &self.mem_type, start, shape, size)
            .map_err(|e| self.failed(e))?;
        if let (ElementType::Fixed { dtype, .. }, false) = (&self.element, self.gaps.is_empty()) {
            for element in bytes.chunks_exact_mut(dtype.size().max(1)) {
                for gap in &self.gaps {
                    if let Some(gap) = element.get_mut(gap.clone()) {
                        gap.fill(0);
                    }
                }
            }
        }
        Ok(bytes)
    }

    /// Returns the error for a failed read of elements; it names the missing filters, if there are any.
    pub(super) fn failed(&self, failure: Failure) -> H5Error {
        let missing = ffi::dataset_plist(&self.id).and_then(|plist| ffi::filters(&plist));
        let missing: Vec<String> = missing
            .unwrap_or_default()
            .into_iter()
            .filter(|(id, ..)| !is_available(*id))
            .map(|(id, name, _)| match name.as_str() {
                "" => format!("filter {id} is not known"),
                name => format!("filter {id} ({name}) is not known"),
            })
            .collect();
        match missing.is_empty() {
            true => failure.into(),
            false => H5Error::Unsupported(missing.join(", ")),
        }
    }
}

/// Returns the size in bytes of a block; refuses a block larger than one answer may be.
pub(super) fn bounded(shape: &[u64], size: usize) -> Result<u64, H5Error> {
    shape_bytes(shape, size)
        .filter(|&n| n <= MAX_BLOCK)
        .ok_or_else(|| {
            H5Error::TooLarge(format!(
                "a block of shape {shape:?} with {size} bytes an element is larger than {MAX_BLOCK} bytes"
            ))
        })
}

/// Returns the size in bytes of an array of this shape, with elements of `size` bytes; `None` on overflow.
pub(super) fn shape_bytes(shape: &[u64], size: usize) -> Option<u64> {
    shape.iter().try_fold(size as u64, |n, &d| n.checked_mul(d))
}

/// Returns true if this build can undo a filter.
pub(super) fn is_available(filter: i32) -> bool {
    codec::is_known(filter) || ffi::filter_available(filter)
}
