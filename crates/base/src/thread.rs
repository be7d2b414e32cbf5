//! Starts threads and processes, and sets the scheduling policy of a thread.
//!
//! A new thread inherits the CPU affinity and the policy of its creator. A thread that serves requests may have changed
//! its own. So the daemon starts all threads and processes through this module, with the affinity and policy of the
//! process. `clippy.toml` refuses other ways.

#![allow(unsafe_code)]
#![allow(clippy::disallowed_methods)]

use std::cell::Cell;
use std::io;
use std::process::{Child, Command, Output};
use std::thread::{Builder, JoinHandle, Scope};
use std::time::Duration;

use rustix::process::{getpid, setpriority_process};
use rustix::thread::{CpuSet, gettid, sched_getaffinity, sched_setaffinity};
use rustix::time::{ClockId, clock_gettime};

/// Starts a thread with this name.
pub fn spawn<T: Send + 'static>(
    name: &str,
    work: impl FnOnce() -> T + Send + 'static,
) -> io::Result<JoinHandle<T>> {
    anywhere(|| Builder::new().name(name.to_owned()).spawn(work))
}

thread_local! {
    static BACKGROUND: Cell<bool> = const { Cell::new(false) };
}

/// The priority of background work: the lowest of the normal policy. A thread of the idle policy could be kept from
/// ever releasing a lock that others wait for.
const NICE: i32 = 19;

/// Starts a thread with this name for background work: it gets the processor time that others leave.
pub fn spawn_background(
    name: &str,
    work: impl FnOnce() + Send + 'static,
) -> io::Result<JoinHandle<()>> {
    spawn_behind(name, NICE, work)
}

/// Starts a thread with this name for background work, with a nice value from 1 to 19.
pub fn spawn_behind(
    name: &str,
    nice: i32,
    work: impl FnOnce() + Send + 'static,
) -> io::Result<JoinHandle<()>> {
    spawn(name, move || {
        BACKGROUND.set(true);
        // On Linux this affects the calling thread alone. If refused, the thread only slows others down.
        let _ = setpriority_process(Some(gettid()), nice);
        work();
    })
}

/// Returns true if the calling thread does background work: it asks no other threads for help.
pub fn is_background() -> bool {
    BACKGROUND.get()
}

/// Calls `work` as [`std::thread::scope`] does.
pub fn scope<'env, T>(work: impl for<'scope> FnOnce(&'scope Scope<'scope, 'env>) -> T) -> T {
    anywhere(|| std::thread::scope(work))
}

/// Starts a process.
pub fn start(command: &mut Command) -> io::Result<Child> {
    anywhere(|| command.spawn())
}

/// Runs a process to its end and returns its output.
pub fn output(command: &mut Command) -> io::Result<Output> {
    anywhere(|| command.output())
}

/// Calls `work`, which starts threads or processes, with the normal policy and the affinity of the process. A refused
/// change makes it slower, not wrong.
fn anywhere<T>(work: impl FnOnce() -> T) -> T {
    /// The affinity and policy to restore.
    struct SavedPlacement(Option<CpuSet>, bool);
    impl Drop for SavedPlacement {
        fn drop(&mut self) {
            if let Some(own) = &self.0 {
                let _ = sched_setaffinity(None, own);
            }
            if self.1 {
                let _ = set_idle(true);
            }
        }
    }
    let own = sched_getaffinity(None).ok();
    let all = sched_getaffinity(Some(getpid())).ok();
    let moved = own.filter(|own| all.is_some_and(|all| all != *own));
    let _back = SavedPlacement(moved, is_idle() && set_idle(false));
    if let (Some(_), Some(all)) = (moved, all) {
        let _ = sched_setaffinity(None, &all);
    }
    work()
}

/// Returns true if the calling thread has the idle policy.
fn is_idle() -> bool {
    // SAFETY: 0 names the calling thread, and no pointer is passed.
    unsafe { libc::sched_getscheduler(0) == libc::SCHED_IDLE }
}

/// Sets the calling thread to the idle policy, or to the normal one. Returns false if the system refuses.
pub fn set_idle(idle: bool) -> bool {
    let policy = match idle {
        true => libc::SCHED_IDLE,
        false => libc::SCHED_OTHER,
    };
    // SAFETY: `sched_param` is plain numbers, and all zero is what policies without priorities ask for.
    let none: libc::sched_param = unsafe { std::mem::zeroed() };
    // SAFETY: 0 is the calling thread, and the parameters live during the call.
    unsafe { libc::sched_setscheduler(0, policy, &raw const none) == 0 }
}

/// Returns true if the calling thread has the normal policy.
pub fn is_usual() -> bool {
    // SAFETY: 0 names the calling thread, and no pointer is passed.
    unsafe { libc::sched_getscheduler(0) == libc::SCHED_OTHER }
}

/// Returns how often the calling thread has been preempted.
pub fn times_preempted() -> libc::c_long {
    // SAFETY: `rusage` is plain numbers, and the call fills it in.
    unsafe {
        let mut usage: libc::rusage = std::mem::zeroed();
        libc::getrusage(libc::RUSAGE_THREAD, &raw mut usage);
        usage.ru_nivcsw
    }
}

/// Returns the processor time that the calling thread has used so far.
pub fn processor_time() -> Duration {
    let time = clock_gettime(ClockId::ThreadCPUTime);
    Duration::try_from(time).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::thread;

    /// The policy of the calling thread and its number of processors.
    fn state() -> (bool, u32) {
        (is_idle(), sched_getaffinity(None).unwrap().count())
    }

    #[test]
    fn what_is_started_inherits_nothing() {
        thread::spawn(|| {
            let usual = state();
            if !set_idle(true) || !set_idle(false) {
                eprintln!("NOT TESTED: needs root: this process may not leave the idle policy");
                return;
            }
            let all = sched_getaffinity(None).unwrap();
            let first = (0..CpuSet::MAX_CPU).find(|&at| all.is_set(at)).unwrap();
            let mut one = CpuSet::new();
            one.set(first);
            sched_setaffinity(None, &one).unwrap();
            assert!(set_idle(true));
            assert_eq!(state(), (true, 1));
            // A thread started in between inherits none of this.
            let started = thread::spawn(|| spawn("one", state).unwrap().join().unwrap());
            assert_eq!(started.join().unwrap(), usual);
            assert_eq!(scope(|scope| scope.spawn(state).join().unwrap()), usual);
            let nproc = output(&mut Command::new("nproc")).unwrap().stdout;
            assert_eq!(
                String::from_utf8(nproc).unwrap().trim(),
                usual.1.to_string()
            );
            assert_eq!(state(), (true, 1));
        })
        .join()
        .unwrap();
    }
}
