//! A request in flight, and the threads that wait for it.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard};

use super::error::RemoteError;
use super::origin::Got;
use crate::file::Then;

/// The outcome of a request.
pub(super) type Outcome = Result<Arc<Got>, RemoteError>;

/// A request in flight. Several threads may wait for the same one.
#[derive(Default)]
pub(super) struct Flight {
    state: Mutex<State>,
    landed: Condvar,
    /// The number of files that the process had opened when it was sent.
    pub(super) opens: u64,
}

#[derive(Default)]
struct State {
    outcome: Option<Outcome>,
    /// Called once there is an outcome.
    then: Vec<Arc<Landings>>,
}

/// A function that is called when several requests are complete.
struct Landings {
    left: AtomicUsize,
    then: Mutex<Option<Then>>,
}

impl Landings {
    fn one_less(&self) {
        if self.left.fetch_sub(1, Ordering::AcqRel) == 1 {
            let then = self.then.lock().unwrap_or_else(|e| e.into_inner()).take();
            if let Some(then) = then {
                then();
            }
        }
    }
}

/// Calls a function once all the requests are complete: immediately, or in the thread that completes the last one.
pub(super) fn when_over(flights: &[Arc<Flight>], then: Then) {
    let all = Arc::new(Landings {
        // One more than the number of requests, so that the function is not called during the loop.
        left: AtomicUsize::new(flights.len() + 1),
        then: Mutex::new(Some(then)),
    });
    for flight in flights {
        let mut state = flight.state();
        match state.outcome {
            None => state.then.push(all.clone()),
            Some(_) => {
                drop(state);
                all.one_less();
            }
        }
    }
    all.one_less();
}

impl Flight {
    /// Makes one that is under way, sent after so many opens.
    pub(super) fn new(opens: u64) -> Arc<Self> {
        Arc::new(Self {
            opens,
            ..Self::default()
        })
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(|e| e.into_inner())
    }

    /// Hands the outcome to the waiting threads.
    pub(super) fn land(&self, outcome: Outcome) {
        let mut state = self.state();
        state.outcome = Some(outcome);
        let then = std::mem::take(&mut state.then);
        drop(state);
        self.landed.notify_all();
        for all in then {
            all.one_less();
        }
    }

    /// Waits for the outcome. The wait always ends: the task that carries the request out has a time limit.
    pub(super) fn wait(&self) -> Outcome {
        let mut state = self.state();
        loop {
            if let Some(outcome) = &state.outcome {
                return outcome.clone();
            }
            state = self.landed.wait(state).unwrap_or_else(|e| e.into_inner());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::origin::Version;
    use super::*;
    use std::time::SystemTime;

    #[test]
    fn what_waits_for_several_is_called_after_the_last() {
        let flights = [Flight::new(0), Flight::new(0), Flight::new(0)];
        let calls = Arc::new(AtomicUsize::new(0));
        let count = || -> Then {
            let calls = calls.clone();
            Box::new(move || {
                calls.fetch_add(1, Ordering::Relaxed);
            })
        };
        let called = || calls.load(Ordering::Relaxed);
        let got = || {
            let version = Version {
                size: 0,
                etag: None,
                modified: SystemTime::UNIX_EPOCH,
            };
            Ok(Arc::new(Got {
                version,
                start: 0,
                bytes: Vec::new(),
                room: None,
            }))
        };
        flights[1].land(got());
        when_over(&flights, count());
        flights[0].land(got());
        assert_eq!(called(), 0);
        flights[2].land(got());
        assert_eq!(called(), 1);
        when_over(&flights, count());
        when_over(&[], count());
        assert_eq!(called(), 3);
        assert!(flights[2].wait().is_ok());
    }
}
