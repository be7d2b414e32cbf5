//! Decides where the threads of a session run, and when they sleep.
//!
//! Waking a thread takes longer than answering a short request, and a program that opens one small file after another
//! sends each request as soon as the previous one is answered. So after a reply one thread polls for the next request
//! for a moment before it sleeps, unless polling proves useless or other threads want the processor.
//!
//! Alternatively, where the daemon is allowed to (root), a program that sends requests alone is served on its own
//! processor. The scheduler does not know that program and daemon never run at the same time, and puts them on two
//! processors, where each has to be woken by the other; on a single one, the switch takes a tenth of the time.
//!
//! When requests have come from one thread for a while, a session thread moves to that thread's processor and waits for
//! its requests. It replies under the idle policy: a processor with only idle threads counts as free, so the scheduler
//! lets the program continue there. The thread keeps that policy only for requests that take a moment. A request of any
//! other thread ends this mode. It also pauses when other threads want the processor: an idle thread then waits for
//! them, a few milliseconds at most.
//!
//! The kernel wakes the thread that has waited longest. So the other session threads are held in reserve meanwhile, and
//! one of them checks periodically whether it is needed. They are also held in reserve where all operations are short,
//! as when samples are staged: a single thread that continues from request to request need not be woken for each.
//!
//! All of this affects speed only: `-o scheduling=off` disables it. `benches/README.md` has the gain of each part.
//!
//! New threads and processes would inherit the processor of a thread that moved, so the daemon starts them through
//! `npyfs_base::thread` alone; clippy refuses other ways.

use std::cell::Cell;
use std::fs::File;
use std::io::{self, Read};
use std::mem::{replace, take};
use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{LazyLock, OnceLock};
use std::time::{Duration, Instant};

use parking_lot::{Condvar, Mutex};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};
use serde_json::{Value as Json, json};

use npyfs_base::thread::{self, times_preempted};

/// Consecutive requests of one thread that justify a move (4 made no difference), and after which its processor is
/// checked again, which takes 20 us.
const SETTLED: u64 = 16;
const LOOK_AGAIN: u64 = 64;

/// Consecutive failures after which the mode pauses. A failure is a reply after which the program continued on another
/// processor, or work of an idle thread that took longer because another thread wanted the processor. During a pause
/// requests are served anywhere. The pause doubles each time, and halves after `LOOK_AGAIN` requests without a failure.
/// Starting with `LONGEST_PAUSE`, staging samples took 1.5 times as long, as storing one is slow now and then.
const IN_VAIN: u32 = 8;
const LONG: Duration = Duration::from_micros(300);
const FIRST_PAUSE: u64 = 32;
const LONGEST_PAUSE: u64 = 2048;

/// The interval at which a reserve thread checks: a longer request delays others by up to this time. With 1 ms the
/// check drove the program to another processor. After `QUIET` checks without a new request no thread is in reserve.
const TICK: Duration = Duration::from_millis(5);
const QUIET: u32 = 10;

/// No processor.
const NOWHERE: usize = usize::MAX;

thread_local! {
    /// When this session thread began its present work under the idle policy.
    static SINCE: Cell<Option<Instant>> = const { Cell::new(None) };
    /// How often this thread had been preempted by then.
    static PREEMPTED: Cell<libc::c_long> = const { Cell::new(0) };
    /// Whether this thread is counted as waiting for requests or as in reserve.
    static IS_COUNTED: Cell<bool> = const { Cell::new(false) };
}

/// Returns the number of serving threads: one may wait for a decoder while another answers. There are two more than can
/// work at once, as a request that waits for a damaged file must not block the others.
pub(super) fn threads() -> usize {
    // Asking the kernel takes twenty system calls.
    static THREADS: LazyLock<usize> = LazyLock::new(|| {
        std::thread::available_parallelism().map_or(2, |cores| cores.get().max(2)) + 2
    });
    *THREADS
}

