//! One object of a daf store (an item, axis, vector or matrix): its parts, whether daf can read it, and its files in
//! the view.
//!
//! Judging an object reads no elements except text, which must be measured, and the indices of sparse matrices, whose
//! last column matters.

use std::sync::Arc;

use serde_json::{Value as Json, json};
use xxhash_rust::xxh3::Xxh3;

use super::array::{self, TextArray};
use super::csv::{Blocks, Table};
use super::names::{Meaning, Suffix, meaning};
use super::sparse::{self, SparseFacts, SparseParts};
use super::yaml;
use crate::formats::daf::rules::check_entries;
use crate::store::encode::{NpyArray, text};
use crate::tree::VirtualFile;
use crate::views::unfit::{Unfit, left_out};
use npyfs_base::error::{Error, Result};
use npyfs_hdf5::Attribute;
use npyfs_io::content::{Content, InMemory};
use npyfs_io::file::Ownership;

/// The most entries of an axis that are compared with each other.
const MOST_ENTRIES: u64 = 32 << 20;

/// The files of the store that make up an object.
#[derive(Clone)]
pub(super) enum DatumParts {
    Array(Arc<dyn VirtualFile>),
    Sparse(SparseParts),
}

impl DatumParts {
    /// Returns all of the files.
    pub(super) fn files(&self) -> Vec<Arc<dyn VirtualFile>> {
        match self {
            Self::Array(file) => vec![file.clone()],
            Self::Sparse(parts) => parts.files().map(Arc::clone).to_vec(),
        }
    }
}

/// An axis of an object.
#[derive(Clone)]
pub(super) struct ObjectAxis {
    pub file: Arc<dyn VirtualFile>,
    pub facts: Arc<Facts>,
}

/// The entries of an axis.
pub(super) struct AxisFacts {
    /// The number of entries.
    entries: u64,
    /// The reason to report if an entry occurs twice.
    twice: Option<String>,
    /// Whether the entries are sorted by code points, without duplicates.
    is_sorted: bool,
    blocks: Arc<Blocks>,
}

/// Facts about an object that daf can read.
pub(super) enum Facts {
    /// An item, with the length of its YAML in bytes.
    Item(u64),
    Axis(AxisFacts),
    /// Text along one axis or two.
    Text(Arc<Blocks>),
    /// Numbers along one axis or two: their YAML, and their length in bytes.
    Dense(Vec<u8>, u64),
    Sparse(SparseFacts),
}

impl Facts {
    /// Returns the suffixes of its files.
    pub(super) fn suffixes(&self) -> &'static [Suffix] {
        match self {
            Self::Item(_) => &[Suffix::Yaml],
            Self::Axis(_) | Self::Text(_) => &[Suffix::Csv],
            Self::Dense(..) => &[Suffix::Array, Suffix::Yaml],
            Self::Sparse(_) => &[Suffix::Data, Suffix::Indices, Suffix::Indptr, Suffix::Yaml],
        }
    }

    /// Returns the approximate memory it occupies in bytes.
    pub(super) fn weight(&self) -> u64 {
        match self {
            Self::Axis(AxisFacts { blocks, .. }) | Self::Text(blocks) => blocks.weight(),
            Self::Item(_) | Self::Dense(..) | Self::Sparse(_) => 0,
        }
    }

    /// Returns the length of a file in bytes.
    pub(super) fn size(&self, suffix: Suffix) -> u64 {
        match (self, suffix) {
            (Self::Item(len), _) | (Self::Dense(_, len), Suffix::Array) => *len,
            (Self::Axis(AxisFacts { blocks, .. }) | Self::Text(blocks), _) => blocks.len(),
            (Self::Dense(yaml, _), _) => yaml.len() as u64,
            (Self::Sparse(facts), suffix) => facts.size(suffix),
        }
    }
}

/// An object that daf can read.
pub(super) struct Datum {
    pub own: String,
    pub parts: DatumParts,
    pub along: Vec<ObjectAxis>,
    pub facts: Arc<Facts>,
    /// The most bytes of text that is shown.
    pub text_limit: u64,
}

/// Determines the facts about an object.
pub(super) fn judge(
    own: &str,
    parts: &DatumParts,
    along: &[ObjectAxis],
    text_limit: u64,
) -> std::result::Result<Facts, Unfit> {
    let axes: Vec<&AxisFacts> = along
        .iter()
        .filter_map(|along| match &*along.facts {
            Facts::Axis(axis) => Some(axis),
            _ => None,
        })
        .collect();
    let facts = match parts {
        DatumParts::Array(file) => judge_array(own, file, along, &axes, text_limit)?,
        DatumParts::Sparse(parts) => match axes.as_slice() {
            [rows, columns] => {
                Facts::Sparse(sparse::judge(parts, (rows.entries, columns.entries))?)
            }
            _ => return left_out("a sparse matrix lies along two axes"),
        },
    };
    if !facts.suffixes().iter().all(|suffix| suffix.fits(own)) {
        return left_out("with the endings of daf's files its name is longer than 255 bytes");
    }
    Ok(facts)
}

