//! Progress of long operations.

/// A listener for progress.
pub trait Progress {
    /// Reports the total number of bytes.
    fn begin(&self, bytes: u64);

    /// Reports a number of bytes that have just been completed.
    fn advance(&self, bytes: u64);
}
