//! A new file of a checkout, but for its data: the dataset, and room for the elements.
//!
//! Who asked fills the room, at the address it is told. So libhdf5 never has the data in its hands, and
//! memory does not depend on the size of an array. No existing dataset is ever opened here.

use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};

use serde::{Deserialize, Serialize};

use super::budget::Budget;
use super::ffi::{self, Id};
use super::pool::Worker;
use super::types::TypeError;
use super::{Answer, H5Error, Request, writer};
use crate::dtype::{DType, Kind, Order};
use crate::raw::StoreFile;

/// Most dimensions of a dataset: `H5S_MAX_RANK`.
const MOST_DIMS: usize = 32;

/// One contiguous dataset in a file of its own. Elements are stored as `.npy` has them, in C order.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct NewDataset {
    /// Names from the root group to the dataset.
    pub path: Vec<String>,
    pub dtype: DType,
    pub shape: Vec<u64>,
}

/// Makes files with libhdf5.
pub enum Creator {
    /// In this process: for tests.
    Local,
    /// In a worker process, which is started when it is needed.
    Worker(Box<CreatorWorker>),
}

/// How to start the worker, and the one that was used last.
pub struct CreatorWorker {
    program: PathBuf,
    dir: PathBuf,
    idle: Mutex<Option<Worker>>,
}

impl Creator {
    /// A worker that may write below `dir` only: `program`, which becomes one when it is started
    /// with `writer::ARGUMENT`.
    pub fn worker(program: &Path, dir: &Path) -> Self {
        Self::Worker(Box::new(CreatorWorker {
            program: program.to_owned(),
            dir: dir.to_owned(),
            idle: Mutex::default(),
        }))
    }

    /// Makes `file` anew, whatever it holds. Answers the address of the data; 0 if there is none.
    pub fn create(&self, file: &StoreFile, new: NewDataset) -> Result<u64, H5Error> {
        match self {
            Self::Local => create(file, &new),
            Self::Worker(worker) => worker.create(file, new),
        }
    }
}

impl CreatorWorker {
    fn create(&self, file: &StoreFile, new: NewDataset) -> Result<u64, H5Error> {
        let failed =
            |e: std::io::Error| H5Error::Damaged(format!("the writing worker failed: {e}"));
        let idle = || self.idle.lock().unwrap_or_else(|e| e.into_inner());
        let kept = idle().take();
        let request = Request::Create(Box::new(new));
        // One that was kept may have died since.
        let answered = kept.and_then(|mut worker| {
            let answer = worker.ask(file, &request, &mut None).ok()?;
            Some((worker, answer))
        });
        let (worker, answer) = match answered {
            Some(answered) => answered,
            None => {
                let arguments = (writer::ARGUMENT, Some(self.dir.as_path()));
                let tables = Arc::new(Budget::default());
                let mut worker =
                    Worker::start(&self.program, arguments, &tables).map_err(failed)?;
                let answer = worker.ask(file, &request, &mut None).map_err(failed)?;
                (worker, answer)
            }
        };
        *idle() = Some(worker);
        match answer? {
            Answer::Created(addr) => Ok(addr),
            _ => Err(H5Error::Damaged("answer to another request".into())),
        }
    }
}

/// Makes `file` anew in this process.
pub fn create(file: &StoreFile, new: &NewDataset) -> Result<u64, H5Error> {
    let holds = |name: &String| !(matches!(name.as_str(), "" | ".") || name.contains(['/', '\0']));
    if new.path.is_empty() || !new.path.iter().all(holds) {
        let name = new.path.join("/");
        return Err(H5Error::Unsupported(format!(
            "HDF5 cannot hold the name {name:?}"
        )));
    }
    if new.shape.len() > MOST_DIMS {
        return Err(H5Error::Unsupported(format!(
            "HDF5 cannot hold more than {MOST_DIMS} dimensions"
        )));
    }
    ffi::locked(|| {
        let ty = stored_type(&new.dtype)?;
        let path = file.path_of_descriptor().into_bytes();
        let name = new.path.join("/").into_bytes();
        Ok(ffi::create_dataset(&path, &name, &ty, &new.shape)?)
    })
}

/// The HDF5 type whose bytes are those of `dtype`, as h5py chooses it.
fn stored_type(dtype: &DType) -> Result<Id, TypeError> {
    let no_form = || {
        let name = dtype.name();
        TypeError::Unsupported(format!("elements of type {name} cannot be stored"))
    };
    match dtype {
        DType::Scalar { size: 0, .. } => Err(no_form()),
        DType::Scalar {
            kind, size, order, ..
        } => {
            let big = *order == Order::Big;
            Ok(match kind {
                Kind::Bool => ffi::bool_type()?,
                Kind::Int => ffi::int_type(*size, true, big)?,
                Kind::Uint => ffi::int_type(*size, false, big)?,
                Kind::Float if *size == 16 && (big || cfg!(not(target_arch = "x86_64"))) => {
                    return Err(no_form());
                }
                Kind::Float => ffi::float_type(*size, big)?,
                Kind::Complex => {
                    let part = DType::scalar(Kind::Float, size / 2, *order);
                    let members = [
                        (b"r".to_vec(), 0, stored_type(&part)?),
                        (b"i".to_vec(), size / 2, stored_type(&part)?),
                    ];
                    ffi::compound_type(*size, &members)?
                }
                Kind::Bytes => ffi::bytes_type(*size)?,
                Kind::Void => ffi::opaque_type(*size, "")?,
                Kind::Datetime | Kind::Timedelta => {
                    ffi::opaque_type(*size, &format!("NUMPY:{}", dtype.name()))?
                }
                // HDF5 has no text of four bytes a character.
                Kind::Text => return Err(no_form()),
            })
        }
        DType::Struct { fields, size } => {
            let members = fields
                .iter()
                .map(|field| {
                    if field.shape.contains(&0) {
                        return Err(no_form());
                    }
                    let base = stored_type(&field.dtype)?;
                    let ty = if field.shape.is_empty() {
                        base
                    } else {
                        ffi::array_type(&base, &field.shape)?
                    };
                    Ok((field.name.clone().into_bytes(), field.offset, ty))
                })
                .collect::<Result<Vec<_>, TypeError>>()?;
            Ok(ffi::compound_type(*size, &members)?)
        }
    }
}
