//! Ranges of an object that could not be fetched a moment ago, although the request took long.
//!
//! A program waits for a read once, but the kernel asks twice: it asks again for pages that it failed to read ahead
//! when the program reaches them. The second request gets the answer of the first.
//!
//! An open of a file asks anew. It forgets the failures, and the failure of a request that was sent before the open
//! does not affect reads that follow the open: it is not noted, and a read that waited for the request sends its own. A
//! lookup is no open: a program that only looks at the mount does not prolong the reads of others.

use std::ops::Range;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard};
use std::time::{Duration, Instant};

use super::super::error::RemoteError;

/// The time for which a failure is remembered.
const COUNTS: Duration = Duration::from_secs(2);

/// A failure is recorded if it took at least one PART-th of the time limit: a request that fails sooner is retried.
const PART: u32 = 4;

/// The number of files that this process has opened for a reader.
static OPENS: AtomicU64 = AtomicU64::new(0);

/// Notes that a file was opened for a reader: failures of requests that were sent before no longer count.
pub fn opened() {
    OPENS.fetch_add(1, Ordering::Relaxed);
}

/// Returns the number of opens so far.
pub(in super::super) fn opens() -> u64 {
    OPENS.load(Ordering::Relaxed)
}

/// Blocks that could not be fetched.
struct Failure {
    blocks: Range<u64>,
    at: Instant,
    opens: u64,
    why: RemoteError,
}

impl Failure {
    fn counts(&self) -> bool {
        self.opens == opens() && self.at.elapsed() < COUNTS
    }
}

/// The recent failures of an object.
#[derive(Default)]
pub(super) struct Failures(Mutex<Vec<Failure>>);

impl Failures {
    fn list(&self) -> MutexGuard<'_, Vec<Failure>> {
        let mut list = self.0.lock().unwrap_or_else(|e| e.into_inner());
        list.retain(Failure::counts);
        list
    }

    /// Notes that a request failed. `opens` is the number of opens when it was sent, at `begun`.
    pub(super) fn add(
        &self,
        blocks: &Range<u64>,
        (opens, begun): (u64, Instant),
        timeout: Duration,
        why: &RemoteError,
    ) {
        if begun.elapsed() >= timeout / PART {
            self.list().push(Failure {
                blocks: blocks.clone(),
                at: Instant::now(),
                opens,
                why: why.clone(),
            });
        }
    }

    /// Removes the blocks that failed a moment ago from a list; returns the reason for one of them.
    pub(super) fn take_from(&self, absent: &mut Vec<u64>) -> Option<RemoteError> {
        let failures = self.list();
        let mut why = None;
        absent.retain(|block| {
            let failure = failures
                .iter()
                .find(|failure| failure.blocks.contains(block));
            if let Some(failure) = failure {
                why.get_or_insert_with(|| failure.why.clone());
            }
            failure.is_none()
        });
        why
    }
}

#[cfg(test)]
mod tests {
    use super::super::super::error::Cause;
    use super::*;

    /// One test: the number of opens is the process's.
    #[test]
    fn what_took_long_counts_for_a_moment_and_until_an_open() {
        let late = RemoteError::new(Cause::Late, "http://h/x", "no answer");
        let failures = Failures::default();
        let begun = Instant::now() - Duration::from_secs(10);
        let sent = (opens(), begun);
        failures.add(&(0..10), sent, Duration::from_secs(60), &late);
        let mut absent = vec![3, 4];
        assert!(failures.take_from(&mut absent).is_none() && absent == [3, 4]);
        failures.add(&(4..10), sent, Duration::from_secs(10), &late);
        let why = failures.take_from(&mut absent).unwrap();
        assert_eq!((why.message, &absent[..]), (late.message.clone(), &[3][..]));
        failures.list()[0].at -= COUNTS;
        absent.push(5);
        assert!(failures.take_from(&mut absent).is_none() && absent == [3, 5]);

        let add = |opens| failures.add(&(0..10), (opens, begun), Duration::from_secs(10), &late);
        add(opens());
        opened();
        assert!(failures.take_from(&mut vec![5]).is_none());
        // A request that was sent before the open fails after it.
        add(opens() - 1);
        assert!(failures.take_from(&mut vec![5]).is_none());
        add(opens());
        assert!(failures.take_from(&mut vec![5]).is_some());
    }
}
