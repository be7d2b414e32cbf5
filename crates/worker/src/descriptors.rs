//! Inherited descriptors: a worker closes all but the standard ones.
//!
//! `exec` closes the daemon's own descriptors, but not those that a shell or a service manager left open.

use std::io;

/// Closes every descriptor behind standard error. Must be called before the program has opened any.
#[allow(unsafe_code)]
pub(super) fn close_inherited() -> Result<(), String> {
    const FIRST: libc::c_uint = 3;
    const NO_FLAGS: libc::c_uint = 0;
    // SAFETY: the call takes three integers. Nothing in this process owns a descriptor yet.
    let done = unsafe { libc::syscall(libc::SYS_close_range, FIRST, libc::c_uint::MAX, NO_FLAGS) };
    match done {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error().to_string()),
    }
}
