//! The header of an `.npy` file, read from its content.

use crate::content::Content;
use npyfs_base::error::Result;
use npyfs_base::npy::parse::{self, Header, LONGEST_HEADER, NpyError};

/// Returns the header of an `.npy` file; fails unless the file is complete.
pub fn header(file: &dyn Content) -> Result<Header> {
    let most = usize::try_from(file.len()).unwrap_or(usize::MAX);
    // Most headers end within a page.
    for size in [most.min(4096), most.min(LONGEST_HEADER)] {
        let mut head = vec![0; size];
        file.read_at(0, &mut head)?;
        match parse::parse(&head) {
            Err(NpyError::HeaderTruncated) if size < most.min(LONGEST_HEADER) => {}
            parsed => {
                let header = parsed?;
                header.check_len(file.len())?;
                return Ok(header);
            }
        }
    }
    Err(NpyError::HeaderTruncated.into())
}
