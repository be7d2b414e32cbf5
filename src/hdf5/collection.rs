//! Collections: files of many equal datasets, a row of which is one sample, kept open by the writing worker.
//!
//! Made once, then in SWMR mode until they are closed, so that a killed worker leaves a file that can be read as
//! far as it was flushed. libhdf5 runs the filters here; the caller holds on to samples until a flush succeeded.

use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::sync::Mutex;
use std::sync::mpsc::{Sender, channel};

use serde::{Deserialize, Serialize};
use serde_bytes::ByteBuf;

use super::create::stored_type;
use super::ffi::{self, AttributeData, FilterSpec, Id};
use super::process::WorkerProcess;
use super::{Answer, H5Error, Request, writer};
use crate::io::file::StoreFile;
use crate::io::owner::Owner;
use crate::io::thread;
use crate::npy::dtype::DType;

/// Most datasets of a file.
const MAX_DATASETS: u32 = 1000;

/// A collection to be made.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct NewCollection {
    /// Number of datasets, whose names are `0`, `1`, …
    pub datasets: u32,
    /// Type of the elements.
    pub dtype: DType,
    /// Shape of each dataset; rows come first.
    pub shape: Vec<u64>,
    /// Shape of a chunk.
    pub chunk: Vec<u64>,
    /// Filters, in the order of writing.
    pub filters: Vec<FilterSpec>,
    /// Attributes of the root group.
    pub attributes: Vec<(String, AttributeValue)>,
}

/// The value of an attribute, as h5py stores it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum AttributeValue {
    /// UTF-8 of variable length.
    Text(String),
    /// An integer of 64 bits.
    Int(i64),
    /// A 1-D array of integers of 64 bits.
    Ints(Vec<i64>),
    /// h5py's boolean.
    Bool(bool),
    /// A 64-bit float, by its bits.
    Float(u64),
    /// An array of floats without elements: what NumPy makes of an empty tuple.
    Nothing,
}

/// A row of a dataset: one sample.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct CollectionRow {
    /// Number of the dataset.
    pub dataset: u32,
    /// Number of the row.
    pub row: u64,
    /// Shape of the sample, which may be smaller than the row.
    pub shape: Vec<u64>,
    /// Elements in C order.
    pub bytes: ByteBuf,
}

/// A request about a collection.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum CollectionRequest {
    /// Makes the file anew.
    Create(Box<NewCollection>),
    /// Writes rows, sets attributes, and flushes.
    Write {
        /// The rows.
        rows: Vec<CollectionRow>,
        /// Attributes of the root group, by name.
        attributes: Vec<(String, AttributeValue)>,
    },
    /// Closes the file.
    Close,
}

/// The collections that a worker has open, by the serial number of the file.
#[derive(Default)]
pub(super) struct Collections {
    open: HashMap<u64, OpenCollection>,
}

/// A collection that is open to be written.
struct OpenCollection {
    /// The dataset that was written last.
    last: Option<(u32, Id)>,
    ty: Id,
    file: Id,
}

impl Collections {
    /// Returns whether the file of this number is open here.
    pub(super) fn has(&self, serial: u64) -> bool {
        self.open.contains_key(&serial)
    }

    /// Answers one request about the file of this number; `file` is needed to make it.
    pub(super) fn answer(
        &mut self,
        serial: u64,
        file: Option<&StoreFile>,
        request: &CollectionRequest,
    ) -> Result<(), H5Error> {
        let unknown = || H5Error::Damaged("this collection is not open".into());
        ffi::locked(|| match request {
            CollectionRequest::Create(new) => {
                let held = file.ok_or_else(unknown)?.file().map_err(H5Error::from)?;
                let path = held.path().into_bytes();
                self.open
                    .insert(serial, OpenCollection::create(&path, new)?);
                Ok(())
            }
            CollectionRequest::Write { rows, attributes } => {
                let open = self.open.get_mut(&serial).ok_or_else(unknown)?;
                open.write(rows, attributes)
            }
            CollectionRequest::Close => {
                let open = self.open.remove(&serial).ok_or_else(unknown)?;
                ffi::flush(&open.file)?;
                Ok(())
            }
        })
    }
}

impl OpenCollection {
    fn create(path: &[u8], new: &NewCollection) -> Result<Self, H5Error> {
        if new.datasets > MAX_DATASETS {
            return Err(H5Error::TooLarge(format!(
                "more than {MAX_DATASETS} datasets"
            )));
        }
        let ty = stored_type(&new.dtype)?;
        let file = ffi::create_collection(path)?;
        let layout = (&new.chunk[..], &new.filters[..]);
        ffi::add_datasets(&file, new.datasets, &ty, &new.shape, layout)?;
        let made = Self {
            last: None,
            ty,
            file,
        };
        made.annotate(&new.attributes)?;
        ffi::flush(&made.file)?;
        ffi::start_swmr(&made.file)?;
        Ok(made)
    }

