//! The objects that pandas keeps in HDF5 (`HDFStore`) as tables: frames and series, in the forms `table` and `fixed`.
//!
//! Source: pandas 2.3, `io/pytables.py`. Everything in HDF5 is shown as plain HDF5; here is only what its attributes
//! say of columns. The attributes are pickles, of which lists and dictionaries of texts and numbers are read
//! (`pickle`).
//!
//! The form `table` is one array of compounds, whose members are columns, or blocks of columns of one type. The form
//! `fixed` is an array for the index, and for each type a matrix with one column of the frame in each of its columns.

mod pickle;

use std::sync::Arc;

use serde_json::Value as Json;

use crate::store::encode::NpyArray;
use crate::store::table::{Column, Found, Table, Values};
use crate::tree::name::visible_with;
use crate::tree::path::walk;
use crate::tree::{Directory, Node, VirtualFile, info};
use npyfs_base::error::Result;
use npyfs_base::npy::dtype::{DType, Kind, Order};
use npyfs_hdf5::{Attribute, Value};

/// The attribute that says what a group is.
const TYPE: &str = "pandas_type";

/// The column of an index without a name.
const INDEX: &str = "index";

/// Returns the table that a group is; `None` if pandas did not write it.
pub(super) fn table(dir: &Arc<dyn Directory>, sep: u8) -> Result<Option<Found>> {
    let marks = Marks(dir.attributes()?);
    let Some(kind) = marks.text(TYPE) else {
        return Ok(None);
    };
    let group = Group {
        dir,
        sep,
        marks: &marks,
    };
    Ok(Some(match kind.as_str() {
        "frame_table" | "series_table" => table_form(&group)?,
        "frame" => fixed_frame(&group)?,
        "series" => fixed_series(&group)?,
        other => Err(format!("pandas objects of the type {other} are not shown")),
    }))
}

/// The attributes of a group or an array.
struct Marks(Vec<Attribute>);

impl Marks {
    /// Returns the bytes of an attribute that is one text.
    fn bytes(&self, name: &str) -> Option<&[u8]> {
        let found = self.0.iter().find(|a| a.name == name.as_bytes())?;
        let value = found.value.as_ref().ok()?;
        match &value.dtype {
            DType::Scalar {
                kind: Kind::Bytes, ..
            } if value.shape.is_empty() => {
                let end = value.data.iter().rposition(|&byte| byte != 0);
                Some(&value.data[..end.map_or(0, |last| last + 1)])
            }
            _ => None,
        }
    }

    /// Returns an attribute that is one text, and not a pickle.
    fn text(&self, name: &str) -> Option<String> {
        let bytes = self.bytes(name)?;
        // What pandas writes for None.
        let is_none = bytes == b"N.";
        let text = std::str::from_utf8(bytes).ok().filter(|_| !is_none)?;
        Some(text.to_owned())
    }

    /// Returns an attribute that is a pickle.
    fn pickle(&self, name: &str) -> Option<pickle::Value> {
        pickle::read(self.bytes(name)?)
    }

    /// Returns an integer.
    fn number(&self, name: &str) -> Option<u64> {
        let found = self.0.iter().find(|a| a.name == name.as_bytes())?;
        let value = found.value.as_ref().ok()?;
        let mut bytes = [0; 8];
        let little = value.data.get(..value.data.len().min(8))?;
        bytes[..little.len()].copy_from_slice(little);
        matches!(
            &value.dtype,
            DType::Scalar { kind: Kind::Int | Kind::Uint, order, .. } if *order != Order::Big
        )
        .then(|| u64::from_le_bytes(bytes))
    }
}

/// A group that pandas wrote.
struct Group<'a> {
    dir: &'a Arc<dyn Directory>,
    sep: u8,
    marks: &'a Marks,
}

impl Group<'_> {
    /// Returns an array in a directory.
    fn array(&self, dir: &dyn Directory, name: &str) -> Result<Option<Arc<dyn VirtualFile>>> {
        let shown = visible_with(name.as_bytes(), ".npy", self.sep);
        Ok(dir.lookup(&shown)?.and_then(Node::file))
    }

    /// Returns the directory at some names below.
    fn below(&self, names: &[&str]) -> Result<Option<Arc<dyn Directory>>> {
        let shown = |name: &&str| visible_with(name.as_bytes(), "", self.sep);
        let node = walk(self.dir.clone(), names.iter().map(shown))?;
        Ok(node.and_then(Node::directory))
    }
}

/// What the values of a column mean.
enum Meaning {
    /// What their array says.
    AsStored,
    /// A type.
    As(DType),
}

/// Returns what values mean by pandas' name for their type, or why they are not shown.
fn meaning(name: &str) -> std::result::Result<Meaning, String> {
    let time = |kind, unit: &str| {
        let unit = match unit {
            "" => "[ns]",
            unit => unit,
        };
        Meaning::As(DType::Scalar {
            kind,
            size: 8,
            order: Order::Little,
            unit: unit.to_owned(),
        })
    };
    if let Some(unit) = name.strip_prefix("datetime64") {
        return Ok(time(Kind::Datetime, unit));
    }
    if let Some(unit) = name.strip_prefix("timedelta64") {
        return Ok(time(Kind::Timedelta, unit));
    }
    match name {
        "bool" => Ok(Meaning::As(DType::scalar(Kind::Bool, 1, Order::None))),
        "object" | "date" | "datetime" => Err(format!("values of the type {name} are pickles")),
        _ => Ok(Meaning::AsStored),
    }
}

impl Meaning {
    fn dtype(self) -> Option<DType> {
        match self {
            Self::AsStored => None,
            Self::As(dtype) => Some(dtype),
        }
    }
}

/// Returns values in a time zone, if there is one.
fn in_zone(values: Values, zone: Option<String>) -> Values {
    match zone {
        Some(zone) => Values::Zoned {
            values: Box::new(values),
            zone,
        },
        None => values,
    }
}

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
    info: Option<pickle::Value>,
}

fn table_form(group: &Group<'_>) -> Result<Found> {
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
    table
        .columns
        .extend(ordered(columns, &order.unwrap_or_default()));
    Ok(Ok(table))
}

/// Returns columns in the order of their names in the frame.
fn ordered(mut columns: Vec<Column>, order: &[String]) -> Vec<Column> {
    let place = |column: &Column| order.iter().position(|name| *name == column.name);
    columns.sort_by_key(|column| place(column).unwrap_or(usize::MAX));
    columns
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
        let zone = zone.and_then(pickle::Value::text).map(str::to_owned);
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
            ordered: ordered == Some(&pickle::Value::Number(1)),
        }))
    }
}

/// The most blocks, and the most bytes of the names of columns.
const MOST_BLOCKS: u64 = 1 << 14;
const LONGEST: u64 = 16 << 20;

/// A member, or why it is left out.
type Member<T> = std::result::Result<T, String>;

fn fixed_frame(group: &Group<'_>) -> Result<Found> {
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
    table.columns.extend(ordered(columns, &order));
    Ok(Ok(table))
}

fn fixed_series(group: &Group<'_>) -> Result<Found> {
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
