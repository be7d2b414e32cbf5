//! The form `fixed`: an array for the index, and for each type a matrix with one column of the frame in each of its columns.

use std::sync::Arc;

use serde_json::Value as Json;

use super::{Group, INDEX, Marks, in_zone, meaning};
use crate::store::encode::NpyArray;
use crate::store::table::{Column, Found, Table, Values};
use crate::tree::{VirtualFile, info};
use npyfs_base::error::Result;
use npyfs_base::npy::dtype::{DType, Kind};
use npyfs_hdf5::Value;

/// The most blocks, and the most bytes of the names of columns.
const MOST_BLOCKS: u64 = 1 << 14;
const LONGEST: u64 = 16 << 20;

/// A member, or why it is left out.
type Member<T> = std::result::Result<T, String>;

pub(super) fn frame(group: &Group<'_>) -> Result<Found> {
    if group.marks.number("ndim") != Some(2) {
        return Ok(Err("it has not two dimensions".to_owned()));
    }
    let order = match names(group, "axis0")? {
        Ok(order) => order,
        Err(why) => return Ok(Err(format!("the names of its columns: {why}"))),
    };
    let index = match index(group, "axis1")? {
        Ok(index) => index,
        Err(why) => return Ok(Err(format!("its index: {why}"))),
    };
    let mut table = Table {
        columns: vec![index],
        ..Table::default()
    };
    let mut columns = Vec::new();
    let blocks = group.marks.number("nblocks").unwrap_or(0).min(MOST_BLOCKS);
    for block in 0..blocks {
        let names = match names(group, &format!("block{block}_items"))? {
            Ok(names) => names,
            Err(why) => {
                table.left_out.push((format!("block{block}"), why));
                continue;
            }
        };
        let values = format!("block{block}_values");
        let file = group.array(&**group.dir, &values)?;
        for (at, name) in names.into_iter().enumerate() {
            let found = match &file {
                Some(file) => part(file, Some(at as u64))?,
                None => Err("its values are pickles, or not there".to_owned()),
            };
            match found {
                Ok(values) => columns.push(Column { name, values }),
                Err(why) => table.left_out.push((name, why)),
            }
        }
    }
    let place = |column: &Column| order.iter().position(|name| *name == column.name);
    columns.sort_by_key(|column| place(column).unwrap_or(usize::MAX));
    table.columns.extend(columns);
    Ok(Ok(table))
}

pub(super) fn series(group: &Group<'_>) -> Result<Found> {
    let index = match index(group, INDEX)? {
        Ok(index) => index,
        Err(why) => return Ok(Err(format!("its index: {why}"))),
    };
    let values = match group.array(&**group.dir, "values")? {
        Some(file) => part(&file, None)?,
        None => Err("its values are pickles, or not there".to_owned()),
    };
    Ok(values.map(|values| {
        let name = group.marks.text("name");
        let name = name.unwrap_or_else(|| "values".to_owned());
        Table {
            columns: vec![index, Column { name, values }],
            ..Table::default()
        }
    }))
}

/// Returns the values of an array: those of one column, if it is a matrix.
fn part(file: &Arc<dyn VirtualFile>, at: Option<u64>) -> Result<Member<Values>> {
    let marks = Marks(file.attributes()?);
    if marks.number("transposed") != Some(1) {
        return Ok(Err("its values are stored by columns".to_owned()));
    }
    let kind = marks.text("value_type").unwrap_or_default();
    let zone = marks.text("tz");
    Ok(meaning(&kind).map(|meaning| {
        let values = Values::Part {
            file: file.clone(),
            member: None,
            at,
            dtype: meaning.dtype(),
        };
        in_zone(values, zone)
    }))
}

fn index(group: &Group<'_>, name: &str) -> Result<Member<Column>> {
    let variety = group.marks.text(&format!("{name}_variety"));
    if variety.is_some_and(|variety| variety != "regular") {
        return Ok(Err("an index of several levels".to_owned()));
    }
    let Some(file) = group.array(&**group.dir, name)? else {
        return Ok(Err(format!("{name} is a pickle, or not there")));
    };
    let marks = Marks(file.attributes()?);
    let kind = marks.text("kind").unwrap_or_default();
    let (shown, zone) = (marks.text("name"), marks.text("tz"));
    Ok(meaning(&kind).map(|meaning| {
        let values = match meaning.dtype() {
            None => Values::Array(file),
            dtype => Values::Part {
                file,
                member: None,
                at: None,
                dtype,
            },
        };
        Column {
            name: shown.unwrap_or_else(|| INDEX.to_owned()),
            values: in_zone(values, zone),
        }
    }))
}

/// Reads an array of names.
fn names(group: &Group<'_>, name: &str) -> Result<Member<Vec<String>>> {
    let Some(file) = group.array(&**group.dir, name)? else {
        return Ok(Err(format!("{name} is a pickle, or not there")));
    };
    let array = NpyArray::shown(&file.open()?)?;
    let Some((kind, size, order)) = array.scalar() else {
        return Ok(Err(format!("{name} holds no names")));
    };
    if array.shape.len() != 1 || array.data.len() > LONGEST {
        return Ok(Err(format!("{name} holds no names, or too many")));
    }
    // At most as many bytes as were just allowed.
    let mut bytes = vec![0; array.data.len() as usize];
    array.data.read_at(0, &mut bytes)?;
    if !matches!(kind, Kind::Bytes | Kind::Text | Kind::Int | Kind::Uint) {
        return Ok(Err(format!("{name} holds neither texts nor integers")));
    }
    let name = |element: &[u8]| {
        let value = Value {
            dtype: DType::scalar(kind, size, order),
            shape: Vec::new(),
            data: element.to_vec(),
        };
        match info::value(&value) {
            Json::String(text) => text,
            number => number.to_string(),
        }
    };
    Ok(Ok(bytes.chunks_exact(size.max(1)).map(name).collect()))
}
