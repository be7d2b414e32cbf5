//! Plain HDF5: every array is a dataset of its own.

use crate::checkout::encode::array::NpyArray;
use crate::checkout::encode::dataset::add;
use crate::checkout::encode::{Base, ObjectKey, Plan, single, unsupported};
use crate::checkout::object::NewFile;
use crate::checkout::target::Part;
use crate::error::Result;

pub(crate) fn plan(base: &dyn Base, key: &ObjectKey, parts: &[Part]) -> Result<Plan> {
    if parts.iter().any(|part| !part.place.member.is_empty()) {
        return Err(unsupported(
            "text that is shown in parts cannot be written in parts",
        ));
    }
    let array = NpyArray::open(base, &single(parts)?.content)?;
    let mut new = NewFile::default();
    add(&mut new, key.path(), &array)?;
    Ok(Plan::Complete(new))
}
