//! Where the threads of a session run, and when they sleep.
//!
//! Waking a thread takes longer than answering a short request. So a thread that has answered looks out for the next
//! request before it sleeps (`busy_poll`). Or, where the daemon may (root), one program that asks alone is served on the
//! processor that it runs on. The scheduler does not know that the two never run at once, and puts them on two processors,
//! where each has to wake the other's from its sleep; on one, changing places takes a tenth.
//!
//! When requests have come from one thread for a while, one thread of the session moves there and waits for them. It answers
//! under the idle policy: a processor where nobody else runs counts as free then, so that the scheduler lets the program
//! go on right there. It keeps that policy for requests that take a moment only. Whoever else asks ends it, and there is a
//! pause when others want the processor: an idle thread waits for them, a few milliseconds at most.
//!
//! The kernel wakes the thread that has waited longest. So the others are in reserve meanwhile, and one of them looks whether
//! it is needed. They also are where all operations are short, as where samples are staged: one thread that goes on from one
//! request to the next is not woken for each.
//!
//! Only about speed: `-o scheduling=off` does without. `benches/README.md` says what each of the two is worth.

mod busy_poll;
mod processor;

use std::cell::Cell;
use std::io;
use std::mem::{replace, take};
use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Condvar, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::{Duration, Instant};

use serde_json::{Value as Json, json};

use crate::io::thread::times_preempted;
use busy_poll::BusyPoll;

/// Requests in a row from one thread that are worth moving (with 4 no difference), and after which is looked again where it
/// runs: that takes 20 us.
const SETTLED: u64 = 16;
const LOOK_AGAIN: u64 = 64;

/// Answers in a row that did not lead to the program going on here, or work of an idle thread that takes longer, as somebody
/// else wanted the processor; and the requests that are served anywhere then: twice as many each time, half as many after
/// `LOOK_AGAIN` without. With `LONGEST_PAUSE` at once staging samples, where storing one takes long now and then, took 1.5 times as
/// long.
const IN_VAIN: u32 = 8;
const LONG: Duration = Duration::from_micros(300);
const FIRST_PAUSE: u64 = 32;
const LONGEST_PAUSE: u64 = 2048;

/// How often a thread in reserve looks: what takes longer holds up others for that long. Every millisecond it drove the
/// program away. After `QUIET` looks without a new request nobody is in reserve.
const TICK: Duration = Duration::from_millis(5);
const QUIET: u32 = 10;

/// No place.
const NOWHERE: usize = usize::MAX;

thread_local! {
    /// When this thread of the session began what it does under the idle policy.
    static SINCE: Cell<Option<Instant>> = const { Cell::new(None) };
    /// How often it has lost its processor.
    static PREEMPTED: Cell<libc::c_long> = const { Cell::new(0) };
    /// It is among those that wait for requests, or in reserve.
    static IS_COUNTED: Cell<bool> = const { Cell::new(false) };
}

/// The scheduling of one session. All methods may be called from any of its threads.
pub(super) struct Scheduling {
    is_on: bool,
    may_move: bool,
    /// Operations are short: one thread waits for requests whoever they come from.
    quick: bool,
    poll: OnceLock<BusyPoll>,
    /// Where one program runs and is served; `NOWHERE`: all threads wait for requests, and run anywhere.
    place: AtomicUsize,
    state: Mutex<State>,
    /// Whoever is in reserve is to look whether it is needed.
    called: Condvar,
    /// Answers after which the program went on where the thread that answered runs.
    answers: AtomicU64,
}

#[derive(Default)]
struct State {
    /// The thread that the last request came from, and requests in a row from it.
    caller: u32,
    row: u64,
    /// How many of them there are when it is looked where that thread runs.
    look: u64,
    /// Answers in a row after which it went on elsewhere.
    in_vain: u32,
    /// Requests of the last pause, or fewer.
    pause: u64,
    /// Threads that wait for a request, and all requests so far.
    waiting: usize,
    requests: u64,
    /// One of those in reserve looks; or there were no requests for a while, and all wait for one.
    is_watched: bool,
    is_quiet: bool,
    /// One of them is to wait for requests.
    is_called: bool,
}

impl Scheduling {
    /// Creates the scheduling of a session; that of the kernel alone, if it is not `is_on`.
    pub(super) fn new(quick: bool, is_on: bool) -> Self {
        Self {
            is_on,
            quick: quick && is_on,
            may_move: is_on && processor::allow_moves(),
            poll: OnceLock::new(),
            place: AtomicUsize::new(NOWHERE),
            state: Mutex::default(),
            called: Condvar::new(),
            answers: AtomicU64::new(0),
        }
    }