fn judge_array(
    own: &str,
    file: &Arc<dyn VirtualFile>,
    along: &[ObjectAxis],
    axes: &[&AxisFacts],
    text_limit: u64,
) -> std::result::Result<Facts, Unfit> {
    let meaning = meaning(own);
    if meaning == Meaning::Item {
        if file.info()?.get("attribute").is_none() {
            return left_out("daf does not look at it: it is no item, and has no # in its name");
        }
        let yaml = yaml::item(&array::open(&**file)?)?;
        return Ok(Facts::Item(yaml.len() as u64));
    }
    let array = array::open(&**file)?;
    if let Meaning::Axis(_) = meaning {
        return judge_axis(own, array, text_limit);
    }
    let lengths: Vec<u64> = axes.iter().map(|axis| axis.entries).collect();
    array::check_shape(&array.shape, &lengths)?;
    if !text::is_text(&array) {
        let name = array::name(&array.dtype)?;
        let yaml = yaml::dense(name, &array.shape);
        return Ok(Facts::Dense(yaml, array.data.len()));
    }
    if let Some(twice) = axes.iter().find_map(|axis| axis.twice.as_ref()) {
        return left_out(format!(
            "it is text along an axis of which {twice}: daf would give both one value"
        ));
    }
    let table = table(&meaning, array, along, text_limit)?;
    let blocks = match axes {
        [rows, columns] => {
            if !rows.is_sorted || !columns.is_sorted {
                return left_out(
                    "daf would permute its values: it is text along an axis whose entries are not sorted",
                );
            }
            measure_matrix(&table, columns.entries)?
        }
        _ => table.measure(|_, _| {})?,
    };
    Ok(Facts::Text(Arc::new(blocks)))
}

/// Measures a matrix of text. It is left out if a row or a column has no value, as daf would drop that row or column.
fn measure_matrix(table: &Table, columns: u64) -> std::result::Result<Blocks, Unfit> {
    let mut seen = vec![false; usize::try_from(columns).unwrap_or(0)];
    let (mut row, mut has_value, mut empty) = (0, false, None);
    let blocks = table.measure(|number, value| {
        let at = number / columns.max(1);
        if at != row {
            if !has_value {
                empty = empty.or(Some(row));
            }
            (row, has_value) = (at, false);
        }
        if value.is_some() {
            has_value = true;
            let column = usize::try_from(number % columns.max(1)).unwrap_or(usize::MAX);
            if let Some(seen) = seen.get_mut(column) {
                *seen = true;
            }
        }
    })?;
    if !has_value {
        empty = empty.or(Some(row));
    }
    if let Some(row) = empty {
        return left_out(format!("row {row} is None throughout: daf would drop it"));
    }
    if let Some(column) = seen.iter().position(|seen| !seen) {
        return left_out(format!(
            "column {column} is None throughout: daf would drop it"
        ));
    }
    Ok(blocks)
}

fn judge_axis(own: &str, array: NpyArray, text_limit: u64) -> std::result::Result<Facts, Unfit> {
    let &[entries] = array.shape.as_slice() else {
        let shape = &array.shape;
        return left_out(format!(
            "an axis is a vector of text, this has shape {shape:?}"
        ));
    };
    if !text::is_text(&array) {
        let dtype = array.dtype.name();
        return left_out(format!("an axis is a vector of text, this is {dtype}"));
    }
    if entries > MOST_ENTRIES {
        return left_out(format!(
            "an axis of {entries} entries: at most {MOST_ENTRIES} are shown"
        ));
    }
    let table = table(&meaning(own), array.clone(), &[], text_limit)?;
    let mut before = Vec::new();
    let mut is_sorted = true;
    let blocks = table.measure(|number, entry| {
        let entry = entry.unwrap_or_default();
        is_sorted &= number == 0 || before.as_slice() < entry;
        before.clear();
        before.extend_from_slice(entry);
    })?;
    // Comparing unsorted entries needs memory.
    let compared = match is_sorted {
        true => Ok(()),
        false => check_entries(&array),
    };
    let twice = match compared {
        Ok(()) => None,
        Err(e) if e.errno() == libc::EINVAL => Some(e.message),
        Err(e) => return Err(e.into()),
    };
    Ok(Facts::Axis(AxisFacts {
        entries,
        twice,
        is_sorted,
        blocks: Arc::new(blocks),
    }))
}

