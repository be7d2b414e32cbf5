//! Bytes of elements: a repeated value, and a part of a block.

use npyfs_base::buffer::Buffer;
use npyfs_base::error::{Error, ErrorKind, Result};

/// Fills `buf` with the endless repetition of `pattern`, from `offset` on.
pub(super) fn repeat(pattern: &[u8], offset: u64, buf: &mut [u8]) {
    if pattern.iter().all(|&b| b == 0) {
        buf.fill(0);
        return;
    }
    let len = pattern.len();
    // A remainder is smaller than the length, which is a usize.
    let skip = (offset % len as u64) as usize;
    for (i, byte) in buf.iter_mut().enumerate() {
        *byte = pattern[(skip + i % len) % len];
    }
}

/// Returns `len` bytes of a block from `at` on; fails if the block is too short.
pub(super) fn slice(block: &Buffer, at: u64, len: usize) -> Result<&[u8]> {
    let at = usize::try_from(at).map_err(|_| short())?;
    at.checked_add(len)
        .and_then(|end| block.get(at..end))
        .ok_or_else(short)
}

/// Returns the error for a block that is shorter than its dataset's shape requires.
pub(super) fn short() -> Error {
    Error::new(ErrorKind::Damaged, "fewer bytes than the shape needs")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fill_values_repeat_from_any_offset() {
        let mut buf = [0; 7];
        repeat(b"abc", 2, &mut buf);
        assert_eq!(&buf, b"cabcabc");
        repeat(&[0, 0], 5, &mut buf);
        assert_eq!(buf, [0; 7]);
    }
}
