//! The numbers that decide how readers are served, each with its measurement.
//!
//! They affect speed and memory only: the bytes are the same with all values. Tables and methods are in
//! `benches/README.md`. "Not sensitive" means that half and twice the value made no measurable difference.

use std::ops::RangeInclusive;
use std::time::Duration;

/// How readers of one mount are served.
#[derive(Clone, Debug)]
pub struct Tuning {
    /// The share of the cache that one window of the kernel's read-ahead may take. At most four windows are in flight,
    /// so together they take at most a quarter of the cache. With an eighth each, chunks were decoded twice at
    /// `cache_size=8m` (19 of 80 readings).
    pub window_share: u64,
    /// Bytes of that window. The smallest is the kernel's own. The largest is two requests: `np.load` of 1 GiB
    /// contiguous took 0.85 s with two, 0.89 s with one, 1.16 s with half a request ("Two requests ahead"); 4 MiB made
    /// no difference.
    pub window: RangeInclusive<u64>,
    /// Bytes fetched ahead of a sequential reader at first. 7, 10 or 13 blocks of 1 MiB instead of 4 made no difference
    /// for contiguous data; 8 keep all processors busy with chunks of 1 MiB.
    pub ahead: u64,
    /// The most bytes fetched ahead. The distance grows while the reader has to wait for blocks in flight and the
    /// decode pool is otherwise idle: a source with 50 ms of latency gives 1 GiB/s from 50 MiB ahead.
    pub most_ahead: u64,
    /// Blocks fetched ahead, whatever their size. Two keep one processor busy beside the reader's.
    pub ahead_blocks: RangeInclusive<u64>,
    /// Blocks of one request that are decoded concurrently. Not sensitive.
    pub begun: usize,
    /// Bytes of blocks that one request holds. Not sensitive.
    pub held: usize,
    /// Jobs that may wait in the decode pool; further ones are refused. Not sensitive.
    pub waiting_jobs: usize,
    /// Threads of the decode pool in addition to one per processor, as some wait for the disk. On 2 processors, two
    /// more took 0.83 to 0.96 of the time without them, cold.
    pub waiting_threads: usize,
    /// The number of files for which it is remembered that single samples were read. Enough for a directory of arrays;
    /// not sensitive.
    pub sampled_files: usize,
    /// Open handles of one file that are examined. Enough for the readers of one machine; not sensitive.
    pub sampled_handles: usize,
}

impl Tuning {
    /// Consecutive blocks after which reading counts as sequential. Not sensitive.
    pub const SETTLED: u32 = 2;

    /// Bytes of a block of contiguous data. With 2 MiB, `np.load` of 1 GiB took 1.11 s instead of 0.85 s.
    pub const STORED_BLOCK: u64 = 1 << 20;

    /// Shorter reads of contiguous data bypass the blocks: the kernel's window is larger.
    pub const STORED_LEAST: usize = 128 << 10;

    /// Bytes fetched ahead of a sequential reader of a remote file at first: with 30 ms of latency and 60 MB/s per
    /// connection, they keep 4 connections busy.
    pub const STREAM_WINDOW: u64 = 8 << 20;

    /// Bytes that must be read in order before anything is fetched ahead over a network: more than a header.
    pub const STREAM_BEGINS: u64 = 256 << 10;

    /// Bytes of such a request: small ones complete sooner, large ones wait less often.
    pub const PARTS: RangeInclusive<u64> = 1 << 20..=8 << 20;

    /// A gap of at most this many bytes between two ranges is fetched along with them: it costs less than a request.
    pub const FETCH_GAP: u64 = 64 << 10;

    /// A read that takes longer than this plus the same again for each MiB counts as one of a slow disk: a hard disk,
    /// or one behind a network. Local disks here took 0.2 to 0.8 ms for 1 MiB.
    pub const SLOW_READ: Duration = Duration::from_millis(3);
}

impl Default for Tuning {
    fn default() -> Self {
        Self {
            window_share: 16,
            window: 128 << 10..=2 << 20,
            ahead: 8 << 20,
            most_ahead: 64 << 20,
            ahead_blocks: 2..=32,
            begun: 8,
            held: 4 << 20,
            waiting_jobs: 64,
            waiting_threads: 2,
            sampled_files: 4096,
            sampled_handles: 64,
        }
    }
}
