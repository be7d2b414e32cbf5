//! Jobs that nobody waits for yet, such as decoding the blocks that a reader in order will want next.
//!
//! A job only warms the cache. The reader takes over a block that nobody has begun, and waits for one that
//! somebody has (the cache decodes each once). A job that fails says nothing: the reader meets the same
//! failure itself.

use std::collections::VecDeque;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Condvar, Mutex};

use crate::io::thread;

type Job = Box<dyn FnOnce() + Send>;

#[derive(Default)]
struct Queue {
    jobs: Mutex<(VecDeque<Job>, bool)>,
    changed: Condvar,
}

/// Threads that do them, in order. They end when this is dropped.
pub(super) struct Jobs {
    queue: Arc<Queue>,
    most: usize,
}

impl Jobs {
    /// Starts `threads` threads. At most `most` jobs may wait; a further one is not taken on.
    pub(super) fn new(threads: usize, most: usize) -> Self {
        let queue = Arc::new(Queue::default());
        for n in 0..threads {
            let queue = queue.clone();
            // Without a thread readers decode for themselves.
            let _ = thread::spawn(&format!("decode-{n}"), move || work(&queue));
        }
        Self { queue, most }
    }

    /// Returns true if no job waits.
    pub(super) fn is_idle(&self) -> bool {
        let jobs = self.queue.jobs.lock().unwrap_or_else(|e| e.into_inner());
        jobs.0.is_empty()
    }

    /// Takes a job on, unless too many wait.
    pub(super) fn submit(&self, job: impl FnOnce() + Send + 'static) {
        let mut jobs = self.queue.jobs.lock().unwrap_or_else(|e| e.into_inner());
        if jobs.0.len() < self.most {
            jobs.0.push_back(Box::new(job));
            self.queue.changed.notify_one();
        }
    }

    /// Takes on a job that somebody waits for already: before all others, however many wait.
    pub(super) fn submit_first(&self, job: impl FnOnce() + Send + 'static) {
        let mut jobs = self.queue.jobs.lock().unwrap_or_else(|e| e.into_inner());
        if jobs.0.len() < self.most {
            jobs.0.push_front(Box::new(job));
            self.queue.changed.notify_one();
        }
    }
}

impl Drop for Jobs {
    fn drop(&mut self) {
        self.queue.jobs.lock().unwrap_or_else(|e| e.into_inner()).1 = true;
        self.queue.changed.notify_all();
    }
}

fn work(queue: &Queue) {
    loop {
        let mut jobs = queue.jobs.lock().unwrap_or_else(|e| e.into_inner());
        let job = loop {
            if jobs.1 {
                return;
            }
            if let Some(job) = jobs.0.pop_front() {
                break job;
            }
            jobs = queue.changed.wait(jobs).unwrap_or_else(|e| e.into_inner());
        };
        drop(jobs);
        let _ = catch_unwind(AssertUnwindSafe(job));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn jobs_run_and_a_panicking_one_does_no_harm() {
        let pool = Jobs::new(3, 64);
        let (send, receive) = std::sync::mpsc::channel();
        for n in 0..8 {
            let send = send.clone();
            pool.submit(move || {
                assert!(n != 3, "a job that fails");
                send.send(n).unwrap();
            });
        }
        drop(send);
        let mut done: Vec<_> = receive.iter().collect();
        done.sort_unstable();
        assert_eq!(done, [0, 1, 2, 4, 5, 6, 7]);
    }
}
