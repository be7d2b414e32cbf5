//! A virtual file as a stream of bytes.

use std::io::{self, Read, Seek, SeekFrom};
use std::sync::Arc;

use super::error::Error;
use npyfs_io::content::Content;

/// An open virtual file: the bytes that a mount would show, `.npy` header included.
///
/// It keeps the version that it was opened with. Once the store is changed, reading fails; it never gives a mixture.
pub struct File {
    path: String,
    content: Arc<dyn Content>,
    at: u64,
}

impl File {
    pub(super) fn new(path: &str, content: Arc<dyn Content>) -> Self {
        Self {
            path: path.to_owned(),
            content,
            at: 0,
        }
    }

    /// Returns the size in bytes.
    pub fn len(&self) -> u64 {
        self.content.len()
    }

    /// Returns whether the file has no bytes.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

impl std::fmt::Debug for File {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let mut shown = f.debug_struct("File");
        shown.field("path", &self.path).field("len", &self.len());
        shown.field("at", &self.at).finish()
    }
}

impl Read for File {
    fn read(&mut self, buf: &mut [u8]) -> io::Result<usize> {
        let left = usize::try_from(self.len().saturating_sub(self.at)).unwrap_or(usize::MAX);
        let len = left.min(buf.len());
        let read = self.content.read_at(self.at, &mut buf[..len]);
        read.map_err(|e| Error::of(&self.path, e))?;
        self.at += len as u64;
        Ok(len)
    }
}

impl Seek for File {
    fn seek(&mut self, to: SeekFrom) -> io::Result<u64> {
        let at = match to {
            SeekFrom::Start(at) => Some(at),
            SeekFrom::End(by) => self.len().checked_add_signed(by),
            SeekFrom::Current(by) => self.at.checked_add_signed(by),
        };
        self.at = at.ok_or_else(|| io::Error::from(io::ErrorKind::InvalidInput))?;
        Ok(self.at)
    }
}
