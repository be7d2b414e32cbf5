//! Files that samples are taken out of, and are opened for that.
//!
//! A program that takes samples out of a file (it opens it, reads one range somewhere inside, closes it) is served badly
//! through the kernel's page cache: pages do not end where chunks do, so that each sample costs the
//! chunks beside it as well. After such a sample a file is opened for exact reads, until somebody reads
//! it otherwise. It is a guess about speed: what is read is the same.
//!
//! Of several who read a file in order at the same time each has only a part of it asked for: what others have read is in
//! the page cache. Such parts are no samples.

use std::num::NonZeroUsize;
use std::sync::{Arc, Mutex, MutexGuard, Weak};

use lru::LruCache;

use crate::dataset::access_pattern::AccessPattern;
use crate::tuning::Tuning;

/// The files of a mount that samples are taken out of, by inode.
pub(super) struct SampledFiles {
    known: Mutex<SampledRecently>,
    /// Bytes by which requests of one reader are apart at most.
    under_way: u64,
    /// Open handles of one file that are looked at.
    most_handles: usize,
}

struct SampledRecently {
    /// Files that a sample was taken from.
    samples: LruCache<u64, ()>,
    /// The patterns of handles that were opened lately, the last one last.
    open: LruCache<u64, Vec<Weak<AccessPattern>>>,
}

impl SampledRecently {
    /// Returns true if another handle of the file has led to `at`.
    fn is_led(&self, ino: u64, len: u64, pattern: &AccessPattern, at: u64, under_way: u64) -> bool {
        let others = self.open.peek(&ino).into_iter().flatten();
        others.filter_map(Weak::upgrade).any(|other| {
            !std::ptr::eq(&*other, pattern)
                && other
                    .span()
                    .is_some_and(|span| span.leads_to(at, len, under_way))
        })
    }

    /// Returns true if a handle took one sample out of a file of `len` bytes; `None` if it read nothing.
    fn is_sample(
        &self,
        ino: u64,
        len: u64,
        pattern: &AccessPattern,
        under_way: u64,
    ) -> Option<bool> {
        let span = pattern.span()?;
        let led = || self.is_led(ino, len, pattern, span.start, under_way);
        Some(span.is_sample(len) && !led())
    }
}

impl SampledFiles {
    /// Remembers nothing yet. Requests of one reader are at most `under_way` bytes apart.
    pub(super) fn new(tuning: &Tuning, under_way: u64) -> Self {
        let size = NonZeroUsize::new(tuning.sampled_files).unwrap_or(NonZeroUsize::MIN);
        let known = Mutex::new(SampledRecently {
            samples: LruCache::new(size),
            open: LruCache::new(size),
        });
        Self {
            known,
            under_way,
            most_handles: tuning.sampled_handles.max(1),
        }
    }

    /// A file of `len` bytes is opened, what is read goes to `pattern`. Returns true if that will probably be a sample: the last
    /// handle took one, and may not be closed yet, as the kernel tells of that late.
    pub(super) fn opened(&self, ino: u64, len: u64, pattern: &Arc<AccessPattern>) -> bool {
        let mut known = self.known();
        let last = known
            .open
            .peek(&ino)
            .and_then(|open| open.last()?.upgrade());
        let last = last.and_then(|last| known.is_sample(ino, len, &last, self.under_way));
        let open = known.open.get_or_insert_mut(ino, Vec::new);
        open.retain(|pattern| pattern.strong_count() > 0);
        if open.len() == self.most_handles {
            open.remove(0);
        }
        open.push(Arc::downgrade(pattern));
        last.unwrap_or_else(|| known.samples.contains(&ino))
    }

    /// A handle of a file of `len` bytes is read.
    pub(super) fn read(
        &self,
        ino: u64,
        len: u64,
        pattern: &AccessPattern,
        (offset, size): (u64, u64),
    ) {
        if pattern.note(offset, size) && offset > 0 {
            let led = self
                .known()
                .is_led(ino, len, pattern, offset, self.under_way);
            if led {
                pattern.follows();
            }
        }
    }

