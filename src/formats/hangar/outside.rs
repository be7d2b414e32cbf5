//! A collection file of Hangar on its own, without the repository that knows what its rows are.
//!
//! Shown are the rows that were written, by dataset. They carry no checksum here; a row is taken to have the shape
//! that the file was made for.

use std::collections::BTreeMap;
use std::sync::{Arc, OnceLock};

use serde_json::{Value as Json, json};

use super::rows::Rows;
use super::schema::npy_size;
use crate::dataset::opened::OpenStore;
use crate::error::{Error, Result};
use crate::hdf5::{Attribute, H5Error, Value};
use crate::io::content::{Concat, Content, Lazy, Literal};
use crate::io::file::Ownership;
use crate::npy;
use crate::tree::info;
use crate::tree::{Directory, Listing, Node, VirtualFile};

/// Attributes of the root group that Hangar gives every collection file.
const MARKS: [&[u8]; 3] = [b"HANGAR_VERSION", b"schema_shape", b"collection_max_size"];

/// A file of backend `00` or `01`.
struct File {
    store: Arc<OpenStore>,
    attributes: Vec<Attribute>,
    /// By number; those that cannot be read say why.
    datasets: BTreeMap<u32, std::result::Result<Arc<Rows>, String>>,
    /// The shape of a sample.
    shape: Vec<u64>,
}

/// The root of an HDF5 file, if it is a collection of Hangar.
pub fn root(store: &Arc<OpenStore>) -> Result<Option<Arc<dyn Directory>>> {
    if !super::is_wanted(store.context.options.kind) {
        return Ok(None);
    }
    let h5 = &store.context.h5;
    let attributes = match h5.attributes(&store.file, store.root) {
        Ok(attributes) => attributes,
        Err(e @ (H5Error::Machine(..) | H5Error::Stale)) => return Err(e.into()),
        // A file whose attributes cannot be read is no collection.
        Err(_) => return Ok(None),
    };
    let value = |name: &[u8]| attributes.iter().find(|a| a.name == name);
    let marked = MARKS.iter().all(|name| value(name).is_some());
    let shape = value(b"schema_shape").and_then(|a| dims(a.value.as_ref().ok()?));
    let (true, Some(shape)) = (marked, shape) else {
        return Ok(None);
    };
    let mut datasets = BTreeMap::new();
    for (name, map) in h5.maps(&store.file, Vec::new())? {
        if let Ok(number) = String::from_utf8_lossy(&name).parse() {
            let rows = map.and_then(|map| {
                let rows = Rows::new(map, store.file.identity);
                rows.map(Arc::new).map_err(|e| e.message)
            });
            datasets.insert(number, rows);
        }
    }
    let file = File {
        store: store.clone(),
        attributes,
        datasets,
        shape,
    };
    Ok(Some(Arc::new(OutsideDirectory {
        file: Arc::new(file),
        dataset: None,
        listing: OnceLock::new(),
    })))
}

/// The whole numbers of an attribute.
fn dims(value: &Value) -> Option<Vec<u64>> {
    match info::value(value) {
        Json::Array(list) => list.iter().map(Json::as_u64).collect(),
        Json::Number(n) => n.as_u64().map(|n| vec![n]),
        _ => None,
    }
}

/// The file's datasets, or the rows of one.
struct OutsideDirectory {
    file: Arc<File>,
    dataset: Option<(u32, Arc<Rows>)>,
    listing: OnceLock<Arc<Listing>>,
}

