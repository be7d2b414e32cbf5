//! The contents of a commit, or of the staging area: its records, sorted into columns.
//!
//! Source: Hangar 0.5.2 `records/commiting.py` and `parsing.py`. The values of `ref.lmdb` are Blosc frames.

use std::collections::BTreeMap;
use std::sync::Arc;

use memchr::{memchr, memrchr};
use serde_json::{Value as Json, json};

use super::column::{Builder, Column, Layout};
use npyfs_base::error::{Error, ErrorKind, Result};
use npyfs_codec::{FilterError, blosc};

/// The largest total size in bytes of the records of a commit.
const LARGEST: usize = 1 << 30;

/// The description of a commit: its author, time and message.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Spec {
    /// Nanoseconds since 1970.
    pub time: i64,
    /// The message.
    pub message: String,
    /// The name of the author.
    pub user: String,
    /// The address of the author.
    pub email: String,
}

impl Spec {
    /// Parses the JSON of a commit.
    pub fn parse(text: &[u8]) -> Result<Self> {
        let wrong = || Error::damaged("the description of the commit is not what Hangar writes");
        let json: Json = serde_json::from_slice(text).map_err(|_| wrong())?;
        let field = |name: &str| json.get(name).and_then(Json::as_str).map(str::to_owned);
        let seconds = json.get("commit_time").and_then(Json::as_f64);
        let seconds = seconds.filter(|s| s.is_finite()).ok_or_else(wrong)?;
        Ok(Self {
            // A cast from a float saturates; Python's clock has a precision of microseconds.
            time: ((seconds * 1e6).round() as i64).saturating_mul(1000),
            message: field("commit_message").ok_or_else(wrong)?,
            user: field("commit_user").ok_or_else(wrong)?,
            email: field("commit_email").ok_or_else(wrong)?,
        })
    }

    /// Returns the description as `info` shows it.
    pub fn json(&self) -> Json {
        json!({
            "message": self.message,
            "author": self.user,
            "email": self.email,
            "time": self.time as f64 / 1e9,
        })
    }
}

/// Returns the parents in the value of a commit's row: none, one, or master and dev of a merge.
pub fn parents(value: &[u8]) -> Vec<String> {
    String::from_utf8_lossy(value)
        .split(" << ")
        .filter(|parent| !parent.is_empty())
        .map(str::to_owned)
        .collect()
}

fn no_frame(why: FilterError) -> Error {
    Error::damaged(format!("not a Blosc frame: {why}"))
}

/// Returns the length of the plaintext of a value of `ref.lmdb`.
fn unpacked_len(frame: &[u8]) -> Result<usize> {
    let len = blosc::frame_len(frame).map_err(no_frame)?;
    if len > LARGEST {
        return Err(Error::new(
            ErrorKind::TooLarge,
            format!("{len} bytes of records, at most {LARGEST} are read"),
        ));
    }
    Ok(len)
}

/// Returns the plaintext of a value of `ref.lmdb`.
pub fn unpack(frame: &[u8]) -> Result<Vec<u8>> {
    blosc::decode(frame, unpacked_len(frame)?).map_err(no_frame)
}

/// Unpacks a value in parts, each of whole records.
pub fn unpack_parts(frame: &[u8], mut each: impl FnMut(Vec<u8>)) -> Result<()> {
    unpacked_len(frame)?;
    let mut part = Vec::new();
    for block in blosc::blocks(frame).map_err(no_frame)? {
        let block = block.map_err(no_frame)?;
        let end = memrchr(b'$', &block).map_or(0, |at| at + 1);
        part.extend_from_slice(&block[..end]);
        if end > 0 {
            each(std::mem::take(&mut part));
        }
        part.extend_from_slice(&block[end..]);
    }
    if !part.is_empty() {
        each(part);
    }
    Ok(())
}

