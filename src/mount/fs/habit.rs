//! How files have been read so far, and how they should be opened next time.
//!
//! Who takes samples out of a file (open it, read one range somewhere inside, close it) is served badly
//! through the kernel's page cache: pages do not end where chunks do, so that each sample costs the
//! chunks beside it as well. After such a sample a file is opened for exact reads, until somebody reads
//! it otherwise. It is a guess about speed: what is read is the same.
//!
//! Of several who read a file in order at the same time each has only a part of it asked for: what others have read is in
//! the page cache. Such parts are no samples.

use std::num::NonZeroUsize;
use std::sync::{Arc, Mutex, MutexGuard, Weak};

use lru::LruCache;

use crate::dataset::window::Window;

/// Files whose habit is remembered.
const MOST: usize = 4096;

/// Open handles of a file that are looked at.
const MOST_OPEN: usize = 64;

/// What one handle has read: one range, or more.
#[derive(Debug, Default)]
pub struct Track(Mutex<Option<Range>>);

#[derive(Clone, Copy, Debug)]
struct Range {
    start: u64,
    end: u64,
    /// Reads were elsewhere, too.
    scattered: bool,
    /// Where the last of them ended.
    last: u64,
    /// It began where another handle had got to.
    follows: bool,
}

impl Range {
    /// Whether it may be one sample out of a file of `len` bytes.
    fn is_sample(&self, len: u64) -> bool {
        let short = self.end - self.start <= len / 4;
        self.start > 0 && short && !self.scattered && !self.follows
    }

    /// Whether one who goes on at `at` may have read in order what this handle has read, in a file of `len` bytes.
    fn leads_to(&self, at: u64, len: u64, window: Window) -> bool {
        let near = window.under_way();
        let within = self.start <= at && at <= self.end.saturating_add(near);
        !self.is_sample(len) && (within || at.abs_diff(self.last) <= near)
    }
}

impl Track {
    fn range(&self) -> MutexGuard<'_, Option<Range>> {
        self.0.lock().unwrap_or_else(|e| e.into_inner())
    }

    /// Notes a read; those of one range may come in any order. Whether it is the first.
    fn note(&self, offset: u64, len: u64) -> bool {
        let mut range = self.range();
        let end = offset.saturating_add(len);
        let Some(seen) = range.as_mut() else {
            *range = Some(Range {
                start: offset,
                end,
                scattered: false,
                last: end,
                follows: false,
            });
            return true;
        };
        seen.last = end;
        if offset <= seen.end && end >= seen.start {
            seen.start = seen.start.min(offset);
            seen.end = seen.end.max(end);
        } else {
            seen.scattered = true;
        }
        false
    }

    fn follows(&self) {
        if let Some(range) = self.range().as_mut() {
            range.follows = true;
        }
    }
}

/// The habits of the files of a mount, by inode.
pub struct Habits {
    known: Mutex<Known>,
    window: Window,
}

struct Known {
    /// Files that a sample was taken from.
    samples: LruCache<u64, ()>,
    /// What handles have read that were opened lately, the last one last.
    open: LruCache<u64, Vec<Weak<Track>>>,
}

impl Known {
    /// Whether another handle of the file has led to `at`.
    fn is_led(&self, ino: u64, len: u64, track: &Track, at: u64, window: Window) -> bool {
        let others = self.open.peek(&ino).into_iter().flatten();
        others.filter_map(Weak::upgrade).any(|other| {
            let range = *other.range();
            !std::ptr::eq(&*other, track)
                && range.is_some_and(|range| range.leads_to(at, len, window))
        })
    }

    /// Whether a handle took one sample out of a file of `len` bytes; `None` if it read nothing.
    fn is_sample(&self, ino: u64, len: u64, track: &Track, window: Window) -> Option<bool> {
        let range = (*track.range())?;
        let led = || self.is_led(ino, len, track, range.start, window);
        Some(range.is_sample(len) && !led())
    }
}

impl Habits {
    pub fn new(window: Window) -> Self {
        let size = NonZeroUsize::new(MOST).unwrap_or(NonZeroUsize::MIN);
        let known = Mutex::new(Known {
            samples: LruCache::new(size),
            open: LruCache::new(size),
        });
        Self { known, window }
    }

