//! Files that programs take samples out of.
//!
//! A program that takes a sample out of a file (it opens the file, reads one range in the middle, closes it) is served
//! badly through the kernel's page cache: pages do not end at chunk boundaries, so each sample costs the neighbouring
//! chunks as well. After such a sample a file is opened for exact reads, until a program reads it in another way. This
//! is a guess about speed and never changes the bytes read.
//!
//! If several programs read a file in order at the same time, each asks for only a part of it, because the rest is in
//! the page cache. Such parts are no samples.

use std::num::NonZeroUsize;
use std::sync::{Arc, Weak};

use lru::LruCache;
use parking_lot::Mutex;

use npyfs_base::tuning::Tuning;
use npyfs_core::dataset::access_pattern::AccessPattern;

/// The files of a mount that samples are taken out of, by inode.
pub(super) struct SampledFiles {
    known: Mutex<SampledRecently>,
    /// The largest distance in bytes between the requests of one reader.
    under_way: u64,
    /// The number of open handles of one file that are considered.
    most_handles: usize,
}

struct SampledRecently {
    /// Files that a sample was taken from.
    samples: LruCache<u64, ()>,
    /// The access patterns of recently opened handles, the latest one last.
    open: LruCache<u64, Vec<Weak<AccessPattern>>>,
}

impl SampledRecently {
    /// Returns true if another handle of the file has read up to `at`.
    fn is_led(&self, ino: u64, len: u64, pattern: &AccessPattern, at: u64, under_way: u64) -> bool {
        let others = self.open.peek(&ino).into_iter().flatten();
        others.filter_map(Weak::upgrade).any(|other| {
            !std::ptr::eq(&*other, pattern)
                && other
                    .span()
                    .is_some_and(|span| span.leads_to(at, len, under_way))
        })
    }

    /// Returns true if a handle took one sample out of a file of `len` bytes, and `None` if it read nothing.
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
    /// Creates an empty table. Requests of one reader are at most `under_way` bytes apart.
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

    /// Notes that a file of `len` bytes is opened and that its reads go to `pattern`. Returns true if the handle will
    /// probably take a sample: the last handle took one. That handle may still be open, since the kernel reports a
    /// close late.
    pub(super) fn opened(&self, ino: u64, len: u64, pattern: &Arc<AccessPattern>) -> bool {
        let mut known = self.known.lock();
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

    /// Notes a read of a handle of a file of `len` bytes.
    pub(super) fn read(
        &self,
        ino: u64,
        len: u64,
        pattern: &AccessPattern,
        (offset, size): (u64, u64),
    ) {
        if pattern.note(offset, size) && offset > 0 {
            let led = self
                .known
                .lock()
                .is_led(ino, len, pattern, offset, self.under_way);
            if led {
                pattern.follows();
            }
        }
    }

    /// Notes that a handle of a file of `len` bytes is closed. The reads of a handle are judged only here: the first
    /// read of an in-order reader also lies in the middle of the file if others have read the start.
    pub(super) fn closed(&self, ino: u64, len: u64, pattern: &AccessPattern) {
        let mut known = self.known.lock();
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
}

#[cfg(test)]
mod tests {
    use super::*;

    const LEN: u64 = 100 << 20;

    fn sampled() -> SampledFiles {
        SampledFiles::new(&Tuning::default(), 8 << 20)
    }

    /// Opens, reads and closes a file; returns whether a sample was expected.
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
        // The requests of one read may arrive out of order.
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
        // The kernel has the beginning: the second handle asks only for this range, and the third for the following
        // one.
        assert!(!sampled.opened(7, LEN, &second));
        sampled.read(7, LEN, &second, (5 << 20, 1 << 20));
        assert!(!sampled.opened(7, LEN, &third));
        sampled.read(7, LEN, &third, (14 << 20, 1 << 20));
        drop(first);
        sampled.closed(7, LEN, &second);
        drop(second);
        sampled.closed(7, LEN, &third);
        assert!(!sampled.opened(7, LEN, &sample));
        // A read far from all others is a sample.
        sampled.read(7, LEN, &sample, (70 << 20, 1 << 20));
        sampled.closed(7, LEN, &sample);
        assert!(sampled.opened(7, LEN, &Arc::default()));
    }
}
