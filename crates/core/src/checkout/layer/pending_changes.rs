//! The objects of a layer, and the changes that are not in its index yet.
//!
//! Readers see a change as soon as it is recorded here. It is final when its line is in the index. Lines are added in
//! the order of the changes, many at a time.

use std::collections::{BTreeMap, HashSet};
use std::fs::File;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use super::pack::{MOST_BYTES, Pack, SmallObject};
use crate::checkout::records::fit::StoreIdentity;
use crate::checkout::records::index::{
    Index, IndexChanges, KeptObject, LayerBase, ObjectChange, PathState, StoreEntry, StoredObject,
};
use npyfs_base::error::{Error, ErrorKind, Result};

/// The most objects that a message names.
const NAMED: usize = 20;

/// The most files that wait for further objects.
const MOST_OPEN: usize = 8;

/// The objects of a layer.
pub struct PendingChanges {
    index: Index,
    /// The latest change of each object that is changed and not in the index yet.
    changed: BTreeMap<String, PathState>,
    waiting: Vec<PendingChange>,
    /// Files that are not written yet, oldest first.
    packs: Vec<Arc<Pack>>,
    /// Files that are written but not synced, with their numbers.
    written: Vec<(u64, File)>,
    /// The failure after which no changes are accepted.
    lost: Option<Error>,
}

/// Changes and files that are synced together.
pub struct PendingBatch {
    /// The changes, in their order.
    pub changes: Vec<PendingChange>,
    /// Shared files, with their numbers.
    pub packs: Vec<(u64, File)>,
}

/// A change without a line in the index.
pub struct PendingChange {
    /// The change as the index will record it.
    pub record: ObjectChange,
    /// The new, unsynced file.
    pub file: Option<File>,
    /// The object whose file is not needed once the change is final.
    pub old: Option<Arc<StoredObject>>,
    /// The previous entry, if the layer had one.
    before: Option<PathState>,
    settled: FinalFlag,
}

/// A flag for the thread that made a change: the change is final.
#[derive(Clone, Debug, Default)]
pub struct FinalFlag(Arc<AtomicBool>);

impl FinalFlag {
    /// Returns true if the change is final.
    pub fn is(&self) -> bool {
        self.0.load(Ordering::Acquire)
    }
}

impl PendingChanges {
    /// Begins with the content of an index.
    pub fn new(index: Index) -> Self {
        Self {
            index,
            changed: BTreeMap::new(),
            waiting: Vec::new(),
            packs: Vec::new(),
            written: Vec::new(),
            lost: None,
        }
    }

    /// Returns the entry of an object, whose object is `None` for a deleted one; `None` if the layer does not change
    /// the object.
    pub fn get(&self, path: &str) -> Option<&PathState> {
        let changed = self.changed.get(path);
        changed.or_else(|| self.index.entries().get(path))
    }

    /// Returns every changed object; `None` for a deleted one.
    pub fn now(&self) -> impl Iterator<Item = (&String, &PathState)> {
        let recorded = self.index.entries().iter();
        let recorded = recorded.filter(|(path, _)| !self.changed.contains_key(*path));
        recorded.chain(&self.changed)
    }

    /// Returns the number of waiting changes.
    pub fn waiting(&self) -> usize {
        self.waiting.len()
    }

    /// Returns the number of open files that wait to be synced.
    pub fn open_files(&self) -> usize {
        let own = self.waiting.iter().filter(|waiting| waiting.file.is_some());
        own.count() + self.written.len()
    }

    /// Records in the index the commit that the following changes are based on.
    pub fn begin(&mut self, begun: LayerBase) -> Result<()> {
        self.index.begin(begun)
    }

    /// Records the identity of a store in the index.
    pub fn know(&mut self, store: StoreEntry) -> Result<()> {
        self.check()?;
        self.index.know(store)
    }

    /// Returns the identities of the stores that objects were written over, by key.
    pub fn stores(&self) -> &BTreeMap<String, StoreIdentity> {
        self.index.stores()
    }

    /// Returns the changes that the index records.
    pub fn recorded(&self) -> &IndexChanges {
        self.index.changes()
    }

    /// Replaces the changes that the index records, at once. No changes may wait.
    pub fn replace_all(&mut self, changes: IndexChanges) -> Result<()> {
        self.check()?;
        self.index.replace(changes)
    }

    /// Records a change.
    pub fn change(&mut self, record: ObjectChange, file: Option<File>) -> Result<FinalFlag> {
        self.check()?;
        let new = record.stored.as_ref().map(|stored| stored.file);
        let before = self.get(&record.path).cloned();
        let old = before.clone().flatten();
        self.changed
            .insert(record.path.clone(), record.stored.clone());
        let settled = FinalFlag::default();
        self.waiting.push(PendingChange {
            old: old.filter(|old| Some(old.file) != new),
            record,
            file,
            before,
            settled: settled.clone(),
        });
        Ok(settled)
    }

    /// Fails if an earlier failure left the state on the disk unknown.
    pub fn check(&self) -> Result<()> {
        self.lost.clone().map_or(Ok(()), Err)
    }

    /// Takes all waiting changes for a sync, up to the first object whose file is not written.
    pub fn take(&mut self) -> PendingBatch {
        let unwritten: HashSet<u64> = self.packs.iter().map(|pack| pack.number).collect();
        let waits = |waiting: &PendingChange| {
            let stored = waiting.record.stored.as_ref();
            stored.is_some_and(|stored| unwritten.contains(&stored.file))
        };
        let end = self.waiting.iter().position(waits);
        let rest = self.waiting.split_off(end.unwrap_or(self.waiting.len()));
        PendingBatch {
            changes: std::mem::replace(&mut self.waiting, rest),
            packs: std::mem::take(&mut self.written),
        }
    }

