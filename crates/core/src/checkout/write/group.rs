//! The group of an object to be stored, as seen by the plan of its format.

use std::sync::Arc;

use super::LayerTarget;
use crate::store::base::Base;
use crate::store::object::NewFile;
use crate::tree::name::visible_with;
use crate::tree::{Directory, Node};
use npyfs_base::error::Result;
use npyfs_base::npy;
use npyfs_base::npy::dtype;
use npyfs_base::npy::dtype::DType;
use npyfs_hdf5::NewElement;
use npyfs_io::content::Content;
use npyfs_io::content::scratch::Scratch;

/// The group of an object to be stored.
pub(super) struct Group<'a> {
    pub target: &'a LayerTarget,
    pub dir: Option<Arc<dyn Directory>>,
    /// The path of its store in the mount.
    pub store: Vec<Vec<u8>>,
}

impl Group<'_> {
    /// Returns the node at a path of names below a directory.
    fn find(
        &self,
        from: Option<Arc<dyn Directory>>,
        path: &[String],
        suffix: &str,
    ) -> Result<Option<Node>> {
        let sep = self.target.context.options.sep;
        let Some(mut dir) = from else {
            return Ok(None);
        };
        let Some((last, above)) = path.split_last() else {
            return Ok(Some(Node::Directory(dir)));
        };
        for name in above {
            match dir.lookup(&visible_with(name.as_bytes(), "", sep))? {
                Some(Node::Directory(below)) => dir = below,
                _ => return Ok(None),
            }
        }
        dir.lookup(&visible_with(last.as_bytes(), suffix, sep))
    }
}

impl Base for Group<'_> {
    fn npy(&self, name: &str) -> Result<Option<Arc<dyn Content>>> {
        let sep = self.target.context.options.sep;
        let shown = visible_with(name.as_bytes(), ".npy", sep);
        let Some(dir) = &self.dir else {
            return Ok(None);
        };
        match dir.lookup(&shown)? {
            Some(Node::File(file)) => Ok(Some(file.open()?)),
            _ => Ok(None),
        }
    }

    fn node(&self, path: &[String], suffix: &str) -> Result<Option<Node>> {
        match path {
            [] => Ok(None),
            path => self.find(self.dir.clone(), path, suffix),
        }
    }

    fn in_store(&self, path: &[String], suffix: &str) -> Result<Option<Node>> {
        self.find(self.target.directory(&self.store)?, path, suffix)
    }

    fn scratch(&self) -> Scratch {
        self.target.layer().scratch()
    }
}

/// Returns the size in the mount of the dataset at the path of an object, if its elements are shown as stored.
pub(super) fn shown_size(new: &NewFile, path: &[String]) -> Option<u64> {
    let mut datasets = new.outline.datasets.iter();
    let dataset = datasets.find(|dataset| dataset.path == path)?;
    let NewElement::Array(dtype) = &dataset.element else {
        return None;
    };
    let DType::Scalar { kind, size, .. } = dtype else {
        return None;
    };
    let same = match kind {
        dtype::Kind::Bool | dtype::Kind::Int | dtype::Kind::Uint => true,
        dtype::Kind::Float => *size <= 8,
        dtype::Kind::Complex => *size <= 16,
        _ => false,
    };
    let header = npy::header(dtype, &dataset.shape).len() as u64;
    let payload = npy::payload_len(dtype, &dataset.shape)?;
    same.then(|| payload.checked_add(header)).flatten()
}
