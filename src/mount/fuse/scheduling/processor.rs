//! The processor and the scheduling policy of the calling thread.

use std::cell::Cell;
use std::fs::File;
use std::io::Read;
use std::sync::OnceLock;

use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};

use npyfs_base::thread;

/// The processors that threads of this process may use; unset while moves are not allowed.
static ANYWHERE: OnceLock<CpuSet> = OnceLock::new();

thread_local! {
    /// The processor that this thread has moved to.
    static PLACE: Cell<Option<usize>> = const { Cell::new(None) };
    static IDLE: Cell<bool> = const { Cell::new(false) };
}

/// Allows threads of this process to move and to become idle. Returns false if that is not possible: the policy is not
/// the normal one, or the process could not return from the idle policy (CAP_SYS_NICE or RLIMIT_NICE).
pub(super) fn allow_moves() -> bool {
    let may = || thread::is_usual() && thread::set_idle(true) && thread::set_idle(false);
    let tried = thread::spawn("trial", may).is_ok_and(|trial| trial.join().unwrap_or(false));
    tried && sched_getaffinity(None).is_ok_and(|all| ANYWHERE.get_or_init(|| all).count() > 0)
}

/// Returns the processor that the calling thread moved to.
pub(super) fn place() -> Option<usize> {
    PLACE.get()
}

/// Moves the calling thread to a processor. Returns false on failure.
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

/// Returns true if the calling thread has the idle policy.
pub(super) fn is_idle() -> bool {
    IDLE.get()
}

/// Gives the calling thread the idle policy. Returns false on failure.
pub(super) fn step_back() -> bool {
    IDLE.set(IDLE.get() || thread::set_idle(true));
    IDLE.get()
}

/// Gives the calling thread the normal policy; with `leaves`, it may run on any processor again. `allow_moves` has
/// checked that this is allowed.
pub(super) fn step_up(leaves: bool) {
    if IDLE.take() {
        let _ = thread::set_idle(false);
    }
    if leaves && PLACE.take().is_some() {
        let _ = ANYWHERE.get().map(|all| sched_setaffinity(None, all));
    }
}

/// Returns the processor where a thread runs or last ran (proc_pid_stat(5), field 39), if this process may run there.
pub(super) fn of(thread: u32) -> Option<usize> {
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
            // Above all thread numbers of the kernel.
            assert_eq!(of(u32::MAX), None);
        })
        .unwrap()
        .join()
        .unwrap();
    }
}
