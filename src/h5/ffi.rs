//! Safe wrappers over the libhdf5 calls that reading needs; the only unsafe code on the read path.
//!
//! Assumes that callers run inside `locked`: libhdf5 is built without threads, and an `Id` is only
//! used there. Every identifier closes itself; every failure carries libhdf5's own words.
//! Nothing here follows a soft or external link: objects are opened by address.

#![allow(unsafe_code)]

use std::ffi::{CStr, CString, c_char, c_int, c_uint, c_void};
use std::ptr;

use hdf5_sys::h5::{H5_index_t, H5_iter_order_t, hsize_t};
use hdf5_sys::h5i::hid_t;
use hdf5_sys::{h5a, h5d, h5e, h5f, h5i, h5l, h5o, h5p, h5pl, h5s, h5t};

/// What libhdf5 says when a call fails.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub struct Failure(pub String);

type Result<T> = std::result::Result<T, Failure>;

/// Runs `work` with the library initialised and its process-wide lock held.
pub fn locked<T>(work: impl FnOnce() -> T) -> T {
    hdf5::sync::sync(|| {
        static ONCE: std::sync::Once = std::sync::Once::new();
        ONCE.call_once(|| {
            let mut none: c_int = 0;
            // SAFETY: the lock is held; the pointer is to a live integer. A file must not be able to
            // load a shared object, so plug-ins stay off; failing to switch them off only keeps the default.
            unsafe {
                h5pl::H5PLset_loading_state(&raw mut none as *mut _);
                h5e::H5Eset_auto2(h5e::H5E_DEFAULT, None, ptr::null_mut());
            }
        });
        work()
    })
}

/// An identifier that is released when dropped.
#[derive(Debug)]
pub struct Id(hid_t);

impl Drop for Id {
    fn drop(&mut self) {
        locked(|| {
            // SAFETY: the identifier is ours and still counted once.
            unsafe { h5i::H5Idec_ref(self.0) };
        });
    }
}

/// The innermost and outermost lines of the error stack, in one sentence.
fn failure(call: &str) -> Failure {
    unsafe extern "C" fn collect(
        _n: c_uint,
        err: *const h5e::H5E_error2_t,
        data: *mut c_void,
    ) -> c_int {
        // SAFETY: `data` is the vector below; libhdf5 passes a valid record with C strings.
        unsafe {
            let lines = &mut *data.cast::<Vec<String>>();
            if !err.is_null() && !(*err).desc.is_null() {
                lines.push(CStr::from_ptr((*err).desc).to_string_lossy().into_owned());
            }
        }
        0
    }
    let mut lines: Vec<String> = Vec::new();
    // SAFETY: the callback matches its type and the vector outlives the walk.
    unsafe {
        h5e::H5Ewalk2(
            h5e::H5E_DEFAULT,
            h5e::H5E_WALK_UPWARD,
            Some(collect),
            (&raw mut lines).cast(),
        );
        h5e::H5Eclear2(h5e::H5E_DEFAULT);
    }
    lines.dedup();
    match lines.as_slice() {
        [] => Failure(format!("{call} failed")),
        [only] => Failure(only.clone()),
        [cause, .., effect] => Failure(format!("{effect}: {cause}")),
    }
}

fn id(raw: hid_t, call: &str) -> Result<Id> {
    if raw < 0 {
        Err(failure(call))
    } else {
        Ok(Id(raw))
    }
}

fn done(status: c_int, call: &str) -> Result<()> {
    if status < 0 {
        Err(failure(call))
    } else {
        Ok(())
    }
}

fn count(value: impl TryInto<usize>, call: &str) -> Result<usize> {
    value.try_into().map_err(|_| failure(call))
}

fn cstring(bytes: &[u8]) -> Result<CString> {
    CString::new(bytes).map_err(|_| Failure("name contains NUL".into()))
}

/// Calls a "how long, then fill" function: first with no buffer, then with one that fits.
fn sized(call: &str, fill: impl Fn(*mut c_char, usize) -> isize) -> Result<Vec<u8>> {
    let len = count(fill(ptr::null_mut(), 0), call)?;
    let mut buf = vec![0_u8; len.saturating_add(1)];
    count(fill(buf.as_mut_ptr().cast(), buf.len()), call)?;
    buf.truncate(len);
    Ok(buf)
}

// ---- files -----------------------------------------------------------------------------------

