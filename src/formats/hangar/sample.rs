//! A sample as one file: an array with its header, text or bytes as they are.

use std::sync::Arc;

use serde_json::{Map, Value as Json, json};

use super::column::{Column, Layout, parts};
use super::key;
use super::record::{Record, RowRecord};
use super::repository::Repository;
use super::schema::SampleKind;
use super::snapshot::ColumnView;
use super::whole::Whole;
use crate::error::{Error, ErrorKind, Result};
use crate::hdf5::{ElementType, GroupMember, Resolved};
use crate::io::content::{Concat, Content, Data, InMemory};
use crate::io::file::Ownership;
use crate::npy;
use crate::npy::dtype::DType;
use crate::tree::VirtualFile;
use crate::tree::info;

/// The bytes of a sample, decoded when they are read.
pub struct SampleContent {
    /// The repository.
    pub repository: Arc<Repository>,
    /// The record that says where the sample is.
    pub record: Record,
    /// Type of the elements; `None` for text and bytes.
    pub dtype: Option<DType>,
    /// Bytes of the sample.
    pub len: u64,
    /// The column that the record was looked up for, and the place in it.
    pub origin: Option<(Arc<Column>, usize)>,
    /// The decoded sample, if the cache will not hold it.
    held: std::sync::Mutex<Option<Whole>>,
}

impl SampleContent {
    /// Makes the content of a sample that nobody has read yet.
    pub fn new(
        repository: &Arc<Repository>,
        record: Record,
        dtype: Option<DType>,
        len: u64,
    ) -> Self {
        Self {
            repository: repository.clone(),
            record,
            dtype,
            len,
            origin: None,
            held: std::sync::Mutex::default(),
        }
    }

    fn bytes(&self) -> Result<Whole> {
        let mut held = self.held.lock().unwrap_or_else(|e| e.into_inner());
        if let Some(bytes) = &*held {
            return Ok(bytes.clone());
        }
        let (repository, dtype) = (&self.repository, self.dtype.as_ref());
        let bytes = repository.whole(&self.record, dtype, self.len);
        let bytes = bytes.inspect_err(|_| {
            if let Some((column, at)) = &self.origin {
                self.repository.doubt(column, *at);
            }
        })?;
        if bytes.len() != self.len {
            let why = format!("{} bytes, its record needs {}", bytes.len(), self.len);
            return Err(Error::damaged(why).about(&self.record));
        }
        let kept = match &bytes {
            Whole::Memory(block) => {
                matches!(self.record, Record::Hdf5 { .. })
                    && repository.context.cache.holds(block.len())
            }
            Whole::File(_) => false,
        };
        if !kept {
            *held = Some(bytes.clone());
        }
        Ok(bytes)
    }
}

impl Content for SampleContent {
    fn len(&self) -> u64 {
        self.len
    }

    fn read_at(&self, offset: u64, buf: &mut [u8]) -> Result<()> {
        self.bytes()?.read_at(offset, buf)
    }

    fn give(&self, buf: &mut [u8]) -> Result<()> {
        let repository = &self.repository;
        if repository.decoded(&self.record, self.dtype.as_ref(), buf) {
            return Ok(());
        }
        self.read_at(0, buf)
    }

    fn share(&self, offset: u64, len: usize) -> Result<Option<Data>> {
        Ok(self.bytes()?.share(offset, len))
    }
}

/// A sample of a column.
pub struct SampleFile {
    /// The column.
    pub view: Arc<ColumnView>,
    /// Its place in the column.
    pub at: u32,
}

impl SampleFile {
    fn at(&self) -> usize {
        self.at as usize
    }

    fn record(&self) -> Result<Record> {
        self.view.repository().record(&self.view.column, self.at())
    }
}

impl VirtualFile for SampleFile {
    fn ownership(&self) -> Ownership {
        self.view.snapshot.ownership(self.view.time(self.at()))
    }

    fn size(&self) -> Result<u64> {
        Ok(self.view.size(self.at())?.unwrap_or(0))
    }

    fn open(&self) -> Result<Arc<dyn Content>> {
        let view = &self.view;
        let schema = view.schema()?;
        let record = self.record()?;
        view.repository()
            .is_present(&record)
            .inspect_err(|_| view.repository().doubt(&view.column, self.at()))?;
        let (dtype, len) = match &schema.samples {
            SampleKind::Text | SampleKind::Bytes => {
                let len = view.repository().length(&view.column, self.at())?;
                let missing = || view.repository().no_value(&record);
                (None, len.ok_or_else(missing)?)
            }
            SampleKind::Arrays {
                dtype,
                shape,
                fixed,
            } => {
                let found = record.shape().unwrap_or_default();
                if *fixed && found != shape {
                    let why = format!("its shape is {found:?}, the column's schema says {shape:?}");
                    return Err(Error::damaged(why).about(&record));
                }
                let len = npy::payload_len(dtype, found);
                let large = || Error::new(ErrorKind::TooLarge, "larger than a file can be");
                (Some(dtype.clone()), len.ok_or_else(large)?)
            }
        };
        let header = view.header(record.shape())?;
        let mut bytes = SampleContent::new(view.repository(), record, dtype, len);
        bytes.origin = Some((view.column.clone(), self.at()));
        Ok(Arc::new(Concat::new([
            Arc::new(InMemory(header)) as Arc<dyn Content>,
            Arc::new(bytes),
        ])))
    }

