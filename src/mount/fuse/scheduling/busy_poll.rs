//! Polls for the next request instead of sleeping.
//!
//! A program that opens one small file after another sends each request as soon as the previous one is answered. So
//! after a reply one thread polls for the next request for a moment, unless polling proves useless or other threads
//! want the processor.

use std::os::fd::OwnedFd;
use std::sync::Mutex;
use std::thread;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};

/// How long a thread polls; 400 us made no difference. If a single poll takes `LONG_LOOK`, another thread has used the
/// processor: wake-ups and interruptions by a hypervisor take less.
const MOMENT: Duration = Duration::from_micros(100);
const LONG_LOOK: Duration = Duration::from_micros(300);

/// Consecutive polls without a request after which polling pauses.
const IN_VAIN: u32 = 4;
const PAUSE: Duration = Duration::from_millis(20);

/// Polls for requests of one mount.
pub(super) struct BusyPoll {
    device: OwnedFd,
    /// Held by the polling thread.
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    in_vain: u32,
    pause_end: Option<Instant>,
}

impl BusyPoll {
    /// Creates a poller; `device` can be polled for requests.
    pub(super) fn new(device: OwnedFd) -> Self {
        let state = Mutex::default();
        Self { device, state }
    }

    /// Returns when there is a request, or after a moment. False if another thread polls, or during a pause.
    pub(super) fn look_out(&self) -> bool {
        let Ok(mut state) = self.state.try_lock() else {
            return false;
        };
        let start = Instant::now();
        if state.pause_end.is_some_and(|end| start < end) {
            return false;
        }
        let mut before = start;
        loop {
            let mut device = [PollFd::new(&self.device, PollFlags::IN)];
            // The device can also be polled when the mount has ended.
            if poll(&mut device, Some(&Timespec::default())) != Ok(0) {
                state.in_vain = 0;
                return true;
            }
            let now = Instant::now();
            let interrupted = now - before > LONG_LOOK;
            if interrupted || now >= start + MOMENT {
                state.in_vain += 1;
                if interrupted || state.in_vain >= IN_VAIN {
                    state.in_vain = 0;
                    state.pause_end = Some(now + PAUSE);
                }
                return true;
            }
            before = now;
            // The program that was just answered may have to run on this processor.
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
        assert!((0..1000).all(|_| poll.look_out()));
        asked.read_exact(&mut [0]).unwrap();
        assert!(poll.look_out());
        assert!((0..1000).any(|_| !poll.look_out()));
        // The end of a mount does not cause a pause.
        let (requests, kernel) = std::io::pipe().unwrap();
        drop(kernel);
        let poll = BusyPoll::new(requests.into());
        assert!((0..1000).all(|_| poll.look_out()));
    }
}
