//! A dataset as one `.npy` file.

use std::sync::{Arc, OnceLock};

use serde_json::{Value as Json, json};

use super::chunks::ChunkedArray;
use crate::dataset::access_pattern::AccessPattern;
use crate::dataset::backing::{Backing, Form, ROW_BLOCK};
use crate::dataset::chunked::Chunks;
use crate::dataset::grid::{Grid, row_block};
use crate::dataset::opened::OpenStore;
use crate::dataset::payload::Payload;
use crate::dataset::record;
use crate::dataset::record::RecordBytes;
use crate::dataset::{external, text};
use crate::error::{Error, ErrorKind, Result};
use crate::hdf5::{Attribute, DataSource, Dataset, DatasetMap, ElementType, TextForm};
use crate::io::content::{Concat, Content, InMemory};
use crate::io::file::Ownership;
use crate::npy;
use crate::npy::dtype::DType;
use crate::tree::VirtualFile;
use crate::tree::array::StoredArray;
use crate::tree::info;

/// Small chunks are read together until they make a block of this many bytes.
const SMALL_BLOCK: u64 = 256 << 10;

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
    /// Its size as a file, which listings ask for again and again.
    pub size: OnceLock<u64>,
}

impl ArrayFile {
    /// Path in the HDF5 file.
    pub fn path(&self) -> String {
        format!("{}/{}", self.group, String::from_utf8_lossy(&self.name))
    }

    /// The element type as it is shown, and for text the form that gives it.
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

    pub(super) fn payload_len(&self, dtype: &DType) -> Result<u64> {
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

    /// The elements, without the header. Not for elements with text inside.
    pub fn payload(&self) -> Result<Payload> {
        self.payload_of(Arc::default())
    }

    /// The elements, for a reader of whom a pattern is known.
    pub(super) fn payload_of(&self, pattern: Arc<AccessPattern>) -> Result<Payload> {
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
            grid(&block).map(|grid| Backing::Blocks {
                grid,
                chunks: None,
                form,
                direct: None,
            })
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
                    self.store.context.journal.add(&format!(
                        "{}: {}: {why}; libhdf5 reads it",
                        self.store.file.path.display(),
                        self.path()
                    ));
                }
                let mut block = chunk;
                block.extend(map.shape[map.rank..].iter().map(|&d| d.max(1)));
                let chunks = grid(&block)?;
                let direct =
                    direct.and_then(|d| Chunks::new(&map.shape, &block, element, d).map(Box::new));
                let gathered = gather_small(&mut block, &map.shape, element);
                Ok(Backing::Blocks {
                    grid: grid(&block)?,
                    chunks: gathered.then_some(chunks),
                    form: Form::Elements,
                    direct,
                })
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
            crate::hdf5::encode_text(constant, form, &mut element)?;
            return Ok(Backing::Fill(element));
        }
        let mut block = map.shape.clone();
        if let Some(first) = block.first_mut() {
            *first = text::rows(&map.shape);
        }
        Grid::new(&map.shape, &block, dtype.size() as u64)
            .map(|grid| Backing::Blocks {
                grid,
                chunks: None,
                direct: None,
                form: Form::Text(form),
            })
            .ok_or_else(|| Error::damaged("impossible shape"))
    }
}

/// Multiplies a small chunk, last dimension first, so that a block is worth a call; true if it did.
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
        if let Some(&size) = self.size.get() {
            return Ok(size);
        }
        let (dtype, _) = self.dtype()?;
        let header = npy::header(&dtype, &self.dataset.shape).len() as u64;
        let size = self
            .payload_len(&dtype)?
            .checked_add(header)
            .filter(|&n| i64::try_from(n).is_ok())
            .ok_or_else(|| Error::new(ErrorKind::TooLarge, "larger than a file can be"))?;
        Ok(*self.size.get_or_init(|| size))
    }

    fn open(&self) -> Result<Arc<dyn Content>> {
        let (dtype, _) = self.dtype()?;
        let header = npy::header(&dtype, &self.dataset.shape);
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
