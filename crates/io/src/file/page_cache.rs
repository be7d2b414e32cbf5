//! How much of a file is in the kernel's page cache.

#![allow(unsafe_code)]

use std::fs::File;
use std::os::fd::AsRawFd;

/// The number of the system call on every architecture (Linux 6.5).
const CACHESTAT: libc::c_long = 451;

#[repr(C)]
struct Range {
    offset: u64,
    len: u64,
}

#[repr(C)]
#[derive(Default)]
struct Pages {
    cached: u64,
    dirty: u64,
    writeback: u64,
    evicted: u64,
    recently_evicted: u64,
}

/// Returns how many pages of a file range are dirty, and how many are in memory; `None` if the kernel does not say: it
/// is too old, or the file belongs to another user.
pub(super) fn pages(file: &File, offset: u64, len: u64) -> Option<(u64, u64)> {
    let range = Range { offset, len };
    let mut pages = Pages::default();
    // SAFETY: the kernel reads one Range and writes one Pages, both of its own layout
    // (linux/mman.h: cachestat_range, cachestat) and alive during the call; the descriptor is open.
    let failed = unsafe {
        libc::syscall(
            CACHESTAT,
            file.as_raw_fd(),
            &raw const range,
            &raw mut pages,
            0,
        )
    };
    (failed == 0).then_some((pages.dirty.saturating_add(pages.writeback), pages.cached))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Write;

    #[test]
    fn what_was_just_written_is_in_memory() {
        let mut file = tempfile::tempfile().unwrap();
        file.write_all(&[1; 8 << 12]).unwrap();
        match pages(&file, 0, 8 << 12) {
            Some((_, cached)) => assert_eq!(cached, 8),
            None => eprintln!("NOT TESTED: this kernel has no cachestat"),
        }
        if let Some((_, cached)) = pages(&file, 1 << 20, 1 << 12) {
            assert_eq!(cached, 0);
        }
    }
}
