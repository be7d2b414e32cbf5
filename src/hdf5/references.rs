//! The search for references: datasets and attributes of a file that refer to other objects.

use std::collections::HashSet;

use super::describe::groups;
use super::ffi::{self, Id, ObjectKind, RawLink};
use super::{GroupPath, H5Error};

/// Returns the paths of all datasets and attributes whose elements are, or hold, references to objects or regions, with
/// `@NAME` behind the last name for an attribute.
pub(super) fn references(file: &Id) -> Result<Vec<GroupPath>, H5Error> {
    let mut found = Vec::new();
    let mut seen = HashSet::new();
    for (addr, path) in groups(file)? {
        let Ok(group) = ffi::open_object(file, addr) else {
            continue;
        };
        attributes_with_references(&group, &path, &mut found)?;
        for (name, link) in ffi::links(&group).0 {
            let RawLink::Hard(child) = link else { continue };
            let Ok(object) = ffi::open_object(file, child) else {
                continue;
            };
            let kind = ffi::kind(&object);
            if kind == ObjectKind::Group || !seen.insert(child) {
                continue;
            }
            let mut path = path.clone();
            path.push(name);
            if kind == ObjectKind::Dataset && ffi::has_references(&ffi::dataset_type(&object)?) {
                found.push(path.clone());
            }
            attributes_with_references(&object, &path, &mut found)?;
        }
    }
    Ok(found)
}

fn attributes_with_references(
    object: &Id,
    path: &GroupPath,
    found: &mut Vec<GroupPath>,
) -> Result<(), H5Error> {
    for (name, attribute) in ffi::attributes(object)? {
        if ffi::has_references(&ffi::attribute_type(&attribute)?) {
            let mut path = path.clone();
            let last = path.pop().unwrap_or_default();
            path.push([&last, &b"@"[..], &name].concat());
            found.push(path);
        }
    }
    Ok(())
}
