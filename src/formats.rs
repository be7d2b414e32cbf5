//! Stores: what an HDF5 file or a directory of them looks like as files.

pub mod anndata;
pub mod arkouda;
pub mod daf;
pub mod demo;
pub mod folder;
pub mod hangar;
pub mod matlab;
pub mod npy;
pub mod npz;
pub mod place;
pub mod plain;
pub mod remote;
pub mod sparse;

use std::path::Path;
use std::sync::Arc;

use crate::checkout::format::{Format, Registry, StoreRoot};
use crate::dataset::context::Context;
use crate::error::{Error, ErrorKind, Result};
use crate::io::file;
use crate::io::remote::Address;
use crate::tree::Directory;

/// Returns all formats: the one list of them. A new format is a line here, and its folder.
pub fn registry() -> Registry {
    Registry::new(
        [
            Arc::new(hangar::format::Hangar) as Arc<dyn Format>,
            Arc::new(arkouda::format::Arkouda),
            Arc::new(daf::format::Daf),
            Arc::new(matlab::format::Matlab),
            Arc::new(anndata::format::AnnData),
        ],
        Arc::new(plain::format::Plain(&[&daf::Groups, &anndata::Groups])),
    )
}

/// Returns the formats that stores can be converted to.
pub fn destinations() -> Vec<Arc<dyn Format>> {
    let registry = registry();
    let stores = registry.made().rev().cloned();
    stores.chain([Arc::new(npy::Npy) as _]).collect()
}

/// Opens the root directory of a store: a file, or a directory with stores in it.
///
/// A file is opened, so that what is no HDF5 is refused here; stores in a directory are opened when
/// somebody looks into them. A directory without any is taken if `may_be_empty` says so.
pub fn open(
    path: &Path,
    context: &Arc<Context>,
    formats: &Registry,
    may_be_empty: impl FnOnce() -> bool,
) -> Result<Arc<dyn Directory>> {
    let about = |e: Error| e.about(path.display());
    if let Some(address) = Address::parse(path) {
        let address = address.map_err(|why| Error::new(ErrorKind::Os(libc::EINVAL), why))?;
        return remote::open(&address, context, formats);
    }
    let meta = std::fs::metadata(path).map_err(|e| about(e.into()))?;
    for format in formats.wanted(context.options.kind.as_deref()) {
        if let Some(root) = format.open(path, context)? {
            return Ok(root);
        }
    }
    if meta.is_dir() {
        let holds = folder::holds_a_store(path, formats);
        if !holds.map_err(|e| about(e.into()))? && !may_be_empty() {
            return Err(about(Error::damaged(
                "no HDF5 file in this directory or below it",
            )));
        }
        return Ok(Arc::new(folder::Folder::new(path, path, context, formats)));
    }
    if !meta.is_file() {
        return Err(about(Error::damaged("neither a file nor a directory")));
    }
    let file = std::fs::File::open(path).map_err(|e| about(e.into()))?;
    if !file::has_hdf5_signature(&file).map_err(|e| about(e.into()))? {
        let why = match file::members::first_member(path) {
            Some(first) => format!(
                "a member of an HDF5 file: name its first, {}",
                first.display()
            ),
            None => "not an HDF5 file".to_owned(),
        };
        return Err(about(Error::new(ErrorKind::Damaged, why)));
    }
    if let Some(set) = folder::set_of(path, context, formats)? {
        set.current()?;
        return Ok(Arc::new(set));
    }
    let store = StoreRoot::new(path, context, formats);
    store.current()?;
    Ok(Arc::new(store))
}
