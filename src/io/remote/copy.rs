//! A copy on this machine of a file that lies elsewhere.

use std::fs::File;
use std::io::Write;

use crate::error::{Error, Result};
use crate::io::file::StoreFile;

/// Bytes that are copied at a time.
const BLOCK: u64 = 8 << 20;

/// Such parts that are fetched while one is written.
const AHEAD: u64 = 8;

/// Copies a file; several parts are under way at a time. `advance` is told of the bytes that are done.
pub fn copy(file: &StoreFile, to: &mut File, advance: &dyn Fn(u64)) -> Result<()> {
    let size = file.identity.size;
    let mut bytes = vec![0; usize::try_from(BLOCK.min(size)).unwrap_or(0)];
    let mut at = 0;
    while at < size {
        let now = BLOCK.min(size - at);
        if let Some(far) = file.far() {
            let ahead = at.saturating_add(BLOCK * AHEAD).min(size);
            far.prefetch(std::slice::from_ref(&(at..ahead)), 0, Box::new(|| {}));
        }
        let bytes = &mut bytes[..usize::try_from(now).unwrap_or(0)];
        file.read_exact_at(bytes, at)?;
        to.write_all(bytes).map_err(Error::from)?;
        at = at.saturating_add(now);
        advance(now);
    }
    Ok(())
}
