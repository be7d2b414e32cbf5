//! A dataset as one `.npy` file.

mod chunks;

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock, Weak};

use serde_json::{Value as Json, json};

use self::chunks::ChunkedArray;
use crate::dataset::access_pattern::AccessPattern;
use crate::dataset::backing::{Backing, BlockLayout, Form, ROW_BLOCK};
use crate::dataset::chunk_places::{LookUp, WholeTable};
use crate::dataset::chunked::Chunks;
use crate::dataset::grid::{Grid, row_block};
use crate::dataset::opened::OpenStore;
use crate::dataset::payload::Payload;
use crate::dataset::record;
use crate::dataset::record::RecordBytes;
use crate::dataset::{external, text};
use crate::tree::VirtualFile;
use crate::tree::array::StoredArray;
use crate::tree::info;
use npyfs_base::error::{Error, ErrorKind, Result};
use npyfs_base::npy;
use npyfs_base::npy::dtype::DType;
use npyfs_hdf5::{
    Attribute, ChunkRun, DataSource, Dataset, DatasetMap, ElementType, IndexedChunks, LookUps,
    TextForm,
};
use npyfs_io::content::{Concat, Content, InMemory};
use npyfs_io::file::Ownership;

/// Small chunks are combined into blocks of this many bytes.
const SMALL_BLOCK: u64 = 256 << 10;

/// The length of headers that fill a page.
const PAGE: usize = 4096;

/// The size of a file once it is known: one of a list, which the files of a directory share.
pub struct KnownSize {
    /// 0 stands for a size that is not known yet.
    sizes: Arc<[AtomicU64]>,
    at: usize,
}

impl KnownSize {
    /// Makes one of a list; of no list, if `at` is beyond its end.
    pub(super) fn new(sizes: &Arc<[AtomicU64]>, at: usize) -> Self {
        let sizes = sizes.clone();
        Self { sizes, at }
    }

    fn get(&self) -> Option<u64> {
        let size = self.sizes.get(self.at)?.load(Ordering::Relaxed);
        (size > 0).then_some(size)
    }

    fn set(&self, size: u64) {
        if let Some(known) = self.sizes.get(self.at) {
            known.store(size, Ordering::Relaxed);
        }
    }
}

impl From<u64> for KnownSize {
    fn from(size: u64) -> Self {
        Self {
            sizes: Arc::new([AtomicU64::new(size)]),
            at: 0,
        }
    }
}

impl Default for KnownSize {
    fn default() -> Self {
        Self::from(0)
    }
}

/// A dataset of an open store.
pub struct ArrayFile {
    /// The store.
    pub store: Arc<OpenStore>,
    /// The dataset.
    pub dataset: Dataset,
    /// Path of the group that holds it.
    pub group: Arc<str>,
    /// Its name there.
    pub name: Box<[u8]>,
    /// `daf` or `plain`.
    pub kind: &'static str,
    /// Its size as a file, which listings request repeatedly.
    pub size: KnownSize,
    /// Its directory makes it anew for each lookup.
    pub is_remade: bool,
}

impl ArrayFile {
    /// Returns the path in the HDF5 file.
    pub fn path(&self) -> String {
        format!("{}/{}", self.group, String::from_utf8_lossy(&self.name))
    }

    /// Returns the element type as shown, and for text the form in which to request it.
    pub fn dtype(&self) -> Result<(DType, Option<TextForm>)> {
        match &self.dataset.element {
            ElementType::Fixed { dtype, .. } => Ok((dtype.clone(), None)),
            ElementType::Text { .. } => {
                let measured = text::measure(&self.store, &self.dataset)?;
                let (dtype, form) = text::shown_as(&self.dataset.element, &measured);
                Ok((dtype, Some(form)))
            }
            ElementType::Record { .. } => Ok((record::dtype(&self.store, &self.dataset)?, None)),
        }
    }

    fn payload_len(&self, dtype: &DType) -> Result<u64> {
        npy::payload_len(dtype, &self.dataset.shape).ok_or_else(|| {
            Error::new(
                ErrorKind::TooLarge,
                format!(
                    "shape {:?} of {} is larger than a file can be",
                    self.dataset.shape,
                    dtype.name()
                ),
            )
        })
    }

