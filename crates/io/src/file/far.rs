//! Store files whose bytes are in remote storage.

use std::fmt::Debug;
use std::ops::Range;

use npyfs_base::error::Error;

/// A function that is called once, by the thread that completes what it waits for. It must not block.
pub type Then = Box<dyn FnOnce() + Send>;

/// One version of a remote file.
pub trait Far: Send + Sync + Debug {
    /// Fills `buf` from `offset`. The range is inside the file.
    fn read(&self, buf: &mut [u8], offset: u64) -> Result<(), Error>;

    /// Fetches ranges together, and waits until they are present.
    fn fetch(&self, ranges: &[Range<u64>]) -> Result<(), Error>;

    /// Begins to fetch ranges that will be read soon, and gaps of at most `gap` bytes between them, without waiting.
    /// `then` is called when all are present or cannot be fetched.
    fn prefetch(&self, _ranges: &[Range<u64>], _gap: u64, then: Then) {
        then();
    }

    /// Calls `then` when ranges are present, if each is present or in flight now; otherwise drops it.
    fn when_there(&self, _ranges: &[Range<u64>], then: Then) {
        then();
    }

    /// Returns true if ranges are present.
    fn has(&self, _ranges: &[Range<u64>]) -> bool {
        true
    }

    /// Returns false if another version is known to have replaced this one.
    fn is_unchanged(&self) -> bool;

    /// Returns true if it is the newest version.
    fn is_current(&self) -> bool;

    /// Returns true if another version has another identity: the server reports more than the size.
    fn is_told_apart(&self) -> bool {
        true
    }
}
