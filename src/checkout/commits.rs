//! The committed layers of a store, in order: a file of records (`lines`), one a commit.
//!
//! A commit is one line. The directory of the layer stays where it is; from that line on nobody writes in
//! it any more. Who adds a line holds the lock; who reads needs none.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::File;
use std::io::Read;
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant, SystemTime};

use nix::unistd::{Uid, User};
use rustix::fs::{FlockOperation, flock};
use rustix::io::Errno;
use serde::{Deserialize, Serialize};

use super::fit::StoreIdentity;
use super::holder;
use super::layer::nanoseconds;
use super::record_log::{self, LogForm, RecordLog};
use crate::checkout::against::{AxisEntries, digest, hex};
use crate::error::{Error, ErrorKind, Result};
use crate::io::dir::Dir;
use crate::io::storage::Storage;

/// The name of the file; no checkout has this name.
pub const NAME: &str = "commits";

/// The name of the lock file.
pub const LOCK: &str = ".lock";

const FORM: LogForm = LogForm {
    name: "npyfs commits",
    version: 2,
};

/// The time after which whoever waits for the lock is told for whom.
const PATIENCE: Duration = Duration::from_secs(1);

/// Pause between two tries to lock.
const PAUSE: Duration = Duration::from_millis(5);

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
    /// Made up for each try to commit: a commit whose answer was lost is known again by it.
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

impl record_log::LogRecord for LayerCommit {
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

/// The commits in `dir`.
pub fn read(dir: &Dir) -> Result<Vec<LayerCommit>> {
    checked(dir, record_log::read(dir, NAME, FORM)?)
}

/// Checks what lines say: a layer is believed only if it is a directory beside the list.
fn checked(dir: &Dir, commits: Vec<LayerCommit>) -> Result<Vec<LayerCommit>> {
    let plain = |name: &str| !(name.is_empty() || name.starts_with('.') || name.contains('/'));
    match commits.iter().find(|commit| !plain(&commit.layer)) {
        Some(bad) => Err(Error::damaged(format!(
            "{}: {:?} is no name of a layer",
            dir.path().join(NAME).display(),
            bad.layer
        ))),
        None => Ok(commits),
    }
}

/// The commits of a store with the right to add one; others wait meanwhile.
pub struct Commits {
    lines: RecordLog<LayerCommit>,
    all: Vec<LayerCommit>,
    _lock: File,
}

impl Commits {
    /// Waits until nobody else commits.
    pub fn lock(dir: &Dir, storage: Arc<dyn Storage>) -> Result<Self> {
        let lock = lock(dir)?;
        let (lines, all) = RecordLog::open((dir, NAME), FORM, storage, || Ok(()))?;
        Ok(Self {
            lines,
            all: checked(dir, all)?,
            _lock: lock,
        })
    }

    /// Returns all commits, the first first.
    pub fn all(&self) -> &[LayerCommit] {
        &self.all
    }

