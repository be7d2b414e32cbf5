//! The client of the writing worker that keeps collections open.
//!
//! A collection is made once and stays in SWMR mode until it is closed, so that a killed worker leaves a file that can be
//! read as far as it was flushed. The caller holds on to samples until a flush succeeded.

use std::path::{Path, PathBuf};
use std::sync::Mutex;
use std::sync::mpsc::{Sender, channel};

use super::process::WorkerProcess;
use crate::protocol::{Answer, CollectionRequest, H5Error, Request, argument};
use npyfs_base::thread;
use npyfs_io::file::StoreFile;
use npyfs_io::owner::Owner;

/// The daemon's end of a writing worker, which keeps collections open.
pub struct CollectionWriter {
    program: PathBuf,
    dir: PathBuf,
    owner: Owner,
    running: Mutex<Option<RunningWorker>>,
}

/// A worker, and the end of a channel that ends the thread which started it when it is dropped.
struct RunningWorker {
    worker: WorkerProcess,
    _starter: Sender<()>,
}

fn failed(why: impl std::fmt::Display) -> H5Error {
    H5Error::Damaged(format!("the writing worker failed: {why}"))
}

impl CollectionWriter {
    /// Makes the end of a worker that writes below `dir` only, and as its owner, and starts none yet: `program` becomes
    /// one when it is started with `argument::WRITER`.
    pub fn new(program: &Path, dir: &Path, owner: Owner) -> Self {
        Self {
            program: program.to_owned(),
            dir: dir.to_owned(),
            owner,
            running: Mutex::default(),
        }
    }

    /// Answers one request about one file. If the worker fails, every collection it had open is closed.
    pub fn ask(&self, file: &StoreFile, request: CollectionRequest) -> Result<(), H5Error> {
        let mut place = self.running.lock().unwrap_or_else(|e| e.into_inner());
        let mut running = match place.take() {
            Some(running) => running,
            None => self.start()?,
        };
        let request = Request::Collection(request);
        let answer = running.worker.ask(file, &request, &mut None, &());
        let answer = answer.map_err(failed)?;
        *place = Some(running);
        match answer? {
            Answer::Written => Ok(()),
            _ => Err(H5Error::unexpected_answer()),
        }
    }

    /// Starts a worker. It ends with the thread that starts it, so one is made for that.
    fn start(&self) -> Result<RunningWorker, H5Error> {
        let (program, dir) = (self.program.clone(), self.dir.clone());
        let owner = self.owner.argument();
        let (sender, started) = channel();
        let (starter, end) = channel::<()>();
        let starting = move || {
            let dirs = [Some(dir.as_path()), owner.as_deref()];
            let arguments = (argument::WRITER, dirs.into_iter().flatten());
            let worker = WorkerProcess::start(&program, arguments);
            if sender.send(worker).is_ok() {
                let _ = end.recv();
            }
        };
        thread::spawn("starter", starting).map_err(failed)?;
        let worker = started.recv().map_err(failed)?.map_err(failed)?;
        Ok(RunningWorker {
            worker,
            _starter: starter,
        })
    }
}
