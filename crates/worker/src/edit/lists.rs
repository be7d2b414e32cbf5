//! Attributes in which a group lists members by name, such as the columns of a table.

use crate::ffi::{self, Failure, Id};
use npyfs_hdf5::protocol::{Holders, ObjectPath};

/// Appends a new object to the list of its group.
pub(super) fn add(target: &Id, path: &ObjectPath, holders: &Holders) -> Result<(), Failure> {
    change(target, path, holders, |list, name| {
        if !list.contains(&name) {
            list.push(name);
        }
    })
}

/// Removes a deleted object from the list of its group.
pub(super) fn remove(target: &Id, path: &ObjectPath, holders: &Holders) -> Result<(), Failure> {
    change(target, path, holders, |list, name| {
        list.retain(|known| *known != name)
    })
}

fn change(
    target: &Id,
    path: &ObjectPath,
    holders: &Holders,
    edit: impl Fn(&mut Vec<String>, String),
) -> Result<(), Failure> {
    let Some((name, above)) = path.split_last() else {
        return Ok(());
    };
    let above = above.to_vec();
    if holders.lists.is_empty() || !(above.is_empty() || ffi::exists(target, &above)?) {
        return Ok(());
    }
    let group = ffi::open_at(target, &above)?;
    for attribute in &holders.lists {
        change_list(&group, attribute, name, &edit)?;
    }
    Ok(())
}

/// Changes a list of a group, if it has one of that name.
pub(crate) fn change_list(
    group: &Id,
    attribute: &[u8],
    name: &[u8],
    edit: &impl Fn(&mut Vec<String>, String),
) -> Result<(), Failure> {
    let (Some(mut list), Ok(name)) = (strings(group, attribute)?, std::str::from_utf8(name)) else {
        return Ok(());
    };
    let before = list.clone();
    edit(&mut list, name.to_owned());
    if list == before {
        return Ok(());
    }
    ffi::remove_attribute(group, attribute)?;
    ffi::add_strings(group, attribute, &[list.len() as u64], &list)
}

/// Returns the texts of an attribute that is a list; `None` if there is none, or if it is no list.
fn strings(group: &Id, name: &[u8]) -> Result<Option<Vec<String>>, Failure> {
    /// The longest list that is changed: the list lies in an object header.
    const MOST: u64 = 1 << 16;
    let Some(attribute) = ffi::attribute(group, name)? else {
        return Ok(None);
    };
    let count = match ffi::extent(&ffi::attribute_space(&attribute)?)? {
        Some((shape, _)) => match shape.as_slice() {
            [0] => return Ok(Some(Vec::new())),
            &[count] if count <= MOST => count,
            _ => return Ok(None),
        },
        None => return Ok(None),
    };
    let ty = ffi::attribute_type(&attribute)?;
    if ffi::class(&ty) != ffi::Class::H5T_STRING {
        return Ok(None);
    }
    let count = usize::try_from(count).unwrap_or(0);
    let texts = crate::text::of_attribute(&attribute, &ty, count)?;
    let texts = texts.into_iter().map(String::from_utf8);
    Ok(texts.collect::<Result<_, _>>().ok())
}
