//! The way of a request to [`Fs`] and of its answer back: which thread works on it, and what a panic in it becomes.

use std::io;
use std::os::fd::AsFd;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, OnceLock};

use fuser::{Errno, Notifier, Request};

use super::passthrough::Passthrough;
use super::scheduling::Scheduling;
use super::waiting::Waiters;
use crate::mount::fs::{Fs, FsError};

/// A view of a store as `fuser` wants to see it.
#[derive(Clone)]
pub(super) struct Adapter {
    pub(super) fs: Arc<Fs>,
    /// The kernel lets files be mapped that are opened for direct reads (Linux 6.6).
    pub(super) maps_direct: bool,
    link: Arc<Link>,
    /// The threads that answer where the store lies elsewhere.
    waiters: Option<Arc<Waiters>>,
    /// `None`: there are no copies that the kernel could read.
    pub(super) passthrough: Option<Arc<Passthrough>>,
}

/// The ways to the kernel beside answers, and to the threads of the session.
pub(super) struct Link {
    notifier: OnceLock<Notifier>,
    scheduling: Scheduling,
}

impl Link {
    /// Connects with the session.
    pub(super) fn set(&self, session: &fuser::Session<Adapter>) -> io::Result<()> {
        let _ = self.notifier.set(session.notifier());
        let device = session.as_fd().try_clone_to_owned();
        self.scheduling.set_device(device)
    }
}

/// A request that a thread of the session has, until it is answered.
pub(super) struct ActiveRequest<'a>(&'a Adapter);

impl Drop for ActiveRequest<'_> {
    fn drop(&mut self) {
        self.0.scheduling().end();
    }
}

impl Adapter {
    pub(super) fn new(fs: Fs) -> Self {
        let far = fs.lies_elsewhere();
        // Answers that wait for a network come from any thread.
        let scheduling = Scheduling::new(fs.stores_quickly() && !far, fs.schedules() && !far);
        let link = Arc::new(Link {
            notifier: OnceLock::new(),
            scheduling,
        });
        let about = link.clone();
        fs.report_serving(Box::new(move || about.scheduling.report()));
        Self {
            passthrough: fs.keeps().then(Arc::default),
            fs: Arc::new(fs),
            maps_direct: false,
            link,
            waiters: far.then(Arc::default),
        }
    }

    /// Returns what the session is linked by, once it is there.
    pub(super) fn link(&self) -> &Arc<Link> {
        &self.link
    }

    /// Returns what the kernel is told by beside answers, once the session is there.
    pub(super) fn notifier(&self) -> Option<&Notifier> {
        self.link.notifier.get()
    }

    fn scheduling(&self) -> &Scheduling {
        &self.link.scheduling
    }

    /// Has a request answered by a thread that may wait, if the store lies elsewhere; hands it back if it does not.
    pub(super) fn hand_on<R: Send + 'static>(
        &self,
        reply: R,
        answer: impl FnOnce(&Self, R) + Send + 'static,
    ) -> Option<R> {
        let Some(waiters) = &self.waiters else {
            return Some(reply);
        };
        let own = self.clone();
        waiters.run(move || answer(&own, reply));
        None
    }

    /// Returns whether the store lies elsewhere.
    pub(super) fn waits(&self) -> bool {
        self.waiters.is_some()
    }

    /// A request begins; to be held until it is answered.
    pub(super) fn work(&self, request: &Request) -> ActiveRequest<'_> {
        self.scheduling().begin(request.pid());
        ActiveRequest(self)
    }

    /// A request begins that may take more than a moment.
    pub(super) fn longer_work(&self, request: &Request) -> ActiveRequest<'_> {
        self.scheduling().begin(request.pid());
        self.scheduling().step_up();
        ActiveRequest(self)
    }

    /// A request begins that closes a file, which may be stored now: quickly, or not.
    pub(super) fn last_work(&self, request: &Request) -> ActiveRequest<'_> {
        if self.fs.stores_quickly() || !self.fs.is_writable() {
            self.work(request)
        } else {
            self.longer_work(request)
        }
    }

    /// A request begins that may take long.
    pub(super) fn long_work(&self, request: &Request) -> ActiveRequest<'_> {
        self.scheduling().begin(request.pid());
        self.scheduling().call_another();
        ActiveRequest(self)
    }

    /// Prepares for work of this thread that several share.
    pub(super) fn spread(&self) {
        self.scheduling().spread();
    }

    /// Gives an answer that is waited for.
    pub(super) fn answer<T>(&self, reply: impl FnOnce() -> T) -> T {
        self.scheduling().answer(reply)
    }

    /// Several answers are wanted at once.
    pub(super) fn apart(&self) {
        self.scheduling().apart();
    }

    /// After an answer: looks out for the next request, unless decoders need the processor.
    pub(super) fn look_out(&self) {
        self.scheduling().look_out(|| self.fs.is_decoding());
    }

    /// The one door to `Fs`.
    pub(super) fn ask<'a, T>(
        &'a self,
        operation: impl FnOnce(&'a Fs) -> Result<T, FsError>,
    ) -> Result<T, Errno> {
        match catch_unwind(AssertUnwindSafe(|| operation(&self.fs))) {
            Ok(Ok(answer)) => Ok(answer),
            Ok(Err(refusal)) => Err(Errno::from_i32(refusal.errno)),
            Err(_panic) => Err(Errno::EIO),
        }
    }

    /// For operations that cannot be refused.
    pub(super) fn tell(&self, operation: impl FnOnce(&Fs)) -> Result<(), Errno> {
        self.ask(|fs| {
            operation(fs);
            Ok(())
        })
    }
}
