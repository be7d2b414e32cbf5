//! daf stores: the mark that makes a group a store, and the objects that follow daf's rules.
//!
//! Source: tanaylab daf 0.2.0-dev.1, `storage/h5fs.py`: a group is a store if it holds a dataset `__daf__` of two
//! integers, the first of which is 1; `axis#` is an axis, `axis#name` a vector, `rows,columns#name` a matrix, or a
//! group of CSR parts with an attribute `shape`; attributes of `__daf__` are the 0-D items. An object that violates a
//! rule is shown as plain HDF5 with a note of the reason.

pub mod check;
mod demo;
mod encode;
pub mod format;
pub mod rules;
pub(crate) mod sparse;
mod table;

use std::collections::HashMap;
use std::sync::Arc;

use crate::dataset::opened::OpenStore;
use crate::formats::plain::group::GroupDirectory;
use crate::formats::plain::group::kind::{Composite, GroupKind, GroupView};
use crate::formats::sparse::{self as stored, SparseOrder};
use crate::tree::VirtualFile;
use npyfs_base::error::Result;
use npyfs_base::npy::dtype::{DType, Kind, Order};
use npyfs_hdf5::{Dataset, ElementType, GroupMember, GroupMembers, Resolved, Value};

/// Name of the format.
pub const NAME: &str = "daf";

/// The name of the dataset that marks a store.
pub const MARK: &[u8] = rules::MARK.as_bytes();

/// Groups that are daf stores.
pub struct Groups;

impl GroupKind for Groups {
    fn name(&self) -> &'static str {
        NAME
    }

    fn mark(&self) -> Option<&'static [u8]> {
        Some(MARK)
    }

    fn comes_last(&self, name: &[u8]) -> bool {
        std::str::from_utf8(name).is_ok_and(|name| rules::meaning(name) == rules::Meaning::Axis)
    }

    fn view(
        &self,
        group: &GroupDirectory,
        members: &GroupMembers,
        notes: &mut Vec<String>,
    ) -> Result<Option<GroupView>> {
        view(group.store(), group.addr(), members, notes)
    }
}

/// Returns the view of a group that holds `__daf__`; `None`, with a note, if it is not a valid store.
pub fn view(
    store: &OpenStore,
    group: u64,
    members: &GroupMembers,
    notes: &mut Vec<String>,
) -> Result<Option<GroupView>> {
    let find = |name: &[u8]| members.members.iter().find(|(n, _)| n == name);
    let Some((_, mark)) = find(MARK) else {
        return Ok(None);
    };
    let GroupMember::Dataset(mark) = mark else {
        notes.push("__daf__ is not a dataset: shown as plain HDF5".into());
        return Ok(None);
    };
    if let Err(why) = check_version(store, mark) {
        notes.push(format!("{why}: shown as plain HDF5"));
        return Ok(None);
    }
    let mut items = store.context.h5.attributes(&store.file, mark.addr)?;
    // Earlier versions recorded the time of an export there.
    items.retain(|item| !rules::is_note(&item.name));
    let mut view = GroupView {
        values: items,
        ..GroupView::default()
    };
    let axes: HashMap<&[u8], u64> = members
        .members
        .iter()
        .filter_map(|(name, member)| {
            let axis = name.strip_suffix(b"#").filter(|a| !a.contains(&b'#'))?;
            let followed;
            let member = match member {
                GroupMember::Soft(target) => {
                    followed = store.context.h5.resolve(&store.file, group, target).ok()?;
                    match &followed {
                        Resolved::Member(member) => member,
                        _ => return None,
                    }
                }
                member => member,
            };
            match member {
                GroupMember::Dataset(Dataset { shape, .. }) if shape.len() == 1 => {
                    Some((axis, shape[0]))
                }
                _ => None,
            }
        })
        .collect();
    for (name, member) in &members.members {
        let Some((left, _)) = split(name) else {
            continue;
        };
        let shown = String::from_utf8_lossy(name);
        let wanted: Vec<&[u8]> = left.split(|&b| b == b',').collect();
        let lengths = wanted
            .iter()
            .map(|axis| {
                axes.get(axis).copied().ok_or_else(|| {
                    format!(
                        "{shown}: there is no axis {}",
                        String::from_utf8_lossy(axis)
                    )
                })
            })
            .collect::<std::result::Result<Vec<_>, _>>();
        let checked = lengths.and_then(|lengths| match (member, lengths.len()) {
            (_, 3..) => Ok(()),
            (GroupMember::Dataset(dataset), _) if dataset.shape != lengths => Err(format!(
                "{shown}: shape {:?} does not fit axes of length {lengths:?}",
                dataset.shape
            )),
            (GroupMember::Group { addr, .. }, 2) => {
                let shape =
                    matrix(store, *addr, &lengths).map_err(|why| format!("{shown}: {why}"))?;
                let archive = |group: &GroupDirectory| {
                    let file = stored::archive(group, SparseOrder::Csr, NAME)?;
                    Ok((".npz", Arc::new(file) as Arc<dyn VirtualFile>))
                };
                let composite = Composite {
                    kind: NAME,
                    values: vec![("shape", shape)],
                    beside: Arc::new(archive),
                };
                view.composites.insert(*addr, composite);
                Ok(())
            }
            _ => Ok(()),
        });
        if let Err(why) = checked {
            notes.push(format!("{why}: shown as plain HDF5"));
        }
    }
    Ok(Some(view))
}

