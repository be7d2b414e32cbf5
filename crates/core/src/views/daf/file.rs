//! A file of an object.

use std::sync::Arc;

use serde_json::{Value as Json, json};
use xxhash_rust::xxh3::Xxh3;

use super::datum::{Datum, DatumParts};
use super::names::{Meaning, Suffix, meaning};
use super::yaml;
use crate::tree::VirtualFile;
use npyfs_base::error::Result;
use npyfs_hdf5::Attribute;
use npyfs_io::content::{Content, InMemory};
use npyfs_io::file::Ownership;

/// One of the files of an object.
pub(super) struct DatumFile {
    pub datum: Arc<Datum>,
    pub suffix: Suffix,
}

impl DatumFile {
    /// Returns the files of the store that determine its content, its own first.
    fn sources(&self) -> Vec<Arc<dyn VirtualFile>> {
        let Datum { parts, along, .. } = &*self.datum;
        let mut sources = parts.files();
        if self.suffix == Suffix::Csv {
            sources.extend(along.iter().map(|along| along.file.clone()));
        }
        sources
    }
}

/// Returns a number that identifies the versions of files.
pub(super) fn version<'a>(files: impl IntoIterator<Item = &'a Arc<dyn VirtualFile>>) -> u64 {
    let mut hash = Xxh3::new();
    for file in files {
        hash.update(&file.version().to_le_bytes());
    }
    hash.digest()
}

impl VirtualFile for DatumFile {
    fn ownership(&self) -> Ownership {
        Ownership::joined(self.sources().iter().map(|file| file.ownership()))
    }

    fn size(&self) -> Result<u64> {
        Ok(self.datum.facts.size(self.suffix))
    }

    fn open(&self) -> Result<Arc<dyn Content>> {
        self.datum.open(self.suffix)
    }

    fn version(&self) -> u64 {
        version(&self.sources())
    }

    fn is_current(&self) -> bool {
        self.sources().iter().all(|file| file.is_current())
    }

    fn info(&self) -> Result<Json> {
        let what = match meaning(&self.datum.own) {
            Meaning::Item => "item",
            Meaning::Axis(_) => "axis",
            Meaning::Vector { .. } => "vector",
            Meaning::Matrix { .. } => match self.datum.parts {
                DatumParts::Array(_) => "matrix",
                DatumParts::Sparse(_) => "sparse matrix",
            },
            Meaning::Nothing(_) => "nothing",
        };
        let of = match &self.datum.parts {
            DatumParts::Array(file) => file.info()?,
            DatumParts::Sparse(parts) => json!({
                "data": parts.data.info()?,
                "indices": parts.indices.info()?,
                "indptr": parts.indptr.info()?,
            }),
        };
        Ok(json!({ "kind": "daf", "view": "daf", "datum": what, "name": self.datum.own, "of": of }))
    }

    fn attributes(&self) -> Result<Vec<Attribute>> {
        match &self.datum.parts {
            DatumParts::Array(file) => file.attributes(),
            DatumParts::Sparse(_) => Ok(Vec::new()),
        }
    }

    fn mode(&self) -> u32 {
        0o444
    }
}

/// The file that marks a store.
pub(super) struct MarkFile {
    pub ownership: Ownership,
}

impl VirtualFile for MarkFile {
    fn ownership(&self) -> Ownership {
        self.ownership
    }

    fn size(&self) -> Result<u64> {
        Ok(yaml::MARK.len() as u64)
    }

    fn open(&self) -> Result<Arc<dyn Content>> {
        Ok(Arc::new(InMemory(yaml::MARK.to_vec())))
    }

    fn version(&self) -> u64 {
        0
    }

    fn is_current(&self) -> bool {
        true
    }

    fn info(&self) -> Result<Json> {
        Ok(json!({ "kind": "daf", "view": "daf", "datum": "mark" }))
    }

    fn mode(&self) -> u32 {
        0o444
    }
}
