//! Pauses of whoever tries again, of a length that nobody else has.

use std::hash::{BuildHasher, RandomState};
use std::time::Duration;

/// The longest first pause.
const FIRST: Duration = Duration::from_millis(10);

/// The longest of all.
const LONGEST: Duration = Duration::from_secs(1);

/// Pauses at random, the later the longer.
pub(super) struct Pause {
    most: Duration,
}

impl Default for Pause {
    fn default() -> Self {
        Self { most: FIRST }
    }
}

impl Pause {
    /// Waits.
    pub(super) fn rest(&mut self) {
        // Each of them has keys of its own, made up at random.
        let part = RandomState::new().hash_one(()) % 1024;
        let part = u32::try_from(part).unwrap_or(0);
        std::thread::sleep(self.most * part / 1024);
        self.most = self.most.saturating_mul(2).min(LONGEST);
    }
}