    /// The content follows from the digest, wherever and whenever it is shown.
    fn version(&self) -> u64 {
        let hash = self.view.column.hash(self.at());
        let mut first = [0; 8];
        first.copy_from_slice(&hash[..8]);
        u64::from_le_bytes(first) ^ u64::from(self.view.column.kind)
    }

    fn is_current(&self) -> bool {
        self.view.snapshot.is_current()
    }

    fn is_lasting(&self) -> bool {
        self.view.snapshot.is_lasting() && matches!(self.view.size(self.at()), Ok(Some(_)))
    }

    fn info(&self) -> Result<Json> {
        let column = &self.view.column;
        let mut map = Map::new();
        map.insert("kind".into(), json!("hangar"));
        let commit = &self.view.snapshot.commit.digest;
        map.insert(
            "commit".into(),
            json!((!commit.is_empty()).then_some(commit)),
        );
        map.insert(
            "column".into(),
            json!(String::from_utf8_lossy(&self.view.name)),
        );
        let stored = column.key(self.at());
        match column.layout {
            Layout::Flat => map.insert("key".into(), key_json(stored)),
            Layout::Nested => {
                let (sample, sub) = parts(stored);
                map.insert("key".into(), json!([key_json(sample), key_json(sub)]))
            }
        };
        map.insert("digest".into(), json!(column.digest(self.at())));
        match self.record() {
            Ok(record) => describe(self.view.repository(), &record, &mut map),
            Err(e) => {
                map.insert("error".into(), json!(e.message));
            }
        }
        match self.view.schema() {
            Ok(schema) => {
                if let SampleKind::Arrays { dtype, .. } = &schema.samples {
                    map.insert("dtype".into(), dtype.json());
                }
            }
            Err(e) => {
                map.insert("error".into(), json!(e.message));
            }
        }
        map.insert(
            "changed".into(),
            json!(self.view.time(self.at()) as f64 / 1e9),
        );
        Ok(map.into())
    }
}

/// Adds what a record says, for people.
pub fn describe(repository: &Repository, record: &Record, map: &mut Map<String, Json>) {
    map.insert("record".into(), json!(record.to_string()));
    map.insert("backend".into(), json!(record.backend()));
    if let Some(shape) = record.shape() {
        map.insert("shape".into(), json!(shape));
    }
    let Some(uid) = record.uid() else {
        map.insert("fetched".into(), json!(false));
        return;
    };
    let path = repository.files.path(record.backend(), uid);
    map.insert("file".into(), json!(path.to_string_lossy()));
    if let Record::Hdf5(row) = record {
        map.insert("path".into(), json!(format!("/{}", row.dataset)));
        map.insert("row".into(), json!(row.row));
        if let Err(e) = stored(repository, row, map) {
            map.insert("error".into(), json!(e.message));
        }
    }
}

/// Describes the storage of the dataset that holds the row of a sample. A collection that is being written to says so.
fn stored(repository: &Repository, row: &RowRecord, map: &mut Map<String, Json>) -> Result<()> {
    let RowRecord {
        backend,
        uid,
        dataset,
        ..
    } = row;
    let (files, h5) = (&repository.files, &repository.context.h5);
    // A file of its own: what is open already may be older than what is on disk.
    let file = files.open(backend, uid)?;
    let root = h5.root(&file)?;
    match h5.resolve(&file, root, dataset.to_string().as_bytes())? {
        Resolved::Member(GroupMember::Dataset(dataset)) => {
            let details = h5.describe(&file, dataset.addr)?;
            let dtype = match &dataset.element {
                ElementType::Fixed { dtype, .. } => Some(dtype),
                _ => None,
            };
            info::details(&details, dtype, map);
            Ok(())
        }
        _ => Err(Error::damaged(format!("no dataset {dataset} in {uid}"))),
    }
}

/// A key as Hangar's users know it: a number or a text.
pub fn key_json(stored: &[u8]) -> Json {
    match key::digits(stored).and_then(|d| std::str::from_utf8(d).ok()?.parse::<u64>().ok()) {
        Some(number) => json!(number),
        None => {
            let text = key::digits(stored).unwrap_or(stored);
            json!(String::from_utf8_lossy(text))
        }
    }
}
