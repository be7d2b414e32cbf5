//! Threads for requests that may wait for the network.
//!
//! The session has few threads. For a remote store they only hand requests on, so that waiting requests, however many,
//! never delay others. Threads are started on demand, and end after a time without work.

use std::collections::VecDeque;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::time::Duration;

use parking_lot::{Condvar, Mutex};

use npyfs_base::thread;

/// The most threads; further requests wait for their turn. Most of a thread's memory is never touched.
const MOST: usize = 256;

/// The time after which an unused thread ends.
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
    /// The number of threads without work.
    idle: usize,
}

impl Waiters {
    /// Runs a job that answers a request.
    pub(super) fn run(self: &Arc<Self>, job: impl FnOnce() + Send + 'static) {
        let mut state = self.state.lock();
        state.jobs.push_back(Box::new(job));
        if state.idle >= state.jobs.len() || state.threads == MOST {
            drop(state);
            self.changed.notify_one();
            return;
        }
        state.threads += 1;
        drop(state);
        let own = self.clone();
        if thread::spawn("waiting", move || own.work()).is_err() {
            let mut state = self.state.lock();
            state.threads -= 1;
            // If there is no other thread to run the job, this one does.
            if state.threads == 0
                && let Some(job) = state.jobs.pop_back()
            {
                drop(state);
                job();
            }
        }
    }

    fn work(&self) {
        let mut state = self.state.lock();
        loop {
            if let Some(job) = state.jobs.pop_front() {
                drop(state);
                // A panic costs the reply to one request.
                let _ = catch_unwind(AssertUnwindSafe(job));
                state = self.state.lock();
                continue;
            }
            state.idle += 1;
            let rested = self.changed.wait_for(&mut state, REST);
            state.idle -= 1;
            if rested.timed_out() && state.jobs.is_empty() {
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
                // Ends only if all of them are here at once.
                together.wait();
                send.send(number).unwrap();
                assert!(number != 3, "a request that fails");
            });
        }
        drop(send);
        let mut done: Vec<_> = receive.iter().collect();
        done.sort_unstable();
        assert_eq!(done, (0..40).collect::<Vec<_>>());
        assert!(waiters.state.lock().threads <= 40);
    }
}
