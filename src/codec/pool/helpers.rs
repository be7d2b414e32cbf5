//! Threads that help with one chunk at a time.
//!
//! Waking one takes as long as some chunks take to decode. So helpers are called when a chunk is about to be wanted, look
//! out for work for a moment, and go back to sleep. Only those that are running at that moment are given work: one that
//! waits for a processor would hold up the reader. They are for one reader who waits: where there are several, or the
//! processors are wanted for something else, helpers rest.

use std::sync::atomic::{AtomicU32, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError, TryLockError};
use std::time::{Duration, Instant};

use rayon_core::{ThreadPool, ThreadPoolBuilder, Yield};

use crate::io::thread::{self, processor_time};
use crate::tuning::Tuning;

/// The age of the last sign of life of a helper that is running.
const FRESH: Duration = Duration::from_micros(20);

/// The helpers of one mount.
#[derive(Debug)]
pub(super) struct Helpers(Arc<Inner>);

/// All times are in nanoseconds since `began`.
#[derive(Debug)]
struct Inner {
    began: Instant,
    /// Started when first called; `None` if that failed.
    pool: OnceLock<Option<ThreadPool>>,
    /// Held while there is work.
    turn: Mutex<()>,
    /// Helpers that were called and have not gone back to sleep.
    called: AtomicUsize,
    /// When each of them last looked out, and until when they do.
    seen: Box<[AtomicU64]>,
    until: AtomicU64,
    /// When it was last looked whether threads wait for processors, and how long they had by then.
    looked: AtomicU64,
    waited: AtomicU64,
    /// Until when they rest, and how long they will once they lose a processor.
    rest: AtomicU64,
    pause: AtomicU64,
    /// Chunks in a row without that.
    well: AtomicU32,
}

impl Helpers {
    /// Creates so many helpers; none is started yet.
    pub(super) fn new(helpers: usize) -> Self {
        Self(Arc::new(Inner {
            began: Instant::now(),
            pool: OnceLock::new(),
            turn: Mutex::default(),
            called: AtomicUsize::new(0),
            seen: (0..helpers).map(|_| AtomicU64::new(0)).collect(),
            until: AtomicU64::new(0),
            looked: AtomicU64::new(0),
            waited: AtomicU64::new(0),
            rest: AtomicU64::new(0),
            pause: AtomicU64::new(nanos(*Tuning::HELPER_PAUSES.start())),
            well: AtomicU32::new(0),
        }))
    }

    /// Returns the number of threads that can work at the same time, the caller included.
    pub(super) fn size(&self) -> usize {
        self.0.seen.len() + 1
    }

    /// Lets them look out: there will be work in a moment.
    pub(super) fn call(&self) {
        let inner = &self.0;
        if inner.rests() || !inner.has_room() {
            return;
        }
        inner.stay_awake();
        let Some(pool) = inner.pool.get_or_init(|| inner.start()) else {
            return;
        };
        let (nobody, all) = (0, inner.seen.len());
        let called = &inner.called;
        if called
            .compare_exchange(nobody, all, Ordering::AcqRel, Ordering::Acquire)
            .is_ok()
        {
            // Each of them: one that is awake already would take what others are called by.
            let inner = inner.clone();
            pool.spawn_broadcast(move |helper| inner.look_out(helper.index()));
        }
    }

    /// Lets helpers rest for a while: there are several readers.
    pub(super) fn rest(&self) {
        self.0.begin_rest(nanos(Tuning::HELPER_REST));
    }

