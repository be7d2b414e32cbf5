//! The numbers that decide how readers are served, each with where it was measured.
//!
//! They are about speed and memory only: whatever they are, the bytes are the same. Tables and how they were measured are
//! in `benches/README.md`; "not sensitive" means that half and twice the value made no difference that could be told.

use std::ops::RangeInclusive;
use std::time::Duration;

/// How readers of one mount are served.
#[derive(Clone, Debug)]
pub struct Tuning {
    /// Share of the cache that one window of the kernel's read-ahead may be. Four windows are under way at most, so that a
    /// quarter of the cache is: with an eighth, chunks were decoded twice at `cache_size=8m` (19 of 80 readings).
    pub window_share: u64,
    /// Bytes of that window. The smallest is the kernel's own. The largest is two requests: `np.load` of 1 GiB contiguous
    /// 0.89 s with one, 0.85 s with two, 1.16 s with half a one ("Two requests ahead"); 4 MiB: no difference.
    pub window: RangeInclusive<u64>,
    /// Bytes that are fetched ahead of a reader in order, to begin with. 7, 10 or 13 blocks of 1 MiB instead of 4 made no
    /// difference for contiguous data, 8 keep all processors busy with chunks of 1 MiB.
    pub ahead: u64,
    /// Bytes up to which that grows while the reader has to wait for blocks that are on their way and the decode pool has
    /// nothing else to do: a source with 50 ms of latency gives 1 GiB/s from 50 MiB ahead.
    pub most_ahead: u64,
    /// Blocks that are fetched ahead, whatever their size. Two keep a processor busy beside the reader's.
    pub ahead_blocks: RangeInclusive<u64>,
    /// Blocks of one request that are decoded at the same time. Not sensitive.
    pub begun: usize,
    /// Bytes of blocks that one request keeps at hand. Not sensitive.
    pub held: usize,
    /// Jobs of the decode pool that may wait; a further one is not taken on. Not sensitive.
    pub waiting_jobs: usize,
    /// Threads of the decode pool beside one for each processor, as some wait for the disk. On 2 processors two more took
    /// 0.83 to 0.96 of the time of none, cold.
    pub waiting_threads: usize,
    /// Threads that work on one chunk at most, beside the one that wants it: more would wait for memory. A sample of 1 MiB,
    /// blosc-zstd, takes 0.74 of the time on 2 processors ("What each of the scheduling tricks is worth").
    pub helpers: usize,
    /// Files of which is remembered that samples were taken out of them, and open handles of one that are looked at.
    /// A directory of arrays, and the readers of a machine; not sensitive.
    pub sampled_files: usize,
    /// Open handles of one file that are looked at.
    pub sampled_handles: usize,
}

impl Tuning {
    /// Returns the same where threads are to be left to the scheduler: nobody looks out for a part of a chunk.
    pub fn unscheduled(self) -> Self {
        Self { helpers: 0, ..self }
    }

    /// Steps from block to block after which reading counts as in order. Not sensitive.
    pub const SETTLED: u32 = 2;

    /// Bytes of a block of contiguous data. With 2 MiB, `np.load` of 1 GiB took 1.11 s instead of 0.85 s.
    pub const STORED_BLOCK: u64 = 1 << 20;

    /// Shorter reads of contiguous data go the usual way: the kernel's window is larger.
    pub const STORED_LEAST: usize = 128 << 10;

    /// Bytes that are fetched ahead of a reader in order whose file lies elsewhere, to begin with: with 30 ms and 60 MB/s a connection, 4
    /// connections are busy.
    pub const STREAM_WINDOW: u64 = 8 << 20;

    /// Bytes that must have been read in order before anything is fetched ahead over a network: more than a look at a header.
    pub const STREAM_BEGINS: u64 = 256 << 10;

    /// Bytes of a request of those: small ones end sooner, large ones wait less often.
    pub const PARTS: RangeInclusive<u64> = 1 << 20..=8 << 20;

    /// What lies between two ranges is fetched along where it is no more: it costs less than a request.
    pub const FETCH_GAP: u64 = 64 << 10;

    /// The time for which a helper looks out after it was called, or has helped: a loop over samples goes on within it. With
    /// 1 ms no difference.
    pub const HELPER_LOOK_OUT: Duration = Duration::from_micros(600);

    /// The time for which whoever has a chunk shared looks out for helpers to be done, before it sleeps until they are. A
    /// part of a chunk of 1 MiB takes 0.1 to 0.3 ms.
    pub const HELPER_END: Duration = Duration::from_micros(500);

    /// A helper that was not running for longer lost its processor to a program: the kernel's own threads take less.
    pub const HELPER_LOST: Duration = Duration::from_micros(200);

    /// The time for which helpers rest then: twice as long each time.
    pub const HELPER_PAUSES: RangeInclusive<Duration> =
        Duration::from_millis(5)..=Duration::from_secs(1);

    /// Chunks that helpers had a part in after which that is the shortest time again.
    pub const HELPED_WELL: u32 = 64;

    /// The time for which helpers rest after several readers were there (two of them: 506 us a sample, 596 without that), or
    /// threads waited for processors most of the time, which is looked up as often: it takes 10 us.
    pub const HELPER_REST: Duration = Duration::from_millis(10);

    /// A read that takes longer, and as long again for each MiB, is one of a slow disk: one that turns, or one behind a
    /// network. Local disks here took 0.2 to 0.8 ms for 1 MiB.
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
            helpers: 3,
            sampled_files: 4096,
            sampled_handles: 64,
        }
    }
}
