//! The thread that makes copies, and checks copies that other processes made.
//!
//! While other threads read through the mount, it works in turns: a stretch without a pause, then a longer rest.

use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::time::{Duration, Instant};

use super::{Job, Reads, Shared};
use npyfs_io::content::Content;
use npyfs_io::kept::{About, KeptCopy, NotKept, fill};
use npyfs_io::provenance::Provenance;

/// The time after a read for which the mount counts as being read.
const READING: Duration = Duration::from_millis(50);

/// The working time before a rest. Threads that share a chunk are delayed by any thread that runs in between, and the
/// delay lasts a little longer than the work, so fewer and longer interruptions are better.
const WORK: Duration = Duration::from_millis(100);

/// The longest rest.
const LONGEST_REST: Duration = Duration::from_secs(1);

/// The delay before recently changed files are looked at again, and the number of attempts.
const SETTLING: (Duration, u32) = (Duration::from_millis(500), 20);

/// The number of blocks after which the thread checks that the store is still the version that it copies.
const LOOK: u64 = 64;

impl Shared {
    /// The loop of the thread.
    pub(super) fn work(&self) {
        loop {
            let mut state = self.state();
            while state.jobs.is_empty() && !state.over {
                state = self.wake.wait(state).unwrap_or_else(|e| e.into_inner());
            }
            if state.over {
                return;
            }
            let job = state.jobs.pop_front();
            drop(state);
            match job {
                Some(Job::Keep(reads)) => self.keep(&reads),
                Some(Job::Check(copy)) => self.check(&copy),
                None => {}
            }
        }
    }

    fn is_over(&self) -> bool {
        self.state().over
    }

    /// Rests if enough work was done since `since` and other threads are reading. Returns the time at which work begins
    /// again.
    fn rest(&self, since: Instant) -> Instant {
        if since.elapsed() < WORK {
            return since;
        }
        let last = Duration::from_millis(self.last_read.load(Relaxed));
        if self.begun.elapsed().saturating_sub(last) < READING {
            std::thread::sleep((since.elapsed() * self.rest).min(LONGEST_REST));
        }
        Instant::now()
    }

    fn check(&self, copy: &KeptCopy) {
        let (mut buf, mut at, mut since) = (Vec::new(), 0, Instant::now());
        loop {
            match copy.check_next(at, &mut buf) {
                Ok(Some(next)) => at = next,
                Ok(None) => break,
                Err(_) => {
                    self.drop_copy(copy);
                    break;
                }
            }
            if self.is_over() {
                return;
            }
            since = self.rest(since);
        }
        self.state().looked.remove(copy.key());
    }

    fn keep(&self, reads: &Reads) {
        let about = || format!("{}: {}", self.store, reads.path);
        // A copy is not worth network traffic: the bytes that readers fetched complete it, or readers go on handing
        // parts to it.
        if self.elsewhere && !reads.file.open().is_ok_and(|content| content.is_at_hand()) {
            return self.again(reads);
        }
        let outcome = self.copied(reads);
        // Another full read of the array tries again if there is no copy by then.
        reads.closed.store(matches!(outcome, Ok(true)), Relaxed);
        let _ = reads.making().take();
        match outcome {
            Ok(true) => {
                self.counters.kept.fetch_add(1, Relaxed);
                self.counters.kept_bytes.fetch_add(reads.len, Relaxed);
                self.context
                    .journal
                    .add(&format!("{}: kept, {} bytes", about(), reads.len));
            }
            Ok(false) => {}
            Err(why) => {
                let why = format!("{}: not kept: {why}", about());
                self.context.journal.add(&why);
                *self.refused.lock().unwrap_or_else(|e| e.into_inner()) = Some(why);
            }
        }
        self.again(reads);
    }

    /// Restarts the count of bytes read.
    fn again(&self, reads: &Reads) {
        reads.read.store(0, Relaxed);
        reads.wanted.store(false, Relaxed);
    }

    /// Returns true unless the store has changed. A remote version never changes, and no server is asked for a newer
    /// one for the sake of a copy.
    fn is_current(&self, reads: &Reads) -> bool {
        self.elsewhere || reads.file.is_current()
    }

    /// Returns the content of an array if its provenance is unchanged, and `None` otherwise.
    fn same(&self, reads: &Reads) -> Option<(Arc<dyn Content>, bool)> {
        if !self.is_current(reads) {
            return None;
        }
        let content = reads.file.open().ok()?;
        let mut provenance = Provenance::new();
        let told = content.tell_provenance(&mut provenance);
        let same = told && provenance.key() == reads.key;
        same.then(|| (content, provenance.is_settled()))
    }

    /// Makes a copy. Returns false if there is one already or the store changed.
    fn copied(&self, reads: &Reads) -> Result<bool, String> {
        let mut found = self.same(reads);
        for _ in 0..SETTLING.1 {
            if !matches!(found, Some((_, false))) {
                break;
            }
            std::thread::sleep(SETTLING.0);
            if self.is_over() {
                return Ok(false);
            }
            found = self.same(reads);
        }
        let Some((content, true)) = found else {
            return Ok(false);
        };
        let making = match reads.begin(&self.dir) {
            Ok(making) => making,
            Err(NotKept::Taken) => return Ok(false),
            Err(why) => return Err(why.to_string()),
        };
        let (mut since, mut blocks) = (Instant::now(), 0);
        let whole = fill(&making, &*content, |_| {
            since = self.rest(since);
            blocks += 1;
            !self.is_over() && (blocks % LOOK != 0 || self.is_current(reads))
        });
        if !whole.map_err(|e| e.message)? || self.same(reads).is_none() {
            return Ok(false);
        }
        let about = About {
            store: self.store.clone(),
            path: reads.path.clone(),
        };
        let copy = making.finish(about).map_err(|e| e.to_string())?;
        let checked = copy.checked().clone();
        self.state().checked.put(reads.key.clone(), checked);
        Ok(true)
    }
}
