//! Datasets and dataspaces: extents, elements and chunks, read and written; new datasets.
//!
//! Elements of variable length are not read here (`vlen`). The caller bounds what is read, and knows what it writes.

use hdf5::dataset::AttrCreationOrder;

use super::link::new_links;
use super::plist::{chunked, contiguous};
use super::*;
use npyfs_hdf5::protocol::FilterSpec;

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

/// A piece of a virtual dataset: all elements of a 1-D dataset of another file.
pub(crate) struct VirtualPiece<'a> {
    /// The path of the file, from the directory of this one.
    pub file: &'a [u8],
    /// The path of the dataset.
    pub object: &'a [Vec<u8>],
    /// The place of its first element.
    pub start: u64,
    /// The length.
    pub len: u64,
}

/// Returns the datatype of a dataset.
pub(crate) fn dataset_type(dataset: &Id) -> Result<Id> {
    // SAFETY: the identifier is open as long as it is borrowed, and no pointer is passed.
    id(unsafe { h5d::H5Dget_type(dataset.0) }, "H5Dget_type")
}

/// Returns the dataspace of a dataset.
pub(crate) fn dataset_space(dataset: &Id) -> Result<Id> {
    // SAFETY: the identifier is open as long as it is borrowed, and no pointer is passed.
    id(unsafe { h5d::H5Dget_space(dataset.0) }, "H5Dget_space")
}

/// Returns the creation properties of a dataset.
pub(crate) fn dataset_plist(dataset: &Id) -> Result<Id> {
    // SAFETY: the identifier is open as long as it is borrowed, and no pointer is passed.
    id(
        unsafe { h5d::H5Dget_create_plist(dataset.0) },
        "H5Dget_create_plist",
    )
}

/// Returns the current shape and the maximum one (`u64::MAX`: unlimited); `None` for a null dataspace.
pub(crate) fn extent(space: &Id) -> Result<Option<(Vec<u64>, Vec<u64>)>> {
    // SAFETY: the buffers have the rank that libhdf5 itself reports.
    unsafe {
        match h5s::H5Sget_simple_extent_type(space.0) {
            h5s::H5S_class_t::H5S_NULL => return Ok(None),
            h5s::H5S_class_t::H5S_NO_CLASS => return Err(failure("H5Sget_simple_extent_type")),
            _ => {}
        }
        let rank = count(
            h5s::H5Sget_simple_extent_ndims(space.0),
            "H5Sget_simple_extent_ndims",
        )?;
        let (mut dims, mut max) = (vec![0; rank], vec![0; rank]);
        done(
            h5s::H5Sget_simple_extent_dims(space.0, dims.as_mut_ptr(), max.as_mut_ptr()),
            "H5Sget_simple_extent_dims",
        )?;
        Ok(Some((dims, max)))
    }
}

/// Makes a dataspace of this shape; a scalar one if the shape is empty.
pub(super) fn simple(shape: &[u64]) -> Result<Id> {
    let rank = c_int::try_from(shape.len()).map_err(|_| Failure("rank".into()))?;
    // SAFETY: the dimensions are as many as the rank.
    unsafe {
        if shape.is_empty() {
            return id(h5s::H5Screate(h5s::H5S_class_t::H5S_SCALAR), "H5Screate");
        }
        id(
            h5s::H5Screate_simple(rank, shape.as_ptr(), ptr::null()),
            "H5Screate_simple",
        )
    }
}

/// Selects the block of a dataspace at `start` with `shape`; both have its rank, which is not 0.
pub(super) fn select_block(space: &Id, start: &[u64], shape: &[u64]) -> Result<()> {
    let rank = extent(space)?.map_or(0, |(dims, _)| dims.len());
    if rank == 0 || rank != shape.len() || rank != start.len() {
        return Err(Failure("block of another rank".into()));
    }
    // SAFETY: start and shape have the rank of the dataspace, checked above.
    done(
        unsafe {
            h5s::H5Sselect_hyperslab(
                space.0,
                h5s::H5S_seloper_t::H5S_SELECT_SET,
                start.as_ptr(),
                ptr::null(),
                shape.as_ptr(),
                ptr::null(),
            )
        },
        "H5Sselect_hyperslab",
    )
}

