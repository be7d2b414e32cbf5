//! Datasets that are made of pieces of others, and the groups that contain them. Elements pass through a bounded
//! window.

use super::{copy_attributes, open_object};
use crate::ffi::{self, Failure, Id};
use npyfs_hdf5::protocol::{ObjectPath, Piece, SourceObject};

/// The outcome of a step: refused, or a failure of the whole file.
type Done = Result<Result<(), String>, Failure>;

/// Makes a group with the attributes of another group, and sets some of them.
pub(super) fn group(
    target: &Id,
    like: Option<&SourceObject>,
    path: &ObjectPath,
    marks: &[(String, i64)],
) -> Done {
    let old = match like.map(open_object).transpose() {
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
    let old = match open_object(like) {
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
        let source = match piece.from.as_ref().map(open_object).transpose() {
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
