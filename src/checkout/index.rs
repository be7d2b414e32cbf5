//! The index of a layer: which object each file is, and what the layer was begun on, as a record log.
//!
//! Of several records of an object the last counts. Members of an object that is not complete are forgotten
//! with the next change of the object. A file most of whose lines say nothing any more is written anew.

mod named;

use std::collections::BTreeMap;
use std::sync::Arc;

use serde::{Deserialize, Serialize};

use super::fit::StoreIdentity;
use super::pack::Unwritten;
use super::record_log::{self, LogForm, RecordLog};
use crate::checkout::against::Against;
use crate::error::{Error, Result};
use crate::io::dir::Dir;
use crate::io::storage::Storage;

pub use named::files_named;

/// The name of the file.
pub const NAME: &str = "index";

const FORM: LogForm = LogForm {
    name: "npyfs checkout",
    version: 2,
};

/// A file of the layer.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct StoredObject {
    /// Its number, which is its name.
    pub file: u64,
    /// The time at which the object was written, in nanoseconds since 1970.
    pub time: i64,
    /// Its size in the mount, if it is shown as one `.npy` file and that is known: a listing need not open it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub size: Option<u64>,
    /// The state of the store that it was written against; `None`: by a version that did not remember it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub against: Option<Box<Against>>,
    /// The name of the format of which the file is an empty store, to which all objects below its key belong; `None`: it is an
    /// object of a store.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub begins: Option<String>,
    /// Other objects may be in the same file.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub packed: bool,
    /// What it is as long as its file is not written.
    #[serde(skip)]
    pub unwritten: Unwritten,
    /// Fields of newer versions, kept as they are.
    #[serde(flatten)]
    pub other: serde_json::Map<String, serde_json::Value>,
}

/// Lines that are never too many, however little they say.
const FEW: usize = if cfg!(test) { 16 } else { 1000 };

/// A change of an object: a new file, or none when it was deleted.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ObjectChange {
    /// The path of the object as the mount shows it.
    pub path: String,
    // Never left out: a record without it is of another kind.
    /// The new file; `None`: the object was deleted.
    #[serde(deserialize_with = "Option::deserialize")]
    pub stored: Option<StoredObject>,
    /// Names of what a reader must know to understand it.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    needs: Vec<String>,
}

impl ObjectChange {
    /// Returns the record that says what stands at a path from now on; `None`: nothing.
    pub fn new(path: &str, stored: Option<StoredObject>) -> Self {
        let begins = |stored: &StoredObject| stored.begins.is_some();
        let needs = [
            (record_log::BEGUN, stored.as_ref().is_some_and(begins)),
            (
                record_log::PACKED,
                stored.as_ref().is_some_and(|s| s.packed),
            ),
        ];
        let needs = needs.into_iter().filter(|(_, needed)| *needed);
        Self {
            path: path.to_owned(),
            needs: needs.map(|(name, _)| name.to_owned()).collect(),
            stored,
        }
    }
}

/// An object that is as it was before some commit.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct RestoredObject {
    /// The time since which it is so again, in nanoseconds since 1970.
    pub time: i64,
    /// The directory of the committed layer whose object it is; `None`: what the store itself has.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub layer: Option<String>,
}

/// An object of which a layer says that it is as it was.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
struct Restoration {
    /// The path of the object as the mount shows it.
    path: String,
    restored: RestoredObject,
    /// Readers that do not know such records must not read the others either.
    needs: Vec<String>,
}

/// A member of an object that is not complete.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct KeptMember {
    /// Its path inside the object, with suffix.
    pub name: String,
    /// The number of its file, which is as it was written.
    pub file: u64,
    /// The time at which it was written, in nanoseconds since 1970.
    pub time: i64,
}

/// An object that lacks members, or whose members do not fit each other.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct KeptObject {
    /// The path that the object is to have.
    pub object: String,
    /// The members that are there; if none, the object is forgotten.
    pub members: Vec<KeptMember>,
    /// Names of the members that are missing.
    pub missing: Vec<String>,
    /// The reason why the members that are there make no object together with what is stored of it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub why: Option<String>,
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
    /// The version of a file that lies elsewhere, as its server names it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub version: Option<String>,
}

