//! A table of a store, opened: its columns in Arrow's terms, its schema, and what is left out.
//!
//! HDF5 attributes become the metadata of fields and of the schema: texts as they are, everything else as JSON.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use arrow_schema::{Field, Schema};
use serde_json::Value as Json;

use super::batches::Batches;
use super::column::{Column, Dictionary, Making, Rows, Survey, TextForm};
use crate::store::attribute;
use crate::store::encode::NpyArray;
use crate::store::format::Format;
use crate::store::table::{Column as Named, Table, Values};
use crate::tree::{VirtualFile, info};
use crate::views::unfit::{Unfit, left_out};
use npyfs_base::npy::dtype::DType;
use npyfs_hdf5::Attribute;

/// The most columns of a table.
const MOST_COLUMNS: usize = 1 << 14;

/// An open table.
pub(super) struct OpenTable {
    /// The columns by their names.
    pub(super) columns: Vec<(String, Column)>,
    pub(super) batches: Batches,
    /// Columns that are left out, with the reasons.
    pub(super) left_out: Vec<(String, String)>,
}

/// Returns the table of the members of the compounds in a file; their attributes describe the table.
pub(super) fn of_compounds(file: &Arc<dyn VirtualFile>) -> Result<Table, Unfit> {
    let array = NpyArray::shown(&file.open()?)?;
    let DType::Struct { fields, .. } = &array.dtype else {
        return left_out("its elements are no compounds");
    };
    let columns = fields.iter().map(|field| Named {
        name: field.name.clone(),
        values: Values::Part {
            file: file.clone(),
            member: Some(field.name.clone()),
            at: None,
            dtype: None,
        },
    });
    Ok(Table {
        columns: columns.collect(),
        attributes: file.attributes()?,
        left_out: Vec::new(),
    })
}

/// Opens a table. `survey` has what is known of this version of it, or takes what is found out.
pub(super) fn open(table: &Table, survey: &mut Survey) -> Result<OpenTable, Unfit> {
    if table.columns.len() > MOST_COLUMNS {
        return left_out(format!("it has more than {MOST_COLUMNS} columns"));
    }
    let mut files = Files::default();
    let mut opening = Opening {
        files: &mut files,
        survey,
        batches: None,
        columns: table.columns.len(),
    };
    let mut left_out = table.left_out.clone();
    let (mut names, mut columns) = (HashSet::new(), Vec::new());
    for named in &table.columns {
        let opened = match names.contains(&named.name) {
            true => Err(Unfit::LeftOut("another column has its name".to_owned())),
            false => opening.column(&named.values),
        };
        match opened {
            Ok(column) => {
                names.insert(&named.name);
                columns.push((named.name.clone(), column));
            }
            Err(Unfit::LeftOut(why)) => left_out.push((named.name.clone(), why)),
            Err(unknown) => return Err(unknown),
        }
    }
    let Some(batches) = opening.batches.filter(|_| !columns.is_empty()) else {
        let why = left_out.first().map_or_else(
            || "it has no columns".to_owned(),
            |(name, why)| format!("none of its columns can be shown: {name}: {why}"),
        );
        return Err(Unfit::LeftOut(why));
    };
    Ok(OpenTable {
        columns,
        batches,
        left_out,
    })
}

/// Returns the schema of an open table, with what attributes say.
pub(super) fn schema(
    open: &OpenTable,
    table: &Table,
    format: &dyn Format,
) -> Result<Schema, Unfit> {
    let mut fields = Vec::with_capacity(open.columns.len());
    for (name, column) in &open.columns {
        let named = table.columns.iter().find(|named| named.name == *name);
        let said = match named {
            Some(named) => metadata(&attributes(&named.values)?, format),
            None => HashMap::new(),
        };
        let is_ordered = column.dictionary().is_some_and(|known| known.is_ordered);
        let field = Field::new(name, column.dtype.clone(), true);
        fields.push(field.with_dict_is_ordered(is_ordered).with_metadata(said));
    }
    let said = metadata(&table.attributes, format);
    Ok(Schema::new(fields).with_metadata(said))
}

/// Returns the attributes of the array that a column is as a whole.
fn attributes(values: &Values) -> Result<Vec<Attribute>, Unfit> {
    match values {
        Values::Array(file) => Ok(file.attributes()?),
        Values::Masked { values, .. }
        | Values::Marked { values, .. }
        | Values::Zoned { values, .. } => attributes(values),
        _ => Ok(Vec::new()),
    }
}

