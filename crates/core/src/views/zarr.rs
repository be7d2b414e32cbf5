//! A store as Zarr groups and arrays.
//!
//! Groups are directories, arrays are directories of chunk files, and every chunk file is a decoded chunk of the
//! dataset. Names are those of the links, not escaped. Listing a group asks for nothing about its arrays: an array is
//! described when its directory is looked into, or when the metadata of the whole store are wanted.

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

/// The state that all groups and arrays of a view share.
struct View {
    /// The root of the underlying tree.
    root: Arc<dyn Directory>,
    version: Version,
    context: Arc<Context>,
}

#[cfg(test)]
mod tests;
