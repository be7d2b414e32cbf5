//! The reading workers of one mount: about as many as there are cores, started when they are needed.
//!
//! A request that kills its worker or outlasts its deadline is tried once more on a new one. Then the
//! object is marked bad, and after a few such objects the file, until the file changes on disk.

use std::cell::Cell;
use std::collections::HashMap;
use std::io;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use parking_lot::{Condvar, Mutex};

use super::access::{KnownFiles, Reach, RequiredAccess};
use super::process::{Counter, WorkerExit, WorkerProcess};
use super::program;
use crate::protocol::{Answer, Budget, H5Error, Inode, Request, Sandbox, Sink, argument};
use npyfs_io::file::StoreFile;
use npyfs_io::file::handle::{is_short, with_room};

/// Failures of new workers on one request until the object is marked bad.
const MAX_FAILURES: usize = 2;

/// Workers killed from outside at one request until it is given up: that need not be the object's fault.
const MAX_KILLS: usize = 10;

/// The number of attempts to start a worker while the machine is short of something.
const START_ATTEMPTS: u32 = 20;
/// The time between two of them.
const START_INTERVAL: Duration = Duration::from_millis(50);

/// The time for which a request waits for a worker while there is one for each core: most answer sooner than another
/// starts.
const IDLE_WAIT: Duration = Duration::from_millis(5);

/// Workers that do not count while they wait for the network, at the most: a process takes some 10 MiB.
const MAX_AWAY: usize = 64;

/// libhdf5 leaves some 4 KiB behind for each dataset it has opened: a worker that occupies more bytes than
/// this after a large listing is replaced.
const MAX_RESIDENT: u64 = 192 << 20;

/// Objects of one file that may kill a worker before the whole file is marked bad.
const MAX_BAD: usize = 4;

/// The time for which an object stays marked: what crashed a worker, or stalled it, may have been the machine's want of
/// something.
const MARK_LIFETIME: Duration = Duration::from_secs(600);

/// The objects that are marked bad, and when: by the serial number of their file, which a new version does not share,
/// and their address in it.
#[derive(Default)]
struct BadObjects {
    files: HashMap<u64, HashMap<u64, Instant>>,
}

impl BadObjects {
    /// Refuses a request about an object that is marked, or about a file with too many of them.
    fn check(&mut self, file: u64, request: &Request) -> Result<(), H5Error> {
        let Some(objects) = self.files.get_mut(&file) else {
            return Ok(());
        };
        objects.retain(|_, marked| marked.elapsed() < MARK_LIFETIME);
        let (what, library) = if objects.len() >= MAX_BAD {
            ("several objects of this file", request.library())
        } else if objects.contains_key(&request.object()) {
            ("this object", request.library())
        } else {
            return Ok(());
        };
        Err(H5Error::Damaged(format!(
            "{what} crashed or stalled {library}: it is not read any more"
        )))
    }

    /// Marks the object that a request is about.
    fn mark(&mut self, file: u64, request: &Request) {
        let objects = self.files.entry(file).or_default();
        objects.insert(request.object(), Instant::now());
    }
}

struct PoolState {
    /// The one used last is the last.
    idle: Vec<WorkerProcess>,
    /// Workers that run or are being started, idle ones included, but for those that are away.
    running: usize,
    /// Workers that wait for the network in place of working.
    away: usize,
    bad: BadObjects,
    /// The sandbox of the worker that was started last.
    sandbox: Option<Sandbox>,
    known: KnownFiles,
}

/// A worker that serves a request.
struct Assigned {
    worker: WorkerProcess,
    /// The worker was started for this request.
    fresh: bool,
}

/// The reading workers of one mount.
pub struct WorkerPool {
    state: Mutex<PoolState>,
    /// A worker became idle or ended.
    freed: Condvar,
    /// Most workers at a time.
    most: usize,
    /// Workers that can work at the same time.
    cores: usize,
    restarts: AtomicU64,
    reach: Reach,
    /// Requests that failed for a reason that says nothing about the file.
    unanswered: AtomicU64,
    /// The memory that chunk tables may take.
    tables: Arc<Budget>,
}

/// A pool as the process of one of its workers sees it.
struct Turns<'a> {
    pool: &'a WorkerPool,
    /// The worker is away, and does not count.
    is_away: Cell<bool>,
}

