//! Which object each file of a layer is, and what the layer was begun on: a file of records (`lines`).
//!
//! Of several records of an object the last counts. Members of an object that is not complete are forgotten
//! with the next change of the object.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;

use serde::{Deserialize, Serialize};

use super::lines::{self, Lines};
use super::storage::Storage;
use crate::error::{Error, Result};

/// The name of the file.
pub const NAME: &str = "index";

const FIRST_LINE: &[u8] = b"npyfs checkout 1\n";

/// A file of the layer.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Stored {
    /// Its number, which is its name.
    pub file: u64,
    /// When the object was written, in nanoseconds since 1970.
    pub time: i64,
    /// Its size in the mount, if it is shown as one `.npy` file and that is known: a listing need not open it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub size: Option<u64>,
}

/// What became of an object: a file, or nothing when it was deleted.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Record {
    /// The path of the object as the mount shows it.
    pub path: String,
    pub stored: Option<Stored>,
}

/// A member of an object that is not complete.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Kept {
    /// Its path inside the object, with suffix.
    pub name: String,
    /// The number of its file, which is as it was written.
    pub file: u64,
    /// When it was written, in nanoseconds since 1970.
    pub time: i64,
}

/// An object that lacks members, or whose members do not fit each other.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Incomplete {
    /// The path that the object is to have.
    pub object: String,
    /// Those that are there; if none, the object is forgotten.
    pub members: Vec<Kept>,
    pub missing: Vec<String>,
}

/// A file of the base as it was.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct BaseFile {
    /// Below the store; empty for a store that is one file.
    pub path: String,
    /// In bytes.
    pub size: u64,
    /// In nanoseconds since 1970.
    pub modified: i64,
}

/// What the changes that follow in the index were made on.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Begun {
    /// Committed layers below.
    pub commits: u64,
    /// When, in nanoseconds since 1970.
    pub time: i64,
    /// The files of the base; `None` if they were too many to be remembered.
    pub base: Option<Vec<BaseFile>>,
}

/// A line of the file.
#[derive(Debug, Serialize, Deserialize)]
#[serde(untagged)]
enum Line {
    Change(Record),
    Incomplete(Incomplete),
    Begun(Begun),
}

/// What an index says.
#[derive(Clone, Debug, Default)]
pub struct Changes {
    /// Every object that was changed; `None`: it was deleted.
    pub entries: BTreeMap<String, Option<Stored>>,
    /// What the layer was begun on first.
    pub begun: Option<Begun>,
    /// Objects that are not complete, by their path.
    pub incomplete: BTreeMap<String, Incomplete>,
    /// On how many commits each object was changed first.
    seen: BTreeMap<String, u64>,
    /// Commits below what is changed next.
    commits: u64,
}

impl Changes {
    /// What the index of the layer in `dir` says now.
    pub fn read(dir: &Path) -> Result<Self> {
        let lines: Vec<Line> = lines::read(&dir.join(NAME), FIRST_LINE)?;
        Ok(Self::of(lines))
    }

    fn of(lines: Vec<Line>) -> Self {
        let mut changes = Self::default();
        for line in lines {
            changes.take(line);
        }
        changes
    }

    /// Answers the numbers of members' files that nobody needs from then on.
    fn take(&mut self, line: Line) -> Vec<u64> {
        let files = |incomplete: Option<Incomplete>| {
            let members = incomplete.into_iter().flat_map(|object| object.members);
            members.map(|member| member.file).collect::<Vec<_>>()
        };
        match line {
            Line::Change(record) => {
                let commits = self.commits;
                self.seen.entry(record.path.clone()).or_insert(commits);
                let file = |stored: &Option<Stored>| stored.as_ref().map(|stored| stored.file);
                let (path, new) = (record.path.clone(), file(&record.stored));
                let old = self.entries.insert(record.path, record.stored);
                // A time that is set makes no other object.
                if new.is_none() || old.as_ref().and_then(file) != new {
                    return files(self.incomplete.remove(&path));
                }
            }
            Line::Incomplete(new) => {
                let mut old = files(self.incomplete.remove(&new.object));
                old.retain(|&file| new.members.iter().all(|member| member.file != file));
                if !new.members.is_empty() {
                    self.incomplete.insert(new.object.clone(), new);
                }
                return old;
            }
            Line::Begun(begun) => {
                self.commits = begun.commits;
                self.begun.get_or_insert(begun);
            }
        }
        Vec::new()
    }

    /// How many committed layers were below when the object at `path` was first changed here: what later
    /// ones made of it, nobody who wrote here has seen.
    pub fn seen(&self, path: &str) -> u64 {
        self.seen.get(path).copied().unwrap_or(self.commits)
    }
}

/// The index of one layer, open to be added to.
pub struct Index {
    lines: Lines<Line>,
    changes: Changes,
}

impl Index {
    /// Reads the index of the layer in `dir`. A new one is made, unless the layer has objects already.
    pub fn open(dir: &Path, storage: Arc<dyn Storage>, has_objects: bool) -> Result<Self> {
        let may_make = || {
            if has_objects {
                let message = "it is gone, but the files of the checkout are there";
                return Err(Error::damaged(message));
            }
            Ok(())
        };
        let (lines, records) = Lines::open(&dir.join(NAME), FIRST_LINE, storage, may_make)?;
        Ok(Self {
            lines,
            changes: Changes::of(records),
        })
    }

