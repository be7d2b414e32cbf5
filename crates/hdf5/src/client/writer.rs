//! The clients of the writing worker: one makes files of a checkout, the other keeps collections open.
//!
//! The daemon fills the room that datasets of a new file have, at the addresses in the answer. So libhdf5 never holds
//! the data, and memory does not depend on the size of an array.
//!
//! A collection is made once and stays in SWMR mode until it is closed, so that a killed worker leaves a file that can
//! be read as far as it was flushed. The caller holds on to samples until a flush succeeded.

use std::path::{Path, PathBuf};
use std::sync::mpsc::{Sender, channel};

use parking_lot::Mutex;

use super::AnswerHere;
use super::process::{WorkerProcess, ask_kept};
use crate::protocol::{Answer, CollectionRequest, H5Error, NewChunks, Outline, Request, argument};
use npyfs_base::thread;
use npyfs_io::file::StoreFile;
use npyfs_io::owner::Owner;

fn failed(why: impl std::fmt::Display) -> H5Error {
    H5Error::Damaged(format!("the writing worker failed: {why}"))
}

/// The client of the worker that makes files.
pub enum Creator {
    /// A function of this process: for tests.
    Here(Box<AnswerHere>),
    /// A worker process, which is started when it is needed.
    Worker(Box<CreatorWorker>),
}

/// The daemon's end of a writing worker.
pub struct CreatorWorker {
    program: PathBuf,
    dir: PathBuf,
    idle: Mutex<Option<WorkerProcess>>,
}

impl Creator {
    /// Makes the client of a worker that may write below `dir` only: `program`, which becomes one when it is started
    /// with `argument::WRITER`.
    pub fn worker(program: &Path, dir: &Path) -> Self {
        Self::Worker(Box::new(CreatorWorker {
            program: program.to_owned(),
            dir: dir.to_owned(),
            idle: Mutex::default(),
        }))
    }

    /// Makes `file` anew, whatever it holds. Returns the address of the data of each dataset; 0 where there is
    /// none, and for chunks.
    pub fn create(&self, file: &StoreFile, new: &Outline) -> Result<Vec<u64>, H5Error> {
        self.ask(file, &Request::Create(Box::new(new.clone())))
    }

    /// Adds chunks to a dataset of a file that `create` made.
    pub fn write_chunks(&self, file: &StoreFile, chunks: NewChunks) -> Result<(), H5Error> {
        let written = self.ask(file, &Request::WriteChunks(Box::new(chunks)));
        written.map(drop)
    }

    fn ask(&self, file: &StoreFile, request: &Request) -> Result<Vec<u64>, H5Error> {
        let answer = match self {
            Self::Here(answer) => answer(file, request),
            Self::Worker(worker) => worker.ask(file, request),
        };
        match answer? {
            Answer::Created(addresses) => Ok(addresses),
            _ => Err(H5Error::unexpected_answer()),
        }
    }
}

impl CreatorWorker {
    fn ask(&self, file: &StoreFile, request: &Request) -> Result<Answer, H5Error> {
        let start = || {
            let arguments = (argument::WRITER, Some(self.dir.as_path()));
            WorkerProcess::start(&self.program, arguments)
        };
        let kept = self.idle.lock().take();
        let (worker, answer) = ask_kept(kept, start, file, request).map_err(failed)?;
        *self.idle.lock() = Some(worker);
        answer
    }
}

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
        let mut place = self.running.lock();
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
