//! The objects of a layer, and the changes that its index does not say yet.
//!
//! A change counts for whoever asks from the moment it is noted. It happened for good when its line is in the
//! index, and lines are added in the order of the changes, many at a time.

use std::collections::{BTreeMap, HashSet};
use std::fs::File;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use super::fit::StoreIdentity;
use super::index::{Index, KeptObject, LayerBase, ObjectChange, StoreEntry, StoredObject};
use super::pack::{MOST_BYTES, Pack, SmallObject};
use crate::error::{Error, ErrorKind, Result};

/// Most objects that a message names.
const NAMED: usize = 20;

/// Files that wait for more objects at a time, at most.
const MOST_OPEN: usize = 8;

/// The objects of a layer.
pub struct PendingChanges {
    index: Index,
    /// The entries of the index with all changes that wait.
    now: BTreeMap<String, Option<StoredObject>>,
    waiting: Vec<PendingChange>,
    /// Files that are not written yet, the oldest first.
    packs: Vec<Arc<Pack>>,
    /// Files that were written and are not synced, with their numbers.
    written: Vec<(u64, File)>,
    /// The failure after which there are no other changes.
    lost: Option<Error>,
}

/// The changes and files that are synced together.
pub struct PendingBatch {
    /// The changes, in their order.
    pub changes: Vec<PendingChange>,
    /// Files that objects share, with their numbers.
    pub packs: Vec<(u64, File)>,
}

/// A change that has no line in the index yet.
pub struct PendingChange {
    /// The change as the index will say it.
    pub record: ObjectChange,
    /// The new file, which is not synced.
    pub file: Option<File>,
    /// The object whose file nobody needs once the change has happened.
    pub old: Option<StoredObject>,
    /// The entry that stood there before, if the layer had any.
    before: Option<Option<StoredObject>>,
    settled: Settled,
}

/// A flag for who made a change: it happened for good.
#[derive(Clone, Debug, Default)]
pub struct Settled(Arc<AtomicBool>);

impl Settled {
    /// Returns true if it happened for good.
    pub fn is(&self) -> bool {
        self.0.load(Ordering::Acquire)
    }
}

impl PendingChanges {
    /// Begins with what an index says.
    pub fn new(index: Index) -> Self {
        Self {
            now: index.entries().clone(),
            index,
            waiting: Vec::new(),
            packs: Vec::new(),
            written: Vec::new(),
            lost: None,
        }
    }

    /// Every object that was changed; `None`: it was deleted.
    pub fn now(&self) -> &BTreeMap<String, Option<StoredObject>> {
        &self.now
    }

    /// Changes that wait.
    pub fn waiting(&self) -> usize {
        self.waiting.len()
    }

    /// Files that wait to be synced, and are open.
    pub fn open_files(&self) -> usize {
        let own = self.waiting.iter().filter(|waiting| waiting.file.is_some());
        own.count() + self.written.len()
    }

    /// Adds to the index what the changes from now on are made on.
    pub fn begin(&mut self, begun: LayerBase) -> Result<()> {
        self.index.begin(begun)
    }

    /// Adds to the index what a store is.
    pub fn know(&mut self, store: StoreEntry) -> Result<()> {
        self.check()?;
        self.index.know(store)
    }

    /// Returns what the stores were that objects were written over, by key.
    pub fn stores(&self) -> &BTreeMap<String, StoreIdentity> {
        self.index.stores()
    }

    /// Notes a change.
    pub fn change(&mut self, record: ObjectChange, file: Option<File>) -> Result<Settled> {
        self.check()?;
        let new = record.stored.as_ref().map(|stored| stored.file);
        let before = self.now.insert(record.path.clone(), record.stored.clone());
        let old = before.clone().flatten();
        let settled = Settled::default();
        self.waiting.push(PendingChange {
            old: old.filter(|old| Some(old.file) != new),
            record,
            file,
            before,
            settled: settled.clone(),
        });
        Ok(settled)
    }

    /// The failure that left what nobody knows, if there was one.
    pub fn check(&self) -> Result<()> {
        self.lost.clone().map_or(Ok(()), Err)
    }

    /// All that waits, to be synced, up to the first object whose file is not written.
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

    /// Puts an object in a file with others, which gets this time and the number `next` if it is a new one. Answers the number; `None`: what waits
    /// must be written first.
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
        // Whoever writes one has it as well.
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

    /// Returns the oldest file that is not written. Nothing is added to it as long as it is held.
    pub fn unwritten(&self) -> Option<Arc<Pack>> {
        self.packs.first().cloned()
    }

    /// Notes that a file is written, and waits to be synced.
    pub fn is_written(&mut self, number: u64, file: File) {
        self.packs.retain(|pack| pack.number != number);
        self.written.push((number, file));
    }

    /// Returns whether an object is in the file of this number, or will be.
    pub fn uses(&self, file: u64) -> bool {
        let is_it = |stored: &StoredObject| stored.file == file;
        let mut waiting = self.waiting.iter();
        self.index.uses(file) || waiting.any(|w| w.record.stored.as_ref().is_some_and(is_it))
    }

    /// Objects that are not complete, by their path.
    pub fn incomplete(&self) -> &BTreeMap<String, KeptObject> {
        self.index.incomplete()
    }

    /// Remembers an object that is not complete, at once. Answers the numbers of files that nobody needs any more.
    pub fn keep(&mut self, object: KeptObject) -> Result<Vec<u64>> {
        self.check()?;
        self.index.keep(object)
    }

    /// Adds the lines of changes whose files are synced. Answers as `keep`.
    pub fn settle(&mut self, batch: &[PendingChange]) -> Result<Vec<u64>> {
        if batch.is_empty() {
            return Ok(Vec::new());
        }
        let records = batch.iter().map(|waiting| waiting.record.clone());
        let unused = self.index.add_all(records.collect())?;
        for waiting in batch {
            waiting.settled.0.store(true, Ordering::Release);
        }
        Ok(unused)
    }

    /// Has what could not be settled wait again, before all that came later.
    pub fn put_back(&mut self, mut batch: Vec<PendingChange>) {
        batch.append(&mut self.waiting);
        self.waiting = batch;
    }

    /// Takes back a change that still waits. Answers the file that nobody needs then, if it has one.
    pub fn withdraw(&mut self, settled: &Settled) -> Option<StoredObject> {
        let is_it = |waiting: &PendingChange| Arc::ptr_eq(&waiting.settled.0, &settled.0);
        let at = self.waiting.iter().position(is_it)?;
        let PendingChange { record, before, .. } = self.waiting.remove(at);
        // What came later counts.
        if self.now.get(&record.path) == Some(&record.stored) {
            match before {
                Some(before) => self.now.insert(record.path, before),
                None => self.now.remove(&record.path),
            };
        }
        record.stored
    }

    /// Takes back all that the index does not say.
    pub fn take_back(&mut self) {
        self.waiting.clear();
        self.now = self.index.entries().clone();
    }

    /// Gives up all that waits: what the disk holds of these changes is not known, so none can be made, and there will be no
    /// others. Answers the reason, which names the objects.
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

    /// Adds to a failure what it keeps waiting.
    pub fn about_waiting(&self, why: &Error) -> Error {
        let list = names(&self.waiting);
        let message = format!("not on the disk yet: {list}: {}", why.message);
        Error::new(ErrorKind::Os(why.errno()), message)
    }

    /// Returns whether not even the index can be added to any more.
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