/// The scheduling of one session. All methods may be called from any of its threads.
pub(super) struct Scheduling {
    is_on: bool,
    may_move: bool,
    /// Whether operations are short: one thread waits for requests, no matter where they come from.
    quick: bool,
    poll: OnceLock<BusyPoll>,
    /// The processor where a program runs and is served; `NOWHERE` if all threads wait for requests and run anywhere.
    place: AtomicUsize,
    state: Mutex<State>,
    /// Signalled when a reserve thread should check whether it is needed.
    called: Condvar,
    /// Replies after which the program continued on the processor of the thread that replied.
    answers: AtomicU64,
}

#[derive(Default)]
struct State {
    /// The thread that sent the last request, and the number of its consecutive requests.
    caller: u32,
    row: u64,
    /// The number of consecutive requests at which that thread's processor is checked.
    look: u64,
    /// Consecutive replies after which it continued elsewhere.
    in_vain: u32,
    /// The length of the last pause in requests, or less.
    pause: u64,
    /// The number of threads that wait for a request, and of all requests so far.
    waiting: usize,
    requests: u64,
    /// Whether a reserve thread checks periodically, or no requests have come for a while and all threads wait for one.
    is_watched: bool,
    is_quiet: bool,
    /// Whether a reserve thread should wait for requests.
    is_called: bool,
}

impl Scheduling {
    /// Creates the scheduling of a session; unless `is_on`, everything is left to the kernel.
    pub(super) fn new(quick: bool, is_on: bool) -> Self {
        Self {
            is_on,
            quick: quick && is_on,
            may_move: is_on && allow_moves(),
            poll: OnceLock::new(),
            place: AtomicUsize::new(NOWHERE),
            state: Mutex::default(),
            called: Condvar::new(),
            answers: AtomicU64::new(0),
        }
    }

    /// Sets the descriptor on which requests are polled.
    pub(super) fn set_device(&self, device: io::Result<OwnedFd>) -> io::Result<()> {
        if self.is_on {
            let _ = self.poll.set(BusyPoll::new(device?));
        }
        Ok(())
    }

    fn place(&self) -> Option<usize> {
        Some(self.place.load(Ordering::Relaxed)).filter(|&place| place != NOWHERE)
    }

    /// Returns true if all threads but one should be in reserve.
    fn one_waits(&self) -> bool {
        self.quick || self.place().is_some()
    }

    /// Records that the calling thread has a request of the thread `caller`; 0 if no thread waits for the reply.
    pub(super) fn begin(&self, caller: u32) {
        if !self.may_move && !self.quick {
            return;
        }
        SINCE.set(is_idle().then(Instant::now));
        let mut state = self.state.lock();
        state.requests += 1;
        state.is_quiet = false;
        state.waiting = state.waiting.saturating_sub(usize::from(IS_COUNTED.take()));
        if caller != 0 && caller != state.caller {
            state.caller = caller;
            self.part(&mut state, SETTLED);
        } else if caller != 0 {
            state.row += 1;
            if state.row > state.look {
                state.look = state.row + LOOK_AGAIN;
                if self.place().is_some() && state.in_vain == 0 {
                    state.pause /= 2;
                }
                let place = processor_of(caller).unwrap_or(NOWHERE);
                self.place.store(place, Ordering::Relaxed);
            }
        }
        drop(state);
        self.follow();
    }

    /// Records that replies may be given on any processor: several are pending at once.
    pub(super) fn apart(&self) {
        if self.may_move {
            self.part(&mut self.state.lock(), SETTLED);
        }
    }

    /// Serves requests on any processor until this many requests have come from one thread.
    fn part(&self, state: &mut State, requests: u64) {
        (state.row, state.look, state.in_vain) = (0, requests, 0);
        if self.place.swap(NOWHERE, Ordering::Relaxed) != NOWHERE {
            self.called.notify_all();
        }
    }

