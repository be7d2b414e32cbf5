//! Data frames of AnnData as tables: the index, then the columns in their order.

use std::sync::Arc;

use super::marks::{COLUMNS, INDEX, Marks, ORDERED};
use crate::store::table::{Column, Found, Table, Values};
use crate::tree::name::visible_with;
use crate::tree::{Directory, Node};
use npyfs_base::error::Result;

/// The encodings of arrays in which values may be missing begin so.
const NULLABLE: &str = "nullable-";

/// Returns the table that a group is, or why it is none although it says so.
pub(super) fn of(dir: &Arc<dyn Directory>, sep: u8) -> Result<Option<Found>> {
    let attributes = dir.attributes()?;
    let marks = Marks(&attributes);
    if marks.encoding().as_deref() != Some("dataframe") {
        return Ok(None);
    }
    let Some(index) = marks.text(INDEX) else {
        return Ok(Some(Err("a data frame that names no index".to_owned())));
    };
    let Some(order) = marks.texts(COLUMNS) else {
        return Ok(Some(Err("a data frame without column-order".to_owned())));
    };
    let mut table = Table::default();
    for name in std::iter::once(index.clone()).chain(order) {
        match values(&**dir, &name, sep)? {
            Ok(values) => table.columns.push(Column { name, values }),
            Err(why) if name == index => return Ok(Some(Err(format!("its index {name}: {why}")))),
            Err(why) => table.left_out.push((name, why)),
        }
    }
    table.attributes = attributes;
    Ok(Some(Ok(table)))
}

/// Returns the values of a member of a group, by its encoding.
fn values(dir: &dyn Directory, name: &str, sep: u8) -> Result<std::result::Result<Values, String>> {
    let shown = |suffix| visible_with(name.as_bytes(), suffix, sep);
    let group = match dir.lookup(&shown(""))? {
        Some(Node::Directory(group)) => group,
        _ => {
            return Ok(match dir.lookup(&shown(".npy"))? {
                Some(Node::File(file)) => Ok(Values::Array(file)),
                _ => Err("there is no such array".to_owned()),
            });
        }
    };
    let attributes = group.attributes()?;
    let marks = Marks(&attributes);
    let encoding = marks.encoding().unwrap_or_default();
    let parts = match (encoding.as_str(), encoding.strip_prefix(NULLABLE)) {
        ("categorical", _) => ["codes", "categories"],
        (_, Some(_)) => ["values", "mask"],
        _ => return Ok(Err("a group that is no column".to_owned())),
    };
    let mut found = Vec::new();
    for part in parts {
        match values(&*group, part, sep)? {
            Ok(values) => found.push(Box::new(values)),
            Err(why) => return Ok(Err(format!("{part}: {why}"))),
        }
    }
    let ordered = marks.value(ORDERED).is_some_and(|value| value.data == [1]);
    let Ok([first, second]) = <[_; 2]>::try_from(found) else {
        return Ok(Err("a group without its parts".to_owned()));
    };
    Ok(Ok(match parts[0] {
        "codes" => Values::Coded {
            codes: first,
            values: second,
            ordered,
        },
        _ => Values::Masked {
            values: first,
            mask: second,
        },
    }))
}
