//! Datasets of the new file rewritten in another layout, and the file itself rewritten without its unused space.

use super::copy_attributes;
use crate::ffi::{self, Failure, Id, Recoding};
use npyfs_hdf5::protocol::{EditStep, NewForm, ObjectPath, WORKPLACE};

fn recoding<'a>(form: &'a NewForm, from: &'a ObjectPath, to: &'a ObjectPath) -> Recoding<'a> {
    Recoding {
        from,
        to,
        chunk: form.chunk.as_deref(),
        filters: &form.filters,
    }
}

/// Opens the new file for a group of steps; creates it if it is empty.
pub(super) fn open(path: &[u8], is_empty: bool, steps: &[EditStep]) -> Result<Id, Failure> {
    if is_empty {
        let form = steps.iter().find_map(|step| match step {
            EditStep::Gather { form, .. } => Some(*form),
            _ => None,
        });
        return ffi::create_empty(path, &form.unwrap_or_default());
    }
    let is_recent = |step: &EditStep| match step {
        EditStep::Recode { form, .. } | EditStep::Declare { form, .. } => form.recent,
        _ => false,
    };
    ffi::open_to_edit(path, steps.iter().any(is_recent))
}

/// Rewrites a dataset, which is read in blocks.
pub(super) fn recode(
    target: &Id,
    path: &ObjectPath,
    form: &NewForm,
    block: &[u64],
) -> Result<(), Failure> {
    // The other links of the dataset would keep the old one.
    if ffi::object_info(&ffi::open_at(target, path)?)?.links > 1 {
        return Ok(());
    }
    let place = free_workplace(target)?;
    let (old, new) = recoding(form, path, &place).recode(target, block)?;
    copy_attributes(&old, &new)?;
    drop((old, new));
    ffi::unlink(target, path)?;
    ffi::rename(target, &place, path)
}

/// Makes a dataset in the workplace that will replace another one.
pub(super) fn declare(target: &Id, path: &ObjectPath, form: &NewForm) -> Result<(), Failure> {
    let place = free_workplace(target)?;
    let (old, new) = recoding(form, path, &place).declare(target)?;
    copy_attributes(&old, &new)
}

/// Moves the object in the workplace to a path, and replaces the object there.
pub(super) fn replace(target: &Id, path: &ObjectPath) -> Result<(), Failure> {
    ffi::unlink(target, path)?;
    ffi::rename(target, &[WORKPLACE.to_vec()], path)
}

/// Copies all objects of another file.
pub(super) fn gather(target: &Id, source: &Id) -> Result<(), Failure> {
    let place = free_workplace(source)?;
    // A single call copies all objects, so that an object with several links is copied once.
    ffi::copy_object(source, &[], target, &place)?;
    let all = ffi::open_at(target, &place)?;
    let root = ffi::open_at(target, &[])?;
    copy_attributes(&all, &root)?;
    for (name, _) in ffi::links(&all).0 {
        let from = [place.clone(), vec![name.clone()]].concat();
        ffi::rename(target, &from, &[name])?;
    }
    drop(all);
    ffi::unlink(target, &place)
}

/// Returns the path of the workplace, if no object has that name.
pub(super) fn free_workplace(file: &Id) -> Result<ObjectPath, Failure> {
    let place = vec![WORKPLACE.to_vec()];
    match ffi::exists(file, &place)? {
        false => Ok(place),
        true => Err(Failure("an object has the name npyfs_export".into())),
    }
}
