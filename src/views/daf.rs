//! A store as the files that daf's own reader expects.
//!
//! Source: tanaylab daf 0.2.0-dev.1, `storage/files.py` and `storage/memory_mapping.py`. The directory of a store holds exactly what that
//! reads: a file too many, such as one along an axis that is not there, and daf opens nothing. So whatever daf could not read, or would
//! read as something else, is left out, with the reason. Numbers are the bytes of the `.npy` files less their headers; only CSV and YAML are made.

mod array;
mod csv;
mod datum;
mod directory;
mod file;
mod names;
mod sparse;
mod texts;
mod unfit;
mod yaml;

use std::sync::Arc;

use crate::dataset::context::Context;
use crate::tree::Directory;

/// Returns the root of the view of a tree.
pub fn open(root: &Arc<dyn Directory>, context: &Arc<Context>) -> Arc<dyn Directory> {
    Arc::new(directory::DafDirectory::root(root, context))
}
