//! New files of a checkout, without the elements: groups, attributes, and datasets with room for their elements.
//!
//! The daemon fills the room, at the addresses in the answer. So libhdf5 never holds the data, and
//! memory does not depend on the size of an array. Chunks come encoded, a few at a time. No file that another
//! program made is ever opened here.

use std::path::{Path, PathBuf};
use std::sync::Mutex;

use serde::{Deserialize, Serialize};
use serde_bytes::ByteBuf;

use super::ffi::{self, FilterSpec, Id};
use super::process::{WorkerProcess, ask_kept};
use super::types::TypeError;
use super::{Answer, H5Error, Request, Value, text, writer};
use crate::codec::Encoding;
use crate::io::file::StoreFile;
use crate::io::scratch::LARGE;
use crate::npy::dtype::{DType, Kind, Order};

/// The data of a dataset begins at a multiple of this many bytes.
const PAGE: u64 = 4096;

/// Longest datatype, in bytes: `H5O_MESG_MAX_SIZE`, without what may stand around it.
const MAX_TYPE_LEN: usize = (64 << 10) - 64;

/// Most dimensions of a dataset: `H5S_MAX_RANK`.
const MAX_RANK: usize = 32;

/// A file to be made, without the elements of its datasets. Paths are names from the root group on.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct Outline {
    /// Groups that are empty or have attributes; the root group has an empty path.
    pub groups: Vec<NewGroup>,
    /// The datasets; groups on the way to them are made as well.
    pub datasets: Vec<NewDataset>,
    /// The soft links.
    pub links: Vec<NewLink>,
    /// The alignment of large contiguous datasets, if not that of a page.
    pub large_at: Option<u64>,
}

/// A group.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct NewGroup {
    /// Its path; empty for the root group.
    pub path: Vec<String>,
    /// Its attributes.
    pub attributes: Vec<NewAttribute>,
}

/// A soft link.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct NewLink {
    /// Its path.
    pub path: Vec<String>,
    /// The path that it leads to.
    pub target: Vec<u8>,
}

/// A dataset. Its elements lie as `.npy` has them, in C order.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct NewDataset {
    /// Its path.
    pub path: Vec<String>,
    /// Type of its elements.
    pub element: NewElement,
    /// Its shape, which is the maximum shape as well.
    pub shape: Vec<u64>,
    /// The layout of its elements.
    pub layout: NewLayout,
    /// Its attributes.
    pub attributes: Vec<NewAttribute>,
}

/// The type of the elements of a new dataset.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum NewElement {
    /// A type of NumPy.
    Array(DType),
    /// UTF-8 in as many bytes, padded with NUL.
    Utf8(usize),
}

/// The layout of a new dataset.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum NewLayout {
    /// All elements together, in C order.
    Contiguous,
    /// In chunks.
    Chunked {
        /// Shape of a chunk.
        chunk: Vec<u64>,
        /// Filters, in the order of writing.
        filters: Vec<FilterSpec>,
        /// The daemon's encoding of chunks, which the filters undo.
        #[serde(skip)]
        encoding: Option<Encoding>,
    },
}

/// A new attribute. Text becomes UTF-8 of variable length, bytes that end with NUL a C string.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct NewAttribute {
    /// Its name.
    pub name: String,
    /// Its value.
    pub value: Value,
}

impl NewDataset {
    /// Makes a contiguous dataset without attributes.
    pub fn new(path: &[String], dtype: DType, shape: &[u64]) -> Self {
        Self {
            path: path.to_vec(),
            element: NewElement::Array(dtype),
            shape: shape.to_vec(),
            layout: NewLayout::Contiguous,
            attributes: Vec::new(),
        }
    }
}

impl NewElement {
    /// Returns the bytes of an element.
    pub fn size(&self) -> usize {
        match self {
            Self::Array(dtype) => dtype.size(),
            Self::Utf8(size) => *size,
        }
    }
}

impl NewAttribute {
    /// Makes an attribute of a type and shape; `data` are its elements in C order.
    pub fn new(name: &str, dtype: DType, shape: &[u64], data: Vec<u8>) -> Self {
        let (name, shape) = (name.to_owned(), shape.to_vec());
        let value = Value { dtype, shape, data };
        Self { name, value }
    }

    /// Returns whether it may be too large for an object header, which has room for 64 KiB.
    fn is_large(&self) -> bool {
        /// Bytes that a text of variable length takes there at most.
        const REFERENCE: usize = 16;
        let bytes = match &self.value.dtype {
            DType::Scalar {
                kind: Kind::Text, ..
            } => count(&self.value.shape).saturating_mul(REFERENCE),
            _ => self.value.data.len(),
        };
        bytes > super::edit::MAX_SMALL_ATTRIBUTE
    }