/// Returns the records of a commit, each `key value`.
pub fn records(text: &[u8]) -> impl Iterator<Item = &[u8]> {
    let mut rest = text;
    std::iter::from_fn(move || {
        let end = memchr(b'$', rest).unwrap_or(rest.len());
        let (line, behind) = rest.split_at(end);
        rest = behind.get(1..).unwrap_or_default();
        (!line.is_empty() || !behind.is_empty()).then_some(line)
    })
    .filter(|line| !line.is_empty())
}

/// A state of the repository's data.
pub struct Commit {
    /// The digest `a=…`; empty for the staging area.
    pub digest: String,
    /// The digests of the parent commits.
    pub parents: Vec<String>,
    /// The author, time and message.
    pub spec: Spec,
    /// The columns by name, unescaped.
    pub columns: BTreeMap<Vec<u8>, Arc<Column>>,
    /// Records that belong to no column.
    pub notes: Vec<String>,
}

impl Commit {
    /// Returns the state of a branch without commits.
    pub fn none() -> Self {
        Self {
            digest: String::new(),
            parents: Vec::new(),
            spec: Spec::default(),
            columns: BTreeMap::new(),
            notes: Vec::new(),
        }
    }
}

/// Sorts records into columns.
#[derive(Default)]
pub struct Sorter {
    columns: BTreeMap<Prefix, Builder>,
    /// The column of the last sample; the samples of a column follow each other.
    current: Option<(Prefix, Builder)>,
    schemas: BTreeMap<Vec<u8>, (Layout, String)>,
    notes: Vec<String>,
}

/// Columns by name, and notes.
pub type SortedColumns = (BTreeMap<Vec<u8>, Column>, Vec<String>);

/// The prefix of the key of a sample: `f:<column>:` or `n:<column>:`.
type Prefix = Vec<u8>;

/// The largest number of notes on records.
const MOST_NOTES: usize = 100;

impl Sorter {
    /// Adds a row: `f:<column>:<sample>`, `n:<column>:<sample>:<subsample>` or `s:<column>:<layout>`, and a digest.
    pub fn add(&mut self, key: &[u8], value: &[u8]) {
        if let Some((prefix, builder)) = &mut self.current
            && let Some(below) = key.strip_prefix(&prefix[..])
        {
            return builder.add(below, value);
        }
        let (kind, rest) = key.split_at(key.len().min(2));
        let colon = rest.iter().position(|&b| b == b':');
        let Some((column, below)) = colon.map(|at| (&rest[..at], &rest[at + 1..])) else {
            return self.note(key);
        };
        match kind {
            b"f:" | b"n:" => {
                let prefix = [kind, column, b":"].concat();
                self.set_aside();
                let layout = if kind == b"f:" {
                    Layout::Flat
                } else {
                    Layout::Nested
                };
                let builder = self.columns.remove(&prefix);
                let mut builder = builder.unwrap_or_else(|| Builder::new(layout));
                builder.add(below, value);
                self.current = Some((prefix, builder));
            }
            b"s:" => {
                let layout = match below {
                    b"f" => Layout::Flat,
                    b"n" => Layout::Nested,
                    _ => return self.note(key),
                };
                let digest = String::from_utf8_lossy(value).into_owned();
                self.schemas.insert(column.to_vec(), (layout, digest));
            }
            _ => self.note(key),
        }
    }

    fn set_aside(&mut self) {
        if let Some((prefix, builder)) = self.current.take() {
            self.columns.insert(prefix, builder);
        }
    }

    fn note(&mut self, key: &[u8]) {
        if self.notes.len() < MOST_NOTES {
            let shown: String = String::from_utf8_lossy(key).chars().take(200).collect();
            self.notes
                .push(format!("a record that is not understood: {shown:?}"));
        }
    }

    /// Adds all records of a commit.
    pub fn add_all(&mut self, text: &[u8]) {
        for line in records(text) {
            let at = line.iter().position(u8::is_ascii_whitespace);
            match at {
                Some(at) => self.add(&line[..at], line[at..].trim_ascii()),
                None => self.note(line),
            }
        }
    }

