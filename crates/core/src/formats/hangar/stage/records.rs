//! The complete list of records of a commit or of the staging area, in order of key, and the difference between two.

use std::cmp::Ordering;

use crate::formats::hangar::commit::{records, unpack};
use crate::formats::hangar::repository::Repository;
use npyfs_base::error::{Error, ErrorKind, Result};

/// The longest key or value of a record.
const LONGEST: usize = 4096;

/// The largest size in bytes of a list, which is also the limit for reading a commit.
const LARGEST: usize = 1 << 30;

/// Records in the form that a commit stores: `key value`, with `$` in between (`parsing.py`).
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct CommitRecords {
    text: Vec<u8>,
}

impl CommitRecords {
    /// Appends a record; keys must come in order.
    pub fn push(&mut self, key: &[u8], value: &[u8]) -> Result<()> {
        let breaks = |b: &u8| b.is_ascii_whitespace() || *b == b'$';
        if key.is_empty() || key.iter().chain(value).any(breaks) {
            let shown: String = String::from_utf8_lossy(key).chars().take(200).collect();
            return Err(Error::damaged(format!("no record of Hangar: {shown:?}")));
        }
        if self.text.len() + key.len() + value.len() + 2 > LARGEST {
            let why = format!("more than {LARGEST} bytes of records");
            return Err(Error::new(ErrorKind::TooLarge, why));
        }
        if !self.text.is_empty() {
            self.text.push(b'$');
        }
        self.text.extend_from_slice(key);
        self.text.push(b' ');
        self.text.extend_from_slice(value);
        Ok(())
    }

    /// Returns the records of a commit.
    pub fn of_commit(repository: &Repository, digest: &str) -> Result<Self> {
        let about = |e: Error| e.about(format!("commit {digest}"));
        let frame = repository.refs.value(format!("{digest}:ref").as_bytes())?;
        let frame = frame.ok_or_else(|| about(Error::damaged("has no records in ref.lmdb")))?;
        let text = unpack(&frame).map_err(about)?;
        Ok(Self { text })
    }

    /// Returns the records of the staging area.
    pub fn staged(repository: &Repository) -> Result<Self> {
        let mut staged = Self::default();
        repository.stage.rows(b"", LONGEST, |rows| {
            rows.iter()
                .try_for_each(|(key, value)| staged.push(key, value))
        })?;
        Ok(staged)
    }

    /// Returns the text in the form that a commit stores.
    pub fn text(&self) -> &[u8] {
        &self.text
    }

    /// Returns each record as it stands in the text.
    pub fn lines(&self) -> impl Iterator<Item = &[u8]> {
        records(&self.text)
    }

    /// Returns the keys and values.
    pub fn iter(&self) -> impl Iterator<Item = (&[u8], &[u8])> {
        self.lines().map(|line| {
            let at = line.iter().position(|&b| b == b' ').unwrap_or(line.len());
            (&line[..at], line.get(at + 1..).unwrap_or_default())
        })
    }
}

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

    #[test]
    fn what_would_break_the_list_is_refused() {
        let mut list = CommitRecords::default();
        list.push(b"f:a:#1", b"0=1").unwrap();
        list.push(b"f:a:#2", b"0=2").unwrap();
        assert_eq!(list.text(), b"f:a:#1 0=1$f:a:#2 0=2");
        let rows: Vec<_> = list.iter().collect();
        assert_eq!(rows[1], (&b"f:a:#2"[..], &b"0=2"[..]));
        for key in [&b""[..], b"a b", b"a$b", b"a\nb"] {
            assert!(list.push(key, b"0=1").is_err());
        }
        assert_eq!(CommitRecords::default().iter().count(), 0);
    }

    type Map = BTreeMap<Vec<u8>, Vec<u8>>;

    fn list_of(map: &Map) -> CommitRecords {
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
            let (before, after) = (list_of(&old), list_of(&new));
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
