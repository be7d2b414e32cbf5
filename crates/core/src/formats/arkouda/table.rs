//! Arkouda's objects as tables: DataFrames, indexes, and groups of arrays of one length.

use std::collections::BTreeSet;
use std::sync::Arc;

use super::kind::ArkoudaKind;
use super::marks::Marks;
use crate::store::encode::NpyArray;
use crate::store::table::{Column, Found, Table, Values};
use crate::tree::name::{own, visible_with};
use crate::tree::{Directory, Node};
use npyfs_base::error::Result;

/// The member of a DataFrame that comes first.
const INDEX: &str = "Index";

/// The most members of a group that are looked at.
const MOST_COLUMNS: usize = 4096;

/// Returns what a directory says that it is; `None` for a group.
fn kind(dir: &dyn Directory) -> Result<Option<ArkoudaKind>> {
    let marks = Marks::of(&dir.attributes()?);
    let number = marks.object_type.and_then(|number| number.ok());
    Ok(number.and_then(|number| ArkoudaKind::of_type(number, true)))
}

/// Returns whether a directory may be a table, or hold some.
pub(super) fn is_looked_into(dir: &dyn Directory) -> Result<bool> {
    use ArkoudaKind::{DataFrame, Index, MultiIndex};
    Ok(matches!(
        kind(dir)?,
        None | Some(DataFrame | Index | MultiIndex)
    ))
}

/// Returns the table that a directory is.
pub(super) fn of(dir: &Arc<dyn Directory>, sep: u8) -> Result<Option<Found>> {
    if !is_looked_into(&**dir)? {
        return Ok(None);
    }
    let is_group = kind(&**dir)?.is_none();
    let listing = dir.list()?;
    if listing.len() > MOST_COLUMNS {
        return Ok(None);
    }
    let names: BTreeSet<Vec<u8>> = listing
        .iter()
        .map(|(shown, _)| shown.strip_suffix(b".npy").unwrap_or(&shown).to_vec())
        .collect();
    let mut names: Vec<_> = names.into_iter().map(|stem| own(&stem, sep)).collect();
    names.sort_by_key(|name| *name != INDEX.as_bytes());
    let mut table = Table::default();
    let mut rows = None;
    for name in names {
        let shown = String::from_utf8_lossy(&name).into_owned();
        let values = match values(&**dir, &name, sep)? {
            Some(values) => values,
            None if is_group => continue,
            None => {
                let why = "an object that is no column".to_owned();
                table.left_out.push((shown, why));
                continue;
            }
        };
        if is_group {
            // Arrays of several lengths are no table.
            match length(&values) {
                Some(length) if *rows.get_or_insert(length) == length => {}
                Some(_) => return Ok(None),
                None => continue,
            }
        }
        table.columns.push(Column {
            name: shown,
            values,
        });
    }
    table.attributes = dir.attributes()?;
    Ok((!table.columns.is_empty()).then_some(Ok(table)))
}

/// Returns the number of rows of a column; `None` if it is none, or cannot be read.
fn length(values: &Values) -> Option<u64> {
    match values {
        Values::Coded { codes: first, .. } | Values::Lists { starts: first, .. } => length(first),
        Values::Array(file) => match NpyArray::shown(&file.open().ok()?).ok()?.shape[..] {
            [length] => Some(length),
            _ => None,
        },
        _ => None,
    }
}

/// Returns the values of a member of a directory: the array of its name, or what its own members are.
fn values(dir: &dyn Directory, name: &[u8], sep: u8) -> Result<Option<Values>> {
    let array = |dir: &dyn Directory, name: &[u8]| -> Result<Option<Values>> {
        Ok(match dir.lookup(&visible_with(name, ".npy", sep))? {
            Some(Node::File(file)) => Some(Values::Array(file)),
            _ => None,
        })
    };
    let whole = array(dir, name)?;
    let Some(Node::Directory(members)) = dir.lookup(&visible_with(name, "", sep))? else {
        return Ok(whole);
    };
    let pair = |first: &[u8], second: &[u8]| -> Result<Option<_>> {
        let (first, second) = (array(&*members, first)?, array(&*members, second)?);
        Ok(first.zip(second).map(|(a, b)| (Box::new(a), Box::new(b))))
    };
    Ok(match kind(&*members)? {
        Some(ArkoudaKind::Categorical) => {
            pair(b"codes", b"categories")?.map(|(codes, values)| Values::Coded {
                codes,
                values,
                ordered: false,
            })
        }
        Some(ArkoudaKind::SegArray) | None if whole.is_none() => {
            pair(b"segments", b"values")?.map(|(starts, values)| Values::Lists { starts, values })
        }
        Some(ArkoudaKind::Index) => values(&*members, b"IDX_0", sep)?,
        _ => whole,
    })
}
