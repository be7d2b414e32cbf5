//! A cursor that reads numbers from bytes that may end anywhere.

use super::Sizes;

/// The undefined address.
pub(super) const NOWHERE: u64 = u64::MAX;

/// A position in bytes.
pub(super) struct Cursor<'a> {
    rest: &'a [u8],
    all: usize,
    pub(super) sizes: &'a Sizes,
}

impl<'a> Cursor<'a> {
    pub(super) fn new(bytes: &'a [u8], sizes: &'a Sizes) -> Self {
        Self {
            rest: bytes,
            all: bytes.len(),
            sizes,
        }
    }

    /// Returns the number of bytes that were read.
    pub(super) fn done(&self) -> usize {
        self.all - self.rest.len()
    }

    /// Returns the number of bytes that are left.
    pub(super) fn left(&self) -> usize {
        self.rest.len()
    }

    /// Returns the next bytes.
    pub(super) fn take(&mut self, len: usize) -> Option<&'a [u8]> {
        let (now, rest) = self.rest.split_at_checked(len)?;
        self.rest = rest;
        Some(now)
    }

    pub(super) fn skip(&mut self, len: usize) -> Option<()> {
        self.take(len).map(|_| ())
    }

    /// Returns the next number of at most 8 bytes.
    pub(super) fn number(&mut self, len: usize) -> Option<u64> {
        let bytes = self.take(len)?;
        let mut number = 0;
        for &byte in bytes.iter().rev() {
            number = number << 8 | u64::from(byte);
        }
        Some(number)
    }

    /// Returns the next address.
    pub(super) fn offset(&mut self) -> Option<u64> {
        let len = self.sizes.offset;
        let addr = self.number(len)?;
        let none = match len {
            8 => u64::MAX,
            len => (1 << (8 * len)) - 1,
        };
        Some(if addr == none { NOWHERE } else { addr })
    }

    /// Returns the next length.
    pub(super) fn length(&mut self) -> Option<u64> {
        self.number(self.sizes.length)
    }

    /// Reads a signature; returns `None` if it is another one.
    pub(super) fn signature(&mut self, wanted: &[u8; 4]) -> Option<()> {
        (self.take(4)? == wanted).then_some(())
    }
}
