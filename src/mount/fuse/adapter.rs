//! What stands between a request and [`Fs`]: who works on it, what a panic in it becomes, and how its answer is given.

use std::io;
use std::os::fd::AsFd;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, OnceLock};

use fuser::{Errno, FopenFlags, INodeNo, Notifier, OpenAccMode, Request};

use super::awake::Awake;
use super::crew::Crew;
use super::near::{NOT_NEAR, Near};
use crate::mount::fs::{Fs, FsError};

/// A view of a store as `fuser` wants to see it.
pub struct Adapter {
    pub(super) fs: Fs,
    /// The kernel lets files be mapped that are opened for direct reads (Linux 6.6).
    pub(super) maps_direct: bool,
    link: Arc<OnceLock<Link>>,
    crew: Option<Arc<Crew>>,
}

/// A request that a thread of the crew has, until it is answered.
pub(super) struct Work<'a>(&'a Adapter);

impl Drop for Work<'_> {
    fn drop(&mut self) {
        if let Some(crew) = &self.0.crew
            && crew.rest()
        {
            self.0.stay_awake();
        }
    }
}

/// What leads to the kernel beside answers.
pub struct Link {
    notifier: Notifier,
    awake: Awake,
}

impl Link {
    pub fn new(session: &fuser::Session<Adapter>) -> io::Result<Self> {
        Ok(Self {
            notifier: session.notifier(),
            awake: Awake::new(session.as_fd().try_clone_to_owned()?),
        })
    }
}

impl Adapter {
    pub fn new(fs: Fs) -> Self {
        // It is only about speed.
        let near = Near::new();
        let quick = fs.stores_quickly();
        let crew = (quick || near.is_some()).then(|| Crew::new(quick, near).ok());
        let crew = crew.flatten();
        let about = crew.clone();
        let report = move || about.as_ref().map_or(NOT_NEAR.into(), |crew| crew.report());
        fs.report_serving(Box::new(report));
        Self {
            fs,
            crew,
            maps_direct: false,
            link: Arc::default(),
        }
    }

    /// Where the session puts its link.
    pub fn link(&self) -> &Arc<OnceLock<Link>> {
        &self.link
    }

    /// A request begins; to be held until it is answered.
    pub(super) fn work(&self, request: &Request) -> Work<'_> {
        if let Some(crew) = &self.crew {
            crew.begin(request.pid());
        }
        Work(self)
    }

    /// The same of one that may take more than a moment.
    pub(super) fn longer_work(&self, request: &Request) -> Work<'_> {
        let work = self.work(request);
        if let Some(crew) = &self.crew {
            crew.step_up();
        }
        work
    }

    /// The same of one that closes a file, which may be stored now: quickly, or not.
    pub(super) fn last_work(&self, request: &Request) -> Work<'_> {
        if self.fs.stores_quickly() || !self.fs.is_writable() {
            self.work(request)
        } else {
            self.longer_work(request)
        }
    }

    /// The same of one that may take long.
    pub(super) fn long_work(&self, request: &Request) -> Work<'_> {
        let work = self.work(request);
        if let Some(crew) = &self.crew {
            crew.call_another();
        }
        work
    }

    /// What this thread does next is work for several.
    pub(super) fn spread(&self) {
        if let Some(crew) = &self.crew {
            crew.spread();
        }
    }

    /// Gives an answer that is waited for.
    pub(super) fn answer<T>(&self, reply: impl FnOnce() -> T) -> T {
        match &self.crew {
            Some(crew) => crew.answer(reply),
            None => reply(),
        }
    }

    /// Several answers are wanted at once.
    pub(super) fn apart(&self) {
        if let Some(crew) = &self.crew {
            crew.apart();
        }
    }

    /// After an answer: stays awake for the next request.
    pub(super) fn look_out(&self) {
        // A crew of which one waits sees to that for all requests.
        if !self.fs.stores_quickly() {
            self.stay_awake();
        }
    }

    /// Unless decoders need the processor.
    fn stay_awake(&self) {
        if let Some(link) = self.link.get()
            && !self.crew.as_ref().is_some_and(|crew| crew.is_here())
            && !self.fs.is_decoding()
        {
            link.awake.look_out();
        }
    }

    /// Puts the bytes of a file that was just opened into the page cache, which spares the kernel a request.
    ///
    /// It waits for pages that somebody is reading. Nobody is: this handle is the first, and others may follow only
    /// while this thread works; of the threads that are here at the same time the last to come waits for nobody.
    pub(super) fn give(&self, ino: INodeNo, handle: u64) {
        if let Some(link) = self.link.get()
            && let Ok(Some(bytes)) = self.ask(|fs| Ok(fs.whole(handle)))
        {
            // Without it the kernel asks.
            let _ = link.notifier.store(ino, 0, &bytes);
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
