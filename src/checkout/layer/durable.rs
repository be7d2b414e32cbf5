//! Makes the changes of a layer durable: many together, with each kind of sync once.
//!
//! Only lines of the index are ever written again. A file that could not be synced is lost, whatever a second
//! sync would say: the kernel forgets what it could not write.

use std::collections::HashSet;
use std::sync::atomic::Ordering;
use std::sync::{Arc, MutexGuard, Weak};
use std::time::Duration;

use super::super::index::StoredObject;
use super::super::pack::PackWriter;
use super::super::pending_changes::{PendingBatch, PendingChange, PendingChanges, Settled};
use super::Layer;
use crate::error::{Error, Result};

/// Changes of which the disk may have anything, and why.
type Lost = (Vec<PendingChange>, Error);

impl Layer {
    pub(super) fn only_one(&self) -> MutexGuard<'_, ()> {
        self.syncing.lock().unwrap_or_else(|e| e.into_inner())
    }

    /// Returns once every change that was made would survive a loss of power, and of this machine if the layer lies in a bucket.
    pub fn sync(&self) -> Result<()> {
        let _one = self.only_one();
        self.sync_waiting()?;
        let Some(upload) = &self.upload else {
            return Ok(());
        };
        // Whatever changes from here on is uploaded another time.
        self.behind.store(false, Ordering::Release);
        let mut upload = upload.lock().unwrap_or_else(|e| e.into_inner());
        upload.run().inspect_err(|_| {
            self.behind.store(true, Ordering::Release);
        })
    }

    /// Waits until changes are durable; what is not is taken back.
    pub(super) fn settle(&self, changes: &[Settled]) -> Result<()> {
        let _one = self.only_one();
        let are_settled = || changes.iter().all(Settled::is);
        // By whoever synced while this thread waited.
        if are_settled() {
            return Ok(());
        }
        let synced = self.sync_waiting();
        if are_settled() {
            return Ok(());
        }
        let mut pending = self.pending();
        for change in changes {
            if let Some(stored) = pending.withdraw(change) {
                let _ = self.storage.remove(&self.dir, &stored.name());
            }
        }
        synced.and_then(|()| pending.check())?;
        Err(Error::damaged("a change was lost"))
    }

    pub(super) fn sync_waiting(&self) -> Result<()> {
        self.pending().check()?;
        let packed = self.write_packs();
        // That libhdf5 does not take it, it would say again.
        if let Err(e) = &packed
            && matches!(e.errno(), libc::EOPNOTSUPP | libc::EINVAL)
        {
            return Err(self.pending().lose(Vec::new(), e.clone()));
        }
        let batch = self.pending().take();
        let is_empty = batch.changes.is_empty() && batch.packs.is_empty();
        self.behind.fetch_or(!is_empty, Ordering::AcqRel);
        if is_empty {
            return packed.and_then(|()| self.pending().check());
        }
        let (batch, lost) = self.sync_files(batch);
        let mut pending = self.pending();
        let settled = pending.settle(&batch);
        let deferred = self.deferred.load(Ordering::Acquire);
        let remove = |stored: Option<&StoredObject>| {
            if let Some(stored) = stored {
                let _ = self.storage.remove(&self.dir, &stored.name());
            }
        };
        if let Ok(members) = &settled {
            self.remove_members(members);
            let old =
                |waiting: &PendingChange| Some((waiting.record.path.clone(), waiting.old.clone()?));
            self.remove_replaced(&pending, batch.iter().filter_map(old));
        }
        match (lost, settled) {
            (None, Ok(_)) => packed,
            (Some((mut lost, e)), settled) => {
                if !deferred {
                    pending.take_back();
                    let files = lost.iter().filter(|change| change.file.is_some());
                    files.for_each(|change| remove(change.record.stored.as_ref()));
                    return Err(e);
                }
                // Whoever reads what was lost has it from memory; it goes when the layer is next opened.
                if settled.is_err() {
                    lost.extend(batch);
                }
                Err(pending.lose(lost, e))
            }
            (None, Err(e)) => {
                // A file whose line may or may not be on the disk stays until the index is read again.
                if !deferred {
                    pending.take_back();
                } else if pending.is_index_lost() {
                    return Err(pending.lose(batch, e));
                } else {
                    pending.put_back(batch);
                }
                Err(e)
            }
        }
    }

    /// Syncs the files of a batch and their names. Answers the changes whose lines may be written, and those of
    /// which the disk may have anything.
    fn sync_files(&self, batch: PendingBatch) -> (Vec<PendingChange>, Option<Lost>) {
        let PendingBatch {
            changes: batch,
            packs,
        } = batch;
        let of_change = |waiting: &'_ PendingChange| waiting.record.stored.as_ref().map(|s| s.file);
        let own = batch
            .iter()
            .filter_map(|w| Some((of_change(w)?, w.file.as_ref()?)));
        let shared = packs.iter().map(|(number, file)| (*number, file));
        let files: Vec<_> = own.chain(shared).collect();
        if files.is_empty() {
            return (batch, None);
        }
        if files.len() > 1 {
            files
                .iter()
                .for_each(|(_, file)| self.storage.begin_sync(file));
        }
        let mut failed = None;
        let mut bad = HashSet::new();
        for (number, file) in &files {
            if let Err(e) = self.storage.sync(file) {
                bad.insert(*number);
                failed.get_or_insert(e);
            }
        }
        if let Err(e) = self.storage.sync_dir(&self.dir) {
            bad.extend(files.iter().map(|(number, _)| *number));
            failed.get_or_insert(e);
        }
        drop(files);
        let Some(e) = failed else {
            return (batch, None);
        };
        let is_bad = |waiting: &PendingChange| match &waiting.record.stored {
            Some(stored) => bad.contains(&stored.file),
            // Whoever deletes waits for the answer, which is this failure: then it must not happen.
            None => true,
        };
        let (lost, good) = batch.into_iter().partition(is_bad);
        (
            good,
            Some((lost, Error::from(e).about(self.dir.path().display()))),
        )
    }

    /// The failure since which nothing can be changed, if there was one.
    pub fn lost(&self) -> Option<Error> {
        self.pending().check().err()
    }

    /// Has changes wait to be synced from now on, and small objects for files that they share.
    pub(in crate::checkout) fn begin_deferring(self: &Arc<Self>) {
        let own: Weak<dyn PackWriter> = Arc::downgrade(self) as Weak<dyn PackWriter>;
        *self.own.lock().unwrap_or_else(|e| e.into_inner()) = Some(own);
        self.defer(true);
    }

    /// Returns whether changes are not durable yet.
    #[cfg(test)]
    pub(in crate::checkout) fn is_waiting(&self) -> bool {
        self.pending().waiting() > 0
    }

    /// Returns whether changes wait to be synced from now on.
    fn defer(&self, deferred: bool) {
        let _pending = self.pending();
        self.deferred.store(deferred, Ordering::Release);
        self.changed.notify_all();
    }

    /// Has changes made durable at once from now on.
    pub(in crate::checkout) fn end_deferring(&self) {
        self.defer(false);
    }

    /// Waits for a change, and `delay` longer for others; `false`, at once, when changes are not deferred any more.
    pub(in crate::checkout) fn wait_for_changes(&self, delay: Duration) -> bool {
        let deferred = || self.deferred.load(Ordering::Acquire);
        let nothing = |pending: &mut PendingChanges| {
            let is_uploaded = self.upload.is_none() || !self.behind.load(Ordering::Acquire);
            let nothing = pending.waiting() == 0 && is_uploaded && deferred();
            self.sleeps.store(nothing, Ordering::Release);
            nothing
        };
        let waited = self.changed.wait_while(self.pending(), nothing);
        let pending = waited.unwrap_or_else(|e| e.into_inner());
        let rested = self
            .changed
            .wait_timeout_while(pending, delay, |_| deferred());
        drop(rested);
        deferred()
    }
}