    /// Makes a commit happen, durably, on top of the others; says by whom and under which id, and when if it does not say that
    /// itself (`next_time`). On failure nothing is committed.
    pub fn add(&mut self, commit: LayerCommit) -> Result<()> {
        let last = self.all.last();
        let mut commit = LayerCommit {
            parents: last.map(|last| last.id.clone()).into_iter().collect(),
            write: write_id()?,
            time: match commit.time {
                0 => next_time(&self.all),
                time => time,
            },
            author: author(),
            tool: concat!("npyfs ", env!("CARGO_PKG_VERSION")).to_owned(),
            ..commit
        };
        self.lines.add(&commit)?;
        let json = serde_json::to_string(&commit).map_err(|e| Error::damaged(e.to_string()))?;
        commit.id = digest(json.as_bytes());
        self.all.push(commit);
        Ok(())
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
fn write_id() -> Result<String> {
    let mut bytes = [0; 16];
    File::open("/dev/urandom").and_then(|mut file| file.read_exact(&mut bytes))?;
    Ok(hex(&bytes))
}

/// Returns the user of this program, and the host: `alice@host`.
fn author() -> String {
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

/// Waits for the right to change which layers there are in `dir`; ESTALE if that was removed meanwhile. Who waits for long is
/// told for whom.
pub fn lock(dir: &Dir) -> Result<File> {
    let path = dir.path().join(LOCK);
    let about = |e: Errno| Error::from(std::io::Error::from(e)).about(path.display());
    loop {
        let file = dir.write_or_create(LOCK)?;
        if !lock_soon(&file).map_err(about)? {
            let who = match holder::all(&file) {
                all if all.is_empty() => "another process".to_owned(),
                all => all.join(", "),
            };
            holder::tell(&format!("{}: waits for {who}", path.display()));
            flock(&file, FlockOperation::LockExclusive).map_err(about)?;
        }
        if !dir.is_in_place() {
            let message = "it was removed by another process";
            return Err(Error::new(ErrorKind::Stale, message).about(dir.path().display()));
        }
        // A lock on a file that was removed since keeps nobody out.
        if dir.leads_to(LOCK, &file) {
            return Ok(file);
        }
    }
}

/// Returns whether the lock was to be had before whoever waits should be told for whom.
fn lock_soon(file: &File) -> rustix::io::Result<bool> {
    let start = Instant::now();
    loop {
        match flock(file, FlockOperation::NonBlockingLockExclusive) {
            Err(Errno::WOULDBLOCK) if start.elapsed() < PATIENCE => thread::sleep(PAUSE),
            Err(Errno::WOULDBLOCK) => return Ok(false),
            locked => return locked.map(|()| true),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::record_log::LogRecord as _;
    use super::*;
    use crate::io::storage::Disk;

    fn commit(layer: &str) -> LayerCommit {
        LayerCommit {
            layer: layer.into(),
            ..LayerCommit::default()
        }
    }

    #[test]
    fn each_commit_names_the_one_before_and_is_what_its_id_says() {
        let dir = tempfile::tempdir().unwrap();
        let mut commits = Commits::lock(&Dir::own(dir.path()), Arc::new(Disk)).unwrap();
        for (layer, message) in [("a", "first\nand more"), ("b", "\u{1b}[31m")] {
            let message = message.to_owned();
            commits
                .add(LayerCommit {
                    message,
                    ..commit(layer)
                })
                .unwrap();
        }
        let read = read(&Dir::own(dir.path())).unwrap();
        assert_eq!(read, commits.all());
        assert_eq!(read[0].subject(), "first");
        assert!(read[0].parents.is_empty());
        assert_eq!(read[1].parents, [read[0].id.clone()]);
        assert!(read[0].write != read[1].write && read[0].write.len() == 32);
        let text = std::fs::read_to_string(dir.path().join(NAME)).unwrap();
        let json = text.lines().nth(1).unwrap().split_at(9).1;
        let (id, rest) = split_id(json).unwrap();
        assert_eq!(
            (id, digest(rest.as_bytes())),
            (&*read[0].id, read[0].id.clone())
        );
        let changed = json.replace("first", "other");
        let refused = LayerCommit::parse(&changed).unwrap_err().to_string();
        assert!(refused.contains("is not what its id says"), "{refused}");
    }

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
    fn a_list_of_the_first_form_gets_ids_and_goes_on() {
        let dir = tempfile::tempdir().unwrap();
        let future = i64::MAX - 5;
        let json = format!(r#"{{"layer":"a","time":{future},"without":["x"]}}"#);
        let sum = crc32fast::hash(json.as_bytes());
        let old = format!("npyfs commits 1\n{sum:08x} {json}\n");
        std::fs::write(dir.path().join(NAME), &old).unwrap();
        let before = read(&Dir::own(dir.path())).unwrap();
        assert_eq!(before[0].id, digest(json.as_bytes()));
        assert!(before[0].without.contains("x"));
        let mut commits = Commits::lock(&Dir::own(dir.path()), Arc::new(Disk)).unwrap();
        commits.add(commit("b")).unwrap();
        let now = read(&Dir::own(dir.path())).unwrap();
        assert_eq!(now[0], before[0]);
        assert_eq!(now[1].parents, [before[0].id.clone()]);
        // The clock was ahead when the first was made.
        assert_eq!(now[1].time, future + 1);
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
