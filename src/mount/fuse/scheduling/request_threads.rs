//! The threads that wait for the kernel's next request.
//!
//! Every request wakes a thread that sleeps in read(2). A program that writes one small file after another makes
//! several requests for each, and waking threads takes longer than answering. So where operations are short, or one
//! program is served where it runs (`affinity`), one thread waits for requests, awake between two of them (`busy_poll`), and the
//! others are in reserve. One of those is called for an operation that may take long, and for one that turns out to:
//! while there are requests, a steward looks every millisecond.
//!
//! Threads join with their first request. Assumes that a thread of the session ends only when the mount does.

use std::cell::RefCell;
use std::io;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use serde_json::Value as Json;

use super::affinity::{CpuAffinity, NOT_PERMITTED};
use crate::io::thread;

/// How often the steward looks. What takes longer holds up others for that long.
const TICK: Duration = Duration::from_millis(1);

/// `TICK` while one program is served where it runs: whoever wakes up disturbs that, and others are rarely there.
const NEAR_TICK: Duration = Duration::from_millis(5);

/// Looks without a new request, after which the steward sleeps.
const QUIET: u32 = 50;

/// The threads of a session. All methods may be called from any of them.
pub(super) struct RequestThreads {
    /// Operations are short: one thread waits for requests whoever they come from.
    quick: bool,
    affinity: Option<CpuAffinity>,
    state: Mutex<State>,
    /// Somebody in reserve is to wait for requests.
    called: Condvar,
    /// The first request in a while.
    begun: Condvar,
}

#[derive(Default)]
struct State {
    /// Threads of the threads that wait for a request, or will in a moment.
    waiting: usize,
    /// Threads in reserve, and how many of them are called.
    reserve: usize,
    called: usize,
    /// Requests so far.
    requests: u64,
    /// One thread waits for requests, not all.
    alone: bool,
    /// The steward is awake.
    watched: bool,
    /// The mount has ended.
    over: bool,
}

/// Tells the others when its thread, and so the mount, ends.
struct End(Arc<RequestThreads>);

impl Drop for End {
    fn drop(&mut self) {
        self.0.state().over = true;
        self.0.called.notify_all();
        self.0.begun.notify_all();
    }
}

thread_local! {
    static END: RefCell<Option<End>> = const { RefCell::new(None) };
}

