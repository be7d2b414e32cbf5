//! Copying a remote file to this machine.

use std::fs::File;
use std::io::Write;

use crate::file::StoreFile;
use npyfs_base::error::{Error, Result};

/// Bytes that are copied at once.
const BLOCK: u64 = 8 << 20;

/// Blocks that are fetched ahead while one is written.
const AHEAD: u64 = 8;

/// Copies a file with several requests in flight. `advance` is called with the bytes done so far.
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
