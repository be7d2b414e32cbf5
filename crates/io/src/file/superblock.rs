//! The beginning of an HDF5 file: its signature and expected size.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;

use super::StoreFile;
use npyfs_base::error::Error;

/// Bytes that can be read at an offset.
pub trait Positioned {
    /// Returns the length in bytes.
    fn length(&self) -> io::Result<u64>;

    /// Fills `buf` from `offset`.
    fn fill(&self, buf: &mut [u8], offset: u64) -> io::Result<()>;
}

impl Positioned for File {
    fn length(&self) -> io::Result<u64> {
        Ok(self.metadata()?.len())
    }

    fn fill(&self, buf: &mut [u8], offset: u64) -> io::Result<()> {
        self.read_exact_at(buf, offset)
    }
}

impl Positioned for StoreFile {
    fn length(&self) -> io::Result<u64> {
        match self.far() {
            Some(_) => Ok(self.identity.size),
            None => self.file()?.length(),
        }
    }

    fn fill(&self, buf: &mut [u8], offset: u64) -> io::Result<()> {
        if self.far().is_none() {
            return self.file()?.fill(buf, offset);
        }
        let read = self.read_exact_at(buf, offset).map_err(Error::from);
        read.map_err(|e| io::Error::from_raw_os_error(e.errno()))
    }
}

/// The HDF5 signature.
pub const SIGNATURE: &[u8; 8] = b"\x89HDF\r\n\x1a\n";

/// Returns the offsets at which a file of `len` bytes may have the HDF5 signature: at its start or after a user block
/// (format specification, section II.A: at 0, 512, 1024, 2048 and so on).
pub fn signature_places(len: u64) -> impl Iterator<Item = u64> {
    let next = |&at: &u64| {
        if at == 0 {
            Some(512)
        } else {
            at.checked_mul(2)
        }
    };
    let fits = move |at: &u64| at.checked_add(8).is_some_and(|end| end <= len);
    std::iter::successors(Some(0), next).take_while(fits)
}

/// Returns the offset of the HDF5 signature.
pub(super) fn signature(file: &impl Positioned) -> io::Result<Option<u64>> {
    let mut buf = [0; 8];
    for at in signature_places(file.length()?) {
        file.fill(&mut buf, at)?;
        if &buf == SIGNATURE {
            return Ok(Some(at));
        }
    }
    Ok(None)
}

/// Returns the number of bytes in front of libhdf5's own; 0 if this is not an HDF5 file.
pub fn user_block(file: &impl Positioned) -> io::Result<u64> {
    Ok(signature(file)?.unwrap_or(0))
}

/// Returns true if a file carries the HDF5 signature.
pub fn has_hdf5_signature(file: &impl Positioned) -> io::Result<bool> {
    Ok(signature(file)?.is_some())
}

/// Returns the expected size of a file, if it is larger than the actual size.
///
/// libhdf5 checks this itself, except for files of superblock version 3 that are opened for SWMR reading. There the
/// check is left to the reader: a file that no writer has marked as open must be complete.
pub fn missing_end(file: &impl Positioned) -> io::Result<Option<u64>> {
    const MARKED_OPEN: u8 = 0x1 | 0x4;
    let Some(at) = signature(file)? else {
        return Ok(None);
    };
    // Signature, version, size of offsets, size of lengths, flags, base address, extension, end of file.
    let mut head = [0; 36];
    if file.fill(&mut head, at).is_err() {
        return Ok(Some(at.saturating_add(head.len() as u64)));
    }
    if head[8] != 3 || head[9] != 8 || head[11] & MARKED_OPEN != 0 {
        return Ok(None);
    }
    let mut end = [0; 8];
    end.copy_from_slice(&head[28..]);
    let end = u64::from_le_bytes(end);
    Ok((file.length()? < end).then_some(end))
}
