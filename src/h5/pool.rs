//! The worker processes of one mount: about as many as there are cores, started when they are needed.
//!
//! A request that kills its worker or outlasts its deadline is tried once more on a new one. Then the
//! object is marked bad, and after a few such objects the file, until the file changes on disk.

use std::collections::{HashMap, HashSet};
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::net::UnixStream;
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard};
use std::time::{Duration, Instant};

use super::budget::Budget;
use super::sandbox::Sandbox;
use super::wire::{Envelope, Reply, Wire};
use super::{Answer, H5Error, Request, Sink, worker};
use crate::raw::StoreFile;
use crate::thread::anywhere;

/// Failures of new workers on one request until the object is marked bad.
const MOST_FAILURES: usize = 2;

/// The same for workers that somebody kills: that need not be the object's fault.
const MOST_KILLS: usize = 10;

/// Objects of one file that may kill a worker before the whole file is marked bad.
const MOST_BAD: usize = 4;

/// How long a request waits for a worker while there is one for each core: most answer sooner than another starts.
const MOMENT: Duration = Duration::from_millis(5);

/// libhdf5 leaves some 4 KiB behind for each dataset it has opened: a worker that occupies more bytes than
/// this after a large listing is replaced.
const LARGEST_WORKER: u64 = 192 << 20;

/// A worker and the connection to it.
pub struct Worker {
    child: Child,
    wire: Wire,
    /// It has not served yet.
    fresh: bool,
    /// What it said of itself at its start.
    sandbox: Option<Sandbox>,
}

impl Worker {
    /// Starts `program` with an argument that makes it a worker and the directories it may use.
    pub fn start<'a>(
        program: &Path,
        (argument, dirs): (&str, impl IntoIterator<Item = &'a Path>),
        tables: &Arc<Budget>,
    ) -> io::Result<Self> {
        let (ours, theirs) = UnixStream::pair()?;
        let mut command = Command::new(program);
        command
            .arg(argument)
            .args(dirs)
            .env_clear()
            .current_dir("/")
            .stdin(OwnedFd::from(theirs))
            .stdout(Stdio::null())
            .stderr(Stdio::null());
        let child = anywhere(|| command.spawn())?;
        let mut wire = Wire::new(ours);
        wire.tables = tables.clone();
        Ok(Self {
            child,
            wire,
            fresh: true,
            sandbox: None,
        })
    }

    /// Asks once; an error is one of the worker, and it is of no more use then.
    pub fn ask(
        &mut self,
        file: &StoreFile,
        request: &Request,
        sink: &mut Option<&mut Sink<'_>>,
    ) -> io::Result<Result<Answer, H5Error>> {
        let patience = patience(request, file.identity.size);
        self.wire.deadline = Some(Instant::now() + patience);
        let envelope = Envelope {
            serial: file.serial,
            path: file.path.as_os_str().as_bytes().to_vec(),
            seconds: patience.as_secs(),
            request: request.clone(),
        };
        self.wire.send_request(&envelope, None)?;
        if self.sandbox.is_none() {
            let Reply::Hello(sandbox) = self.wire.receive_reply(&mut None)? else {
                return Err(io::ErrorKind::InvalidData.into());
            };
            self.sandbox = Some(sandbox);
        }
        let reply = match self.wire.receive_reply(sink)? {
            Reply::NeedFile => {
                self.wire.send_request(&envelope, Some(file.file()))?;
                self.wire.receive_reply(sink)?
            }
            reply => reply,
        };
        match reply {
            Reply::Done(answer) => Ok(answer),
            Reply::Hello(_) | Reply::NeedFile | Reply::Bytes(_) | Reply::Map(..) => {
                Err(io::ErrorKind::InvalidData.into())
            }
        }
    }
}

