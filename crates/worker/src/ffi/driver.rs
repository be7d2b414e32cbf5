//! A driver by which libhdf5 reads a file that lies elsewhere: every read is one of [`Far`].
//!
//! Only the file that is being opened is opened; the names of other files, which a file may hold, reach the driver and
//! are refused. The struct is that of HDF5 2.2 (`H5FDdevelop.h`): the bindings have an older one.

use std::cell::RefCell;
use std::mem::offset_of;
use std::sync::OnceLock;

use super::*;
use npyfs_base::error::Error;
use npyfs_io::file::Far;

/// Reads of the metadata cache that are worth keeping: all indexes of a large file fit.
const METADATA_CACHE: usize = 32 << 20;

/// Bytes of whole pages that are kept of files that are made of pages.
const PAGE_BUFFER: usize = 16 << 20;

/// The name that libhdf5 knows the file by.
const NAME: &CStr = c"far";

/// SWMR readers need a driver that says so (`H5FD_FEAT_SUPPORTS_SWMR_IO`).
const SUPPORTS_SWMR: c_ulong = 0x1000;

/// The kinds of memory, `H5FD_MEM_NTYPES`.
const KINDS: usize = 7;

type Callback = Option<unsafe extern "C" fn()>;

/// `H5FD_class_t`.
#[repr(C)]
struct Class {
    version: c_uint,
    value: c_int,
    name: *const c_char,
    max_address: u64,
    close_degree: c_int,
    terminate: Callback,
    superblock: [Callback; 3],
    fapl_size: usize,
    fapl: [Callback; 3],
    dxpl_size: usize,
    dxpl: [Callback; 2],
    open: Option<unsafe extern "C" fn(*const c_char, c_uint, hid_t, u64) -> *mut OpenFar>,
    close: Option<unsafe extern "C" fn(*mut OpenFar) -> c_int>,
    compare: Callback,
    query: Option<unsafe extern "C" fn(*const OpenFar, *mut c_ulong) -> c_int>,
    type_map: Callback,
    allocate: [Callback; 2],
    get_eoa: Option<unsafe extern "C" fn(*const OpenFar, c_int) -> u64>,
    set_eoa: Option<unsafe extern "C" fn(*mut OpenFar, c_int, u64) -> c_int>,
    get_eof: Option<unsafe extern "C" fn(*const OpenFar, c_int) -> u64>,
    handle: Callback,
    read:
        Option<unsafe extern "C" fn(*mut OpenFar, c_int, hid_t, u64, usize, *mut c_void) -> c_int>,
    write: Option<
        unsafe extern "C" fn(*mut OpenFar, c_int, hid_t, u64, usize, *const c_void) -> c_int,
    >,
    vectors: [Callback; 4],
    flush: Callback,
    truncate: Callback,
    lock: Option<unsafe extern "C" fn(*mut OpenFar, bool) -> c_int>,
    unlock: Option<unsafe extern "C" fn(*mut OpenFar) -> c_int>,
    delete: Callback,
    control: Callback,
    free_lists: [c_int; KINDS],
}

/// `H5FD_t`, which libhdf5 fills in.
#[repr(C)]
struct Public {
    driver: hid_t,
    class: *const Class,
    number: c_ulong,
    access: c_uint,
    features: c_ulong,
    max_address: u64,
    base: u64,
    threshold: u64,
    alignment: u64,
    paged: bool,
}

// Measured against C's compiler with the headers of HDF5 2.2.0.
const _: () = {
    assert!(size_of::<Class>() == 336 && size_of::<Public>() == 80);
    assert!(offset_of!(Class, fapl_size) == 64 && offset_of!(Class, open) == 120);
    assert!(offset_of!(Class, get_eoa) == 176 && offset_of!(Class, read) == 208);
    assert!(offset_of!(Class, lock) == 272 && offset_of!(Class, free_lists) == 304);
    assert!(offset_of!(Public, base) == 48);
};

/// An open file: libhdf5's part first.
#[repr(C)]
struct OpenFar {
    public: Public,
    far: Arc<dyn Far>,
    size: u64,
    end_of_allocation: u64,
}

// SAFETY: it holds a pointer to text that lives for ever, and functions.
unsafe impl Sync for Class {}
// SAFETY: as above.
unsafe impl Send for Class {}

static CLASS: Class = Class {
    version: 1,
    // Numbers from 256 on are for drivers of others.
    value: 500,
    name: c"npyfs_far".as_ptr(),
    max_address: i64::MAX as u64,
    // `H5F_CLOSE_WEAK`: with the default, closing fails.
    close_degree: 1,
    terminate: None,
    superblock: [None; 3],
    fapl_size: 0,
    fapl: [None; 3],
    dxpl_size: 0,
    dxpl: [None; 2],
    open: Some(open),
    close: Some(close),
    compare: None,
    query: Some(query),
    type_map: None,
    allocate: [None; 2],
    get_eoa: Some(get_eoa),
    set_eoa: Some(set_eoa),
    get_eof: Some(get_eof),
    handle: None,
    read: Some(read),
    write: Some(write),
    vectors: [None; 4],
    flush: None,
    truncate: None,
    lock: Some(lock_file),
    unlock: Some(unlock_file),
    delete: None,
    control: None,
    // `H5FD_FLMAP_DICHOTOMY`: metadata and data apart; nothing is allocated here.
    free_lists: [0; KINDS],
};

thread_local! {
    /// The file that is being opened.
    static OPENING: RefCell<Option<(Arc<dyn Far>, u64)>> = const { RefCell::new(None) };
    /// The failure because of which libhdf5 was told that a read failed.
    static FAILED: RefCell<Option<Error>> = const { RefCell::new(None) };
}