impl RequestThreads {
    pub(super) fn new(quick: bool, affinity: Option<CpuAffinity>) -> io::Result<Arc<Self>> {
        let threads = Arc::new(Self {
            quick,
            affinity,
            state: Mutex::default(),
            called: Condvar::new(),
            begun: Condvar::new(),
        });
        let steward = threads.clone();
        thread::spawn("steward", move || steward.watch())?;
        Ok(threads)
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// This thread has a request of the thread `caller`.
    pub(super) fn begin(&self, caller: u32) {
        let affinity = self.affinity.as_ref();
        let alone = affinity.is_some_and(|affinity| affinity.request(caller)) || self.quick;
        let has_joined = END.with_borrow(Option::is_some);
        let mut state = self.state();
        if state.alone && !alone {
            state.waiting += state.reserve - state.called;
            state.called = state.reserve;
            self.called.notify_all();
        }
        state.alone = alone;
        if has_joined {
            state.waiting = state.waiting.saturating_sub(1);
        }
        state.requests = state.requests.wrapping_add(1);
        if alone && !state.watched {
            state.watched = true;
            self.begun.notify_one();
        }
    }

    /// Gives an answer that is waited for.
    pub(super) fn answer<T>(&self, reply: impl FnOnce() -> T) -> T {
        match &self.affinity {
            Some(affinity) => affinity.answer(reply),
            None => reply(),
        }
    }

    /// How often a program was served where it runs, or why it is not.
    pub(super) fn report(&self) -> Json {
        match &self.affinity {
            Some(affinity) => affinity.report(),
            None => NOT_PERMITTED.into(),
        }
    }

    /// Several answers are wanted at once.
    pub(super) fn apart(&self) {
        if let Some(affinity) = &self.affinity {
            affinity.apart();
        }
    }

    /// Returns true if this thread serves a program where it runs.
    pub(super) fn is_here(&self) -> bool {
        self.affinity.as_ref().is_some_and(CpuAffinity::is_here)
    }

    /// Its answer may take long.
    pub(super) fn call_another(&self) {
        self.spread();
        self.call(&mut self.state());
    }

    /// Its answer may take more than a moment.
    pub(super) fn step_up(&self) {
        if let Some(affinity) = &self.affinity {
            affinity.step_up();
        }
    }

    /// Its answer is work for several.
    pub(super) fn spread(&self) {
        if let Some(affinity) = &self.affinity {
            affinity.spread();
        }
    }

    fn call(&self, state: &mut State) {
        if state.waiting == 0 && state.reserve > state.called {
            state.called += 1;
            state.waiting += 1;
            self.called.notify_one();
        }
    }

    /// The request of this thread is answered: waits until it is needed. Whether it is the one that waits for requests
    /// all the time.
    pub(super) fn rest(self: &Arc<Self>) -> bool {
        END.with_borrow_mut(|end| {
            end.get_or_insert_with(|| End(self.clone()));
        });
        let stays = |state: &State| state.waiting == 0 || !state.alone || state.over;
        let mut state = self.state();
        if !stays(&state) {
            drop(state);
            self.spread();
            state = self.state();
        }
        if stays(&state) {
            state.waiting += 1;
            return state.alone;
        }
        state.reserve += 1;
        let idle = |state: &mut State| state.called == 0 && !state.over;
        let waited = self.called.wait_while(state, idle);
        let mut state = waited.unwrap_or_else(PoisonError::into_inner);
        state.called = state.called.saturating_sub(1);
        state.reserve -= 1;
        false
    }

    /// The steward's work, as long as there is a mount.
    fn watch(&self) {
        let mut state = self.state();
        while !state.over {
            let idle = |state: &mut State| !state.watched && !state.over;
            let woken = self.begun.wait_while(state, idle);
            state = woken.unwrap_or_else(PoisonError::into_inner);
            let (mut seen, mut quiet) = (state.requests, 0);
            let mut tick = TICK;
            while quiet < QUIET && !state.over {
                let woken = self.begun.wait_timeout(state, tick);
                (state, _) = woken.unwrap_or_else(PoisonError::into_inner);
                // Another processor that wakes up for a moment takes the program there.
                let affinity = self.affinity.as_ref().is_some_and(CpuAffinity::follow);
                tick = if affinity { NEAR_TICK } else { TICK };
                if state.requests == seen {
                    self.call(&mut state);
                    quiet += 1;
                } else {
                    (seen, quiet) = (state.requests, 0);
                }
            }
            state.watched = false;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::mpsc::{Receiver, Sender, channel};
    use std::thread;

    /// A session: threads that take requests, each a sender of the answer and whether to take long.
    fn session(
        own: &Arc<RequestThreads>,
        threads: usize,
    ) -> (Sender<Request>, Vec<thread::JoinHandle<()>>) {
        let (sender, receiver) = channel::<Request>();
        let receiver = Arc::new(Mutex::new(receiver));
        let work = move |own: &Arc<RequestThreads>, requests: &Mutex<Receiver<Request>>| {
            loop {
                let next = requests.lock().unwrap().recv();
                let Ok((answer, wait)) = next else { return };
                own.begin(0);
                if let Some(wait) = wait {
                    let _ = wait.recv();
                }
                answer.send(thread::current().id()).unwrap();
                own.rest();
            }
        };
        let threads = (0..threads).map(|_| {
            let (own, receiver) = (own.clone(), receiver.clone());
            thread::spawn(move || work(&own, &receiver))
        });
        (sender, threads.collect())
    }

    type Request = (Sender<thread::ThreadId>, Option<Receiver<()>>);

    #[test]
    fn one_thread_waits_and_another_takes_over_when_it_is_held_up() {
        let own = RequestThreads::new(true, None).unwrap();
        let (requests, threads) = session(&own, 3);
        let ask = || {
            let (answer, answered) = channel();
            requests.send((answer, None)).unwrap();
            answered.recv().unwrap()
        };
        // Once each has had a request, all but one are in reserve.
        while own.state().reserve < 2 {
            ask();
        }
        let (go, wait) = channel();
        let (answer, answered) = channel();
        requests.send((answer, Some(wait))).unwrap();
        let other = ask();
        go.send(()).unwrap();
        assert_ne!(answered.recv().unwrap(), other);
        // The end of one is the end of all.
        drop(requests);
        threads.into_iter().for_each(|t| t.join().unwrap());
    }

    #[test]
    fn one_in_reserve_is_called_once() {
        let own = RequestThreads::new(true, None).unwrap();
        own.state().reserve = 2;
        own.call_another();
        own.call_another();
        let state = own.state();
        assert_eq!((state.waiting, state.called), (1, 1));
    }
}
