//! A collection file of Hangar on its own, without the repository that knows what its rows are.
//!
//! Shown are the rows that were written, by dataset. They carry no checksum here; a row is taken to have the shape
//! that the file was made for.

use std::collections::BTreeMap;
use std::sync::{Arc, OnceLock};

use serde_json::{Value as Json, json};

use super::rows::Rows;
use super::schema::npy_size;
use super::whole::Whole;
use crate::dataset::opened::OpenStore;
use crate::error::{Error, Result};
use crate::hdf5::{Attribute, H5Error, Value};
use crate::io::buffer::Buffer;
use crate::io::content::{Concat, Content, InMemory};
use crate::io::file::Ownership;
use crate::npy;
use crate::tree::info;
use crate::tree::{Directory, Listing, Node, VirtualFile};

/// The part of the cache's size that one row may take in memory, as nothing counts it.
const SHARE: u64 = 16;

/// Attributes of the root group that Hangar gives every collection file.
const MARKS: [&[u8]; 3] = [b"HANGAR_VERSION", b"schema_shape", b"collection_max_size"];

/// A file of backend `00` or `01`.
struct StandaloneFile {
    store: Arc<OpenStore>,
    attributes: Vec<Attribute>,
    /// By number; those that cannot be read say why.
    datasets: BTreeMap<u32, std::result::Result<Arc<Rows>, String>>,
    /// The shape of a sample.
    shape: Vec<u64>,
}

/// The root of an HDF5 file, if it is a collection of Hangar.
pub(super) fn root(store: &Arc<OpenStore>) -> Result<Option<Arc<dyn Directory>>> {
    let h5 = &store.context.h5;
    let attributes = match h5.attributes(&store.file, store.root) {
        Ok(attributes) => attributes,
        Err(e @ (H5Error::Machine(..) | H5Error::NotFetched(..) | H5Error::Stale)) => {
            return Err(e.into());
        }
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
    let file = StandaloneFile {
        store: store.clone(),
        attributes,
        datasets,
        shape,
    };
    Ok(Some(Arc::new(StandaloneDirectory {
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
struct StandaloneDirectory {
    file: Arc<StandaloneFile>,
    dataset: Option<(u32, Arc<Rows>)>,
    listing: OnceLock<Arc<Listing>>,
}

impl StandaloneDirectory {
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
                    let file = StandaloneRow {
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

impl Directory for StandaloneDirectory {
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
struct StandaloneRow {
    file: Arc<StandaloneFile>,
    dataset: u32,
    rows: Arc<Rows>,
    row: u64,
    shape: Vec<u64>,
}

impl VirtualFile for StandaloneRow {
    fn ownership(&self) -> Ownership {
        self.file.store.file.ownership
    }

    fn size(&self) -> Result<u64> {
        npy_size(&self.rows.dtype, &self.shape)
    }

    fn open(&self) -> Result<Arc<dyn Content>> {
        let header = npy::header(&self.rows.dtype, &self.shape);
        let len = self.size()? - header.len() as u64;
        let count = self.rows.part(self.row, &self.shape)?;
        let bytes = StandaloneContent {
            file: self.file.clone(),
            rows: self.rows.clone(),
            name: format!("dataset {}, row {}", self.dataset, self.row),
            row: self.row,
            count,
            len,
            made: OnceLock::new(),
        };
        Ok(Arc::new(Concat::new([
            Arc::new(InMemory(header)) as Arc<dyn Content>,
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

/// The bytes of a row, made when they are read.
struct StandaloneContent {
    file: Arc<StandaloneFile>,
    rows: Arc<Rows>,
    name: String,
    row: u64,
    count: Vec<u64>,
    len: u64,
    made: OnceLock<Whole>,
}

impl StandaloneContent {
    fn make(&self) -> Result<Whole> {
        let store = &self.file.store;
        let (h5, limit) = (&store.context.h5, store.context.cache.limit());
        let never = || Error::damaged("never written");
        if self.len.saturating_add(self.rows.beside(self.len)) <= limit / SHARE {
            let bytes = self
                .rows
                .read(h5, &store.file, self.row, &self.count, true)?;
            return Ok(Whole::Memory(Arc::new(Buffer::from(
                bytes.ok_or_else(never)?,
            ))));
        }
        if !self.rows.has(self.row) {
            return Err(never());
        }
        let request = self.rows.request(self.row, &self.count);
        Whole::spilled(self.len, |sink| {
            Ok(h5.stream(&store.file, request, sink)?)
        })
    }
}

impl Content for StandaloneContent {
    fn len(&self) -> u64 {
        self.len
    }

    fn read_at(&self, offset: u64, buf: &mut [u8]) -> Result<()> {
        if let Some(whole) = self.made.get() {
            return whole.read_at(offset, buf);
        }
        // Two readers may both make it; the result is the same.
        let whole = self.make().map_err(|e| e.about(&self.name))?;
        self.made.get_or_init(|| whole).read_at(offset, buf)
    }
}
