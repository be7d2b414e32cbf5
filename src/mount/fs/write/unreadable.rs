//! A file that is opened to be written anew and cannot be read: a damaged file, or a sample that was not fetched.

use std::sync::Arc;

use npyfs_base::error::{Error, ErrorKind, Result};
use npyfs_core::tree::VirtualFile;
use npyfs_io::content::Content;

/// A file as content whose reads fail, while its open succeeds.
pub(super) struct Unreadable(pub Arc<dyn VirtualFile>);

impl Content for Unreadable {
    /// Returns at least one byte, so that a copy of the content meets the error.
    fn len(&self) -> u64 {
        self.0.size().unwrap_or(0).max(1)
    }

    fn read_at(&self, offset: u64, buf: &mut [u8]) -> Result<()> {
        // The error may have been temporary.
        let content = self.0.open()?;
        if offset.saturating_add(buf.len() as u64) > content.len() {
            return Err(Error::new(ErrorKind::Os(libc::EIO), "it was cut off"));
        }
        content.read_at(offset, buf)
    }
}
