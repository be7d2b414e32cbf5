//! Decoders that the bundled libhdf5 lacks, registered with it: szip, and the plug-in filters that npyfs decodes
//! itself.
//!
//! They decode the chunks that the daemon leaves to libhdf5: those with two compressing filters, with a filter that
//! only libhdf5 has, or with elements to be converted.

use std::ffi::{CStr, c_int, c_uint, c_void};

use hdf5_sys::h5::{H5allocate_memory, H5free_memory};
use hdf5_sys::h5z::{H5Z_CLASS_T_VERS, H5Z_FLAG_REVERSE, H5Z_class2_t, H5Z_func_t};
use npyfs_codec::{BITSHUFFLE, BLOSC2, BZIP2, LZ4, SZIP, ZSTD, alone};

/// The largest size in bytes of a decoded chunk; HDF5 chunks end at 4 GiB.
const MAX_CHUNK: usize = 1 << 30;

unsafe extern "C" {
    /// Registers a filter. This is the inner function of `H5Zregister`, which itself refuses HDF5's own numbers, those
    /// below 256. It is available because libhdf5 is linked statically; otherwise linking fails.
    fn H5Z_register(class: *const H5Z_class2_t) -> c_int;
}

/// Registers the decoders with libhdf5. Called once, with its lock held.
pub(super) fn register() {
    register_one(SZIP, c"szip", Some(filter::<SZIP>));
    register_one(LZ4, c"lz4", Some(filter::<LZ4>));
    register_one(BITSHUFFLE, c"bitshuffle", Some(filter::<BITSHUFFLE>));
    register_one(ZSTD, c"zstd", Some(filter::<ZSTD>));
    register_one(BZIP2, c"bzip2", Some(filter::<BZIP2>));
    register_one(BLOSC2, c"blosc2", Some(filter::<BLOSC2>));
}

fn register_one(id: i32, name: &'static CStr, filter: H5Z_func_t) {
    let class = H5Z_class2_t {
        version: H5Z_CLASS_T_VERS as _,
        id,
        encoder_present: 0,
        decoder_present: 1,
        name: name.as_ptr(),
        can_apply: None,
        set_local: None,
        filter,
    };
    // SAFETY: libhdf5 is initialised, and copies the class, which matches the version it states; the name lives
    // for ever. If it is refused, chunks with this filter fail to read, with libhdf5's own message.
    unsafe { H5Z_register(&raw const class) };
}

fn decode(id: i32, stored: &[u8], parameters: &[u32]) -> Option<Vec<u8>> {
    alone(id, parameters, stored, MAX_CHUNK).ok()
}

unsafe extern "C" fn filter<const ID: i32>(
    flags: c_uint,
    parameter_count: usize,
    parameters: *const c_uint,
    len: usize,
    capacity: *mut usize,
    buffer: *mut *mut c_void,
) -> usize {
    if flags & H5Z_FLAG_REVERSE == 0 {
        return 0;
    }
    // SAFETY: libhdf5 passes `parameter_count` parameters (no pointer if there are none) and a buffer of `len`
    // bytes that it allocated.
    let (parameters, stored) = unsafe {
        let parameters = match parameter_count {
            0 => &[],
            count => std::slice::from_raw_parts(parameters, count),
        };
        (
            parameters,
            std::slice::from_raw_parts((*buffer).cast::<u8>(), len),
        )
    };
    let decoded = std::panic::catch_unwind(|| decode(ID, stored, parameters))
        .ok()
        .flatten();
    let Some(decoded) = decoded.filter(|bytes| !bytes.is_empty()) else {
        return 0;
    };
    // SAFETY: the new buffer comes from libhdf5's allocator and has the size that is copied; the old one
    // goes back to where it came from, as the filter interface asks.
    unsafe {
        let new = H5allocate_memory(decoded.len(), 0);
        if new.is_null() {
            return 0;
        }
        std::ptr::copy_nonoverlapping(decoded.as_ptr(), new.cast::<u8>(), decoded.len());
        H5free_memory(*buffer);
        *buffer = new;
        *capacity = decoded.len();
    }
    decoded.len()
}