/// The files that were opened, to look at their types and shapes.
#[derive(Default)]
struct Files(Vec<(Arc<dyn VirtualFile>, NpyArray)>);

impl Files {
    fn open(&mut self, file: &Arc<dyn VirtualFile>) -> Result<NpyArray, Unfit> {
        if let Some((_, known)) = self.0.iter().find(|(other, _)| Arc::ptr_eq(other, file)) {
            return Ok(known.clone());
        }
        let array = NpyArray::shown(&file.open()?)?;
        self.0.push((file.clone(), array.clone()));
        Ok(array)
    }
}

/// A table that is being opened.
struct Opening<'a> {
    files: &'a mut Files,
    survey: &'a mut Survey,
    /// Those of the first column; the others must have as many rows.
    batches: Option<Batches>,
    /// The number of columns.
    columns: usize,
}

impl Opening<'_> {
    fn column(&mut self, values: &Values) -> Result<Column, Unfit> {
        let length = self.length(values)?;
        let batches = match self.batches {
            Some(known) if known.rows != length => {
                let why = format!("it has {length} rows, the table has {}", known.rows);
                return Err(Unfit::LeftOut(why));
            }
            Some(known) => known,
            None => {
                let chunk = values.files().first().and_then(|file| chunk_rows(file));
                let row = self.row_bytes(values)?;
                Batches::new(length, self.columns, chunk, row)
            }
        };
        let column = self.values(values, batches, TextForm::Slots)?;
        self.batches = Some(batches);
        Ok(column)
    }

    /// Returns the bytes of a row in which other columns may lie, too; 0 for an array of its own.
    fn row_bytes(&mut self, values: &Values) -> Result<u64, Unfit> {
        let Values::Part { file, .. } = values else {
            return Ok(0);
        };
        let array = self.files.open(file)?;
        let inner = array.shape.iter().skip(1);
        Ok(inner.fold(array.dtype.size() as u64, |size, &n| size.saturating_mul(n)))
    }

    /// Returns the number of rows of values.
    fn length(&mut self, values: &Values) -> Result<u64, Unfit> {
        match values {
            Values::Array(file) => match self.files.open(file)?.shape[..] {
                [length] => Ok(length),
                ref other => left_out(format!("an array of shape {other:?}")),
            },
            Values::Part { file, .. } => match self.files.open(file)?.shape[..] {
                [length, ..] => Ok(length),
                [] => left_out("an array without dimensions"),
            },
            Values::Coded { codes: first, .. } | Values::Lists { starts: first, .. } => {
                self.length(first)
            }
            Values::Marked { values, .. } | Values::Zoned { values, .. } => self.length(values),
            Values::Masked { values, mask } => {
                let (length, other) = (self.length(values)?, self.length(mask)?);
                match length == other {
                    true => Ok(length),
                    false => left_out(format!("{length} values, and a mask of length {other}")),
                }
            }
        }
    }

    /// Returns the column of values that are cut into batches. `parts`: how text in parts of rows is shown.
    fn values(
        &mut self,
        values: &Values,
        batches: Batches,
        parts: TextForm,
    ) -> Result<Column, Unfit> {
        match values {
            Values::Array(file) => {
                let array = self.files.open(file)?;
                let text = TextForm::Measured;
                self.part(&array, &array.dtype, (&[], 0), text, batches)
            }
            Values::Part {
                file,
                member,
                at,
                dtype,
            } => {
                let array = self.shared(file)?;
                let inner = array.shape.get(1..).unwrap_or_default();
                let (found, mut dims, mut place) = match member {
                    None => (&array.dtype, inner.to_vec(), 0),
                    Some(name) => {
                        let DType::Struct { fields, .. } = &array.dtype else {
                            return left_out("its elements are no compounds");
                        };
                        let mut named = fields.iter().filter(|field| field.name == *name);
                        let (Some(field), None) = (named.next(), named.next()) else {
                            return left_out("two members have its name, or none");
                        };
                        if !inner.is_empty() {
                            return left_out("compounds in more than one dimension");
                        }
                        (&field.dtype, field.shape.clone(), field.offset)
                    }
                };
                if let Some(at) = *at {
                    let count = dims
                        .iter()
                        .try_fold(1_u64, |n, &d| n.checked_mul(d))
                        .filter(|&count| at < count);
                    let offset = count.and_then(|_| usize::try_from(at).ok());
                    let Some(at) = offset else {
                        return left_out(format!("there is no value {at} in a row"));
                    };
                    place = place.saturating_add(at.saturating_mul(found.size()));
                    dims.clear();
                }
                let found = match dtype {
                    Some(other) if other.size() == found.size() => other,
                    Some(_) => return left_out("values of another size than their meaning"),
                    None => found,
                };
                self.part(&array, found, (&dims, place), parts, batches)
            }
            Values::Coded {
                codes,
                values,
                ordered,
            } => {
                let codes = self.values(codes, batches, parts)?;
                let length = self.length(values)?;
                let values = self.values(values, Batches::one(length), TextForm::Measured)?;
                let dictionary = Dictionary {
                    values: Box::new(values),
                    length,
                    is_ordered: *ordered,
                };
                dictionary.check()?;
                self.making(batches, TextForm::Measured)
                    .coded(codes, dictionary)
            }
            Values::Masked { values, mask } => {
                let values = self.values(values, batches, parts)?;
                let mask = self.values(mask, batches, parts)?;
                self.making(batches, TextForm::Measured)
                    .masked(values, &mask)
            }
            Values::Marked { values, missing } => {
                let values = self.values(values, batches, parts)?;
                self.making(batches, TextForm::Measured)
                    .marked(values, missing)
            }
            Values::Zoned { values, zone } => self.values(values, batches, parts)?.in_zone(zone),
            Values::Lists { starts, values } => {
                let starts = self.values(starts, batches, parts)?;
                let length = self.length(values)?;
                let values = self.values(values, Batches::one(length), parts)?;
                self.making(batches, TextForm::Measured)
                    .lists(starts, values, length)
            }
        }
    }

    fn making(&mut self, batches: Batches, text: TextForm) -> Making<'_> {
        Making {
            batches,
            text,
            survey: self.survey,
        }
    }

    /// Returns an array for one of the columns in it. Each has a reader of its own: a block that one has read to its
    /// end stays for the others, and each has its own pattern of access.
    fn shared(&mut self, file: &Arc<dyn VirtualFile>) -> Result<NpyArray, Unfit> {
        let known = self.files.open(file)?;
        let array = NpyArray::shown(&file.open()?)?;
        match (&array.dtype, &array.shape) == (&known.dtype, &known.shape) {
            true => Ok(array),
            false => left_out("it changed while it was opened"),
        }
    }

    /// Returns the column of the elements of a type at a place in each row of an array.
    fn part(
        &mut self,
        array: &NpyArray,
        dtype: &DType,
        (dims, place): (&[u64], usize),
        text: TextForm,
        batches: Batches,
    ) -> Result<Column, Unfit> {
        let inner = array.shape.iter().skip(1);
        let stride = inner.into_iter().try_fold(array.dtype.size(), |size, &n| {
            size.checked_mul(usize::try_from(n).ok()?)
        });
        let Some(stride) = stride else {
            return left_out("rows larger than this machine can address");
        };
        let rows = Rows {
            bytes: array.data.clone(),
            stride,
        };
        self.making(batches, text)
            .column(dtype, dims, &rows, &[place])
    }
}

/// Returns the rows of a chunk of an array.
fn chunk_rows(file: &Arc<dyn VirtualFile>) -> Option<u64> {
    let array = file.clone().array().ok()??;
    let described = array.describe().ok()?;
    described.details.chunks?.first().copied()
}

/// The most bytes of one value of the metadata.
const LONGEST_METADATA: usize = 64 << 10;

/// Returns what attributes say beyond how an object is stored.
fn metadata(attributes: &[Attribute], format: &dyn Format) -> HashMap<String, String> {
    let said = |attribute: &Attribute| {
        let name = std::str::from_utf8(&attribute.name).ok()?;
        if attribute::refused(name).is_some() || format.source().is_mark(&attribute.name) {
            return None;
        }
        let value = attribute.value.as_ref().ok()?;
        let text = match info::value(value) {
            Json::String(text) => text,
            other => other.to_string(),
        };
        (text.len() <= LONGEST_METADATA).then(|| (name.to_owned(), text))
    };
    attributes.iter().filter_map(said).collect()
}
