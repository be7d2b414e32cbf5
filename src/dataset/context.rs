//! The state that reading needs, shared by every store of one mount.

use std::sync::atomic::AtomicU64;
use std::sync::{Arc, OnceLock};

use crate::codec::pool::DecodePool;
use crate::dataset::backing::Backings;
use crate::dataset::cache::Cache;
use crate::dataset::prefetch::Prefetcher;
use crate::dataset::stream::Fetches;
use crate::hdf5::H5;
use crate::journal::Journal;
use crate::options::FsOptions;
use crate::tuning::Tuning;

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
    /// The parameters by which readers are served.
    pub tuning: Tuning,
    /// The rule for what is fetched ahead of them.
    pub prefetch: Prefetcher,
    /// The room for what is fetched ahead over a network.
    pub fetches: Arc<Fetches>,
    /// The threads that decode.
    pub decoders: DecodePool,
    /// The sources of bytes of datasets that were opened lately.
    pub backings: Backings,
    /// The number of store files opened since the start.
    pub stores_opened: AtomicU64,
    /// The outcome of raising the kernel's read-ahead: KiB, or why it was refused. Not set without a mount.
    pub read_ahead: Arc<OnceLock<std::result::Result<u64, String>>>,
    /// The report of the kernel's side on how it serves. Not set without a mount.
    pub serving: OnceLock<Report>,
    /// The report on copies that are kept. Not set where none are.
    pub keeping: OnceLock<Report>,
    /// The report on commits of others that a mount goes on with. Not set where it stays as it is.
    pub following: OnceLock<Report>,
}

/// A function that reports the present state of something.
pub type Report = Box<dyn Fn() -> serde_json::Value + Send + Sync>;

impl Context {
    /// Creates the state of a mount with these options.
    pub fn new(h5: H5, options: FsOptions) -> Self {
        let tuning = match options.scheduling {
            true => Tuning::default(),
            false => Tuning::default().unscheduled(),
        };
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
