//! The bytes of a store file that are not on this machine's disk.

use std::fmt::Debug;
use std::ops::Range;

use crate::error::Error;

/// A function that is called once, by whichever thread ends what it waits for: it must not wait for anything itself.
pub type Then = Box<dyn FnOnce() + Send>;

/// One version of a file that lies elsewhere.
pub trait Far: Send + Sync + Debug {
    /// Fills `buf` from `offset`, inside the file.
    fn read(&self, buf: &mut [u8], offset: u64) -> Result<(), Error>;

    /// Has ranges fetched together, and waits until they are at hand.
    fn fetch(&self, ranges: &[Range<u64>]) -> Result<(), Error>;

    /// Has ranges fetched that will be read soon, and what lies between two of them if it is at most `gap` bytes, without waiting. `then`
    /// is called when all are at hand or will not come.
    fn prefetch(&self, _ranges: &[Range<u64>], _gap: u64, then: Then) {
        then();
    }

    /// Calls `then` when ranges are at hand that are so now or are on their way. Where some are neither, it is dropped.
    fn when_there(&self, _ranges: &[Range<u64>], then: Then) {
        then();
    }

    /// Returns true if ranges are at hand.
    fn has(&self, _ranges: &[Range<u64>]) -> bool {
        true
    }

    /// Returns true unless it is known that another version took its place.
    fn is_unchanged(&self) -> bool;

    /// Returns true if it is the newest version.
    fn is_current(&self) -> bool;

    /// Returns true if another version has another identity: its server tells more of it than its size.
    fn is_told_apart(&self) -> bool {
        true
    }
}
