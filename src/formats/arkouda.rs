//! Arkouda's objects: what an HDF5 file, or one file per locale, looks like as arrays.
//!
//! One object, one name: its datasets are joined over the files, its text is laid out at a fixed width, its
//! attributes say how numbers are meant. Nothing is assembled in memory: a joined array is read from the
//! chunks of the parts. What is wrong with one object costs that object.

mod array;
pub mod check;
pub(crate) mod demo;
mod directory;
pub mod encode;
mod extent;
pub mod format;
pub mod kind;
mod labels;
mod limbs;
pub mod marks;
mod numbers;
mod object;
mod once;
mod padded;
mod place;
mod recognition;
mod root;
pub mod rules;
mod scan;
mod segments;
mod set;
mod stored;
mod strings;

use std::path::Path;
use std::sync::Arc;

pub use directory::ObjectDirectory;
pub use place::{PartName, Place, leads_out};
pub use recognition::is_arkouda;
pub use root::SetRoot;
pub use set::LocaleSet;

use crate::dataset::context::Context;
use crate::dataset::opened::OpenStore;
use crate::error::Result;

/// Whether the parts at a place are a set: the first of them that can be opened is Arkouda's.
pub fn is_set(context: &Arc<Context>, place: &Place, top: &Path) -> Result<bool> {
    if !context.options.may_be(format::NAME) {
        return Ok(false);
    }
    let parts = place.parts(top, context.options.external)?;
    for path in parts.into_values().flatten().flatten() {
        match OpenStore::open(context, &path) {
            Ok(store) => return is_arkouda(&store),
            Err(e) if e.is_shortage() => return Err(e),
            Err(_) => {}
        }
    }
    Ok(false)
}