    /// Adds an object to a shared file. A new file gets this time and the number `next`. Returns the file's number;
    /// `None` if the waiting files must be written first.
    pub fn pack(
        &mut self,
        small: &SmallObject,
        time: i64,
        next: impl FnOnce() -> u64,
    ) -> Option<u64> {
        let bytes: u64 = self.packs.iter().map(|pack| pack.bytes).sum();
        if bytes.saturating_add(small.bytes()) > MOST_BYTES && bytes > 0 {
            return None;
        }
        let mut open = self.packs.iter_mut().rev().take(MOST_OPEN);
        // A thread that writes the file holds it, too.
        let found = open.find_map(|pack| {
            let pack = Arc::get_mut(pack)?;
            pack.add(small).then_some(pack.number)
        });
        found.or_else(|| {
            let mut pack = Pack::new((next(), time), small);
            let number = pack.number;
            let added = pack.add(small);
            self.packs.push(Arc::new(pack));
            added.then_some(number)
        })
    }

    /// Returns the oldest unwritten file. Nothing is added to it while the caller holds it.
    pub fn unwritten(&self) -> Option<Arc<Pack>> {
        self.packs.first().cloned()
    }

    /// Records that a file is written and waits to be synced.
    pub fn is_written(&mut self, number: u64, file: File) {
        self.packs.retain(|pack| pack.number != number);
        self.written.push((number, file));
    }

    /// Returns whether an object is in the file with this number, or will be.
    pub fn uses(&self, file: u64) -> bool {
        let is_it = |stored: &Arc<StoredObject>| stored.file == file;
        let mut waiting = self.waiting.iter();
        self.index.uses(file) || waiting.any(|w| w.record.stored.as_ref().is_some_and(is_it))
    }

    /// Returns the incomplete objects by their paths.
    pub fn incomplete(&self) -> &BTreeMap<String, KeptObject> {
        self.index.incomplete()
    }

    /// Records an incomplete object, at once. Returns the numbers of files that are no longer needed.
    pub fn keep(&mut self, object: KeptObject) -> Result<Vec<u64>> {
        self.check()?;
        self.index.keep(object)
    }

    /// Adds the lines of changes whose files are synced. Returns the numbers of files that are no longer needed.
    pub fn settle(&mut self, batch: &[PendingChange]) -> Result<Vec<u64>> {
        if batch.is_empty() {
            return Ok(Vec::new());
        }
        let records = batch.iter().map(|waiting| waiting.record.clone());
        let unused = self.index.add_all(records.collect())?;
        for PendingChange {
            record, settled, ..
        } in batch
        {
            // A later change takes precedence.
            if self.changed.get(&record.path) == Some(&record.stored) {
                self.changed.remove(&record.path);
            }
            settled.0.store(true, Ordering::Release);
        }
        Ok(unused)
    }

    /// Puts back changes that could not be settled, before all later ones.
    pub fn put_back(&mut self, mut batch: Vec<PendingChange>) {
        batch.append(&mut self.waiting);
        self.waiting = batch;
    }

    /// Withdraws a waiting change. Returns the file that is no longer needed then, if any.
    pub fn withdraw(&mut self, settled: &FinalFlag) -> Option<Arc<StoredObject>> {
        let is_it = |waiting: &PendingChange| Arc::ptr_eq(&waiting.settled.0, &settled.0);
        let at = self.waiting.iter().position(is_it)?;
        let PendingChange { record, before, .. } = self.waiting.remove(at);
        // A later change takes precedence.
        if self.changed.get(&record.path) == Some(&record.stored) {
            match before {
                Some(before) if self.index.entries().get(&record.path) != Some(&before) => {
                    self.changed.insert(record.path, before)
                }
                _ => self.changed.remove(&record.path),
            };
        }
        record.stored
    }

    /// Withdraws all changes that are not in the index.
    pub fn take_back(&mut self) {
        self.waiting.clear();
        self.changed.clear();
    }

    /// Gives up all waiting changes: their state on the disk is unknown, so no further changes are accepted. Returns
    /// the error, which names the objects.
    pub fn lose(&mut self, mut changes: Vec<PendingChange>, why: Error) -> Error {
        changes.append(&mut self.waiting);
        self.take_back();
        let list = names(&changes);
        let message = format!(
            "not on the disk: {list}: {} (mount again to write)",
            why.message
        );
        let lost = Error::new(ErrorKind::Os(why.errno()), message);
        self.lost = Some(lost.clone());
        lost
    }

    /// Adds the waiting objects to a failure.
    pub fn about_waiting(&self, why: &Error) -> Error {
        let list = names(&self.waiting);
        let message = format!("not on the disk yet: {list}: {}", why.message);
        Error::new(ErrorKind::Waits(why.errno()), message)
    }

    /// Returns whether not even lines of the index can be added any more.
    pub fn is_index_lost(&self) -> bool {
        self.index.is_lost()
    }
}

/// Names the objects of changes.
fn names(changes: &[PendingChange]) -> String {
    let mut names: Vec<_> = changes.iter().map(|c| c.record.path.as_str()).collect();
    names.sort_unstable();
    names.dedup();
    let more = names.len().saturating_sub(NAMED);
    names.truncate(NAMED);
    let mut list = names.join(", ");
    if more > 0 {
        list += &format!(" and {more} more");
    }
    list
}
