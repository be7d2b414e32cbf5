//! The record of one commit: what it says, and its id, which is a digest of that.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::File;
use std::io::Read;
use std::time::SystemTime;

use nix::unistd::{Uid, User};
use serde::{Deserialize, Serialize};

use crate::checkout::against::{AxisEntries, digest, hex};
use crate::checkout::fit::StoreIdentity;
use crate::checkout::layer::nanoseconds;
use crate::checkout::mirror::LayerContent;
use crate::checkout::record_log::LogRecord;
use crate::error::{Error, Result};

/// Digits of an id.
const ID: usize = 32;

/// One commit. What the first form did not say is empty.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct LayerCommit {
    /// BLAKE2b-128 of the rest of the record, as it stands in the file.
    #[serde(default, skip_serializing)]
    pub id: String,
    /// The ids of the commits that it was made on: the one before it in the list, if there is one.
    #[serde(default)]
    pub parents: Vec<String>,
    /// Made up for each commit: one whose answer was lost is known again by it.
    #[serde(default)]
    pub write: String,
    /// The directory of the layer, beside this file.
    pub layer: String,
    /// The time of the commit, in nanoseconds since 1970; later than that of the commit before it.
    pub time: i64,
    /// The user's name and the host's.
    #[serde(default)]
    pub author: String,
    /// The message.
    #[serde(default)]
    pub message: String,
    /// The program that wrote it, with its version.
    #[serde(default)]
    pub tool: String,
    /// The id of the commit that it takes back; empty for others.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub reverts: String,
    /// Objects of the layer that do not count: another commit's were kept, or they fitted the store no more.
    #[serde(default)]
    pub without: BTreeSet<String>,
    /// The identities of the stores that objects were written over, by key.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub base: BTreeMap<String, StoreIdentity>,
    /// The axes that objects lie along, by key: every state of each that an object was written against.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub axes: BTreeMap<String, BTreeSet<AxisEntries>>,
    /// All that the layer is, if it lies in a bucket.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub content: Option<LayerContent>,
    /// Fields of newer versions, kept as they are.
    #[serde(flatten)]
    pub other: serde_json::Map<String, serde_json::Value>,
}

impl LayerCommit {
    /// The first line of the message.
    pub fn subject(&self) -> &str {
        self.message.lines().next().unwrap_or_default()
    }
}

/// Fewest digits that an id may be shortened to.
const FEWEST: usize = 4;

/// Returns the number, from 1 on, of the commit whose id begins with `id`, or why there is no such.
pub fn find(commits: &[LayerCommit], id: &str) -> std::result::Result<usize, String> {
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

/// Splits the id off a record that has one, and answers it with the rest, which it is a digest of.
fn split_id(json: &str) -> Option<(&str, String)> {
    let rest = json.strip_prefix("{\"id\":\"")?;
    let (id, rest) = rest.split_at_checked(ID)?;
    let rest = rest.strip_prefix("\",")?;
    Some((id, format!("{{{rest}")))
}

/// Returns the id that a record says, if it does.
pub(super) fn id_of(json: &str) -> Option<&str> {
    split_id(json).map(|(id, _)| id)
}

/// Returns whether a layer may have this name: it is believed only if it is a directory beside the commits.
pub(super) fn is_layer(name: &str) -> bool {
    !(name.is_empty() || name.starts_with('.') || name.contains('/'))
}

/// Returns the error of a commit whose layer can have no such name.
pub(super) fn no_layer(name: &str) -> Error {
    Error::damaged(format!("{name:?} is no name of a layer"))
}

impl LogRecord for LayerCommit {
    fn parse(json: &str) -> serde_json::Result<Self> {
        let mut commit: Self = serde_json::from_str(json)?;
        // The first form had no ids: they follow from what it says.
        let rest = match split_id(json) {
            Some((_, rest)) => rest,
            None => json.to_owned(),
        };
        let id = digest(rest.as_bytes());
        if !commit.id.is_empty() && commit.id != id {
            let why = format!("the commit {} is not what its id says", commit.id);
            return Err(serde::de::Error::custom(why));
        }
        commit.id = id;
        Ok(commit)
    }

    fn print(&self) -> serde_json::Result<String> {
        let rest = serde_json::to_string(self)?;
        let id = digest(rest.as_bytes());
        let fields = rest.strip_prefix('{').unwrap_or(&rest);
        Ok(format!("{{\"id\":\"{id}\",{fields}"))
    }
}

/// Returns the time of a commit that is made now on top of others: later than theirs, as clocks are set back, and those of two
/// hosts differ.
pub fn next_time(commits: &[LayerCommit]) -> i64 {
    let now = nanoseconds(SystemTime::now());
    let last = commits.last();
    last.map_or(now, |last| now.max(last.time.saturating_add(1)))
}

/// 128 bits that nobody else has made up.
pub(in crate::checkout) fn write_id() -> Result<String> {
    let mut bytes = [0; 16];
    File::open("/dev/urandom").and_then(|mut file| file.read_exact(&mut bytes))?;
    Ok(hex(&bytes))
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
        let rest = r#"{"parents":[],"write":"","layer":"a","time":1,"author":"","message":"","tool":"","without":[],"signed":"x"}"#;
        let id = digest(rest.as_bytes());
        let json = format!("{{\"id\":\"{id}\",{}", &rest[1..]);
        let commit = LayerCommit::parse(&json).unwrap();
        assert_eq!(commit.other["signed"], "x");
        assert_eq!(commit.print().unwrap(), json);
    }
}