    /// Every object that was changed; `None`: it was deleted.
    pub fn entries(&self) -> &BTreeMap<String, Option<Stored>> {
        &self.changes.entries
    }

    /// Remembers what the changes from now on are made on.
    pub fn begin(&mut self, begun: Begun) -> Result<()> {
        if self.changes.begun.is_some() && self.changes.commits == begun.commits {
            return Ok(());
        }
        let line = Line::Begun(begun);
        self.lines.add(&line)?;
        self.changes.take(line);
        Ok(())
    }

    /// Objects that are not complete, by their path.
    pub fn incomplete(&self) -> &BTreeMap<String, Incomplete> {
        &self.changes.incomplete
    }

    /// Makes changes happen, durably: on failure none of them. Answers the numbers of members' files that nobody
    /// needs any more.
    pub fn add_all(&mut self, records: Vec<Record>) -> Result<Vec<u64>> {
        let lines: Vec<Line> = records.into_iter().map(Line::Change).collect();
        self.lines.add_all(&lines)?;
        let taken = lines.into_iter().map(|line| self.changes.take(line));
        Ok(taken.collect::<Vec<_>>().concat())
    }

    /// Remembers an object that is not complete, durably, in the place of what was known of it. Answers as
    /// `add_all`.
    pub fn keep(&mut self, object: Incomplete) -> Result<Vec<u64>> {
        let line = Line::Incomplete(object);
        self.lines.add(&line)?;
        Ok(self.changes.take(line))
    }

    /// Whether nothing can be added any more, because a failure could not be taken back.
    pub fn is_lost(&self) -> bool {
        self.lines.is_lost()
    }
}

#[cfg(test)]
mod tests {
    use super::super::storage::Disk;
    use super::*;

    fn record(path: &str, file: Option<u64>) -> Record {
        let stored = file.map(|file| Stored {
            file,
            time: -5,
            size: None,
        });
        Record {
            path: path.into(),
            stored,
        }
    }

    fn open(dir: &Path) -> Result<Index> {
        Index::open(dir, Arc::new(Disk), false)
    }

    #[test]
    fn the_last_record_of_an_object_counts() {
        let dir = tempfile::tempdir().unwrap();
        let mut index = open(dir.path()).unwrap();
        for (path, file) in [("a\nb", Some(1)), ("c", Some(2)), ("c", None)] {
            index.add_all(vec![record(path, file)]).unwrap();
        }
        let again = open(dir.path()).unwrap();
        assert_eq!(again.entries(), index.entries());
        assert_eq!(again.entries()["a\nb"].as_ref().unwrap().file, 1);
        assert_eq!(again.entries()["c"], None);
    }

    #[test]
    fn what_an_object_was_first_changed_on_is_remembered() {
        let dir = tempfile::tempdir().unwrap();
        let begun = |commits| Begun {
            commits,
            ..Begun::default()
        };
        for (commits, names) in [(2, ["a", "b"]), (5, ["b", "c"])] {
            let mut index = open(dir.path()).unwrap();
            index.begin(begun(commits)).unwrap();
            for name in names {
                index.add_all(vec![record(name, None)]).unwrap();
            }
        }
        let changes = Changes::read(dir.path()).unwrap();
        let seen = ["a", "b", "c", "d"].map(|name| changes.seen(name));
        assert_eq!(seen, [2, 2, 5, 5]);
        assert_eq!(changes.begun, Some(begun(2)));
    }

    #[test]
    fn members_count_until_their_object_is_stored_or_deleted() {
        let kept = |files: &[u64]| Incomplete {
            object: "a".into(),
            members: files
                .iter()
                .map(|&file| Kept {
                    name: format!("{file}.npy"),
                    file,
                    time: 1,
                })
                .collect(),
            missing: vec!["x".into()],
        };
        for change in [Some(9), None] {
            let dir = tempfile::tempdir().unwrap();
            let mut index = open(dir.path()).unwrap();
            index.add_all(vec![record("a", Some(1))]).unwrap();
            assert!(index.keep(kept(&[2, 3])).unwrap().is_empty());
            assert_eq!(index.keep(kept(&[3, 4])).unwrap(), [2]);
            // The time is set, and another object stored.
            let others = vec![record("a", Some(1)), record("b", Some(5))];
            assert!(index.add_all(others).unwrap().is_empty());
            let read = Changes::read(dir.path()).unwrap();
            assert_eq!(read.incomplete["a"], kept(&[3, 4]));
            assert_eq!(index.add_all(vec![record("a", change)]).unwrap(), [3, 4]);
            assert!(Changes::read(dir.path()).unwrap().incomplete.is_empty());
            assert!(index.keep(kept(&[6])).unwrap().is_empty());
            assert_eq!(index.keep(kept(&[])).unwrap(), [6]);
            assert!(open(dir.path()).unwrap().incomplete().is_empty());
        }
    }

    #[test]
    fn an_index_that_is_gone_is_not_made_again_over_objects() {
        let dir = tempfile::tempdir().unwrap();
        assert!(Index::open(dir.path(), Arc::new(Disk), true).is_err());
    }
}
