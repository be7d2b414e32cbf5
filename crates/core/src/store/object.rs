//! A new HDF5 file: what is in it, and how it gets there.
//!
//! A worker makes the file with room for the elements; they are copied there a block at a time, and holes
//! stay holes. So memory does not depend on the size of what is written. A large array that is one dataset is
//! not even copied.

mod in_place;

use std::fs::File;
use std::sync::Arc;

use super::against::Against;
use super::chunked::{self, ChunkedElements};
use npyfs_base::error::{Error, ErrorKind, Result};
use npyfs_hdf5::{
    Creator, H5Error, NewAttribute, NewChunks, NewDataset, NewGroup, NewLayout, Outline,
};
use npyfs_io::content::Content;
use npyfs_io::dir::Dir;
use npyfs_io::file::StoreFile;
use npyfs_io::storage::Storage;

/// The attribute that says when an object was written, in nanoseconds since 1970.
pub const TIME: &str = "npyfs_time";

pub use in_place::ENDING as HEAD;

/// Bytes that are copied at a time.
const BLOCK: usize = 1 << 20;

/// A file that is to be written: its outline, and the elements of each dataset, in the same order.
#[derive(Clone, Default)]
pub struct NewFile {
    /// Groups, datasets and attributes.
    pub outline: Outline,
    /// As `.npy` has them, in C order; as many bytes as the dataset has.
    pub data: Vec<Arc<dyn Content>>,
    /// Its size in the mount, if it is shown as one `.npy` file and that is known.
    pub size: Option<u64>,
    /// The state of the store that it is written against.
    pub against: Option<Arc<Against>>,
    /// The name of the format of which it is an empty store.
    pub begins: Option<&'static str>,
    /// The objects that it may share a file with; `None`: it has a file of its own.
    pub scope: Option<PackScope>,
}

/// The objects that an object may share a file with, and which dataset it is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PackScope {
    /// The store that they are of, and its format.
    pub store: String,
    /// The path of the dataset that is shown; all others are those that its format asks for.
    pub path: Vec<String>,
}

impl NewFile {
    /// Adds a dataset, and the content of its elements.
    pub fn add(&mut self, dataset: NewDataset, data: Arc<dyn Content>) {
        self.outline.datasets.push(dataset);
        self.data.push(data);
    }

    /// Gives a group attributes; it is made if it is not there.
    pub fn mark(&mut self, path: &[String], attributes: Vec<NewAttribute>) {
        let groups = &mut self.outline.groups;
        match groups.iter_mut().find(|group| group.path == path) {
            Some(group) => group.attributes.extend(attributes),
            None => groups.push(NewGroup {
                path: path.to_vec(),
                attributes,
            }),
        }
    }

    /// Gives the root group an attribute.
    pub fn mark_root(&mut self, attribute: NewAttribute) {
        self.mark(&[], vec![attribute]);
    }
}

/// Makes the file `to`, which is not synced yet, and whose rights are not settled.
///
/// On failure the file may be there, in part.
pub fn write(
    to: (&Dir, &str),
    new: &NewFile,
    creator: &Creator,
    storage: &dyn Storage,
) -> Result<File> {
    if let Some(file) = in_place::write(to, new, creator, storage)? {
        return Ok(file);
    }
    let (dir, name) = to;
    let file = storage.create(dir, name)?;
    let target = StoreFile::from_file(&dir.path().join(name), file.try_clone()?)?;
    let addresses = make(&target, &new.outline, creator)?;
    let datasets = new.outline.datasets.iter().zip(&new.data).zip(addresses);
    for ((dataset, data), address) in datasets {
        let about = |e: Error| e.about(dataset.path.join("/"));
        check_len(dataset, &**data).map_err(about)?;
        match &dataset.layout {
            NewLayout::Contiguous => copy(&**data, &file, address, storage).map_err(about)?,
            NewLayout::Chunked {
                chunk, encoding, ..
            } => {
                let cut = ChunkedElements {
                    shape: &dataset.shape,
                    chunk,
                    element: dataset.element.size(),
                    encoding: *encoding,
                    data: &**data,
                };
                let send = |chunks| {
                    let path = dataset.path.clone();
                    Ok(creator.write_chunks(&target, NewChunks { path, chunks })?)
                };
                chunked::encode(&cut, send).map_err(about)?;
            }
        }
    }
    Ok(file)
}

/// Has the worker make a file. Answers where the data of each dataset begins.
fn make(target: &StoreFile, outline: &Outline, creator: &Creator) -> Result<Vec<u64>> {
    creator.create(target, outline).map_err(|e| match e {
        H5Error::Unsupported(why) => Error::new(ErrorKind::Os(libc::EOPNOTSUPP), why),
        H5Error::TooLarge(why) => Error::new(ErrorKind::Os(libc::EINVAL), why),
        other => other.into(),
    })
}

/// Guards the room of the next dataset.
pub fn check_len(dataset: &NewDataset, data: &dyn Content) -> Result<()> {
    let elements = dataset
        .shape
        .iter()
        .try_fold(dataset.element.size() as u64, |n, &d| n.checked_mul(d));
    if elements != Some(data.len()) {
        let have = data.len();
        let why = format!("{have} bytes for a dataset of shape {:?}", dataset.shape);
        return Err(Error::damaged(why));
    }
    Ok(())
}

/// Copies a content as it is; holes stay holes.
pub fn copy(data: &dyn Content, file: &File, address: u64, storage: &dyn Storage) -> Result<()> {
    let most = usize::try_from(data.len()).unwrap_or(BLOCK).clamp(1, BLOCK);
    let mut block = vec![0; most];
    let mut at = 0;
    while let Some(range) = data.written(at)? {
        at = range.start.max(at);
        while at < range.end {
            let size = usize::try_from(range.end - at).unwrap_or(most).min(most);
            let wanted = block.get_mut(..size).unwrap_or_default();
            data.read_at(at, wanted)?;
            storage.write_at(file, wanted, address.saturating_add(at))?;
            at += size as u64;
        }
    }
    Ok(())
}
