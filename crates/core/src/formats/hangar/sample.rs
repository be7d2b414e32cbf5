//! A sample as one file: an array with a header, or the bytes of a text or bytes sample as they are.

use std::sync::Arc;

use serde_json::{Map, Value as Json, json};
use xxhash_rust::xxh3::xxh3_128;

use super::column::{Column, Layout, parts};
use super::key;
use super::record::{Record, RowRecord};
use super::repository::Repository;
use super::schema::SampleKind;
use super::snapshot::ColumnView;
use crate::dataset::blocks::{BlockReader, BlockSource};
use crate::dataset::cache::{Key, Need};
use crate::dataset::grid::Grid;
use crate::tree::{VirtualFile, info};
use npyfs_base::error::{Error, ErrorKind, Result};
use npyfs_base::npy;
use npyfs_base::npy::dtype::DType;
use npyfs_hdf5::{ElementType, GroupMember, Resolved, Sink};
use npyfs_io::content::{Concat, Content, Data, InMemory};
use npyfs_io::file::Ownership;

/// The form number of samples in the cache.
const SAMPLE: u32 = 32;

/// The memory in bytes, beside the cache, that decoding a sample may take for a caller that keeps the sample.
const SPARE: usize = 1 << 20;

/// The bytes of a sample, decoded when they are read.
pub struct SampleContent {
    sample: Arc<StoredSample>,
    blocks: Arc<BlockReader>,
}

/// A sample as a source of one block.
struct StoredSample {
    repository: Arc<Repository>,
    /// The record with the location of the sample.
    record: Record,
    /// The type of the elements; `None` for text and bytes.
    dtype: Option<DType>,
    /// The column whose lookup returned the record, and the place of the sample in it.
    origin: Option<(Arc<Column>, usize)>,
    grid: Grid,
    key: Key,
}

impl SampleContent {
    /// Makes the content of a sample of `len` bytes. `dtype` is `None` for text and bytes; `origin` is the column whose
    /// lookup returned the record, and the place of the sample in it.
    pub fn new(
        repository: &Arc<Repository>,
        record: Record,
        (dtype, len): (Option<DType>, u64),
        origin: Option<(Arc<Column>, usize)>,
    ) -> Self {
        // Records with any difference are different samples.
        let name = format!("{}: {record}", repository.folder.path.display());
        let hash = xxh3_128(name.as_bytes());
        let sample = Arc::new(StoredSample {
            repository: repository.clone(),
            record,
            dtype,
            origin,
            grid: Grid::one(len),
            key: Key {
                // Both halves of the hash are used.
                file: (hash >> 64) as u64,
                object: hash as u64,
                form: SAMPLE,
                block: 0,
            },
        });
        let (context, source) = (&repository.context, sample.clone());
        Self {
            sample,
            blocks: BlockReader::new(context, source, len, Arc::default()),
        }
    }
}

impl StoredSample {
    /// Forgets the record after a failure: the table may have a newer one.
    fn doubt_on_failure<T>(&self, done: Result<T>) -> Result<T> {
        done.inspect_err(|_| {
            if let Some((column, at)) = &self.origin {
                self.repository.doubt(column, *at);
            }
        })
    }
}

impl BlockSource for StoredSample {
    fn grid(&self) -> &Grid {
        &self.grid
    }

    fn key(&self) -> Key {
        self.key
    }

    fn name(&self) -> String {
        self.record.to_string()
    }

    fn need(&self, _grid: &Grid, _number: u64, len: usize) -> Need {
        self.repository.need(&self.record, len)
    }

    fn fill(&self, _grid: &Grid, _number: u64, _streaming: bool, out: &mut [u8]) -> Result<()> {
        let dtype = self.dtype.as_ref();
        self.doubt_on_failure(self.repository.fetch_into(&self.record, dtype, out))
    }

    fn stream(&self, grid: &Grid, number: u64, sink: &mut Sink<'_>) -> Result<()> {
        let (dtype, len) = (self.dtype.as_ref(), grid.bytes_of(number));
        let done = self.repository.stream(&self.record, dtype, Some(len), sink);
        self.doubt_on_failure(done)
    }

    /// A sample that fits into the cache is decoded in memory.
    fn share(&self) -> u64 {
        1
    }

    /// The next file that opens the sample may want the block.
    fn keeps(&self, _small: bool) -> bool {
        true
    }
}

impl Content for SampleContent {
    fn len(&self) -> u64 {
        self.blocks.len()
    }

    fn read_at(&self, offset: u64, buf: &mut [u8]) -> Result<()> {
        self.blocks.read_at(offset, buf)
    }

    fn read_whole(&self, buf: &mut [u8]) -> Result<()> {
        let StoredSample {
            repository,
            record,
            dtype,
            ..
        } = &*self.sample;
        let small = || repository.need(record, buf.len()).beside <= SPARE;
        if matches!(record, Record::Hdf5(_))
            && small()
            && repository.fetch_into(record, dtype.as_ref(), buf).is_ok()
        {
            repository.context.cache.passed_on(buf.len());
            return Ok(());
        }
        self.read_at(0, buf)
    }

    fn share(&self, offset: u64, len: usize) -> Result<Option<Data>> {
        self.blocks.share(offset, len)
    }
}

/// A sample of a column.
pub struct SampleFile {
    /// The column.
    pub view: Arc<ColumnView>,
    /// The place of the sample in the column.
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
        let origin = Some((view.column.clone(), self.at()));
        let bytes = SampleContent::new(view.repository(), record, (dtype, len), origin);
        Ok(Arc::new(Concat::new([
            Arc::new(InMemory(header)) as Arc<dyn Content>,
            Arc::new(bytes),
        ])))
    }

    /// The content follows from the digest, wherever and whenever it is shown.
    fn is_remade(&self) -> bool {
        true
    }

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

/// Adds the details of a record for `info`.
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

/// Describes the storage of the dataset that holds the row of a sample, and says so if the collection is being written.
fn stored(repository: &Repository, row: &RowRecord, map: &mut Map<String, Json>) -> Result<()> {
    let RowRecord {
        backend,
        uid,
        dataset,
        ..
    } = row;
    let (files, h5) = (&repository.files, &repository.context.h5);
    // The file is opened anew: one that is open already may be older than the one on disk.
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

/// Returns a key in the form that users of Hangar know: a number or a text.
pub fn key_json(stored: &[u8]) -> Json {
    match key::digits(stored).and_then(|d| std::str::from_utf8(d).ok()?.parse::<u64>().ok()) {
        Some(number) => json!(number),
        None => {
            let text = key::digits(stored).unwrap_or(stored);
            json!(String::from_utf8_lossy(text))
        }
    }
}