    /// Returns the columns that have a schema, and notes on the other records.
    pub fn finish(mut self) -> SortedColumns {
        self.set_aside();
        let mut columns = BTreeMap::new();
        for (name, (layout, schema)) in std::mem::take(&mut self.schemas) {
            let kind: &[u8] = match layout {
                Layout::Flat => b"f:",
                Layout::Nested => b"n:",
            };
            let rows = self.columns.remove(&[kind, &name, b":"].concat());
            let rows = rows.unwrap_or_else(|| Builder::new(layout));
            columns.insert(name, rows.finish(schema));
        }
        for prefix in self.columns.into_keys().take(MOST_NOTES) {
            let shown = String::from_utf8_lossy(&prefix).into_owned();
            self.notes
                .push(format!("samples of a column without a schema: {shown:?}"));
        }
        (columns, self.notes)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn records_are_sorted_into_columns() {
        let hash = "0".repeat(40);
        let text = format!(
            "f:img:#1 0={hash}$f:lost:a 0={hash}$n:deep:a:b 2={hash}$s:deep:n 1=5$s:img:f 1=6$s:new:f 1=6$nonsense$"
        );
        let mut sorter = Sorter::default();
        sorter.add_all(text.as_bytes());
        let (columns, notes) = sorter.finish();
        let names: Vec<_> = columns.keys().map(|k| String::from_utf8_lossy(k)).collect();
        assert_eq!(names, ["deep", "img", "new"]);
        assert_eq!(columns[&b"img"[..]].key(0), b"#1");
        assert_eq!(columns[&b"deep"[..]].kind, b'2');
        assert_eq!(columns[&b"new"[..]].len(), 0);
        assert_eq!(notes.len(), 2, "{notes:?}");
    }

    #[test]
    fn the_description_of_a_commit() {
        let text = br#"{"commit_time":1795207110.236198,"commit_message":"m","commit_user":"u","commit_email":"e"}"#;
        let spec = Spec::parse(text).unwrap();
        assert_eq!(spec.time, 1_795_207_110_236_198_000);
        assert!(Spec::parse(b"{}").is_err());
        assert_eq!(parents(b"a=1 << a=2"), ["a=1", "a=2"]);
        assert!(parents(b"").is_empty());
    }

    #[test]
    fn records_come_in_parts_of_whole_records() {
        // A Blosc frame of blocks of 7 bytes, stored as they are.
        let text = b"a 1$bcdef 22$$long-record 333$x 4$rest";
        let len = u8::try_from(text.len()).unwrap();
        let mut frame = vec![2, 1, 2, 1, len, 0, 0, 0, 7, 0, 0, 0, len + 16, 0, 0, 0];
        frame.extend(text);
        let mut parts: Vec<Vec<u8>> = Vec::new();
        unpack_parts(&frame, |part| parts.push(part)).unwrap();
        assert_eq!(parts.concat(), unpack(&frame).unwrap());
        let whole: Vec<_> = parts.iter().flat_map(|part| records(part)).collect();
        assert_eq!(whole, records(text).collect::<Vec<_>>());
        assert_eq!(whole.len(), 5);
        assert!(parts.len() > 3);
        frame.pop();
        assert!(unpack_parts(&frame, |_| ()).is_err());
    }

    proptest! {
        #[test]
        fn any_text_is_sorted(text in "([fns]:[a-z:#0-9]{0,8} [0-9=a]{0,44}[$ ]){0,8}", rest in ".{0,30}") {
            let mut sorter = Sorter::default();
            sorter.add_all(text.as_bytes());
            sorter.add_all(rest.as_bytes());
            sorter.finish();
        }

        #[test]
        fn any_frame_ends_in_an_answer(frame in proptest::collection::vec(any::<u8>(), 0..100)) {
            let _ = unpack(&frame);
            let _ = unpack_parts(&frame, |_| ());
        }
    }
}
