//! Reusable byte buffers for decoded blocks and replies.
//!
//! A fresh megabyte costs the kernel hundreds of page faults, more than decoding some filters takes; a used one is
//! still in the processor's caches. Large buffers start at a page boundary, so that direct reads can fill them. A
//! buffer holds old bytes when it is taken: its user must fill all of it or return it.

use std::ops::{Deref, DerefMut};
use std::sync::{Arc, OnceLock};

use parking_lot::Mutex;

use crate::arena::{Arena, ArenaRange, HUGE};

/// Smaller buffers are not worth pooling.
pub const SMALLEST: usize = 16 << 10;

/// Larger buffers come from huge pages, as long as there is room.
const LARGE: usize = 128 << 10;

/// Bytes of huge pages: enough for the reads in flight of a few files.
const ARENA: usize = 16 << 20;

/// Bytes of them that are touched in advance, for a first sequential reader.
const PREPARED: usize = 8 << 20;

/// The most bytes of other unused buffers.
const MOST_FREE: usize = 8 << 20;

/// The alignment of large buffers in memory, in bytes: a multiple of the page size and of every disk's blocks.
pub const ALIGNMENT: usize = 4096;

#[derive(Default)]
struct FreeBuffers {
    buffers: Vec<Vec<u8>>,
    bytes: usize,
}

/// A pool of unused buffers.
#[derive(Default)]
pub struct Pool {
    free: Mutex<FreeBuffers>,
    /// The huge pages of a lasting pool; mapped on first use, `None` inside if that failed.
    arena: Option<OnceLock<Option<Arc<Arena>>>>,
}

impl Pool {
    /// Creates a pool that lasts as long as the process: it uses huge pages.
    pub fn lasting() -> Self {
        Self {
            arena: Some(OnceLock::new()),
            ..Self::default()
        }
    }

    /// Touches a part of the huge pages now, before a read waits for them.
    pub fn prepare(&self) {
        if let Some(mut lent) = self.lend(PREPARED, 0) {
            // Touching one byte allocates its page.
            for byte in lent.iter_mut().step_by(HUGE) {
                *byte = 0;
            }
        }
    }

    fn lend(&self, len: usize, left: usize) -> Option<ArenaRange> {
        let arena = self.arena.as_ref().filter(|_| len >= LARGE)?;
        let arena = arena.get_or_init(|| Arena::new(ARENA)).as_ref()?;
        arena.lend(len, left)
    }

    /// Returns a buffer of `len` bytes with arbitrary content, for short use.
    pub fn take(self: &Arc<Self>, len: usize) -> Buffer {
        self.take_leaving(len, 0)
    }

    /// Returns a buffer of `len` bytes with arbitrary content, for long use: half of the huge pages stay reserved for
    /// short use.
    pub fn take_to_keep(self: &Arc<Self>, len: usize) -> Buffer {
        self.take_leaving(len, ARENA / 2)
    }

    fn take_leaving(self: &Arc<Self>, len: usize, left: usize) -> Buffer {
        if len < SMALLEST {
            return Buffer::from(vec![0; len]);
        }
        if let Some(lent) = self.lend(len, left) {
            return Buffer {
                memory: Memory::Lent(lent),
                start: 0,
                len,
                pool: None,
            };
        }
        let room = len.saturating_add(ALIGNMENT);
        // Up to an eighth of the used bytes may lie idle after them.
        let fits = |bytes: &Vec<u8>| bytes.len() >= room && bytes.len() - room <= room / 8;
        let mut free = self.free.lock();
        let used = free.buffers.iter().rposition(fits).map(|at| {
            let bytes = free.buffers.swap_remove(at);
            free.bytes -= bytes.len();
            bytes
        });
        drop(free);
        let bytes = used.unwrap_or_else(|| vec![0; room]);
        let start = match bytes.as_ptr().align_offset(ALIGNMENT) {
            start if start <= ALIGNMENT => start,
            _ => 0,
        };
        Buffer {
            memory: Memory::Own(bytes),
            start,
            len,
            pool: Some(self.clone()),
        }
    }

