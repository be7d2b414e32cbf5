//! Byte buffers that are used again: what decoded blocks and replies are held in.
//!
//! A fresh megabyte costs the kernel hundreds of page faults, more than decoding some filters takes; a used
//! one is still in the processor's caches. Large buffers start at a page, so that direct reads may fill them.
//! A buffer that is taken holds old bytes: whoever takes it fills all of it or gives it back.

use std::ops::{Deref, DerefMut};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock};

use crate::io::arena::{Arena, HUGE, Lent};

/// Smaller buffers are not worth keeping.
pub const SMALLEST: usize = 16 << 10;

/// Larger ones are taken from huge pages, as long as there is room there.
const LARGE: usize = 128 << 10;

/// Bytes in huge pages: what readers of a few files have under way.
const ARENA: usize = 16 << 20;

/// Bytes of them that a reader in order uses from the beginning.
const PREPARED: usize = 8 << 20;

/// Bytes of other unused buffers that are kept.
const MOST_FREE: usize = 8 << 20;

/// The alignment of large buffers in memory, in bytes: a multiple of the page size and of every disk's blocks.
pub const ALIGNMENT: usize = 4096;

#[derive(Default)]
struct Free {
    buffers: Vec<Vec<u8>>,
    bytes: usize,
}

/// Buffers that wait to be used again.
#[derive(Default)]
pub struct Pool {
    free: Mutex<Free>,
    /// Of a pool that is there to stay; made when it is first wanted, `None` if that failed.
    arena: Option<OnceLock<Option<Arc<Arena>>>>,
}

impl Pool {
    /// Creates a pool that lasts as long as the process: it has huge pages.
    pub fn lasting() -> Self {
        Self {
            arena: Some(OnceLock::new()),
            ..Self::default()
        }
    }

    /// Has the system hand out a part of the huge pages now, before somebody waits for them.
    pub fn prepare(&self) {
        if let Some(mut lent) = self.lend(PREPARED, 0) {
            // A byte is enough for a page.
            for byte in lent.iter_mut().step_by(HUGE) {
                *byte = 0;
            }
        }
    }

    fn lend(&self, len: usize, left: usize) -> Option<Lent> {
        let arena = self.arena.as_ref().filter(|_| len >= LARGE)?;
        let arena = arena.get_or_init(|| Arena::new(ARENA)).as_ref()?;
        arena.lend(len, left)
    }

    fn free(&self) -> MutexGuard<'_, Free> {
        self.free.lock().unwrap_or_else(|e| e.into_inner())
    }

    /// Returns a buffer of `len` bytes of any content, which is needed for a moment.
    pub fn take(self: &Arc<Self>, len: usize) -> Buffer {
        self.take_leaving(len, 0)
    }

    /// Returns a buffer of `len` bytes of any content, which may be kept: half of the huge pages are left to what
    /// passes.
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
        // Up to an eighth may lie idle behind what is used.
        let fits = |bytes: &Vec<u8>| bytes.len() >= room && bytes.len() - room <= room / 8;
        let mut free = self.free();
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
        let mut free = self.free();
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
    Lent(Lent),
}

/// Bytes that return to their pool when they are dropped.
pub struct Buffer {
    memory: Memory,
    start: usize,
    len: usize,
    pool: Option<Arc<Pool>>,
}

impl Buffer {
    /// Returns the number of bytes of memory that it occupies.
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
        let free = pool.free();
        assert!(free.bytes <= MOST_FREE && free.bytes > MOST_FREE - (2 << 20));
        assert_eq!(free.bytes, free.buffers.iter().map(Vec::len).sum::<usize>());
    }
}
