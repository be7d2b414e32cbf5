//! The processor that the calling thread runs on, and whether it gives way to everybody else there.

use std::cell::Cell;
use std::sync::OnceLock;

use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};

use crate::io::thread as policy;

/// The processors that threads of this process may run on; not set as long as none moves.
static ANYWHERE: OnceLock<CpuSet> = OnceLock::new();

thread_local! {
    /// The one processor that this thread moved to.
    static PLACE: Cell<Option<usize>> = const { Cell::new(None) };
    static IDLE: Cell<bool> = const { Cell::new(false) };
}

/// Lets threads of this process move and become idle. False if it may not: it has another policy than the usual, or
/// could not leave the idle one again (CAP_SYS_NICE or RLIMIT_NICE).
pub(super) fn allow_moves() -> bool {
    let try_it = || policy::is_usual() && policy::set_idle(true) && policy::set_idle(false);
    let tried = policy::spawn("trial", try_it).map(|thread| thread.join().unwrap_or(false));
    let may = tried.unwrap_or(false);
    may && sched_getaffinity(None).is_ok_and(|all| {
        ANYWHERE.get_or_init(|| all);
        true
    })
}

/// Returns the processor that the calling thread moved to.
pub(super) fn place() -> Option<usize> {
    PLACE.get()
}

/// Moves the calling thread to a processor, or lets it run anywhere again. False if it cannot, and stays.
pub(super) fn move_to(place: Option<usize>) -> bool {
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
pub(super) fn is_idle() -> bool {
    IDLE.get()
}

/// Makes the calling thread idle, or usual again. False if it cannot.
pub(super) fn set_idle(idle: bool) -> bool {
    if IDLE.get() == idle {
        return true;
    }
    let set = ANYWHERE.get().is_some() && policy::set_idle(idle);
    if set {
        IDLE.set(idle);
    }
    set
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::thread;

    #[test]
    fn a_thread_moves_becomes_idle_and_comes_back() {
        thread::spawn(|| {
            if !allow_moves() {
                eprintln!("NOT TESTED: needs root: this process may not leave the idle policy");
                return;
            }
            let all = sched_getaffinity(None).unwrap();
            let first = (0..CpuSet::MAX_CPU).find(|&at| all.is_set(at));
            assert!(move_to(first) && set_idle(true) && is_idle());
            assert_eq!((place(), policy::is_usual()), (first, false));
            assert_eq!(sched_getaffinity(None).unwrap().count(), 1);
            assert!(set_idle(false) && move_to(None) && policy::is_usual());
            assert_eq!(sched_getaffinity(None).unwrap(), all);
            assert!(!move_to(Some(usize::MAX)));
        })
        .join()
        .unwrap();
    }
}
