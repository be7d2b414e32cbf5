//! A new HDF5 file: what is in it, and how it gets there.
//!
//! A worker makes the file with room for the elements; they are copied there a block at a time, and holes stay holes.
//! So memory does not depend on the size of what is written.
//!
//! A large array that is one dataset is not even copied: its scratch file becomes the new file, and what HDF5 needs is
//! put around the elements. For that a worker makes the same file elsewhere, without elements, which then are a hole
//! between the parts that matter. Those are copied to where the scratch file has room for them. Wherever something is
//! not as expected, nothing happens, and the elements are copied the other way.

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::sync::Arc;

use super::against::Against;
use super::chunked::{self, ChunkedElements};
use npyfs_base::error::{Error, ErrorKind, Result};
use npyfs_hdf5::{
    Creator, H5Error, NewAttribute, NewChunks, NewDataset, NewGroup, NewLayout, Outline,
};
use npyfs_io::content::Content;
use npyfs_io::content::scratch::{LARGE, ROOM};
use npyfs_io::dir::Dir;
use npyfs_io::file::StoreFile;
use npyfs_io::storage::Storage;

/// The attribute that says when an object was written, in nanoseconds since 1970.
pub const TIME: &str = "npyfs_time";

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

    /// Returns the dataset at a path.
    pub fn dataset(&self, path: &[String]) -> Option<&NewDataset> {
        let mut datasets = self.outline.datasets.iter();
        datasets.find(|dataset| dataset.path == path)
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
    if let Some(file) = write_in_place(to, new, creator, storage)? {
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

/// The ending of the name of the file that a worker makes for a large array.
pub const HEAD: &str = "head";

/// Most bytes behind the elements.
const LONGEST_TAIL: u64 = 1 << 20;

/// Bytes before the elements are copied page by page, so that holes stay holes.
const PAGE: usize = 4096;

/// Makes the file `to`, which is not synced yet; `None` if this is not the way.
fn write_in_place(
    (dir, to): (&Dir, &str),
    new: &NewFile,
    creator: &Creator,
    storage: &dyn Storage,
) -> Result<Option<File>> {
    let ([dataset], [data]) = (&*new.outline.datasets, &*new.data) else {
        return Ok(None);
    };
    let Some((scratch, start)) = data.scratch() else {
        return Ok(None);
    };
    let (len, address) = (data.len(), ROOM.saturating_add(start));
    // Data begins with a page, as it does in other files.
    if !matches!(dataset.layout, NewLayout::Contiguous)
        || address % PAGE as u64 != 0
        || len < LARGE
        || scratch.len()? != start.saturating_add(len)
    {
        return Ok(None);
    }
    check_len(dataset, &**data)?;
    let stem = to.split_once('.').map_or(to, |(stem, _)| stem);
    let head = format!("{stem}.{HEAD}");
    let mut outline = new.outline.clone();
    outline.large_at = Some(address);
    scratch.hand_over(|file| {
        // Not every file system can name a file that has no name.
        if storage.link(file, dir, to).is_err() {
            return Ok(false);
        }
        let end = address.saturating_add(len);
        let done = storage
            .create(dir, &head)
            .map_err(Into::into)
            .and_then(|head_file| {
                let path = dir.path().join(&head);
                let target = StoreFile::from_file(&path, head_file.try_clone()?)?;
                if make(&target, &outline, creator)? != [address] {
                    return Ok(false);
                }
                surround(file, &head_file, (address - start, address, end), storage)
            });
        let _ = storage.remove(dir, &head);
        if !matches!(done, Ok(true)) {
            let _ = storage.remove(dir, to);
            storage.set_len(file, end)?;
        }
        done
    })
}

/// Copies what is before `room` and from `end` on; between `room` and `address` there must be nothing.
fn surround(
    file: &File,
    head: &File,
    (room, address, end): (u64, u64, u64),
    storage: &dyn Storage,
) -> Result<bool> {
    let whole = head.metadata()?.len();
    let bytes = |from: u64, to: u64| -> Result<Vec<u8>> {
        let mut bytes = vec![0; usize::try_from(to.saturating_sub(from)).unwrap_or(0)];
        head.read_exact_at(&mut bytes, from)?;
        Ok(bytes)
    };
    if whole < end || whole - end > LONGEST_TAIL {
        return Ok(false);
    }
    if bytes(room, address)?.iter().any(|&byte| byte != 0) {
        return Ok(false);
    }
    let mut at = 0;
    for page in bytes(0, room)?.chunks(PAGE) {
        if page.iter().any(|&byte| byte != 0) {
            storage.write_at(file, page, at)?;
        }
        at += page.len() as u64;
    }
    if whole > end {
        storage.write_at(file, &bytes(end, whole)?, end)?;
    }
    Ok(true)
}
