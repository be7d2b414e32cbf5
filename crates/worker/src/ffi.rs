//! Safe wrappers over the libhdf5 calls that npyfs needs; the only unsafe code on the read path.
//!
//! Assumes that callers run inside `locked`: libhdf5 is built without threads, and an `Id` is only
//! used there. Every identifier closes itself; every failure carries libhdf5's own words.
//! Nothing here follows a soft or external link: objects are opened by address.

#![allow(unsafe_code)]

mod attribute;
mod collection;
mod create;
mod dataset;
mod datatype;
mod driver;
mod edit;
mod link;
mod members;
mod plist;
mod publish;
mod recode;
mod space;
mod vlen;

pub(super) use attribute::*;
pub(super) use collection::*;
pub(super) use create::*;
pub(super) use dataset::*;
pub(super) use datatype::*;
pub(super) use driver::{open_far, take_failure};
pub(super) use edit::*;
pub(super) use link::*;
pub(super) use members::open_members;
pub(super) use plist::*;
pub(super) use publish::*;
pub(super) use recode::*;
pub(super) use space::*;
pub(super) use vlen::*;

use std::ffi::{CStr, CString, c_char, c_int, c_uint, c_ulong, c_void};
use std::ptr;
use std::sync::Arc;

use hdf5_sys::h5::{H5_index_t, H5_iter_order_t, hsize_t};
use hdf5_sys::h5i::hid_t;
use hdf5_sys::{h5a, h5d, h5e, h5f, h5i, h5l, h5o, h5p, h5pl, h5s, h5t, h5z};

/// The error of a call to libhdf5, in its own words.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub struct Failure(pub String);

impl From<hdf5::Error> for Failure {
    /// Takes the error of a type or properties that this program made. Failures on a file go through `failure`: the
    /// crate takes libhdf5's words for UTF-8 without checking, and names of a file stand in them.
    fn from(error: hdf5::Error) -> Self {
        Self(error.to_string())
    }
}

type Result<T> = std::result::Result<T, Failure>;

/// Gives back the memory that the library keeps for objects like those that it freed. The caller holds the lock.
pub(super) fn collect_garbage() {
    // SAFETY: the library is initialised and its lock is held; what is in use stays. A failure leaves memory where
    // it is.
    unsafe { hdf5_sys::h5::H5garbage_collect() };
}

/// Runs `work` with the library initialised, silent about errors, and its process-wide lock held.
pub(super) fn locked<T>(work: impl FnOnce() -> T) -> T {
    hdf5::sync::sync(|| {
        static ONCE: std::sync::Once = std::sync::Once::new();
        ONCE.call_once(|| {
            let mut none: c_int = 0;
            // SAFETY: the lock is held; the pointer is to a live integer. A file must not be able to
            // load a shared object, so plug-ins stay off; failing to switch them off only keeps the default.
            unsafe { h5pl::H5PLset_loading_state(&raw mut none as *mut _) };
            super::decoders::register();
        });
        work()
    })
}

/// An identifier that is released when dropped.
#[derive(Debug)]
pub(super) struct Id(hid_t);

impl Drop for Id {
    fn drop(&mut self) {
        locked(|| {
            // SAFETY: the identifier is ours and still counted once.
            unsafe { h5i::H5Idec_ref(self.0) };
        });
    }
}

/// Makes an error of the innermost and outermost lines of libhdf5's error stack, which it clears.
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
    // What stands in front of it says only that no plug-in was loaded.
    let filter = lines
        .iter()
        .find(|line| line.starts_with("required filter"));
    match lines.as_slice() {
        [] => Failure(format!("{call} failed")),
        [only] => Failure(only.clone()),
        [cause, .., effect] => Failure(format!("{effect}: {}", filter.unwrap_or(cause))),
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

/// Bytes of metadata that are kept of a file on disk. libhdf5 counts what a header takes in the file, some 300 bytes,
/// and needs 15 times as much for it: with the 32 MiB that it takes by itself, a listing of 100 000 datasets takes 250
/// MB.
const METADATA_CACHE: usize = 2 << 20;

/// Returns a configuration of the metadata cache with a fixed size.
fn metadata_cache(bytes: usize) -> hdf5::plist::file_access::MetadataCacheConfig {
    hdf5::plist::file_access::MetadataCacheConfig {
        set_initial_size: true,
        initial_size: bytes,
        max_size: bytes,
        min_size: bytes,
        ..Default::default()
    }
}

/// Opens a file to read, and returns whether it had to be opened with SWMR; no lock is taken.
///
/// A file whose writer is at work or was killed opens with SWMR only. Every other is opened without: with
/// SWMR libhdf5 reads zeros behind the end of the file instead of failing.
pub(super) fn open_file(path: &[u8]) -> Result<(Id, bool)> {
    let path = cstring(path)?;
    // With SWMR, metadata with a wrong checksum is read again, each time after a pause twice as long
    // (from a nanosecond on): a hundred times by default, which is for ever.
    let access = hdf5::plist::FileAccess::build()
        .file_locking(false)
        .metadata_read_attempts(20)
        .mdc_config(&metadata_cache(METADATA_CACHE))
        .finish()?;
    // SAFETY: the property list is open as long as it is borrowed, and the path is a C string that outlives the
    // calls.
    unsafe {
        let open = |flags| id(h5f::H5Fopen(path.as_ptr(), flags, access.id()), "H5Fopen");
        let plain = open(h5f::H5F_ACC_RDONLY).map(|file| (file, false));
        plain.or_else(|failure| {
            open(h5f::H5F_ACC_RDONLY | h5f::H5F_ACC_SWMR_READ)
                .map(|file| (file, true))
                .map_err(|_| failure)
        })
    }
}

/// Returns the address of the root group.
pub(super) fn root_addr(file: &Id) -> Result<u64> {
    // SAFETY: `file` is open and the name is a C string.
    let root = id(
        unsafe { h5o::H5Oopen(file.0, c"/".as_ptr(), h5p::H5P_DEFAULT) },
        "H5Oopen",
    )?;
    Ok(object_info(&root)?.addr)
}

/// The kind of an object.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ObjectKind {
    Group,
    Dataset,
    Other,
}

/// Basic facts of an object header.
#[derive(Clone, Copy, Debug)]
pub(super) struct ObjectInfo {
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

/// Opens the object at an address.
pub(super) fn open_object(file: &Id, addr: u64) -> Result<Id> {
    // SAFETY: libhdf5 checks the address against the file.
    id(
        unsafe { h5o::H5Oopen_by_token(file.0, token(addr)) },
        "H5Oopen_by_token",
    )
}

/// Returns an object header with these fields filled.
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

/// Returns the address of an object and the number of its links.
pub(super) fn object_info(object: &Id) -> Result<ObjectInfo> {
    let info = header(object, h5o::H5O_INFO_BASIC)?;
    Ok(ObjectInfo {
        addr: token_addr(info.token),
        links: info.rc,
    })
}

/// Returns the kind of an open object, without reading the file.
pub(super) fn kind(object: &Id) -> ObjectKind {
    // SAFETY: the identifier is open as long as it is borrowed, and no pointer is passed.
    match unsafe { h5i::H5Iget_type(object.0) } {
        h5i::H5I_type_t::H5I_GROUP => ObjectKind::Group,
        h5i::H5I_type_t::H5I_DATASET => ObjectKind::Dataset,
        _ => ObjectKind::Other,
    }
}
