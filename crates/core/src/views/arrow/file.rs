//! The file of a table: what is known of it before it is opened, and how messages and buffers lie in it.
//!
//! A file has a size once all about its table is found out. It is opened for that version of the table alone: a table
//! that is another one by then is refused as stale.

use std::sync::Arc;

use arrow_schema::Schema;
use serde_json::{Value as Json, json};
use xxhash_rust::xxh3::Xxh3;

use super::batches::Batches;
use super::column::{Column, Finding, Survey};
use super::message::{self, Arrays, Body, Place};
use super::table::{self, OpenTable};
use crate::store::format::Format;
use crate::store::table::Table;
use crate::tree::VirtualFile;
use crate::views::unfit::{Unfit, left_out};
use npyfs_base::error::{Error, ErrorKind, Result};
use npyfs_io::content::{Concat, Content, InMemory};
use npyfs_io::file::Ownership;

/// What is known of a version of a table.
pub(super) struct Facts {
    size: u64,
    rows: u64,
    schema: Schema,
    left_out: Vec<(String, String)>,
    findings: Vec<std::result::Result<Arc<Finding>, String>>,
}

impl Facts {
    /// Finds out all about a table.
    pub(super) fn find(table: &Table, format: &dyn Format) -> std::result::Result<Self, Unfit> {
        let mut survey = Survey::default();
        let open = table::open(table, &mut survey)?;
        let schema = table::schema(&open, table, format)?;
        let rows = open.batches.rows;
        let left_out = open.left_out.clone();
        Ok(Self {
            size: contents(&schema, open)?.len(),
            rows,
            schema,
            left_out,
            findings: survey.into_findings(),
        })
    }

    /// Returns the approximate memory it takes.
    pub(super) fn weight(&self) -> u64 {
        let fields = self.schema.fields().iter();
        let fields = fields.map(|field| 64 + field.size() as u64);
        let texts = self.left_out.iter();
        let texts = texts.map(|(name, about)| 64 + (name.len() + about.len()) as u64);
        let findings = self.findings.iter().flatten();
        fields
            .chain(texts)
            .chain(findings.map(|finding| finding.weight()))
            .sum()
    }

    /// Returns columns that are left out, with the reasons.
    pub(super) fn left_out(&self) -> &[(String, String)] {
        &self.left_out
    }
}

fn contents(schema: &Schema, open: OpenTable) -> std::result::Result<Concat, Unfit> {
    let columns: Vec<_> = open.columns.into_iter().map(|(_, column)| column).collect();
    match laid_out(schema, &columns, open.batches) {
        Some(file) => Ok(file),
        None => left_out("it is larger than a file can be"),
    }
}

/// Returns a number that identifies the version of a table.
pub(super) fn version(table: &Table) -> u64 {
    let mut hash = Xxh3::new();
    for column in &table.columns {
        hash.update(column.name.as_bytes());
        hash.update(&[0]);
        hash.update(column.values.meaning().as_bytes());
        for file in column.values.files() {
            hash.update(&file.version().to_le_bytes());
        }
    }
    for (name, why) in &table.left_out {
        hash.update(name.as_bytes());
        hash.update(why.as_bytes());
    }
    hash.digest()
}

/// A table as an Arrow file.
pub(super) struct TableFile {
    pub(super) table: Arc<Table>,
    pub(super) facts: Arc<Facts>,
}

impl VirtualFile for TableFile {
    fn ownership(&self) -> Ownership {
        Ownership::joined(self.table.files().map(|file| file.ownership()))
    }

    fn size(&self) -> Result<u64> {
        Ok(self.facts.size)
    }

    fn open(&self) -> Result<Arc<dyn Content>> {
        let mut survey = Survey::known(self.facts.findings.clone());
        let open = table::open(&self.table, &mut survey)?;
        let fields = self.facts.schema.fields().iter();
        let known = fields.map(|field| (field.name(), field.data_type()));
        let is_same = known.eq(open
            .columns
            .iter()
            .map(|(name, column)| (name, &column.dtype)));
        let contents = contents(&self.facts.schema, open)?;
        if !is_same || contents.len() != self.facts.size {
            let why = "the table is not what it was when it was looked at";
            return Err(Error::new(ErrorKind::Stale, why));
        }
        Ok(Arc::new(contents))
    }

    fn version(&self) -> u64 {
        version(&self.table)
    }

    fn is_current(&self) -> bool {
        self.table.files().all(|file| file.is_current())
    }

    fn info(&self) -> Result<Json> {
        let facts = &self.facts;
        let columns = facts.schema.fields().iter();
        let columns = columns
            .map(|field| json!({ "name": field.name(), "type": field.data_type().to_string() }));
        let left_out = facts.left_out.iter();
        let left_out = left_out.map(|(name, why)| json!({ "name": name, "reason": why }));
        Ok(json!({
            "kind": "table",
            "view": "arrow",
            "rows": facts.rows,
            "columns": columns.collect::<Vec<_>>(),
            "left_out": left_out.collect::<Vec<_>>(),
        }))
    }

    fn mode(&self) -> u32 {
        0o444
    }
}

/// A file under construction.
struct Building {
    parts: Vec<Arc<dyn Content>>,
    end: u64,
}

impl Building {
    fn push(&mut self, bytes: Vec<u8>) {
        self.end = self.end.saturating_add(bytes.len() as u64);
        self.parts.push(Arc::new(InMemory(bytes)));
    }

    /// Adds a message, which `make` makes for its offset, and its body.
    fn message(&mut self, body: Body, make: impl FnOnce(&Arrays, u64) -> Vec<u8>) -> Place {
        let at = self.end;
        let message = make(&body.arrays, at);
        let metadata = message.len() as u64;
        self.push(message);
        self.end = self.end.saturating_add(body.arrays.body);
        self.parts.extend(body.parts);
        Place {
            at,
            metadata,
            body: body.arrays.body,
        }
    }
}

/// Returns the file of a table; `None` if it is larger than a file can be.
fn laid_out(schema: &Schema, columns: &[Column], batches: Batches) -> Option<Concat> {
    let mut file = Building {
        parts: Vec::new(),
        end: 0,
    };
    file.push(message::head());
    file.push(message::schema(schema, file.end));
    let mut dictionaries = Vec::new();
    for dictionary in columns.iter().filter_map(Column::dictionary) {
        let mut body = Body::default();
        dictionary.values.add(0, &(0..dictionary.length), &mut body);
        let id = dictionaries.len() as u64;
        let make = |arrays: &Arrays, at| message::dictionary(id, dictionary.length, arrays, at);
        dictionaries.push(file.message(body, make));
        i64::try_from(file.end).ok()?;
    }
    let mut places = Vec::new();
    for (number, rows) in batches.iter().enumerate() {
        let mut body = Body::default();
        columns
            .iter()
            .for_each(|column| column.add(number, &rows, &mut body));
        let length = rows.end - rows.start;
        places.push(file.message(body, |arrays, at| message::batch(length, arrays, at)));
        i64::try_from(file.end).ok()?;
    }
    file.push(message::tail(schema, &dictionaries, &places));
    i64::try_from(file.end).ok()?;
    Some(Concat::of_extents(file.parts))
}
