//! Checks AnnData, as shown, by its rules: columns are as long as their index, the parts of an element match each
//! other.

use std::sync::Arc;

use xxhash_rust::xxh3::Xxh3;

use super::marks::{INDEX, Marks};
use crate::formats::sparse::{MEMBERS, check};
use crate::store::base::invalid;
use crate::store::encode::integers::Integers;
use crate::store::encode::{NpyArray, text};
use crate::store::format::{Depth, Inspection};
use crate::tree::name::visible_with;
use crate::tree::{Directory, Node};
use npyfs_base::error::{Error, Result};
use npyfs_base::printable;
use npyfs_hdf5::Attribute;

/// Returns the violations among the direct members of a group, one line for each of the `concerned` objects.
pub(super) fn broken(dir: &dyn Directory, inspection: &Inspection<'_>) -> Result<Vec<String>> {
    let attributes = dir.attributes()?;
    let marks = Marks(&attributes);
    let mut rows = None;
    if let Some(index) = marks.text(INDEX).filter(|_| is_table(marks)) {
        let shown = visible_with(index.as_bytes(), ".npy", inspection.sep);
        if let Some(Node::File(file)) = dir.lookup(&shown)?
            && let Ok(array) = file.open().and_then(|file| NpyArray::shown(&file))
        {
            rows = array.shape.first().copied();
        }
    }
    let mut broken = Vec::new();
    if marks.encoding().as_deref() == Some("anndata") {
        for slot in [("obs", "obsm"), ("var", "varm")] {
            check_names(dir, slot, inspection, &mut broken)?;
        }
    }
    for (name, node) in inspection.objects(dir)? {
        if inspection.concerns(&name) {
            let checked = checked(&node, rows, inspection.depth);
            inspection.note(&name, checked, &mut broken)?;
        }
    }
    Ok(broken)
}

/// Returns whether an index is among what is inspected, or a table of which one is.
pub(super) fn names_rows(dir: &dyn Directory, inspection: &Inspection<'_>) -> Result<bool> {
    let attributes = dir.attributes()?;
    let marks = Marks(&attributes);
    if is_table(marks) {
        let index = marks.text(INDEX);
        return Ok(index.is_some_and(|index| inspection.concerns(&index)));
    }
    for (name, node) in inspection.objects(dir)? {
        if let (Node::Directory(table), true) = (&node, inspection.concerns(&name))
            && is_table(Marks(&table.attributes()?))
        {
            return Ok(true);
        }
    }
    Ok(false)
}

fn is_table(marks: Marks<'_>) -> bool {
    marks.encoding().as_deref() == Some("dataframe")
}

/// Returns the index of a table; `None` if it has none of text.
fn index_of(table: &dyn Directory, sep: u8) -> Result<Option<NpyArray>> {
    let attributes = table.attributes()?;
    let marks = Marks(&attributes);
    let Some(index) = marks.text(INDEX).filter(|_| is_table(marks)) else {
        return Ok(None);
    };
    let shown = visible_with(index.as_bytes(), ".npy", sep);
    let Some(Node::File(file)) = table.lookup(&shown)? else {
        return Ok(None);
    };
    Ok(Some(NpyArray::shown(&file.open()?)?).filter(text::is_text))
}

/// Returns the hash of the texts of an array, in order.
fn hash(texts: &NpyArray) -> Result<u128> {
    let mut hash = Xxh3::new();
    text::each(texts, |_, text| {
        hash.update(&text.len().to_le_bytes());
        hash.update(text);
        Ok(())
    })?;
    Ok(hash.digest128())
}

/// Checks that the tables below a slot have the names of the axis that they lie along: anndata opens no others.
fn check_names(
    dir: &dyn Directory,
    (axis, slot): (&str, &str),
    inspection: &Inspection<'_>,
    broken: &mut Vec<String>,
) -> Result<()> {
    if !inspection.concerns(axis) && !inspection.concerns(slot) {
        return Ok(());
    }
    let below = |name: &str| match dir.lookup(name.as_bytes())? {
        Some(Node::Directory(dir)) => Ok::<_, Error>(Some(dir)),
        _ => Ok(None),
    };
    let (Some(axis_dir), Some(slot_dir)) = (below(axis)?, below(slot)?) else {
        return Ok(());
    };
    let mut wanted = None;
    for (name, node) in slot_dir.list()?.iter() {
        let Node::Directory(table) = &*node else {
            continue;
        };
        let Some(own) = index_of(&**table, inspection.sep)? else {
            continue;
        };
        if wanted.is_none() {
            let index = index_of(&*axis_dir, inspection.sep)?;
            wanted = Some(index.as_ref().map(hash).transpose()?);
        }
        if let Some(Some(wanted)) = wanted
            && hash(&own)? != wanted
        {
            let name = printable::name(&name);
            broken.push(format!(
                "{slot}/{name}: its index has other names than that of {axis}"
            ));
        }
    }
    Ok(())
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
