//! Where the threads of a session run, and when they sleep.
//!
//! Waking a thread takes longer than answering a short request. So one program that asks alone is served on the processor
//! that it runs on (`affinity`, for root), by one thread that waits for requests while others are in reserve
//! (`request_threads`); and a thread that has answered looks out for the next request before it sleeps (`busy_poll`). It is
//! only about speed: `-o scheduling=off` does without all of it. `benches/README.md` says what each of them is worth.

mod affinity;
mod busy_poll;
mod processor;
mod request_threads;

use std::io;
use std::os::fd::OwnedFd;
use std::sync::{Arc, OnceLock};

use serde_json::Value as Json;

use affinity::CpuAffinity;
use busy_poll::BusyPoll;
use request_threads::RequestThreads;

/// The scheduling of one session. All methods may be called from any of its threads.
pub(super) struct Scheduling {
    /// Operations are short whoever asks, so that one thread waits for requests and looks out for them.
    quick: bool,
    threads: Option<Arc<RequestThreads>>,
    poll: OnceLock<BusyPoll>,
    is_on: bool,
}

/// How long a request may take.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Length {
    Moment,
    /// More than a moment.
    Longer,
    /// So long that another thread is to wait for requests meanwhile.
    Long,
}

impl Scheduling {
    /// Creates the scheduling of a session; as usual, if it is not `is_on`.
    pub(super) fn new(quick: bool, is_on: bool) -> Self {
        let affinity = is_on.then(CpuAffinity::new).flatten();
        let wanted = is_on && (quick || affinity.is_some());
        Self {
            quick: quick && is_on,
            // Without a thread to watch over them all of them wait for requests.
            threads: wanted
                .then(|| RequestThreads::new(quick, affinity).ok())
                .flatten(),
            poll: OnceLock::new(),
            is_on,
        }
    }

    /// Sets the descriptor that requests can be polled from.
    pub(super) fn set_device(&self, device: io::Result<OwnedFd>) -> io::Result<()> {
        if self.is_on {
            let _ = self.poll.set(BusyPoll::new(device?));
        }
        Ok(())
    }

    /// The calling thread has a request of the thread `caller`.
    pub(super) fn begin(&self, caller: u32, length: Length) {
        let Some(threads) = &self.threads else { return };
        threads.begin(caller);
        match length {
            Length::Moment => {}
            Length::Longer => threads.step_up(),
            Length::Long => threads.call_another(),
        }
    }

    /// The request of the calling thread is over: it waits until it is needed. `is_busy`: others need the processor.
    pub(super) fn end(&self, is_busy: impl FnOnce() -> bool) {
        if let Some(threads) = &self.threads
            && threads.rest()
        {
            self.look_out(is_busy);
        }
    }

    /// Gives an answer that is waited for, and the processor with it.
    pub(super) fn answer<T>(&self, reply: impl FnOnce() -> T) -> T {
        match &self.threads {
            Some(threads) => threads.answer(reply),
            None => reply(),
        }
    }

    /// After an answer: looks out for the next request. `is_busy`: others need the processor.
    pub(super) fn answered(&self, is_busy: impl FnOnce() -> bool) {
        // The one of several that waits sees to that for all requests.
        if !self.quick {
            self.look_out(is_busy);
        }
    }

    fn look_out(&self, is_busy: impl FnOnce() -> bool) {
        if let Some(poll) = self.poll.get()
            && !self.threads.as_ref().is_some_and(|t| t.is_here())
            && !is_busy()
        {
            poll.look_out();
        }
    }

    /// Prepares for work of the calling thread that several share.
    pub(super) fn spread(&self) {
        if let Some(threads) = &self.threads {
            threads.spread();
        }
    }

    /// Several answers are wanted at once.
    pub(super) fn apart(&self) {
        if let Some(threads) = &self.threads {
            threads.apart();
        }
    }

    /// Returns how often a program was served where it runs, or why it is not.
    pub(super) fn report(&self) -> Json {
        match &self.threads {
            _ if !self.is_on => "switched off".into(),
            Some(threads) => threads.report(),
            None => affinity::NOT_PERMITTED.into(),
        }
    }
}
