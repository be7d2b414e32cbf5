//! The axes of a daf store as tables: the entries, then every property along the axis.

use std::sync::Arc;

use crate::store::table::{Column, Found, Table, Values};
use crate::tree::{Directory, Node, name};
use npyfs_base::error::Result;

/// The text that stands for None in vectors.
const NONE: &str = "\u{1}";

/// Returns the tables of a store, by the names of the axes.
pub(super) fn of(dir: &Arc<dyn Directory>, sep: u8) -> Result<Vec<(String, Found)>> {
    let listing = dir.list()?;
    let mut arrays = Vec::new();
    for (shown, node) in listing.iter() {
        let stem = shown.strip_suffix(b".npy").unwrap_or_default();
        let own = String::from_utf8(name::own(stem, sep)).unwrap_or_default();
        if let (Node::File(file), Some((axis, property))) = (&*node, own.split_once('#')) {
            arrays.push((axis.to_owned(), property.to_owned(), file.clone()));
        }
    }
    let axes = arrays
        .iter()
        .filter(|(axis, property, _)| property.is_empty() && !axis.contains(','));
    let table = |axis: &str| {
        let along = |wanted: bool| {
            let along = arrays
                .iter()
                .filter(move |(of, property, _)| of == axis && property.is_empty() == wanted);
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
