//! What reading needs, and every store of one mount shares.

use std::sync::atomic::AtomicU64;
use std::sync::{Arc, OnceLock};

use crate::codec::pool::Team;
use crate::dataset::ahead::Ahead;
use crate::dataset::backing::Backings;
use crate::dataset::cache::Cache;
use crate::dataset::window::Window;
use crate::hdf5::H5;
use crate::journal::Journal;
use crate::options::FsOptions;

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
