//! How files have been read so far, and how they should be opened next time.
//!
//! Who takes samples out of a file (open it, read one range somewhere inside, close it) is served badly
//! through the kernel's page cache: pages do not end where chunks do, so that each sample costs the
//! chunks beside it as well. After such a sample a file is opened for exact reads, until somebody reads
//! it otherwise. It is a guess about speed: what is read is the same.

use std::num::NonZeroUsize;
use std::sync::Mutex;

use lru::LruCache;

/// Files whose habit is remembered.
const MOST: usize = 4096;

/// What one handle has read: one range, or more.
#[derive(Debug, Default)]
pub struct Track(Mutex<Option<Range>>);

#[derive(Clone, Copy, Debug)]
struct Range {
    start: u64,
    end: u64,
    /// Reads were elsewhere, too.
    scattered: bool,
}

impl Track {
    /// Notes a read; those of one range may come in any order.
    pub fn note(&self, offset: u64, len: u64) {
        let mut range = self.0.lock().unwrap_or_else(|e| e.into_inner());
        let end = offset.saturating_add(len);
        match range.as_mut() {
            None => {
                *range = Some(Range {
                    start: offset,
                    end,
                    scattered: false,
                });
            }
            Some(seen) if offset <= seen.end && end >= seen.start => {
                seen.start = seen.start.min(offset);
                seen.end = seen.end.max(end);
            }
            Some(seen) => seen.scattered = true,
        }
    }

    /// Whether it took one sample out of a file of `len` bytes; `None` if it read nothing.
    fn is_sample(&self, len: u64) -> Option<bool> {
        let range = (*self.0.lock().unwrap_or_else(|e| e.into_inner()))?;
        let short = range.end - range.start <= len / 4;
        Some(range.start > 0 && short && !range.scattered)
    }
}

/// The habits of the files of a mount, by inode.
pub struct Habits(Mutex<LruCache<u64, ()>>);

impl Default for Habits {
    fn default() -> Self {
        let size = NonZeroUsize::new(MOST).unwrap_or(NonZeroUsize::MIN);
        Self(Mutex::new(LruCache::new(size)))
    }
}

impl Habits {
    /// Whether the next handle will probably take a sample.
    pub fn expects_sample(&self, ino: u64) -> bool {
        let habits = self.0.lock().unwrap_or_else(|e| e.into_inner());
        habits.contains(&ino)
    }

    /// A handle of a file of `len` bytes is closed. Not judged before: the first read of a reader in order is
    /// somewhere inside, too, when others have read the start.
    pub fn closed(&self, ino: u64, len: u64, track: &Track) {
        let mut habits = self.0.lock().unwrap_or_else(|e| e.into_inner());
        match track.is_sample(len) {
            Some(true) => {
                habits.put(ino, ());
            }
            Some(false) => {
                habits.pop(&ino);
            }
            None => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LEN: u64 = 100 << 20;

    fn close(habits: &Habits, reads: &[(u64, u64)]) {
        let track = Track::default();
        for &(offset, len) in reads {
            track.note(offset, len);
        }
        habits.closed(7, LEN, &track);
    }

    #[test]
    fn samples_are_expected_after_samples() {
        let habits = Habits::default();
        assert!(!habits.expects_sample(7));
        // Out of order, as requests of one read may arrive.
        close(&habits, &[((1 << 20) + 4096, 4096), (1 << 20, 4096)]);
        close(&habits, &[]);
        assert!(habits.expects_sample(7) && !habits.expects_sample(8));
    }

    #[test]
    fn any_other_reading_ends_the_habit() {
        for other in [
            &[(0, 4096), (1 << 20, 4096)][..],
            &[(0, 4096)],
            &[(1 << 20, 4096), (5 << 20, 4096)],
            &[(4096, LEN / 2)],
        ] {
            let habits = Habits::default();
            close(&habits, &[(1 << 20, 4096)]);
            assert!(habits.expects_sample(7));
            close(&habits, other);
            assert!(!habits.expects_sample(7), "{other:?}");
        }
    }
}
