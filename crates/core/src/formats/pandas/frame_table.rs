//! The form `table`: one array of compounds, whose members are columns, or blocks of columns of one type.

use std::sync::Arc;

use super::pickle::Value;
use super::{Group, INDEX, Marks, in_zone, meaning};
use crate::store::table::{Column, Found, Table, Values};
use crate::tree::VirtualFile;
use npyfs_base::error::Result;

/// The array.
const TABLE: &str = "table";

/// What stands for a missing text unless an attribute says otherwise.
const MISSING: &str = "nan";

/// What pandas says of a table.
struct Described<'a> {
    group: &'a Group<'a>,
    file: Arc<dyn VirtualFile>,
    /// The attributes of the array.
    marks: Marks,
    /// More on each member.
    info: Option<Value>,
}

pub(super) fn of(group: &Group<'_>) -> Result<Found> {
    let Some(file) = group.array(&**group.dir, TABLE)? else {
        return Ok(Err("there is no array called table".to_owned()));
    };
    let described = Described {
        group,
        marks: Marks(file.attributes()?),
        file,
        info: group.marks.pickle("info"),
    };
    let list = |name: &str| group.marks.pickle(name).and_then(|value| value.texts());
    let Some(members) = list("values_cols") else {
        return Ok(Err("values_cols is no list of names".to_owned()));
    };
    let mut table = Table::default();
    let is_multi = group
        .marks
        .text("table_type")
        .is_some_and(|kind| kind.contains("multi"));
    // The index of a frame with several levels is a number; the levels are columns.
    if !is_multi {
        match described.index() {
            Ok(index) => table.columns.push(index),
            Err(why) => return Ok(Err(format!("its index: {why}"))),
        }
    }
    let mut columns = Vec::new();
    for member in members {
        match described.columns(&member)? {
            Ok(found) => columns.extend(found),
            Err(why) => table.left_out.push((member, why)),
        }
    }
    // The order of the frame; members are in the order of their types.
    let order = group.marks.pickle("non_index_axes");
    let order = order
        .as_ref()
        .and_then(|axes| axes.list()?.first()?.list()?.get(1)?.texts());
    let order = order.unwrap_or_default();
    let place = |column: &Column| order.iter().position(|name| *name == column.name);
    columns.sort_by_key(|column| place(column).unwrap_or(usize::MAX));
    table.columns.extend(columns);
    Ok(Ok(table))
}

impl Described<'_> {
    fn values(
        &self,
        member: &str,
        at: Option<u64>,
        kind: &str,
    ) -> std::result::Result<Values, String> {
        let values = Values::Part {
            file: self.file.clone(),
            member: Some(member.to_owned()),
            at,
            dtype: meaning(kind)?.dtype(),
        };
        let zone = self
            .info
            .as_ref()
            .and_then(|info| info.get(member)?.get("tz"));
        let zone = zone.and_then(Value::text).map(str::to_owned);
        Ok(in_zone(values, zone))
    }

    fn index(&self) -> std::result::Result<Column, String> {
        let kind = self.marks.text("index_kind").unwrap_or_default();
        let name = self
            .info
            .as_ref()
            .and_then(|info| info.get(INDEX)?.get("index_name")?.text());
        Ok(Column {
            name: name.unwrap_or(INDEX).to_owned(),
            values: self.values(INDEX, None, &kind)?,
        })
    }

    /// Returns the columns in a member.
    fn columns(&self, member: &str) -> Result<std::result::Result<Vec<Column>, String>> {
        let names = self.marks.pickle(&format!("{member}_kind"));
        let Some(names) = names.and_then(|names| names.texts()) else {
            return Ok(Err("there is no list of its columns".to_owned()));
        };
        let text = |about: &str| self.marks.text(&format!("{member}_{about}"));
        let kind = text("dtype").unwrap_or_default();
        let is_coded = text("meta").as_deref() == Some("category");
        // A member of one column may have no dimensions.
        let is_block = member.starts_with("values_block_");
        let mut columns = Vec::new();
        for (at, name) in names.into_iter().enumerate() {
            let place = is_block.then_some(at as u64);
            let mut values = match self.values(member, place, &kind) {
                Ok(values) => values,
                Err(why) => return Ok(Err(why)),
            };
            if is_coded {
                values = match self.coded(member, values)? {
                    Ok(values) => values,
                    Err(why) => return Ok(Err(why)),
                };
            } else if kind.starts_with("bytes") || kind.starts_with("str") {
                let missing = self.group.marks.text("nan_rep");
                values = Values::Marked {
                    values: Box::new(values),
                    missing: missing.unwrap_or_else(|| MISSING.to_owned()),
                };
            }
            columns.push(Column { name, values });
        }
        Ok(Ok(columns))
    }

    /// Returns the values that codes stand for: they are a series of their own.
    fn coded(&self, member: &str, codes: Values) -> Result<std::result::Result<Values, String>> {
        let dir = self.group.below(&["meta", member, "meta"])?;
        let file = match dir {
            Some(dir) => self.group.array(&*dir, TABLE)?,
            None => None,
        };
        let Some(file) = file else {
            return Ok(Err("there are no categories".to_owned()));
        };
        let marks = Marks(file.attributes()?);
        let kind = marks.text("values_dtype").unwrap_or_default();
        let ordered = self
            .info
            .as_ref()
            .and_then(|info| info.get(member)?.get("ordered"));
        Ok(meaning(&kind).map(|meaning| Values::Coded {
            codes: Box::new(codes),
            values: Box::new(Values::Part {
                file,
                member: Some("values".to_owned()),
                at: None,
                dtype: meaning.dtype(),
            }),
            ordered: ordered == Some(&Value::Number(1)),
        }))
    }
}