    /// Serves requests on any processor for a while.
    fn pause(&self, state: &mut State) {
        state.pause = (state.pause * 2).clamp(FIRST_PAUSE, LONGEST_PAUSE);
        self.part(state, state.pause);
    }

    /// Moves the calling thread to the processor where it should run. Returns whether that is a program's processor.
    fn follow(&self) -> bool {
        let there = self.place().is_some_and(move_to);
        if !there {
            step_up(true);
        }
        there
    }

    /// Prepares the calling thread for work that may take more than a moment.
    pub(super) fn step_up(&self) {
        step_up(false);
    }

    /// Prepares for work that several threads share: the calling thread may run anywhere.
    pub(super) fn spread(&self) {
        step_up(true);
    }

    /// Prepares for work that may take long: another thread waits for requests meanwhile.
    pub(super) fn call_another(&self) {
        self.spread();
        if self.one_waits() {
            let mut state = self.state.lock();
            state.is_called = state.waiting == 0;
            self.called.notify_one();
        }
    }

    /// Sends a reply, and leaves the processor to the thread that waits for it.
    pub(super) fn answer<T>(&self, reply: impl FnOnce() -> T) -> T {
        let since = SINCE.take().filter(|_| is_idle());
        if since.is_some_and(|since| since.elapsed() > LONG) {
            self.pause(&mut self.state.lock());
        }
        if !self.may_move || !self.follow() || !step_back() {
            return reply();
        }
        let answer = reply();
        let preempted = times_preempted();
        let went_on = PREEMPTED.replace(preempted) != preempted;
        self.answers
            .fetch_add(u64::from(went_on), Ordering::Relaxed);
        let mut state = self.state.lock();
        state.in_vain = if went_on { 0 } else { state.in_vain + 1 };
        if state.in_vain == 1 {
            // The program may have moved.
            state.look = state.row;
        }
        if state.in_vain > IN_VAIN {
            self.pause(&mut state);
            step_up(true);
        }
        answer
    }

    /// After a reply: polls for the next request. `is_busy` returns whether others need the processor.
    pub(super) fn look_out(&self, is_busy: impl FnOnce() -> bool) {
        let is_here = self.place().is_some() && self.place() == own_place();
        if let Some(poll) = self.poll.get()
            && !is_here
            && !is_busy()
        {
            poll.look_out();
        }
    }

    /// Ends the request of the calling thread, which then waits until it is needed.
    pub(super) fn end(&self) {
        if !self.may_move && !self.quick {
            return;
        }
        let mut state = self.state.lock();
        if state.waiting > 0 && self.one_waits() {
            step_up(false);
            let (mut seen, mut quiet) = (0, 0);
            while self.one_waits() && !state.is_quiet {
                // A processor that wakes up for a moment may pull the program over.
                self.follow();
                if replace(&mut state.is_watched, true) {
                    self.called.wait(&mut state);
                } else {
                    self.called.wait_for(&mut state, TICK);
                    state.is_watched = false;
                    let requests = replace(&mut seen, state.requests);
                    quiet = if requests == seen { quiet + 1 } else { 0 };
                    state.is_called |= quiet > 0 && state.waiting == 0;
                }
                if quiet == QUIET {
                    state.is_quiet = true;
                    self.part(&mut state, SETTLED);
                    self.called.notify_all();
                }
                if take(&mut state.is_called) {
                    break;
                }
            }
            // Another reserve thread takes over the check.
            self.called.notify_one();
        }
        IS_COUNTED.set(true);
        state.waiting += 1;
    }

    /// Returns how often a program was served on its processor, or why none is.
    pub(super) fn report(&self) -> Json {
        let refused = "not permitted: needs CAP_SYS_NICE and the usual scheduling policy";
        match (self.is_on, self.may_move) {
            (true, true) => json!({"answers": self.answers.load(Ordering::Relaxed)}),
            (true, false) => refused.into(),
            (false, _) => "switched off".into(),
        }
    }
}

