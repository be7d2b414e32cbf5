//! The processor that the calling thread runs on, and whether it gives way to everybody else there.

use std::cell::Cell;
use std::fs::File;
use std::io::Read;
use std::sync::OnceLock;

use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};

use crate::io::thread;

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
    let may = || thread::is_usual() && thread::set_idle(true) && thread::set_idle(false);
    let tried = thread::spawn("trial", may).is_ok_and(|trial| trial.join().unwrap_or(false));
    tried && sched_getaffinity(None).is_ok_and(|all| ANYWHERE.get_or_init(|| all).count() > 0)
}

/// Returns the processor that the calling thread moved to.
pub(super) fn place() -> Option<usize> {
    PLACE.get()
}

/// Moves the calling thread to a processor. False if it cannot.
pub(super) fn move_to(place: usize) -> bool {
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

/// Returns true if the calling thread runs only when nobody else wants its processor.
pub(super) fn is_idle() -> bool {
    IDLE.get()
}

/// Makes the calling thread idle. False if it cannot.
pub(super) fn step_back() -> bool {
    IDLE.set(IDLE.get() || thread::set_idle(true));
    IDLE.get()
}

/// Makes the calling thread a usual one, which runs anywhere again if it `leaves`. That it may was tried before.
pub(super) fn step_up(leaves: bool) {
    if IDLE.take() {
        let _ = thread::set_idle(false);
    }
    if leaves && PLACE.take().is_some() {
        let _ = ANYWHERE.get().map(|all| sched_setaffinity(None, all));
    }
}

/// Returns the processor where a thread runs or ran last (proc_pid_stat(5), field 39), if this process may run there.
pub(super) fn of(thread: u32) -> Option<usize> {
    let all = ANYWHERE.get()?;
    // The name of a thread has 64 bytes at most; the whole is made at once, and shorter.
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
    use super::*;

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
            assert_eq!((place(), thread::is_usual()), (Some(first), false));
            assert!(runs_in_one());
            step_up(false);
            assert!(thread::is_usual() && !is_idle() && runs_in_one());
            step_up(true);
            assert_eq!(place(), None);
            assert_eq!(sched_getaffinity(None).unwrap(), all);
            assert!(of(std::process::id()).is_some());
            // Above what the kernel numbers.
            assert_eq!(of(u32::MAX), None);
        })
        .unwrap()
        .join()
        .unwrap();
    }
}
