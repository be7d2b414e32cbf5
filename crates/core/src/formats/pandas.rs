//! The objects that pandas keeps in HDF5 (`HDFStore`) as tables: frames and series, in the forms `table` and `fixed`.
//!
//! Source: pandas 2.3, `io/pytables.py`. Everything in HDF5 is shown as plain HDF5; here is only what its attributes say of
//! columns. The attributes are pickles, of which lists and dictionaries of texts and numbers are read (`pickle`).

mod fixed;
mod frame_table;
mod pickle;

use std::sync::Arc;

use crate::store::table::{Found, Values};
use crate::tree::name::visible_with;
use crate::tree::{Directory, Node, VirtualFile};
use npyfs_base::error::Result;
use npyfs_base::npy::dtype::{DType, Kind, Order};
use npyfs_hdf5::Attribute;

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
        "frame_table" | "series_table" => frame_table::of(&group)?,
        "frame" => fixed::frame(&group)?,
        "series" => fixed::series(&group)?,
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
        Ok(match dir.lookup(&shown)? {
            Some(Node::File(file)) => Some(file),
            _ => None,
        })
    }

    /// Returns the directory at some names below.
    fn below(&self, names: &[&str]) -> Result<Option<Arc<dyn Directory>>> {
        let mut dir = self.dir.clone();
        for name in names {
            match dir.lookup(&visible_with(name.as_bytes(), "", self.sep))? {
                Some(Node::Directory(next)) => dir = next,
                _ => return Ok(None),
            }
        }
        Ok(Some(dir))
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
