//! A store as groups and arrays of Zarr.
//!
//! Groups are directories, arrays are directories of chunk files, and every chunk file is a chunk of the dataset, decoded. Names are
//! those of the links, not escaped. Listing a group asks for nothing of its arrays: what an array is, is asked when its directory is
//! looked into, or when the metadata of a whole store are wanted.

mod array;
mod chunk;
mod consolidated;
mod document;
mod group;
mod key;
pub mod metadata;

use std::sync::Arc;

use crate::dataset::context::Context;
use crate::tree::Directory;

use group::GroupView;

/// A version of Zarr.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Version {
    /// `.zgroup`, `.zarray`, `.zattrs`.
    V2,
    /// `zarr.json`.
    V3,
}

/// Returns the root of the view of a tree.
pub fn open(
    root: &Arc<dyn Directory>,
    version: Version,
    context: &Arc<Context>,
) -> Arc<dyn Directory> {
    let view = Arc::new(View {
        root: root.clone(),
        version,
        context: context.clone(),
    });
    Arc::new(GroupView::root(view))
}

/// A view, as all of its groups and arrays know it.
struct View {
    /// The root of the tree that is viewed.
    root: Arc<dyn Directory>,
    version: Version,
    context: Arc<Context>,
}

#[cfg(test)]
mod tests;