impl OutsideDirectory {
    fn make(&self) -> Listing {
        let mut entries = Vec::new();
        let mut left_out = Vec::new();
        match &self.dataset {
            None => {
                for (number, rows) in &self.file.datasets {
                    match rows {
                        Ok(rows) if !rows.written().is_empty() => {
                            let directory = Self {
                                file: self.file.clone(),
                                dataset: Some((*number, rows.clone())),
                                listing: OnceLock::new(),
                            };
                            let name = number.to_string().into_bytes();
                            entries.push((name, Node::Directory(Arc::new(directory))));
                        }
                        Ok(_) => {}
                        Err(why) => left_out.push((number.to_string().into_bytes(), why.clone())),
                    }
                }
            }
            Some((number, rows)) => {
                // A file may have been made for other shapes than this dataset's.
                let fits = rows.part(0, &self.file.shape).is_ok();
                let shape = if fits {
                    &self.file.shape[..]
                } else {
                    &rows.shape[1..]
                };
                for row in rows.written() {
                    let file = OutsideRow {
                        file: self.file.clone(),
                        dataset: *number,
                        rows: rows.clone(),
                        row,
                        shape: shape.to_vec(),
                    };
                    let name = format!("{row}.npy").into_bytes();
                    entries.push((name, Node::File(Arc::new(file))));
                }
            }
        }
        Listing::new(entries, left_out, Vec::new())
    }
}

impl Directory for OutsideDirectory {
    fn ownership(&self) -> Ownership {
        self.file.store.file.ownership
    }

    fn list(&self) -> Result<Arc<Listing>> {
        Ok(self.listing.get_or_init(|| Arc::new(self.make())).clone())
    }

    fn is_current(&self) -> bool {
        self.file.store.file.is_current()
    }

    fn info(&self) -> Result<Json> {
        let listing = self.list()?;
        let left_out: Vec<Json> = listing
            .left_out
            .iter()
            .map(|(name, why)| json!({ "name": String::from_utf8_lossy(name), "reason": why }))
            .collect();
        let path = match &self.dataset {
            Some((number, _)) => format!("/{number}"),
            None => "/".into(),
        };
        Ok(json!({
            "kind": "hangar",
            "file": self.file.store.file.path.to_string_lossy(),
            "path": path,
            "entries": listing.len(),
            "left_out": left_out,
            "attributes": match self.dataset {
                Some(_) => json!({}),
                None => info::attributes(&self.file.attributes),
            },
        }))
    }

    fn attributes(&self) -> Result<Vec<Attribute>> {
        Ok(match self.dataset {
            Some(_) => Vec::new(),
            None => self.file.attributes.clone(),
        })
    }
}

/// A row of a dataset.
struct OutsideRow {
    file: Arc<File>,
    dataset: u32,
    rows: Arc<Rows>,
    row: u64,
    shape: Vec<u64>,
}

impl VirtualFile for OutsideRow {
    fn ownership(&self) -> Ownership {
        self.file.store.file.ownership
    }

    fn size(&self) -> Result<u64> {
        npy_size(&self.rows.dtype, &self.shape)
    }

    fn open(&self) -> Result<Arc<dyn Content>> {
        let header = npy::header(&self.rows.dtype, &self.shape);
        let len = self.size()? - header.len() as u64;
        let (file, rows, row) = (self.file.clone(), self.rows.clone(), self.row);
        let count = rows.part(row, &self.shape)?;
        let dataset = self.dataset;
        let bytes = Lazy::new(len, move || {
            let store = &file.store;
            let bytes = rows.read(&store.context.h5, &store.file, row, &count, true);
            let about = |e: Error| e.about(format!("dataset {dataset}, row {row}"));
            let missing = || Error::damaged("never written");
            bytes
                .and_then(|bytes| bytes.ok_or_else(missing))
                .map_err(about)
        });
        Ok(Arc::new(Concat::new([
            Arc::new(Literal(header)) as Arc<dyn Content>,
            Arc::new(bytes),
        ])))
    }

    fn version(&self) -> u64 {
        self.file.store.file.identity.number()
    }

    fn is_current(&self) -> bool {
        self.file.store.file.is_current()
    }

    fn info(&self) -> Result<Json> {
        Ok(json!({
            "kind": "hangar",
            "file": self.file.store.file.path.to_string_lossy(),
            "path": format!("/{}", self.dataset),
            "row": self.row,
            "dtype": self.rows.dtype.json(),
            "shape": self.shape,
        }))
    }
}
