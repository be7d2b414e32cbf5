//! What a layer holds, and what of that its index does not say yet.
//!
//! A change counts for whoever asks from the moment it is noted. It happened for good when its line is in the
//! index, and lines are added in the order of the changes, many at a time.

use std::collections::BTreeMap;
use std::fs::File;

use super::index::{Begun, Incomplete, Index, Record, Stored};
use crate::error::{Error, ErrorKind, Result};

/// Most objects that a message names.
const NAMED: usize = 20;

/// The objects of a layer.
pub struct Ledger {
    index: Index,
    /// What the index says with all that waits.
    now: BTreeMap<String, Option<Stored>>,
    waiting: Vec<Waiting>,
    /// Why there will be no other changes.
    lost: Option<Error>,
}

/// A change that has no line in the index yet.
pub struct Waiting {
    pub record: Record,
    /// The new file, which is not synced.
    pub file: Option<File>,
    /// What nobody needs once the change has happened.
    pub old: Option<Stored>,
}

impl Ledger {
    pub fn new(index: Index) -> Self {
        Self {
            now: index.entries().clone(),
            index,
            waiting: Vec::new(),
            lost: None,
        }
    }

    /// Every object that was changed; `None`: it was deleted.
    pub fn now(&self) -> &BTreeMap<String, Option<Stored>> {
        &self.now
    }

    /// Changes that wait.
    pub fn waiting(&self) -> usize {
        self.waiting.len()
    }

    pub fn begin(&mut self, begun: Begun) -> Result<()> {
        self.index.begin(begun)
    }

    /// Notes a change.
    pub fn change(&mut self, record: Record, file: Option<File>) -> Result<()> {
        self.check()?;
        let new = record.stored.as_ref().map(|stored| stored.file);
        let before = self.now.insert(record.path.clone(), record.stored.clone());
        let old = before.flatten().filter(|old| Some(old.file) != new);
        self.waiting.push(Waiting { record, file, old });
        Ok(())
    }

    /// The failure that left what nobody knows, if there was one.
    pub fn check(&self) -> Result<()> {
        self.lost.clone().map_or(Ok(()), Err)
    }

    /// All that waits, to be synced.
    pub fn take(&mut self) -> Vec<Waiting> {
        std::mem::take(&mut self.waiting)
    }

    /// Objects that are not complete, by their path.
    pub fn incomplete(&self) -> &BTreeMap<String, Incomplete> {
        self.index.incomplete()
    }

    /// Remembers an object that is not complete, at once. Answers the numbers of files that nobody needs any more.
    pub fn keep(&mut self, object: Incomplete) -> Result<Vec<u64>> {
        self.check()?;
        self.index.keep(object)
    }

    /// Adds the lines of changes whose files are synced. Answers as `keep`.
    pub fn settle(&mut self, batch: &[Waiting]) -> Result<Vec<u64>> {
        if batch.is_empty() {
            return Ok(Vec::new());
        }
        let records = batch.iter().map(|waiting| waiting.record.clone());
        self.index.add_all(records.collect())
    }

    /// What could not be settled waits again, before all that came later.
    pub fn put_back(&mut self, mut batch: Vec<Waiting>) {
        batch.append(&mut self.waiting);
        self.waiting = batch;
    }

    /// Takes back that an object was deleted, if that still waits and is the last that happened to it.
    pub fn withdraw(&mut self, path: &str) {
        let last = self.waiting.iter().rposition(|w| w.record.path == path);
        if let Some(at) = last.filter(|&at| self.waiting[at].record.stored.is_none()) {
            // What was deleted was of this layer, or of what is below it.
            match self.waiting.remove(at).old {
                Some(old) => self.now.insert(path.to_owned(), Some(old)),
                None => self.now.remove(path),
            };
        }
    }

    /// Takes back all that the index does not say.
    pub fn take_back(&mut self) {
        self.waiting.clear();
        self.now = self.index.entries().clone();
    }

    /// What the disk holds of these changes is not known, so none that waits can be made either, and there will be no
    /// others. Answers the reason, which names the objects.
    pub fn lose(&mut self, mut changes: Vec<Waiting>, why: Error) -> Error {
        changes.append(&mut self.waiting);
        self.take_back();
        let mut names: Vec<_> = changes.iter().map(|c| c.record.path.as_str()).collect();
        names.sort_unstable();
        names.dedup();
        let more = names.len().saturating_sub(NAMED);
        names.truncate(NAMED);
        let mut list = names.join(", ");
        if more > 0 {
            list += &format!(" and {more} more");
        }
        let message = format!(
            "not on the disk: {list}: {} (mount again to write)",
            why.message
        );
        let lost = Error::new(ErrorKind::Os(why.errno()), message);
        self.lost = Some(lost.clone());
        lost
    }

    /// Whether not even the index can be added to any more.
    pub fn is_index_lost(&self) -> bool {
        self.index.is_lost()
    }
}