/// Returns the CSV file of text.
fn table(
    meaning: &Meaning<'_>,
    values: NpyArray,
    along: &[ObjectAxis],
    text_limit: u64,
) -> std::result::Result<Table, Unfit> {
    let entries = |along: &ObjectAxis| TextArray::new(array::open(&*along.file)?, text_limit);
    let values = TextArray::new(values, text_limit)?;
    match (meaning, along) {
        (Meaning::Axis(name), _) => Ok(Table::axis(name, values)),
        (Meaning::Vector { axis, property }, [along]) => {
            Ok(Table::vector((axis, property), entries(along)?, values))
        }
        (
            Meaning::Matrix {
                rows,
                columns,
                property,
            },
            [along_rows, along_columns],
        ) => {
            let entries = [entries(along_rows)?, entries(along_columns)?];
            Table::matrix((rows, columns, property), entries, values)
        }
        _ => left_out("text along no axis"),
    }
}

impl Datum {
    /// Returns the content of a file.
    pub(super) fn open(&self, suffix: Suffix) -> Result<Arc<dyn Content>> {
        let content: Arc<dyn Content> = match (&*self.facts, &self.parts) {
            (Facts::Sparse(facts), DatumParts::Sparse(parts)) => facts.open(parts, suffix)?,
            (Facts::Item(_), DatumParts::Array(file)) => {
                Arc::new(InMemory(yaml::item(&array::open(&**file)?)?))
            }
            (Facts::Dense(yaml, _), _) if suffix == Suffix::Yaml => {
                Arc::new(InMemory(yaml.clone()))
            }
            (Facts::Dense(..), DatumParts::Array(file)) => array::open(&**file)?.little().data,
            (
                Facts::Axis(AxisFacts { blocks, .. }) | Facts::Text(blocks),
                DatumParts::Array(file),
            ) => {
                let values = array::open(&**file)?;
                let table = table(&meaning(&self.own), values, &self.along, self.text_limit)?;
                Arc::new(super::csv::TableContent::new(table, blocks.clone()))
            }
            _ => return Err(Error::damaged("not the parts that were judged")),
        };
        match content.len() == self.facts.size(suffix) {
            true => Ok(content),
            false => Err(Error::damaged("not as long as it was when it was judged")),
        }
    }
}

/// One of the files of an object.
pub(super) struct DatumFile {
    pub datum: Arc<Datum>,
    pub suffix: Suffix,
}

impl DatumFile {
    /// Returns the files of the store that determine its content, its own first.
    fn sources(&self) -> Vec<Arc<dyn VirtualFile>> {
        let Datum { parts, along, .. } = &*self.datum;
        let mut sources = parts.files();
        if self.suffix == Suffix::Csv {
            sources.extend(along.iter().map(|along| along.file.clone()));
        }
        sources
    }
}

/// Returns a number that identifies the versions of files.
pub(super) fn version<'a>(files: impl IntoIterator<Item = &'a Arc<dyn VirtualFile>>) -> u64 {
    let mut hash = Xxh3::new();
    for file in files {
        hash.update(&file.version().to_le_bytes());
    }
    hash.digest()
}

impl VirtualFile for DatumFile {
    fn ownership(&self) -> Ownership {
        Ownership::joined(self.sources().iter().map(|file| file.ownership()))
    }

    fn size(&self) -> Result<u64> {
        Ok(self.datum.facts.size(self.suffix))
    }

    fn open(&self) -> Result<Arc<dyn Content>> {
        self.datum.open(self.suffix)
    }

    fn version(&self) -> u64 {
        version(&self.sources())
    }

    fn is_current(&self) -> bool {
        self.sources().iter().all(|file| file.is_current())
    }

    fn info(&self) -> Result<Json> {
        let what = match meaning(&self.datum.own) {
            Meaning::Item => "item",
            Meaning::Axis(_) => "axis",
            Meaning::Vector { .. } => "vector",
            Meaning::Matrix { .. } => match self.datum.parts {
                DatumParts::Array(_) => "matrix",
                DatumParts::Sparse(_) => "sparse matrix",
            },
            Meaning::Nothing(_) => "nothing",
        };
        let of = match &self.datum.parts {
            DatumParts::Array(file) => file.info()?,
            DatumParts::Sparse(parts) => json!({
                "data": parts.data.info()?,
                "indices": parts.indices.info()?,
                "indptr": parts.indptr.info()?,
            }),
        };
        Ok(json!({ "kind": "daf", "view": "daf", "datum": what, "name": self.datum.own, "of": of }))
    }

    fn attributes(&self) -> Result<Vec<Attribute>> {
        match &self.datum.parts {
            DatumParts::Array(file) => file.attributes(),
            DatumParts::Sparse(_) => Ok(Vec::new()),
        }
    }

    fn mode(&self) -> u32 {
        0o444
    }
}
