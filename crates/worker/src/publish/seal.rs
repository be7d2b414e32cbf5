//! A seal: the file opens for reading, and libhdf5 refuses to open it for writing.
//!
//! A program that opens a file of links for writing also opens the linked files for writing, and would change the
//! store. The root group therefore gets a message of a type that no library knows, with a flag that forbids a library
//! without knowledge of the type to open the object in a writable file (HDF5 File Format Specification, IV.A.1, header
//! message flags, bit 3). libhdf5 has no call for that. An attribute holds the place of the message until the file is
//! complete, and then becomes the message.

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::Path;

use crate::ffi::{self, Failure, Id};
use npyfs_hdf5::protocol::H5Error;

/// The name of the attribute that becomes the seal.
pub(super) const MARK: &str = "npyfs_seal";

/// The message type of attributes.
const ATTRIBUTE: u16 = 0x000C;

/// The type of messages that lead to another block of the header: its address and its length.
const CONTINUATION: u16 = 0x0010;

/// A type that HDF5 has not defined.
const UNKNOWN: u16 = 0x00F0;

/// The message flag that forbids a library that does not know the type to open the object in a writable file.
const FAIL_TO_WRITE: u8 = 0x08;

/// The size in bytes of the prefix of an object header of the first version.
const PREFIX: u64 = 16;

/// The size in bytes of the head of each message.
const HEAD: u64 = 8;

/// The largest size in bytes of a block of an object header.
const LONGEST: u64 = 1 << 16;

/// The largest number of blocks of an object header that are searched.
const MOST_BLOCKS: usize = 1 << 16;

/// Gives a root group without attributes the attribute that becomes the seal.
pub(super) fn prepare(root: &Id) -> Result<(), Failure> {
    ffi::set_int_attribute(root, MARK.as_bytes(), 0).map(drop)
}

/// Seals a complete file, whose root group is at an address.
pub(super) fn seal(path: &Path, root: u64) -> Result<(), H5Error> {
    let failed = |e: std::io::Error| H5Error::Damaged(format!("cannot be sealed: {e}"));
    let strange = || H5Error::Damaged("cannot be sealed: no header of a root group".into());
    let file = File::options().read(true).write(true).open(path);
    let file = file.map_err(failed)?;
    let mut prefix = [0; 16];
    file.read_exact_at(&mut prefix, root).map_err(failed)?;
    let [1, 0, _, _, _, _, _, _, a, b, c, d, ..] = prefix else {
        return Err(strange());
    };
    let len = u64::from(u32::from_le_bytes([a, b, c, d]));
    let mut blocks = vec![(root.checked_add(PREFIX).ok_or_else(strange)?, len)];
    for number in 0..MOST_BLOCKS {
        let &(start, len) = blocks.get(number).ok_or_else(strange)?;
        let mut messages = vec![0; usize::try_from(len.min(LONGEST)).unwrap_or(0)];
        file.read_exact_at(&mut messages, start).map_err(failed)?;
        let Some(at) = find(&messages, &mut blocks) else {
            continue;
        };
        let place = start.checked_add(at).ok_or_else(strange)?;
        let flags = place.checked_add(4).ok_or_else(strange)?;
        let sealed = file.write_all_at(&UNKNOWN.to_le_bytes(), place);
        let sealed = sealed.and_then(|()| file.write_all_at(&[FAIL_TO_WRITE], flags));
        return sealed.map_err(failed);
    }
    Err(strange())
}

/// Returns the place of the mark among the messages in a block of a header; adds the blocks that these messages name.
fn find(messages: &[u8], blocks: &mut Vec<(u64, u64)>) -> Option<u64> {
    let mut at = 0;
    loop {
        let head = messages.get(at..)?;
        let (kind, size) = (
            u16::from_le_bytes(head.get(..2)?.try_into().ok()?),
            u16::from_le_bytes(head.get(2..4)?.try_into().ok()?),
        );
        let body = head.get(usize::try_from(HEAD).ok()?..)?;
        // Version, a reserved byte, three sizes, the name.
        let name = body.get(8..8 + MARK.len() + 1);
        if kind == ATTRIBUTE
            && name.is_some_and(|name| name.strip_suffix(b"\0") == Some(MARK.as_bytes()))
        {
            return u64::try_from(at).ok();
        }
        if kind == CONTINUATION
            && let Some((start, rest)) = body.split_first_chunk()
            && let Some((len, _)) = rest.split_first_chunk()
        {
            blocks.push((u64::from_le_bytes(*start), u64::from_le_bytes(*len)));
        }
        at = at
            .checked_add(usize::try_from(HEAD).ok()?)?
            .checked_add(usize::from(size))?;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn message(kind: u16, body: &[u8]) -> Vec<u8> {
        let mut message = kind.to_le_bytes().to_vec();
        message.extend(u16::try_from(body.len()).unwrap().to_le_bytes());
        message.extend([0; 4]);
        message.extend(body);
        message
    }

    #[test]
    fn the_mark_is_found_among_messages_and_nothing_else_is() {
        let attribute =
            |name: &str| [&[1, 0, 0, 0, 0, 0, 0, 0], name.as_bytes(), b"\0\0\0\0"].concat();
        let other = message(ATTRIBUTE, &attribute("npyfs_sealed"));
        let mark = message(ATTRIBUTE, &attribute(MARK));
        let link = message(6, &attribute(MARK));
        let next = message(
            CONTINUATION,
            &[[7, 0, 0, 0, 0, 0, 0, 0], [9, 0, 0, 0, 0, 0, 0, 0]].concat(),
        );
        let all = [other.clone(), next.clone(), link.clone(), mark].concat();
        let mut blocks = Vec::new();
        let before = other.len() + next.len() + link.len();
        assert_eq!(find(&all, &mut blocks), Some(before as u64));
        assert_eq!(blocks, [(7, 9)]);
        let mut none = |messages: &[u8]| find(messages, &mut blocks);
        assert_eq!(none(&[other, link].concat()), None);
        assert_eq!(none(&[]), None);
        assert_eq!(none(&message(0, &[0; 3])[..9]), None);
    }
}
