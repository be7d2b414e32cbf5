//! Starts of strings and segments, as stored.
//!
//! Arkouda writes one start per entry and no end of the last (`src/HDF5Msg.chpl` lines 1014 to 1408); in every file of
//! a set they begin at 0. They are never held in memory: one pass checks them and finds the widest gap, and windows are
//! read as needed. The result of a pass is kept in a `OnceResult`, which remembers a failure, too.

use std::sync::Arc;

use npyfs_base::error::{Error, ErrorKind, Result};
use npyfs_io::content::Content;
use npyfs_io::rows::{Converted, STEP, read_window, words};
use parking_lot::Mutex;

/// Returns numbers with `base` added to each.
pub(super) fn rebased(starts: Arc<dyn Content>, base: u64) -> Arc<dyn Content> {
    if base == 0 {
        return starts;
    }
    let base = base.cast_signed();
    Arc::new(Converted::new(starts, 8, 8, move |from, to| {
        for (number, to) in words(from).zip(to.as_chunks_mut::<8>().0) {
            *to = number.wrapping_add(base).to_le_bytes();
        }
    }))
}

/// The rule for valid starts.
#[derive(Clone, Copy, Debug)]
pub(super) struct Rule {
    /// The number of values.
    pub values: u64,
    /// Whether every entry has at least one value, as strings have their zero byte.
    pub strict: bool,
}

/// Checks starts in one pass; returns the largest number of values of an entry.
pub(super) fn check(starts: &dyn Content, rule: Rule) -> Result<u64> {
    let limit = i64::try_from(rule.values).map_err(|_| Error::damaged("too many values"))?;
    let rows = starts.len() / 8;
    let least_gap = i64::from(rule.strict);
    let mut widest = 0;
    let mut before: Option<i64> = None;
    let mut buf = vec![0; STEP];
    let mut row = 0;
    while row < rows {
        let window = read_window(starts, row * 8, &mut buf)?;
        // For the very first start any predecessor is valid.
        let first = words(window).next().unwrap_or(0);
        let mut last = before.unwrap_or(first.wrapping_sub(least_gap));
        let (mut low, mut high, mut least, mut most) = (i64::MAX, i64::MIN, i64::MAX, 0);
        for start in words(window) {
            // The difference of invalid numbers may wrap: then one of them is out of bounds.
            let gap = start.wrapping_sub(last);
            (low, high) = (low.min(start), high.max(start));
            (least, most) = (least.min(gap), most.max(gap));
            last = start;
        }
        if low < 0 || high > limit || least < least_gap {
            return Err(complain(window, row, before, rule));
        }
        widest = widest.max(most);
        before = Some(last);
        row += window.len() as u64 / 8;
    }
    if let Some(last) = before {
        let gap = limit - last;
        if rule.strict && gap < 1 {
            let why = format!("segment {} is {last}, there are {limit} values", rows - 1);
            return Err(Error::damaged(why));
        }
        widest = widest.max(gap);
    }
    Ok(widest.unsigned_abs())
}

/// Finds the first start in a window that violates a rule.
fn complain(window: &[u8], row: u64, mut before: Option<i64>, rule: Rule) -> Error {
    let limit = rule.values.cast_signed();
    for (start, row) in words(window).zip(row..) {
        if start < 0 || start > limit {
            let why = format!("segment {row} is {start}, there are {limit} values");
            return Error::damaged(why);
        }
        if let Some(before) = before {
            if start < before {
                let why = format!("segment {row} is {start}, the one before it {before}");
                return Error::damaged(why);
            }
            if rule.strict && start == before {
                let why = format!(
                    "segments {} and {row} are both {start}: no room for the end of a string",
                    row - 1
                );
                return Error::damaged(why);
            }
        }
        before = Some(start);
    }
    Error::damaged("segments that contradict each other")
}

/// The outcome of a pass. Other threads wait while it runs.
pub(super) struct OnceResult<T>(Mutex<Option<Result<T>>>);

impl<T> Default for OnceResult<T> {
    fn default() -> Self {
        Self(Mutex::default())
    }
}

impl<T: Clone> OnceResult<T> {
    /// Returns the outcome; makes the pass if there is none yet. A failure because the files changed is not remembered.
    pub(super) fn get(&self, take: impl FnOnce() -> Result<T>) -> Result<T> {
        let mut known = self.0.lock();
        if let Some(outcome) = &*known {
            return outcome.clone();
        }
        let outcome = take();
        let lasting = match &outcome {
            Ok(_) => true,
            Err(e) => e.kind == ErrorKind::Damaged,
        };
        if lasting {
            *known = Some(outcome.clone());
        }
        outcome
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use npyfs_io::content::InMemory;

    fn content(starts: &[i64]) -> InMemory {
        InMemory(starts.iter().flat_map(|n| n.to_le_bytes()).collect())
    }

    fn checked(starts: &[i64], values: u64, strict: bool) -> std::result::Result<u64, String> {
        check(&content(starts), Rule { values, strict }).map_err(|e| e.message)
    }

    #[test]
    fn starts_in_order_give_the_widest_entry() {
        assert_eq!(checked(&[0, 2, 7], 8, true), Ok(5));
        assert_eq!(checked(&[0, 2, 3], 9, true), Ok(6));
        assert_eq!(checked(&[0, 0, 3, 3], 3, false), Ok(3));
        assert_eq!(checked(&[], 5, true), Ok(0));
    }

    #[test]
    fn what_is_wrong_is_named() {
        let says = |starts: &[i64], strict| checked(starts, 9, strict).unwrap_err();
        assert_eq!(
            says(&[0, 5, 4], false),
            "segment 2 is 4, the one before it 5"
        );
        assert_eq!(says(&[0, 10], false), "segment 1 is 10, there are 9 values");
        assert_eq!(says(&[-1, 3], false), "segment 0 is -1, there are 9 values");
        assert_eq!(
            says(&[0, i64::MIN], false).split(' ').next(),
            Some("segment")
        );
        assert_eq!(
            says(&[i64::MAX, i64::MIN], true).split(' ').next(),
            Some("segment")
        );
        assert!(says(&[0, 3, 3], true).starts_with("segments 1 and 2 are both 3"));
        assert_eq!(says(&[0, 9], true), "segment 1 is 9, there are 9 values");
    }

    #[test]
    fn an_offence_far_behind_is_found() {
        let mut starts: Vec<i64> = (0..300_000).collect();
        assert_eq!(checked(&starts, 300_000, true), Ok(1));
        starts[262_144] = 5;
        let says = checked(&starts, 300_000, true).unwrap_err();
        assert_eq!(says, "segment 262144 is 5, the one before it 262143");
    }
}