/// The state of a store that the changes that follow in the index were made on.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct LayerBase {
    /// Committed layers below.
    pub commits: u64,
    /// The id of the uppermost of them; `None` if there is none, or a version that knew no ids wrote it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub on: Option<String>,
    /// The time, in nanoseconds since 1970.
    pub time: i64,
    /// The files of the base; `None` if they were too many to be remembered.
    pub base: Option<Vec<BaseFile>>,
}

/// The identity of a store when the first object was written over it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct StoreEntry {
    /// The key of the store; empty if the mount shows nothing else.
    pub store: String,
    /// The identity by which it is recognised.
    pub identity: StoreIdentity,
}

/// A line of the file.
#[derive(Debug, Serialize, Deserialize)]
#[serde(untagged)]
enum IndexLine {
    Change(ObjectChange),
    Restored(Restoration),
    Incomplete(KeptObject),
    Begun(LayerBase),
    Store(StoreEntry),
}

impl IndexLine {
    fn restored(path: &str, restored: &RestoredObject) -> Self {
        Self::Restored(Restoration {
            path: path.to_owned(),
            restored: restored.clone(),
            needs: vec![record_log::RESTORED.to_owned()],
        })
    }
}

impl record_log::LogRecord for IndexLine {
    fn parse(json: &str) -> serde_json::Result<Self> {
        serde_json::from_str(json)
    }

    fn print(&self) -> serde_json::Result<String> {
        serde_json::to_string(self)
    }
}

/// The contents of an index.
#[derive(Clone, Debug, Default)]
pub struct IndexChanges {
    /// Every object that was changed; `None`: it was deleted.
    pub entries: BTreeMap<String, Option<StoredObject>>,
    /// Objects that are as they were before some commit; none of them is in `entries`.
    pub restored: BTreeMap<String, RestoredObject>,
    /// The store and the commits that the layer was begun on first.
    pub begun: Option<LayerBase>,
    /// Objects that are not complete, by their path.
    pub incomplete: BTreeMap<String, KeptObject>,
    /// The identities of the stores, by key.
    pub stores: BTreeMap<String, StoreIdentity>,
    /// The number of entries that are in each file.
    users: BTreeMap<u64, usize>,
    /// On how many commits each object was changed first.
    seen: BTreeMap<String, u64>,
    /// Commits below what is changed next.
    commits: u64,
    /// The ids of the uppermost commits, by how many there were.
    on: BTreeMap<u64, String>,
}

impl IndexChanges {
    /// Returns what the index of the layer in `dir` says now.
    pub fn read(dir: &Dir) -> Result<Self> {
        let lines: Vec<IndexLine> = record_log::read(dir, NAME, FORM)?;
        Ok(Self::of(lines))
    }

    /// Returns what the whole text of an index says.
    pub fn parse(text: &str) -> Result<Self> {
        Ok(Self::of(record_log::parse_whole(text.as_bytes(), FORM)?))
    }

    fn of(lines: Vec<IndexLine>) -> Self {
        let mut changes = Self::default();
        for line in lines {
            changes.take(line);
        }
        changes
    }

