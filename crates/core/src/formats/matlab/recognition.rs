//! Recognizes files that MATLAB wrote, or that were written for MATLAB.
//!
//! Either of these suffices: the file begins with `MATLAB 7.3 MAT-file`, or a member of the root group has a text
//! attribute `MATLAB_class` (the first 16 by name are examined).

use super::{NAME, value};
use crate::dataset::opened::OpenStore;
use npyfs_base::error::{Error, Result};
use npyfs_hdf5::H5Error;

/// The beginning of the user block.
const SIGNATURE: &[u8; 19] = b"MATLAB 7.3 MAT-file";

/// The bytes of the user block that are text for people.
const TEXT: usize = 116;

/// The number of members of the root group that are examined.
const LOOKED_AT: usize = 16;

/// Returns the text of the user block; `None` if the file is not MATLAB's.
pub(super) fn header(store: &OpenStore) -> Result<Option<String>> {
    if store.file.identity.size < TEXT as u64 {
        return Ok(None);
    }
    // If a file consists of several members, the first may contain only a superblock.
    let mut signature = [0; SIGNATURE.len()];
    store.file.read_exact_at(&mut signature, 0)?;
    if &signature != SIGNATURE {
        return Ok(None);
    }
    let mut text = [0; TEXT];
    store.file.read_exact_at(&mut text, 0)?;
    let text = String::from_utf8_lossy(&text);
    Ok(Some(text.trim_end_matches([' ', '\0']).to_owned()))
}

/// Returns whether a file is shown in MATLAB's format.
pub(super) fn is_matlab(store: &OpenStore) -> Result<bool> {
    if let Some(kind) = &store.context.options.kind {
        return Ok(kind == NAME);
    }
    if header(store)?.is_some() {
        return Ok(true);
    }
    let h5 = &store.context.h5;
    let is_marked = |member: npyfs_hdf5::ScannedMember| value::class(&member.attributes).is_some();
    match h5.scan(
        &store.file,
        store.root,
        &[value::CLASS],
        (LOOKED_AT, 0),
        is_marked,
    ) {
        Ok(scan) => Ok(scan.members.contains(&true)),
        // Listing the group reports the damage.
        Err(H5Error::Damaged(_)) => Ok(false),
        Err(e) => Err(Error::from(e)),
    }
}
