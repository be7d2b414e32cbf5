//! The processors that the calling thread may run on, and its scheduling policy.
//!
//! Threads and processes that it starts inherit both, and keep them: whoever starts some that stay, or that are to work
//! side by side, does so `anywhere`.

#![allow(unsafe_code)]

use std::cell::Cell;
use std::io;
use std::sync::OnceLock;
use std::thread;

use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};

/// The processors that threads of this process may run on; not set as long as none moves.
static ANYWHERE: OnceLock<CpuSet> = OnceLock::new();

thread_local! {
    /// The one processor that this thread moved to.
    static PLACE: Cell<Option<usize>> = const { Cell::new(None) };
    static IDLE: Cell<bool> = const { Cell::new(false) };
}

/// Lets threads of this process move and become idle. False if it may not: it has another policy than the usual, or
/// could not leave the idle one again (CAP_SYS_NICE or RLIMIT_NICE).
pub fn allow_moves() -> bool {
    let tried = thread::spawn(|| {
        // SAFETY: plain call on the calling thread.
        let policy = unsafe { libc::sched_getscheduler(0) };
        policy == libc::SCHED_OTHER
            && set_policy(libc::SCHED_IDLE).is_ok()
            && set_policy(libc::SCHED_OTHER).is_ok()
    });
    if !tried.join().unwrap_or(false) {
        return false;
    }
    match sched_getaffinity(None) {
        Ok(all) => {
            ANYWHERE.get_or_init(|| all);
            true
        }
        Err(_) => false,
    }
}

fn set_policy(policy: libc::c_int) -> io::Result<()> {
    // SAFETY: `sched_param` is plain numbers, and all zero is what policies without priorities ask for.
    let none: libc::sched_param = unsafe { std::mem::zeroed() };
    // SAFETY: 0 is the calling thread, and the parameters live during the call.
    match unsafe { libc::sched_setscheduler(0, policy, &raw const none) } {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

/// Returns the processor that the calling thread moved to.
pub fn place() -> Option<usize> {
    PLACE.get()
}

/// Moves the calling thread to a processor, or lets it run anywhere again. False if it cannot, and stays.
pub fn move_to(place: Option<usize>) -> bool {
    if PLACE.get() == place {
        return true;
    }
    let Some(all) = ANYWHERE.get() else {
        return false;
    };
    let there = match place {
        None => *all,
        Some(place) if place < CpuSet::MAX_CPU && all.is_set(place) => {
            let mut one = CpuSet::new();
            one.set(place);
            one
        }
        Some(_) => return false,
    };
    let moved = sched_setaffinity(None, &there).is_ok();
    if moved {
        PLACE.set(place);
    }
    moved
}

/// Returns true if the calling thread runs only when nobody else wants its processor.
pub fn is_idle() -> bool {
    IDLE.get()
}

/// Makes the calling thread idle, or usual again. False if it cannot.
pub fn set_idle(idle: bool) -> bool {
    if IDLE.get() == idle {
        return true;
    }
    let policy = match idle {
        true => libc::SCHED_IDLE,
        false => libc::SCHED_OTHER,
    };
    let set = ANYWHERE.get().is_some() && set_policy(policy).is_ok();
    if set {
        IDLE.set(idle);
    }
    set
}

/// Calls `work` as a usual thread that may run anywhere, and moves back.
pub fn anywhere<T>(work: impl FnOnce() -> T) -> T {
    struct Back(Option<usize>);
    impl Drop for Back {
        fn drop(&mut self) {
            move_to(self.0);
        }
    }
    let Some(all) = ANYWHERE.get() else {
        return work();
    };
    let _back = Back(PLACE.get());
    // It may have inherited what it does not know of. What is refused leaves it slower, not wrong.
    IDLE.set(false);
    PLACE.set(None);
    let _ = set_policy(libc::SCHED_OTHER);
    let _ = sched_setaffinity(None, all);
    work()
}

/// Returns the number of times that the calling thread has lost its processor to another one.
pub fn times_preempted() -> libc::c_long {
    // SAFETY: `rusage` is plain numbers, and the call fills it in.
    unsafe {
        let mut usage: libc::rusage = std::mem::zeroed();
        libc::getrusage(libc::RUSAGE_THREAD, &raw mut usage);
        usage.ru_nivcsw
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Policy and number of processors of the calling thread.
    fn state() -> (libc::c_int, u32) {
        // SAFETY: plain call on the calling thread.
        let policy = unsafe { libc::sched_getscheduler(0) };
        (policy, sched_getaffinity(None).unwrap().count())
    }

    #[test]
    fn a_thread_moves_and_becomes_idle_and_what_it_starts_anywhere_does_not() {
        thread::spawn(|| {
            let usual = state();
            if !allow_moves() {
                eprintln!("NOT TESTED: needs root: this process may not leave the idle policy");
                return;
            }
            let all = sched_getaffinity(None).unwrap();
            let first = (0..CpuSet::MAX_CPU).find(|&at| all.is_set(at));
            assert!(move_to(first) && set_idle(true) && is_idle());
            assert_eq!(state(), (libc::SCHED_IDLE, 1));
            // Whoever is started in between does not know what it inherits.
            let started = thread::spawn(|| anywhere(|| thread::spawn(state).join().unwrap()));
            assert_eq!(started.join().unwrap(), usual);
            assert_eq!(anywhere(state), usual);
            assert_eq!(
                (place(), is_idle(), state()),
                (first, false, (libc::SCHED_OTHER, 1))
            );
            assert!(move_to(None));
            assert_eq!(state(), usual);
            assert!(!move_to(Some(usize::MAX)));
        })
        .join()
        .unwrap();
    }
}