/// Splits `axis#property` and `rows,columns#property`; `None` for axes and names without `#`.
fn split(name: &[u8]) -> Option<(&[u8], &[u8])> {
    let at = name.iter().position(|&b| b == b'#')?;
    let (axes, property) = (&name[..at], &name[at + 1..]);
    (!property.is_empty()).then_some((axes, property))
}

fn check_version(store: &OpenStore, mark: &Dataset) -> std::result::Result<(), String> {
    let ElementType::Fixed { dtype, .. } = &mark.element else {
        return Err("invalid daf version: not integers".into());
    };
    let DType::Scalar {
        kind: Kind::Int | Kind::Uint,
        order: Order::Little | Order::None,
        size,
        ..
    } = dtype
    else {
        return Err(format!(
            "invalid daf version: {} is no native integer",
            dtype.name()
        ));
    };
    if mark.shape != [2] {
        return Err(format!("invalid daf version: shape {:?}", mark.shape));
    }
    let bytes = stored::block(store, mark, 0, 2)?;
    let (major, minor) = bytes.split_at(*size);
    if little(major) != 1 {
        return Err(format!(
            "unsupported daf version {}.{}",
            little(major),
            little(minor)
        ));
    }
    Ok(())
}

/// Checks a sparse matrix against its axes; returns its attribute `shape`.
fn matrix(store: &OpenStore, group: u64, lengths: &[u64]) -> std::result::Result<Value, String> {
    let h5 = &store.context.h5;
    let members = h5
        .list(&store.file, group, false)
        .map_err(|e| e.to_string())?;
    let attributes = h5
        .attributes(&store.file, group)
        .map_err(|e| e.to_string())?;
    let shape = attributes
        .into_iter()
        .find(|a| a.name == b"shape")
        .and_then(|a| a.value.ok());
    let found = shape.and_then(|shape| Some((stored::dimensions(&shape)?, shape)));
    let ((rows, columns), shape) =
        found.ok_or("sparse matrix without an attribute shape of two integers")?;
    if lengths != [rows, columns] {
        return Err(format!(
            "sparse shape {:?} does not fit axes of length {lengths:?}",
            [rows, columns]
        ));
    }
    stored::check(store, &members.members, SparseOrder::Csr, (rows, columns))?;
    Ok(shape)
}

fn little(bytes: &[u8]) -> u64 {
    bytes.iter().rev().fold(0, |n, &b| n << 8 | u64::from(b))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_split_at_the_first_hash() {
        assert_eq!(split(b"cell#age"), Some((&b"cell"[..], &b"age"[..])));
        assert_eq!(
            split(b"cell,gene#a#b"),
            Some((&b"cell,gene"[..], &b"a#b"[..]))
        );
        assert_eq!(split(b"cell#"), None);
        assert_eq!(split(b"title"), None);
    }
}