    /// Calls `work` for each item, in the calling thread and at the same time in helpers that look out; returns when all is
    /// done. After an error no further item is begun; of several errors it is the first that came.
    pub(super) fn each<T: Send, E: Send>(
        &self,
        mut items: impl Iterator<Item = T> + Send,
        work: impl Fn(T) -> Result<(), E> + Sync,
    ) -> Result<(), E> {
        let inner = &self.0;
        let turn = match inner.turn.try_lock() {
            Ok(turn) => Some(turn),
            Err(TryLockError::Poisoned(after_a_panic)) => Some(after_a_panic.into_inner()),
            Err(TryLockError::WouldBlock) => None,
        };
        // Whoever is helped already, or is one of several, works alone.
        let (Some(_turn), Some(Some(pool)), false) = (turn, inner.pool.get(), inner.rests()) else {
            return items.try_for_each(work);
        };
        let items = Mutex::new(items);
        let outcome = Mutex::new(Ok(()));
        let one = || {
            if lock(&outcome).is_err() {
                return false;
            }
            // Not in the condition: nobody else gets one while it is held.
            let next = lock(&items).next();
            let Some(item) = next else { return false };
            if let Err(error) = work(item) {
                let mut outcome = lock(&outcome);
                if outcome.is_ok() {
                    *outcome = Err(error);
                }
            }
            true
        };
        let (mut asked, helping) = (0, AtomicUsize::new(0));
        pool.in_place_scope(|scope| {
            loop {
                // They may have been called a moment ago.
                while asked < inner.running() {
                    asked += 1;
                    helping.fetch_add(1, Ordering::Relaxed);
                    scope.spawn(|_| {
                        while one() {}
                        helping.fetch_sub(1, Ordering::Release);
                    });
                }
                if !one() {
                    break;
                }
            }
            // They are about to end; to be woken by them would take longer.
            let patience = Instant::now() + Tuning::HELPER_END;
            while helping.load(Ordering::Acquire) > 0 && Instant::now() < patience {
                std::hint::spin_loop();
            }
        });
        if asked > 0 {
            inner.helped();
        }
        outcome.into_inner().unwrap_or_else(PoisonError::into_inner)
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    // What panicked goes on to do so in the calling thread.
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Inner {
    fn start(&self) -> Option<ThreadPool> {
        let pool = ThreadPoolBuilder::new()
            .num_threads(self.seen.len())
            .spawn_handler(|helper| {
                let name = format!("helper-{}", helper.index());
                thread::spawn(&name, || helper.run()).map(drop)
            });
        // Without helpers the caller does all of it.
        (!self.seen.is_empty()).then(|| pool.build().ok()).flatten()
    }

    /// Returns true unless threads of the machine waited for a processor most of the time since it was last looked;
    /// otherwise helpers rest until the next time.
    fn has_room(&self) -> bool {
        let (now, pause) = (self.now(), nanos(Tuning::HELPER_REST));
        let looked = self.looked.load(Ordering::Relaxed);
        if looked > 0 && now < looked.saturating_add(pause) {
            return true;
        }
        self.looked.store(now, Ordering::Relaxed);
        let Some(waited) = waiting_time() else {
            return true;
        };
        let before = self.waited.swap(waited, Ordering::Relaxed);
        let has_room = looked == 0 || waited.saturating_sub(before) < (now - looked) / 2;
        if !has_room {
            self.begin_rest(pause);
        }
        has_room
    }

    /// Looks out for work, as a helper that was called. Whatever else is given to it meanwhile, it does in between.
    fn look_out(&self, helper: usize) {
        // How long it has not been running.
        let off = || self.now().saturating_sub(nanos(processor_time()));
        let mut before = off();
        while self.now() < self.until.load(Ordering::Acquire) {
            self.seen[helper].store(self.now(), Ordering::Release);
            if rayon_core::yield_now() != Some(Yield::Executed) {
                std::hint::spin_loop();
            }
            let after = off();
            if after.saturating_sub(before) > nanos(Tuning::HELPER_LOST) {
                self.lost();
                break;
            }
            before = after;
        }
        self.called.fetch_sub(1, Ordering::AcqRel);
    }

    /// Returns the number of helpers that look out at this moment.
    fn running(&self) -> usize {
        let fresh = self.now().saturating_sub(nanos(FRESH));
        let seen = self.seen.iter();
        seen.filter(|seen| seen.load(Ordering::Acquire) > fresh)
            .count()
    }

    /// Somebody else wanted the processor of a helper: they rest, longer each time.
    fn lost(&self) {
        self.well.store(0, Ordering::Relaxed);
        let pause = self.pause.load(Ordering::Relaxed);
        let next = pause.saturating_mul(2);
        self.pause.store(
            next.min(nanos(*Tuning::HELPER_PAUSES.end())),
            Ordering::Relaxed,
        );
        self.begin_rest(pause);
    }

    /// A chunk was shared.
    fn helped(&self) {
        if self.rests() {
            return;
        }
        self.stay_awake();
        if self.well.fetch_add(1, Ordering::Relaxed) == Tuning::HELPED_WELL {
            let shortest = nanos(*Tuning::HELPER_PAUSES.start());
            self.pause.store(shortest, Ordering::Relaxed);
        }
    }

    fn now(&self) -> u64 {
        nanos(self.began.elapsed())
    }

    fn stay_awake(&self) {
        let until = self.now().saturating_add(nanos(Tuning::HELPER_LOOK_OUT));
        self.until.fetch_max(until, Ordering::AcqRel);
    }

    fn begin_rest(&self, time: u64) {
        let end = self.now().saturating_add(time);
        self.rest.fetch_max(end, Ordering::AcqRel);
        self.until.store(0, Ordering::Release);
    }

    fn rests(&self) -> bool {
        self.now() < self.rest.load(Ordering::Acquire)
    }
}

/// Returns for how long threads of the machine that could run have waited for a processor, in nanoseconds since it was
/// started: the line `some` of /proc/pressure/cpu. `None` where the kernel does not count that.
fn waiting_time() -> Option<u64> {
    let pressure = std::fs::read_to_string("/proc/pressure/cpu").ok()?;
    let (_, total) = pressure.lines().next()?.rsplit_once("total=")?;
    total.parse::<u64>().ok()?.checked_mul(1000)
}

fn nanos(time: Duration) -> u64 {
    u64::try_from(time.as_nanos()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Doubles all numbers; says how many threads took part.
    fn double(helpers: &Helpers) -> usize {
        let mut numbers: Vec<_> = (0..100).collect();
        let threads = Mutex::new(std::collections::HashSet::new());
        let done: Result<(), ()> = helpers.each(numbers.iter_mut(), |n| {
            lock(&threads).insert(std::thread::current().id());
            std::thread::sleep(Duration::from_micros(100));
            *n *= 2;
            Ok(())
        });
        done.unwrap();
        assert!(numbers.iter().enumerate().all(|(i, n)| *n == 2 * i));
        threads.into_inner().unwrap().len()
    }

    /// Called again until so many take part: somebody else may have the processors, which is not looked up here.
    fn called(helpers: &Helpers, threads: usize) {
        helpers.0.looked.store(u64::MAX / 2, Ordering::Relaxed);
        for _ in 0..1000 {
            helpers.0.rest.store(0, Ordering::Release);
            helpers.call();
            if double(helpers) == threads {
                return;
            }
        }
        panic!("nobody helped");
    }

    #[test]
    fn each_item_is_done_once_whoever_helps() {
        assert_eq!(double(&Helpers::new(0)), 1);
        let helpers = Helpers::new(2);
        assert_eq!(helpers.size(), 3);
        assert_eq!(double(&helpers), 1, "nobody was called");
        called(&helpers, 3);
        helpers.0.begin_rest(nanos(Duration::from_secs(60)));
        helpers.call();
        assert_eq!(double(&helpers), 1, "all rest");
    }

    #[test]
    fn who_loses_a_processor_rests_longer_each_time_until_it_goes_well() {
        let helpers = Helpers::new(1);
        let pauses = Tuning::HELPER_PAUSES;
        let pause = || helpers.0.pause.load(Ordering::Relaxed);
        helpers.0.lost();
        assert!(helpers.0.rests());
        assert_eq!(pause(), nanos(*pauses.start() * 2));
        (0..30).for_each(|_| helpers.0.lost());
        assert_eq!(pause(), nanos(*pauses.end()));
        helpers.0.rest.store(0, Ordering::Release);
        (0..=Tuning::HELPED_WELL).for_each(|_| helpers.0.helped());
        assert_eq!(pause(), nanos(*pauses.start()));
    }

    #[test]
    fn nobody_is_called_while_threads_wait_for_processors() {
        let helpers = Helpers::new(1);
        let inner = &helpers.0;
        assert!(inner.has_room(), "nothing is known yet");
        let Some(waited) = waiting_time() else {
            println!("NOT TESTED: this kernel has no /proc/pressure/cpu");
            return;
        };
        // As if all that threads have waited since the machine was started had been in the moment since.
        inner.waited.store(0, Ordering::Relaxed);
        inner.looked.store(1, Ordering::Relaxed);
        std::thread::sleep(Tuning::HELPER_REST);
        helpers.call();
        assert!(inner.rests(), "{waited} ns waited in {} ns", inner.now());
    }

    #[test]
    fn an_error_ends_it_and_a_panic_goes_on_in_the_caller() {
        let helpers = Helpers::new(1);
        helpers.call();
        let begun = AtomicUsize::new(0);
        let failed = helpers.each(0..1000, |n| {
            begun.fetch_add(1, Ordering::Relaxed);
            if n == 3 { Err("three") } else { Ok(()) }
        });
        assert_eq!(failed, Err("three"));
        assert!(begun.into_inner() < 1000);
        let panics = || helpers.each(0..4, |_| -> Result<(), ()> { panic!("on purpose") });
        assert!(std::panic::catch_unwind(std::panic::AssertUnwindSafe(panics)).is_err());
        called(&helpers, 2);
    }

    #[test]
    fn who_is_helped_and_asks_for_help_works_alone() {
        let helpers = Helpers::new(1);
        helpers.call();
        let outer: Result<(), ()> = helpers.each(0..4, |_| helpers.each(0..4, |_| Ok(())));
        assert_eq!(outer, Ok(()));
    }
}
