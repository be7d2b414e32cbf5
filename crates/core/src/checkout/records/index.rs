//! The index of a layer, a record log: which object each file is, and what the layer was begun on.
//!
//! Of several records of an object the last one counts. The members of an incomplete object are forgotten with the next
//! change of the object. A file whose lines are mostly obsolete is rewritten.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::{SystemTime, UNIX_EPOCH};

use serde::{Deserialize, Serialize};

use super::attribute;
use super::fit::StoreIdentity;
use super::form::Form;
use super::record_log::{self, LogRecord, RecordLog, Unread};
use super::unwritten::Unwritten;
use crate::store::against::Against;
use npyfs_base::error::{Error, Result};
use npyfs_io::dir::Dir;
use npyfs_io::storage::Storage;

/// The name of the index file.
pub const NAME: &str = "index";

const FORM: Form = Form {
    name: "npyfs checkout",
    version: 2,
};

/// What a layer says of a path: the object that it stores there, or `None` if it deletes the object below.
pub type PathState = Option<Arc<StoredObject>>;

/// An object in a file of the layer.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct StoredObject {
    /// Its number, which is its name.
    pub file: u64,
    /// The time at which the object was written, in nanoseconds since 1970.
    pub time: i64,
    /// Its size in the mount, if it is shown as one `.npy` file and its size is known: a listing then need not open it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub size: Option<u64>,
    /// The state of the store that it was written against; `None` if an old version wrote it.
    #[serde(
        default,
        deserialize_with = "Against::read_shared",
        skip_serializing_if = "Option::is_none"
    )]
    pub against: Option<Arc<Against>>,
    /// If the file is an empty store, to which all objects below its key belong: the name of the store's format. `None`
    /// for an object of a store.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub begins: Option<String>,
    /// Whether other objects may be in the same file.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub packed: bool,
    /// For an attribute: the file of its object in the same layer, or of the nearest group above that the layer has; 0
    /// for a deleted one. If the layer has another file there since, the attribute went with its object.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub of: Option<u64>,
    /// The object in memory, until its file is written.
    #[serde(skip)]
    pub unwritten: Unwritten,
    /// Fields of newer versions, preserved unchanged.
    #[serde(flatten)]
    pub other: serde_json::Map<String, serde_json::Value>,
}

/// The longest list of changes in the record of a commit, in bytes, and the number of changes that are never shorter.
const SHORT: usize = 4 << 10;
const MOST_SHORT: usize = SHORT / 24;

/// A file with at most this many lines is never rewritten.
const FEW: usize = if cfg!(test) { 16 } else { 1000 };

/// A change of an object: a new file, or a deletion.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ObjectChange {
    /// The path of the object in the mount.
    pub path: String,
    // Always written: a record without it is of another kind.
    /// The new file; `None`: the object was deleted.
    #[serde(deserialize_with = "Option::deserialize")]
    pub stored: PathState,
    /// Names of features that a reader must know to understand the record.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub needs: Vec<String>,
}

impl ObjectChange {
    /// Returns the record for the new state of a path; `None` deletes the object.
    pub fn new(path: &str, stored: PathState) -> Self {
        let begins = |stored: &Arc<StoredObject>| stored.begins.is_some();
        let needs = [
            (record_log::BEGUN, stored.as_ref().is_some_and(begins)),
            (
                record_log::PACKED,
                stored.as_ref().is_some_and(|s| s.packed),
            ),
            (record_log::ATTRIBUTES, attribute::split(path).is_some()),
        ];
        let needs = needs.into_iter().filter(|(_, needed)| *needed);
        Self {
            path: path.to_owned(),
            needs: needs.map(|(name, _)| name.to_owned()).collect(),
            stored,
        }
    }
}

/// An object restored to its state before some commit.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct RestoredObject {
    /// The time of its restoration, in nanoseconds since 1970.
    pub time: i64,
    /// The directory of the committed layer whose object it is; `None` for the store's own object.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub layer: Option<String>,
}

