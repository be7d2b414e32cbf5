//! What stands between a request and [`Fs`]: who works on it, what a panic in it becomes, and how its answer is given.

use std::io;
use std::os::fd::AsFd;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, OnceLock};

use fuser::{Errno, FopenFlags, INodeNo, Notifier, OpenAccMode, Request};

use super::scheduling::{Length, Scheduling};
use crate::mount::fs::{Fs, FsError};

/// A view of a store as `fuser` wants to see it.
pub struct Adapter {
    pub(super) fs: Fs,
    /// The kernel lets files be mapped that are opened for direct reads (Linux 6.6).
    pub(super) maps_direct: bool,
    link: Arc<Link>,
}

/// What leads to the kernel beside answers, and to the threads of the session.
pub struct Link {
    notifier: OnceLock<Notifier>,
    scheduling: Scheduling,
}

impl Link {
    /// Connects with the session.
    pub fn set(&self, session: &fuser::Session<Adapter>) -> io::Result<()> {
        let _ = self.notifier.set(session.notifier());
        let device = session.as_fd().try_clone_to_owned();
        self.scheduling.set_device(device)
    }
}

/// A request that a thread of the session has, until it is answered.
pub(super) struct Work<'a>(&'a Adapter);

impl Drop for Work<'_> {
    fn drop(&mut self) {
        self.0.scheduling().end(|| self.0.fs.is_decoding());
    }
}

impl Adapter {
    pub fn new(fs: Fs) -> Self {
        let scheduling = Scheduling::new(fs.stores_quickly(), fs.schedules());
        let link = Arc::new(Link {
            notifier: OnceLock::new(),
            scheduling,
        });
        let about = link.clone();
        fs.report_serving(Box::new(move || about.scheduling.report()));
        Self {
            fs,
            maps_direct: false,
            link,
        }
    }

    /// Returns what the session is linked by, once it is there.
    pub fn link(&self) -> &Arc<Link> {
        &self.link
    }

    fn scheduling(&self) -> &Scheduling {
        &self.link.scheduling
    }

    fn begin(&self, request: &Request, length: Length) -> Work<'_> {
        self.scheduling().begin(request.pid(), length);
        Work(self)
    }

    /// A request begins; to be held until it is answered.
    pub(super) fn work(&self, request: &Request) -> Work<'_> {
        self.begin(request, Length::Moment)
    }

    /// A request begins that may take more than a moment.
    pub(super) fn longer_work(&self, request: &Request) -> Work<'_> {
        self.begin(request, Length::Longer)
    }

    /// A request begins that closes a file, which may be stored now: quickly, or not.
    pub(super) fn last_work(&self, request: &Request) -> Work<'_> {
        if self.fs.stores_quickly() || !self.fs.is_writable() {
            self.work(request)
        } else {
            self.longer_work(request)
        }
    }

    /// A request begins that may take long.
    pub(super) fn long_work(&self, request: &Request) -> Work<'_> {
        self.begin(request, Length::Long)
    }

    /// What this thread does next is work for several.
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
        self.scheduling().answered(|| self.fs.is_decoding());
    }

    /// Puts the bytes of a file that was just opened into the page cache, which spares the kernel a request.
    ///
    /// It waits for pages that somebody is reading. Nobody is: this handle is the first, and others may follow only
    /// while this thread works; of the threads that are here at the same time the last to come waits for nobody.
    pub(super) fn give(&self, ino: INodeNo, handle: u64) {
        if let Some(notifier) = self.link.notifier.get()
            && let Ok(Some(bytes)) = self.ask(|fs| Ok(fs.whole(handle)))
        {
            // Without it the kernel asks.
            let _ = notifier.store(ino, 0, &bytes);
        }
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

    /// Who only writes needs no pages of the kernel's: what is written is not copied there on its way. Kernels that
    /// let such files be mapped keep the pages of others right as well.
    pub(super) fn written_pages(&self, mode: OpenAccMode) -> FopenFlags {
        if mode == OpenAccMode::O_WRONLY && self.maps_direct {
            FopenFlags::FOPEN_DIRECT_IO
        } else {
            FopenFlags::FOPEN_KEEP_CACHE
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