/// How long a thread polls; 400 us made no difference. If a single poll takes `LONG_LOOK`, another thread has used the
/// processor: wake-ups and interruptions by a hypervisor take less.
const MOMENT: Duration = Duration::from_micros(100);
const LONG_LOOK: Duration = Duration::from_micros(300);

/// Consecutive polls without a request after which polling pauses.
const VAIN_POLLS: u32 = 4;
const PAUSE: Duration = Duration::from_millis(20);

/// Polls for requests of one mount.
struct BusyPoll {
    device: OwnedFd,
    /// Held by the polling thread.
    state: Mutex<PollState>,
}

#[derive(Default)]
struct PollState {
    in_vain: u32,
    pause_end: Option<Instant>,
}

impl BusyPoll {
    /// Creates a poller; `device` can be polled for requests.
    fn new(device: OwnedFd) -> Self {
        let state = Mutex::default();
        Self { device, state }
    }

    /// Returns when there is a request, or after a moment. False if another thread polls, or during a pause.
    fn look_out(&self) -> bool {
        let Some(mut state) = self.state.try_lock() else {
            return false;
        };
        let start = Instant::now();
        if state.pause_end.is_some_and(|end| start < end) {
            return false;
        }
        let mut before = start;
        loop {
            let mut device = [PollFd::new(&self.device, PollFlags::IN)];
            // The device can also be polled when the mount has ended.
            if poll(&mut device, Some(&Timespec::default())) != Ok(0) {
                state.in_vain = 0;
                return true;
            }
            let now = Instant::now();
            let interrupted = now - before > LONG_LOOK;
            if interrupted || now >= start + MOMENT {
                state.in_vain += 1;
                if interrupted || state.in_vain >= VAIN_POLLS {
                    state.in_vain = 0;
                    state.pause_end = Some(now + PAUSE);
                }
                return true;
            }
            before = now;
            // The program that was just answered may have to run on this processor.
            std::thread::yield_now();
        }
    }
}

/// The processors that threads of this process may use; unset while moves are not allowed.
static ANYWHERE: OnceLock<CpuSet> = OnceLock::new();

thread_local! {
    /// The processor that this thread has moved to.
    static PLACE: Cell<Option<usize>> = const { Cell::new(None) };
    static IDLE: Cell<bool> = const { Cell::new(false) };
}

/// Allows threads of this process to move and to become idle. Returns false if that is not possible: the policy is not
/// the normal one, or the process could not return from the idle policy (CAP_SYS_NICE or RLIMIT_NICE).
fn allow_moves() -> bool {
    let may = || thread::is_usual() && thread::set_idle(true) && thread::set_idle(false);
    let tried = thread::spawn("trial", may).is_ok_and(|trial| trial.join().unwrap_or(false));
    tried && sched_getaffinity(None).is_ok_and(|all| ANYWHERE.get_or_init(|| all).count() > 0)
}

/// Returns the processor that the calling thread moved to.
fn own_place() -> Option<usize> {
    PLACE.get()
}

/// Moves the calling thread to a processor. Returns false on failure.
fn move_to(place: usize) -> bool {
    if PLACE.get() != Some(place) {
        let mut there = CpuSet::new();
        there.set(place);
        if sched_setaffinity(None, &there).is_err() {
            return false;
        }
        PLACE.set(Some(place));
    }
    true
}

/// Returns true if the calling thread has the idle policy.
fn is_idle() -> bool {
    IDLE.get()
}

/// Gives the calling thread the idle policy. Returns false on failure.
fn step_back() -> bool {
    IDLE.set(IDLE.get() || thread::set_idle(true));
    IDLE.get()
}

/// Gives the calling thread the normal policy; with `leaves`, it may run on any processor again. `allow_moves` has
/// checked that this is allowed.
fn step_up(leaves: bool) {
    if IDLE.take() {
        let _ = thread::set_idle(false);
    }
    if leaves && PLACE.take().is_some() {
        let _ = ANYWHERE.get().map(|all| sched_setaffinity(None, all));
    }
}