    /// Returns the numbers of members' files that nobody needs from then on.
    fn take(&mut self, line: IndexLine) -> Vec<u64> {
        let files = |incomplete: Option<KeptObject>| {
            let members = incomplete.into_iter().flat_map(|object| object.members);
            members.map(|member| member.file).collect::<Vec<_>>()
        };
        match line {
            IndexLine::Change(record) => {
                let commits = self.commits;
                self.seen.entry(record.path.clone()).or_insert(commits);
                let file =
                    |stored: &Option<StoredObject>| stored.as_ref().map(|stored| stored.file);
                let (path, new) = (record.path.clone(), file(&record.stored));
                self.restored.remove(&path);
                let old = self.entries.insert(record.path, record.stored);
                self.count(new, old.as_ref().and_then(file));
                // A time that is set makes no other object.
                if new.is_none() || old.as_ref().and_then(file) != new {
                    return files(self.incomplete.remove(&path));
                }
            }
            IndexLine::Restored(Restoration { path, restored, .. }) => {
                let old = self.entries.remove(&path).flatten();
                self.count(None, old.map(|old| old.file));
                self.restored.insert(path, restored);
            }
            IndexLine::Incomplete(new) => {
                let mut old = files(self.incomplete.remove(&new.object));
                old.retain(|&file| new.members.iter().all(|member| member.file != file));
                if !new.members.is_empty() {
                    self.incomplete.insert(new.object.clone(), new);
                }
                return old;
            }
            IndexLine::Begun(begun) => {
                let first = self.begun.as_ref().map(|begun| begun.commits);
                let is_needed = |commits: u64| {
                    first == Some(commits) || self.seen.values().any(|&seen| seen == commits)
                };
                // Nothing was written on those commits.
                if !is_needed(self.commits) {
                    self.on.remove(&self.commits);
                }
                self.commits = begun.commits;
                if let Some(on) = &begun.on {
                    self.on.insert(begun.commits, on.clone());
                }
                self.begun.get_or_insert(begun);
            }
            IndexLine::Store(StoreEntry { store, identity }) => {
                self.stores.insert(store, identity);
            }
        }
        Vec::new()
    }

    /// Notes that an entry is in another file than before.
    fn count(&mut self, new: Option<u64>, old: Option<u64>) {
        if let Some(new) = new {
            *self.users.entry(new).or_default() += 1;
        }
        if let Some(old) = old
            && let Some(users) = self.users.get_mut(&old)
        {
            *users = users.saturating_sub(1);
            if *users == 0 {
                self.users.remove(&old);
            }
        }
    }

    /// Returns those of a layer that nothing was written in, on this state of the store.
    pub fn begun_on(begun: LayerBase) -> Self {
        Self::of(vec![IndexLine::Begun(begun)])
    }

    /// Writes them as the index of a new layer in `dir`, durably.
    pub fn write(&self, dir: &Dir, storage: Arc<dyn Storage>) -> Result<()> {
        let (mut lines, _) = RecordLog::open((dir, NAME), FORM, storage, || Ok(()))?;
        lines.add_all(&self.lines())
    }

    /// The fewest lines that say the same.
    fn lines(&self) -> Vec<IndexLine> {
        let begun_on = |commits| {
            IndexLine::Begun(LayerBase {
                commits,
                base: None,
                on: self.on.get(&commits).cloned(),
                ..self.begun.clone().unwrap_or_default()
            })
        };
        let mut paths: Vec<(u64, &String)> = self
            .entries
            .keys()
            .map(|path| (self.seen(path), path))
            .collect();
        paths.sort();
        let mut lines = Vec::with_capacity(paths.len());
        let (mut first, mut now) = (self.begun.as_ref(), 0);
        let mut begin = |commits: u64, lines: &mut Vec<IndexLine>| {
            // The first says more than the others, and has the lowest number.
            if let Some(begun) = first.filter(|begun| begun.commits <= commits) {
                lines.push(IndexLine::Begun(begun.clone()));
                (first, now) = (None, begun.commits);
            }
            if commits != now {
                lines.push(begun_on(commits));
                now = commits;
            }
        };
        for (commits, path) in paths {
            begin(commits, &mut lines);
            let stored = self.entries.get(path).cloned().flatten();
            lines.push(IndexLine::Change(ObjectChange::new(path, stored)));
        }
        begin(self.commits, &mut lines);
        let restored = self.restored.iter();
        lines.extend(restored.map(|(path, restored)| IndexLine::restored(path, restored)));
        lines.extend(self.incomplete.values().cloned().map(IndexLine::Incomplete));
        lines.extend(self.stores.iter().map(|(store, identity)| {
            IndexLine::Store(StoreEntry {
                store: store.clone(),
                identity: identity.clone(),
            })
        }));
        lines
    }

    /// Returns how many committed layers were below when the object at `path` was first changed here: what later
    /// ones made of it, nobody who wrote here has seen.
    pub fn seen(&self, path: &str) -> u64 {
        self.seen.get(path).copied().unwrap_or(self.commits)
    }
}

