//! The record of one commit, and its id, a digest of the record.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::File;
use std::io::Read;
use std::time::SystemTime;

use nix::unistd::{Uid, User};
use serde::{Deserialize, Serialize};

use crate::checkout::mirror::LayerContent;
use crate::checkout::records::form::Form;
use crate::checkout::records::index::nanoseconds;
use crate::checkout::records::layer_files::CommitId;
use crate::checkout::records::record_log::LogRecord;
use crate::checkout::records::record_log::Unread;
use crate::store::against::{AxisEntries, digest};
use npyfs_base::error::{Error, Result};
use npyfs_io::hex;

/// The form of the object of a commit.
pub(super) const FORM: Form = Form {
    name: "npyfs commit",
    version: 1,
};

/// One commit.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct LayerCommit {
    /// BLAKE2b-128 of the rest of the record, as written in the file.
    #[serde(default, skip_serializing)]
    pub id: String,
    /// The ids of the commits that it was made on: the one before it, if there is one.
    pub parents: Vec<String>,
    /// Made up for each commit: one whose answer was lost is known again by it.
    pub write: String,
    /// The directory of the layer, beside this file.
    pub layer: String,
    /// The time of the commit, in nanoseconds since 1970; later than that of the commit before it.
    pub time: i64,
    /// The user and host: `alice@host`.
    pub author: String,
    /// The message.
    pub message: String,
    /// The program that created it, with its version.
    pub tool: String,
    /// The id of the commit that it reverts; empty for others.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub reverts: String,
    /// Objects of the layer that do not count: another commit's were kept, or they no longer fitted the store.
    pub without: BTreeSet<String>,
    /// The identities of the stores that objects were written over, by key; `None` if there are none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub base: Option<Unread>,
    /// The axes of objects, by key: every state of each axis that an object was written against.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub axes: BTreeMap<String, BTreeSet<AxisEntries>>,
    /// The changed objects of the layer (`IndexChanges::short`), if they are few and not in a bucket: a reader need not
    /// open the index.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub changes: Option<Unread>,
    /// The contents of the layer, if it is in a bucket.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub content: Option<LayerContent>,
    /// Fields of newer versions, preserved unchanged.
    #[serde(flatten)]
    pub other: serde_json::Map<String, serde_json::Value>,
}

impl LayerCommit {
    /// Returns the first line of the message.
    pub fn subject(&self) -> &str {
        self.message.lines().next().unwrap_or_default()
    }
}

/// The records of a store's commits, oldest first. Those of the first commits may have been left unread.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct CommitRecords {
    /// The number of commits whose records are not here.
    before: usize,
    records: Vec<LayerCommit>,
}

impl From<Vec<LayerCommit>> for CommitRecords {
    fn from(records: Vec<LayerCommit>) -> Self {
        Self { before: 0, records }
    }
}

impl CommitRecords {
    /// No commit.
    pub(super) const NONE: Self = Self {
        before: 0,
        records: Vec::new(),
    };

    /// Returns the record of commit `number`, and nothing before it.
    pub(super) fn of_last(number: usize, last: LayerCommit) -> Self {
        Self {
            before: number.saturating_sub(1),
            records: vec![last],
        }
    }

    /// Returns the number of commits.
    pub fn len(&self) -> usize {
        self.before + self.records.len()
    }

    /// Returns whether there is no commit.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Returns the last commit.
    pub fn last(&self) -> Option<&LayerCommit> {
        self.records.last()
    }

    /// Returns the id of the last commit.
    pub fn last_id(&self) -> Option<&str> {
        self.last().map(|last| last.id.as_str())
    }

    /// Returns the records that are here.
    pub fn read(&self) -> &[LayerCommit] {
        &self.records
    }

    /// Returns whether the record of commit `number` is here, and has this id.
    pub(in crate::checkout) fn has(&self, (number, id): (usize, CommitId)) -> bool {
        let at = number.checked_sub(self.before + 1);
        let record = at.and_then(|at| self.records.get(at));
        record.is_some_and(|record| CommitId::parse(&record.id) == Some(id))
    }

