//! MATLAB's files of version 7.3: HDF5 with attributes that record the MATLAB class of each object. They are read-only.
//!
//! Source: files written by MATLAB, and their interpretation by `mat73` and `hdf5storage`. A file has a user block of
//! 512 bytes that begins with `MATLAB 7.3 MAT-file`. `MATLAB_class` names the class of a variable; arrays are stored
//! with their dimensions reversed, so that the stored bytes are the array in Fortran order. An empty array
//! (`MATLAB_empty`) is stored as its dimensions. A struct is a group; a cell array, and each field of an array of
//! structs, is a dataset of references into the group `#refs#`. A sparse matrix (`MATLAB_sparse`: its number of rows)
//! is a group of `data`, `ir` and `jc`, compressed by columns. Objects of other classes are opaque: only MATLAB knows
//! their content.
//!
//! A file is MATLAB's, or was written for MATLAB, if it begins with `MATLAB 7.3 MAT-file`, or if a member of the root
//! group has a text attribute `MATLAB_class` (the first 16 by name are examined). Either suffices.
//!
//! `value` classifies an object by its HDF5 type and four attributes. A struct is scanned as a group. A cell array asks
//! a worker once, in parts, for the targets of its references, and stores an address and the number of a form for each
//! cell; nodes are created on demand. The elements of a matrix are read like those of plain HDF5, under a header in
//! Fortran order.

mod array;
mod demo;
mod directory;
mod sparse;
mod value;

use std::path::{Path, PathBuf};
use std::sync::Arc;

use self::directory::{Place, StructDirectory};
use crate::dataset::opened::OpenStore;
use crate::formats::demo::write_with;
use crate::store::format::{Abilities, Format, Source};
use crate::tree::Directory;
use npyfs_base::error::{Error, Result};
use npyfs_hdf5::H5Error;

/// Name of the format.
pub const NAME: &str = "matlab";

/// Files that MATLAB writes as version 7.3.
pub struct Matlab;

impl Format for Matlab {
    fn name(&self) -> &'static str {
        NAME
    }

    fn root(&self, store: &Arc<OpenStore>) -> Result<Option<Arc<dyn Directory>>> {
        if !is_matlab(store)? {
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

/// The beginning of the user block.
const SIGNATURE: &[u8; 19] = b"MATLAB 7.3 MAT-file";

/// The bytes of the user block that are text for people.
const TEXT_LEN: usize = 116;

/// The number of members of the root group that are examined.
const LOOKED_AT: usize = 16;

/// Returns the text of the user block; `None` if the file is not MATLAB's.
fn user_block_text(store: &OpenStore) -> Result<Option<String>> {
    if store.file.identity.size < TEXT_LEN as u64 {
        return Ok(None);
    }
    // If a file consists of several members, the first may contain only a superblock.
    let mut signature = [0; SIGNATURE.len()];
    store.file.read_exact_at(&mut signature, 0)?;
    if &signature != SIGNATURE {
        return Ok(None);
    }
    let mut text = [0; TEXT_LEN];
    store.file.read_exact_at(&mut text, 0)?;
    let text = String::from_utf8_lossy(&text);
    Ok(Some(text.trim_end_matches([' ', '\0']).to_owned()))
}

/// Returns whether a file is shown in MATLAB's format.
fn is_matlab(store: &OpenStore) -> Result<bool> {
    if let Some(kind) = &store.context.options.kind {
        return Ok(kind == NAME);
    }
    if user_block_text(store)?.is_some() {
        return Ok(true);
    }
    let h5 = &store.context.h5;
    let is_marked = |member: npyfs_hdf5::ScannedMember| value::class(&member.attributes).is_some();
    match h5.scan(
        &store.file,
        store.root,
        &[value::CLASS],
        (LOOKED_AT, 0),
        is_marked,
    ) {
        Ok(scan) => Ok(scan.members.contains(&true)),
        // Listing the group reports the damage.
        Err(H5Error::Damaged(_)) => Ok(false),
        Err(e) => Err(Error::from(e)),
    }
}
