//! Staying awake for the next request.
//!
//! A program that opens one small file after another sends each request as soon as the one before is answered. So after an
//! answer one thread looks out for the next for a moment, unless that proves useless or others want the processor.

use std::os::fd::OwnedFd;
use std::sync::Mutex;
use std::thread;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};

/// How long a thread looks out; with 400 us no difference. A look that takes `LONG_LOOK`: somebody else worked on the processor.
/// Waking somebody takes less, and so does a host.
const MOMENT: Duration = Duration::from_micros(100);
const LONG_LOOK: Duration = Duration::from_micros(300);

/// Moments in a row without a request, after which nobody looks out for a while.
const IN_VAIN: u32 = 4;
const PAUSE: Duration = Duration::from_millis(20);

/// Looks out for requests of one mount.
pub(super) struct BusyPoll {
    device: OwnedFd,
    /// Held by the thread that looks out.
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    in_vain: u32,
    pause_end: Option<Instant>,
}

impl BusyPoll {
    /// `device` can be polled for requests.
    pub(super) fn new(device: OwnedFd) -> Self {
        let state = Mutex::default();
        Self { device, state }
    }

    /// Returns when there is a request, or after a moment. False if another thread looks out, or there is a pause.
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
            // A mount that has ended can be polled as well.
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
            // Whoever was just answered may have to run here.
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
        // The end of a mount is no pause.
        let (requests, kernel) = std::io::pipe().unwrap();
        drop(kernel);
        let poll = BusyPoll::new(requests.into());
        assert!((0..1000).all(|_| poll.look_out()));
    }
}