/// Returns the processor where a thread runs or last ran (proc_pid_stat(5), field 39), if this process may run there.
fn processor_of(thread: u32) -> Option<usize> {
    let all = ANYWHERE.get()?;
    // The name of a thread has at most 64 bytes. The file is produced in one piece, and is shorter than this.
    let mut stat = [0; 1024];
    let mut file = File::open(format!("/proc/{thread}/stat")).ok()?;
    let len = file.read(&mut stat).ok()?;
    let stat = String::from_utf8_lossy(&stat[..len]);
    let (_, fields) = stat.rsplit_once(')')?;
    let place = fields.split_ascii_whitespace().nth(36)?.parse().ok()?;
    (place < CpuSet::MAX_CPU && all.is_set(place)).then_some(place)
}

#[cfg(test)]
mod tests {
    use std::io::Write;
    use std::sync::Arc;
    use std::sync::mpsc::{Receiver, Sender, channel};

    use super::*;

    /// Runs in a thread of its own, as it moves.
    fn session(work: impl FnOnce(Arc<Scheduling>) + Send + 'static) {
        let scheduling = Arc::new(Scheduling::new(false, true));
        if !scheduling.may_move {
            eprintln!("NOT TESTED: needs root: this process may not leave the idle policy");
            return;
        }
        let session = thread::spawn("test", || work(scheduling)).unwrap();
        session.join().unwrap();
    }

    /// Begins a request of this process. Returns whether it is served on this process's processor.
    fn begin(scheduling: &Scheduling) -> bool {
        scheduling.begin(std::process::id());
        own_place().is_some()
    }

    #[test]
    fn one_caller_in_a_row_is_followed_and_a_second_ends_it() {
        session(|scheduling| {
            assert!((0..=SETTLED).all(|_| !begin(&scheduling)));
            assert!(begin(&scheduling));
            // No thread waits for the reply.
            scheduling.begin(0);
            assert!(own_place().is_some());
            scheduling.answer(|| assert!(is_idle()));
            scheduling.step_up();
            assert!(own_place().is_some() && !is_idle());
            // Several threads share the work.
            scheduling.spread();
            assert!(own_place().is_none());
            scheduling.answer(|| assert!(own_place().is_some() && is_idle()));
            scheduling.begin(1);
            assert_eq!((is_idle(), own_place()), (false, None));
            scheduling.answer(|| assert!(!is_idle()));
        });
    }

    #[test]
    fn a_caller_that_is_gone_is_not_followed() {
        session(|scheduling| {
            for _ in 0..100 {
                scheduling.begin(u32::MAX);
                assert_eq!(own_place(), None);
            }
        });
    }

    #[test]
    fn answers_in_vain_end_in_a_pause() {
        session(|scheduling| {
            // This process waits for none of the replies: after the first one its processor is checked again.
            while own_place().is_none() {
                begin(&scheduling);
            }
            // On a busy machine this thread may be preempted during a reply, as if the program had gone on.
            let looks_again = || {
                scheduling.answer(|| ());
                let state = scheduling.state.lock();
                state.look == state.row
            };
            assert!((0..100).any(|_| looks_again() || !begin(&scheduling)));
            assert!(own_place().is_some());
            while scheduling.state.lock().look != FIRST_PAUSE {
                begin(&scheduling);
                scheduling.answer(|| ());
            }
            assert_eq!((is_idle(), own_place()), (false, None));
            assert!((0..SETTLED * 2).all(|_| !begin(&scheduling)));
        });
    }

    #[test]
    fn who_takes_long_under_the_idle_policy_leaves_it() {
        session(|scheduling| {
            while !is_idle() {
                begin(&scheduling);
                scheduling.answer(|| ());
            }
            assert!(begin(&scheduling));
            std::thread::sleep(LONG * 2);
            scheduling.answer(|| assert!(!is_idle()));
            assert_eq!(scheduling.state.lock().look, FIRST_PAUSE);
        });
    }

