//! When to ask the server whether a version is still the newest.
//!
//! The server is asked when an object is opened, at most once per interval, and by one thread at a time. If every open
//! is to ask, threads do not share an answer: it may be out of date when it arrives. While no response comes, the known
//! version is used, and later requests are sent in the background.

use std::time::{Duration, Instant};

use parking_lot::Mutex;

/// The longest wait for a response when a known version can be used instead.
pub(super) const PATIENCE: Duration = Duration::from_secs(5);

/// The shortest time between two requests to a server that did not respond.
const PAUSE: Duration = Duration::from_secs(1);

/// How to find out whether a version is the newest.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Question {
    /// Do not ask: the version was checked recently, or another thread is asking.
    None,
    /// Ask, and wait for the response.
    Wait,
    /// Ask in the background: the last request got no response.
    Behind,
}

/// The state of one version.
#[derive(Debug)]
struct State {
    /// The time of the last response or failure.
    answered: Instant,
    is_asked: bool,
    /// The reason why the last request got no response.
    lost: Option<String>,
}

/// Whether a version is the newest, as last known.
#[derive(Debug)]
pub(super) struct Freshness(Mutex<State>);

impl Freshness {
    /// Starts with a version that was fetched just now.
    pub(super) fn new() -> Self {
        Self(Mutex::new(State {
            answered: Instant::now(),
            is_asked: false,
            lost: None,
        }))
    }

    /// Returns how to check the version. A caller that is told to ask must call [`Freshness::answered`] in any case.
    pub(super) fn question(&self, interval: Duration) -> Question {
        let mut state = self.0.lock();
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

    /// Records a response, or the reason why none came.
    pub(super) fn answered(&self, lost: Option<String>) {
        *self.0.lock() = State {
            answered: Instant::now(),
            is_asked: false,
            lost,
        };
    }

    /// Returns the reason why the last request got no response, if so.
    pub(super) fn lost(&self) -> Option<String> {
        self.0.lock().lost.clone()
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
        fresh.0.lock().answered -= PAUSE;
        assert_eq!(fresh.question(Duration::ZERO), Question::Behind);
        fresh.answered(None);
        assert_eq!(fresh.lost(), None);
        assert_eq!(fresh.question(Duration::ZERO), Question::Wait);
        // With an interval of zero, each open asks.
        assert_eq!(fresh.question(Duration::ZERO), Question::Wait);
    }
}
