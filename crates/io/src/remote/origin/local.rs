//! A local file, read as an object.

use std::fs::File;
use std::io;
use std::ops::Range;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::time::SystemTime;

use super::super::error::{Cause, RemoteError};
use super::{Got, Version};

/// A file.
pub(in crate::remote) struct LocalFile {
    file: File,
    size: u64,
    modified: SystemTime,
}

impl LocalFile {
    /// Opens a file.
    pub(super) fn open(path: &Path) -> io::Result<Self> {
        let file = File::open(path)?;
        let meta = file.metadata()?;
        if !meta.is_file() {
            return Err(io::Error::other("not a file"));
        }
        Ok(Self {
            file,
            size: meta.len(),
            modified: meta.modified()?,
        })
    }

    /// Returns the version of the file when it was opened.
    pub(super) fn version(&self) -> Version {
        Version {
            size: self.size,
            etag: None,
            modified: self.modified,
        }
    }

    /// Reads a range.
    pub(super) fn get(&self, range: Range<u64>) -> Result<Got, RemoteError> {
        let start = range.start.min(self.size);
        let len = range.end.min(self.size).saturating_sub(start);
        let mut bytes = vec![0; usize::try_from(len).unwrap_or(0)];
        let read = self.file.read_exact_at(&mut bytes, start);
        read.map_err(|e| RemoteError {
            cause: Cause::Failed,
            message: e.to_string(),
        })?;
        Ok(Got {
            version: self.version(),
            start,
            bytes,
            room: None,
        })
    }
}