    /// Makes an attribute that is one integer of 64 bits.
    pub fn int(name: &str, value: i64) -> Self {
        Self::new(name, DType::int(8), &[], value.to_le_bytes().to_vec())
    }
}

/// Encoded chunks of one dataset.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct NewChunks {
    /// The path of the dataset.
    pub path: Vec<String>,
    /// The chunks, in any order.
    pub chunks: Vec<NewChunk>,
}

/// An encoded chunk.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct NewChunk {
    /// Coordinates of the first element.
    pub start: Vec<u64>,
    /// Bit `i` set: filter `i` was not applied.
    pub mask: u32,
    /// The chunk as it is stored.
    pub bytes: ByteBuf,
}

/// The client of the worker that makes files.
pub enum Creator {
    /// In this process: for tests.
    #[cfg_attr(not(feature = "internals"), expect(dead_code, reason = "for tests"))]
    Local,
    /// In a worker process, which is started when it is needed.
    Worker(Box<CreatorWorker>),
}

/// The daemon's end of a writing worker.
pub struct CreatorWorker {
    program: PathBuf,
    dir: PathBuf,
    idle: Mutex<Option<WorkerProcess>>,
}

impl Creator {
    /// Makes the client of a worker that may write below `dir` only: `program`, which becomes one when it is started
    /// with [`writer::ARGUMENT`].
    pub fn worker(program: &Path, dir: &Path) -> Self {
        Self::Worker(Box::new(CreatorWorker {
            program: program.to_owned(),
            dir: dir.to_owned(),
            idle: Mutex::default(),
        }))
    }

    /// Makes `file` anew, whatever it holds. Returns the address of the data of each dataset; 0 where there is
    /// none, and for chunks.
    pub fn create(&self, file: &StoreFile, new: &Outline) -> Result<Vec<u64>, H5Error> {
        match self {
            Self::Local => create(file, new),
            Self::Worker(worker) => worker.ask(file, &Request::Create(Box::new(new.clone()))),
        }
    }

    /// Adds chunks to a dataset of a file that `create` made.
    pub fn write_chunks(&self, file: &StoreFile, chunks: NewChunks) -> Result<(), H5Error> {
        match self {
            Self::Local => write_chunks(file, &chunks),
            Self::Worker(worker) => {
                let written = worker.ask(file, &Request::WriteChunks(Box::new(chunks)));
                written.map(drop)
            }
        }
    }
}

impl CreatorWorker {
    fn ask(&self, file: &StoreFile, request: &Request) -> Result<Vec<u64>, H5Error> {
        let failed =
            |e: std::io::Error| H5Error::Damaged(format!("the writing worker failed: {e}"));
        let idle = || self.idle.lock().unwrap_or_else(|e| e.into_inner());
        let start = || {
            let arguments = (writer::ARGUMENT, Some(self.dir.as_path()));
            WorkerProcess::start(&self.program, arguments)
        };
        let kept = idle().take();
        let (worker, answer) = ask_kept(kept, start, file, request).map_err(failed)?;
        *idle() = Some(worker);
        match answer? {
            Answer::Created(addresses) => Ok(addresses),
            _ => Err(H5Error::unexpected_answer()),
        }
    }
}

/// Makes `file` anew in this process.
pub(super) fn create(file: &StoreFile, new: &Outline) -> Result<Vec<u64>, H5Error> {
    for dataset in &new.datasets {
        check_path(&dataset.path)?;
        if dataset.shape.len() > MAX_RANK {
            return Err(H5Error::Unsupported(format!(
                "HDF5 cannot hold more than {MAX_RANK} dimensions"
            )));
        }
    }
    for group in new.groups.iter().filter(|group| !group.path.is_empty()) {
        check_path(&group.path)?;
    }
    for link in &new.links {
        check_path(&link.path)?;
    }
    ffi::locked(|| {
        let held = file.file().map_err(H5Error::from)?;
        let path = held.path().into_bytes();
        let (from, alignment) = new.large_at.map_or((PAGE, PAGE), |at| (LARGE, at));
        let file = ffi::create_file(&path, from, alignment)?;
        let mut addresses = Vec::with_capacity(new.datasets.len());
        for new in &new.datasets {
            let name = new.path.join("/").into_bytes();
            let (dataset, address) = dataset(&file, &name, new)?;
            add_attributes(&dataset, &new.attributes)?;
            addresses.push(address);
        }
        for new in &new.groups {
            let name = format!("/{}", new.path.join("/")).into_bytes();
            add_attributes(&ffi::require_group(&file, &name)?, &new.attributes)?;
        }
        for link in &new.links {
            ffi::soft_link(&file, link.path.join("/").as_bytes(), &link.target)?;
        }
        ffi::finish(file)?;
        Ok(addresses)
    })
}