    fn give_back(&self, bytes: Vec<u8>) {
        let mut free = self.free.lock();
        free.bytes += bytes.len();
        free.buffers.push(bytes);
        while free.bytes > MOST_FREE && !free.buffers.is_empty() {
            let oldest = free.buffers.remove(0);
            free.bytes -= oldest.len();
        }
    }
}

enum Memory {
    Own(Vec<u8>),
    Lent(ArenaRange),
}

/// A buffer that returns to its pool on drop.
pub struct Buffer {
    memory: Memory,
    start: usize,
    len: usize,
    pool: Option<Arc<Pool>>,
}

impl Buffer {
    /// Returns the bytes of memory that it occupies.
    pub fn capacity(&self) -> usize {
        match &self.memory {
            Memory::Own(bytes) => bytes.capacity(),
            Memory::Lent(lent) => lent.len(),
        }
    }
}

impl From<Vec<u8>> for Buffer {
    fn from(bytes: Vec<u8>) -> Self {
        Self {
            start: 0,
            len: bytes.len(),
            memory: Memory::Own(bytes),
            pool: None,
        }
    }
}

impl Deref for Buffer {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        let memory = match &self.memory {
            Memory::Own(bytes) => bytes,
            Memory::Lent(lent) => &**lent,
        };
        &memory[self.start..self.start + self.len]
    }
}

impl DerefMut for Buffer {
    fn deref_mut(&mut self) -> &mut [u8] {
        let memory = match &mut self.memory {
            Memory::Own(bytes) => bytes,
            Memory::Lent(lent) => &mut **lent,
        };
        &mut memory[self.start..self.start + self.len]
    }
}

impl std::fmt::Debug for Buffer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Buffer of {} bytes", self.len)
    }
}

impl Drop for Buffer {
    fn drop(&mut self) {
        if let (Some(pool), Memory::Own(bytes)) = (&self.pool, &mut self.memory) {
            pool.give_back(std::mem::take(bytes));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn large_buffers_start_at_a_page_and_come_back() {
        let pool = Arc::new(Pool::default());
        let first = pool.take(1 << 20);
        assert_eq!(first.len(), 1 << 20);
        assert_eq!(first.as_ptr().align_offset(ALIGNMENT), 0);
        let place = first.as_ptr();
        drop(first);
        let again = pool.take((1 << 20) - 100);
        assert_eq!(again.as_ptr(), place);
        assert_eq!(again.len(), (1 << 20) - 100);
        let small = pool.take(100);
        assert_eq!(small.len(), 100);
    }

    #[test]
    fn a_pool_that_stays_has_huge_pages_first() {
        let pool = Arc::new(Pool::lasting());
        let mut taken: Vec<_> = (0..20).map(|_| pool.take(1 << 20)).collect();
        let lent = |buffer: &&Buffer| matches!(buffer.memory, Memory::Lent(_));
        assert_eq!(taken.iter().filter(lent).count(), ARENA >> 20);
        for (i, buffer) in taken.iter_mut().enumerate() {
            assert_eq!(buffer.as_ptr().align_offset(ALIGNMENT), 0);
            buffer.fill(i as u8);
        }
        assert!(
            (0..)
                .zip(&taken)
                .all(|(i, buffer)| buffer.iter().all(|byte| *byte == i))
        );
        assert!(!lent(&&pool.take(LARGE - 1)));
        drop(taken);
        let kept: Vec<_> = (0..20).map(|_| pool.take_to_keep(1 << 20)).collect();
        assert_eq!(kept.iter().filter(lent).count(), (ARENA / 2) >> 20);
        assert!(lent(&&pool.take(ARENA / 2)));
        drop(kept);
        assert!(lent(&&pool.take(ARENA)));
    }

    #[test]
    fn what_is_kept_unused_is_bounded() {
        let pool = Arc::new(Pool::default());
        let taken: Vec<_> = (0..40).map(|_| pool.take(1 << 20)).collect();
        drop(taken);
        let free = pool.free.lock();
        assert!(free.bytes <= MOST_FREE && free.bytes > MOST_FREE - (2 << 20));
        assert_eq!(free.bytes, free.buffers.iter().map(Vec::len).sum::<usize>());
    }
}
