//! Directories of `.npy` files, as npyfs shows stores, but real ones: what stores are made from, and made into.
//!
//! No mount shows them, as they are there already; so they are in no registry.

mod builder;
mod directory;

use std::path::Path;
use std::sync::Arc;

use crate::checkout::builder::{Builder, Construction};
use crate::checkout::encode::{Base, ObjectKey, Plan, unsupported};
use crate::checkout::format::Format;
use crate::checkout::target::Part;
use crate::error::Result;
use crate::tree::Directory;

use builder::NpyBuilder;
pub use directory::{NpyDirectory, holds_arrays};

/// Name of the format.
pub const NAME: &str = "npy";

/// Directories of `.npy` files.
pub struct Npy;

impl Format for Npy {
    fn name(&self) -> &'static str {
        NAME
    }

    fn suffixes(&self) -> &'static [&'static str] {
        &[".npy", ".txt", ".bin"]
    }

    fn plan(&self, _base: &dyn Base, _key: &ObjectKey, _parts: &[Part]) -> Result<Plan> {
        Err(unsupported("a directory of arrays has no checkouts"))
    }

    fn build(&self, construction: &Construction<'_>) -> Result<Box<dyn Builder>> {
        Ok(Box::new(NpyBuilder::new(construction)?))
    }
}

/// Opens a directory of arrays.
pub fn open(path: &Path) -> Result<Arc<dyn Directory>> {
    Ok(Arc::new(NpyDirectory::open(path)?))
}