    fn header(&self, dtype: &DType) -> Vec<u8> {
        let header = npy::header(dtype, &self.dataset.shape);
        match self.store.context.options.aligned {
            true => npy::aligned(header, PAGE),
            false => header,
        }
    }

    /// Returns the elements, without the header. Not for elements with text inside.
    pub fn payload(&self) -> Result<Payload> {
        self.payload_of(Arc::default())
    }

    /// Returns the elements, for a reader with a known access pattern.
    fn payload_of(&self, pattern: Arc<AccessPattern>) -> Result<Payload> {
        if let ElementType::Record { .. } = self.dataset.element {
            return Err(Error::damaged("text inside elements"));
        }
        let (dtype, form) = self.dtype()?;
        let len = self.payload_len(&dtype)?;
        let store = &self.store;
        let backing = store.backing(self.dataset.addr, || {
            let map = store.context.h5.map(&store.file, self.dataset.addr)?;
            if map.shape != self.dataset.shape {
                return Err(Error::new(ErrorKind::Stale, "the shape changed on disk"));
            }
            let crowded = matches!(map.source, DataSource::Chunked { crowded: true, .. });
            let backing = match form {
                Some(form) => self.text_backing(&map, &dtype, form),
                None => self.backing(map, &dtype),
            };
            Ok((backing?, !crowded))
        })?;
        let rank = self.dataset.shape.len() - self.dataset.element.inner().len();
        Ok(Payload::new(
            store.clone(),
            self.dataset.addr,
            rank,
            len,
            (backing, pattern),
        ))
    }

    fn backing(&self, map: DatasetMap, dtype: &DType) -> Result<Backing> {
        let element = dtype.size() as u64;
        let grid = |block: &[u64]| {
            Grid::new(&map.shape, block, element)
                .ok_or_else(|| Error::damaged(format!("impossible chunks {block:?}")))
        };
        let blocks = |block: Vec<u64>, form| {
            let layout = BlockLayout {
                grid: grid(&block)?,
                chunks: None,
                form,
                direct: None,
            };
            Ok(Backing::Blocks(Arc::new(layout)))
        };
        match map.source {
            DataSource::Fill(fill) => Ok(Backing::Fill(fill)),
            DataSource::Compact(bytes) => Ok(Backing::Memory(Arc::new(bytes))),
            DataSource::Contiguous { addr } => Ok(Backing::Contiguous(addr)),
            DataSource::Raw { files, fill } => {
                let parts = external::raw_files(&self.store, &files)?;
                let len = self.payload_len(dtype)?;
                for why in external::short_files(&files, &parts, len)? {
                    self.store.context.journal.add(&format!(
                        "{}: {}: {why}",
                        self.store.file.path.display(),
                        self.path()
                    ));
                }
                Ok(Backing::Raw { parts, fill })
            }
            DataSource::Chunked {
                chunk,
                direct,
                refused,
                ..
            } => {
                if let Some(why) = refused {
                    note_refusal(&self.store, &self.path(), &why);
                }
                let mut block = chunk;
                block.extend(map.shape[map.rank..].iter().map(|&d| d.max(1)));
                let chunks = grid(&block)?;
                let direct = direct.and_then(|direct| {
                    let look_up = direct.table.looked_up.clone().map(|chunks| ChunkIndex {
                        store: Arc::downgrade(&self.store),
                        chunks,
                        look_ups: OnceLock::new(),
                        path: self.path(),
                        is_far: self.store.file.far().is_some(),
                    });
                    let look_up = look_up.map(|look_up| Box::new(look_up) as Box<dyn LookUp>);
                    Chunks::with(&map.shape, &block, element, direct, look_up)
                });
                let gathered = gather_small(&mut block, &map.shape, element);
                Ok(Backing::Blocks(Arc::new(BlockLayout {
                    grid: grid(&block)?,
                    chunks: gathered.then_some(chunks),
                    form: Form::Elements,
                    direct,
                })))
            }
            DataSource::Virtual { sources } => {
                let outside = external::check_virtual(&self.store, &sources)?;
                let form = if outside {
                    Form::Virtual
                } else {
                    Form::Elements
                };
                blocks(self.row_block(map.rank, element), form)
            }
            DataSource::Library => blocks(self.row_block(map.rank, element), Form::Elements),
        }
    }

