//! Datasets: their extent and their elements.

use super::space::{byte_len, select_block, simple};
use super::*;

/// Returns the datatype of a dataset.
pub(crate) fn dataset_type(dataset: &Id) -> Result<Id> {
    // SAFETY: the identifier is open as long as it is borrowed, and no pointer is passed.
    id(unsafe { h5d::H5Dget_type(dataset.0) }, "H5Dget_type")
}

/// Returns the dataspace of a dataset.
pub(crate) fn dataset_space(dataset: &Id) -> Result<Id> {
    // SAFETY: as above.
    id(unsafe { h5d::H5Dget_space(dataset.0) }, "H5Dget_space")
}

/// Returns the creation properties of a dataset.
pub(crate) fn dataset_plist(dataset: &Id) -> Result<Id> {
    // SAFETY: as above.
    id(
        unsafe { h5d::H5Dget_create_plist(dataset.0) },
        "H5Dget_create_plist",
    )
}

/// Returns the bytes that a dataset occupies in its file; 0 proves that nothing was ever written.
///
/// libhdf5 answers 0 as well where it cannot read the chunk index, and tells that on its error stack alone.
pub(crate) fn storage_size(dataset: &Id) -> Result<u64> {
    // SAFETY: as above; every call but those about the stack itself begins with an empty stack.
    let (size, errors) = unsafe {
        let size = h5d::H5Dget_storage_size(dataset.0);
        (size, h5e::H5Eget_num(h5e::H5E_DEFAULT))
    };
    if errors != 0 {
        return Err(failure("H5Dget_storage_size"));
    }
    Ok(size)
}

/// Returns the address of contiguous data, with the user block counted in; `None` if it was never written.
pub(crate) fn contiguous_addr(dataset: &Id) -> Result<Option<u64>> {
    let mut status = h5d::H5D_space_status_t::H5D_SPACE_STATUS_ERROR;
    // SAFETY: a live integer; what libhdf5 writes there after success is one of the values of the type.
    done(
        unsafe { h5d::H5Dget_space_status(dataset.0, &raw mut status) },
        "H5Dget_space_status",
    )?;
    if status == h5d::H5D_space_status_t::H5D_SPACE_STATUS_NOT_ALLOCATED {
        return Ok(None);
    }
    // SAFETY: the identifier is open as long as it is borrowed. An undefined address is all ones.
    match unsafe { h5d::H5Dget_offset(dataset.0) } {
        u64::MAX => Err(failure("H5Dget_offset")),
        addr => Ok(Some(addr)),
    }
}

/// Reads the block of a dataset at `start` with `shape` (both empty for a scalar), `element` bytes each.
///
/// Memory is `element` times the product of `shape`; the caller has bounded it.
pub(crate) fn read_block(
    dataset: &Id,
    mem_type: &Id,
    start: &[u64],
    shape: &[u64],
    element: usize,
) -> Result<Vec<u8>> {
    let len = byte_len(shape, element).ok_or_else(|| Failure("block too large".into()))?;
    let mut buf = vec![0_u8; len];
    if len == 0 {
        return Ok(buf);
    }
    if size(mem_type) != element {
        return Err(Failure("element size differs from the memory type".into()));
    }
    let file_space = dataset_space(dataset)?;
    let mem_space = simple(shape)?;
    if !shape.is_empty() {
        select_block(&file_space, start, shape)?;
    }
    // SAFETY: the memory dataspace has exactly the block's elements, and the buffer the block's bytes in the memory
    // type, whose size is checked above. Without a selection libhdf5 refuses a dataset that has more elements than one.
    unsafe {
        done(
            h5d::H5Dread(
                dataset.0,
                mem_type.0,
                mem_space.0,
                file_space.0,
                h5p::H5P_DEFAULT,
                buf.as_mut_ptr().cast(),
            ),
            "H5Dread",
        )?;
    }
    Ok(buf)
}

/// Reads variable-length strings of a block; a null pointer reads as an empty string.
pub(crate) fn read_strings(
    dataset: &Id,
    mem_type: &Id,
    start: &[u64],
    shape: &[u64],
) -> Result<Vec<Vec<u8>>> {
    let buf = read_block(dataset, mem_type, start, shape, size_of::<*mut c_char>())?;
    // SAFETY: `read_block` filled the buffer with one pointer per element.
    unsafe { take_strings(buf, mem_type) }
}

