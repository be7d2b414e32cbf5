//! A file that is opened to be written anew, and that cannot be read: damaged, or a sample that was not fetched.

use std::sync::Arc;

use crate::error::{Error, ErrorKind, Result};
use crate::io::content::Content;
use crate::tree::VirtualFile;

/// A file as content that fails when it is read and not when it is opened.
pub(super) struct Unreadable(pub Arc<dyn VirtualFile>);

impl Content for Unreadable {
    /// At least one byte, so that nobody copies it without meeting the error.
    fn len(&self) -> u64 {
        self.0.size().unwrap_or(0).max(1)
    }

    fn read_at(&self, offset: u64, buf: &mut [u8]) -> Result<()> {
        // It may have been a passing trouble.
        let content = self.0.open()?;
        if offset.saturating_add(buf.len() as u64) > content.len() {
            return Err(Error::new(ErrorKind::Os(libc::EIO), "it was cut off"));
        }
        content.read_at(offset, buf)
    }
}
