//! Threads that help with one chunk at a time.
//!
//! Waking one takes as long as some chunks take to decode. So helpers are called when a chunk is about to be wanted, look
//! out for work for a moment, and go back to sleep. They are for one reader who waits: where there are several, each
//! has a processor of his own to use, and helpers rest.

use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError, TryLockError};
use std::time::{Duration, Instant};

use rayon_core::{ThreadPool, ThreadPoolBuilder, Yield};

use crate::io::thread::{self, times_preempted};

/// The time for which a helper looks out after it was called, or has helped.
const LOOK_OUT: Duration = Duration::from_micros(300);

/// The time for which a helper looks out after it has helped, if it was called as soon as that after it had helped
/// before.
const FREQUENT: Duration = Duration::from_micros(600);

/// The time for which none is called after several readers were there.
const REST: Duration = Duration::from_millis(10);

/// The time for which none is called after a helper had to leave its processor to somebody else.
const SHORT_REST: Duration = Duration::from_millis(5);

/// The time for which the caller looks out for helpers to be done, before it sleeps until they are.
const MOMENT: Duration = Duration::from_micros(500);

/// The expected length of a share of the work.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Effort {
    /// Not much more than waking a helper: for those who look out already.
    Short,
    /// Longer: helpers are woken.
    Long,
}

/// The helpers of one mount.
#[derive(Debug)]
pub(super) struct Helpers(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    helpers: usize,
    /// Started when first wanted; `None` if that failed.
    pool: OnceLock<Option<ThreadPool>>,
    /// Held while there is work.
    turn: Mutex<()>,
    /// Helpers that were called and have not gone back to sleep.
    called: AtomicUsize,
    /// Of these, those that look out.
    awake: AtomicUsize,
    began: Instant,
    /// Until when they look out, and rest; when the last work ended: nanoseconds since `began`.
    until: AtomicU64,
    rest: AtomicU64,
    ended: AtomicU64,
    /// The last call came soon after the work before.
    frequent: AtomicBool,
}

impl Helpers {
    /// Creates so many helpers; none is started yet.
    pub(super) fn new(helpers: usize) -> Self {
        Self(Arc::new(Inner {
            helpers,
            pool: OnceLock::new(),
            turn: Mutex::default(),
            called: AtomicUsize::new(0),
            awake: AtomicUsize::new(0),
            began: Instant::now(),
            until: AtomicU64::new(0),
            rest: AtomicU64::new(0),
            ended: AtomicU64::new(0),
            frequent: AtomicBool::new(false),
        }))
    }

    /// Returns the number of threads that can work at the same time, the caller included.
    pub(super) fn size(&self) -> usize {
        self.0.helpers + 1
    }

    /// Lets them look out: there will be work in a moment.
    pub(super) fn call(&self) {
        let inner = &self.0;
        if inner.rests() {
            return;
        }
        let since = inner
            .now()
            .saturating_sub(inner.ended.load(Ordering::Relaxed));
        inner
            .frequent
            .store(since < nanos(FREQUENT), Ordering::Relaxed);
        inner.stay_awake(LOOK_OUT);
        let Some(pool) = inner.pool() else { return };
        let (nobody, all) = (0, inner.helpers);
        let called = &inner.called;
        if called
            .compare_exchange(nobody, all, Ordering::AcqRel, Ordering::Acquire)
            .is_ok()
        {
            // Each of them: one that is awake already would take what others are called by.
            let inner = inner.clone();
            pool.spawn_broadcast(move |_| inner.look_out());
        }
    }

    /// Lets helpers rest for a while: there are several readers.
    pub(super) fn rest(&self) {
        self.0.begin_rest(REST);
    }