    /// A handle of a file of `len` bytes is closed. Its own reads are not judged before: the first read of a reader in order
    /// is somewhere inside, too, when others have read the start.
    pub(super) fn closed(&self, ino: u64, len: u64, pattern: &AccessPattern) {
        let mut known = self.known();
        match known.is_sample(ino, len, pattern, self.under_way) {
            Some(true) => {
                known.samples.put(ino, ());
            }
            Some(false) => {
                known.samples.pop(&ino);
            }
            None => {}
        }
    }

    fn known(&self) -> MutexGuard<'_, SampledRecently> {
        self.known.lock().unwrap_or_else(|e| e.into_inner())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LEN: u64 = 100 << 20;

    fn sampled() -> SampledFiles {
        SampledFiles::new(&Tuning::default(), 8 << 20)
    }

    /// Opens a file, reads and closes it; whether it was expected to be a sample.
    fn read(sampled: &SampledFiles, ino: u64, reads: &[(u64, u64)]) -> bool {
        let pattern = Arc::default();
        let expected = sampled.opened(ino, LEN, &pattern);
        for &(offset, len) in reads {
            sampled.read(ino, LEN, &pattern, (offset, len));
        }
        sampled.closed(ino, LEN, &pattern);
        expected
    }

    #[test]
    fn samples_are_expected_after_samples() {
        let sampled = sampled();
        // Out of order, as requests of one read may arrive.
        assert!(!read(
            &sampled,
            7,
            &[((1 << 20) + 4096, 4096), (1 << 20, 4096)]
        ));
        assert!(read(&sampled, 7, &[]));
        assert!(read(&sampled, 7, &[]) && !read(&sampled, 8, &[]));
    }

    #[test]
    fn any_other_reading_ends_it() {
        for other in [
            &[(0, 4096), (1 << 20, 4096)][..],
            &[(0, 4096)],
            &[(1 << 20, 4096), (5 << 20, 4096)],
            &[(4096, LEN / 2)],
        ] {
            let sampled = sampled();
            read(&sampled, 7, &[(1 << 20, 4096)]);
            assert!(read(&sampled, 7, other));
            assert!(!read(&sampled, 7, &[]), "{other:?}");
        }
    }

    #[test]
    fn a_handle_that_is_not_closed_yet_counts_too() {
        let sampled = sampled();
        let [first, second, third] = [(); 3].map(|()| Arc::<AccessPattern>::default());
        assert!(!sampled.opened(7, LEN, &first));
        sampled.read(7, LEN, &first, (1 << 20, 4096));
        assert!(sampled.opened(7, LEN, &second));
        sampled.read(7, LEN, &second, (0, 4096));
        sampled.closed(7, LEN, &first);
        assert!(!sampled.opened(7, LEN, &third));
    }

    #[test]
    fn who_goes_on_where_another_has_read_takes_no_sample() {
        let sampled = sampled();
        let [first, second, third, sample] = [(); 4].map(|()| Arc::<AccessPattern>::default());
        assert!(!sampled.opened(7, LEN, &first));
        sampled.read(7, LEN, &first, (0, 4 << 20));
        // The kernel has the beginning: of the second only this is asked for, and of the third what comes next.
        assert!(!sampled.opened(7, LEN, &second));
        sampled.read(7, LEN, &second, (5 << 20, 1 << 20));
        assert!(!sampled.opened(7, LEN, &third));
        sampled.read(7, LEN, &third, (14 << 20, 1 << 20));
        drop(first);
        sampled.closed(7, LEN, &second);
        drop(second);
        sampled.closed(7, LEN, &third);
        assert!(!sampled.opened(7, LEN, &sample));
        // Far from all of them it is one.
        sampled.read(7, LEN, &sample, (70 << 20, 1 << 20));
        sampled.closed(7, LEN, &sample);
        assert!(sampled.opened(7, LEN, &Arc::default()));
    }
}
