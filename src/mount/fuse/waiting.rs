//! Threads for requests that may wait for the network.
//!
//! The threads of the session are few. Where the store lies elsewhere they only hand requests on, so that however many of these wait,
//! others are taken and answered. Threads are started as they are needed, and end when they were not for a while.

use std::collections::VecDeque;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Condvar, Mutex, MutexGuard};
use std::time::Duration;

use crate::io::thread;

/// Threads at the most: more requests wait for their turn. Most of a thread's memory is never touched.
const MOST: usize = 256;

/// The time after which a thread ends that has nothing to do.
const REST: Duration = Duration::from_secs(10);

type Job = Box<dyn FnOnce() + Send>;

/// The threads of one session.
#[derive(Default)]
pub(super) struct Waiters {
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Default)]
struct State {
    jobs: VecDeque<Job>,
    threads: usize,
    /// Threads that have nothing to do.
    idle: usize,
}

impl Waiters {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(|e| e.into_inner())
    }

    /// Has a request answered.
    pub(super) fn run(self: &Arc<Self>, job: impl FnOnce() + Send + 'static) {
        let mut state = self.state();
        state.jobs.push_back(Box::new(job));
        if state.idle >= state.jobs.len() || state.threads == MOST {
            drop(state);
            return self.changed.notify_one();
        }
        state.threads += 1;
        drop(state);
        let own = self.clone();
        if thread::spawn("waiting", move || own.work()).is_err() {
            let mut state = self.state();
            state.threads -= 1;
            // Another thread does it, or nobody else would.
            if state.threads == 0
                && let Some(job) = state.jobs.pop_back()
            {
                drop(state);
                job();
            }
        }
    }

    fn work(&self) {
        let mut state = self.state();
        loop {
            if let Some(job) = state.jobs.pop_front() {
                drop(state);
                // A panic costs the answer to one request.
                let _ = catch_unwind(AssertUnwindSafe(job));
                state = self.state();
                continue;
            }
            state.idle += 1;
            let rested = self.changed.wait_timeout(state, REST);
            let (woken, timeout) = rested.unwrap_or_else(|e| e.into_inner());
            state = woken;
            state.idle -= 1;
            if timeout.timed_out() && state.jobs.is_empty() {
                state.threads -= 1;
                return;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Barrier;
    use std::sync::mpsc::channel;

    #[test]
    fn requests_that_wait_hold_up_nobody() {
        let waiters = Arc::<Waiters>::default();
        let together = Arc::new(Barrier::new(40));
        let (send, receive) = channel();
        for number in 0..40 {
            let (together, send) = (together.clone(), send.clone());
            waiters.run(move || {
                // Ends only if all of them are here.
                together.wait();
                send.send(number).unwrap();
                assert!(number != 3, "a request that fails");
            });
        }
        drop(send);
        let mut done: Vec<_> = receive.iter().collect();
        done.sort_unstable();
        assert_eq!(done, (0..40).collect::<Vec<_>>());
        assert!(waiters.state().threads <= 40);
    }
}