    fn row_block(&self, rank: usize, element: u64) -> Vec<u64> {
        let (own, inner) = self.dataset.shape.split_at(rank);
        let step = inner.iter().fold(element, |n, &d| n.saturating_mul(d));
        let mut block = row_block(own, step, ROW_BLOCK);
        block.extend(inner.iter().map(|&d| d.max(1)));
        block
    }

    fn text_backing(&self, map: &DatasetMap, dtype: &DType, form: TextForm) -> Result<Backing> {
        let measured = text::measure(&self.store, &self.dataset)?;
        if let Some(constant) = &measured.constant {
            let mut element = Vec::new();
            npyfs_hdf5::encode_text(constant, form, &mut element)?;
            return Ok(Backing::Fill(element));
        }
        let mut block = map.shape.clone();
        if let Some(first) = block.first_mut() {
            *first = text::rows(&map.shape);
        }
        Grid::new(&map.shape, &block, dtype.size() as u64)
            .map(|grid| BlockLayout {
                grid,
                chunks: None,
                direct: None,
                form: Form::Text(form),
            })
            .map(|layout| Backing::Blocks(Arc::new(layout)))
            .ok_or_else(|| Error::damaged("impossible shape"))
    }
}

/// Logs that the chunk table of a dataset was refused.
fn note_refusal(store: &OpenStore, path: &str, why: &str) {
    let file = store.file.path.display();
    let note = format!("{file}: {path}: {why}; libhdf5 reads it");
    store.context.journal.add(&note);
}

/// The index of the chunks of a dataset. Chunks are looked up here, and a worker reads the whole index.
struct ChunkIndex {
    /// The store keeps the index: a strong reference would keep the store open for ever.
    store: Weak<OpenStore>,
    chunks: Box<IndexedChunks>,
    look_ups: OnceLock<LookUps>,
    path: String,
    is_far: bool,
}

impl ChunkIndex {
    fn store(&self) -> Result<Arc<OpenStore>> {
        let gone = || Error::new(ErrorKind::Stale, "the store was closed");
        self.store.upgrade().ok_or_else(gone)
    }
}

impl LookUp for ChunkIndex {
    fn find(&self, places: Vec<u64>) -> Result<Vec<ChunkRun>> {
        let store = self.store()?;
        let look_ups = match self.look_ups.get() {
            Some(known) => known,
            None => {
                let unknown = || Error::damaged("chunk table: an index of another form");
                let found = LookUps::open(&store.file, &self.chunks, 0)?.ok_or_else(unknown)?;
                self.look_ups.get_or_init(|| found)
            }
        };
        Ok(look_ups.find(&store.file, &places)?)
    }

    fn is_quick(&self) -> bool {
        !self.is_far
    }

    fn cost(&self) -> u64 {
        match self.is_far {
            // A look-up takes up to three round trips, in which the index of so many chunks can be fetched.
            true => 16 << 10,
            // Those of a look-up are 128. A program that has taken some samples will probably take many more, and the
            // table is read beside them.
            false => 4096,
        }
    }

    fn whole(&self) -> Result<WholeTable> {
        let store = self.store()?;
        let map = store
            .context
            .h5
            .whole_map(&store.file, self.chunks.dataset)?;
        Ok(match map.source {
            DataSource::Chunked {
                direct: Some(direct),
                ..
            } => WholeTable::Table(direct.table),
            DataSource::Chunked { crowded: true, .. } | DataSource::Fill(_) => WholeTable::Missing,
            DataSource::Chunked { refused, .. } => {
                let why = refused.unwrap_or_else(|| "chunk table: too many chunks".into());
                note_refusal(&store, &self.path, &why);
                WholeTable::Refused
            }
            _ => WholeTable::Refused,
        })
    }
}

