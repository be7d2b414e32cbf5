//! The distinct values of text and how often each occurs, as far as they fit into a little memory.

use std::collections::HashMap;

/// Values that are told apart at most.
const MOST: usize = 10_000;

/// Bytes of all values together at most.
const ROOM: usize = 16 << 20;

/// Counts of values.
#[derive(Debug, Default)]
pub(super) struct Distinct {
    counts: HashMap<Box<[u8]>, u64>,
    bytes: usize,
    /// There are more values than are told apart.
    pub(super) has_more: bool,
}

impl Distinct {
    /// Counts a value, without the NULs at its end.
    pub(super) fn add(&mut self, value: &[u8], count: u64) {
        if let Some(counted) = self.counts.get_mut(value) {
            *counted = counted.saturating_add(count);
        } else if self.counts.len() < MOST && self.bytes + value.len() <= ROOM {
            self.bytes += value.len();
            self.counts.insert(value.into(), count);
        } else {
            self.has_more = true;
        }
    }

    /// Returns how many values are told apart.
    pub(super) fn len(&self) -> usize {
        self.counts.len()
    }

    /// Returns the values that occur most, the first `most` of them; of equals the smaller first.
    pub(super) fn most_frequent(&self, most: usize) -> Vec<(&[u8], u64)> {
        let mut all: Vec<(&[u8], u64)> = self
            .counts
            .iter()
            .map(|(value, &count)| (&**value, count))
            .collect();
        all.sort_unstable_by(|a, b| b.1.cmp(&a.1).then_with(|| a.0.cmp(b.0)));
        all.truncate(most);
        all
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_are_counted_up_to_a_limit() {
        let mut distinct = Distinct::default();
        for value in ["b", "a", "b", ""] {
            distinct.add(value.as_bytes(), 1);
        }
        assert_eq!((distinct.len(), distinct.has_more), (3, false));
        assert_eq!(distinct.most_frequent(2), [(&b"b"[..], 2), (&b""[..], 1)]);
        for number in 0..MOST {
            distinct.add(number.to_string().as_bytes(), 1);
        }
        distinct.add(b"a", u64::MAX);
        assert_eq!((distinct.len(), distinct.has_more), (MOST, true));
        assert_eq!(distinct.most_frequent(1), [(&b"a"[..], u64::MAX)]);
    }

    #[test]
    fn long_values_take_no_more_than_their_room() {
        let mut distinct = Distinct::default();
        for start in 0..40_u8 {
            distinct.add(&vec![start; 1 << 20], 1);
        }
        assert!(distinct.bytes <= ROOM && distinct.has_more && distinct.len() == 16);
    }
}