    /// Sets the descriptor that requests can be polled from.
    pub(super) fn set_device(&self, device: io::Result<OwnedFd>) -> io::Result<()> {
        if self.is_on {
            let _ = self.poll.set(BusyPoll::new(device?));
        }
        Ok(())
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn place(&self) -> Option<usize> {
        Some(self.place.load(Ordering::Relaxed)).filter(|&place| place != NOWHERE)
    }

    /// Returns true if all threads but one are to be in reserve.
    fn one_waits(&self) -> bool {
        self.quick || self.place().is_some()
    }

    /// The calling thread has a request of the thread `caller`; 0: nobody waits for the answer.
    pub(super) fn begin(&self, caller: u32) {
        if !self.may_move && !self.quick {
            return;
        }
        SINCE.set(processor::is_idle().then(Instant::now));
        let mut state = self.state();
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
                let place = processor::of(caller).unwrap_or(NOWHERE);
                self.place.store(place, Ordering::Relaxed);
            }
        }
        drop(state);
        self.follow();
    }

    /// Answers may be given anywhere: several are wanted at once.
    pub(super) fn apart(&self) {
        if self.may_move {
            self.part(&mut self.state(), SETTLED);
        }
    }

    /// No program is served where it runs, until so many requests have come from one.
    fn part(&self, state: &mut State, requests: u64) {
        (state.row, state.look, state.in_vain) = (0, requests, 0);
        if self.place.swap(NOWHERE, Ordering::Relaxed) != NOWHERE {
            self.called.notify_all();
        }
    }

    /// No program is served where it runs for a while.
    fn pause(&self, state: &mut State) {
        state.pause = (state.pause * 2).clamp(FIRST_PAUSE, LONGEST_PAUSE);
        self.part(state, state.pause);
    }

    /// Moves the calling thread to where it is to run. Whether that is where a program runs.
    fn follow(&self) -> bool {
        let there = self.place().is_some_and(processor::move_to);
        if !there {
            processor::step_up(true);
        }
        there
    }

    /// Prepares for work of the calling thread that may take more than a moment.
    pub(super) fn step_up(&self) {
        processor::step_up(false);
    }

    /// Prepares for work that several threads share: the calling one runs anywhere.
    pub(super) fn spread(&self) {
        processor::step_up(true);
    }

    /// Prepares for work that may take long: another thread waits for requests meanwhile.
    pub(super) fn call_another(&self) {
        self.spread();
        if self.one_waits() {
            let mut state = self.state();
            state.is_called = state.waiting == 0;
            self.called.notify_one();
        }
    }

    /// Gives an answer, and the processor to who waits for it.
    pub(super) fn answer<T>(&self, reply: impl FnOnce() -> T) -> T {
        let since = SINCE.take().filter(|_| processor::is_idle());
        if since.is_some_and(|since| since.elapsed() > LONG) {
            self.pause(&mut self.state());
        }
        if !self.may_move || !self.follow() || !processor::step_back() {
            return reply();
        }
        let answer = reply();
        let preempted = times_preempted();
        let went_on = PREEMPTED.replace(preempted) != preempted;
        self.answers
            .fetch_add(u64::from(went_on), Ordering::Relaxed);
        let mut state = self.state();
        state.in_vain = if went_on { 0 } else { state.in_vain + 1 };
        if state.in_vain == 1 {
            // It may have gone elsewhere.
            state.look = state.row;
        }
        if state.in_vain > IN_VAIN {
            self.pause(&mut state);
            processor::step_up(true);
        }
        answer
    }

    /// After an answer: looks out for the next request. `is_busy`: others need the processor.
    pub(super) fn look_out(&self, is_busy: impl FnOnce() -> bool) {
        let is_here = self.place().is_some() && self.place() == processor::place();
        if let Some(poll) = self.poll.get()
            && !is_here
            && !is_busy()
        {
            poll.look_out();
        }
    }

    /// The request of the calling thread is over: it waits until it is needed.
    pub(super) fn end(&self) {
        if !self.may_move && !self.quick {
            return;
        }
        let mut state = self.state();
        if state.waiting > 0 && self.one_waits() {
            processor::step_up(false);
            let (mut seen, mut quiet) = (0, 0);
            while self.one_waits() && !state.is_quiet {
                // Another processor that wakes up for a moment takes the program there.
                self.follow();
                if replace(&mut state.is_watched, true) {
                    let woken = self.called.wait(state);
                    state = woken.unwrap_or_else(PoisonError::into_inner);
                } else {
                    let woken = self.called.wait_timeout(state, TICK);
                    (state, _) = woken.unwrap_or_else(PoisonError::into_inner);
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
            // Somebody else is to look.
            self.called.notify_one();
        }
        IS_COUNTED.set(true);
        state.waiting += 1;
    }

    /// Returns how often a program was served where it runs, or why it is not.
    pub(super) fn report(&self) -> Json {
        let refused = "not permitted: needs CAP_SYS_NICE and the usual scheduling policy";
        match (self.is_on, self.may_move) {
            (true, true) => json!({"answers": self.answers.load(Ordering::Relaxed)}),
            (true, false) => refused.into(),
            (false, _) => "switched off".into(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::io::thread;
    use std::sync::Arc;
    use std::sync::mpsc::{Receiver, Sender, channel};

    /// In a thread of its own: it moves.
    fn session(work: impl FnOnce(Arc<Scheduling>) + Send + 'static) {
        let scheduling = Arc::new(Scheduling::new(false, true));
        if !scheduling.may_move {
            eprintln!("NOT TESTED: needs root: this process may not leave the idle policy");
            return;
        }
        let session = thread::spawn("test", || work(scheduling)).unwrap();
        session.join().unwrap();
    }

    /// A request of this process begins. Whether it is served where that runs.
    fn begin(scheduling: &Scheduling) -> bool {
        scheduling.begin(std::process::id());
        processor::place().is_some()
    }

    #[test]
    fn one_caller_in_a_row_is_followed_and_a_second_ends_it() {
        session(|scheduling| {
            assert!((0..=SETTLED).all(|_| !begin(&scheduling)));
            assert!(begin(&scheduling));
            // Nobody waits for this one.
            scheduling.begin(0);
            assert!(processor::place().is_some());
            scheduling.answer(|| assert!(processor::is_idle()));
            scheduling.step_up();
            assert!(processor::place().is_some() && !processor::is_idle());
            // Several work on this one.
            scheduling.spread();
            assert!(processor::place().is_none());
            scheduling.answer(|| assert!(processor::place().is_some() && processor::is_idle()));
            scheduling.begin(1);
            assert_eq!((processor::is_idle(), processor::place()), (false, None));
            scheduling.answer(|| assert!(!processor::is_idle()));
        });
    }

    #[test]
    fn a_caller_that_is_gone_is_not_followed() {
        session(|scheduling| {
            for _ in 0..100 {
                scheduling.begin(u32::MAX);
                assert_eq!(processor::place(), None);
            }
        });
    }

    #[test]
    fn answers_in_vain_end_in_a_pause() {
        session(|scheduling| {
            // This process waits for none of them: after the first it is looked again where it is.
            while processor::place().is_none() {
                begin(&scheduling);
            }
            scheduling.answer(|| ());
            let (look, row) = {
                let state = scheduling.state();
                (state.look, state.row)
            };
            assert_eq!(look, row);
            while scheduling.state().look != FIRST_PAUSE {
                begin(&scheduling);
                scheduling.answer(|| ());
            }
            assert_eq!((processor::is_idle(), processor::place()), (false, None));
            assert!((0..SETTLED * 2).all(|_| !begin(&scheduling)));
        });
    }

    #[test]
    fn who_takes_long_under_the_idle_policy_leaves_it() {
        session(|scheduling| {
            while !processor::is_idle() {
                begin(&scheduling);
                scheduling.answer(|| ());
            }
            assert!(begin(&scheduling));
            std::thread::sleep(LONG * 2);
            scheduling.answer(|| assert!(!processor::is_idle()));
            assert_eq!(scheduling.state().look, FIRST_PAUSE);
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
            // Requests: each a sender of the answer, and whether to take long.
            let (requests, receiver) = channel::<Request>();
            let receiver = Arc::new(Mutex::new(receiver));
            let work = |own: &Scheduling, requests: &Mutex<Receiver<Request>>| {
                loop {
                    let next = requests.lock().unwrap().recv();
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
            // Once each has had a request, all but one are in reserve: the same one answers.
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
            // Nobody stays in reserve when there are no requests any more.
            drop(requests);
            threads.into_iter().for_each(|t| t.join().unwrap());
        }
    }
}
