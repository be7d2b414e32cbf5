//! Serving a program on the processor that it runs on.
//!
//! A program that opens one small file after another waits for each answer, and the thread that answers waits for each request.
//! The scheduler does not know that the two never run at once and puts them on two processors, where each has to wake
//! the other's from its sleep: in a virtual machine that takes 50 us and more, on one processor changing places takes 3.
//! So when requests have come from one thread for a while, the thread of the session that waits for requests moves to
//! where it runs. And it answers under the idle policy: a processor where nobody else runs counts as free then, so
//! that the scheduler lets the program go on right there. It keeps that policy for requests that take a moment only.
//!
//! Needs the right to leave the idle policy again, which root has. Does not do it while several programs ask, and makes
//! a pause when others turn out to want the processor: an idle thread waits for them, a few milliseconds at most.

use std::cell::Cell;
use std::fs::File;
use std::io::Read;
use std::ops::RangeInclusive;
use std::sync::atomic::{AtomicI32, AtomicU32, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use serde_json::{Value as Json, json};

use super::processor;
use crate::io::thread::times_preempted;

/// Requests in a row from one thread that are worth moving.
const SETTLED: u32 = 16;

/// Requests after which is looked again where it runs.
const LOOK_AGAIN: u32 = 64;

/// Answers in a row that did not lead to the program going on here, after which there is a pause.
const IN_VAIN: u32 = 8;

/// Work of an idle thread that takes longer: somebody else wanted the processor.
const LONG: Duration = Duration::from_micros(300);

/// How long the session is served the usual way then, in microseconds: twice as long each time, and the shortest time again
/// once it went well for so many requests.
const PAUSES: RangeInclusive<u64> = 1000..=1_000_000;
const WELL: u32 = 256;

/// Why a session does without.
pub(super) const NOT_PERMITTED: &str =
    "not permitted: needs CAP_SYS_NICE and the usual scheduling policy";

/// No processor.
const NOWHERE: i32 = -1;

thread_local! {
    /// When this thread of the session began what it does under the idle policy.
    static SINCE: Cell<Option<Instant>> = const { Cell::new(None) };
    /// How often it has lost its processor.
    static PREEMPTED: Cell<libc::c_long> = const { Cell::new(0) };
}

/// Where the threads of one session are to run. It is a guess about speed: races only make it worse.
#[derive(Debug)]
pub(super) struct CpuAffinity {
    /// The thread that the last request came from, and requests in a row from it.
    caller: AtomicU32,
    row: AtomicU32,
    /// Answers in a row after which it went on elsewhere.
    in_vain: AtomicU32,
    /// Where that thread runs, if it is to be served there.
    place: AtomicI32,
    started: Instant,
    /// When the pause ends, in microseconds from `started`, and how long the next will be.
    pause_end: AtomicU64,
    pause: AtomicU64,
    /// Answers after which the program went on here, and pauses.
    here: AtomicU64,
    pauses: AtomicU64,
}

impl CpuAffinity {
    /// `None` if this process may not.
    pub(super) fn new() -> Option<Self> {
        processor::allow_moves().then(|| Self {
            caller: AtomicU32::new(0),
            row: AtomicU32::new(0),
            in_vain: AtomicU32::new(0),
            place: AtomicI32::new(NOWHERE),
            started: Instant::now(),
            pause_end: AtomicU64::new(0),
            pause: AtomicU64::new(*PAUSES.start()),
            here: AtomicU64::new(0),
            pauses: AtomicU64::new(0),
        })
    }

    fn micros(&self) -> u64 {
        u64::try_from(self.started.elapsed().as_micros()).unwrap_or(u64::MAX)
    }

    /// This thread has a request of the thread `caller`; 0: nobody waits for the answer. Whether one program is to be
    /// served where it runs.
    pub(super) fn request(&self, caller: u32) -> bool {
        if processor::is_idle() {
            SINCE.set(Some(Instant::now()));
        }
        if caller != 0 {
            self.note(caller);
        }
        self.follow()
    }

    fn note(&self, caller: u32) {
        if self.caller.swap(caller, Ordering::Relaxed) != caller {
            self.apart();
            return;
        }
        let row = self.row.fetch_add(1, Ordering::Relaxed) + 1;
        let lost = self.in_vain.load(Ordering::Relaxed) > 0;
        if row >= SETTLED
            && (lost || (row - SETTLED).is_multiple_of(LOOK_AGAIN))
            && self.micros() >= self.pause_end.load(Ordering::Relaxed)
        {
            let place = processor_of(caller).unwrap_or(NOWHERE);
            self.place.store(place, Ordering::Relaxed);
            if row >= WELL {
                self.pause.store(*PAUSES.start(), Ordering::Relaxed);
            }
        }
    }

    /// Answers may be given anywhere: several are wanted at once.
    pub(super) fn apart(&self) {
        self.row.store(0, Ordering::Relaxed);
        self.place.store(NOWHERE, Ordering::Relaxed);
    }

    fn make_pause(&self) {
        let pause = self.pause.load(Ordering::Relaxed);
        let next = pause.saturating_mul(2).min(*PAUSES.end());
        self.pause.store(next, Ordering::Relaxed);
        self.pause_end
            .store(self.micros().saturating_add(pause), Ordering::Relaxed);
        self.pauses.fetch_add(1, Ordering::Relaxed);
        self.apart();
        self.step_up();
    }

    /// Returns what became of it so far.
    pub(super) fn report(&self) -> Json {
        json!({
            "answers": self.here.load(Ordering::Relaxed),
            "pauses": self.pauses.load(Ordering::Relaxed),
        })
    }

    /// Moves this thread to where it is to run. Whether that is where a program runs.
    pub(super) fn follow(&self) -> bool {
        let place = self.place.load(Ordering::Relaxed);
        if place == NOWHERE {
            self.step_up();
        }
        // A program may have processors of its own.
        if !processor::move_to(usize::try_from(place).ok()) {
            self.apart();
            return false;
        }
        place != NOWHERE
    }

    /// Returns true if this thread serves a program where it runs.
    pub(super) fn is_here(&self) -> bool {
        let place = usize::try_from(self.place.load(Ordering::Relaxed)).ok();
        place.is_some() && place == processor::place()
    }

    /// Prepares for work of this thread that may take more than a moment, or for its not serving for a while.
    pub(super) fn step_up(&self) {
        SINCE.set(None);
        // That it may was tried before.
        let _ = processor::set_idle(false);
    }

    /// Prepares for work of this thread that several share.
    pub(super) fn spread(&self) {
        self.step_up();
        // As before.
        let _ = processor::move_to(None);
    }

    /// The processor belongs to who waits for an answer. Whether this thread has the idle policy now.
    fn step_back(&self) -> bool {
        if !self.follow() {
            return false;
        }
        let since = match processor::is_idle() {
            true => SINCE.get(),
            false => None,
        };
        let since = since.unwrap_or_else(Instant::now);
        if !processor::set_idle(true) {
            return false;
        }
        if since.elapsed() > LONG {
            self.make_pause();
            return false;
        }
        true
    }

    /// Gives an answer, and the processor to who waits for it.
    pub(super) fn answer<T>(&self, reply: impl FnOnce() -> T) -> T {
        if !self.step_back() {
            self.step_up();
            return reply();
        }
        let answer = reply();
        let preempted = times_preempted();
        if PREEMPTED.replace(preempted) != preempted {
            self.in_vain.store(0, Ordering::Relaxed);
            self.here.fetch_add(1, Ordering::Relaxed);
        } else if self.in_vain.fetch_add(1, Ordering::Relaxed) >= IN_VAIN {
            self.in_vain.store(0, Ordering::Relaxed);
            self.make_pause();
        }
        answer
    }
}

/// Where a thread runs or ran last (proc_pid_stat(5), field 39).
fn processor_of(thread: u32) -> Option<i32> {
    // It fits, and comes whole.
    let mut stat = [0; 1024];
    let mut file = File::open(format!("/proc/{thread}/stat")).ok()?;
    let len = file.read(&mut stat).ok()?;
    let stat = String::from_utf8_lossy(stat.get(..len)?);
    let (_, fields) = stat.rsplit_once(')')?;
    fields.split_ascii_whitespace().nth(36)?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Arc;

    fn affinity() -> Option<Arc<CpuAffinity>> {
        let affinity = CpuAffinity::new();
        if affinity.is_none() {
            eprintln!("NOT TESTED: needs root: this process may not leave the idle policy");
        }
        affinity.map(Arc::new)
    }

    /// In a thread of its own: it moves.
    fn session(work: impl FnOnce(Arc<CpuAffinity>) + Send + 'static) {
        if let Some(affinity) = affinity() {
            std::thread::spawn(move || work(affinity)).join().unwrap();
        }
    }

    #[test]
    fn one_caller_in_a_row_is_followed_and_a_second_ends_it() {
        session(|affinity| {
            let here = std::process::id();
            assert!((0..SETTLED).all(|_| !affinity.request(here)));
            assert!(affinity.request(here) && affinity.is_here());
            assert!(processor::place().is_some());
            // Nobody waits for this one.
            assert!(affinity.request(0));
            affinity.answer(|| assert!(processor::is_idle()));
            // Nor for the end of this, which several work on.
            affinity.spread();
            assert!(!affinity.is_here() && !processor::is_idle());
            affinity.answer(|| assert!(affinity.is_here() && processor::is_idle()));
            assert!(!affinity.request(1) && !affinity.is_here());
            assert_eq!((processor::is_idle(), processor::place()), (false, None));
            affinity.answer(|| assert!(!processor::is_idle()));
        });
    }

    #[test]
    fn a_caller_that_is_gone_is_not_followed() {
        session(|affinity| {
            // Above what the kernel numbers.
            assert!((0..100).all(|_| !affinity.request(u32::MAX)));
        });
    }

    #[test]
    fn answers_in_vain_end_in_a_pause_and_pauses_grow() {
        session(|affinity| {
            let here = std::process::id();
            while affinity.pauses.load(Ordering::Relaxed) == 0 {
                affinity.request(here);
                affinity.answer(|| ());
            }
            assert!(!processor::is_idle() && !affinity.is_here());
            for _ in 0..30 {
                affinity.make_pause();
            }
            assert_eq!(affinity.pause.load(Ordering::Relaxed), *PAUSES.end());
            assert!((0..SETTLED * 2).all(|_| !affinity.request(here)));
        });
    }

    #[test]
    fn who_takes_long_under_the_idle_policy_leaves_it() {
        session(|affinity| {
            let here = std::process::id();
            while !affinity.request(here) || !affinity.step_back() {}
            assert!(affinity.request(here));
            std::thread::sleep(LONG * 2);
            affinity.answer(|| assert!(!processor::is_idle()));
            assert!(affinity.pauses.load(Ordering::Relaxed) > 0);
        });
    }
}
