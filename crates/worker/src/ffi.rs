//! Safe wrappers over the libhdf5 calls that npyfs needs; the only unsafe code on the read path.
//!
//! Assumes that callers run inside `locked`: libhdf5 is built without threads, and an `Id` is only used there. Every
//! identifier closes itself; every failure carries libhdf5's own words. Objects of files that other programs made are
//! opened by address, so no soft or external link is followed.
//!
//! Each kind of thing that libhdf5 has is a file here, as in its own sources: `file` (H5F), `object` (H5O, H5G), `link`
//! (H5L), `dataset` (H5D, H5S), `datatype` (H5T), `attribute` (H5A), `plist` (H5P). Beside them, `vlen` reads elements
//! that libhdf5 allocates, `recode` copies elements, and `driver` and `decoders` are what libhdf5 lacks and calls.

#![allow(unsafe_code)]

mod attribute;
mod dataset;
mod datatype;
mod decoders;
mod driver;
mod file;
mod link;
mod object;
mod plist;
mod recode;
mod vlen;

pub(super) use attribute::*;
pub(super) use dataset::*;
pub(super) use datatype::*;
pub(super) use driver::{open_far, take_failure};
pub(super) use file::*;
pub(super) use link::*;
pub(super) use object::*;
pub(super) use plist::*;
pub(super) use recode::*;
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

/// An identifier that is released when dropped.
#[derive(Debug)]
pub(super) struct Id(hid_t);

impl Id {
    /// Gives up the identifier, which the caller closes.
    fn into_raw(self) -> hid_t {
        let raw = self.0;
        std::mem::forget(self);
        raw
    }
}

impl Drop for Id {
    fn drop(&mut self) {
        locked(|| {
            // SAFETY: the identifier is ours and still counted once.
            unsafe { h5i::H5Idec_ref(self.0) };
        });
    }
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
            decoders::register();
        });
        work()
    })
}

/// Gives back the memory that the library keeps for objects like those that it freed. The caller holds the lock.
pub(super) fn collect_garbage() {
    // SAFETY: the library is initialised and its lock is held; what is in use stays. A failure leaves memory where
    // it is.
    unsafe { hdf5_sys::h5::H5garbage_collect() };
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

/// Returns text for calls that take it for a pattern, with every percent sign doubled.
fn escaped(text: &[u8]) -> Vec<u8> {
    let escaped = text.iter().flat_map(|&byte| match byte {
        b'%' => vec![byte, byte],
        byte => vec![byte],
    });
    escaped.collect()
}

/// Returns the path that names make; that of the root without names.
fn path_of(names: &[Vec<u8>]) -> Vec<u8> {
    match names {
        [] => b"/".to_vec(),
        names => names.join(&b'/'),
    }
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