/// The index of one layer, open to be added to.
pub struct Index {
    lines: RecordLog<IndexLine>,
    changes: IndexChanges,
    /// Lines of the file.
    count: usize,
    /// So many are too many.
    most: usize,
}

impl Index {
    /// Reads the index of the layer in `dir`. A new one is made, unless the layer has objects already.
    pub fn open(dir: &Dir, storage: Arc<dyn Storage>, has_objects: bool) -> Result<Self> {
        let may_make = || {
            if has_objects {
                let message = "it is gone, but the files of the checkout are there";
                return Err(Error::damaged(message));
            }
            Ok(())
        };
        let (lines, records) = RecordLog::open((dir, NAME), FORM, storage, may_make)?;
        let mut index = Self {
            lines,
            count: records.len(),
            changes: IndexChanges::of(records),
            most: 0,
        };
        index.compact();
        Ok(index)
    }

    /// Writes the file anew if most of its lines say nothing any more.
    fn compact(&mut self) {
        let IndexChanges {
            entries,
            restored,
            incomplete,
            stores,
            ..
        } = &self.changes;
        let said = entries.len() + restored.len() + incomplete.len() + stores.len();
        let enough = said.saturating_mul(2).saturating_add(FEW);
        if self.count <= enough.max(self.most) {
            return;
        }
        let lines = self.changes.lines();
        match self.lines.rewrite(&lines) {
            Ok(()) => (self.count, self.most) = (lines.len(), 0),
            // Nothing is lost by a long file: later, perhaps. If nobody knows which file the disk has, the next
            // change says so.
            Err(_) => self.most = self.count.saturating_mul(2),
        }
    }

    /// Adds lines, durably: on failure none of them. Answers the numbers of members' files that nobody needs any more.
    fn add(&mut self, lines: Vec<IndexLine>) -> Result<Vec<u64>> {
        self.lines.add_all(&lines)?;
        self.count += lines.len();
        let taken = lines.into_iter().map(|line| self.changes.take(line));
        let taken = taken.collect::<Vec<_>>().concat();
        self.compact();
        Ok(taken)
    }

    /// Every object that was changed; `None`: it was deleted.
    pub fn entries(&self) -> &BTreeMap<String, Option<StoredObject>> {
        &self.changes.entries
    }

    /// Returns whether an object is in the file of this number.
    pub fn uses(&self, file: u64) -> bool {
        self.changes.users.contains_key(&file)
    }

    /// Remembers what the changes from now on are made on.
    pub fn begin(&mut self, begun: LayerBase) -> Result<()> {
        if self.changes.begun.is_some() && self.changes.commits == begun.commits {
            return Ok(());
        }
        self.add(vec![IndexLine::Begun(begun)]).map(drop)
    }

    /// Remembers what a store is that objects are written over, durably.
    pub fn know(&mut self, store: StoreEntry) -> Result<()> {
        self.add(vec![IndexLine::Store(store)]).map(drop)
    }

    /// Returns what the stores were that objects were written over, by key.
    pub fn stores(&self) -> &BTreeMap<String, StoreIdentity> {
        &self.changes.stores
    }

    /// Objects that are not complete, by their path.
    pub fn incomplete(&self) -> &BTreeMap<String, KeptObject> {
        &self.changes.incomplete
    }

    /// Makes changes happen, durably: on failure none of them. Answers the numbers of members' files that nobody
    /// needs any more.
    pub fn add_all(&mut self, records: Vec<ObjectChange>) -> Result<Vec<u64>> {
        self.add(records.into_iter().map(IndexLine::Change).collect())
    }

    /// Remembers an object that is not complete, durably, in the place of what was known of it. Answers as
    /// `add_all`.
    pub fn keep(&mut self, object: KeptObject) -> Result<Vec<u64>> {
        self.add(vec![IndexLine::Incomplete(object)])
    }

    /// Returns whether nothing can be added any more, because a failure could not be taken back.
    pub fn is_lost(&self) -> bool {
        self.lines.is_lost()
    }
}

#[cfg(test)]
mod tests;