impl<'a> Turns<'a> {
    fn new(pool: &'a WorkerPool) -> Self {
        let is_away = Cell::new(false);
        Self { pool, is_away }
    }
}

impl Counter for Turns<'_> {
    fn leave(&self) {
        let mut state = self.pool.state.lock();
        if state.away < MAX_AWAY {
            state.away += 1;
            state.running -= 1;
            self.is_away.set(true);
            drop(state);
            self.pool.freed.notify_one();
        }
    }

    fn come_back(&self) {
        if self.is_away.take() {
            let mut state = self.pool.state.lock();
            state.away -= 1;
            state.running += 1;
        }
    }
}

impl WorkerPool {
    /// Starts no worker yet; those to come may read the stores in this reach.
    pub fn new(reach: Reach) -> Self {
        let cores = std::thread::available_parallelism().map_or(2, |n| n.get().clamp(2, 8));
        Self {
            reach,
            tables: Arc::default(),
            state: Mutex::new(PoolState {
                idle: Vec::new(),
                running: 0,
                away: 0,
                bad: BadObjects::default(),
                sandbox: None,
                known: KnownFiles::new(),
            }),
            freed: Condvar::new(),
            // Two more than can work: one that stalls on a damaged file must not hold up the others.
            most: cores + 2,
            cores,
            restarts: AtomicU64::new(0),
            unanswered: AtomicU64::new(0),
        }
    }

    /// Returns how many workers were replaced since the start.
    pub fn restarts(&self) -> u64 {
        self.restarts.load(Ordering::Relaxed)
    }

    /// Returns how many requests so far failed for a reason that says nothing about the file.
    pub fn unanswered(&self) -> u64 {
        self.unanswered.load(Ordering::Relaxed)
    }

    /// Returns what holds the workers back; `None` before the first has served.
    pub fn sandbox(&self) -> Option<Sandbox> {
        self.state.lock().sandbox.clone()
    }

    /// Lets workers that start from now on open a file by its name.
    pub fn permit_source(&self, path: &Path, inode: Inode) {
        self.state.lock().known.add_source(path, inode);
    }

    /// Lets workers that start from now on open a file that they will be asked about.
    pub fn will_ask(&self, file: &StoreFile) {
        let needs = RequiredAccess::new(file, &Request::Root);
        self.state.lock().known.remember(needs);
    }

    /// Starts a worker that may open what a request needs.
    fn start(&self, needs: Option<RequiredAccess<'_>>) -> io::Result<WorkerProcess> {
        let arguments = (argument::READER, None);
        let mut worker = WorkerProcess::start(program::program(), arguments)?;
        worker.share_budget(&self.tables);
        let first = needs.map(|needs| needs.file);
        let state = self.state.lock();
        let permit = state.known.permit(&self.reach, first);
        worker.access.sources = state.known.added();
        drop(state);
        if let Some(needs) = needs {
            needs.grant(&mut worker.access);
        }
        worker.permit(&permit, first)?;
        Ok(worker)
    }

    /// Starts a worker for requests to come, unless as many run as there are cores: starting one takes ten times as
    /// long as most requests.
    pub fn warm(&self) {
        let mut state = self.state.lock();
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
        let mut state = self.state.lock();
        match started {
            // Below those that have files open.
            Some(worker) => state.idle.insert(0, worker),
            None => state.running -= 1,
        }
        drop(state);
        self.freed.notify_one();
    }

