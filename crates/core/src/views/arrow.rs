//! A view of the tables of a store as files of Arrow's IPC format.
//!
//! Source: Arrow's columnar format 1.5, "IPC File Format". A file is made of what is known without reading elements: the
//! schema, the place and the length of every buffer. The buffers are contents over the arrays of the store. Readers map such
//! files and trust them, so nothing in one may be out of bounds: what could be is read once (codes, masks, offsets, the
//! lengths of texts), and a column that does not fit is left out with the reason.

mod batches;
mod body;
mod column;
mod directory;
mod elements;
mod file;
mod layout;
mod message;
mod metadata;
mod survey;
mod table;
mod text;

use std::sync::Arc;

use crate::dataset::context::Context;
use crate::store::format::Registry;
use crate::tree::Directory;

/// Returns the root of the view of a tree.
pub(super) fn open(
    root: &Arc<dyn Directory>,
    context: &Arc<Context>,
    formats: &Registry,
) -> Arc<dyn Directory> {
    Arc::new(directory::ArrowDirectory::root(root, context, formats))
}
