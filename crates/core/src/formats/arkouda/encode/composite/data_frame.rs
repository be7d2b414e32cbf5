//! DataFrames, and the indexes of their rows.

use super::super::members::{Complete, INDEX, WrittenMembers, complete, missing, numbered};
use super::super::{Type, marks, strings};
use super::{CompositeWriter, below};
use crate::store::base::invalid;
use npyfs_base::error::Result;
use npyfs_base::npy::dtype::Kind;
use npyfs_hdf5::NewAttribute;

impl CompositeWriter<'_> {
    /// Adds an Index for one level, a MultiIndex for several.
    pub(super) fn index(
        &mut self,
        path: &[String],
        members: &WrittenMembers<'_>,
    ) -> Result<Complete> {
        let levels = complete!(numbered(members, "IDX_"));
        self.only(members, &[], "IDX_")?;
        let mut rows = None;
        for number in 0..levels {
            let name = format!("IDX_{number}");
            complete!(self.any(path, members, &name)?);
            let here = self.rows(&below(path, &name)).unwrap_or(0);
            let first = *rows.get_or_insert(here);
            if first != here {
                let why = format!("{name} has {here} elements, IDX_0 {first}");
                return Err(invalid(why));
            }
        }
        let object = if levels == 1 {
            Type::Index
        } else {
            Type::MultiIndex
        };
        let mut attributes = marks(object);
        attributes.push(NewAttribute::int("NumIdx", levels as i64));
        self.new.mark(path, attributes);
        Ok(Ok(()))
    }

    /// Adds columns of any name, and the index, which completes the DataFrame; a later file changes the DataFrame.
    pub(super) fn data_frame(
        &mut self,
        path: &[String],
        members: &WrittenMembers<'_>,
    ) -> Result<Complete> {
        complete!(missing(members, &[INDEX]));
        complete!(self.any(path, members, INDEX)?);
        let rows = self.rows(&below(path, INDEX));
        if !self.is_index(members)? {
            return Err(invalid("Index must be numbers or strings"));
        }
        let mut columns = 0;
        for &name in members.keys().filter(|name| **name != INDEX) {
            if name.contains(',') {
                return Err(invalid(format!(
                    "{name}: no comma can be in the name of a column"
                )));
            }
            complete!(self.any(path, members, name)?);
            let here = self.rows(&below(path, name));
            if here != rows {
                let (here, rows) = (here.unwrap_or(0), rows.unwrap_or(0));
                return Err(invalid(format!("{name} has {here} rows, Index {rows}")));
            }
            columns += 1;
        }
        let mut attributes = marks(Type::DataFrame);
        attributes.push(NewAttribute::int("NumCols", columns));
        self.new.mark(path, attributes);
        Ok(Ok(()))
    }

    /// Returns whether the index of a DataFrame has a kind that Arkouda reads there: `HDF5Msg.chpl` lines 1911 to 1946.
    fn is_index(&self, members: &WrittenMembers<'_>) -> Result<bool> {
        let Some(index) = members.get(INDEX) else {
            return Ok(false);
        };
        if index.file.is_some() {
            let kind = self.open(index, INDEX)?.kind();
            let known = [Kind::Int, Kind::Uint, Kind::Float, Kind::Bytes, Kind::Text];
            return Ok(kind.is_some_and(|kind| known.contains(&kind)));
        }
        match index.below.get("values") {
            Some(values) if values.file.is_some() => {
                Ok(self.open(values, "values")?.dtype == strings::bytes())
            }
            _ => Ok(false),
        }
    }
}
