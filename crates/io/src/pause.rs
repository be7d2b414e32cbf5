//! Randomized pauses between retries, so that competing processes do not retry in step.

use std::hash::{BuildHasher, RandomState};
use std::time::Duration;

/// The longest first pause.
const FIRST: Duration = Duration::from_millis(10);

/// Random pauses that grow with each retry.
pub struct Pause {
    most: Duration,
    longest: Duration,
}

impl Pause {
    /// Pauses after losing to another process, which is done by then: the next attempt may succeed at once.
    pub fn after_others() -> Self {
        Self::up_to(Duration::from_millis(80))
    }

    /// Pauses after an attempt without a clear outcome.
    pub fn after_failure() -> Self {
        Self::up_to(Duration::from_secs(1))
    }

    fn up_to(longest: Duration) -> Self {
        let most = FIRST;
        Self { most, longest }
    }

    /// Waits.
    pub fn rest(&mut self) {
        std::thread::sleep(self.length());
    }

    /// Returns how long to wait this time.
    pub fn length(&mut self) -> Duration {
        // Each `RandomState` has its own random keys.
        let part = RandomState::new().hash_one(()) % 1024;
        let part = u32::try_from(part).unwrap_or(0);
        let length = self.most * part / 1024;
        self.most = self.most.saturating_mul(2).min(self.longest);
        length
    }
}
