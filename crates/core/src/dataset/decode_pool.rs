//! The threads of a mount that decode blocks ahead of their readers, one per processor and some more.
//!
//! A job only warms the cache. A reader decodes a block itself if no thread has begun it, and otherwise waits for the
//! thread (the cache decodes each block once). The failure of a job is ignored: the reader meets the same failure
//! itself.

use std::collections::VecDeque;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::thread::available_parallelism;

use npyfs_base::thread;
use npyfs_base::tuning::Tuning;
use parking_lot::{Condvar, Mutex};

type Job = Box<dyn FnOnce() + Send>;

#[derive(Default)]
struct Queue {
    jobs: Mutex<(VecDeque<Job>, bool)>,
    changed: Condvar,
}

/// The decoding threads, which run jobs in order. They end when this is dropped.
pub struct DecodePool {
    processors: usize,
    queue: Arc<Queue>,
    most: usize,
}

impl DecodePool {
    /// Starts the threads: one for each processor, and additional ones, as some wait for the disk.
    pub fn new(tuning: &Tuning) -> Self {
        let processors = available_parallelism().map_or(1, std::num::NonZero::get);
        let threads = processors + tuning.waiting_threads;
        let queue = Arc::new(Queue::default());
        for n in 0..threads {
            let queue = queue.clone();
            // Without a thread, readers decode for themselves.
            let _ = thread::spawn(&format!("decode-{n}"), move || work(&queue));
        }
        Self {
            processors,
            queue,
            most: tuning.waiting_jobs,
        }
    }

    /// Returns the number of jobs that can run at the same time.
    pub fn processors(&self) -> usize {
        self.processors
    }

    /// Returns true if no job waits.
    pub fn is_idle(&self) -> bool {
        let jobs = self.queue.jobs.lock();
        jobs.0.is_empty()
    }

    /// Queues a job, unless too many wait.
    pub fn submit(&self, job: impl FnOnce() + Send + 'static) {
        let mut jobs = self.queue.jobs.lock();
        if jobs.0.len() < self.most {
            jobs.0.push_back(Box::new(job));
            self.queue.changed.notify_one();
        }
    }

    /// Queues a job that a reader waits for: it runs before all others. If too many wait, it is dropped like any other.
    pub fn submit_first(&self, job: impl FnOnce() + Send + 'static) {
        let mut jobs = self.queue.jobs.lock();
        if jobs.0.len() < self.most {
            jobs.0.push_front(Box::new(job));
            self.queue.changed.notify_one();
        }
    }
}

impl Drop for DecodePool {
    fn drop(&mut self) {
        self.queue.jobs.lock().1 = true;
        self.queue.changed.notify_all();
    }
}

fn work(queue: &Queue) {
    loop {
        let mut jobs = queue.jobs.lock();
        let job = loop {
            if jobs.1 {
                return;
            }
            if let Some(job) = jobs.0.pop_front() {
                break job;
            }
            queue.changed.wait(&mut jobs);
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
        let pool = DecodePool::new(&Tuning::default());
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
