//! The worker processes of one mount: about as many as there are cores, started when they are needed.
//!
//! A request that kills its worker or outlasts its deadline is tried once more on a new one. Then the
//! object is marked bad, and after a few such objects the file, until the file changes on disk.

use std::collections::{HashMap, HashSet};
use std::io;
use std::num::NonZeroUsize;
use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::os::unix::net::UnixStream;
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard};
use std::time::{Duration, Instant};

use lru::LruCache;

use super::budget::Budget;
use super::permit::{Inode, NamedFile, Permit, Reach};
use super::sandbox::Sandbox;
use super::wire::{Envelope, Reply, Wire};
use super::{Answer, H5Error, Request, Sink, reader};
use crate::io::file::StoreFile;
use crate::io::file::handle::{is_short, with_room};
use crate::io::thread::anywhere;

/// Failures of new workers on one request until the object is marked bad.
const MOST_FAILURES: usize = 2;

/// The same for workers that somebody kills: that need not be the object's fault.
const MOST_KILLS: usize = 10;

/// Objects of one file that may kill a worker before the whole file is marked bad.
const MOST_BAD: usize = 4;

/// How long an object stays marked: what crashed a worker, or stalled it, may have been the machine's want of something.
const MARKED: Duration = Duration::from_secs(600);

/// How often, and how long apart, starting a worker is tried while the machine is short of something.
const STARTS: u32 = 20;
const BETWEEN: Duration = Duration::from_millis(50);

/// How long a request waits for a worker while there is one for each core: most answer sooner than another starts.
const MOMENT: Duration = Duration::from_millis(5);

/// libhdf5 leaves some 4 KiB behind for each dataset it has opened: a worker that occupies more bytes than
/// this after a large listing is replaced.
const LARGEST_WORKER: u64 = 192 << 20;

/// Files that were asked about lately and that a new worker may open, too.
const KNOWN: NonZeroUsize = NonZeroUsize::new(256).unwrap();

/// Most sources of virtual datasets that are known at a time.
const MOST_SOURCES: usize = 1 << 14;

/// How long a new worker may take to hear what it may open.
const GREETING: Duration = Duration::from_secs(10);

/// A worker and the connection to it.
pub struct WorkerProcess {
    child: Child,
    wire: Wire,
    /// It has not served yet.
    fresh: bool,
    /// What it said of itself at its start.
    sandbox: Option<Sandbox>,
    /// What it may open; without Landlock it may open everything.
    inodes: HashSet<Inode>,
    everything: bool,
    /// How often sources had been permitted when it was started.
    sources: u64,
}

impl WorkerProcess {
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
            inodes: HashSet::new(),
            everything: false,
            sources: 0,
        })
    }

    /// Hears what the worker says of itself, once.
    fn greet(&mut self) -> io::Result<()> {
        if self.sandbox.is_some() {
            return Ok(());
        }
        let Reply::Hello(sandbox, inodes) = self.wire.receive_reply(&mut None)? else {
            return Err(io::ErrorKind::InvalidData.into());
        };
        // As root without capabilities it could not open his files.
        if let Some(why) = sandbox.is_not_owner() {
            return Err(io::Error::new(io::ErrorKind::PermissionDenied, why));
        }
        self.everything |= !sandbox.has("landlock");
        self.inodes.extend(inodes);
        self.sandbox = Some(sandbox);
        Ok(())
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
        let at_once = match request {
            // A new file, which no worker knows.
            Request::Create(_) | Request::WriteChunks(_) => file.file().ok(),
            _ => None,
        };
        self.wire
            .send_request(&envelope, at_once.as_ref().map(|held| &***held))?;
        self.greet()?;
        let reply = match self.wire.receive_reply(sink)? {
            Reply::NeedFile => {
                // It waits for a request, this one or another.
                let held = match file.file() {
                    Ok(held) => held,
                    Err(e) => return Ok(Err(H5Error::of_system("cannot open the file again", &e))),
                };
                self.wire.send_request(&envelope, Some(&held))?;
                self.wire.receive_reply(sink)?
            }
            reply => reply,
        };
        match reply {
            Reply::Done(answer) => Ok(answer),
            // The descriptor did not get there: the worker has none left.
            Reply::NeedFile => Ok(Err(H5Error::Machine(
                libc::EMFILE,
                "a worker has no descriptor left".into(),
            ))),
            Reply::Hello(..) | Reply::Bytes(_) | Reply::Map(..) => {
                Err(io::ErrorKind::InvalidData.into())
            }
        }
    }
}

