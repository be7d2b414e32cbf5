//! How files have been read so far, and how they should be opened next time.
//!
//! Who takes samples out of a file (open it, read one range somewhere inside, close it) is served badly
//! through the kernel's page cache: pages do not end where chunks do, so that each sample costs the
//! chunks beside it as well. After such a sample a file is opened for exact reads, until somebody reads
//! it otherwise. It is a guess about speed: what is read is the same.

use std::num::NonZeroUsize;
use std::sync::{Arc, Mutex, MutexGuard, Weak};

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
pub struct Habits(Mutex<Known>);

struct Known {
    /// Files that a sample was taken from.
    samples: LruCache<u64, ()>,
    /// What the handle opened last has read.
    latest: LruCache<u64, Weak<Track>>,
}

impl Default for Habits {
    fn default() -> Self {
        let size = NonZeroUsize::new(MOST).unwrap_or(NonZeroUsize::MIN);
        Self(Mutex::new(Known {
            samples: LruCache::new(size),
            latest: LruCache::new(size),
        }))
    }
}

impl Habits {
    /// A file of `len` bytes is opened, what is read goes to `track`. Whether that will probably be a sample: the last
    /// handle took one, and may not be closed yet, as the kernel tells of that late.
    pub fn opened(&self, ino: u64, len: u64, track: &Arc<Track>) -> bool {
        let mut known = self.known();
        let last = known.latest.put(ino, Arc::downgrade(track));
        let last = last.and_then(|last| last.upgrade()?.is_sample(len));
        last.unwrap_or_else(|| known.samples.contains(&ino))
    }

    /// A handle of a file of `len` bytes is closed. Its own reads are not judged before: the first read of a reader in order
    /// is somewhere inside, too, when others have read the start.
    pub fn closed(&self, ino: u64, len: u64, track: &Track) {
        let mut known = self.known();
        match track.is_sample(len) {
            Some(true) => {
                known.samples.put(ino, ());
            }
            Some(false) => {
                known.samples.pop(&ino);
            }
            None => {}
        }
    }

    fn known(&self) -> MutexGuard<'_, Known> {
        self.0.lock().unwrap_or_else(|e| e.into_inner())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LEN: u64 = 100 << 20;

    /// Opens a file, reads and closes it; whether it was expected to be a sample.
    fn read(habits: &Habits, ino: u64, reads: &[(u64, u64)]) -> bool {
        let track = Arc::default();
        let expected = habits.opened(ino, LEN, &track);
        for &(offset, len) in reads {
            track.note(offset, len);
        }
        habits.closed(ino, LEN, &track);
        expected
    }

    #[test]
    fn samples_are_expected_after_samples() {
        let habits = Habits::default();
        // Out of order, as requests of one read may arrive.
        assert!(!read(
            &habits,
            7,
            &[((1 << 20) + 4096, 4096), (1 << 20, 4096)]
        ));
        assert!(read(&habits, 7, &[]));
        assert!(read(&habits, 7, &[]) && !read(&habits, 8, &[]));
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
            read(&habits, 7, &[(1 << 20, 4096)]);
            assert!(read(&habits, 7, other));
            assert!(!read(&habits, 7, &[]), "{other:?}");
        }
    }

    #[test]
    fn a_handle_that_is_not_closed_yet_counts_too() {
        let habits = Habits::default();
        let [first, second, third] = [(); 3].map(|()| Arc::<Track>::default());
        assert!(!habits.opened(7, LEN, &first));
        first.note(1 << 20, 4096);
        assert!(habits.opened(7, LEN, &second));
        second.note(0, 4096);
        habits.closed(7, LEN, &first);
        assert!(!habits.opened(7, LEN, &third));
    }
}
