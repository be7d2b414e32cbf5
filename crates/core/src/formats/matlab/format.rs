//! MATLAB 7.3 as a format, which is only read.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use super::directory::StructDirectory;
use super::position::Place;
use super::{NAME, demo, recognition};
use crate::dataset::opened::OpenStore;
use crate::formats::demo::write_with;
use crate::store::format::{Abilities, Format, Source};
use crate::tree::Directory;
use npyfs_base::error::Result;

/// Files that MATLAB writes as version 7.3.
pub struct Matlab;

impl Format for Matlab {
    fn name(&self) -> &'static str {
        NAME
    }

    fn root(&self, store: &Arc<OpenStore>) -> Result<Option<Arc<dyn Directory>>> {
        if !recognition::is_matlab(store)? {
            return Ok(None);
        }
        let root = StructDirectory::new(Arc::new(Place::root(store)));
        Ok(Some(Arc::new(root)))
    }

    fn demonstrate(&self, dir: &Path, _program: Option<&Path>) -> Result<Vec<(PathBuf, bool)>> {
        Ok(vec![write_with(dir.join("session.mat"), demo::write)?])
    }

    fn abilities(&self) -> Abilities<'_> {
        Abilities {
            source: self,
            ..Abilities::default()
        }
    }
}

impl Source for Matlab {
    fn repeats(&self, _dir: &dyn Directory, shown: &[u8], _stacked: bool) -> Result<bool> {
        // The archive of a sparse matrix.
        Ok(shown.ends_with(b".npz"))
    }

    fn is_mark(&self, attribute: &[u8]) -> bool {
        // The last are hdf5storage's.
        let marks: [&[u8]; 3] = [b"MATLAB_", b"H5PATH", b"Python."];
        marks.iter().any(|mark| attribute.starts_with(mark))
    }
}