    type Request = (Sender<std::thread::ThreadId>, Option<Receiver<()>>);

    #[test]
    fn one_thread_waits_and_another_takes_over_when_it_is_held_up() {
        session(one_waits);
        one_waits(Arc::new(Scheduling::new(true, true)));
    }

    fn one_waits(scheduling: Arc<Scheduling>) {
        {
            // A request is the sender of the reply, and whether to take long.
            let (requests, receiver) = channel::<Request>();
            let receiver = Arc::new(Mutex::new(receiver));
            let work = |own: &Scheduling, requests: &Mutex<Receiver<Request>>| {
                loop {
                    let next = requests.lock().recv();
                    let Ok((answer, wait)) = next else { return };
                    own.begin(std::process::id());
                    if let Some(wait) = wait {
                        let _ = wait.recv();
                    }
                    answer.send(std::thread::current().id()).unwrap();
                    own.end();
                }
            };
            let threads = (0..3).map(|_| {
                let (own, receiver) = (scheduling.clone(), receiver.clone());
                thread::spawn("test", move || work(&own, &receiver)).unwrap()
            });
            let threads: Vec<_> = threads.collect();
            let ask = || {
                let (answer, answered) = channel();
                requests.send((answer, None)).unwrap();
                answered.recv().unwrap()
            };
            // Once each thread has had a request, all but one are in reserve: the same one answers.
            let (mut last, mut row) = (ask(), 0);
            while row < 1000 {
                let now = ask();
                row = if now == last { row + 1 } else { 0 };
                last = now;
            }
            let (go, wait) = channel();
            let (answer, answered) = channel();
            requests.send((answer, Some(wait))).unwrap();
            let other = ask();
            go.send(()).unwrap();
            assert_ne!(answered.recv().unwrap(), other);
            // No thread stays in reserve when requests have ended.
            drop(requests);
            threads.into_iter().for_each(|t| t.join().unwrap());
        }
    }

    #[test]
    fn a_request_is_seen_and_nobody_looks_out_for_ever() {
        let (requests, mut kernel) = std::io::pipe().unwrap();
        let mut asked = requests.try_clone().unwrap();
        let poll = BusyPoll::new(requests.into());
        kernel.write_all(b"r").unwrap();
        assert!((0..1000).all(|_| poll.look_out()));
        asked.read_exact(&mut [0]).unwrap();
        assert!(poll.look_out());
        assert!((0..1000).any(|_| !poll.look_out()));
        // The end of a mount does not cause a pause.
        let (requests, kernel) = std::io::pipe().unwrap();
        drop(kernel);
        let poll = BusyPoll::new(requests.into());
        assert!((0..1000).all(|_| poll.look_out()));
    }

    #[test]
    fn a_thread_moves_becomes_idle_and_comes_back() {
        thread::spawn("test", || {
            if !allow_moves() {
                eprintln!("NOT TESTED: needs root: this process may not leave the idle policy");
                return;
            }
            let all = sched_getaffinity(None).unwrap();
            let first = (0..CpuSet::MAX_CPU).find(|&at| all.is_set(at)).unwrap();
            let runs_in_one = || sched_getaffinity(None).unwrap().count() == 1;
            assert!(move_to(first) && step_back() && is_idle());
            assert_eq!((own_place(), thread::is_usual()), (Some(first), false));
            assert!(runs_in_one());
            step_up(false);
            assert!(thread::is_usual() && !is_idle() && runs_in_one());
            step_up(true);
            assert_eq!(own_place(), None);
            assert_eq!(sched_getaffinity(None).unwrap(), all);
            assert!(processor_of(std::process::id()).is_some());
            // Above all thread numbers of the kernel.
            assert_eq!(processor_of(u32::MAX), None);
        })
        .unwrap()
        .join()
        .unwrap();
    }
}