/// The record of a restored object.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
struct Restoration {
    /// The path of the object in the mount.
    path: String,
    restored: RestoredObject,
    /// Readers that do not know such records must not read the others, either.
    needs: Vec<String>,
}

/// A member of an incomplete object.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct KeptMember {
    /// Its path inside the object, with its suffix.
    pub name: String,
    /// The number of its file, which is stored as it was written.
    pub file: u64,
    /// The time when it was written, in nanoseconds since 1970.
    pub time: i64,
}

/// An object that lacks members, or whose members do not match.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct KeptObject {
    /// The future path of the object.
    pub object: String,
    /// The members so far; without any, the object is forgotten.
    pub members: Vec<KeptMember>,
    /// Names of the missing members.
    pub missing: Vec<String>,
    /// The reason why the members do not make up an object with its stored parts.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub why: Option<String>,
}

/// The recorded state of a file of the base.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct BaseFile {
    /// Its path below the store; empty for a store that is a single file.
    pub path: String,
    /// Its size in bytes.
    pub size: u64,
    /// The time of its last modification, in nanoseconds since 1970.
    pub modified: i64,
    /// The version of a remote file, as reported by its server.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub version: Option<String>,
}

/// The state of a store on which the following changes of the index were made.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct LayerBase {
    /// The number of committed layers below.
    pub commits: u64,
    /// The id of the uppermost one; `None` if there is none, or if a version without ids wrote the record.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub on: Option<String>,
    /// The time, in nanoseconds since 1970.
    pub time: i64,
    /// The files of the base; `None` if there were too many to record.
    pub base: Option<Vec<BaseFile>>,
}

/// The identity of a store at the time when the first object was written over it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct StoreEntry {
    /// The key of the store; empty if the mount shows a single store.
    pub store: String,
    /// Its identity.
    pub identity: StoreIdentity,
}

/// A line of the index.
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
        let mut needs = vec![record_log::RESTORED.to_owned()];
        if attribute::split(path).is_some() {
            needs.push(record_log::ATTRIBUTES.to_owned());
        }
        Self::Restored(Restoration {
            path: path.to_owned(),
            restored: restored.clone(),
            needs,
        })
    }
}