/// Adds chunks in this process.
pub(super) fn write_chunks(file: &StoreFile, new: &NewChunks) -> Result<(), H5Error> {
    check_path(&new.path)?;
    ffi::locked(|| {
        let held = file.file().map_err(H5Error::from)?;
        let file = ffi::open_to_write(&held.path().into_bytes())?;
        let dataset = ffi::open_by_name(&file, new.path.join("/").as_bytes())?;
        for chunk in &new.chunks {
            ffi::write_chunk(&dataset, &chunk.start, chunk.mask, &chunk.bytes)?;
        }
        drop(dataset);
        Ok(ffi::finish(file)?)
    })
}

fn check_path(path: &[String]) -> Result<(), H5Error> {
    let holds = |name: &String| !(matches!(name.as_str(), "" | ".") || name.contains(['/', '\0']));
    if path.is_empty() || !path.iter().all(holds) {
        let name = path.join("/");
        return Err(H5Error::Unsupported(format!(
            "HDF5 cannot hold the name {name:?}"
        )));
    }
    Ok(())
}

/// Makes a dataset; returns it with the address of its data.
///
/// A type that does not fit into the header of an object is too large. How long it is in a file depends on the
/// form that libhdf5 chooses there, so it is told afterwards, from the longest form.
fn dataset(file: &Id, name: &[u8], new: &NewDataset) -> Result<(Id, u64), H5Error> {
    let ty = match &new.element {
        NewElement::Array(dtype) => stored_type(dtype)?,
        NewElement::Utf8(size) => ffi::bytes_type(*size, true)?,
    };
    dataset_of(file, name, new, &ty).map_err(|e| match (&e, ffi::encoded_len(&ty)) {
        (H5Error::Damaged(_), Ok(len)) if len > MAX_TYPE_LEN => H5Error::TooLarge(format!(
            "a type of so many members: it takes up to {len} bytes, and HDF5 keeps a type in {MAX_TYPE_LEN}"
        )),
        _ => e,
    })
}

fn dataset_of(file: &Id, name: &[u8], new: &NewDataset, ty: &Id) -> Result<(Id, u64), H5Error> {
    let NewLayout::Chunked { chunk, filters, .. } = &new.layout else {
        let dataset = match new.attributes.iter().any(NewAttribute::is_large) {
            true => ffi::dataset_for_attributes(file, name, ty, &new.shape)?,
            false => ffi::contiguous_dataset(file, name, ty, &new.shape)?,
        };
        if new.shape.contains(&0) {
            return Ok((dataset, 0));
        }
        let address = ffi::contiguous_addr(&dataset)?;
        let address = address.ok_or_else(|| ffi::Failure("the data has no room".into()))?;
        return Ok((dataset, address));
    };
    let dataset = ffi::chunked_dataset(file, name, ty, &new.shape, chunk, filters)?;
    Ok((dataset, 0))
}

fn add_attributes(object: &Id, attributes: &[NewAttribute]) -> Result<(), TypeError> {
    for NewAttribute { name, value } in attributes {
        let name = name.as_bytes();
        let DType::Scalar { kind, size, .. } = &value.dtype else {
            ffi::add_attribute(
                object,
                name,
                &stored_type(&value.dtype)?,
                &value.shape,
                &value.data,
            )?;
            continue;
        };
        match kind {
            Kind::Text => {
                let texts = value.data.chunks(*size.max(&1)).map(text::of_ucs4);
                let mut texts: Vec<String> = texts.collect();
                if *size == 0 {
                    texts.resize(count(&value.shape), String::new());
                }
                ffi::add_strings(object, name, &value.shape, &texts)?;
            }
            Kind::Bytes if *size > 0 && value.data.chunks(*size).all(|s| s.ends_with(&[0])) => {
                let ty = ffi::c_string_type(*size)?;
                ffi::add_attribute(object, name, &ty, &value.shape, &value.data)?;
            }
            _ => {
                let ty = stored_type(&value.dtype)?;
                ffi::add_attribute(object, name, &ty, &value.shape, &value.data)?;
            }
        }
    }
    Ok(())
}

/// Returns the number of elements of a small array.
fn count(shape: &[u64]) -> usize {
    let elements = shape.iter().fold(1, |n: u64, &d| n.saturating_mul(d));
    usize::try_from(elements).unwrap_or(0)
}

/// Returns the HDF5 type whose bytes are those of `dtype`, as h5py chooses it.
pub(super) fn stored_type(dtype: &DType) -> Result<Id, TypeError> {
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
                Kind::Bytes => ffi::bytes_type(*size, false)?,
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
