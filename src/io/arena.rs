//! Memory in huge pages, lent in ranges: what large buffers are made of first.
//!
//! For a direct read the disk is handed the memory page by page: into small pages it takes twice as long as into
//! huge ones. Memory that was touched stays until the arena goes. Where there are no huge pages it is memory like any
//! other.

#![allow(unsafe_code)]

use std::ops::{Deref, DerefMut, Range};
use std::ptr::{NonNull, null_mut};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use rustix::mm::{Advice, MapFlags, ProtFlags, madvise, mmap_anonymous, munmap};

/// Bytes of a huge page, where pages have 4 KiB.
pub(crate) const HUGE: usize = 2 << 20;

/// Ranges begin and end at multiples of it.
const GRAIN: usize = 4096;

/// A mapping whose ranges are lent.
#[derive(Debug)]
pub(crate) struct Arena {
    /// The memory that is mapped, and the part of it that is lent: from a huge page on.
    mapping: NonNull<u8>,
    mapped: usize,
    start: NonNull<u8>,
    /// Ranges that nobody has, in order, none next to another.
    free: Mutex<Vec<Range<usize>>>,
}

// SAFETY: the pointers lead to memory that lives as long as the arena and is only reached through `Lent`, each of which has
// a range of its own.
unsafe impl Send for Arena {}
// SAFETY: as above; the list of ranges is behind a lock.
unsafe impl Sync for Arena {}

impl Arena {
    /// Maps room for `size` bytes, a multiple of 2 MiB; none of it is touched. `None` if the system refuses.
    pub(crate) fn new(size: usize) -> Option<Arc<Self>> {
        let mapped = size.checked_add(HUGE)?;
        let (access, flags) = (ProtFlags::READ | ProtFlags::WRITE, MapFlags::PRIVATE);
        // SAFETY: a new mapping, at an address that the system chooses.
        let mapping = unsafe { mmap_anonymous(null_mut(), mapped, access, flags) }.ok()?;
        let mapping = NonNull::new(mapping.cast::<u8>())?;
        let skip = mapping.align_offset(HUGE).min(HUGE);
        // SAFETY: at most HUGE bytes into a mapping of HUGE more than `size`.
        let start = unsafe { mapping.add(skip) };
        // SAFETY: `size` bytes from there are in the mapping; the advice changes no content. Refused: memory like any other.
        let _ = unsafe { madvise(start.as_ptr().cast(), size, Advice::LinuxHugepage) };
        Some(Arc::new(Self {
            mapping,
            mapped,
            start,
            free: Mutex::new(std::iter::once(0..size).collect()),
        }))
    }

    fn free(&self) -> MutexGuard<'_, Vec<Range<usize>>> {
        self.free.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Lends `len` bytes or a few more, of any content, from the first place that has them: it was used last. `None`
    /// if there is none, or fewer than `left` bytes were left for others.
    pub(crate) fn lend(self: &Arc<Self>, len: usize, left: usize) -> Option<Lent> {
        let room = len.checked_next_multiple_of(GRAIN).filter(|&n| n > 0)?;
        let mut free = self.free();
        let all: usize = free.iter().map(Range::len).sum();
        all.checked_sub(room).filter(|&rest| rest >= left)?;
        let at = free.iter().position(|range| range.len() >= room)?;
        let start = free[at].start;
        free[at].start += room;
        if free[at].is_empty() {
            free.remove(at);
        }
        Some(Lent {
            arena: self.clone(),
            range: start..start + room,
        })
    }

    fn give_back(&self, range: Range<usize>) {
        let mut free = self.free();
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
        // SAFETY: mapped by `new`, and every `Lent` holds the arena, so nobody has any of it. It can only fail for what is no
        // mapping.
        let _ = unsafe { munmap(self.mapping.as_ptr().cast(), self.mapped) };
    }
}

/// A range of an arena, which goes back there when it is dropped.
#[derive(Debug)]
pub(crate) struct Lent {
    arena: Arc<Arena>,
    range: Range<usize>,
}

impl Deref for Lent {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        // SAFETY: within the arena, lent to nobody else, and the system has filled it with zeros.
        unsafe {
            std::slice::from_raw_parts(
                self.arena.start.as_ptr().add(self.range.start),
                self.range.len(),
            )
        }
    }
}

impl DerefMut for Lent {
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

impl Drop for Lent {
    fn drop(&mut self) {
        self.arena.give_back(self.range.clone());
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        /// Each range keeps what was written into it while others come and go, and all is whole again in the end.
        #[test]
        fn ranges_are_for_one_at_a_time(steps in proptest::collection::vec((0_usize..400_000, any::<u8>()), 1..40)) {
            let arena = Arena::new(HUGE).unwrap();
            let mut held: Vec<(Lent, u8)> = Vec::new();
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
