//! All bytes of one sample: in memory, or in a file where the cache has no room for what making them takes.
//!
//! A sample that decoding would make too large for the cache is decoded in a worker process and comes from there in
//! parts, into a file without a name. It is checked against its checksum before anybody reads it.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::sync::Arc;

use xxhash_rust::xxh64::Xxh64;

use crate::dataset::cache::Block;
use crate::dataset::spill::nameless;
use crate::error::{Error, ErrorKind, Result};
use crate::hdf5::Sink;
use crate::io::content::Data;
use crate::io::file::StoreFile;

/// Bytes that are copied at a time.
const PART: usize = 1 << 20;

/// The bytes of a sample.
#[derive(Clone)]
pub enum Whole {
    Memory(Block),
    File(Arc<FilePart>),
}

/// Bytes in a file.
pub struct FilePart {
    file: PartFile,
    start: u64,
    len: u64,
}

enum PartFile {
    Nameless(File),
    Store(StoreFile),
}

impl Whole {
    /// `len` bytes that `fill` hands on, each part with its offset; it may begin again at 0.
    pub fn spilled(len: u64, fill: impl FnOnce(&mut Sink<'_>) -> Result<()>) -> Result<Self> {
        let file = nameless(len).map_err(|e| match e.kind() {
            io::ErrorKind::StorageFull => Error::new(
                ErrorKind::Os(libc::ENOSPC),
                format!("no room for a sample that the cache cannot hold: {e}"),
            ),
            _ => e.into(),
        })?;
        let mut end = 0;
        fill(&mut |at, part| {
            end = at.saturating_add(part.len() as u64);
            if end > len {
                return Err(io::Error::other(Error::damaged(
                    "more bytes than its record says",
                )));
            }
            file.write_all_at(part, at)
        })?;
        if end != len {
            return Err(Error::damaged(format!(
                "{end} bytes, its record needs {len}"
            )));
        }
        let file = PartFile::Nameless(file);
        Ok(Self::File(Arc::new(FilePart {
            file,
            start: 0,
            len,
        })))
    }

    /// `len` bytes of a data file, which never change once they are written.
    pub fn part(file: StoreFile, start: u64, len: u64) -> Self {
        let file = PartFile::Store(file);
        Self::File(Arc::new(FilePart { file, start, len }))
    }

    pub fn len(&self) -> u64 {
        match self {
            Self::Memory(bytes) => bytes.len() as u64,
            Self::File(place) => place.len,
        }
    }

    /// Refuses bytes that are not those that were written.
    pub fn check(self, checksum: Option<u64>) -> Result<Self> {
        let Some(sum) = checksum else {
            return Ok(self);
        };
        let mut state = Xxh64::new(0);
        let mut part = vec![0; PART];
        let mut at = 0;
        while at < self.len() {
            let n = usize::try_from(self.len() - at).map_or(PART, |n| n.min(PART));
            self.read_at(at, &mut part[..n])?;
            state.update(&part[..n]);
            at += n as u64;
        }
        match state.digest() == sum {
            true => Ok(self),
            false => Err(Error::damaged("the checksum of the sample does not match")),
        }
    }

    pub fn read_at(&self, offset: u64, buf: &mut [u8]) -> Result<()> {
        let behind = || Error::damaged("behind the end of the sample");
        let end = offset.checked_add(buf.len() as u64).ok_or_else(behind)?;
        if end > self.len() {
            return Err(behind());
        }
        match self {
            Self::Memory(bytes) => {
                let start = usize::try_from(offset).unwrap_or(usize::MAX);
                let part = start
                    .checked_add(buf.len())
                    .and_then(|end| bytes.get(start..end));
                buf.copy_from_slice(part.ok_or_else(behind)?);
            }
            Self::File(place) => {
                let at = place.start.checked_add(offset).ok_or_else(behind)?;
                match &place.file {
                    PartFile::Nameless(file) => file.read_exact_at(buf, at)?,
                    PartFile::Store(file) => file.read_growing_at(buf, at)?,
                }
            }
        }
        Ok(())
    }

    /// The bytes without a copy, if they are in memory.
    pub fn share(&self, offset: u64, len: usize) -> Option<Data> {
        let Self::Memory(bytes) = self else {
            return None;
        };
        let start = usize::try_from(offset).ok()?;
        let end = start.checked_add(len).filter(|&end| end <= bytes.len())?;
        Some(Data::Shared(bytes.clone(), start..end))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_are_put_together_and_checked() {
        let text = b"some bytes, and more";
        let fill = |sink: &mut Sink<'_>| {
            sink(0, b"lost")?;
            sink(0, &text[..5])?;
            Ok(sink(5, &text[5..])?)
        };
        let len = text.len() as u64;
        let whole = || Whole::spilled(len, fill).unwrap();
        let sum = xxhash_rust::xxh64::xxh64(text, 0);
        assert!(whole().check(Some(sum + 1)).is_err());
        let whole = whole().check(Some(sum)).unwrap();
        let mut buf = [0; 5];
        whole.read_at(5, &mut buf).unwrap();
        assert_eq!(buf, text[5..10]);
        assert!(whole.read_at(len - 4, &mut buf).is_err());
        assert!(whole.share(0, 5).is_none());
        assert!(Whole::spilled(len - 1, fill).is_err() && Whole::spilled(len + 1, fill).is_err());
    }
}
