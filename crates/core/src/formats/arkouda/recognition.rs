//! Recognizes HDF5 files that were written by Arkouda.
//!
//! A file is Arkouda's if one of these holds, checked in this order, unless its root group has a `__daf__` (a daf
//! store):
//! 1. the root group has an integer attribute `File_Format` (file version 2.0);
//! 2. a member of the root group has an integer attribute `ObjType` (the first 256 by name are examined);
//! 3. the root group has a group `_arkouda_metadata` with an attribute `arkouda_version` (file version 1.0);
//! 4. the file is called `..._LOCALE<number>`, and the root group holds nothing but 1-D arrays of numbers
//!    and groups of `values` (1-D, bytes) and optionally `segments` (1-D, integers) (before 1.0).
//!
//! So a group with `values` in it is not text for that reason alone.

use super::NAME;
use super::kind::is_text;
use super::marks::{METADATA, Marks, NAMES};
use super::object::{Object, What, is_vector};
use super::set::PARTS;
use crate::dataset::opened::OpenStore;
use crate::formats::daf;
use npyfs_base::error::{Error, Result};
use npyfs_base::npy::dtype::Kind;
use npyfs_hdf5::H5Error;

/// The number of members of the root group that are examined.
const LOOKED_AT: usize = 256;

const NUMBERS: [Kind; 4] = [Kind::Int, Kind::Uint, Kind::Float, Kind::Bool];

/// Returns whether a file is shown in Arkouda's format.
pub fn is_arkouda(store: &OpenStore) -> Result<bool> {
    if let Some(kind) = &store.context.options.kind {
        return Ok(kind == NAME);
    }
    let file = &store.file;
    let scan = |depth| {
        let h5 = &store.context.h5;
        match h5.scan(file, store.root, &NAMES, (LOOKED_AT, depth), Object::new) {
            Ok(scan) => Ok(Some(scan)),
            // Listing the group reports the damage.
            Err(H5Error::Damaged(_)) => Ok(None),
            Err(e) => Err(Error::from(e)),
        }
    };
    let name = store.file.path.file_name();
    let has_locale = name.is_some_and(|name| PARTS.parse(name.as_encoded_bytes()).is_some());
    let Some(scan) = scan(usize::from(has_locale))? else {
        return Ok(false);
    };
    let members = scan.members;
    if members.iter().any(|(name, _)| name == daf::MARK) {
        return Ok(false);
    }
    if Marks::of(&scan.attributes).file_format.is_some() {
        return Ok(true);
    }
    let is_whole = scan.total <= LOOKED_AT && scan.damage.is_none();
    let marked = members.iter().any(|(name, member)| {
        matches!(member.marks.object_type, Some(Ok(_)))
            || (name == METADATA && member.is_group() && member.marks.version.is_some())
    });
    let legacy = || {
        is_whole
            && !members.is_empty()
            && members.iter().all(|(_, member)| match &member.what {
                What::Dataset(dataset) => is_vector(dataset, &NUMBERS),
                What::Group { .. } => is_text(member),
                What::Foreign(_) | What::Damaged(_) => false,
            })
    };
    Ok(marked || (has_locale && legacy()))
}
