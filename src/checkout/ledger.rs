//! What a layer holds, and what of that its index does not say yet.
//!
//! A change counts for whoever asks from the moment it is noted. It happened for good when its line is in the
//! index, and lines are added in the order of the changes, many at a time.

use std::collections::BTreeMap;
use std::fs::File;

use super::index::{Begun, Index, Record, Stored};
use crate::error::{Error, ErrorKind, Result};

/// The objects of a layer.
pub struct Ledger {
    index: Index,
    /// What the index says with all that waits.
    now: BTreeMap<String, Option<Stored>>,
    waiting: Vec<Waiting>,
    lost: bool,
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
            lost: false,
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

    /// EIO after a failure that left what nobody knows.
    pub fn check(&self) -> Result<()> {
        if self.lost {
            let message = "an earlier change did not reach the disk: mount again to write";
            return Err(Error::new(ErrorKind::Os(libc::EIO), message));
        }
        Ok(())
    }

    /// All that waits, to be synced.
    pub fn take(&mut self) -> Vec<Waiting> {
        std::mem::take(&mut self.waiting)
    }

    /// Adds the lines of changes whose files are synced.
    pub fn settle(&mut self, batch: &[Waiting]) -> Result<()> {
        let records = batch.iter().map(|waiting| waiting.record.clone());
        self.index.add_all(records.collect())
    }

    /// What could not be settled waits again, before all that came later.
    pub fn put_back(&mut self, mut batch: Vec<Waiting>) {
        batch.append(&mut self.waiting);
        self.waiting = batch;
    }

    /// Takes back all that the index does not say.
    pub fn take_back(&mut self) {
        self.waiting.clear();
        self.now = self.index.entries().clone();
    }

    /// What the disk holds of the changes is not known: there will be no others.
    pub fn lose(&mut self) {
        self.take_back();
        self.lost = true;
    }

    /// Whether not even the index can be added to any more.
    pub fn is_index_lost(&self) -> bool {
        self.index.is_lost()
    }
}
