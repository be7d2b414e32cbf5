//! Datasets that are made of pieces of others, and the groups that they lie in. Elements pass through a window.

use serde::{Deserialize, Serialize};

use super::{ObjectPath, SourceFile, copy_attributes};
use crate::hdf5::ffi::{self, Failure, Id};

/// An object of a file that is copied from, by its address.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SourceObject {
    /// The file.
    pub file: SourceFile,
    /// The address of the object.
    pub addr: u64,
}

impl SourceObject {
    pub(in crate::hdf5) fn open(&self) -> Result<Id, Failure> {
        ffi::open_object(&self.file.open()?, self.addr)
    }
}

/// A run of elements of a dataset of rank 1.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Piece {
    /// The dataset; `None`: zeros.
    pub from: Option<SourceObject>,
    /// The first element.
    pub start: u64,
    /// The number of elements.
    pub count: u64,
    /// A number that is added to each.
    pub add: i64,
}

/// The outcome of a step: refused, or a failure of the whole file.
type Done = Result<Result<(), String>, Failure>;

/// Makes a group with the attributes of another, and sets some of them.
pub(super) fn group(
    target: &Id,
    like: Option<&SourceObject>,
    path: &ObjectPath,
    marks: &[(String, i64)],
) -> Done {
    let old = match like.map(SourceObject::open).transpose() {
        Ok(old) => old,
        Err(e) => return Ok(Err(e.0)),
    };
    let new = match path.is_empty() {
        true => ffi::open_at(target, &[])?,
        false => ffi::require_group(target, &path.join(&b'/'))?,
    };
    if let Some(old) = old {
        copy_attributes(&old, &new)?;
    }
    for (name, value) in marks {
        ffi::set_int_attribute(&new, name.as_bytes(), *value)?;
    }
    Ok(Ok(()))
}

/// Makes a dataset of pieces.
pub(super) fn join(target: &Id, like: &SourceObject, path: &ObjectPath, pieces: &[Piece]) -> Done {
    let old = match like.open() {
        Ok(old) if matches!(ffi::kind(&old), ffi::ObjectKind::Dataset) => old,
        Ok(_) => return Ok(Err("not a dataset".into())),
        Err(e) => return Ok(Err(e.0)),
    };
    let rows = pieces
        .iter()
        .try_fold(0_u64, |rows, piece| rows.checked_add(piece.count));
    let Some(rows) = rows else {
        return Ok(Err("too many elements".into()));
    };
    let ty = ffi::dataset_type(&old)?;
    let new = ffi::contiguous_dataset(target, &path.join(&b'/'), &ty, &[rows])?;
    copy_attributes(&old, &new)?;
    let mut at = 0;
    for piece in pieces {
        let source = match piece.from.as_ref().map(SourceObject::open).transpose() {
            Ok(source) => source,
            Err(e) => return Ok(Err(e.0)),
        };
        let rows = ffi::Rows {
            start: piece.start,
            at,
            count: piece.count,
        };
        ffi::copy_rows(source.as_ref(), &new, rows, piece.add)?;
        at += piece.count;
    }
    Ok(Ok(()))
}