/// Copies the strings out and gives libhdf5's memory back.
///
/// # Safety
/// `buf` holds pointers that libhdf5 has just allocated for `mem_type`, a variable-length string.
pub(super) unsafe fn take_strings(mut buf: Vec<u8>, mem_type: &Id) -> Result<Vec<Vec<u8>>> {
    let n = buf.len() / size_of::<*mut c_char>();
    let mut out = Vec::with_capacity(n);
    for bytes in buf.chunks_exact(size_of::<usize>()) {
        let mut raw = [0_u8; size_of::<usize>()];
        raw.copy_from_slice(bytes);
        let text = ptr::with_exposed_provenance::<c_char>(usize::from_ne_bytes(raw));
        // SAFETY: see above; strings end in NUL.
        out.push(if text.is_null() {
            Vec::new()
        } else {
            unsafe { CStr::from_ptr(text) }.to_bytes().to_vec()
        });
    }
    if n > 0 {
        let len = n as hsize_t;
        // SAFETY: type, count and buffer are those of the read.
        unsafe {
            let space = simple(&[len])?;
            done(
                h5t::H5Treclaim(
                    mem_type.0,
                    space.0,
                    h5p::H5P_DEFAULT,
                    buf.as_mut_ptr().cast(),
                ),
                "H5Treclaim",
            )?;
        }
    }
    Ok(out)
}

/// An entry of the index of chunks.
#[derive(Clone, Debug)]
pub(crate) struct StoredChunk {
    /// Coordinates of the first element.
    pub start: Vec<u64>,
    pub addr: u64,
    pub size: u64,
    /// Bit `i` set: filter `i` was not applied.
    pub mask: u32,
}

/// The index of the chunks of a dataset.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ChunkIndex {
    /// A B-tree of version 1: the only one without checksums.
    BTree1,
    ExtensibleArray,
    Other,
}

/// Returns the kind of index that a chunked dataset has.
pub(crate) fn chunk_index(dataset: &Id) -> Result<ChunkIndex> {
    const BTREE_1: h5d::H5D_chunk_index_t = 0;
    const EXTENSIBLE_ARRAY: h5d::H5D_chunk_index_t = 4;
    let mut kind = 0;
    // SAFETY: a live integer.
    done(
        unsafe { h5d::H5Dget_chunk_index_type(dataset.0, &raw mut kind) },
        "H5Dget_chunk_index_type",
    )?;
    Ok(match kind {
        BTREE_1 => ChunkIndex::BTree1,
        EXTENSIBLE_ARRAY => ChunkIndex::ExtensibleArray,
        _ => ChunkIndex::Other,
    })
}

unsafe extern "C" {
    // Of libhdf5 since 1.10.2 (H5Dpublic.h); hdf5-sys does not name it.
    fn H5Dget_chunk_storage_size(
        dataset: hid_t,
        offset: *const hsize_t,
        chunk_bytes: *mut hsize_t,
    ) -> c_int;
}

/// Checks that libhdf5 finds a chunk when it looks for it, as reading does; `start` has the dataset's rank.
pub(crate) fn find_chunk(dataset: &Id, start: &[u64]) -> Result<()> {
    let mut size = 0;
    // SAFETY: as many coordinates as the rank, which the caller knows, and a live integer.
    done(
        unsafe { H5Dget_chunk_storage_size(dataset.0, start.as_ptr(), &raw mut size) },
        "H5Dget_chunk_storage_size",
    )
}

/// Returns the stored chunks of a dataset of this rank, at most `most` of them (`None` if there are more).
///
/// For an extensible array the coordinates are wrong if the unlimited dimension is not the first:
/// libhdf5 turns them for look-ups but not when it lists them. The caller turns them back.
pub(crate) fn stored_chunks(
    dataset: &Id,
    rank: usize,
    most: usize,
) -> Result<Option<Vec<StoredChunk>>> {
    struct FoundChunks {
        rank: usize,
        most: usize,
        chunks: Vec<StoredChunk>,
        full: bool,
    }
    unsafe extern "C" fn visit(
        start: *const hsize_t,
        mask: c_uint,
        addr: u64,
        size: hsize_t,
        data: *mut c_void,
    ) -> c_int {
        // SAFETY: `data` is the record below; libhdf5 passes as many coordinates as the rank.
        unsafe {
            let found = &mut *data.cast::<FoundChunks>();
            if found.chunks.len() == found.most {
                found.full = true;
                return 1;
            }
            found.chunks.push(StoredChunk {
                start: std::slice::from_raw_parts(start, found.rank).to_vec(),
                addr,
                size,
                mask,
            });
        }
        0
    }
    let mut found = FoundChunks {
        rank,
        most,
        chunks: Vec::new(),
        full: false,
    };
    // SAFETY: callback and data match; both outlive the call.
    done(
        unsafe {
            h5d::H5Dchunk_iter(
                dataset.0,
                h5p::H5P_DEFAULT,
                Some(visit),
                (&raw mut found).cast(),
            )
        },
        "H5Dchunk_iter",
    )?;
    Ok((!found.full).then_some(found.chunks))
}
