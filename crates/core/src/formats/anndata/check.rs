//! Checks AnnData, as shown, by its rules: columns are as long as their index, the parts of an element match each
//! other.

use std::sync::Arc;

use super::marks::{INDEX, Marks};
use crate::formats::sparse::members::{MEMBERS, check};
use crate::store::base::invalid;
use crate::store::encode::NpyArray;
use crate::store::encode::integers::Integers;
use crate::store::format::{Depth, Inspection};
use crate::tree::name::visible_with;
use crate::tree::{Directory, Node};
use npyfs_base::error::{Error, Result};
use npyfs_hdf5::Attribute;

/// Returns the violations among the direct members of a group, one line for each of the `concerned` objects.
pub(super) fn broken(dir: &dyn Directory, inspection: &Inspection<'_>) -> Result<Vec<String>> {
    let attributes = dir.attributes()?;
    let marks = Marks(&attributes);
    let is_table = marks.encoding().as_deref() == Some("dataframe");
    let mut rows = None;
    if let Some(index) = marks.text(INDEX).filter(|_| is_table) {
        let shown = visible_with(index.as_bytes(), ".npy", inspection.sep);
        if let Some(Node::File(file)) = dir.lookup(&shown)?
            && let Ok(array) = file.open().and_then(|file| NpyArray::shown(&file))
        {
            rows = array.shape.first().copied();
        }
    }
    let mut broken = Vec::new();
    for (name, node) in inspection.objects(dir)? {
        if inspection.concerns(&name) {
            let checked = checked(&node, rows, inspection.depth);
            inspection.note(&name, checked, &mut broken)?;
        }
    }
    Ok(broken)
}

fn checked(node: &Node, rows: Option<u64>, depth: Depth) -> Result<()> {
    match node {
        Node::Symlink(_) => Ok(()),
        Node::File(file) => match rows {
            Some(rows) => check_rows(&NpyArray::shown(&file.open()?)?, rows),
            None => Ok(()),
        },
        Node::Directory(dir) => {
            let attributes = dir.attributes()?;
            check_element(dir, &attributes, rows, depth)
        }
    }
}

fn check_rows(array: &NpyArray, rows: u64) -> Result<()> {
    match array.shape.first() {
        Some(&have) if have == rows => Ok(()),
        _ => Err(invalid(format!(
            "shape {:?} does not fit an index of length {rows}",
            array.shape
        ))),
    }
}

fn check_element(
    dir: &Arc<dyn Directory>,
    attributes: &[Attribute],
    rows: Option<u64>,
    depth: Depth,
) -> Result<()> {
    let member = |name: &str| match dir.lookup(format!("{name}.npy").as_bytes())? {
        Some(Node::File(file)) => NpyArray::shown(&file.open()?).map(Some),
        _ => Ok::<_, Error>(None),
    };
    let marks = Marks(attributes);
    let encoding = marks.encoding().unwrap_or_default();
    if let Some(order) = marks.sparse_order() {
        if depth == Depth::Outline {
            return Ok(());
        }
        let mut arrays = Vec::with_capacity(MEMBERS.len());
        for name in MEMBERS {
            match member(name)? {
                Some(array) => arrays.push(array),
                None => {
                    let why = format!("a sparse matrix whose parts do not fit: no {name}");
                    return Err(invalid(why));
                }
            }
        }
        let shape = marks.sparse_shape().map(|(lengths, _)| lengths);
        if let (Some(lengths), Ok(arrays)) = (shape, <[NpyArray; 4]>::try_from(arrays)) {
            check(arrays, order, lengths, |data| Ok(data.clone()))?;
        }
        return Ok(());
    }
    if encoding == "categorical" {
        let (Some(codes), Some(categories)) = (member("codes")?, member("categories")?) else {
            return Err(invalid("a categorical without codes or categories"));
        };
        if let Some(rows) = rows {
            check_rows(&codes, rows)?;
        }
        if depth == Depth::Elements {
            let count = categories.elements();
            Integers::new("codes", codes)?.each(|row, code| {
                if code == -1 || u64::try_from(code).is_ok_and(|code| code < count) {
                    return Ok(());
                }
                let why = format!("code {code} in row {row}, there are {count} categories");
                Err(invalid(why))
            })?;
        }
    }
    if encoding.starts_with("nullable-") {
        let (Some(values), Some(mask)) = (member("values")?, member("mask")?) else {
            return Err(invalid(
                "an array with missing values without values or mask",
            ));
        };
        if let Some(rows) = rows {
            check_rows(&values, rows)?;
        }
        if values.shape != mask.shape {
            let (values, mask) = (values.shape, mask.shape);
            let why = format!("a mask of shape {mask:?} for values of shape {values:?}");
            return Err(invalid(why));
        }
    }
    Ok(())
}
