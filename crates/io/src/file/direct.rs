//! Large reads that bypass the kernel's page cache.
//!
//! The bytes of a sequential read enter the page cache once, as the virtual file. Reading the store file through the
//! cache as well takes twice the memory, and on many machines most of the time. Used only for bytes that are not in
//! memory yet, and only where the file system supports direct reads. All other bytes are read normally.

use std::fs::File;
use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::fs::{FileExt, OpenOptionsExt};

use crate::file::page_cache;
use npyfs_base::buffer::ALIGNMENT;

/// A second descriptor of a file, for direct reads.
#[derive(Debug)]
pub struct Direct(File);

impl Direct {
    /// Opens a file again for direct reads; `None` where the file system does not support them or /proc is not mounted.
    pub fn open(file: &File) -> Option<Self> {
        // Through the descriptor: the path may lead elsewhere by now.
        File::options()
            .read(true)
            .custom_flags(libc::O_DIRECT)
            .open(format!("/proc/self/fd/{}", file.as_raw_fd()))
            .ok()
            .map(Self)
    }

    /// Returns true if a range is better read directly: most of it is not in memory, and none of it is dirty.
    pub fn suits(file: &File, offset: u64, len: u64) -> bool {
        let pages = len.div_ceil(ALIGNMENT as u64);
        page_cache::pages(file, offset, len)
            .is_some_and(|(dirty, cached)| dirty == 0 && cached * 4 <= pages)
    }

    /// Fills an aligned buffer from an aligned offset; fewer bytes only at the end of the file.
    pub fn read(&self, buf: &mut [u8], offset: u64) -> io::Result<usize> {
        let mut done = 0;
        while done < buf.len() {
            match self.0.read_at(&mut buf[done..], offset + done as u64) {
                Ok(n) => {
                    done += n;
                    // A short read that ends at an unaligned offset is the end of the file.
                    if n == 0 || n % ALIGNMENT != 0 {
                        break;
                    }
                }
                Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
                Err(e) => return Err(e),
            }
        }
        Ok(done)
    }
}