impl LogRecord for IndexLine {
    fn parse(json: &str) -> serde_json::Result<Self> {
        // The first field tells what it is, without a copy of the values to try each kind with. Another program may
        // write the fields in another order.
        let told = match json {
            _ if json.starts_with(r#"{"path":"#) => serde_json::from_str(json).map(Self::Change),
            _ if json.starts_with(r#"{"store":"#) => serde_json::from_str(json).map(Self::Store),
            _ if json.starts_with(r#"{"commits":"#) => serde_json::from_str(json).map(Self::Begun),
            _ => return serde_json::from_str(json),
        };
        told.or_else(|_| serde_json::from_str(json))
    }

    fn print(&self) -> serde_json::Result<String> {
        serde_json::to_string(self)
    }
}

/// The content of an index.
#[derive(Clone, Debug, Default)]
pub struct IndexChanges {
    /// Every changed object; `None` for a deleted one.
    pub entries: BTreeMap<String, PathState>,
    /// Restored objects; none of them is in `entries`.
    pub restored: BTreeMap<String, RestoredObject>,
    /// The store and the commits that the layer was first begun on.
    pub begun: Option<LayerBase>,
    /// Incomplete objects by their paths.
    pub incomplete: BTreeMap<String, KeptObject>,
    /// The identities of the stores, by key.
    pub stores: BTreeMap<String, StoreIdentity>,
    /// The number of entries in each file.
    users: BTreeMap<u64, usize>,
    /// The number of commits that were below the first change.
    usual: Option<u64>,
    /// The number of commits that were below the first change of an object, where it is not `usual`.
    seen: BTreeMap<String, u64>,
    /// The number of commits below the next change.
    commits: u64,
    /// The ids of the uppermost commits, by their number.
    on: BTreeMap<u64, String>,
}

impl IndexChanges {
    /// Reads the index of the layer in `dir`.
    pub fn read(dir: &Dir) -> Result<Self> {
        Ok(Self::find(dir)?.unwrap_or_default())
    }

    /// Reads the index of a layer; `None` if there is none.
    pub fn find(dir: &Dir) -> Result<Option<Self>> {
        let lines: Option<Vec<IndexLine>> = record_log::read(dir, NAME, FORM)?;
        Ok(lines.map(Self::from_lines))
    }

    /// Parses the whole text of an index.
    pub fn parse(text: &str) -> Result<Self> {
        Ok(Self::from_lines(record_log::parse_whole(
            text.as_bytes(),
            FORM,
        )?))
    }

    fn from_lines(lines: Vec<IndexLine>) -> Self {
        let mut changes = Self::default();
        for line in lines {
            changes.take(line);
        }
        // Nodes that were filled one entry after the other are half empty.
        changes.entries = changes.entries.into_iter().collect();
        changes
    }

    /// Applies a line. Returns the numbers of members' files that are no longer needed.
    fn take(&mut self, line: IndexLine) -> Vec<u64> {
        let files = |incomplete: Option<KeptObject>| {
            let members = incomplete.into_iter().flat_map(|object| object.members);
            members.map(|member| member.file).collect::<Vec<_>>()
        };
        match line {
            IndexLine::Change(record) => {
                self.note_commits_below(&record.path);
                let file = |stored: &PathState| stored.as_ref().map(|stored| stored.file);
                let (path, new) = (record.path.clone(), file(&record.stored));
                self.restored.remove(&path);
                let old = self.entries.insert(record.path, record.stored);
                self.count(new, old.as_ref().and_then(file));
                // A new time does not make it another object.
                if new.is_none() || old.as_ref().and_then(file) != new {
                    return files(self.incomplete.remove(&path));
                }
            }
            IndexLine::Restored(Restoration { path, restored, .. }) => {
                self.note_commits_below(&path);
                let old = self.entries.remove(&path).flatten();
                self.count(None, old.map(|old| old.file));
                let members = files(self.incomplete.remove(&path));
                self.restored.insert(path, restored);
                return members;
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
                    first == Some(commits)
                        || self.usual == Some(commits)
                        || self.seen.values().any(|&seen| seen == commits)
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

    /// Records that an entry has moved to another file.
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

    /// Returns the changes of an empty layer that is begun on this state of the store.
    pub fn begun_on(begun: LayerBase) -> Self {
        Self::from_lines(vec![IndexLine::Begun(begun)])
    }

    /// Writes them as the index of a new layer in `dir`, durably.
    pub fn write(&self, dir: &Dir, storage: Arc<dyn Storage>) -> Result<()> {
        let (mut lines, _) = RecordLog::open((dir, NAME), FORM, storage, || Ok(()))?;
        lines.add_all(&self.lines())
    }

    /// Returns the changed and restored objects for the record of a commit: a list of the lines of the index that are
    /// about them. `None` if it would be long.
    pub fn short(&self) -> Result<Option<Unread>> {
        if self.count_changed() > MOST_SHORT {
            return Ok(None);
        }
        let mut lines = Vec::new();
        for line in self.lines() {
            if matches!(line, IndexLine::Change(_) | IndexLine::Restored(_)) {
                let line = line.print().map_err(|e| Error::damaged(e.to_string()))?;
                lines.push(line);
            }
        }
        let list = Unread::list(&lines)?;
        Ok(Some(list).filter(|list| list.text().len() <= SHORT))
    }

    /// Reads what `short` wrote. The stores are not in it.
    pub fn of_short(list: &Unread) -> Result<Self> {
        let lines = list.values()?.into_iter().map(record_log::parse);
        Ok(Self::from_lines(lines.collect::<Result<_>>()?))
    }

    /// Returns the fewest lines with the same meaning.
    fn lines(&self) -> Vec<IndexLine> {
        let begun_on = |commits| {
            IndexLine::Begun(LayerBase {
                commits,
                base: None,
                on: self.on.get(&commits).cloned(),
                ..self.begun.clone().unwrap_or_default()
            })
        };
        let paths = self.entries.keys().chain(self.restored.keys());
        let mut paths: Vec<(u64, &String)> =
            paths.map(|path| (self.commits_below(path), path)).collect();
        paths.sort();
        let mut lines = Vec::with_capacity(paths.len());
        let (mut first, mut now) = (self.begun.as_ref(), 0);
        let mut begin = |commits: u64, lines: &mut Vec<IndexLine>| {
            // The first state has more fields than the others, and the lowest number.
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
            lines.push(match self.restored.get(path) {
                Some(restored) => IndexLine::restored(path, restored),
                None => {
                    let stored = self.entries.get(path).cloned().flatten();
                    IndexLine::Change(ObjectChange::new(path, stored))
                }
            });
        }
        begin(self.commits, &mut lines);
        lines.extend(self.incomplete.values().cloned().map(IndexLine::Incomplete));
        lines.extend(self.stores.iter().map(|(store, identity)| {
            IndexLine::Store(StoreEntry {
                store: store.clone(),
                identity: identity.clone(),
            })
        }));
        lines
    }

    /// Forgets the change of an object, and its members if it is incomplete.
    pub fn forget(&mut self, path: &str) {
        let old = self.entries.remove(path).flatten();
        self.count(None, old.map(|old| old.file));
        self.restored.remove(path);
        self.incomplete.remove(path);
        self.seen.remove(path);
    }

    /// Restores an object to an earlier state; its members are forgotten if it is incomplete.
    pub fn restore(&mut self, path: &str, restored: &RestoredObject) {
        self.take(IndexLine::restored(path, restored));
    }

    /// Deletes an object; its members are forgotten if it is incomplete.
    pub fn delete(&mut self, path: &str) {
        self.take(IndexLine::Change(ObjectChange::new(path, None)));
    }

    /// Returns the number of changed objects.
    pub fn count_changed(&self) -> usize {
        self.entries.len() + self.restored.len()
    }

    /// Returns how many committed layers were below when the object at `path` was first changed here. Changes by later
    /// commits were not seen by the writer.
    pub fn commits_below(&self, path: &str) -> u64 {
        let seen = self.seen.get(path).copied();
        let usual = || self.usual.filter(|_| self.has(path));
        seen.or_else(usual).unwrap_or(self.commits)
    }

    /// Returns how many committed layers were below when the first of the objects was changed here.
    pub fn first_seen(&self) -> u64 {
        let seen = self.seen.values().copied().chain(self.usual);
        seen.min().unwrap_or(self.commits)
    }

    fn has(&self, path: &str) -> bool {
        self.entries.contains_key(path) || self.restored.contains_key(path)
    }

    /// Notes the number of commits below an object that is about to be changed.
    fn note_commits_below(&mut self, path: &str) {
        let usual = *self.usual.get_or_insert(self.commits);
        if usual != self.commits && !self.has(path) {
            self.seen.insert(path.to_owned(), self.commits);
        }
    }
}

/// The index of one layer, open for appending.
pub struct Index {
    lines: RecordLog<IndexLine>,
    changes: IndexChanges,
    /// The number of lines in the file.
    count: usize,
    /// The number of lines at which the file is rewritten.
    most: usize,
}

impl Index {
    /// Opens the index of the layer in `dir`. Creates a new one unless the layer has objects already.
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
            changes: IndexChanges::from_lines(records),
            most: 0,
        };
        index.compact();
        Ok(index)
    }

    /// Rewrites the file if most of its lines are obsolete.
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
            // A long file is harmless: try again later. If it is unknown which file is on the disk, the next change
            // fails.
            Err(_) => self.most = self.count.saturating_mul(2),
        }
    }

    /// Appends lines, durably: on failure none of them. Returns the numbers of members' files that are no longer
    /// needed.
    fn add(&mut self, lines: Vec<IndexLine>) -> Result<Vec<u64>> {
        self.lines.add_all(&lines)?;
        self.count += lines.len();
        let taken = lines.into_iter().map(|line| self.changes.take(line));
        let taken = taken.collect::<Vec<_>>().concat();
        self.compact();
        Ok(taken)
    }

    /// Returns all changes.
    pub fn changes(&self) -> &IndexChanges {
        &self.changes
    }

    /// Replaces all changes, durably and at once. On failure the previous ones remain.
    pub fn replace(&mut self, changes: IndexChanges) -> Result<()> {
        let lines = changes.lines();
        self.lines.rewrite(&lines)?;
        (self.count, self.most) = (lines.len(), 0);
        self.changes = changes;
        Ok(())
    }

    /// Returns every changed object; `None` for a deleted one.
    pub fn entries(&self) -> &BTreeMap<String, PathState> {
        &self.changes.entries
    }

    /// Returns whether an object is in the file with this number.
    pub fn uses(&self, file: u64) -> bool {
        self.changes.users.contains_key(&file)
    }

    /// Records the state that the following changes are made on.
    pub fn begin(&mut self, begun: LayerBase) -> Result<()> {
        if self.changes.begun.is_some() && self.changes.commits == begun.commits {
            return Ok(());
        }
        self.add(vec![IndexLine::Begun(begun)]).map(drop)
    }

    /// Records the identity of a store that objects are written over, durably.
    pub fn know(&mut self, store: StoreEntry) -> Result<()> {
        self.add(vec![IndexLine::Store(store)]).map(drop)
    }

    /// Returns the identities of the stores that objects were written over, by key.
    pub fn stores(&self) -> &BTreeMap<String, StoreIdentity> {
        &self.changes.stores
    }

    /// Returns the incomplete objects by their paths.
    pub fn incomplete(&self) -> &BTreeMap<String, KeptObject> {
        &self.changes.incomplete
    }

    /// Records changes, durably: on failure none of them. Returns the numbers of members' files that are no longer
    /// needed.
    pub fn add_all(&mut self, records: Vec<ObjectChange>) -> Result<Vec<u64>> {
        self.add(records.into_iter().map(IndexLine::Change).collect())
    }

    /// Records an incomplete object, durably, replacing its earlier state. Returns the numbers of members' files that
    /// are no longer needed.
    pub fn keep(&mut self, object: KeptObject) -> Result<Vec<u64>> {
        self.add(vec![IndexLine::Incomplete(object)])
    }

    /// Returns whether nothing can be appended any more, because a failed change could not be undone.
    pub fn is_lost(&self) -> bool {
        self.lines.is_lost()
    }
}

/// Returns a time as stored in the index. Times outside of 1678 to 2262 are clamped.
pub fn nanoseconds(time: SystemTime) -> i64 {
    match time.duration_since(UNIX_EPOCH) {
        Ok(after) => i64::try_from(after.as_nanos()).unwrap_or(i64::MAX),
        Err(before) => i64::try_from(before.duration().as_nanos()).map_or(i64::MIN, |n| -n),
    }
}

/// Returns the names of the files that lines of an index refer to. With `is_all`, the text is a whole index, and lines
/// that later ones replace are ignored; otherwise it continues other lines.
pub fn files_named(text: &str, is_all: bool) -> Result<BTreeSet<String>> {
    let bytes = match is_all {
        true => text.as_bytes().to_vec(),
        false => [FORM.first().as_bytes(), text.as_bytes()].concat(),
    };
    let lines: Vec<IndexLine> = record_log::parse_whole(&bytes, FORM)?;
    let mut named = BTreeSet::new();
    let mut incomplete = |object: &KeptObject| {
        named.extend(object.members.iter().map(KeptMember::file_name));
    };
    if is_all {
        let changes = IndexChanges::from_lines(lines);
        changes.incomplete.values().for_each(&mut incomplete);
        let stored = changes.entries.values().flatten();
        named.extend(stored.map(|stored| stored.name()));
        return Ok(named);
    }
    let mut stored = Vec::new();
    for line in lines {
        match line {
            IndexLine::Incomplete(object) => incomplete(&object),
            IndexLine::Change(change) => stored.extend(change.stored.map(|stored| stored.name())),
            _ => {}
        }
    }
    named.extend(stored);
    Ok(named)
}

#[cfg(test)]
mod tests {
    use super::*;
    use npyfs_io::storage::Disk;
    use std::path::Path;

    fn record(path: &str, file: Option<u64>) -> ObjectChange {
        let stored = file.map(|file| {
            Arc::new(StoredObject {
                file,
                time: -5,
                ..StoredObject::default()
            })
        });
        ObjectChange::new(path, stored)
    }

    fn open(dir: &Path) -> Result<Index> {
        Index::open(&Dir::own(dir), Arc::new(Disk), false)
    }

    #[test]
    fn the_last_record_of_an_object_counts() {
        let dir = tempfile::tempdir().unwrap();
        let mut index = open(dir.path()).unwrap();
        for (path, file) in [("a\nb", Some(1)), ("c", Some(2)), ("c", None)] {
            index.add_all(vec![record(path, file)]).unwrap();
        }
        let entries = index.entries().clone();
        drop(index);
        let again = open(dir.path()).unwrap();
        assert_eq!(again.entries(), &entries);
        assert_eq!(again.entries()["a\nb"].as_ref().unwrap().file, 1);
        assert_eq!(again.entries()["c"], None);
    }

    #[test]
    fn what_an_object_was_first_changed_on_is_remembered() {
        let dir = tempfile::tempdir().unwrap();
        let begun = |commits| LayerBase {
            commits,
            ..LayerBase::default()
        };
        for (commits, names) in [(2, ["a", "b"]), (5, ["b", "c"])] {
            let mut index = open(dir.path()).unwrap();
            index.begin(begun(commits)).unwrap();
            for name in names {
                index.add_all(vec![record(name, None)]).unwrap();
            }
        }
        let changes = IndexChanges::read(&Dir::own(dir.path())).unwrap();
        let seen = ["a", "b", "c", "d"].map(|name| changes.commits_below(name));
        assert_eq!(seen, [2, 2, 5, 5]);
        assert_eq!(changes.begun, Some(begun(2)));
    }

    #[test]
    fn members_count_until_their_object_is_stored_or_deleted() {
        let kept = |files: &[u64]| KeptObject {
            object: "a".into(),
            members: files
                .iter()
                .map(|&file| KeptMember {
                    name: format!("{file}.npy"),
                    file,
                    time: 1,
                })
                .collect(),
            missing: vec!["x".into()],
            why: None,
        };
        for change in [Some(9), None] {
            let dir = tempfile::tempdir().unwrap();
            let mut index = open(dir.path()).unwrap();
            index.add_all(vec![record("a", Some(1))]).unwrap();
            assert!(index.keep(kept(&[2, 3])).unwrap().is_empty());
            assert_eq!(index.keep(kept(&[3, 4])).unwrap(), [2]);
            // One change sets a time, the other stores another object.
            let others = vec![record("a", Some(1)), record("b", Some(5))];
            assert!(index.add_all(others).unwrap().is_empty());
            let read = IndexChanges::read(&Dir::own(dir.path())).unwrap();
            assert_eq!(read.incomplete["a"], kept(&[3, 4]));
            assert_eq!(index.add_all(vec![record("a", change)]).unwrap(), [3, 4]);
            assert!(
                IndexChanges::read(&Dir::own(dir.path()))
                    .unwrap()
                    .incomplete
                    .is_empty()
            );
            assert!(index.keep(kept(&[6])).unwrap().is_empty());
            assert_eq!(index.keep(kept(&[])).unwrap(), [6]);
            drop(index);
            assert!(open(dir.path()).unwrap().incomplete().is_empty());
        }
    }

    #[test]
    fn one_that_grows_is_written_anew_and_says_the_same() {
        let dir = tempfile::tempdir().unwrap();
        let own = Dir::own(dir.path());
        let length = || std::fs::metadata(dir.path().join(NAME)).unwrap().len();
        let same = |a: &IndexChanges, b: &IndexChanges| {
            assert_eq!(format!("{a:?}"), format!("{b:?}"));
        };
        // A long file that was only appended to is read as it is.
        let mut long = Vec::new();
        let mut index = open(dir.path()).unwrap();
        let mut add = |index: &mut Index, line: fn(u64) -> IndexLine, n: u64| {
            long.push(line(n));
            index.add(vec![line(n)]).unwrap();
            let all: Vec<IndexLine> =
                serde_json::from_str(&serde_json::to_string(&long).unwrap()).unwrap();
            let all = IndexChanges::from_lines(all);
            same(&index.changes, &all);
            same(&IndexChanges::read(&own).unwrap(), &all);
        };
        for commits in [2, 2, 5, 9] {
            add(
                &mut index,
                |commits| {
                    IndexLine::Begun(LayerBase {
                        commits,
                        time: 7,
                        on: Some(format!("id{commits}")),
                        base: Some(Vec::new()),
                    })
                },
                commits,
            );
            let store = |n| {
                IndexLine::Store(StoreEntry {
                    store: format!("s{n}"),
                    identity: StoreIdentity {
                        kind: "daf".into(),
                        ..StoreIdentity::default()
                    },
                })
            };
            add(&mut index, store, commits);
            for n in 0..30 {
                let change =
                    |n| IndexLine::Change(record(&format!("o{}", n % 4), (n % 3 > 0).then_some(n)));
                add(&mut index, change, n + commits);
            }
            let kept = |n| {
                IndexLine::Incomplete(KeptObject {
                    object: format!("m{n}"),
                    members: vec![KeptMember {
                        name: "x.npy".into(),
                        file: 1000 + n,
                        time: 1,
                    }],
                    missing: Vec::new(),
                    why: None,
                })
            };
            add(&mut index, kept, commits);
        }
        assert!(index.count < 60, "{}", index.count);
        let short = length();
        // It is shortened when it is opened.
        drop(index);
        let again = open(dir.path()).unwrap();
        assert!(length() <= short && again.count < 60);
    }

    #[test]
    fn an_index_of_the_first_form_is_refused_by_name() {
        let dir = tempfile::tempdir().unwrap();
        std::fs::write(dir.path().join(NAME), "npyfs checkout 1\n").unwrap();
        let read = IndexChanges::read(&Dir::own(dir.path())).unwrap_err();
        let opened = open(dir.path()).err().unwrap();
        for refused in [read, opened] {
            assert!(
                refused.message.contains("an older npyfs: form 1"),
                "{refused}"
            );
        }
    }

    #[test]
    fn what_newer_versions_say_of_an_object_is_kept() {
        let json = r#"{"path":"a","stored":{"file":1,"time":3,"colour":"red"}}"#;
        let line: IndexLine = serde_json::from_str(json).unwrap();
        assert_eq!(serde_json::to_string(&line).unwrap(), json);
        // Neither is a record, nor the deletion of an object.
        for json in [r#"{"path":"a"}"#, r#"{"path":"a","moved":"b"}"#] {
            assert!(serde_json::from_str::<IndexLine>(json).is_err(), "{json}");
        }
    }

    #[test]
    fn an_index_that_is_gone_is_not_made_again_over_objects() {
        let dir = tempfile::tempdir().unwrap();
        assert!(Index::open(&Dir::own(dir.path()), Arc::new(Disk), true).is_err());
    }
}
