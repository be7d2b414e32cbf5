//! Starting threads and processes, and the scheduling policy of a thread.
//!
//! A thread hands on the processors that it may run on, and its policy. Whatever the daemon starts is started here, as the
//! main thread would start it: a thread that serves requests may have moved. `clippy.toml` refuses other ways.

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

/// Starts a thread of this name.
pub fn spawn<T: Send + 'static>(
    name: &str,
    work: impl FnOnce() -> T + Send + 'static,
) -> io::Result<JoinHandle<T>> {
    anywhere(|| Builder::new().name(name.to_owned()).spawn(work))
}

thread_local! {
    static BACKGROUND: Cell<bool> = const { Cell::new(false) };
}

/// The priority of work that nobody waits for: the lowest of usual threads. One of the idle policy might never give back what
/// others wait for.
const NICE: i32 = 19;

/// Starts a thread of this name for work that nobody waits for: it gets what processor time others leave.
pub fn spawn_background(
    name: &str,
    work: impl FnOnce() + Send + 'static,
) -> io::Result<JoinHandle<()>> {
    spawn_behind(name, NICE, work)
}

/// Starts a thread of this name for work that nobody waits for, with a priority of its own: 1 to 19, the lowest.
pub fn spawn_behind(
    name: &str,
    nice: i32,
    work: impl FnOnce() + Send + 'static,
) -> io::Result<JoinHandle<()>> {
    spawn(name, move || {
        BACKGROUND.set(true);
        // Of this thread alone, as Linux has it. Refused, it only is slower for others.
        let _ = setpriority_process(Some(gettid()), nice);
        work();
    })
}

/// Returns true if nobody waits for what the calling thread does: no other threads are asked to help it.
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

/// Runs a process to its end, and returns what it says.
pub fn output(command: &mut Command) -> io::Result<Output> {
    anywhere(|| command.output())
}

/// Calls `work`, which starts threads or processes, as a usual thread that may run wherever the process may. What is
/// refused leaves it slower, not wrong.
fn anywhere<T>(work: impl FnOnce() -> T) -> T {
    /// The processors that the thread had, and the policy.
    struct Back(Option<CpuSet>, bool);
    impl Drop for Back {
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
    let _back = Back(moved, is_idle() && set_idle(false));
    if let (Some(_), Some(all)) = (moved, all) {
        let _ = sched_setaffinity(None, &all);
    }
    work()
}

/// Returns true if the calling thread has the idle policy.
fn is_idle() -> bool {
    // SAFETY: plain call on the calling thread.
    unsafe { libc::sched_getscheduler(0) == libc::SCHED_IDLE }
}

/// Gives the calling thread the idle policy, or the usual one. False if it cannot.
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

/// Returns true if the calling thread has the usual policy.
pub fn is_usual() -> bool {
    // SAFETY: plain call on the calling thread.
    unsafe { libc::sched_getscheduler(0) == libc::SCHED_OTHER }
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

/// Returns the time for which the calling thread has been running so far.
pub fn processor_time() -> Duration {
    let time = clock_gettime(ClockId::ThreadCPUTime);
    Duration::try_from(time).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::thread;

    /// Policy and number of processors of the calling thread.
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
            // Whatever is started in between does not know what it inherits.
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