impl WorkerProcess {
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
    fn end(mut self, error: &io::Error) -> WorkerExit {
        if error.kind() == io::ErrorKind::TimedOut {
            return WorkerExit::Slow;
        }
        // Its end of the connection closes a moment before it can be waited for.
        for _ in 0..20 {
            match self.child.try_wait() {
                Ok(Some(status)) => {
                    return match status.signal() {
                        Some(libc::SIGXCPU) => WorkerExit::Slow,
                        Some(libc::SIGKILL) => WorkerExit::Killed,
                        _ => WorkerExit::Crashed,
                    };
                }
                Ok(None) => std::thread::sleep(Duration::from_millis(5)),
                Err(_) => break,
            }
        }
        WorkerExit::Crashed
    }
}

/// How a worker ended that did not answer.
#[derive(Clone, Copy, PartialEq, Eq)]
enum WorkerExit {
    Slow,
    Crashed,
    /// By somebody else: the kernel for want of memory, or an administrator.
    Killed,
}

impl Drop for WorkerProcess {
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
        | Request::References
        | Request::Times
        | Request::List { .. }
        | Request::Scan { .. } => (2 * MIB, 600),
        _ => (8 * MIB, 120),
    };
    Duration::from_secs((10 + file_size / rate).min(most))
}

struct PoolState {
    idle: Vec<WorkerProcess>,
    running: usize,
    /// Objects that killed a worker and when, by the serial number of their file.
    bad: HashMap<u64, HashMap<u64, Instant>>,
    sandbox: Option<Sandbox>,
    /// Files that were asked about, the latest first.
    known: LruCache<Inode, PathBuf>,
    /// Sources of virtual datasets that were checked, and how often one was added.
    sources: HashMap<PathBuf, Inode>,
    added: u64,
}

/// What a worker must be able to open to answer a request.
#[derive(Clone, Copy)]
struct RequiredAccess<'a> {
    file: &'a StoreFile,
    inode: Inode,
    sources: bool,
}

impl<'a> RequiredAccess<'a> {
    fn new(file: &'a StoreFile, request: &Request) -> Self {
        let own = (file.identity.dev, file.identity.ino);
        // liblmdb opens by name.
        let by_name = matches!(request, Request::Lmdb(_))
            .then(|| std::fs::metadata(&file.path).ok())
            .flatten()
            .map(|meta| (meta.dev(), meta.ino()));
        Self {
            file,
            inode: by_name.unwrap_or(own),
            sources: request.reads_sources(),
        }
    }

    fn are_met(&self, worker: &WorkerProcess, added: u64) -> bool {
        worker.everything
            || worker.inodes.contains(&self.inode) && (!self.sources || worker.sources == added)
    }
}

impl PoolState {
    /// Remembers a file that is asked about.
    fn know(&mut self, needs: RequiredAccess<'_>) {
        if self.known.get(&needs.inode).is_none() {
            self.known.put(needs.inode, needs.file.path.clone());
        }
    }
}

/// The workers.
pub struct WorkerPool {
    state: Mutex<PoolState>,
    freed: Condvar,
    most: usize,
    /// Of them can work at the same time.
    cores: usize,
    restarts: AtomicU64,
    reach: Reach,
    /// Requests that the machine was short of something for.
    shortages: AtomicU64,
    tables: Arc<Budget>,
}