    fn annotate(&self, attributes: &[(String, AttributeValue)]) -> Result<(), H5Error> {
        let (int, float) = (ffi::int_type(8, true, false)?, ffi::float_type(8, false)?);
        for (name, note) in attributes {
            let bytes: Vec<u8>;
            let bool_type = ffi::bool_type()?;
            let data = match note {
                AttributeValue::Text(text) => AttributeData::Text(text),
                AttributeValue::Int(n) => {
                    bytes = n.to_le_bytes().to_vec();
                    AttributeData::Values(&int, None, &bytes)
                }
                AttributeValue::Ints(all) => {
                    bytes = all.iter().flat_map(|n| n.to_le_bytes()).collect();
                    AttributeData::Values(&int, Some(all.len() as u64), &bytes)
                }
                AttributeValue::Bool(b) => {
                    bytes = vec![u8::from(*b)];
                    AttributeData::Values(&bool_type, None, &bytes)
                }
                AttributeValue::Float(bits) => {
                    bytes = bits.to_le_bytes().to_vec();
                    AttributeData::Values(&float, None, &bytes)
                }
                AttributeValue::Nothing => AttributeData::Values(&float, Some(0), &[]),
            };
            ffi::set_attribute(&self.file, name, &data)?;
        }
        Ok(())
    }

    fn write(
        &mut self,
        rows: &[CollectionRow],
        attributes: &[(String, AttributeValue)],
    ) -> Result<(), H5Error> {
        for row in rows {
            if self.last.as_ref().is_none_or(|(n, _)| *n != row.dataset) {
                self.last = None;
                let dataset = ffi::open_dataset(&self.file, &row.dataset.to_string())?;
                self.last = Some((row.dataset, dataset));
            }
            if let Some((_, dataset)) = &self.last {
                let start: Vec<u64> = std::iter::once(row.row)
                    .chain(row.shape.iter().map(|_| 0))
                    .collect();
                let shape: Vec<u64> = std::iter::once(1).chain(row.shape.clone()).collect();
                ffi::write_block(dataset, &self.ty, &start, &shape, &row.bytes)?;
            }
        }
        self.annotate(attributes)?;
        Ok(ffi::flush(&self.file)?)
    }
}

/// The daemon's end of a writing worker, which keeps collections open.
pub struct CollectionWriter {
    program: PathBuf,
    dir: PathBuf,
    owner: Owner,
    running: Mutex<Option<RunningWorker>>,
}

/// A worker, and the end of a channel that ends the thread which started it when it is dropped.
struct RunningWorker {
    worker: WorkerProcess,
    _starter: Sender<()>,
}

fn failed(why: impl std::fmt::Display) -> H5Error {
    H5Error::Damaged(format!("the writing worker failed: {why}"))
}

impl CollectionWriter {
    /// Makes the end of a worker that writes below `dir` only, and as its owner, and starts none yet: `program` becomes
    /// one when it is started with [`writer::ARGUMENT`].
    pub fn new(program: &Path, dir: &Path, owner: Owner) -> Self {
        Self {
            program: program.to_owned(),
            dir: dir.to_owned(),
            owner,
            running: Mutex::default(),
        }
    }

    /// Answers one request about one file. If the worker fails, every collection it had open is closed.
    pub fn ask(&self, file: &StoreFile, request: CollectionRequest) -> Result<(), H5Error> {
        let mut place = self.running.lock().unwrap_or_else(|e| e.into_inner());
        let mut running = match place.take() {
            Some(running) => running,
            None => self.start()?,
        };
        let request = Request::Collection(request);
        let answer = running.worker.ask(file, &request, &mut None, &());
        let answer = answer.map_err(failed)?;
        *place = Some(running);
        match answer? {
            Answer::Written => Ok(()),
            _ => Err(H5Error::unexpected_answer()),
        }
    }

    /// Starts a worker. It ends with the thread that starts it, so one is made for that.
    fn start(&self) -> Result<RunningWorker, H5Error> {
        let (program, dir) = (self.program.clone(), self.dir.clone());
        let owner = self.owner.argument();
        let (sender, started) = channel();
        let (starter, end) = channel::<()>();
        let starting = move || {
            let dirs = [Some(dir.as_path()), owner.as_deref()];
            let arguments = (writer::ARGUMENT, dirs.into_iter().flatten());
            let worker = WorkerProcess::start(&program, arguments);
            if sender.send(worker).is_ok() {
                let _ = end.recv();
            }
        };
        thread::spawn("starter", starting).map_err(failed)?;
        let worker = started.recv().map_err(failed)?.map_err(failed)?;
        Ok(RunningWorker {
            worker,
            _starter: starter,
        })
    }
}
