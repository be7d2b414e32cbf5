//! The complete list of records of a commit or of the staging area, in order of key.

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

#[cfg(test)]
mod tests {
    use super::*;

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
}