impl WorkerPool {
    pub fn new(reach: Reach) -> Self {
        let cores = std::thread::available_parallelism().map_or(2, |n| n.get().clamp(2, 8));
        Self {
            reach,
            tables: Arc::default(),
            state: Mutex::new(PoolState {
                idle: Vec::new(),
                running: 0,
                bad: HashMap::new(),
                sandbox: None,
                known: LruCache::new(KNOWN),
                sources: HashMap::new(),
                added: 0,
            }),
            freed: Condvar::new(),
            // Two more than can work: one that stalls on a damaged file must not hold up the others.
            most: cores + 2,
            cores,
            restarts: AtomicU64::new(0),
            shortages: AtomicU64::new(0),
        }
    }

    fn state(&self) -> MutexGuard<'_, PoolState> {
        self.state.lock().unwrap_or_else(|e| e.into_inner())
    }

    /// Workers that were replaced since the start.
    pub fn restarts(&self) -> u64 {
        self.restarts.load(Ordering::Relaxed)
    }

    /// Requests so far that the machine was short of something for.
    pub fn shortages(&self) -> u64 {
        self.shortages.load(Ordering::Relaxed)
    }

    /// What holds the workers back; `None` before the first has served.
    pub fn sandbox(&self) -> Option<Sandbox> {
        self.state().sandbox.clone()
    }

    /// Lets workers open a file by its name.
    pub fn permit_source(&self, path: &Path, inode: Inode) {
        let mut state = self.state();
        if state.sources.get(path) == Some(&inode) {
            return;
        }
        if state.sources.len() >= MOST_SOURCES {
            // Those that are still wanted are checked, and added, again.
            state.sources.clear();
        }
        state.sources.insert(path.to_owned(), inode);
        state.added += 1;
    }

    /// Starts a worker that may open what a request needs.
    fn start(&self, needs: Option<RequiredAccess<'_>>) -> io::Result<WorkerProcess> {
        let program = super::program::program();
        let arguments = (reader::ARGUMENT, None);
        let mut worker = WorkerProcess::start(program, arguments, &self.tables)?;
        let mut permit = Permit::default();
        match &self.reach {
            Reach::Anywhere => permit.anywhere = true,
            Reach::Stores(_) => {
                let state = self.state();
                let named = |(path, inode): (&PathBuf, &Inode)| NamedFile::new(path, *inode);
                permit.known = state.known.iter().map(|(i, p)| named((p, i))).collect();
                permit.sources = state.sources.iter().map(named).collect();
                worker.sources = state.added;
                let path = needs.map(|needs| needs.file.path.as_path());
                permit.beside = path
                    .filter(|path| self.reach.takes_neighbours(path))
                    .map(|path| path.as_os_str().as_bytes().to_vec());
            }
        }
        worker.everything = permit.anywhere;
        worker.inodes.extend(needs.map(|needs| needs.inode));
        worker.wire.deadline = Some(Instant::now() + GREETING);
        // A worker that is gone already shows when it is asked.
        let first = needs.map(|needs| needs.file.file()).transpose()?;
        let _ = worker
            .wire
            .send_permit(&permit, first.as_ref().map(|held| &***held));
        Ok(worker)
    }

    /// Starts a worker for requests to come, unless as many run as there are cores: starting one takes ten times as
    /// long as most requests.
    pub fn warm(&self) {
        let mut state = self.state();
        let nothing = state.known.is_empty() && !matches!(self.reach, Reach::Anywhere);
        if state.running >= self.cores || nothing {
            return;
        }
        state.running += 1;
        drop(state);
        let started = self.start(None).and_then(|mut worker| {
            worker.greet()?;
            Ok(worker)
        });
        let started = started.ok();
        let mut state = self.state();
        match started {
            // Below those that have files open.
            Some(worker) => state.idle.insert(0, worker),
            None => state.running -= 1,
        }
        drop(state);
        self.freed.notify_one();
    }

    fn take(&self, needs: RequiredAccess<'_>) -> io::Result<WorkerProcess> {
        let mut state = self.state();
        let (mut waited, mut starts) = (false, 0);
        loop {
            let added = state.added;
            let fits = |worker: &WorkerProcess| needs.are_met(worker, added);
            // The one used last has the files open.
            if let Some(at) = state.idle.iter().rposition(fits) {
                let mut worker = state.idle.remove(at);
                // One that died in the meantime is replaced without a word.
                if matches!(worker.child.try_wait(), Ok(None)) {
                    worker.fresh = false;
                    return Ok(worker);
                }
                state.running -= 1;
                continue;
            }
            // None of those that wait may open the file: the one that has waited longest makes room.
            if state.running >= self.cores && !state.idle.is_empty() {
                let unfit = state.idle.remove(0);
                drop(state);
                drop(unfit);
                return self.start_in_place(needs);
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
                let failed = match with_room(|| self.start(Some(needs))) {
                    Ok(worker) => return Ok(worker),
                    Err(e) => e,
                };
                state = self.state();
                state.running -= 1;
                starts += 1;
                if starts == STARTS || !is_short(&failed) {
                    drop(state);
                    self.freed.notify_one();
                    return Err(failed);
                }
                // Another worker may be free before this one can be started.
                let freed = self.freed.wait_timeout(state, BETWEEN);
                state = freed.unwrap_or_else(|e| e.into_inner()).0;
                continue;
            }
            state = self.freed.wait(state).unwrap_or_else(|e| e.into_inner());
        }
    }

    /// Starts a worker that is counted already.
    fn start_in_place(&self, needs: RequiredAccess<'_>) -> io::Result<WorkerProcess> {
        with_room(|| self.start(Some(needs))).inspect_err(|_| {
            self.state().running -= 1;
            self.freed.notify_one();
        })
    }

    fn give_back(&self, worker: Option<WorkerProcess>) {
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
        sink: Option<&mut Sink<'_>>,
    ) -> Result<Answer, H5Error> {
        self.answer(file, request, sink).inspect_err(|e| {
            if let H5Error::Machine(..) = e {
                self.shortages.fetch_add(1, Ordering::Relaxed);
            }
        })
    }

    fn answer(
        &self,
        file: &StoreFile,
        request: &Request,
        mut sink: Option<&mut Sink<'_>>,
    ) -> Result<Answer, H5Error> {
        let object = request.object();
        if let Some(bad) = self.state().bad.get_mut(&file.serial) {
            bad.retain(|_, marked| marked.elapsed() < MARKED);
            if bad.len() >= MOST_BAD {
                return Err(H5Error::Damaged(format!(
                    "several objects of this file crashed or stalled {}: it is not read any more",
                    request.library()
                )));
            }
            if bad.contains_key(&object) {
                return Err(H5Error::Damaged(format!(
                    "this object crashed or stalled {}: it is not read any more",
                    request.library()
                )));
            }
        }
        let cannot_start = |e| match H5Error::of_system("cannot start a worker", &e) {
            H5Error::Damaged(why) => H5Error::Machine(e.raw_os_error().unwrap_or(libc::EIO), why),
            error => error,
        };
        let needs = RequiredAccess::new(file, request);
        self.state().know(needs);
        let mut worker = self.take(needs).map_err(cannot_start)?;
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
                        WorkerExit::Killed => kills += 1,
                        WorkerExit::Crashed if !fresh => {}
                        WorkerExit::Crashed | WorkerExit::Slow => failures += 1,
                    }
                    if failures == MOST_FAILURES || kills == MOST_KILLS {
                        self.give_back(None);
                        break end;
                    }
                    self.give_back(None);
                    worker = self.take(needs).map_err(cannot_start)?;
                }
            }
        };
        if end != WorkerExit::Killed {
            let mut state = self.state();
            let bad = state.bad.entry(file.serial).or_default();
            bad.insert(object, Instant::now());
        }
        let why = match end {
            WorkerExit::Slow => "took longer than allowed on this object, twice",
            WorkerExit::Crashed => "crashed on this object, twice",
            WorkerExit::Killed => "was killed at work on this object, again and again",
        };
        let why = format!("{} {why}", request.library());
        Err(match end {
            // Nothing is known of the object.
            WorkerExit::Killed => H5Error::Machine(libc::EIO, why),
            WorkerExit::Slow | WorkerExit::Crashed => H5Error::Damaged(why),
        })
    }
}
