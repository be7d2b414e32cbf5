//! The threads of one mount that decode: blocks ahead of their readers, and parts of one chunk that a reader waits for.
//!
//! A reader in order is served by jobs: each decodes a block by itself, and all processors have one. A reader who waits for a
//! single chunk has helpers share it. There is never both for one reader.

mod helpers;
mod jobs;

use std::thread::available_parallelism;

use crate::tuning::Tuning;
use helpers::Helpers;
use jobs::Jobs;

/// The threads that decode. All methods may be called from any thread.
pub struct DecodePool {
    processors: usize,
    jobs: Jobs,
    helpers: Helpers,
}

impl DecodePool {
    /// Starts the threads for jobs; helpers are started when they are first wanted.
    pub fn new(tuning: &Tuning) -> Self {
        let processors = available_parallelism().map_or(1, std::num::NonZero::get);
        let threads = processors + tuning.waiting_threads;
        Self {
            processors,
            jobs: Jobs::new(threads, tuning.waiting_jobs),
            helpers: Helpers::new((processors - 1).min(tuning.helpers)),
        }
    }

    /// Returns the number of jobs that can be worked on at the same time.
    pub fn processors(&self) -> usize {
        self.processors
    }

    /// Returns the number of threads that can work on one chunk, the caller included.
    pub fn sharing(&self) -> usize {
        self.helpers.size()
    }

    /// Returns true if no job waits to be begun.
    pub fn is_idle(&self) -> bool {
        self.jobs.is_idle()
    }

    /// Takes a job on, unless too many wait.
    pub fn submit(&self, job: impl FnOnce() + Send + 'static) {
        self.jobs.submit(job);
    }

    /// Takes on a job that somebody waits for already: before all others, unless too many wait.
    pub fn submit_first(&self, job: impl FnOnce() + Send + 'static) {
        self.jobs.submit_first(job);
    }

    /// Prepares for a chunk that will be wanted in a moment: helpers look out for it.
    pub fn call(&self) {
        self.helpers.call();
    }

    /// Lets helpers rest for a while: there are several readers.
    pub fn rest(&self) {
        self.helpers.rest();
    }

    /// Calls `work` for each item, in the calling thread and at the same time in helpers that look out; returns when all is
    /// done. After an error no further item is begun; of several errors it is the first that came.
    pub fn each<T: Send, E: Send>(
        &self,
        items: impl Iterator<Item = T> + Send,
        work: impl Fn(T) -> Result<(), E> + Sync,
    ) -> Result<(), E> {
        self.helpers.each(items, work)
    }
}

impl Default for DecodePool {
    fn default() -> Self {
        Self::new(&Tuning::default())
    }
}