/// Opens a file to read: no lock taken, SWMR allowed (a file whose writer was killed opens too).
pub fn open_file(path: &[u8]) -> Result<Id> {
    let path = cstring(path)?;
    // SAFETY: plain calls on identifiers made here; the path is a live C string.
    unsafe {
        let fapl = id(h5p::H5Pcreate(*h5p::H5P_CLS_FILE_ACCESS), "H5Pcreate")?;
        done(
            h5p::H5Pset_file_locking(fapl.0, 0, 1),
            "H5Pset_file_locking",
        )?;
        done(
            h5p::H5Pset_fclose_degree(fapl.0, h5f::H5F_close_degree_t::H5F_CLOSE_STRONG),
            "H5Pset_fclose_degree",
        )?;
        let flags = h5f::H5F_ACC_RDONLY | h5f::H5F_ACC_SWMR_READ;
        id(h5f::H5Fopen(path.as_ptr(), flags, fapl.0), "H5Fopen")
    }
}

/// Address of the root group.
pub fn root_addr(file: &Id) -> Result<u64> {
    // SAFETY: `file` is open and the name is a C string.
    let root = id(
        unsafe { h5o::H5Oopen(file.0, c"/".as_ptr(), h5p::H5P_DEFAULT) },
        "H5Oopen",
    )?;
    Ok(object_info(&root)?.addr)
}

// ---- objects ---------------------------------------------------------------------------------

/// What an object is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ObjectKind {
    Group,
    Dataset,
    Other,
}

/// Basic facts of an object header.
#[derive(Clone, Copy, Debug)]
pub struct ObjectInfo {
    pub addr: u64,
    /// Hard links that the header claims.
    pub links: u32,
}

fn token(addr: u64) -> h5o::H5O_token_t {
    let mut bytes = [0_u8; h5o::H5O_MAX_TOKEN_SIZE];
    bytes[..8].copy_from_slice(&addr.to_le_bytes());
    // SAFETY: a token is exactly these 16 bytes (`repr(C)`), and the native format keeps the address
    // in the first eight, little end first (H5VL_native_addr_to_token).
    unsafe { std::mem::transmute(bytes) }
}

fn token_addr(token: h5o::H5O_token_t) -> u64 {
    // SAFETY: as above, the other way round.
    let bytes: [u8; h5o::H5O_MAX_TOKEN_SIZE] = unsafe { std::mem::transmute(token) };
    let mut addr = [0_u8; 8];
    addr.copy_from_slice(&bytes[..8]);
    u64::from_le_bytes(addr)
}

pub fn open_object(file: &Id, addr: u64) -> Result<Id> {
    // SAFETY: libhdf5 checks the address against the file.
    id(
        unsafe { h5o::H5Oopen_by_token(file.0, token(addr)) },
        "H5Oopen_by_token",
    )
}

/// The asked-for fields of an object header.
fn header(object: &Id, fields: c_uint) -> Result<h5o::H5O_info2_t> {
    let mut info = std::mem::MaybeUninit::<h5o::H5O_info2_t>::zeroed();
    // SAFETY: zero is a valid bit pattern of every field (kind 0 is a group); libhdf5 fills what is asked.
    unsafe {
        done(
            h5o::H5Oget_info3(object.0, info.as_mut_ptr(), fields),
            "H5Oget_info3",
        )?;
        Ok(info.assume_init())
    }
}

pub fn object_info(object: &Id) -> Result<ObjectInfo> {
    let info = header(object, h5o::H5O_INFO_BASIC)?;
    Ok(ObjectInfo {
        addr: token_addr(info.token),
        links: info.rc,
    })
}

/// What an open object is; costs nothing.
pub fn kind(object: &Id) -> ObjectKind {
    // SAFETY: plain call.
    match unsafe { h5i::H5Iget_type(object.0) } {
        h5i::H5I_type_t::H5I_GROUP => ObjectKind::Group,
        h5i::H5I_type_t::H5I_DATASET => ObjectKind::Dataset,
        _ => ObjectKind::Other,
    }
}

// ---- links -----------------------------------------------------------------------------------

/// A link as it is stored; nothing is followed.
#[derive(Clone, Debug)]
pub enum RawLink {
    Hard(u64),
    Soft(Vec<u8>),
    /// File name and object path.
    External(Vec<u8>, Vec<u8>),
    Damaged(String),
}