impl Worker {
    /// Memory it occupies, in bytes; 0 where the system does not say.
    fn resident(&self) -> u64 {
        let path = format!("/proc/{}/statm", self.child.id());
        let statm = std::fs::read_to_string(path).unwrap_or_default();
        let pages = statm.split(' ').nth(1).and_then(|n| n.parse().ok());
        pages.map_or(0, |pages: u64| {
            pages.saturating_mul(rustix::param::page_size() as u64)
        })
    }

    /// Ends a worker that failed with `error`, and says what was wrong with it.
    fn end(mut self, error: &io::Error) -> End {
        if error.kind() == io::ErrorKind::TimedOut {
            return End::Slow;
        }
        // Its end of the connection closes a moment before it can be waited for.
        for _ in 0..20 {
            match self.child.try_wait() {
                Ok(Some(status)) => {
                    return match status.signal() {
                        Some(libc::SIGXCPU) => End::Slow,
                        Some(libc::SIGKILL) => End::Killed,
                        _ => End::Crashed,
                    };
                }
                Ok(None) => std::thread::sleep(Duration::from_millis(5)),
                Err(_) => break,
            }
        }
        End::Crashed
    }
}

/// How a worker ended that did not answer.
#[derive(Clone, Copy, PartialEq, Eq)]
enum End {
    Slow,
    Crashed,
    /// By somebody else: the kernel for want of memory, or an administrator.
    Killed,
}

