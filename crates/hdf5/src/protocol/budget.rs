//! The memory that the chunk tables of one mount may take, all together.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

/// Bytes for all tables together.
const MAX_BYTES: u64 = 32 << 20;

/// The bytes that are reserved.
#[derive(Debug, Default)]
pub struct Budget(AtomicU64);

/// Memory reserved for a table; it is given back when this is dropped, by when the table must be gone.
#[derive(Debug)]
pub struct Reservation {
    budget: Arc<Budget>,
    bytes: u64,
}

impl Budget {
    /// Reserves this many bytes, if there are as many.
    pub fn take(self: &Arc<Self>, bytes: u64) -> Option<Reservation> {
        let more = |taken: u64| taken.checked_add(bytes).filter(|&n| n <= MAX_BYTES);
        self.0.fetch_update(Relaxed, Relaxed, more).ok()?;
        Some(Reservation {
            budget: self.clone(),
            bytes,
        })
    }
}

impl Drop for Reservation {
    fn drop(&mut self) {
        self.budget.0.fetch_sub(self.bytes, Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn room_is_bounded_and_given_back() {
        let budget = Arc::<Budget>::default();
        let half = budget.take(MAX_BYTES / 2).unwrap();
        assert!(budget.take(MAX_BYTES / 2 + 1).is_none() && budget.take(u64::MAX).is_none());
        let rest = budget.take(MAX_BYTES / 2).unwrap();
        assert!(budget.take(1).is_none());
        drop((half, rest));
        assert!(budget.take(MAX_BYTES).is_some());
    }
}