    /// A file of `len` bytes is opened, what is read goes to `track`. Whether that will probably be a sample: the last
    /// handle took one, and may not be closed yet, as the kernel tells of that late.
    pub fn opened(&self, ino: u64, len: u64, track: &Arc<Track>) -> bool {
        let mut known = self.known();
        let last = known
            .open
            .peek(&ino)
            .and_then(|open| open.last()?.upgrade());
        let last = last.and_then(|last| known.is_sample(ino, len, &last, self.window));
        let open = known.open.get_or_insert_mut(ino, Vec::new);
        open.retain(|track| track.strong_count() > 0);
        if open.len() == MOST_OPEN {
            open.remove(0);
        }
        open.push(Arc::downgrade(track));
        last.unwrap_or_else(|| known.samples.contains(&ino))
    }

    /// A handle of a file of `len` bytes is read.
    pub fn read(&self, ino: u64, len: u64, track: &Track, (offset, size): (u64, u64)) {
        if track.note(offset, size) && offset > 0 {
            let led = self.known().is_led(ino, len, track, offset, self.window);
            if led {
                track.follows();
            }
        }
    }

    /// A handle of a file of `len` bytes is closed. Its own reads are not judged before: the first read of a reader in order
    /// is somewhere inside, too, when others have read the start.
    pub fn closed(&self, ino: u64, len: u64, track: &Track) {
        let mut known = self.known();
        match known.is_sample(ino, len, track, self.window) {
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
        self.known.lock().unwrap_or_else(|e| e.into_inner())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LEN: u64 = 100 << 20;

    fn habits() -> Habits {
        Habits::new(Window::of(1 << 30))
    }

    /// Opens a file, reads and closes it; whether it was expected to be a sample.
    fn read(habits: &Habits, ino: u64, reads: &[(u64, u64)]) -> bool {
        let track = Arc::default();
        let expected = habits.opened(ino, LEN, &track);
        for &(offset, len) in reads {
            habits.read(ino, LEN, &track, (offset, len));
        }
        habits.closed(ino, LEN, &track);
        expected
    }

    #[test]
    fn samples_are_expected_after_samples() {
        let habits = habits();
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
            let habits = habits();
            read(&habits, 7, &[(1 << 20, 4096)]);
            assert!(read(&habits, 7, other));
            assert!(!read(&habits, 7, &[]), "{other:?}");
        }
    }

    #[test]
    fn a_handle_that_is_not_closed_yet_counts_too() {
        let habits = habits();
        let [first, second, third] = [(); 3].map(|()| Arc::<Track>::default());
        assert!(!habits.opened(7, LEN, &first));
        habits.read(7, LEN, &first, (1 << 20, 4096));
        assert!(habits.opened(7, LEN, &second));
        habits.read(7, LEN, &second, (0, 4096));
        habits.closed(7, LEN, &first);
        assert!(!habits.opened(7, LEN, &third));
    }

    #[test]
    fn who_goes_on_where_another_has_read_takes_no_sample() {
        let habits = habits();
        let [first, second, third, sample] = [(); 4].map(|()| Arc::<Track>::default());
        assert!(!habits.opened(7, LEN, &first));
        habits.read(7, LEN, &first, (0, 4 << 20));
        // The kernel has the beginning: of the second only this is asked for, and of the third what comes next.
        assert!(!habits.opened(7, LEN, &second));
        habits.read(7, LEN, &second, (5 << 20, 1 << 20));
        assert!(!habits.opened(7, LEN, &third));
        habits.read(7, LEN, &third, (14 << 20, 1 << 20));
        drop(first);
        habits.closed(7, LEN, &second);
        drop(second);
        habits.closed(7, LEN, &third);
        assert!(!habits.opened(7, LEN, &sample));
        // Far from all of them it is one.
        habits.read(7, LEN, &sample, (70 << 20, 1 << 20));
        habits.closed(7, LEN, &sample);
        assert!(habits.opened(7, LEN, &Arc::default()));
    }
}
