//! An estimate of which places of a file were read before, and of the speed of its disk.
//!
//! It affects speed only. Some places that were never read count as read, but never more than half of them.

use std::sync::OnceLock;
use std::sync::atomic::{AtomicU32, AtomicU64, AtomicUsize, Ordering::Relaxed};
use std::time::Duration;

use npyfs_base::tuning::Tuning;

/// A power of two. With chunks of 1 MiB, half of the bits cover 32 GiB.
const BITS: usize = 1 << 16;

/// A read is slow if it takes longer than this plus the same again for each `BYTES` bytes.
const LONG: Duration = Tuning::SLOW_READ;
const BYTES: u64 = 1 << 20;

/// A slow read outweighs this many fast ones. Several slow reads mean a slow disk.
const WEIGHT: u32 = 4;
const ENOUGH: u32 = 16;

/// The places of one file that were read, and the speed of its disk.
#[derive(Debug, Default)]
pub(super) struct Seen {
    bits: OnceLock<Box<[AtomicU64]>>,
    set: AtomicUsize,
    /// A score: the higher, the slower the disk appears.
    slow: AtomicU32,
}

impl Seen {
    /// Records a place; true if it is new.
    pub(super) fn is_new(&self, place: u64) -> bool {
        let empty = || (0..BITS / 64).map(|_| AtomicU64::new(0)).collect();
        let words = self.bits.get_or_init(empty);
        let hash = xxhash_rust::xxh3::xxh3_64(&place.to_le_bytes());
        let bit = usize::try_from(hash % BITS as u64).unwrap_or(0);
        let mask = 1 << (bit % 64);
        let new = words[bit / 64].fetch_or(mask, Relaxed) & mask == 0;
        if new && self.set.fetch_add(1, Relaxed) >= BITS / 2 {
            words.iter().for_each(|word| word.store(0, Relaxed));
            self.set.store(0, Relaxed);
        }
        new
    }

    /// Records the time that it took to read this many bytes from the disk.
    pub(super) fn took(&self, bytes: u64, time: Duration) {
        let parts = u32::try_from(bytes / BYTES).unwrap_or(u32::MAX);
        let next = |slow: u32| match time > LONG.saturating_mul(parts.saturating_add(1)) {
            true => Some((slow + WEIGHT).min(ENOUGH + WEIGHT)),
            false => slow.checked_sub(1),
        };
        let _ = self.slow.fetch_update(Relaxed, Relaxed, next);
    }

    /// Returns true if the disk appears slow.
    pub(super) fn is_slow(&self) -> bool {
        self.slow.load(Relaxed) >= ENOUGH
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_place_is_new_once_and_most_others_still_are() {
        let seen = Seen::default();
        assert!(seen.is_new(4096));
        assert!(!seen.is_new(4096));
        let new = (1..=1000).filter(|n| seen.is_new(n << 20)).count();
        assert!(new > 950);
        // The bits do not fill up, however many places follow.
        for n in 0..10 * BITS as u64 {
            seen.is_new(n * 777);
        }
        let new = (1..=1000).filter(|n| seen.is_new(n << 33)).count();
        assert!(new > 400);
    }

    #[test]
    fn a_disk_is_slow_after_several_slow_reads() {
        let (slow, fast) = (Duration::from_millis(8), Duration::from_micros(500));
        let seen = Seen::default();
        for _ in 0..50 {
            seen.took(1000, slow);
            (0..WEIGHT).for_each(|_| seen.took(1000, fast));
        }
        assert!(!seen.is_slow());
        (0..ENOUGH / WEIGHT).for_each(|_| seen.took(1000, slow));
        assert!(seen.is_slow());
        (0..=WEIGHT).for_each(|_| seen.took(1000, fast));
        assert!(!seen.is_slow());
        // A longer read may take longer.
        let seen = Seen::default();
        (0..100).for_each(|_| seen.took(4 << 20, slow));
        assert!(!seen.is_slow());
    }
}