    /// Calls `work` for each item, in the calling thread and at the same time in helpers; returns when all is done.
    /// After an error no further item is begun; of several errors it is the first that came.
    pub(super) fn each<T: Send, E: Send>(
        &self,
        effort: Effort,
        items: impl Iterator<Item = T> + Send,
        work: impl Fn(T) -> Result<(), E> + Sync,
    ) -> Result<(), E> {
        let items = Mutex::new(items);
        let outcome = Mutex::new(Ok(()));
        self.0.together(effort, || {
            while lock(&outcome).is_ok() {
                // Not in the condition: nobody else gets one while it is held.
                let next = lock(&items).next();
                let Some(item) = next else { return };
                if let Err(error) = work(item) {
                    let mut outcome = lock(&outcome);
                    if outcome.is_ok() {
                        *outcome = Err(error);
                    }
                }
            }
        });
        outcome.into_inner().unwrap_or_else(PoisonError::into_inner)
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    // What panicked goes on to do so in the calling thread.
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Inner {
    fn pool(&self) -> Option<&ThreadPool> {
        let start = || {
            let pool = ThreadPoolBuilder::new()
                .num_threads(self.helpers)
                .spawn_handler(|helper| {
                    let name = format!("helper-{}", helper.index());
                    thread::spawn(&name, || helper.run()).map(drop)
                });
            // Without helpers the caller does all of it.
            (self.helpers > 0).then(|| pool.build().ok()).flatten()
        };
        self.pool.get_or_init(start).as_ref()
    }

    /// Runs `work` in the calling thread and in helpers, until each has returned.
    fn together(&self, effort: Effort, work: impl Fn() + Sync) {
        // Who is helped already, or is one of several, works alone.
        let turn = match self.turn.try_lock() {
            Ok(turn) => Some(turn),
            Err(TryLockError::Poisoned(after_a_panic)) => Some(after_a_panic.into_inner()),
            Err(TryLockError::WouldBlock) => None,
        };
        let (Some(_turn), Some(pool), false) = (turn, self.pool(), self.rests()) else {
            return work();
        };
        let helpers = match effort {
            Effort::Short => self.awake.load(Ordering::Acquire),
            Effort::Long => self.helpers,
        };
        if helpers == 0 {
            return work();
        }
        let done = AtomicUsize::new(0);
        pool.in_place_scope(|scope| {
            for _ in 0..helpers {
                scope.spawn(|_| {
                    work();
                    done.fetch_add(1, Ordering::Release);
                });
            }
            work();
            // They are about to end; to be woken by them would take longer.
            let patience = Instant::now() + MOMENT;
            while done.load(Ordering::Acquire) < helpers && Instant::now() < patience {
                std::hint::spin_loop();
            }
        });
        self.ended.store(self.now(), Ordering::Relaxed);
        let frequent = self.frequent.load(Ordering::Relaxed);
        self.stay_awake(if frequent { FREQUENT } else { LOOK_OUT });
    }

    /// Looks out for work, as a helper that was called. Whatever else is given to it meanwhile, it does in between.
    fn look_out(&self) {
        let preempted = times_preempted();
        self.awake.fetch_add(1, Ordering::AcqRel);
        while self.now() < self.until.load(Ordering::Acquire) {
            if rayon_core::yield_now() != Some(Yield::Executed) {
                std::hint::spin_loop();
            }
        }
        self.awake.fetch_sub(1, Ordering::AcqRel);
        self.called.fetch_sub(1, Ordering::AcqRel);
        if times_preempted() > preempted {
            self.begin_rest(SHORT_REST);
        }
    }

    fn now(&self) -> u64 {
        nanos(self.began.elapsed())
    }

    fn stay_awake(&self, time: Duration) {
        let until = self.now().saturating_add(nanos(time));
        self.until.fetch_max(until, Ordering::AcqRel);
    }

    fn begin_rest(&self, time: Duration) {
        let until = self.now().saturating_add(nanos(time));
        self.rest.fetch_max(until, Ordering::AcqRel);
        self.until.store(0, Ordering::Release);
    }

    fn rests(&self) -> bool {
        self.now() < self.rest.load(Ordering::Acquire)
    }
}

fn nanos(time: Duration) -> u64 {
    u64::try_from(time.as_nanos()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Doubles all numbers; says how many threads took part.
    fn double(helpers: &Helpers, effort: Effort) -> usize {
        let mut numbers: Vec<_> = (0..100).collect();
        let threads = Mutex::new(std::collections::HashSet::new());
        let done: Result<(), ()> = helpers.each(effort, numbers.iter_mut(), |n| {
            lock(&threads).insert(std::thread::current().id());
            std::thread::sleep(Duration::from_micros(100));
            *n *= 2;
            Ok(())
        });
        done.unwrap();
        assert!(numbers.iter().enumerate().all(|(i, n)| *n == 2 * i));
        threads.into_inner().unwrap().len()
    }

    #[test]
    fn each_item_is_done_once_whoever_helps() {
        assert_eq!(double(&Helpers::new(0), Effort::Long), 1);
        let helpers = Helpers::new(2);
        assert_eq!(helpers.size(), 3);
        assert_eq!(double(&helpers, Effort::Long), 3);
        // They look out for a moment yet, or not any more.
        assert!((1..=3).contains(&double(&helpers, Effort::Short)));
    }

    #[test]
    fn short_work_is_for_those_who_were_called_and_nobody_is_while_all_rest() {
        let helpers = Helpers::new(1);
        assert_eq!(double(&helpers, Effort::Short), 1);
        // Somebody else may have the processors: called again until there is help.
        let helped = (0..200).any(|_| {
            helpers.call();
            std::thread::sleep(Duration::from_micros(200));
            double(&helpers, Effort::Short) == 2
        });
        assert!(helped);
        let helpers = Helpers::new(2);
        // They look out until the end of the test.
        let far = nanos(Duration::from_secs(3600));
        helpers.0.until.store(far, Ordering::Release);
        helpers.call();
        assert!((0..1000).any(|_| double(&helpers, Effort::Short) == 3));
        helpers.0.begin_rest(Duration::from_secs(60));
        helpers.call();
        assert_eq!(double(&helpers, Effort::Long), 1);
    }

    #[test]
    fn an_error_ends_it_and_a_panic_goes_on_in_the_caller() {
        let helpers = Helpers::new(1);
        let begun = AtomicUsize::new(0);
        let failed = helpers.each(Effort::Long, 0..1000, |n| {
            begun.fetch_add(1, Ordering::Relaxed);
            if n == 3 { Err("three") } else { Ok(()) }
        });
        assert_eq!(failed, Err("three"));
        assert!(begun.into_inner() < 1000);
        let panics = || {
            helpers.each(Effort::Long, 0..4, |_| -> Result<(), ()> {
                panic!("on purpose")
            })
        };
        assert!(std::panic::catch_unwind(std::panic::AssertUnwindSafe(panics)).is_err());
        assert_eq!(double(&helpers, Effort::Long), 2);
    }

    #[test]
    fn who_is_helped_and_asks_for_help_works_alone() {
        let helpers = Helpers::new(1);
        let outer: Result<(), ()> = helpers.each(Effort::Long, 0..4, |_| {
            helpers.each(Effort::Long, 0..4, |_| Ok(()))
        });
        assert_eq!(outer, Ok(()));
    }
}
