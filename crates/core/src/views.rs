//! The same store under the names that other programs expect, with the same contents behind them.
//!
//! A view is a tree made of the tree of a mount: what that shows, views show as it is now. Nothing is converted or
//! kept, and nothing can be written. What would come back wrong is left out, with the reason.

mod arrow;
mod daf;
mod joined;
mod unfit;
mod verdicts;
mod zarr;

use std::sync::Arc;

use crate::dataset::context::Context;
use crate::store::format::Registry;
use crate::tree::Directory;
use npyfs_base::error::Result;
use npyfs_base::options::View;

/// Refuses a join along a dimension that there is not, and where `strict` says so one that leaves something out.
pub fn check_join(root: &Arc<dyn Directory>, context: &Arc<Context>) -> Result<()> {
    match &context.options.join {
        Some(along) => joined::check(root, along, context),
        None => Ok(()),
    }
}

/// Returns the root of a view of a tree.
pub fn open(
    view: View,
    root: &Arc<dyn Directory>,
    context: &Arc<Context>,
    formats: &Registry,
) -> Arc<dyn Directory> {
    let version = match view {
        View::Zarr => zarr::Version::V2,
        View::Zarr3 => zarr::Version::V3,
        View::Daf => return daf::open(root, context),
        View::Arrow => return arrow::open(root, context, formats),
    };
    match &context.options.join {
        Some(along) => zarr::open(&joined::open(root, along, context), version, context),
        None => zarr::open(root, version, context),
    }
}
