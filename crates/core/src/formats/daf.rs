//! daf stores: groups of an HDF5 file with a mark, and the objects that follow daf's rules.
//!
//! Source: tanaylab daf 0.2.0-dev.1, `storage/h5fs.py`: a group is a store if it holds a dataset `__daf__` of two
//! integers, the first of which is 1; `axis#` is an axis, `axis#name` a vector, `rows,columns#name` a matrix, or a
//! group of CSR parts with an attribute `shape`; attributes of `__daf__` are the 0-D items. An object that violates a
//! rule is shown as plain HDF5 with a note of the reason.
//!
//! As tables, a store is its axes: the entries, then every property along the axis.

pub mod check;
mod demo;
mod encode;
pub mod rules;

use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use self::rules::{Meaning, meaning};
use crate::dataset::opened::OpenStore;
use crate::formats::demo::write_file;
use crate::formats::plain::group::{Composite, GroupDirectory, GroupKind, GroupView};
use crate::formats::sparse::{self as stored, SparseOrder};
use crate::store::base::{Base, invalid};
use crate::store::encode::{ObjectKey, Plan};
use crate::store::format::{
    Abilities, Format, Inspection, Objects, Rules, Source, Tables, Writing,
};
use crate::store::new_store::NewAxis;
use crate::store::object::NewFile;
use crate::store::part::Part;
use crate::store::table::{Column, Found, Table, Values};
use crate::tree::{Directory, Node, VirtualFile, name};
use npyfs_base::error::Result;
use npyfs_base::npy::dtype::{DType, Kind, Order};
use npyfs_hdf5::{Dataset, ElementType, GroupMember, GroupMembers, Resolved, Value};

/// daf stores.
pub struct Daf;

impl Format for Daf {
    fn name(&self) -> &'static str {
        NAME
    }

    fn root(&self, store: &Arc<OpenStore>) -> Result<Option<Arc<dyn Directory>>> {
        // Any group may be a store: plain HDF5 looks for the mark of each.
        Ok(GroupDirectory::root_of_kind(store, NAME, &[&Groups]))
    }

    fn demonstrate(&self, dir: &Path, _program: Option<&Path>) -> Result<Vec<(PathBuf, bool)>> {
        Ok(vec![write_file(dir.join("cells.h5df"), demo::fill)?])
    }

    fn abilities(&self) -> Abilities<'_> {
        Abilities {
            objects: self,
            tables: self,
            rules: self,
            source: self,
            writing: Some(self),
            ..Abilities::default()
        }
    }
}

impl Tables for Daf {
    fn table(&self, _dir: &Arc<dyn Directory>, _sep: u8) -> Result<Option<Found>> {
        Ok(None)
    }

    fn looks_into(&self, own: &[u8], dir: &dyn Directory) -> Result<bool> {
        let is_matrix = std::str::from_utf8(own).is_ok_and(rules::is_matrix);
        Ok(!is_matrix && !dir.is_object())
    }

    fn named(&self, dir: &Arc<dyn Directory>, sep: u8) -> Result<Vec<(String, Found)>> {
        tables(dir, sep)
    }
}

impl Objects for Daf {
    fn is_composite(&self, name: &str) -> bool {
        rules::is_matrix(name)
    }

    fn has_composites(&self) -> bool {
        true
    }

    fn has_axes(&self) -> bool {
        true
    }

    fn is_axis(&self, name: &str) -> bool {
        meaning(name) == Meaning::Axis
    }

    fn along(&self, name: &str) -> Vec<String> {
        rules::along(name)
    }

    fn attribute_holder(&self) -> Option<&'static str> {
        Some(rules::MARK)
    }
}

impl Rules for Daf {
    fn broken(&self, dir: &dyn Directory, inspection: &Inspection<'_>) -> Result<Vec<String>> {
        match inspection.changed {
            // A change that concerns no axis breaks no rule.
            Some(names) if !names.iter().any(|name| name.contains('#')) => Ok(Vec::new()),
            _ => check::broken(dir, inspection),
        }
    }

    fn needs_common_filters(&self) -> bool {
        true
    }

    fn refuses_links(&self) -> Option<&'static str> {
        Some("daf maps the arrays of the one file that it opens, and follows no links into others")
    }
}

impl Source for Daf {
    fn repeats(&self, _dir: &dyn Directory, shown: &[u8], _stacked: bool) -> Result<bool> {
        // The archive of a sparse matrix.
        Ok(shown.ends_with(b".npz"))
    }

    fn is_mark(&self, attribute: &[u8]) -> bool {
        attribute == b"shape"
    }
}

impl Writing for Daf {
    fn plan(&self, base: &dyn Base, key: &ObjectKey, parts: &[Part]) -> Result<Plan> {
        encode::plan(base, key, parts)
    }

    fn shows_as_stored(&self, _new: &NewFile) -> bool {
        true
    }

    fn check_group(&self, _path: &ObjectKey) -> Result<()> {
        Err(invalid("daf has no groups"))
    }

    fn begin(&self, base: &dyn Base, axes: &[NewAxis]) -> Result<NewFile> {
        encode::begin(base, axes)
    }

    fn begins_in(&self, file: &[u8], name: &str) -> bool {
        file.ends_with(b".h5fs") && matches!(meaning(name), Meaning::Axis | Meaning::Property(_))
    }

    fn begin_group(&self, key: &ObjectKey) -> Result<NewFile> {
        Ok(encode::begin_group(key))
    }

    fn endings(&self) -> &'static [&'static str] {
        &[".h5df"]
    }
}

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
fn view(
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
    stored::check_stored(store, &members.members, SparseOrder::Csr, (rows, columns))?;
    Ok(shape)
}

fn little(bytes: &[u8]) -> u64 {
    bytes.iter().rev().fold(0, |n, &b| n << 8 | u64::from(b))
}

/// The text that stands for None in vectors.
const NONE: &str = "\u{1}";

/// Returns the tables of a store, by the names of the axes.
fn tables(dir: &Arc<dyn Directory>, sep: u8) -> Result<Vec<(String, Found)>> {
    let listing = dir.list()?;
    let mut arrays = Vec::new();
    for (shown, node) in listing.iter() {
        let stem = shown.strip_suffix(b".npy").unwrap_or_default();
        let own = String::from_utf8(name::own_name(stem, sep)).unwrap_or_default();
        if let (Node::File(file), Some((axis, property))) = (&*node, own.split_once('#')) {
            arrays.push((axis.to_owned(), property.to_owned(), file.clone()));
        }
    }
    let axes = arrays
        .iter()
        .filter(|(axis, property, _)| property.is_empty() && !axis.contains(','));
    let table = |axis: &str| {
        let along = |wanted: bool| {
            let along = arrays.iter().filter(move |(tables, property, _)| {
                tables == axis && property.is_empty() == wanted
            });
            along.map(move |(_, property, file)| Column {
                // As daf calls it in the heading of a CSV file.
                name: match property.as_str() {
                    "" => axis.to_owned(),
                    other if other == axis => format!("{other}.value"),
                    other => other.to_owned(),
                },
                values: match property.as_str() {
                    "" => Values::Array(file.clone()),
                    _ => Values::Marked {
                        values: Box::new(Values::Array(file.clone())),
                        missing: NONE.to_owned(),
                    },
                },
            })
        };
        Table {
            columns: along(true).chain(along(false)).collect(),
            ..Table::default()
        }
    };
    Ok(axes
        .map(|(axis, ..)| (axis.clone(), Ok(table(axis))))
        .collect())
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
