//! The question whether a version is still the newest.
//!
//! It is asked when somebody opens something, but not again and again, and by one at a time, unless every open is to ask: what somebody
//! else asked before may be old by the time of its answer. Where no answer comes, the version that is
//! known counts, and later questions are asked while nobody waits for them.

use std::sync::{Mutex, MutexGuard};
use std::time::{Duration, Instant};

/// The longest time that somebody waits for an answer: there is a version to go on with.
pub(super) const PATIENCE: Duration = Duration::from_secs(5);

/// The shortest time between two questions to a server that did not answer.
const PAUSE: Duration = Duration::from_secs(1);

/// What is to be done to know whether a version is the newest.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Question {
    /// Nothing: it was found to be a moment ago, or somebody is asking.
    None,
    /// Ask, and wait for the answer.
    Wait,
    /// Ask, and go on: the last time no answer came.
    Behind,
}

/// The state of the question about one version.
#[derive(Debug)]
struct State {
    /// The time of the last answer, or of its absence.
    answered: Instant,
    is_asked: bool,
    /// The reason why no answer came the last time.
    lost: Option<String>,
}

/// The state of the question whether a version is the newest.
#[derive(Debug)]
pub(super) struct Freshness(Mutex<State>);

impl Freshness {
    /// Takes a version that has just been asked for.
    pub(super) fn new() -> Self {
        Self(Mutex::new(State {
            answered: Instant::now(),
            is_asked: false,
            lost: None,
        }))
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(|e| e.into_inner())
    }

    /// Returns what is to be done. Whoever is to ask calls [`Freshness::answered`] in any case.
    pub(super) fn question(&self, interval: Duration) -> Question {
        let mut state = self.state();
        let interval = match state.lost {
            Some(_) => interval.max(PAUSE),
            None => interval,
        };
        let is_asked = state.is_asked && !interval.is_zero();
        if is_asked || state.answered.elapsed() < interval {
            return Question::None;
        }
        state.is_asked = true;
        match state.lost {
            Some(_) => Question::Behind,
            None => Question::Wait,
        }
    }

    /// Takes note of an answer, or of the reason why none came.
    pub(super) fn answered(&self, lost: Option<String>) {
        *self.state() = State {
            answered: Instant::now(),
            is_asked: false,
            lost,
        };
    }

    /// Returns the reason why it is not known whether there is a newer version, if that is so.
    pub(super) fn lost(&self) -> Option<String> {
        self.state().lost.clone()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_asks_at_a_time_and_nobody_waits_for_a_server_that_is_gone() {
        let fresh = Freshness::new();
        assert_eq!(fresh.question(Duration::from_secs(60)), Question::None);
        let always = Duration::from_nanos(1);
        assert_eq!(fresh.question(always), Question::Wait);
        assert_eq!(fresh.question(always), Question::None);
        fresh.answered(Some("gone".into()));
        assert_eq!(fresh.lost().as_deref(), Some("gone"));
        assert_eq!(fresh.question(Duration::ZERO), Question::None);
        fresh.state().answered -= PAUSE;
        assert_eq!(fresh.question(Duration::ZERO), Question::Behind);
        fresh.answered(None);
        assert_eq!(fresh.lost(), None);
        assert_eq!(fresh.question(Duration::ZERO), Question::Wait);
        // Another open, another question.
        assert_eq!(fresh.question(Duration::ZERO), Question::Wait);
    }
}
