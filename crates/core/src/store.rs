//! What a kind of store is to everything else: the contract that formats are written against.
//!
//! A format recognises its stores and shows them as directories (`format`), says what a write becomes (`encode`,
//! `object`) and builds new stores (`format/builder`). A writable mount stores through `target`. Formats stand above
//! this folder and checkouts beside them: neither knows the other. Nothing here knows a layer, a commit or a kernel.

pub mod against;
pub mod attribute;
pub mod base;
pub mod chunked;
pub mod compression;
pub mod encode;
pub mod format;
pub mod new_store;
pub mod object;
pub mod part;
pub mod staging;
pub mod table;
pub mod target;

use std::path::Path;

/// Ending of the name of the directory beside a store that holds its checkouts.
pub const CHECKOUTS_SUFFIX: &str = ".checkouts";

/// Name of the lock in a directory of checkouts.
pub const CHECKOUTS_LOCK: &str = ".lock";

/// Returns whether a directory holds the checkouts of a store: it is no part of a mounted directory of stores.
/// In a bucket the name alone says so, as it does of stores there.
pub fn is_checkouts(dir: &Path) -> bool {
    let name = dir.as_os_str().as_encoded_bytes();
    name.ends_with(CHECKOUTS_SUFFIX.as_bytes()) && dir.join(CHECKOUTS_LOCK).is_file()
}