/// Multiplies a small chunk, last dimension first, until a block is worth a call; true if it did.
fn gather_small(block: &mut [u64], shape: &[u64], element: u64) -> bool {
    let mut gathered = false;
    for k in (0..block.len()).rev() {
        let bytes = block.iter().fold(element, |n, &d| n.saturating_mul(d));
        if bytes == 0 || bytes >= SMALL_BLOCK {
            break;
        }
        let times = (SMALL_BLOCK / bytes)
            .min(shape[k].div_ceil(block[k]))
            .max(1);
        block[k] = block[k].saturating_mul(times);
        gathered |= times > 1;
    }
    gathered
}

impl VirtualFile for ArrayFile {
    fn ownership(&self) -> Ownership {
        self.store.ownership(self.dataset.addr)
    }

    fn size(&self) -> Result<u64> {
        if let Some(size) = self.size.get() {
            return Ok(size);
        }
        let (dtype, _) = self.dtype()?;
        let header = self.header(&dtype).len() as u64;
        let size = self
            .payload_len(&dtype)?
            .checked_add(header)
            .filter(|&n| i64::try_from(n).is_ok())
            .ok_or_else(|| Error::new(ErrorKind::TooLarge, "larger than a file can be"))?;
        self.size.set(size);
        Ok(size)
    }

    fn open(&self) -> Result<Arc<dyn Content>> {
        let (dtype, _) = self.dtype()?;
        let header = self.header(&dtype);
        let elements: Arc<dyn Content> = match self.dataset.element {
            ElementType::Record { .. } => {
                let len = self.payload_len(&dtype)?;
                Arc::new(RecordBytes::new(&self.store, &self.dataset, len)?)
            }
            _ => Arc::new(self.payload()?),
        };
        Ok(Arc::new(Concat::new([
            Arc::new(InMemory(header)) as Arc<dyn Content>,
            elements,
        ])))
    }

    fn version(&self) -> u64 {
        self.store.file.identity.number()
    }

    fn is_remade(&self) -> bool {
        self.is_remade
    }

    fn is_current(&self) -> bool {
        self.store.file.is_current()
    }

    fn info(&self) -> Result<Json> {
        let mut map = serde_json::Map::new();
        map.insert("kind".into(), json!(self.kind));
        map.insert("file".into(), json!(self.store.file.path.to_string_lossy()));
        map.insert("path".into(), json!(self.path()));
        let dtype = self.dtype();
        match &dtype {
            Ok((dtype, _)) => map.insert("dtype".into(), dtype.json()),
            Err(e) => map.insert("error".into(), json!(e.message)),
        };
        map.insert("shape".into(), json!(self.dataset.shape));
        match self
            .store
            .context
            .h5
            .describe(&self.store.file, self.dataset.addr)
        {
            Ok(details) => {
                if let Err(e) = external::check(&self.store, self.dataset.addr)
                    && e.kind == ErrorKind::Denied
                {
                    map.insert("denied".into(), json!(e.message));
                }
                let len = dtype
                    .as_ref()
                    .ok()
                    .and_then(|dtype| self.payload_len(&dtype.0).ok());
                let short = len.map(|len| external::short_of(&self.store, self.dataset.addr, len));
                if let Some(short) = short.filter(|short| !short.is_empty()) {
                    map.insert("short".into(), json!(short));
                }
                if let (Ok((dtype, None)), ElementType::Fixed { .. }) =
                    (&dtype, &self.dataset.element)
                {
                    info::costs(&details, dtype, &self.dataset.shape, &mut map);
                }
                info::details(&details, dtype.ok().as_ref().map(|(d, _)| d), &mut map);
            }
            Err(e) => {
                map.insert("error".into(), json!(e.to_string()));
            }
        }
        Ok(map.into())
    }

    fn array(self: Arc<Self>) -> Result<Option<Arc<dyn StoredArray>>> {
        Ok(Some(Arc::new(ChunkedArray(self))))
    }

    fn attributes(&self) -> Result<Vec<Attribute>> {
        let h5 = &self.store.context.h5;
        Ok(h5.attributes(&self.store.file, self.dataset.addr)?)
    }
}
