//! Staying awake for the next request.
//!
//! A program that opens one small file after another sends each request as soon as the one before is answered. Waking a
//! thread for it takes longer than answering it, in a virtual machine several times as long. So after an answer
//! one thread looks out for the next request for a moment before it sleeps. It does not while that proves useless,
//! or while others want the processor.

use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};

/// How long a thread looks out.
const MOMENT: Duration = Duration::from_micros(100);

/// A look that takes longer: somebody else worked on the processor meanwhile. Waking somebody takes less, and so
/// does a host that serves its virtual machine.
const LONG_LOOK: Duration = Duration::from_micros(300);

/// Moments in a row without a request, after which there is a pause.
const IN_VAIN: u32 = 4;

/// How long nobody looks out.
const PAUSE: Duration = Duration::from_millis(20);

/// The outcome of looking out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Outcome {
    /// There is a request, or the mount has ended.
    Request,
    Nothing,
    /// Another thread looks out, or there is a pause.
    Left,
}

/// Looks out for requests of one mount.
pub(super) struct BusyPoll {
    device: OwnedFd,
    taken: AtomicBool,
    in_vain: AtomicU32,
    started: Instant,
    /// When the pause ends, in microseconds from `started`.
    pause_end: AtomicU64,
}

impl BusyPoll {
    /// `device` can be polled for requests.
    pub(super) fn new(device: OwnedFd) -> Self {
        Self {
            device,
            taken: AtomicBool::new(false),
            in_vain: AtomicU32::new(0),
            started: Instant::now(),
            pause_end: AtomicU64::new(0),
        }
    }

    fn micros(&self, at: Instant) -> u64 {
        u64::try_from(at.duration_since(self.started).as_micros()).unwrap_or(u64::MAX)
    }

    /// Returns when there is a request, or after a moment.
    pub(super) fn look_out(&self) -> Outcome {
        let start = Instant::now();
        if self.micros(start) < self.pause_end.load(Ordering::Relaxed)
            || self.taken.swap(true, Ordering::Acquire)
        {
            return Outcome::Left;
        }
        let outcome = self.look_until(start, start + MOMENT);
        self.taken.store(false, Ordering::Release);
        outcome
    }

    fn look_until(&self, start: Instant, end: Instant) -> Outcome {
        let at_once = Timespec {
            tv_sec: 0,
            tv_nsec: 0,
        };
        let mut before = start;
        loop {
            let mut device = [PollFd::new(&self.device, PollFlags::IN)];
            if poll(&mut device, Some(&at_once)) != Ok(0) {
                self.in_vain.store(0, Ordering::Relaxed);
                return Outcome::Request;
            }
            let now = Instant::now();
            let interrupted = now - before > LONG_LOOK;
            if interrupted || now >= end {
                let in_vain = self.in_vain.fetch_add(1, Ordering::Relaxed) + 1;
                if interrupted || in_vain >= IN_VAIN {
                    self.in_vain.store(0, Ordering::Relaxed);
                    let pause_end = self.micros(now + PAUSE);
                    self.pause_end.store(pause_end, Ordering::Relaxed);
                }
                return Outcome::Nothing;
            }
            before = now;
            // Who was just answered may have to run here.
            thread::yield_now();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::{Read, Write};

    #[test]
    fn a_request_is_seen_and_nobody_looks_out_for_ever() {
        let (requests, mut kernel) = std::io::pipe().unwrap();
        let mut asked = requests.try_clone().unwrap();
        let poll = BusyPoll::new(requests.into());
        kernel.write_all(b"r").unwrap();
        for _ in 0..10 {
            assert_eq!(poll.look_out(), Outcome::Request);
        }
        asked.read_exact(&mut [0]).unwrap();
        let mut outcomes = std::iter::repeat_with(|| poll.look_out());
        assert_eq!(outcomes.next(), Some(Outcome::Nothing));
        assert!(outcomes.take(1000).any(|outcome| outcome == Outcome::Left));
        // A mount that has ended can be polled as well.
        let (requests, kernel) = std::io::pipe().unwrap();
        drop(kernel);
        assert_eq!(BusyPoll::new(requests.into()).look_out(), Outcome::Request);
    }
}