    /// Returns the records that are here.
    pub(super) fn into_read(self) -> Vec<LayerCommit> {
        self.records
    }

    /// Returns the records after the first `known` commits; `None` if some of those are not here.
    pub(in crate::checkout) fn after(&self, known: usize) -> Option<&[LayerCommit]> {
        self.records.get(known.checked_sub(self.before)?..)
    }

    /// Returns the records of some commits, counted from 0; `None` if not all of them are here.
    pub(super) fn range(&self, range: std::ops::Range<usize>) -> Option<&[LayerCommit]> {
        let start = range.start.checked_sub(self.before)?;
        self.records.get(start..range.end.checked_sub(self.before)?)
    }

    pub(super) fn push(&mut self, commit: LayerCommit) {
        self.records.push(commit);
    }

    pub(super) fn extend(&mut self, commits: Vec<LayerCommit>) {
        self.records.extend(commits);
    }

    /// Removes all commits after the first `count`.
    pub(in crate::checkout) fn truncate(&mut self, count: usize) {
        self.records.truncate(count.saturating_sub(self.before));
    }

    /// Forgets the records of all commits but the last.
    pub(in crate::checkout) fn forget(&mut self) {
        let last = self.records.pop();
        self.before += self.records.len();
        self.records = last.into_iter().collect();
    }
}

/// The fewest digits of an abbreviated id.
const FEWEST: usize = 4;

/// Returns the number, from 1, of the commit that is called `id`, or the reason why there is none: its number, the
/// beginning of its id, HEAD for the newest, HEAD~2 for the one two before it.
pub fn find(commits: &[LayerCommit], id: &str) -> std::result::Result<usize, String> {
    if let Some(before) = before_newest(id) {
        let number = before.and_then(|before| commits.len().checked_sub(before));
        let number = number.filter(|&number| number > 0);
        return number.ok_or_else(|| format!("no commit {id}: there are {}", commits.len()));
    }
    let number = id.parse().ok().filter(|&number: &usize| number > 0);
    let number = number.filter(|_| id.bytes().all(|byte| byte.is_ascii_digit()));
    let is_id = |id: &str| commits.iter().any(|commit| commit.id.starts_with(id));
    match number {
        Some(number) if id.len() < FEWEST || number <= commits.len() => {
            if id.len() >= FEWEST && is_id(id) {
                return Err(format!(
                    "{id}: the number of a commit, and the beginning of an id"
                ));
            }
            let is_there = number <= commits.len();
            return is_there
                .then_some(number)
                .ok_or_else(|| format!("no commit {id}"));
        }
        _ => {}
    }
    if id.len() < FEWEST {
        return Err(format!("{id}: {FEWEST} digits of a commit's id are needed"));
    }
    let mut known = commits
        .iter()
        .zip(1..)
        .filter(|(c, _)| c.id.starts_with(id));
    match (known.next(), known.next()) {
        (Some((_, number)), None) => Ok(number),
        (Some(_), Some(_)) => Err(format!("{id}: several commits begin so")),
        _ => Err(format!("no commit {id}")),
    }
}

/// Returns how far a commit is before the newest, if it is named so; `Some(None)`: further than there is a number for.
fn before_newest(name: &str) -> Option<Option<usize>> {
    let rest = name.strip_prefix("HEAD")?;
    let digits = match rest {
        "" => return Some(Some(0)),
        "~" | "^" => return Some(Some(1)),
        _ => rest.strip_prefix('~')?,
    };
    let is_number = digits.bytes().all(|byte| byte.is_ascii_digit());
    is_number.then(|| digits.parse().ok())
}

/// Splits the id off the fields of a record, and returns it with the rest, of which it is a digest.
fn split_id(json: &str) -> Option<(&str, String)> {
    let rest = json.strip_prefix("{\"id\":\"")?;
    let (id, rest) = rest.split_at_checked(CommitId::DIGITS)?;
    let rest = rest.strip_prefix("\",")?;
    Some((id, format!("{{{rest}")))
}

