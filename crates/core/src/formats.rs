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
mod pandas;
pub mod plain;
pub mod remote;
pub mod sparse;
pub mod store_path;

use std::path::Path;
use std::sync::Arc;

use crate::dataset::context::Context;
use crate::store::format::{Format, Registry, StoreRoot};
use crate::tree::Directory;
use npyfs_base::error::{Error, ErrorKind, Result};
use npyfs_io::file;
use npyfs_io::remote::Address;

/// Ends of names of HDF5 files, in lower case: of HDF5's own programs, netCDF-4, MATLAB, AnnData and MuData, loom,
/// NeXus, and of satellites. Formats have some more.
const ENDINGS: [&str; 16] = [
    ".h5", ".hdf5", ".hdf", ".he5", ".h5ad", ".h5mu", ".h5df", ".h5fs", ".nc", ".nc4", ".cdf",
    ".mat", ".loom", ".nxs", ".nx5", ".nwb",
];

/// The files of which a Zarr store has one in its directory.
const ZARR: [&str; 3] = [".zgroup", ".zarray", "zarr.json"];

/// Returns whether a name is one of a store that is one HDF5 file: such a file is looked into, and is damage if it is
/// none.
pub(crate) fn is_called_as_a_store(name: &str, formats: &Registry) -> bool {
    let name = name.to_ascii_lowercase();
    let own = formats.iter().flat_map(|format| format.endings());
    let mut endings = ENDINGS.iter().chain(own);
    endings.any(|ending| name.len() > ending.len() && name.ends_with(ending))
}

/// Says what something without a signature of HDF5 is, from how it begins.
pub(crate) fn what_begins_so(head: &[u8]) -> &'static str {
    let text = head.trim_ascii_start().to_ascii_lowercase();
    match head {
        [] => "an empty file",
        [b'C', b'D', b'F', 1, ..] => {
            "a file of netCDF's classic format (CDF-1), which is not HDF5 (nccopy -k nc4 converts it)"
        }
        [b'C', b'D', b'F', 2, ..] => {
            "a file of netCDF's classic format (CDF-2), which is not HDF5 (nccopy -k nc4 converts it)"
        }
        [b'C', b'D', b'F', 5, ..] => {
            "a file of netCDF's classic format (CDF-5), which is not HDF5 (nccopy -k nc4 converts it)"
        }
        _ if head.starts_with(b"PAR1") => "a Parquet file, not an HDF5 file",
        _ if head.starts_with(b"ARROW1") => "an Arrow file, not an HDF5 file",
        _ if head.starts_with(b"GRIB") => "a GRIB file, not an HDF5 file",
        _ if head.starts_with(b"SIMPLE  =") => "a FITS file, not an HDF5 file",
        _ if head.starts_with(b"II*\0") || head.starts_with(b"MM\0*") => {
            "a TIFF file, not an HDF5 file"
        }
        _ if head.starts_with(b"\x93NUMPY") => "an .npy file, not an HDF5 file",
        _ if head.starts_with(b"PK\x03\x04") => "a zip archive, not an HDF5 file (unzip it)",
        _ if head.starts_with(b"\x1f\x8b") => "compressed with gzip, not an HDF5 file (gunzip it)",
        [0x0e, 0x03, 0x13, 0x01, ..] => "an HDF4 file, which is not HDF5",
        _ if head.starts_with(b"MATLAB 5") => {
            "a MATLAB file of before version 7.3, which is not HDF5 (save it with -v7.3)"
        }
        _ if text.starts_with(b"<!doctype") || text.starts_with(b"<html") => {
            "a web page, not an HDF5 file"
        }
        _ => "not an HDF5 file: it has no signature",
    }
}

/// Returns all formats: the one list of them. A new format is a line here, and its folder.
pub fn registry() -> Registry {
    Registry::new(
        [
            Arc::new(hangar::Hangar) as Arc<dyn Format>,
            Arc::new(arkouda::Arkouda),
            Arc::new(daf::Daf),
            Arc::new(matlab::Matlab),
            Arc::new(anndata::AnnData),
        ],
        Arc::new(plain::Plain(&[&daf::Groups, &anndata::Groups])),
    )
}

/// Returns the formats that stores can be converted to.
pub fn destinations() -> Vec<Arc<dyn Format>> {
    let registry = registry();
    let stores = registry.creatable().rev().cloned();
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
    let wanted = formats.wanted(context.options.kind.as_deref());
    for stores in wanted.filter_map(|format| format.directories()) {
        if let Some(root) = stores.open(path, context)? {
            return Ok(root);
        }
    }
    if meta.is_dir() {
        let holds = folder::holds_a_store(path, formats);
        if !holds.map_err(|e| about(e.into()))? && !may_be_empty() {
            let is_zarr = ZARR.iter().any(|name| path.join(name).is_file());
            let why = match is_zarr {
                true => "a Zarr store: npyfs reads HDF5, which it shows as Zarr",
                false => "no HDF5 file in this directory or below it",
            };
            return Err(about(Error::damaged(why)));
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
            None => folder::what_it_is(path).map_err(|e| about(e.into()))?,
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
