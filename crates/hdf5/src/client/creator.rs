//! The client of the worker that makes files of a checkout.
//!
//! The daemon fills the room that datasets have, at the addresses in the answer. So libhdf5 never holds the data, and
//! memory does not depend on the size of an array.

use std::path::{Path, PathBuf};
use std::sync::Mutex;

use super::AnswerHere;
use super::process::{WorkerProcess, ask_kept};
use crate::protocol::{Answer, H5Error, NewChunks, Outline, Request, argument};
use npyfs_io::file::StoreFile;

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
        let failed =
            |e: std::io::Error| H5Error::Damaged(format!("the writing worker failed: {e}"));
        let idle = || self.idle.lock().unwrap_or_else(|e| e.into_inner());
        let start = || {
            let arguments = (argument::WRITER, Some(self.dir.as_path()));
            WorkerProcess::start(&self.program, arguments)
        };
        let kept = idle().take();
        let (worker, answer) = ask_kept(kept, start, file, request).map_err(failed)?;
        *idle() = Some(worker);
        answer
    }
}