/// The links of a group in order of name. When the group is damaged: those that could be read, and why not all.
pub fn links(group: &Id) -> (Vec<(Vec<u8>, RawLink)>, Option<Failure>) {
    type Seen = Vec<(Vec<u8>, h5l::H5L_type_t, u64)>;
    unsafe extern "C" fn visit(
        _group: hid_t,
        name: *const c_char,
        info: *const h5l::H5L_info2_t,
        data: *mut c_void,
    ) -> c_int {
        // SAFETY: libhdf5 passes a C string and a valid record; `data` is the vector below.
        unsafe {
            let mut info = *info;
            let value = if info.type_ == h5l::H5L_TYPE_HARD {
                token_addr(*info.u.token())
            } else {
                *info.u.val_size() as u64
            };
            let seen = &mut *data.cast::<Seen>();
            seen.push((CStr::from_ptr(name).to_bytes().to_vec(), info.type_, value));
        }
        0
    }
    let mut seen: Seen = Vec::new();
    let mut at: hsize_t = 0;
    // SAFETY: callback and data match; both outlive the call.
    let status = unsafe {
        h5l::H5Literate2(
            group.0,
            H5_index_t::H5_INDEX_NAME,
            H5_iter_order_t::H5_ITER_INC,
            &raw mut at,
            Some(visit),
            (&raw mut seen).cast(),
        )
    };
    let error = done(status, "H5Literate2").err();
    let links = seen
        .into_iter()
        .map(|(name, kind, value)| {
            let link = match kind {
                h5l::H5L_TYPE_HARD => RawLink::Hard(value),
                // libhdf5 looks a value up by path: a name with a slash would lead elsewhere.
                _ if name.contains(&b'/') => RawLink::Damaged("link name contains a slash".into()),
                h5l::H5L_TYPE_SOFT | h5l::H5L_TYPE_EXTERNAL => {
                    link_value(group, &name, kind, value).unwrap_or_else(|e| RawLink::Damaged(e.0))
                }
                _ => RawLink::Damaged("user-defined link".into()),
            };
            (name, link)
        })
        .collect();
    (links, error)
}

/// One link by name; `None` if there is none.
pub fn link(group: &Id, name: &[u8]) -> Result<Option<RawLink>> {
    let text = cstring(name)?;
    let mut info = std::mem::MaybeUninit::<h5l::H5L_info2_t>::zeroed();
    // SAFETY: the name holds no slash (callers split at them), so libhdf5 looks at this group only;
    // zero is a valid bit pattern of every field.
    unsafe {
        if h5l::H5Lexists(group.0, text.as_ptr(), h5p::H5P_DEFAULT) <= 0 {
            let _ = failure("H5Lexists");
            return Ok(None);
        }
        done(
            h5l::H5Lget_info2(group.0, text.as_ptr(), info.as_mut_ptr(), h5p::H5P_DEFAULT),
            "H5Lget_info2",
        )?;
        let mut info = info.assume_init();
        Ok(Some(match info.type_ {
            h5l::H5L_TYPE_HARD => RawLink::Hard(token_addr(*info.u.token())),
            h5l::H5L_TYPE_SOFT | h5l::H5L_TYPE_EXTERNAL => {
                let size = *info.u.val_size() as u64;
                link_value(group, name, info.type_, size)?
            }
            _ => RawLink::Damaged("user-defined link".into()),
        }))
    }
}

fn link_value(group: &Id, name: &[u8], kind: h5l::H5L_type_t, size: u64) -> Result<RawLink> {
    const LONGEST: u64 = 1 << 16;
    if size > LONGEST {
        return Err(Failure(format!("link value of {size} bytes")));
    }
    let name = cstring(name)?;
    let mut value = vec![0_u8; count(size, "link value")?.max(1)];
    // SAFETY: the buffer has the length that is passed.
    unsafe {
        done(
            h5l::H5Lget_val(
                group.0,
                name.as_ptr(),
                value.as_mut_ptr().cast(),
                value.len(),
                h5p::H5P_DEFAULT,
            ),
            "H5Lget_val",
        )?;
    }
    let mut parts = if kind == h5l::H5L_TYPE_EXTERNAL {
        // One byte of version and flags, then two C strings.
        value.get(1..).unwrap_or_default()
    } else {
        &value
    }
    .split(|&b| b == 0)
    .map(<[u8]>::to_vec);
    let first = parts.next().unwrap_or_default();
    Ok(if kind == h5l::H5L_TYPE_EXTERNAL {
        RawLink::External(first, parts.next().unwrap_or_default())
    } else {
        RawLink::Soft(first)
    })
}

// ---- datasets --------------------------------------------------------------------------------

pub fn dataset_type(dataset: &Id) -> Result<Id> {
    // SAFETY: plain call on an open identifier.
    id(unsafe { h5d::H5Dget_type(dataset.0) }, "H5Dget_type")
}

