//! The driver information of an HDF5 file: the block or message that records the names and sizes of its members.

use std::fs::File;
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::FileExt;
use std::path::Path;

use super::{KINDS, open_member};
use crate::file::signature;

/// The most bytes of the superblock, and of its extension or the driver information block, that are read.
const NEAR: usize = 1024;

/// Returns the 8-byte number at an offset.
pub(super) fn word(bytes: &[u8], at: usize) -> Option<u64> {
    let bytes = bytes.get(at..at.checked_add(8)?)?;
    Some(u64::from_le_bytes(bytes.try_into().ok()?))
}

/// The driver information of a file: the driver's name and its data, and the end of the file's addresses.
pub(super) struct Information {
    pub(super) is_family: bool,
    pub(super) bytes: Vec<u8>,
    pub(super) end: u64,
}

/// Returns the driver information of a file; `None` if it needs no driver.
pub(super) fn information(path: &Path, file: &File) -> io::Result<Option<Information>> {
    const NONE: u64 = u64::MAX;
    // Behind a user block, addresses are relative to its end.
    let Some(0) = signature(file)? else {
        return Ok(None);
    };
    let head = read_near(file, 0)?;
    let version = head.get(8).copied().unwrap_or(u8::MAX);
    // Files whose offsets are not 8 bytes are left to libhdf5.
    let (size, end, block) = match version {
        0 | 1 => {
            let more = usize::from(version) * 4;
            (head.get(13), word(&head, 40 + more), word(&head, 48 + more))
        }
        2 | 3 => (head.get(9), word(&head, 28), word(&head, 20)),
        _ => return Ok(None),
    };
    let (Some(8), Some(end), Some(block)) = (size, end, block) else {
        return Ok(None);
    };
    if block == NONE {
        return Ok(None);
    }
    let block = match block < file.metadata()?.len() {
        true => read_near(file, block)?,
        false => match apart(path, block)? {
            Some(block) => block,
            None => return Ok(None),
        },
    };
    let (name, bytes) = match version {
        // Version, reserved bytes and size come first.
        0 | 1 => (block.get(8..16), block.get(16..)),
        _ => match driver_message(&block) {
            Some(message) => (message.get(1..9), message.get(11..)),
            None => return Ok(None),
        },
    };
    let is_family = match name {
        Some(b"NCSAfami") => true,
        Some(b"NCSAmult") => false,
        _ => return Ok(None),
    };
    Ok(Some(Information {
        is_family,
        bytes: bytes.unwrap_or_default().to_vec(),
        end,
    }))
}

/// Reads the bytes at an address of a file.
fn read_near(file: &File, at: u64) -> io::Result<Vec<u8>> {
    let mut buf = vec![0; NEAR];
    let mut have = 0;
    while have < buf.len() {
        match file.read_at(&mut buf[have..], at.saturating_add(have as u64))? {
            0 => break,
            n => have += n,
        }
    }
    buf.truncate(have);
    Ok(buf)
}

/// Reads a superblock extension that `multi` stores in another member, whose name is not known yet. Assumes the
/// driver's default map and names (`H5FDmulti.c`).
fn apart(path: &Path, at: u64) -> io::Result<Option<Vec<u8>>> {
    const LETTERS: &[u8; KINDS] = b"sbrglo";
    const SPAN: u64 = (u64::MAX - 1) / KINDS as u64;
    let name = path.file_name().unwrap_or_default().as_bytes();
    let dot = name.iter().rposition(|&b| b == b'.').unwrap_or(name.len());
    let letter = usize::try_from(at / SPAN)
        .ok()
        .and_then(|kind| LETTERS.get(kind));
    let Some((stem, letter)) = name[..dot].strip_suffix(b"-s").zip(letter) else {
        return Ok(None);
    };
    let own = [stem, &[b'-', *letter], &name[dot..]].concat();
    let path = std::path::absolute(path)?;
    match open_member(path.parent().unwrap_or(Path::new("/")), &own)? {
        Some(file) if file.metadata()?.is_file() => read_near(&file, at % SPAN).map(Some),
        _ => Ok(None),
    }
}

/// Returns the driver information message in the first chunk of the superblock extension, an object header of version
/// 2.
fn driver_message(header: &[u8]) -> Option<&[u8]> {
    const DRIVER: u8 = 0x14;
    let flags = *header.strip_prefix(b"OHDR\x02")?.first()?;
    let times = if flags & 0x20 != 0 { 16 } else { 0 };
    let limits = if flags & 0x10 != 0 { 4 } else { 0 };
    let order = if flags & 0x04 != 0 { 2 } else { 0 };
    let mut at = 6 + times + limits + (1 << (flags & 3));
    loop {
        let kind = *header.get(at)?;
        let size = u16::from_le_bytes([*header.get(at + 1)?, *header.get(at + 2)?]);
        let from = at + 4 + order;
        let message = header.get(from..from + usize::from(size))?;
        if kind == DRIVER {
            return Some(message);
        }
        at = from + usize::from(size);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn driver_information_in_an_object_header() {
        let mut header = b"OHDR\x02\x04\x20".to_vec();
        header.extend(b"\x01\x02\x00\x00\x00\x00ab");
        header.extend(b"\x14\x03\x00\x00\x00\x00xyz");
        assert_eq!(driver_message(&header), Some(b"xyz".as_slice()));
        assert_eq!(driver_message(&header[..header.len() - 1]), None);
        assert_eq!(driver_message(b"OHDR\x02"), None);
        assert_eq!(driver_message(b"OHDR\x01\x00"), None);
    }
}
