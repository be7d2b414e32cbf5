//! The state needed for reading, shared by all stores of one mount.

use super::decode_pool::DecodePool;
use std::sync::atomic::AtomicU64;
use std::sync::{Arc, OnceLock};

use crate::dataset::backing::Backings;
use crate::dataset::cache::Cache;
use crate::dataset::prefetch::Prefetcher;
use crate::dataset::stream::Fetches;
use npyfs_base::journal::Journal;
use npyfs_base::options::FsOptions;
use npyfs_base::tuning::Tuning;
use npyfs_hdf5::H5;

/// The state that all stores of one mount share.
pub struct Context {
    /// The workers that run libhdf5.
    pub h5: H5,
    /// The cache of decoded blocks.
    pub cache: Cache,
    /// The log of failures.
    pub journal: Journal,
    /// The options of the mount.
    pub options: FsOptions,
    /// The parameters for serving readers.
    pub tuning: Tuning,
    /// The prefetch rule.
    pub prefetch: Prefetcher,
    /// The limit of bytes that are fetched ahead over a network.
    pub fetches: Arc<Fetches>,
    /// The decoding threads.
    pub decoders: DecodePool,
    /// The backings of recently opened datasets.
    pub backings: Backings,
    /// The number of store files opened since the start.
    pub stores_opened: AtomicU64,
    /// The outcome of raising the kernel's read-ahead: KiB, or why it was refused. Unset without a mount.
    pub read_ahead: Arc<OnceLock<std::result::Result<u64, String>>>,
    /// The report of the FUSE session on scheduling. Unset without a mount.
    pub serving: OnceLock<Report>,
    /// The report on kept copies. Unset without kept copies.
    pub keeping: OnceLock<Report>,
    /// The report on commits that the mount follows. Unset if it follows none.
    pub following: OnceLock<Report>,
}

/// A function that reports the present state of a component.
pub type Report = Box<dyn Fn() -> serde_json::Value + Send + Sync>;

impl Context {
    /// Creates the state of a mount with these options.
    pub fn new(h5: H5, options: FsOptions) -> Self {
        let tuning = Tuning::default();
        Self {
            h5,
            cache: Cache::new(options.cache_size),
            journal: Journal::default(),
            prefetch: Prefetcher::new(tuning.clone(), options.cache_size),
            fetches: Arc::new(Fetches::new(options.cache_size)),
            decoders: DecodePool::new(&tuning),
            tuning,
            options,
            backings: Backings::default(),
            stores_opened: AtomicU64::new(0),
            read_ahead: Arc::default(),
            serving: OnceLock::new(),
            keeping: OnceLock::new(),
            following: OnceLock::new(),
        }
    }
}
