//! Directories of `.npy` files in the layout in which npyfs shows stores, but on disk: sources and targets of
//! conversions.
//!
//! They are not mounted, as they are already directories, so the format is in no registry.

mod builder;
mod directory;

use std::path::Path;
use std::sync::Arc;

use crate::dataset::opened::OpenStore;
use crate::store::format::builder::{Builder, Construction};
use crate::store::format::{Abilities, Accepted, Format, Making};
use crate::tree::Directory;
use npyfs_base::error::Result;

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

    fn root(&self, _store: &Arc<OpenStore>) -> Result<Option<Arc<dyn Directory>>> {
        Ok(None)
    }

    fn abilities(&self) -> Abilities<'_> {
        Abilities {
            making: Some(self),
            ..Abilities::default()
        }
    }
}

impl Making for Npy {
    fn build(&self, construction: &Construction<'_>) -> Result<Box<dyn Builder>> {
        Ok(Box::new(NpyBuilder::new(construction)?))
    }

    fn accepts(&self) -> Accepted {
        Accepted {
            suffixes: &[".npy", ".txt", ".bin"],
            text_files: false,
            samples: false,
        }
    }
}

/// Opens a directory of arrays.
pub fn open(path: &Path) -> Result<Arc<dyn Directory>> {
    Ok(Arc::new(NpyDirectory::open(path)?))
}
