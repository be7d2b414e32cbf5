//! Stores: what an HDF5 file or a directory of them looks like as files.

pub mod arkouda;
pub mod array;
pub mod daf;
pub mod external;
pub mod folder;
pub mod group;
pub mod hangar;
pub mod npz;
pub mod opened;
mod record;
pub mod small;
pub mod text;

use std::path::Path;
use std::sync::atomic::AtomicU64;
use std::sync::{Arc, OnceLock};

use crate::cache::Cache;
use crate::error::{Error, ErrorKind, Result};
use crate::h5::H5;
use crate::journal::Journal;
use crate::options::FsOptions;
use crate::raw;
use crate::read::ahead::Ahead;
use crate::read::backing::Backings;
use crate::read::window::Window;
use crate::team::Team;
use crate::tree::Directory;

/// What all stores of one mount share.
pub struct Context {
    pub h5: H5,
    pub cache: Cache,
    pub journal: Journal,
    pub options: FsOptions,
    /// What the kernel reads ahead, if it may be told.
    pub window: Window,
    pub ahead: Ahead,
    /// Helps with a chunk that somebody waits for.
    pub team: Team,
    /// Where the bytes of datasets are that were opened lately.
    pub backings: Backings,
    /// Store files opened since the start.
    pub stores_opened: AtomicU64,
    /// What became of raising the kernel's read-ahead: KiB, or why it was refused. Not set without a mount.
    pub read_ahead: Arc<OnceLock<std::result::Result<u64, String>>>,
    /// What the kernel's side says of how it serves. Not set without a mount.
    pub serving: OnceLock<Report>,
}

/// Says how something is, now.
pub type Report = Box<dyn Fn() -> serde_json::Value + Send + Sync>;

impl Context {
    pub fn new(h5: H5, options: FsOptions) -> Self {
        Self {
            h5,
            cache: Cache::new(options.cache_size),
            journal: Journal::default(),
            window: Window::of(options.cache_size),
            options,
            ahead: Ahead::new(),
            team: Team::new(),
            backings: Backings::default(),
            stores_opened: AtomicU64::new(0),
            read_ahead: Arc::default(),
            serving: OnceLock::new(),
        }
    }
}

/// The root directory of a store: a file, or a directory with stores in it.
///
/// A file is opened, so that what is no HDF5 is refused here; stores in a directory are opened when
/// somebody looks into them.
pub fn open(path: &Path, context: &Arc<Context>) -> Result<Arc<dyn Directory>> {
    let about = |e: Error| e.about(path.display());
    let meta = std::fs::metadata(path).map_err(|e| about(e.into()))?;
    if let Some(folder) = hangar::folder(path, context.options.kind) {
        let repository = hangar::repository::Repository::open(&folder, context)?;
        return Ok(Arc::new(hangar::root::RootDirectory::new(repository)));
    }
    if meta.is_dir() {
        if !folder::holds_a_store(path).map_err(|e| about(e.into()))? {
            return Err(about(Error::damaged(
                "no HDF5 file in this directory or below it",
            )));
        }
        return Ok(Arc::new(folder::Folder::new(path, path, context)));
    }
    if !meta.is_file() {
        return Err(about(Error::damaged("neither a file nor a directory")));
    }
    let file = std::fs::File::open(path).map_err(|e| about(e.into()))?;
    if !raw::has_hdf5_signature(&file).map_err(|e| about(e.into()))? {
        return Err(about(Error::new(ErrorKind::Damaged, "not an HDF5 file")));
    }
    if let Some(set) = folder::set_of(path, context)? {
        set.current()?;
        return Ok(Arc::new(set));
    }
    let store = folder::StoreRoot::new(path, context);
    store.current()?;
    Ok(Arc::new(store))
}
