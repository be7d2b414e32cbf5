//! A view of a store as the files that daf's own reader expects.
//!
//! Source: tanaylab daf 0.2.0-dev.1, `storage/files.py` and `storage/memory_mapping.py`. The directory of a store
//! contains exactly what daf reads. With a superfluous file, such as one along an axis that does not exist, daf opens
//! nothing. So objects that daf could not read, or would misread, are left out with the reason. Numbers are the bytes
//! of the `.npy` files without their headers; only CSV and YAML are generated.

mod array;
mod csv;
mod datum;
mod directory;
mod file;
mod names;
mod sparse;
mod texts;
mod yaml;

use std::sync::Arc;

use crate::dataset::context::Context;
use crate::tree::Directory;

/// Returns the root of the view of a tree.
pub fn open(root: &Arc<dyn Directory>, context: &Arc<Context>) -> Arc<dyn Directory> {
    Arc::new(directory::DafDirectory::root(root, context))
}
