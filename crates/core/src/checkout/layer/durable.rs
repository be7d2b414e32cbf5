//! Makes the changes of a layer durable: many changes share each kind of sync.
//!
//! Only lines of the index are retried. A file that could not be synced is lost, whatever a second sync would report:
//! the kernel drops pages that it failed to write.

use std::collections::HashSet;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Weak};
use std::time::Duration;

use super::Layer;
use super::pending_changes::{PendingBatch, PendingChange, PendingChanges, Settled};
use crate::checkout::records::index::StoredObject;
use crate::checkout::records::unwritten::PackWriter;
use npyfs_base::error::{Error, Result};

/// Changes whose state on the disk is unknown, and the reason.
type Lost = (Vec<PendingChange>, Error);

impl Layer {
    /// Makes every change durable: returns once they would survive a power failure, and the loss of this machine if the
    /// layer is in a bucket.
    pub fn sync(&self) -> Result<()> {
        let _one = self.syncing.lock();
        self.sync_waiting()?;
        let Some(upload) = &self.upload else {
            return Ok(());
        };
        // Later changes are uploaded by the next call.
        self.behind.store(false, Ordering::Release);
        let mut upload = upload.lock();
        upload.run().inspect_err(|_| {
            self.behind.store(true, Ordering::Release);
        })
    }

    /// Waits until changes are durable; those that cannot be are taken back.
    pub(super) fn settle(&self, changes: &[Settled]) -> Result<()> {
        let _one = self.syncing.lock();
        let are_settled = || changes.iter().all(Settled::is);
        // Another thread may have synced them while this one waited.
        if are_settled() {
            return Ok(());
        }
        let synced = self.sync_waiting();
        if are_settled() {
            return Ok(());
        }
        let mut pending = self.pending.lock();
        for change in changes {
            if let Some(stored) = pending.withdraw(change) {
                let _ = self.storage.remove(&self.dir, &stored.name());
            }
        }
        synced.and_then(|()| pending.check())?;
        Err(Error::damaged("a change was lost"))
    }

    pub(super) fn sync_waiting(&self) -> Result<()> {
        self.pending.lock().check()?;
        let packed = self.write_packs();
        if let Err(e) = &packed {
            // If libhdf5 rejects the file, it would do so again.
            let is_rejected = matches!(e.errno(), libc::EOPNOTSUPP | libc::EINVAL);
            let rejected = || is_rejected.then(|| e.clone());
            if let Some(why) = self.lock.lost().or_else(rejected) {
                return Err(self.pending.lock().lose(Vec::new(), why));
            }
        }
        let batch = self.pending.lock().take();
        let is_empty = batch.changes.is_empty() && batch.packs.is_empty();
        self.behind.fetch_or(!is_empty, Ordering::AcqRel);
        if is_empty {
            return packed.and_then(|()| self.pending.lock().check());
        }
        let (batch, lost) = self.sync_files(batch);
        let mut pending = self.pending.lock();
        let settled = pending.settle(&batch);
        let deferred = self.deferred.load(Ordering::Acquire);
        let remove = |stored: Option<&Arc<StoredObject>>| {
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
                // Readers of the lost object have it in memory. Its file is removed when the layer is next opened.
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
                    return Err(pending.about_waiting(&e));
                }
                Err(e)
            }
        }
    }

    /// Syncs the files of a batch and their names. Returns the changes whose lines may be written, and those whose
    /// state on the disk is unknown.
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
            // The thread that deletes waits for the result. It gets this failure, so the deletion must not take effect.
            None => true,
        };
        let (lost, good) = batch.into_iter().partition(is_bad);
        (
            good,
            Some((lost, Error::from(e).about(self.dir.path().display()))),
        )
    }

    /// Returns the failure after which no changes are accepted, if there was one.
    pub fn lost(&self) -> Option<Error> {
        self.pending.lock().check().err()
    }

    /// Defers syncs from now on, and lets small objects share files.
    pub(in crate::checkout) fn begin_deferring(self: &Arc<Self>) {
        let own: Weak<dyn PackWriter> = Arc::downgrade(self) as Weak<dyn PackWriter>;
        *self.own.lock() = Some(own);
        self.defer(true);
    }

    /// Returns whether any changes are not durable yet.
    #[cfg(test)]
    pub(in crate::checkout) fn is_waiting(&self) -> bool {
        self.pending.lock().waiting() > 0
    }

    /// Sets whether changes wait to be synced.
    fn defer(&self, deferred: bool) {
        let _pending = self.pending.lock();
        self.deferred.store(deferred, Ordering::Release);
        self.changed.notify_all();
    }

    /// Makes each change durable at once from now on.
    pub(in crate::checkout) fn end_deferring(&self) {
        self.defer(false);
    }

    /// Waits for a change, and `delay` longer for more of them; returns `false` at once when changes are no longer
    /// deferred.
    pub(in crate::checkout) fn wait_for_changes(&self, delay: Duration) -> bool {
        let deferred = || self.deferred.load(Ordering::Acquire);
        let nothing = |pending: &mut PendingChanges| {
            let is_uploaded = self.upload.is_none() || !self.behind.load(Ordering::Acquire);
            let nothing = pending.waiting() == 0 && is_uploaded && deferred();
            self.sleeps.store(nothing, Ordering::Release);
            nothing
        };
        let mut pending = self.pending.lock();
        self.changed.wait_while(&mut pending, nothing);
        self.changed
            .wait_while_for(&mut pending, |_| deferred(), delay);
        drop(pending);
        deferred()
    }
}
