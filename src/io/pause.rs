//! Pauses of whoever tries again, of a length that nobody else has.

use std::hash::{BuildHasher, RandomState};
use std::time::Duration;

/// The longest first pause.
const FIRST: Duration = Duration::from_millis(10);

/// Pauses at random, the later the longer.
pub struct Pause {
    most: Duration,
    longest: Duration,
}

impl Pause {
    /// Pauses of whoever lost to others: they are done, and the next one may be as fast.
    pub fn after_others() -> Self {
        Self::up_to(Duration::from_millis(80))
    }

    /// Pauses of whoever got no clear answer.
    pub fn after_failure() -> Self {
        Self::up_to(Duration::from_secs(1))
    }

    fn up_to(longest: Duration) -> Self {
        let most = FIRST;
        Self { most, longest }
    }

    /// Waits.
    pub fn rest(&mut self) {
        // Each of them has keys of its own, made up at random.
        let part = RandomState::new().hash_one(()) % 1024;
        let part = u32::try_from(part).unwrap_or(0);
        std::thread::sleep(self.most * part / 1024);
        self.most = self.most.saturating_mul(2).min(self.longest);
    }
}
