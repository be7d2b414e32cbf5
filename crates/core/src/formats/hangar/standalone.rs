//! A collection file of Hangar on its own, without the repository that knows the meaning of its rows.
//!
//! It shows the written rows, by dataset. Rows have no checksum here, and are assumed to have the shape that the file
//! was made for.

use std::collections::BTreeMap;
use std::sync::{Arc, OnceLock};

use serde_json::{Value as Json, json};

use super::rows::{Rows, never_written};
use super::schema::npy_size;
use crate::dataset::blocks::{BlockReader, BlockSource};
use crate::dataset::cache::{Key, Need};
use crate::dataset::grid::Grid;
use crate::dataset::opened::OpenStore;
use crate::tree::{Directory, Listing, Node, VirtualFile, info};
use npyfs_base::error::{Error, Result};
use npyfs_base::npy;
use npyfs_hdf5::{Attribute, H5Error, Sink, Value};
use npyfs_io::content::{Concat, Content, Data, InMemory};
use npyfs_io::file::Ownership;

/// The form number of rows in the cache.
const ROW: u32 = 34;

/// The attributes of the root group that Hangar gives every collection file.
const MARKS: [&[u8]; 3] = [b"HANGAR_VERSION", b"schema_shape", b"collection_max_size"];

/// A file of backend `00` or `01`.
struct StandaloneFile {
    store: Arc<OpenStore>,
    attributes: Vec<Attribute>,
    /// The datasets by number; a dataset that cannot be read has the reason.
    datasets: BTreeMap<u32, std::result::Result<Arc<Rows>, String>>,
    /// The shape of a sample.
    shape: Vec<u64>,
}

/// Returns the root of an HDF5 file, if the file is a collection of Hangar.
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

/// Returns the whole numbers of an attribute.
fn dims(value: &Value) -> Option<Vec<u64>> {
    match info::value(value) {
        Json::Array(list) => list.iter().map(Json::as_u64).collect(),
        Json::Number(n) => n.as_u64().map(|n| vec![n]),
        _ => None,
    }
}

/// The datasets of the file, or the rows of one.
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
                // A file may have been made for shapes other than that of this dataset.
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
        let block = RowBlock {
            file: self.file.clone(),
            rows: self.rows.clone(),
            dataset: self.dataset,
            row: self.row,
            count,
            grid: Grid::one(len),
        };
        let context = &self.file.store.context;
        let blocks = BlockReader::new(context, Arc::new(block), len, Arc::default());
        Ok(Arc::new(Concat::new([
            Arc::new(InMemory(header)) as Arc<dyn Content>,
            Arc::new(StandaloneContent(blocks)),
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

/// A row as a source of one block.
struct RowBlock {
    file: Arc<StandaloneFile>,
    rows: Arc<Rows>,
    dataset: u32,
    row: u64,
    count: Vec<u64>,
    grid: Grid,
}

impl RowBlock {
    fn about(&self, e: Error) -> Error {
        e.about(format!("dataset {}, row {}", self.dataset, self.row))
    }
}

impl BlockSource for RowBlock {
    fn grid(&self) -> &Grid {
        &self.grid
    }

    fn key(&self) -> Key {
        Key {
            file: self.file.store.file.serial,
            object: (u64::from(self.dataset) << 32) ^ self.row,
            form: ROW,
            block: 0,
        }
    }

    fn name(&self) -> String {
        self.file.store.file.path.display().to_string()
    }

    fn need(&self, _grid: &Grid, _number: u64, len: usize) -> Need {
        self.rows.need(self.row, &self.count, len)
    }

    fn fill(&self, _grid: &Grid, _number: u64, _streaming: bool, out: &mut [u8]) -> Result<()> {
        let store = &self.file.store;
        let with = (&store.context.h5, store.context.cache.pool());
        let row = (self.row, &self.count[..]);
        let read = self.rows.read(with, &store.file, row, || true, out);
        read.map_err(|e| self.about(e))
    }

    fn stream(&self, _grid: &Grid, _number: u64, sink: &mut Sink<'_>) -> Result<()> {
        if !self.rows.has(self.row) {
            return Err(self.about(never_written()));
        }
        let store = &self.file.store;
        let request = self.rows.request(self.row, &self.count)?;
        Ok(store.context.h5.stream(&store.file, request, sink)?)
    }

    /// The next file that opens the row may want the block.
    fn keeps(&self, _small: bool) -> bool {
        true
    }
}

/// The bytes of a row, decoded when they are read.
struct StandaloneContent(Arc<BlockReader>);

impl Content for StandaloneContent {
    fn len(&self) -> u64 {
        self.0.len()
    }

    fn read_at(&self, offset: u64, buf: &mut [u8]) -> Result<()> {
        self.0.read_at(offset, buf)
    }

    fn share(&self, offset: u64, len: usize) -> Result<Option<Data>> {
        self.0.share(offset, len)
    }
}
