//! An arena of huge pages that lends ranges of memory; the first choice for large buffers.
//!
//! A direct read hands memory to the disk page by page: into small pages it takes twice as long as into huge ones.
//! Memory that was touched stays resident until the arena is dropped. Where there are no huge pages, the memory is
//! ordinary.

#![allow(unsafe_code)]

use std::ops::{Deref, DerefMut, Range};
use std::ptr::{NonNull, null_mut};
use std::sync::Arc;

use parking_lot::Mutex;
use rustix::mm::{Advice, MapFlags, ProtFlags, madvise, mmap_anonymous, munmap};

/// Bytes of a huge page, where pages have 4 KiB.
pub const HUGE: usize = 2 << 20;

/// The alignment of the ends of ranges.
const GRAIN: usize = 4096;

/// A mapping whose ranges are lent.
#[derive(Debug)]
pub struct Arena {
    /// The mapping, and its usable part, which begins at a huge page.
    mapping: NonNull<u8>,
    mapped: usize,
    start: NonNull<u8>,
    /// The free ranges, in order, merged with their neighbours.
    free: Mutex<Vec<Range<usize>>>,
}

// SAFETY: the pointers lead to memory that lives as long as the arena and is only accessed through `ArenaRange`s, whose
// ranges do not overlap.
unsafe impl Send for Arena {}
// SAFETY: as above; the list of ranges is behind a lock.
unsafe impl Sync for Arena {}

impl Arena {
    /// Maps `size` bytes, a multiple of 2 MiB, without touching them. `None` if the system refuses.
    pub fn new(size: usize) -> Option<Arc<Self>> {
        let mapped = size.checked_add(HUGE)?;
        let (access, flags) = (ProtFlags::READ | ProtFlags::WRITE, MapFlags::PRIVATE);
        // SAFETY: a new mapping, at an address that the system chooses.
        let mapping = unsafe { mmap_anonymous(null_mut(), mapped, access, flags) }.ok()?;
        let mapping = NonNull::new(mapping.cast::<u8>())?;
        let skip = mapping.align_offset(HUGE).min(HUGE);
        // SAFETY: at most HUGE bytes into a mapping of HUGE more than `size`.
        let start = unsafe { mapping.add(skip) };
        // SAFETY: `size` bytes from there are in the mapping; the advice changes no content. Refused: memory like any
        // other.
        let _ = unsafe { madvise(start.as_ptr().cast(), size, Advice::LinuxHugepage) };
        Some(Arc::new(Self {
            mapping,
            mapped,
            start,
            free: Mutex::new(std::iter::once(0..size).collect()),
        }))
    }

    /// Lends `len` bytes or a few more, with arbitrary content. Takes the first range that is large enough, as it was
    /// used most recently. `None` if there is none, or if fewer than `left` bytes would remain.
    pub fn lend(self: &Arc<Self>, len: usize, left: usize) -> Option<ArenaRange> {
        let room = len.checked_next_multiple_of(GRAIN).filter(|&n| n > 0)?;
        let mut free = self.free.lock();
        let all: usize = free.iter().map(Range::len).sum();
        all.checked_sub(room).filter(|&rest| rest >= left)?;
        let at = free.iter().position(|range| range.len() >= room)?;
        let start = free[at].start;
        free[at].start += room;
        if free[at].is_empty() {
            free.remove(at);
        }
        Some(ArenaRange {
            arena: self.clone(),
            range: start..start + room,
        })
    }

    fn give_back(&self, range: Range<usize>) {
        let mut free = self.free.lock();
        let at = free.partition_point(|other| other.start < range.start);
        let after = free.get(at).is_some_and(|next| next.start == range.end);
        let before = at > 0 && free[at - 1].end == range.start;
        match (before, after) {
            (true, true) => free[at - 1].end = free.remove(at).end,
            (true, false) => free[at - 1].end = range.end,
            (false, true) => free[at].start = range.start,
            (false, false) => free.insert(at, range),
        }
    }
}

impl Drop for Arena {
    fn drop(&mut self) {
        // SAFETY: `new` made the mapping, and every `ArenaRange` holds the arena, so no range is in use. The call
        // can only fail for memory that is not a mapping.
        let _ = unsafe { munmap(self.mapping.as_ptr().cast(), self.mapped) };
    }
}

/// A range of an arena, which is returned on drop.
#[derive(Debug)]
pub struct ArenaRange {
    arena: Arc<Arena>,
    range: Range<usize>,
}

impl Deref for ArenaRange {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        // SAFETY: the range lies within the arena and is lent only once, and the system has filled it with zeros.
        unsafe {
            std::slice::from_raw_parts(
                self.arena.start.as_ptr().add(self.range.start),
                self.range.len(),
            )
        }
    }
}

impl DerefMut for ArenaRange {
    fn deref_mut(&mut self) -> &mut [u8] {
        // SAFETY: as above.
        unsafe {
            std::slice::from_raw_parts_mut(
                self.arena.start.as_ptr().add(self.range.start),
                self.range.len(),
            )
        }
    }
}

impl Drop for ArenaRange {
    fn drop(&mut self) {
        self.arena.give_back(self.range.clone());
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        /// Each range keeps what was written into it while others are lent and returned, and in the end all memory is
        /// free.
        #[test]
        fn ranges_are_for_one_at_a_time(steps in proptest::collection::vec((0_usize..400_000, any::<u8>()), 1..40)) {
            let arena = Arena::new(HUGE).unwrap();
            let mut held: Vec<(ArenaRange, u8)> = Vec::new();
            for (n, value) in steps {
                if n % 3 == 0 && !held.is_empty() {
                    held.swap_remove(n % held.len());
                } else if let Some(mut lent) = arena.lend(n, 0) {
                    prop_assert_eq!(lent.len(), n.next_multiple_of(GRAIN));
                    prop_assert_eq!(lent.as_ptr().align_offset(GRAIN), 0);
                    lent.fill(value);
                    held.push((lent, value));
                }
                prop_assert!(held.iter().all(|(lent, value)| lent.iter().all(|byte| byte == value)));
            }
            drop(held);
            prop_assert!(arena.lend(HUGE, 0).is_some());
        }
    }

    #[test]
    fn it_begins_at_a_huge_page_and_ends() {
        let arena = Arena::new(HUGE).unwrap();
        let first = arena.lend(HUGE - 5000, 0).unwrap();
        assert_eq!(first.as_ptr().align_offset(HUGE), 0);
        assert_eq!(first.len(), HUGE - GRAIN);
        for none in [GRAIN + 1, 0, usize::MAX] {
            assert!(arena.lend(none, 0).is_none());
        }
        assert!(arena.lend(1, 1).is_none());
        let place = first.as_ptr();
        drop(first);
        assert_eq!(arena.lend(HUGE, 0).unwrap().as_ptr(), place);
    }
}