/// Returns the id in a record, if it has one.
pub(super) fn id_of(json: &str) -> Option<String> {
    let fields = FORM.fields(json).ok()?;
    split_id(&fields).map(|(id, _)| id.to_owned())
}

/// Returns whether a layer may have this name: it must be a directory beside the commits.
pub(in crate::checkout) fn is_layer(name: &str) -> bool {
    !(name.is_empty() || name.starts_with('.') || name.contains('/'))
}

/// Returns the error of a commit whose layer has an invalid name.
pub(super) fn no_layer(name: &str) -> Error {
    Error::damaged(format!("{name:?} is no name of a layer"))
}

impl LogRecord for LayerCommit {
    fn parse(json: &str) -> serde_json::Result<Self> {
        let custom = |why: String| <serde_json::Error as serde::de::Error>::custom(why);
        let json = FORM.fields(json).map_err(|e| custom(e.message))?;
        let mut commit: Self = serde_json::from_str(&json)?;
        let (_, rest) = split_id(&json).ok_or_else(|| custom("it has no id".to_owned()))?;
        let id = digest(rest.as_bytes());
        if commit.id != id {
            let why = format!("the commit {} is not what its id says", commit.id);
            return Err(custom(why));
        }
        commit.id = id;
        Ok(commit)
    }

    fn print(&self) -> serde_json::Result<String> {
        let rest = serde_json::to_string(self)?;
        let id = digest(rest.as_bytes());
        let fields = rest.strip_prefix('{').unwrap_or(&rest);
        Ok(FORM.object(&format!("{{\"id\":\"{id}\",{fields}")))
    }
}

/// Returns the time of a commit made now on top of others. It is later than theirs, even if a clock was set back or
/// hosts' clocks differ.
pub fn next_time(commits: &[LayerCommit]) -> i64 {
    let now = nanoseconds(SystemTime::now());
    let last = commits.last();
    last.map_or(now, |last| now.max(last.time.saturating_add(1)))
}

/// Returns 128 random bits.
pub(in crate::checkout) fn write_id() -> Result<String> {
    let mut bytes = [0; 16];
    File::open("/dev/urandom").and_then(|mut file| file.read_exact(&mut bytes))?;
    Ok(hex::encode(&bytes))
}

/// Returns the user of this program, and the host: `alice@host`.
pub(super) fn author() -> String {
    let named = ["LOGNAME", "USER"].into_iter().find_map(|name| {
        std::env::var(name)
            .ok()
            .filter(|user| !user.trim().is_empty())
    });
    let known = || User::from_uid(Uid::current()).ok()?.map(|user| user.name);
    let user = named.or_else(known);
    let user = user.unwrap_or_else(|| Uid::current().to_string());
    let host = std::fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_default();
    match host.trim() {
        "" => user,
        host => format!("{user}@{host}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_commit_is_found_by_the_beginning_of_its_id() {
        let of = |id: &str| LayerCommit {
            id: id.into(),
            ..LayerCommit::default()
        };
        let all = [of("abcd11"), of("abcd22"), of("ffff33")];
        assert_eq!(find(&all, "abcd2"), Ok(2));
        assert_eq!(find(&all, "ffff33"), Ok(3));
        for (id, why) in [
            ("abcd", "several"),
            ("0000", "no commit"),
            ("ff", "4 digits"),
        ] {
            assert!(find(&all, id).unwrap_err().contains(why));
        }
    }

    #[test]
    fn what_newer_versions_say_of_a_commit_is_kept() {
        let rest = r#"{"parents":[],"write":"","layer":"a","time":1,"author":"","message":"","tool":"","without":[],"base":{"": {"kind":"k"}},"changes":[ {"path":"x","stored":null}],"signed":"x"}"#;
        let id = digest(rest.as_bytes());
        let json = FORM.object(&format!("{{\"id\":\"{id}\",{}", &rest[1..]));
        let commit = LayerCommit::parse(&json).unwrap();
        assert_eq!(commit.other["signed"], "x");
        assert_eq!(
            commit.changes.as_ref().unwrap().values().unwrap(),
            [r#"{"path":"x","stored":null}"#]
        );
        assert_eq!(commit.print().unwrap(), json);
    }
}
