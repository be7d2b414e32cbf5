//! The same store under the names that other programs expect, with the same contents behind them.
//!
//! A view is a tree made of the tree of a mount: what that shows, views show as it is now. Nothing is converted or kept, and nothing
//! can be written. What would come back wrong is left out, with the reason.

pub mod daf;
pub mod zarr;

use std::sync::Arc;

use crate::dataset::context::Context;
use crate::options::View;
use crate::tree::Directory;

/// Returns the root of a view of a tree.
pub fn open(view: View, root: &Arc<dyn Directory>, context: &Arc<Context>) -> Arc<dyn Directory> {
    match view {
        View::Zarr => zarr::open(root, zarr::Version::V2, context),
        View::Zarr3 => zarr::open(root, zarr::Version::V3, context),
        View::Daf => daf::open(root, context),
    }
}