/// Returns the failure of the last read that failed, once.
pub(crate) fn take_failure() -> Option<Error> {
    FAILED.take()
}

unsafe extern "C" fn open(
    name: *const c_char,
    _flags: c_uint,
    _fapl: hid_t,
    _max_address: u64,
) -> *mut OpenFar {
    // SAFETY: libhdf5 gives a C string.
    let own = !name.is_null() && unsafe { CStr::from_ptr(name) } == NAME;
    if !own {
        return ptr::null_mut();
    }
    let Some((far, size)) = OPENING.take() else {
        return ptr::null_mut();
    };
    let public = Public {
        driver: 0,
        class: ptr::null(),
        number: 0,
        access: 0,
        features: 0,
        max_address: 0,
        base: 0,
        threshold: 0,
        alignment: 0,
        paged: false,
    };
    Box::into_raw(Box::new(OpenFar {
        public,
        far,
        size,
        end_of_allocation: 0,
    }))
}

unsafe extern "C" fn close(file: *mut OpenFar) -> c_int {
    if !file.is_null() {
        // SAFETY: `open` made it, and libhdf5 closes it once.
        drop(unsafe { Box::from_raw(file) });
    }
    0
}

unsafe extern "C" fn query(_file: *const OpenFar, flags: *mut c_ulong) -> c_int {
    if !flags.is_null() {
        // SAFETY: libhdf5 gives a place for the answer. The file may be null.
        unsafe { *flags = SUPPORTS_SWMR };
    }
    0
}

unsafe extern "C" fn get_eoa(file: *const OpenFar, _kind: c_int) -> u64 {
    // SAFETY: an open file of `open`.
    unsafe { (*file).end_of_allocation }
}

unsafe extern "C" fn set_eoa(file: *mut OpenFar, _kind: c_int, end: u64) -> c_int {
    // SAFETY: an open file of `open`, used by one thread at a time.
    unsafe { (*file).end_of_allocation = end };
    0
}

unsafe extern "C" fn get_eof(file: *const OpenFar, _kind: c_int) -> u64 {
    // SAFETY: an open file of `open`.
    unsafe { (*file).size }
}

unsafe extern "C" fn read(
    file: *mut OpenFar,
    _kind: c_int,
    _dxpl: hid_t,
    address: u64,
    size: usize,
    to: *mut c_void,
) -> c_int {
    if size == 0 {
        return 0;
    }
    // SAFETY: an open file of `open`, and room for `size` bytes, which are all given a value before they are looked
    // at.
    let (file, to) = unsafe {
        ptr::write_bytes(to.cast::<u8>(), 0, size);
        (
            &*file,
            std::slice::from_raw_parts_mut(to.cast::<u8>(), size),
        )
    };
    // Bytes behind the end read as zeros, as with libhdf5's own driver.
    let inside = file.size.saturating_sub(address).min(size as u64);
    let Some(to) = usize::try_from(inside).ok().and_then(|n| to.get_mut(..n)) else {
        return -1;
    };
    if to.is_empty() {
        return 0;
    }
    // After a failed read, the other reads of this request would wait as long.
    if FAILED.with_borrow(Option::is_some) {
        return -1;
    }
    match file.far.read(to, address) {
        Ok(()) => 0,
        Err(e) => {
            FAILED.set(Some(e));
            -1
        }
    }
}

unsafe extern "C" fn write(
    _file: *mut OpenFar,
    _kind: c_int,
    _dxpl: hid_t,
    _address: u64,
    _size: usize,
    _from: *const c_void,
) -> c_int {
    -1
}

unsafe extern "C" fn lock_file(_file: *mut OpenFar, _writes: bool) -> c_int {
    0
}

unsafe extern "C" fn unlock_file(_file: *mut OpenFar) -> c_int {
    0
}

/// Returns the driver's identifier. Called with libhdf5's lock held.
fn driver() -> Result<hid_t> {
    static DRIVER: OnceLock<hid_t> = OnceLock::new();
    if let Some(&driver) = DRIVER.get() {
        return Ok(driver);
    }
    // SAFETY: the class lives for ever, and is laid out as libhdf5 has it.
    let driver = unsafe { hdf5_sys::h5fd::H5FDregister((&raw const CLASS).cast()) };
    done(if driver < 0 { -1 } else { 0 }, "H5FDregister")?;
    Ok(*DRIVER.get_or_init(|| driver))
}

/// Opens a file that lies elsewhere to read; returns as well whether that took SWMR.
pub(crate) fn open_far(far: &Arc<dyn Far>, size: u64) -> Result<(Id, bool)> {
    let access = hdf5::plist::FileAccess::build()
        .mdc_config(&super::file::metadata_cache(METADATA_CACHE))
        .page_buffer_size(PAGE_BUFFER, 0, 0)
        .metadata_read_attempts(20)
        .finish()?;
    // SAFETY: the property list is open as long as it is borrowed, and the name is a C string that outlives the
    // calls.
    unsafe {
        let set = h5p::H5Pset_driver(access.id(), driver()?, ptr::null());
        done(set, "H5Pset_driver")?;
        let open = |flags| {
            OPENING.set(Some((far.clone(), size)));
            let file = id(h5f::H5Fopen(NAME.as_ptr(), flags, access.id()), "H5Fopen");
            OPENING.set(None);
            file
        };
        let plain = open(h5f::H5F_ACC_RDONLY).map(|file| (file, false));
        plain.or_else(|failure| {
            if FAILED.with_borrow(Option::is_some) {
                return Err(failure);
            }
            open(h5f::H5F_ACC_RDONLY | h5f::H5F_ACC_SWMR_READ)
                .map(|file| (file, true))
                .map_err(|_| failure)
        })
    }
}