    /// Takes an idle worker that may open what is needed, or starts one; waits while there are as many as may be.
    fn take(&self, needs: RequiredAccess<'_>, is_long: bool) -> io::Result<Assigned> {
        let mut state = self.state.lock();
        let (mut waited, mut starts) = (false, 0);
        loop {
            let added = state.known.added();
            let fits = |worker: &WorkerProcess| needs.is_met(&worker.access, added);
            // The one used last has the files open. It stays free for short requests.
            let found = match is_long {
                true => state.idle.iter().position(fits),
                false => state.idle.iter().rposition(fits),
            };
            if let Some(at) = found {
                let mut worker = state.idle.remove(at);
                // One that died in the meantime is replaced without a word.
                if worker.is_running() {
                    let fresh = false;
                    return Ok(Assigned { worker, fresh });
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
                self.freed.wait_for(&mut state, IDLE_WAIT);
                continue;
            }
            if state.running < self.most {
                state.running += 1;
                drop(state);
                let failed = match with_room(|| self.start(Some(needs))) {
                    Ok(worker) => {
                        let fresh = true;
                        return Ok(Assigned { worker, fresh });
                    }
                    Err(e) => e,
                };
                state = self.state.lock();
                state.running -= 1;
                starts += 1;
                if starts == START_ATTEMPTS || !is_short(&failed) {
                    drop(state);
                    self.freed.notify_one();
                    return Err(failed);
                }
                // Another worker may be free before this one can be started.
                self.freed.wait_for(&mut state, START_INTERVAL);
                continue;
            }
            self.freed.wait(&mut state);
        }
    }

    /// Starts a worker that is counted already.
    fn start_in_place(&self, needs: RequiredAccess<'_>) -> io::Result<Assigned> {
        let started = with_room(|| self.start(Some(needs)));
        let worker = started.inspect_err(|_| self.give_back(None))?;
        let fresh = true;
        Ok(Assigned { worker, fresh })
    }

    /// Takes a worker back once it has answered; `None`: it is gone.
    fn give_back(&self, worker: Option<WorkerProcess>) {
        let mut state = self.state.lock();
        match worker {
            // Others were started while some were away.
            Some(_) if state.running > self.most => state.running -= 1,
            Some(worker) => state.idle.push(worker),
            None => state.running -= 1,
        }
        drop(state);
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
            if e.is_passing() {
                self.unanswered.fetch_add(1, Ordering::Relaxed);
            }
        })
    }

    fn answer(
        &self,
        file: &StoreFile,
        request: &Request,
        mut sink: Option<&mut Sink<'_>>,
    ) -> Result<Answer, H5Error> {
        self.state.lock().bad.check(file.serial, request)?;
        let cannot_start = |e| match H5Error::of_system("cannot start a worker", &e) {
            H5Error::Damaged(why) => H5Error::Machine(e.raw_os_error().unwrap_or(libc::EIO), why),
            error => error,
        };
        let needs = RequiredAccess::new(file, request);
        self.state.lock().known.remember(needs);
        let is_long = matches!(request, Request::Map { whole: true, .. });
        let (mut failures, mut kills) = (0, 0);
        let exit = loop {
            let Assigned { mut worker, fresh } = self.take(needs, is_long).map_err(cannot_start)?;
            match worker.ask(file, request, &mut sink, &Turns::new(self)) {
                Ok(answer) => {
                    if fresh {
                        self.state.lock().sandbox = worker.sandbox().cloned();
                    }
                    let large = request.opens_many() && worker.resident() > MAX_RESIDENT;
                    self.give_back((!large).then_some(worker));
                    return answer;
                }
                Err(e) => {
                    self.restarts.fetch_add(1, Ordering::Relaxed);
                    let exit = worker.end(&e);
                    // A worker that has served before may have been on its way out: only what it
                    // takes too long over is held against the object.
                    match exit {
                        WorkerExit::Killed => kills += 1,
                        WorkerExit::Crashed if !fresh => {}
                        WorkerExit::Crashed | WorkerExit::Slow => failures += 1,
                    }
                    self.give_back(None);
                    if failures == MAX_FAILURES || kills == MAX_KILLS {
                        break exit;
                    }
                }
            }
        };
        let why = match exit {
            WorkerExit::Slow => "took longer than allowed on this object, twice",
            WorkerExit::Crashed => "crashed on this object, twice",
            WorkerExit::Killed => "was killed at work on this object, again and again",
        };
        let why = format!("{} {why}", request.library());
        // Nothing is known of an object whose workers were killed.
        if exit == WorkerExit::Killed {
            return Err(H5Error::Machine(libc::EIO, why));
        }
        self.state.lock().bad.mark(file.serial, request);
        Err(H5Error::Damaged(why))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_few_bad_objects_make_a_bad_file() {
        let mut bad = BadObjects::default();
        let map = |dataset| Request::Map {
            dataset,
            whole: false,
        };
        for dataset in 1..=MAX_BAD as u64 {
            assert!(bad.check(7, &map(99)).is_ok());
            assert!(bad.check(7, &map(dataset)).is_ok());
            bad.mark(7, &map(dataset));
            assert!(bad.check(7, &map(dataset)).is_err());
            assert!(bad.check(8, &map(dataset)).is_ok(), "another file");
        }
        assert!(bad.check(7, &map(99)).is_err());
    }
}
