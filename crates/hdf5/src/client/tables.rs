//! The client of the worker that changes the LMDB tables of a directory under their writer lock.
//!
//! The worker is not killed with its daemon: when the daemon is gone it completes the request that it has, gives the
//! lock back and ends. So a daemon that dies leaves no lock behind. Where the worker itself is killed, the row stays;
//! the next worker that takes the lock on this host recognises it.

use std::io;
use std::path::{Path, PathBuf};

use parking_lot::{Mutex, MutexGuard};

use super::process::{WorkerProcess, ask_kept};
use crate::protocol::{
    Answer, H5Error, LockRow, Request, TableTransaction, TablesOutcome, TablesRequest, argument,
};
use npyfs_io::file::StoreFile;
use npyfs_io::owner::Owner;

/// The daemon's end of the worker that changes the tables of one directory.
pub struct LmdbWriter {
    program: PathBuf,
    folder: PathBuf,
    lock: LockRow,
    /// The owner of the folder, if root writes in it for him.
    owner: Owner,
    /// The worker that was used last, unless it is at work.
    idle: Mutex<Option<WorkerProcess>>,
}

/// The writer lock, which is given back when this is dropped; changes to tables go through it.
pub struct WriterLock<'a> {
    worker: Option<WorkerProcess>,
    file: StoreFile,
    idle: MutexGuard<'a, Option<WorkerProcess>>,
}

/// The reason why the writer lock was not taken.
#[derive(Clone, Debug, thiserror::Error)]
pub enum LockError {
    /// Somebody else has it: the value of the lock.
    #[error("{0} holds the writer lock")]
    Held(String),
    /// The worker, or a table, failed.
    #[error(transparent)]
    Failed(#[from] H5Error),
}

fn failed(error: io::Error) -> H5Error {
    H5Error::Damaged(format!("the process that writes tables failed: {error}"))
}

impl LmdbWriter {
    /// Makes the end for the tables in `folder`, with `lock` as their writer lock, and starts no worker yet: `program`
    /// becomes one when it is started with `argument::TABLES`.
    pub fn new(program: &Path, folder: &Path, lock: LockRow) -> io::Result<Self> {
        Ok(Self {
            program: program.to_owned(),
            folder: folder.to_owned(),
            lock,
            owner: Owner::of_dir(folder)?,
            idle: Mutex::default(),
        })
    }

    /// Returns the owner of the folder, if root writes in it for him.
    pub fn owner(&self) -> Owner {
        self.owner
    }

    /// Asks the worker that was used last, or a new one, and returns it with the answer.
    fn ask(
        &self,
        idle: &mut Option<WorkerProcess>,
        file: &StoreFile,
        request: TablesRequest,
    ) -> Result<(WorkerProcess, Result<Answer, H5Error>), H5Error> {
        let start = || {
            let owner = self.owner.argument();
            let dirs = [Some(self.folder.as_path()), owner.as_deref()];
            WorkerProcess::start(
                &self.program,
                (argument::TABLES, dirs.into_iter().flatten()),
            )
        };
        ask_kept(idle.take(), start, file, &Request::Tables(request)).map_err(failed)
    }

    fn file(&self) -> Result<StoreFile, H5Error> {
        StoreFile::open(&self.folder.join(&self.lock.table)).map_err(failed)
    }

    /// Takes the writer lock. Threads of this process wait for each other; the lock of another process is an error.
    pub fn lock(&self) -> Result<WriterLock<'_>, LockError> {
        let mut idle = self.idle.lock();
        let file = self.file()?;
        let (worker, answer) =
            self.ask(&mut idle, &file, TablesRequest::Take(self.lock.clone()))?;
        match answer? {
            Answer::Tables(TablesOutcome::Done) => Ok(WriterLock {
                worker: Some(worker),
                file,
                idle,
            }),
            Answer::Tables(TablesOutcome::Held(who)) => {
                *idle = Some(worker);
                Err(LockError::Held(who))
            }
            _ => Err(H5Error::unexpected_answer().into()),
        }
    }

    /// Writes to environments of one writer, for which no lock is needed.
    pub fn write_values(&self, steps: Vec<TableTransaction>) -> Result<TablesOutcome, H5Error> {
        let mut idle = self.idle.lock();
        let file = self.file()?;
        let (worker, answer) = self.ask(&mut idle, &file, TablesRequest::Write(steps))?;
        *idle = Some(worker);
        match answer? {
            Answer::Tables(outcome) => Ok(outcome),
            _ => Err(H5Error::unexpected_answer()),
        }
    }
}

impl WriterLock<'_> {
    /// Makes one transaction after the other; with `Differs` or `Full` one was not made, nor those behind it.
    pub fn write(&mut self, steps: Vec<TableTransaction>) -> Result<TablesOutcome, H5Error> {
        let request = Request::Tables(TablesRequest::Write(steps));
        let Some(worker) = &mut self.worker else {
            return Err(H5Error::Damaged("the writer lock is lost".into()));
        };
        match worker.ask(&self.file, &request, &mut None, &()) {
            Ok(Ok(Answer::Tables(outcome))) => Ok(outcome),
            Ok(Ok(_)) => Err(H5Error::unexpected_answer()),
            Ok(Err(e)) => Err(e),
            Err(e) => {
                self.worker = None;
                Err(failed(e))
            }
        }
    }
}

impl Drop for WriterLock<'_> {
    fn drop(&mut self) {
        let request = Request::Tables(TablesRequest::Release);
        // A worker that is gone gave the lock back, or left the row, which the next worker recognises.
        if let Some(mut worker) = self.worker.take()
            && worker.ask(&self.file, &request, &mut None, &()).is_ok()
        {
            *self.idle = Some(worker);
        }
    }
}