pub fn dataset_space(dataset: &Id) -> Result<Id> {
    // SAFETY: as above.
    id(unsafe { h5d::H5Dget_space(dataset.0) }, "H5Dget_space")
}

pub fn dataset_plist(dataset: &Id) -> Result<Id> {
    // SAFETY: as above.
    id(
        unsafe { h5d::H5Dget_create_plist(dataset.0) },
        "H5Dget_create_plist",
    )
}

/// Bytes the dataset occupies in its file.
pub fn storage_size(dataset: &Id) -> u64 {
    // SAFETY: as above.
    unsafe { h5d::H5Dget_storage_size(dataset.0) }
}

/// Address of contiguous data in the file, the user block included.
pub fn contiguous_addr(dataset: &Id) -> Option<u64> {
    // SAFETY: as above; an undefined address is all ones, and leaves an error on the stack.
    let addr = unsafe { h5d::H5Dget_offset(dataset.0) };
    if addr == u64::MAX {
        let _ = failure("H5Dget_offset");
        return None;
    }
    Some(addr)
}

/// The current shape and the maximum one (`u64::MAX`: unlimited). `None`: a null dataspace.
pub fn extent(space: &Id) -> Result<Option<(Vec<u64>, Vec<u64>)>> {
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

/// Reads the block of a dataset at `start` with `shape` (both empty for a scalar), `element` bytes each.
///
/// Memory is `element` times the product of `shape`; the caller has bounded it.
pub fn read_block(
    dataset: &Id,
    mem_type: &Id,
    start: &[u64],
    shape: &[u64],
    element: usize,
) -> Result<Vec<u8>> {
    let elements = shape
        .iter()
        .try_fold(1_usize, |n, &d| n.checked_mul(usize::try_from(d).ok()?));
    let len = elements
        .and_then(|n| n.checked_mul(element))
        .ok_or_else(|| Failure("block too large".into()))?;
    let mut buf = vec![0_u8; len];
    if len == 0 {
        return Ok(buf);
    }
    let file_space = dataset_space(dataset)?;
    // SAFETY: the memory dataspace has exactly the block's elements, and the buffer the block's bytes:
    // callers pass the size of `mem_type` as `element`, which is checked here.
    unsafe {
        if h5t::H5Tget_size(mem_type.0) != element {
            return Err(Failure("element size differs from the memory type".into()));
        }
        let mem_space = if shape.is_empty() {
            id(h5s::H5Screate(h5s::H5S_class_t::H5S_SCALAR), "H5Screate")?
        } else {
            done(
                h5s::H5Sselect_hyperslab(
                    file_space.0,
                    h5s::H5S_seloper_t::H5S_SELECT_SET,
                    start.as_ptr(),
                    ptr::null(),
                    shape.as_ptr(),
                    ptr::null(),
                ),
                "H5Sselect_hyperslab",
            )?;
            let rank = c_int::try_from(shape.len()).map_err(|_| Failure("rank".into()))?;
            id(
                h5s::H5Screate_simple(rank, shape.as_ptr(), ptr::null()),
                "H5Screate_simple",
            )?
        };
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
pub fn read_strings(
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
unsafe fn take_strings(mut buf: Vec<u8>, mem_type: &Id) -> Result<Vec<Vec<u8>>> {
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
            let space = id(
                h5s::H5Screate_simple(1, &raw const len, ptr::null()),
                "H5Screate_simple",
            )?;
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

// ---- creation properties ---------------------------------------------------------------------

/// How the data of a dataset lies in the file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LayoutKind {
    Compact,
    Contiguous,
    Chunked,
    Virtual,
}

pub fn layout(plist: &Id) -> Result<LayoutKind> {
    use h5d::H5D_layout_t::*;
    // SAFETY: plain call.
    match unsafe { h5p::H5Pget_layout(plist.0) } {
        H5D_COMPACT => Ok(LayoutKind::Compact),
        H5D_CONTIGUOUS => Ok(LayoutKind::Contiguous),
        H5D_CHUNKED => Ok(LayoutKind::Chunked),
        H5D_VIRTUAL => Ok(LayoutKind::Virtual),
        _ => Err(failure("H5Pget_layout")),
    }
}

pub fn chunk_shape(plist: &Id, rank: usize) -> Result<Vec<u64>> {
    let mut dims = vec![0_u64; rank];
    let rank = c_int::try_from(rank).map_err(|_| Failure("rank".into()))?;
    // SAFETY: the buffer has `rank` places.
    let got = unsafe { h5p::H5Pget_chunk(plist.0, rank, dims.as_mut_ptr()) };
    if got != rank {
        return Err(failure("H5Pget_chunk"));
    }
    Ok(dims)
}

/// One filter of a pipeline: id, name, parameters.
pub fn filters(plist: &Id) -> Result<Vec<(i32, String, Vec<u32>)>> {
    const PARAMETERS: usize = 64;
    // SAFETY: the buffers have the sizes that are passed.
    unsafe {
        let n = count(h5p::H5Pget_nfilters(plist.0), "H5Pget_nfilters")?;
        let mut out = Vec::with_capacity(n);
        for i in 0..n {
            let (mut flags, mut config) = (0, 0);
            let mut len = PARAMETERS;
            let mut values = [0_u32; PARAMETERS];
            let mut name = [0_u8; 128];
            let filter = h5p::H5Pget_filter2(
                plist.0,
                c_uint::try_from(i).map_err(|_| Failure("filter".into()))?,
                &raw mut flags,
                &raw mut len,
                values.as_mut_ptr(),
                name.len() - 1,
                name.as_mut_ptr().cast(),
                &raw mut config,
            );
            if filter < 0 {
                return Err(failure("H5Pget_filter2"));
            }
            let end = name.iter().position(|&b| b == 0).unwrap_or(0);
            out.push((
                filter,
                String::from_utf8_lossy(&name[..end]).into_owned(),
                values[..len.min(PARAMETERS)].to_vec(),
            ));
        }
        Ok(out)
    }
}

/// Whether this build can decode a filter.
pub fn filter_available(filter: i32) -> bool {
    // SAFETY: plain call.
    unsafe { hdf5_sys::h5z::H5Zfilter_avail(filter) > 0 }
}

/// The fill value in `mem_type`; zeros when the file defines none.
pub fn fill_value(plist: &Id, mem_type: &Id, size: usize) -> Result<Vec<u8>> {
    let mut value = vec![0_u8; size];
    let mut status = h5d::H5D_fill_value_t::H5D_FILL_VALUE_UNDEFINED;
    // SAFETY: the buffer has the size of the type, which is checked.
    unsafe {
        done(
            h5p::H5Pfill_value_defined(plist.0, &raw mut status),
            "H5Pfill_value_defined",
        )?;
        if status != h5d::H5D_fill_value_t::H5D_FILL_VALUE_UNDEFINED {
            if h5t::H5Tget_size(mem_type.0) != size {
                return Err(Failure("fill value of another size".into()));
            }
            done(
                h5p::H5Pget_fill_value(plist.0, mem_type.0, value.as_mut_ptr().cast()),
                "H5Pget_fill_value",
            )?;
        }
    }
    Ok(value)
}

/// External raw files: name, offset, length (`u64::MAX`: to the end of the file).
pub fn external_files(plist: &Id) -> Result<Vec<(Vec<u8>, i64, u64)>> {
    // SAFETY: the buffers have the sizes that are passed; the name is terminated below in any case.
    unsafe {
        let n = count(h5p::H5Pget_external_count(plist.0), "H5Pget_external_count")?;
        let mut out = Vec::with_capacity(n.min(1024));
        for i in 0..n {
            let mut name = vec![0_u8; 4097];
            let (mut offset, mut size) = (0, 0);
            done(
                h5p::H5Pget_external(
                    plist.0,
                    c_uint::try_from(i).map_err(|_| Failure("external".into()))?,
                    name.len() - 1,
                    name.as_mut_ptr().cast(),
                    &raw mut offset,
                    &raw mut size,
                ),
                "H5Pget_external",
            )?;
            let end = name.iter().position(|&b| b == 0).unwrap_or(0);
            name.truncate(end);
            out.push((name, offset, size));
        }
        Ok(out)
    }
}

/// Source file and dataset names of a virtual dataset.
pub fn virtual_sources(plist: &Id) -> Result<Vec<(Vec<u8>, Vec<u8>)>> {
    let mut n = 0_usize;
    // SAFETY: `sized` passes buffers of the length it names.
    unsafe {
        done(
            h5p::H5Pget_virtual_count(plist.0, &raw mut n),
            "H5Pget_virtual_count",
        )?;
        (0..n)
            .map(|i| {
                Ok((
                    sized("H5Pget_virtual_filename", |buf, len| {
                        h5p::H5Pget_virtual_filename(plist.0, i, buf, len)
                    })?,
                    sized("H5Pget_virtual_dsetname", |buf, len| {
                        h5p::H5Pget_virtual_dsetname(plist.0, i, buf, len)
                    })?,
                ))
            })
            .collect()
    }
}

// ---- attributes ------------------------------------------------------------------------------

/// Opens every attribute in order of name.
pub fn attributes(object: &Id) -> Result<Vec<(Vec<u8>, Id)>> {
    // SAFETY: plain calls; `sized` passes buffers of the length it names.
    unsafe {
        let n = header(object, h5o::H5O_INFO_NUM_ATTRS)?.num_attrs;
        (0..n)
            .map(|i| {
                let attr = id(
                    h5a::H5Aopen_by_idx(
                        object.0,
                        c".".as_ptr(),
                        H5_index_t::H5_INDEX_NAME,
                        H5_iter_order_t::H5_ITER_INC,
                        i,
                        h5p::H5P_DEFAULT,
                        h5p::H5P_DEFAULT,
                    ),
                    "H5Aopen_by_idx",
                )?;
                let name = sized("H5Aget_name", |buf, len| h5a::H5Aget_name(attr.0, len, buf))?;
                Ok((name, attr))
            })
            .collect()
    }
}

pub fn attribute_type(attr: &Id) -> Result<Id> {
    // SAFETY: plain call.
    id(unsafe { h5a::H5Aget_type(attr.0) }, "H5Aget_type")
}

pub fn attribute_space(attr: &Id) -> Result<Id> {
    // SAFETY: plain call.
    id(unsafe { h5a::H5Aget_space(attr.0) }, "H5Aget_space")
}

/// Reads a whole attribute of `elements` elements; the caller has bounded their number.
pub fn read_attribute(attr: &Id, mem_type: &Id, elements: usize) -> Result<Vec<u8>> {
    // SAFETY: the buffer has the dataspace's elements times the memory type's size.
    unsafe {
        let size = h5t::H5Tget_size(mem_type.0);
        let len = elements
            .checked_mul(size)
            .ok_or_else(|| Failure("attribute too large".into()))?;
        let mut buf = vec![0_u8; len];
        if len > 0 {
            done(
                h5a::H5Aread(attr.0, mem_type.0, buf.as_mut_ptr().cast()),
                "H5Aread",
            )?;
        }
        Ok(buf)
    }
}

/// Reads a whole attribute of variable-length strings.
pub fn read_attribute_strings(attr: &Id, mem_type: &Id, elements: usize) -> Result<Vec<Vec<u8>>> {
    let buf = read_attribute(attr, mem_type, elements)?;
    // SAFETY: `H5Aread` filled the buffer with one pointer per element.
    unsafe { take_strings(buf, mem_type) }
}

// ---- datatypes: see `types.rs` for what they mean ---------------------------------------------

pub use h5t::H5T_class_t as Class;
pub use h5t::H5T_order_t as ByteOrder;

pub fn class(ty: &Id) -> Class {
    // SAFETY: plain call; unknown classes come back as H5T_NO_CLASS.
    unsafe { h5t::H5Tget_class(ty.0) }
}

pub fn size(ty: &Id) -> usize {
    // SAFETY: plain call.
    unsafe { h5t::H5Tget_size(ty.0) }
}

pub fn order(ty: &Id) -> ByteOrder {
    // SAFETY: plain call.
    unsafe { h5t::H5Tget_order(ty.0) }
}

pub fn signed(ty: &Id) -> bool {
    // SAFETY: plain call.
    unsafe { h5t::H5Tget_sign(ty.0) == h5t::H5T_sign_t::H5T_SGN_2 }
}

/// Exponent and mantissa sizes of a float, in bits.
pub fn float_fields(ty: &Id) -> Result<(usize, usize)> {
    let mut f = [0_usize; 5];
    let [spos, epos, esize, mpos, msize] = &mut f;
    // SAFETY: five live integers.
    done(
        unsafe { h5t::H5Tget_fields(ty.0, spos, epos, esize, mpos, msize) },
        "H5Tget_fields",
    )?;
    Ok((f[2], f[4]))
}

pub fn super_type(ty: &Id) -> Result<Id> {
    // SAFETY: plain call.
    id(unsafe { h5t::H5Tget_super(ty.0) }, "H5Tget_super")
}

pub fn equal(a: &Id, b: &Id) -> bool {
    // SAFETY: plain call.
    unsafe { h5t::H5Tequal(a.0, b.0) > 0 }
}

pub fn is_variable_string(ty: &Id) -> bool {
    // SAFETY: plain call.
    unsafe { h5t::H5Tis_variable_str(ty.0) > 0 }
}

pub fn is_utf8(ty: &Id) -> bool {
    // SAFETY: plain call.
    unsafe { h5t::H5Tget_cset(ty.0) == h5t::H5T_cset_t::H5T_CSET_UTF8 }
}

pub fn is_null_padded(ty: &Id) -> bool {
    // SAFETY: plain call.
    unsafe { h5t::H5Tget_strpad(ty.0) == h5t::H5T_str_t::H5T_STR_NULLPAD }
}

/// The tag of an opaque type.
pub fn tag(ty: &Id) -> String {
    // SAFETY: libhdf5 hands out a C string of its own memory, which is copied and given back.
    unsafe {
        let raw = h5t::H5Tget_tag(ty.0);
        if raw.is_null() {
            return String::new();
        }
        let text = CStr::from_ptr(raw).to_string_lossy().into_owned();
        hdf5_sys::h5::H5free_memory(raw.cast());
        text
    }
}

pub fn array_dims(ty: &Id) -> Result<Vec<u64>> {
    // SAFETY: the buffer has the rank that libhdf5 reports.
    unsafe {
        let rank = count(h5t::H5Tget_array_ndims(ty.0), "H5Tget_array_ndims")?;
        let mut dims = vec![0_u64; rank];
        if h5t::H5Tget_array_dims2(ty.0, dims.as_mut_ptr()) < 0 {
            return Err(failure("H5Tget_array_dims2"));
        }
        Ok(dims)
    }
}

/// Name, offset and type of each member of a compound type.
pub fn members(ty: &Id) -> Result<Vec<(Vec<u8>, usize, Id)>> {
    // SAFETY: plain calls with indices below the reported count.
    unsafe {
        let n = h5t::H5Tget_nmembers(ty.0);
        let n = c_uint::try_from(n).map_err(|_| failure("H5Tget_nmembers"))?;
        (0..n)
            .map(|i| {
                Ok((
                    member_name(ty, i)?,
                    h5t::H5Tget_member_offset(ty.0, i),
                    id(h5t::H5Tget_member_type(ty.0, i), "H5Tget_member_type")?,
                ))
            })
            .collect()
    }
}

fn member_name(ty: &Id, i: c_uint) -> Result<Vec<u8>> {
    // SAFETY: as in `tag`.
    unsafe {
        let raw = h5t::H5Tget_member_name(ty.0, i);
        if raw.is_null() {
            return Err(failure("H5Tget_member_name"));
        }
        let name = CStr::from_ptr(raw).to_bytes().to_vec();
        hdf5_sys::h5::H5free_memory(raw.cast());
        Ok(name)
    }
}

/// Whether an enum is h5py's boolean: exactly FALSE = 0 and TRUE = 1.
pub fn is_bool_enum(ty: &Id) -> bool {
    let size = size(ty);
    // SAFETY: the value buffer is as large as the type; larger types are not looked at.
    unsafe {
        if h5t::H5Tget_nmembers(ty.0) != 2 || size > 8 {
            return false;
        }
        (0..2).all(|i| {
            let mut value = [0_u8; 8];
            let Ok(name) = member_name(ty, i) else {
                return false;
            };
            if h5t::H5Tget_member_value(ty.0, i, value.as_mut_ptr().cast()) < 0 {
                return false;
            }
            let one = value.iter().map(|&b| u32::from(b)).sum::<u32>();
            matches!((name.as_slice(), one), (b"FALSE", 0) | (b"TRUE", 1))
        })
    }
}

// ---- memory types ----------------------------------------------------------------------------

fn copy(ty: hid_t) -> Result<Id> {
    // SAFETY: plain call on a library type.
    id(unsafe { h5t::H5Tcopy(ty) }, "H5Tcopy")
}

/// A standard integer of 1, 2, 4 or 8 bytes.
pub fn int_type(size: usize, signed: bool, big: bool) -> Result<Id> {
    copy(match (size, signed, big) {
        (1, true, _) => *h5t::H5T_STD_I8LE,
        (1, false, _) => *h5t::H5T_STD_U8LE,
        (2, true, false) => *h5t::H5T_STD_I16LE,
        (2, true, true) => *h5t::H5T_STD_I16BE,
        (2, false, false) => *h5t::H5T_STD_U16LE,
        (2, false, true) => *h5t::H5T_STD_U16BE,
        (4, true, false) => *h5t::H5T_STD_I32LE,
        (4, true, true) => *h5t::H5T_STD_I32BE,
        (4, false, false) => *h5t::H5T_STD_U32LE,
        (4, false, true) => *h5t::H5T_STD_U32BE,
        (8, true, false) => *h5t::H5T_STD_I64LE,
        (8, true, true) => *h5t::H5T_STD_I64BE,
        (8, false, false) => *h5t::H5T_STD_U64LE,
        (8, false, true) => *h5t::H5T_STD_U64BE,
        _ => return Err(Failure(format!("no integer of {size} bytes"))),
    })
}

/// An IEEE float of 2, 4 or 8 bytes, or the machine's long double (16, little end first).
pub fn float_type(size: usize, big: bool) -> Result<Id> {
    copy(match (size, big) {
        (2, _) => return half_type(big),
        (4, false) => *h5t::H5T_IEEE_F32LE,
        (4, true) => *h5t::H5T_IEEE_F32BE,
        (8, false) => *h5t::H5T_IEEE_F64LE,
        (8, true) => *h5t::H5T_IEEE_F64BE,
        (16, false) => *h5t::H5T_NATIVE_LDOUBLE,
        _ => return Err(Failure(format!("no float of {size} bytes"))),
    })
}

/// IEEE half precision: 5 bits of exponent, 10 of mantissa. The bindings do not name the library's own.
fn half_type(big: bool) -> Result<Id> {
    let ty = copy(if big {
        *h5t::H5T_IEEE_F32BE
    } else {
        *h5t::H5T_IEEE_F32LE
    })?;
    // SAFETY: plain calls on a type of our own.
    unsafe {
        done(h5t::H5Tset_fields(ty.0, 15, 10, 5, 0, 10), "H5Tset_fields")?;
        done(h5t::H5Tset_size(ty.0, 2), "H5Tset_size")?;
        done(h5t::H5Tset_ebias(ty.0, 15), "H5Tset_ebias")?;
    }
    Ok(ty)
}

/// A string of variable length.
pub fn variable_string(utf8: bool) -> Result<Id> {
    let ty = copy(*h5t::H5T_C_S1)?;
    let cset = if utf8 {
        h5t::H5T_cset_t::H5T_CSET_UTF8
    } else {
        h5t::H5T_cset_t::H5T_CSET_ASCII
    };
    // SAFETY: plain calls on a type of our own.
    unsafe {
        done(h5t::H5Tset_size(ty.0, h5t::H5T_VARIABLE), "H5Tset_size")?;
        done(h5t::H5Tset_cset(ty.0, cset), "H5Tset_cset")?;
    }
    Ok(ty)
}

/// A copy of a string type that pads with NUL.
pub fn null_padded(ty: &Id) -> Result<Id> {
    let ty = copy(ty.0)?;
    // SAFETY: plain call on a type of our own.
    unsafe {
        done(
            h5t::H5Tset_strpad(ty.0, h5t::H5T_str_t::H5T_STR_NULLPAD),
            "H5Tset_strpad",
        )?;
    }
    Ok(ty)
}

/// A copy of a type.
pub fn same(ty: &Id) -> Result<Id> {
    copy(ty.0)
}

/// h5py's boolean of one byte.
pub fn bool_type() -> Result<Id> {
    let base = int_type(1, true, false)?;
    // SAFETY: the values are of the base type's one byte.
    unsafe {
        let ty = id(h5t::H5Tenum_create(base.0), "H5Tenum_create")?;
        for (name, value) in [(c"FALSE", 0_i8), (c"TRUE", 1)] {
            done(
                h5t::H5Tenum_insert(ty.0, name.as_ptr(), (&raw const value).cast()),
                "H5Tenum_insert",
            )?;
        }
        Ok(ty)
    }
}

/// A compound of `size` bytes with these members.
pub fn compound_type(size: usize, members: &[(Vec<u8>, usize, Id)]) -> Result<Id> {
    // SAFETY: plain calls; names are live C strings.
    unsafe {
        let ty = id(
            h5t::H5Tcreate(h5t::H5T_class_t::H5T_COMPOUND, size),
            "H5Tcreate",
        )?;
        for (name, offset, member) in members {
            let name = cstring(name)?;
            done(
                h5t::H5Tinsert(ty.0, name.as_ptr(), *offset, member.0),
                "H5Tinsert",
            )?;
        }
        Ok(ty)
    }
}

pub fn array_type(base: &Id, dims: &[u64]) -> Result<Id> {
    let rank = c_uint::try_from(dims.len()).map_err(|_| Failure("rank".into()))?;
    // SAFETY: the dimensions are as many as the rank.
    id(
        unsafe { h5t::H5Tarray_create2(base.0, rank, dims.as_ptr()) },
        "H5Tarray_create2",
    )
}