impl Drop for Worker {
    fn drop(&mut self) {
        // It is idle, hanging or dead: no work is lost.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// How long a request may take: more for a large file, and for a pass over all of it.
fn patience(request: &Request, file_size: u64) -> Duration {
    const MIB: u64 = 1 << 20;
    const DAY: Duration = Duration::from_secs(86_400);
    if let Request::Collection(_) | Request::Tables(_) = request {
        // What they write is not in the file yet.
        return Duration::from_secs(300);
    }
    let (rate, most) = match request {
        // Objects of any size are copied.
        Request::Edit(_) => return DAY,
        Request::MeasureText { .. }
        | Request::Groups
        | Request::Times
        | Request::List { .. }
        | Request::Survey { .. } => (2 * MIB, 600),
        _ => (8 * MIB, 120),
    };
    Duration::from_secs((10 + file_size / rate).min(most))
}

#[derive(Default)]
struct State {
    idle: Vec<Worker>,
    running: usize,
    /// Objects that killed a worker, by the serial number of their file.
    bad: HashMap<u64, HashSet<u64>>,
    sandbox: Option<Sandbox>,
}

/// The workers.
pub struct Pool {
    state: Mutex<State>,
    freed: Condvar,
    most: usize,
    /// Of them can work at the same time.
    cores: usize,
    restarts: AtomicU64,
    /// The directory below which workers may read files; `None`: anywhere.
    readable: Vec<PathBuf>,
    tables: Arc<Budget>,
}

impl Pool {
    pub fn new(readable: Vec<PathBuf>) -> Self {
        let cores = std::thread::available_parallelism().map_or(2, |n| n.get().clamp(2, 8));
        Self {
            readable,
            tables: Arc::default(),
            state: Mutex::default(),
            freed: Condvar::new(),
            // Two more than can work: one that stalls on a damaged file must not hold up the others.
            most: cores + 2,
            cores,
            restarts: AtomicU64::new(0),
        }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(|e| e.into_inner())
    }

    /// Workers that were replaced since the start.
    pub fn restarts(&self) -> u64 {
        self.restarts.load(Ordering::Relaxed)
    }

    /// What holds the workers back; `None` before the first has served.
    pub fn sandbox(&self) -> Option<Sandbox> {
        self.state().sandbox.clone()
    }

    fn start(&self) -> io::Result<Worker> {
        let program = Path::new("/proc/self/exe");
        let readable = self.readable.iter().map(PathBuf::as_path);
        let arguments = (worker::ARGUMENT, readable);
        Worker::start(program, arguments, &self.tables)
    }

    /// Starts a worker for requests to come, unless as many run as there are cores: starting one takes ten times as
    /// long as most requests.
    pub fn warm(&self) {
        let mut state = self.state();
        if state.running >= self.cores {
            return;
        }
        state.running += 1;
        drop(state);
        let started = self.start().ok();
        let mut state = self.state();
        match started {
            // Below those that have files open.
            Some(worker) => state.idle.insert(0, worker),
            None => state.running -= 1,
        }
        drop(state);
        self.freed.notify_one();
    }

    fn take(&self) -> io::Result<Worker> {
        let mut state = self.state();
        let mut waited = false;
        loop {
            // The one used last has the files open.
            if let Some(mut worker) = state.idle.pop() {
                // One that died in the meantime is replaced without a word.
                if matches!(worker.child.try_wait(), Ok(None)) {
                    worker.fresh = false;
                    return Ok(worker);
                }
                state.running -= 1;
                continue;
            }
            if state.running >= self.cores && !waited {
                waited = true;
                let freed = self.freed.wait_timeout(state, MOMENT);
                state = freed.unwrap_or_else(|e| e.into_inner()).0;
                continue;
            }
            if state.running < self.most {
                state.running += 1;
                drop(state);
                return self.start().inspect_err(|_| {
                    self.state().running -= 1;
                    self.freed.notify_one();
                });
            }
            state = self.freed.wait(state).unwrap_or_else(|e| e.into_inner());
        }
    }

    fn give_back(&self, worker: Option<Worker>) {
        let mut state = self.state();
        match worker {
            Some(worker) => state.idle.push(worker),
            None => state.running -= 1,
        }
        self.freed.notify_one();
    }

    /// Answers one request about one file. Bytes go to `sink`, if there is one, and the answer is then empty.
    pub fn call(
        &self,
        file: &StoreFile,
        request: &Request,
        mut sink: Option<&mut Sink<'_>>,
    ) -> Result<Answer, H5Error> {
        let object = request.object();
        if let Some(bad) = self.state().bad.get(&file.serial) {
            if bad.len() >= MOST_BAD {
                return Err(H5Error::Damaged(format!(
                    "several objects of this file crashed or stalled {}: it is not read any more",
                    request.library()
                )));
            }
            if bad.contains(&object) {
                return Err(H5Error::Damaged(format!(
                    "this object crashed or stalled {}: it is not read any more",
                    request.library()
                )));
            }
        }
        let cannot_start = |e| H5Error::Damaged(format!("cannot start a worker: {e}"));
        let mut worker = self.take().map_err(cannot_start)?;
        let (mut failures, mut kills) = (0, 0);
        let end = loop {
            match worker.ask(file, request, &mut sink) {
                Ok(answer) => {
                    if worker.fresh {
                        self.state().sandbox.clone_from(&worker.sandbox);
                    }
                    let fat = request.opens_many() && worker.resident() > LARGEST_WORKER;
                    self.give_back((!fat).then_some(worker));
                    return answer;
                }
                Err(e) => {
                    self.restarts.fetch_add(1, Ordering::Relaxed);
                    // A worker that has served before may have been on its way out: only what it
                    // takes too long over is held against the object.
                    let fresh = worker.fresh;
                    let end = worker.end(&e);
                    match end {
                        End::Killed => kills += 1,
                        End::Crashed if !fresh => {}
                        End::Crashed | End::Slow => failures += 1,
                    }
                    if failures == MOST_FAILURES || kills == MOST_KILLS {
                        self.give_back(None);
                        break end;
                    }
                    worker = self.start().map_err(|e| {
                        self.give_back(None);
                        cannot_start(e)
                    })?;
                }
            }
        };
        self.state()
            .bad
            .entry(file.serial)
            .or_default()
            .insert(object);
        let why = match end {
            End::Slow => "took longer than allowed on this object, twice",
            End::Crashed => "crashed on this object, twice",
            End::Killed => "was killed at work on this object, again and again",
        };
        Err(H5Error::Damaged(format!("{} {why}", request.library())))
    }
}
