//! The difference between two lists of records.

use std::cmp::Ordering;

use super::records::CommitRecords;

/// A change of a record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RecordChange<'a> {
    /// The new value of an added record.
    Added(&'a [u8]),
    /// The new value of a changed record.
    Changed(&'a [u8]),
    /// The old value of a removed record.
    Removed(&'a [u8]),
}

/// Hands on each key whose values in `new` and `old` differ, in order.
pub fn difference<'a>(
    old: &'a CommitRecords,
    new: &'a CommitRecords,
    mut each: impl FnMut(&'a [u8], RecordChange<'a>),
) {
    let (mut olds, mut news) = (old.iter().peekable(), new.iter().peekable());
    loop {
        let order = match (olds.peek(), news.peek()) {
            (None, None) => return,
            (Some(_), None) => Ordering::Less,
            (None, Some(_)) => Ordering::Greater,
            (Some((old, _)), Some((new, _))) => old.cmp(new),
        };
        let old = olds.next_if(|_| order.is_le());
        let new = news.next_if(|_| order.is_ge());
        match (old, new) {
            (Some((key, value)), None) => each(key, RecordChange::Removed(value)),
            (None, Some((key, value))) => each(key, RecordChange::Added(value)),
            (Some((_, old)), Some((key, new))) if old != new => {
                each(key, RecordChange::Changed(new))
            }
            _ => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::BTreeMap;

    type Map = BTreeMap<Vec<u8>, Vec<u8>>;

    fn records(map: &Map) -> CommitRecords {
        let mut list = CommitRecords::default();
        for (key, value) in map {
            list.push(key, value).unwrap();
        }
        list
    }

    proptest! {
        #[test]
        fn the_old_list_and_the_difference_make_the_new_one(
            old: BTreeMap<u8, u8>, new: BTreeMap<u8, u8>,
        ) {
            let map = |m: BTreeMap<u8, u8>| -> Map {
                let text = |n: u8| format!("{:x}", n % 16).into_bytes();
                m.into_iter().map(|(k, v)| (text(k), text(v))).collect()
            };
            let (mut old, new) = (map(old), map(new));
            let (before, after) = (records(&old), records(&new));
            let mut changes = Vec::new();
            difference(&before, &after, |key, change| changes.push((key, change)));
            prop_assert!(changes.windows(2).all(|w| w[0].0 < w[1].0));
            for (key, change) in changes {
                match change {
                    RecordChange::Added(v) => prop_assert_eq!(old.insert(key.into(), v.into()), None),
                    RecordChange::Changed(v) => {
                        let before = old.insert(key.into(), v.into());
                        prop_assert!(before.is_some_and(|before| before != v));
                    }
                    RecordChange::Removed(v) => prop_assert_eq!(old.remove(key).unwrap(), v),
                }
            }
            prop_assert_eq!(old, new);
        }
    }
}
