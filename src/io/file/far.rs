//! The bytes of a store file that are not on this machine's disk.

use std::fmt::Debug;
use std::ops::Range;

use crate::error::Error;

/// One version of a file that lies elsewhere.
pub trait Far: Send + Sync + Debug {
    /// Fills `buf` from `offset`, inside the file.
    fn read(&self, buf: &mut [u8], offset: u64) -> Result<(), Error>;

    /// Has ranges fetched together, and waits until they are at hand.
    fn fetch(&self, ranges: &[Range<u64>]) -> Result<(), Error>;

    /// Has ranges fetched that will be read soon, without waiting for them.
    fn prefetch(&self, _ranges: &[Range<u64>]) {}

    /// Returns true unless it is known that another version took its place.
    fn is_unchanged(&self) -> bool;

    /// Returns true if it is the newest version.
    fn is_current(&self) -> bool;
}