/// Returns the bytes of an array of this shape, with elements of `element` bytes; `None` if they are too many.
pub(super) fn byte_len(shape: &[u64], element: usize) -> Option<usize> {
    let times = |n: usize, &d: &u64| n.checked_mul(usize::try_from(d).ok()?);
    shape.iter().try_fold(element, times)
}

/// Returns the bytes that a dataset occupies in its file; 0 proves that nothing was ever written.
///
/// libhdf5 answers 0 as well where it cannot read the chunk index, and tells that on its error stack alone.
pub(crate) fn storage_size(dataset: &Id) -> Result<u64> {
    // SAFETY: the identifier is open as long as it is borrowed, and no pointer is passed. Every call but those about
    // the stack itself begins with an empty stack.
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

/// Makes a contiguous dataset whose room is part of the file; nothing is written there.
pub(crate) fn contiguous_dataset(file: &Id, name: &[u8], ty: &Id, shape: &[u64]) -> Result<Id> {
    new_dataset(file, name, ty, shape, contiguous().finish()?.id())
}

/// Makes a contiguous dataset whose attributes may be larger than the 64 KiB that an object header of the first version
/// holds: those of the second version move to a heap. Only objects that track the order of their attributes get one in
/// files that every version of libhdf5 reads.
pub(crate) fn dataset_for_attributes(file: &Id, name: &[u8], ty: &Id, shape: &[u64]) -> Result<Id> {
    let mut plist = contiguous();
    plist.attr_creation_order(AttrCreationOrder::Tracked);
    new_dataset(file, name, ty, shape, plist.finish()?.id())
}

/// Makes a dataset without chunks; its filters are declared, not run.
pub(crate) fn chunked_dataset(
    file: &Id,
    name: &[u8],
    ty: &Id,
    shape: &[u64],
    chunk: &[u64],
    filters: &[FilterSpec],
) -> Result<Id> {
    if chunk.len() != shape.len() {
        return Err(Failure("chunks of another rank".into()));
    }
    new_dataset(file, name, ty, shape, chunked(chunk, filters)?.0)
}

/// Makes chunked datasets of one shape in the root group, with the numbers from 0 on as names.
pub(crate) fn add_datasets(
    file: &Id,
    datasets: u32,
    ty: &Id,
    shape: &[u64],
    (chunk, filters): (&[u64], &[FilterSpec]),
) -> Result<()> {
    let plist = chunked(chunk, filters)?;
    // SAFETY: the property list is made here and open until it is dropped, and no pointer is passed.
    done(
        unsafe { h5p::H5Pset_obj_track_times(plist.0, 0) },
        "H5Pset_obj_track_times",
    )?;
    let space = simple(shape)?;
    for number in 0..datasets {
        let name = number.to_string();
        let properties = (&space, h5p::H5P_DEFAULT, plist.0);
        dataset_in(file, name.as_bytes(), ty, properties)?;
    }
    Ok(())
}

/// Makes a 1-D virtual dataset. Where the file of a piece is missing it shows NaN, or a number far from zero.
pub(crate) fn virtual_dataset(
    file: &Id,
    path: &[Vec<u8>],
    ty: &Id,
    len: u64,
    pieces: &[VirtualPiece<'_>],
) -> Result<Id> {
    // libhdf5 takes the names of sources for patterns.
    let plain = |name: &[u8]| cstring(&escaped(name));
    let links = new_links()?;
    // SAFETY: the identifiers are made here and open until they are dropped; the strings outlive the calls, and so
    // does a fill value of the size of the type.
    unsafe {
        let plist = id(h5p::H5Pcreate(*h5p::H5P_CLS_DATASET_CREATE), "H5Pcreate")?;
        let fill = conspicuous(ty);
        done(
            h5p::H5Pset_fill_value(plist.0, ty.0, fill.as_ptr().cast()),
            "H5Pset_fill_value",
        )?;
        for piece in pieces {
            let (place, all) = (simple(&[len])?, simple(&[piece.len])?);
            select_block(&place, &[piece.start], &[piece.len])?;
            let name = plain(piece.file)?;
            let source = plain(&[b"/", &*piece.object.join(&b'/')].concat())?;
            done(
                h5p::H5Pset_virtual(plist.0, place.0, name.as_ptr(), source.as_ptr(), all.0),
                "H5Pset_virtual",
            )?;
        }
        let space = simple(&[len])?;
        dataset_in(file, &path.join(&b'/'), ty, (&space, links.id(), plist.0))
    }
}

fn new_dataset(file: &Id, name: &[u8], ty: &Id, shape: &[u64], plist: hid_t) -> Result<Id> {
    dataset_in(file, name, ty, (&simple(shape)?, new_links()?.id(), plist))
}

/// Makes a dataset with a dataspace, properties of its link, and its own properties.
pub(super) fn dataset_in(
    file: &Id,
    name: &[u8],
    ty: &Id,
    (space, links, plist): (&Id, hid_t, hid_t),
) -> Result<Id> {
    let name = cstring(name)?;
    // SAFETY: the identifiers are open as long as they are borrowed, and the name is a C string that outlives the
    // call.
    id(
        unsafe {
            h5d::H5Dcreate2(
                file.0,
                name.as_ptr(),
                ty.0,
                space.0,
                links,
                plist,
                h5p::H5P_DEFAULT,
            )
        },
        "H5Dcreate2",
    )
}

/// Returns an element that no program writes: NaN, the least signed or the largest unsigned integer.
fn conspicuous(ty: &Id) -> Vec<u8> {
    let mut element = vec![0xFF; size(ty)];
    // SAFETY: the identifier is open as long as it is borrowed, and no pointer is passed.
    let is_signed = unsafe {
        h5t::H5Tget_class(ty.0) == h5t::H5T_class_t::H5T_INTEGER
            && h5t::H5Tget_sign(ty.0) == h5t::H5T_sign_t::H5T_SGN_2
    };
    if is_signed {
        element.fill(0);
        let highest = match order(ty) {
            h5t::H5T_order_t::H5T_ORDER_BE => element.first_mut(),
            _ => element.last_mut(),
        };
        if let Some(highest) = highest {
            *highest = 0x80;
        }
    }
    element
}

/// Writes all elements of a small dataset.
pub(crate) fn write_all(dataset: &Id, ty: &Id, shape: &[u64], bytes: &[u8]) -> Result<()> {
    let have = extent(&dataset_space(dataset)?)?.map(|(have, _)| have);
    if have.as_deref() != Some(shape) || byte_len(shape, size(ty)) != Some(bytes.len()) {
        return Err(Failure("data of another size".into()));
    }
    // SAFETY: the buffer holds the elements of the whole dataspace in the type.
    let written = unsafe {
        h5d::H5Dwrite(
            dataset.0,
            ty.0,
            h5s::H5S_ALL,
            h5s::H5S_ALL,
            h5p::H5P_DEFAULT,
            bytes.as_ptr().cast(),
        )
    };
    done(written, "H5Dwrite")
}

/// Writes a block at `start` with `shape`, elements as they are stored, in C order.
pub(crate) fn write_block(
    dataset: &Id,
    mem_type: &Id,
    start: &[u64],
    shape: &[u64],
    bytes: &[u8],
) -> Result<()> {
    if byte_len(shape, size(mem_type)) != Some(bytes.len()) {
        return Err(Failure("block of another size".into()));
    }
    let (space, memory) = (dataset_space(dataset)?, simple(shape)?);
    select_block(&space, start, shape)?;
    // SAFETY: selection and memory dataspace have as many elements as the buffer, in the memory type.
    unsafe {
        done(
            h5d::H5Dwrite(
                dataset.0,
                mem_type.0,
                memory.0,
                space.0,
                h5p::H5P_DEFAULT,
                bytes.as_ptr().cast(),
            ),
            "H5Dwrite",
        )
    }
}

/// Writes a chunk that is encoded already; `start` is the place of its first element.
pub(crate) fn write_chunk(dataset: &Id, start: &[u64], mask: u32, bytes: &[u8]) -> Result<()> {
    // SAFETY: the buffer has the length that is passed, and `start` the dataset's rank, which is checked.
    unsafe {
        let space = dataset_space(dataset)?;
        let rank = h5s::H5Sget_simple_extent_ndims(space.0);
        if usize::try_from(rank) != Ok(start.len()) {
            return Err(Failure("a chunk of another rank".into()));
        }
        done(
            h5d::H5Dwrite_chunk(
                dataset.0,
                h5p::H5P_DEFAULT,
                mask,
                start.as_ptr(),
                bytes.len(),
                bytes.as_ptr().cast(),
            ),
            "H5Dwrite_chunk",
        )
    }
}
