//! The directory of a checkout: complete files, their index, and the writer's lock.
//!
//! A change is made in this order: a new file under a temporary name, rename to its final name, sync of the file, sync
//! of the directory, line in the index, sync of the index. The change takes effect with its line. Many changes share
//! each kind of sync. Only lines of the index are retried. A file that could not be synced is lost, whatever a second
//! sync would report: the kernel drops pages that it failed to write.
//!
//! The file of a replaced version stays as long as a view may still show the old version: a change is in the layer, and
//! possibly on the disk, before the view shows it, and a reader in between is given the old file. Files that no line
//! names are leftovers of dead processes, and are removed when the layer is next opened; files with foreign names are
//! left alone.

pub mod lock;
mod member;
pub mod pack;
pub mod pending_changes;
pub mod publications;

use std::collections::{BTreeMap, HashSet};
use std::fs::File;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Weak};
use std::time::{Duration, SystemTime};

use parking_lot::{Condvar, Mutex, MutexGuard};

use super::mirror::Upload;
use super::records::attribute;
use super::records::fit::StoreIdentity;
use super::records::index::{
    Index, IndexChanges, KeptObject, LayerBase, ObjectChange, PathState, StoreEntry, StoredObject,
    nanoseconds,
};
use super::records::unwritten::PackWriter;
use crate::store::object::{self, NewFile};
use lock::LayerLock;
use npyfs_base::error::{Error, ErrorKind, Result};
use npyfs_hdf5::{Creator, NewAttribute};
use npyfs_io::content::scratch::Scratch;
use npyfs_io::dir::Dir;
use npyfs_io::file::handle::allowance;
use npyfs_io::storage::Storage;
use pending_changes::{FinalFlag, PendingBatch, PendingChange, PendingChanges};

pub use member::NewMember;

/// Suffixes of a finished file, of an unfinished one, and of a member of an incomplete object.
pub(in crate::checkout) const FINISHED: &str = "h5";
const UNFINISHED: &str = "part";
pub(in crate::checkout) const MEMBER: &str = "member";

/// The most changes that wait to be synced. Each may hold a file open, and together they may use a part of the
/// descriptors.
fn most_waiting() -> usize {
    const MOST: u64 = 256;
    const PART: u64 = 8;
    usize::try_from((allowance() / PART).min(MOST)).unwrap_or(1)
}

/// A layer that this process writes in. All methods may be called from any thread.
///
/// A change is durable when the call that made it returns; while a `Syncer` exists, only after the next `sync`. If the
/// index cannot be written, the changes wait for another attempt. But a file that could not be synced is lost: the
/// kernel drops pages that it failed to write, and a second sync would not report them. `sync` then names the object on
/// this and every later call, and no further changes are accepted until the layer is opened again, which shows the
/// previous state.
pub struct Layer {
    dir: Dir,
    storage: Arc<dyn Storage>,
    creator: Creator,
    /// Consistent between any two statements that can panic.
    pending: Mutex<PendingChanges>,
    /// Signalled when changes wait, or when they will not be deferred any more.
    changed: Condvar,
    /// Held during a sync.
    syncing: Mutex<()>,
    /// Held while the file of small objects is written; taken after `syncing`.
    packing: Mutex<()>,
    /// Disk space that is reserved for small objects, and a reference to this layer for readers that need their files.
    reserve: Mutex<pack::Reserve>,
    own: Mutex<Option<Weak<dyn PackWriter>>>,
    /// Whether changes wait to be synced.
    deferred: AtomicBool,
    /// Whether the syncing thread must be woken by a change; set while `pending` is locked.
    sleeps: AtomicBool,
    next: AtomicU64,
    replaced: Mutex<Replaced>,
    /// Numbers of files that publications link to: they are not removed.
    published: HashSet<u64>,
    /// The upload, if the layer is in a bucket.
    upload: Option<Mutex<Upload>>,
    /// Whether changes on this disk may not be in the bucket yet.
    behind: AtomicBool,
    lock: LayerLock,
}

impl Layer {
    /// Opens the layer in `dir`; EBUSY if another process holds it.
    pub fn open(dir: &Dir, storage: Arc<dyn Storage>, creator: Creator) -> Result<Self> {
        let about = |e: std::io::Error| Error::from(e).about(dir.path().display());
        let mut lock = LayerLock::take(dir)?;
        let upload = lock.upload(dir);
        let storage = lock.fence(dir, storage)?;
        let files = files(dir).map_err(about)?;
        let has_objects = files
            .iter()
            .any(|file| matches!(file.ending, FINISHED | MEMBER));
        let index = Index::open(dir, storage.clone(), has_objects)?;
        let named = named(index.entries(), index.incomplete());
        let published = publications::published(dir)?;
        let mut last = named.iter().map(|(file, _)| *file).max().unwrap_or(0);
        for file in files {
            last = last.max(file.number);
            let is_published = file.ending == FINISHED && published.contains(&file.number);
            if !is_published && !named.contains(&(file.number, file.ending)) {
                storage.remove(dir, &file.name).map_err(about)?;
            }
        }
        let first = upload.as_ref().map_or(0, Upload::first_file);
        Ok(Self {
            dir: dir.clone(),
            behind: AtomicBool::new(upload.is_some()),
            upload: upload.map(Mutex::new),
            storage,
            creator,
            pending: Mutex::new(PendingChanges::new(index)),
            changed: Condvar::new(),
            syncing: Mutex::default(),
            packing: Mutex::default(),
            reserve: Mutex::default(),
            own: Mutex::default(),
            deferred: AtomicBool::new(false),
            sleeps: AtomicBool::new(false),
            next: AtomicU64::new(last.saturating_add(1).max(first)),
            replaced: Mutex::default(),
            published,
            lock,
        })
    }

    /// Returns an empty scratch file.
    pub fn scratch(&self) -> Scratch {
        Scratch::new(&self.dir, self.storage.clone())
    }

    /// Returns the layer's directory.
    pub fn dir(&self) -> &Dir {
        &self.dir
    }

    /// Fails if another host may have taken the layer.
    pub(in crate::checkout) fn check_lock(&self) -> Result<()> {
        self.lock.check(&self.dir)
    }

    /// Returns the changes that the index records: all of them, if none wait.
    pub fn recorded(&self) -> IndexChanges {
        self.pending.lock().recorded().clone()
    }

    /// Uses numbers for new files that are higher than those of another layer.
    pub(in crate::checkout) fn number_after(&self, other: &Self) {
        let next = other.next.load(Ordering::Relaxed);
        self.next.fetch_max(next, Ordering::Relaxed);
    }

    /// Returns the upload, if the layer is in a bucket.
    pub(in crate::checkout) fn upload(&self) -> Option<MutexGuard<'_, Upload>> {
        self.upload.as_ref().map(|upload| upload.lock())
    }

    /// Accepts no changes from now on, for this reason.
    pub(in crate::checkout) fn close(&self, why: &Error) {
        self.pending.lock().lose(Vec::new(), why.clone());
    }

    /// Replaces all changes, durably and at once, before any other was made. On failure the previous ones remain.
    pub fn replace_all(&self, changes: IndexChanges) -> Result<()> {
        let mut pending = self.pending.lock();
        let before = pending.recorded().clone();
        pending.replace_all(changes)?;
        let now = pending.recorded();
        let stays = named(&now.entries, &now.incomplete);
        for (number, ending) in named(&before.entries, &before.incomplete) {
            let is_published = ending == FINISHED && self.published.contains(&number);
            if !stays.contains(&(number, ending)) && !is_published {
                // If this fails, the file is removed when the layer is next opened.
                let _ = self.storage.remove(&self.dir, &file_name(number, ending));
            }
        }
        Ok(())
    }

    /// Returns every changed object by its path; `None` for a deleted one.
    pub fn entries(&self) -> BTreeMap<String, PathState> {
        let pending = self.pending.lock();
        let now = pending.now();
        now.map(|(path, stored)| (path.clone(), stored.clone()))
            .collect()
    }

    /// Returns how many objects the layer stores or restores, and how many it deletes.
    pub fn count(&self) -> (usize, usize) {
        let pending = self.pending.lock();
        let restored = pending.recorded().restored.keys();
        let restored = restored.filter(|key| pending.get(key).is_none()).count();
        let counted = (restored, 0);
        pending
            .now()
            .fold(counted, |(present, deleted), (_, state)| match state {
                Some(_) => (present + 1, deleted),
                None => (present, deleted + 1),
            })
    }

    /// Returns whether an object is stored in the layer.
    pub fn has(&self, path: &str) -> bool {
        let pending = self.pending.lock();
        pending.get(path).is_some_and(Option::is_some)
    }

    /// Returns the path of an object's file.
    pub fn path(&self, stored: &StoredObject) -> std::path::PathBuf {
        self.dir.path().join(stored.name())
    }

    /// Records the commit that the following changes are based on.
    pub fn begin(&self, begun: LayerBase) -> Result<()> {
        self.pending.lock().begin(begun)
    }

    /// Records, at once, the identity of the store at a key that objects are written over; does nothing if it is known.
    pub fn know(&self, store: &str, look: impl FnOnce() -> Result<StoreIdentity>) -> Result<()> {
        if self.pending.lock().stores().contains_key(store) {
            return Ok(());
        }
        let identity = look()?;
        self.pending.lock().know(StoreEntry {
            store: store.to_owned(),
            identity,
        })
    }

    /// Stores an object. Its file gets the attribute `npyfs_time` with the time of writing, in nanoseconds since 1970.
    ///
    /// On failure the object is unchanged, and the error gives the reason: EINVAL and others if the content is invalid,
    /// EOPNOTSUPP if HDF5 cannot represent it.
    pub fn put(&self, path: &str, new: &NewFile, time: SystemTime) -> Result<Arc<StoredObject>> {
        if let Some(stored) = self.pack(path, new, time)? {
            return Ok(stored);
        }
        let (stored, file) = self.make(path, new, time)?;
        self.change(path, Some(stored.clone()), Some(file))?;
        Ok(stored)
    }

    /// Stores an object as `put` does, with attributes by their keys, and deletes others in the same step: durable when
    /// it returns. On failure nothing has changed.
    pub fn replace(
        &self,
        path: &str,
        new: &NewFile,
        time: SystemTime,
        gone: &[String],
        attributes: &[(String, NewFile)],
    ) -> Result<(Arc<StoredObject>, Vec<Arc<StoredObject>>)> {
        let (stored, file) = self.make(path, new, time)?;
        let change = ObjectChange::new(path, Some(stored.clone()));
        let mut changes = vec![(change, Some(file))];
        let mut with = Vec::with_capacity(attributes.len());
        for (key, new) in attributes {
            let (attribute, file) = self.make(key, new, time)?;
            let attribute = Arc::new(StoredObject {
                of: Some(stored.file),
                ..Arc::unwrap_or_clone(attribute)
            });
            let change = ObjectChange::new(key, Some(attribute.clone()));
            changes.push((change, Some(file)));
            with.push(attribute);
        }
        changes.extend(
            gone.iter()
                .map(|gone| (ObjectChange::new(gone, None), None)),
        );
        self.change_now(changes)?;
        Ok((stored, with))
    }

    /// Stores the attribute at a key: durable when it returns. On failure it is unchanged.
    pub fn put_attribute(
        &self,
        key: &str,
        new: &NewFile,
        time: SystemTime,
    ) -> Result<Arc<StoredObject>> {
        let (stored, file) = self.make(key, new, time)?;
        let of = {
            let pending = self.pending.lock();
            let object = attribute::object_of(key);
            attribute::nearest(object, |key| {
                let entry = pending.get(key)?.as_ref();
                Some(entry.map(|stored| stored.file))
            })
        };
        let stored = Arc::new(StoredObject {
            of,
            ..Arc::unwrap_or_clone(stored)
        });
        let change = ObjectChange::new(key, Some(stored.clone()));
        self.change_now(vec![(change, Some(file))])?;
        Ok(stored)
    }

    /// Creates the file of an object, to which no change refers yet.
    fn make(
        &self,
        path: &str,
        new: &NewFile,
        time: SystemTime,
    ) -> Result<(Arc<StoredObject>, File)> {
        self.pending.lock().check()?;
        self.make_room()?;
        let number = self.next.fetch_add(1, Ordering::Relaxed);
        let mut new = new.clone();
        // Stores have no such attribute themselves.
        if new.begins.is_none() {
            new.mark_root(NewAttribute::int(object::TIME, nanoseconds(time)));
        }
        let about = |e: Error| e.about(attribute::shown(path));
        let file = self.write(number, &new).map_err(about)?;
        let stored = StoredObject {
            file: number,
            time: nanoseconds(time),
            size: new.size,
            against: new.against,
            begins: new.begins.map(str::to_owned),
            ..StoredObject::default()
        };
        Ok((Arc::new(stored), file))
    }

    /// Syncs the waiting changes if too many files are open.
    fn make_room(&self) -> Result<()> {
        let are_open = self.pending.lock().open_files();
        match are_open >= most_waiting() {
            true => self.sync(),
            false => Ok(()),
        }
    }

    /// Writes the file with a number, without a sync. On failure there is no file.
    fn write(&self, number: u64, new: &NewFile) -> Result<File> {
        let (part, whole) = (file_name(number, UNFINISHED), file_name(number, FINISHED));
        let (dir, storage) = (&self.dir, &*self.storage);
        let finished = object::write((dir, &part), new, &self.creator, storage);
        let finished = finished.and_then(|file| {
            // Not earlier: a worker started by root may not write files of other users.
            dir.rights().settle(&file)?;
            storage.rename(dir, &part, &whole)?;
            Ok(file)
        });
        finished.inspect_err(|_| {
            // If this fails, the file is removed when the layer is next opened.
            let _ = storage.remove(dir, &part);
            let _ = storage.remove(dir, &whole);
        })
    }

    /// Deletes an object, including one of the store below. Durable when it returns, because no descriptor remains that
    /// could be synced.
    pub fn remove(&self, path: &str) -> Result<()> {
        self.change_now(vec![(ObjectChange::new(path, None), None)])
    }

    /// Sets the time of an object in this layer; ENOENT for others.
    pub fn set_time(&self, path: &str, time: SystemTime) -> Result<()> {
        let stored = self.pending.lock().get(path).cloned().flatten();
        let stored = stored.ok_or_else(|| Error::new(ErrorKind::NotFound, "no such object"))?;
        let stored = StoredObject {
            time: nanoseconds(time),
            ..Arc::unwrap_or_clone(stored)
        };
        self.change(path, Some(Arc::new(stored)), None)
    }

    fn change(&self, path: &str, stored: PathState, file: Option<File>) -> Result<()> {
        let record = ObjectChange::new(path, stored);
        if self.deferred.load(Ordering::Acquire) {
            let mut pending = self.pending.lock();
            pending.change(record, file)?;
            self.wake_syncer();
            return Ok(());
        }
        let _one = self.syncing.lock();
        self.pending.lock().change(record, file)?;
        self.sync_waiting()
    }

    /// Wakes the syncing thread after a change, while `pending` is locked.
    fn wake_syncer(&self) {
        // Changes that follow soon need no further wake-up.
        if self.sleeps.swap(false, Ordering::AcqRel) {
            self.changed.notify_all();
        }
    }

    /// Makes changes and waits until they are durable, together with all other waiting ones. On failure none of them
    /// takes effect later.
    fn change_now(&self, changes: Vec<(ObjectChange, Option<File>)>) -> Result<()> {
        let mut settled = Vec::with_capacity(changes.len());
        {
            let mut pending = self.pending.lock();
            pending.check()?;
            for (record, file) in changes {
                settled.push(pending.change(record, file)?);
            }
        }
        self.settle(&settled)
    }
}

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
    fn settle(&self, changes: &[FinalFlag]) -> Result<()> {
        let _one = self.syncing.lock();
        let are_settled = || changes.iter().all(FinalFlag::is);
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

    fn sync_waiting(&self) -> Result<()> {
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

/// Previous files of objects, which wait to be removed.
#[derive(Default)]
struct Replaced {
    /// Paths of objects of which the view may show an old version.
    showing: Vec<String>,
    files: Vec<(String, Arc<StoredObject>)>,
}

/// While this exists, replaced files of some objects are not removed.
pub struct Showing<'a> {
    layer: &'a Layer,
    paths: Vec<String>,
}

impl Layer {
    /// Must be held while objects are changed in the layer and then in the view.
    pub fn showing(&self, paths: impl IntoIterator<Item = String>) -> Showing<'_> {
        let paths: Vec<String> = paths.into_iter().collect();
        let mut replaced = self.replaced.lock();
        replaced.showing.extend(paths.iter().cloned());
        drop(replaced);
        Showing { layer: self, paths }
    }

    /// Removes these files of objects, unless the view may still show them. Readers have them open.
    fn remove_replaced(
        &self,
        pending: &PendingChanges,
        files: impl IntoIterator<Item = (String, Arc<StoredObject>)>,
    ) {
        let mut replaced = self.replaced.lock();
        replaced.files.extend(files);
        let Replaced { showing, files } = &mut *replaced;
        let gone: Vec<_> = files
            .extract_if(.., |(path, _)| !showing.contains(path))
            .collect();
        // Other objects may be in the same file.
        let mut stays: HashSet<u64> = files.iter().map(|(_, stored)| stored.file).collect();
        drop(replaced);
        for (_, stored) in gone {
            let is_used = self.published.contains(&stored.file) || pending.uses(stored.file);
            if stays.insert(stored.file) && !is_used {
                // If this fails, the file is removed when the layer is next opened.
                let _ = self.storage.remove(&self.dir, &stored.name());
            }
        }
    }
}

impl Drop for Showing<'_> {
    fn drop(&mut self) {
        let mut replaced = self.layer.replaced.lock();
        for path in &self.paths {
            if let Some(at) = replaced.showing.iter().position(|known| known == path) {
                replaced.showing.swap_remove(at);
            }
        }
        drop(replaced);
        self.layer.remove_replaced(&self.layer.pending.lock(), []);
    }
}

impl StoredObject {
    /// Returns the name of the object's file in its layer.
    pub fn name(&self) -> String {
        finished(self.file)
    }

    /// Returns the approximate bytes of its file that belong to this object; `file` is the size of the file.
    pub fn bytes_of(&self, file: u64) -> u64 {
        self.size.filter(|_| self.packed).unwrap_or(file)
    }
}

/// Returns the name of a finished file.
pub(in crate::checkout) fn finished(number: u64) -> String {
    file_name(number, FINISHED)
}

fn file_name(number: u64, ending: &str) -> String {
    format!("{number:016}.{ending}")
}

/// A file whose name follows the scheme of layers.
pub(in crate::checkout) struct NumberedFile {
    name: String,
    pub(in crate::checkout) number: u64,
    pub(in crate::checkout) ending: &'static str,
}

/// Returns the numbers and suffixes of the files that the index of a layer names.
pub(in crate::checkout) fn named(
    entries: &BTreeMap<String, PathState>,
    incomplete: &BTreeMap<String, KeptObject>,
) -> HashSet<(u64, &'static str)> {
    let stored = entries.values().flatten();
    let members = incomplete.values().flat_map(|object| &object.members);
    stored
        .map(|stored| (stored.file, FINISHED))
        .chain(members.map(|member| (member.file, MEMBER)))
        .collect()
}

/// Parses the name of a file in a layer.
pub(in crate::checkout) fn numbered(name: &str) -> Option<NumberedFile> {
    let (stem, ending) = name.split_once('.')?;
    let ours = stem.len() >= 16 && stem.bytes().all(|b| b.is_ascii_digit());
    let endings = [FINISHED, UNFINISHED, MEMBER, object::HEAD];
    let ending = endings.into_iter().find(|known| *known == ending)?;
    Some(NumberedFile {
        name: name.to_owned(),
        number: stem.parse().ok().filter(|_| ours)?,
        ending,
    })
}

fn files(dir: &Dir) -> std::io::Result<Vec<NumberedFile>> {
    let names = dir.names()?.into_iter();
    Ok(names
        .filter_map(|(name, _)| numbered(name.to_str()?))
        .collect())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::store::encode::store::{dataset, saved};
    use npyfs_base::npy::dtype::DType;
    use npyfs_hdf5::{DataSource, GroupMember, Resolved};
    use npyfs_io::file::StoreFile;
    use npyfs_io::storage::Disk;
    use npyfs_io::storage::faulty::Faulty;
    use std::path::Path;
    use std::time::UNIX_EPOCH;

    fn open(dir: &Path, storage: impl Storage + 'static) -> Result<Layer> {
        Layer::open(
            &Dir::own(dir),
            Arc::new(storage),
            npyfs_worker::creator_here(),
        )
    }

    /// Stores an `.npy` file as the object `group/data`.
    fn put_file(layer: &Layer, path: &str, inside: &str, file: &[u8]) -> Result<Arc<StoredObject>> {
        let new = dataset(inside, file)?;
        layer.put(path, &new, UNIX_EPOCH)
    }

    /// Stores an array of 4-byte integers.
    fn put(layer: &Layer, path: &str, values: &[i32]) -> Result<Arc<StoredObject>> {
        let payload: Vec<u8> = values
            .iter()
            .flat_map(|value| value.to_le_bytes())
            .collect();
        let file = saved(&DType::int(4), &[values.len() as u64], &payload);
        put_file(layer, path, "group/data", &file)
    }

    /// Returns the integers that libhdf5 reads from the file of an object.
    fn values(layer: &Layer, stored: &StoredObject) -> Vec<i32> {
        let file = StoreFile::open(&layer.path(stored)).unwrap();
        let h5 = npyfs_worker::h5_here();
        let root = h5.root(&file).unwrap();
        let found = h5.resolve(&file, root, b"group/data").unwrap();
        let Resolved::Member(GroupMember::Dataset(dataset)) = found else {
            panic!("{found:?}");
        };
        let map = h5.map(&file, dataset.addr).unwrap();
        if map.shape == [0] {
            return Vec::new();
        }
        let DataSource::Contiguous { addr } = map.source else {
            panic!("{:?}", map.source);
        };
        let mut bytes = vec![0; 4 * usize::try_from(map.shape[0]).unwrap()];
        file.read_exact_at(&mut bytes, addr).unwrap();
        bytes
            .chunks(4)
            .map(|b| i32::from_le_bytes(b.try_into().unwrap()))
            .collect()
    }

    /// Returns the content of the layer; each object is read back.
    fn content(layer: &Layer) -> BTreeMap<String, Option<Vec<i32>>> {
        let read = |stored: Arc<StoredObject>| values(layer, &stored);
        let entries = layer.entries().into_iter();
        entries.map(|(path, s)| (path, s.map(read))).collect()
    }

    #[test]
    fn what_is_stored_is_there_again_and_remains_are_swept() {
        let dir = tempfile::tempdir().unwrap();
        let layer = open(dir.path(), Disk).unwrap();
        put(&layer, "a.npy", &[1, 2, 3]).unwrap();
        put(&layer, "b.npy", &[4]).unwrap();
        put(&layer, "a.npy", &[5, 6]).unwrap();
        layer.remove("b.npy").unwrap();
        let time = UNIX_EPOCH - std::time::Duration::from_nanos(7);
        layer.set_time("a.npy", time).unwrap();
        assert!(layer.set_time("b.npy", time).is_err());
        let before = content(&layer);
        assert_eq!(before["a.npy"], Some(vec![5, 6]));
        assert_eq!(before["b.npy"], None);
        assert_eq!(open(dir.path(), Disk).err().unwrap().errno(), libc::EBUSY);
        drop(layer);
        for name in ["0000000000000099.h5", "0000000000000098.part", "notes.h5"] {
            std::fs::write(dir.path().join(name), "x").unwrap();
        }
        let layer = open(dir.path(), Disk).unwrap();
        assert_eq!(content(&layer), before);
        assert_eq!(layer.entries()["a.npy"].as_ref().unwrap().time, -7);
        let mut names: Vec<_> = std::fs::read_dir(dir.path())
            .unwrap()
            .map(|entry| entry.unwrap().file_name().into_string().unwrap())
            .collect();
        names.sort();
        let want = ["0000000000000003.h5", "holder", "index", "notes.h5"];
        assert_eq!(names, want);
        assert_eq!(put(&layer, "c.npy", &[]).unwrap().file, 100);
        assert_eq!(content(&layer)["c.npy"], Some(vec![]));
    }

    #[test]
    fn a_refused_array_changes_nothing() {
        let dir = tempfile::tempdir().unwrap();
        let layer = open(dir.path(), Disk).unwrap();
        put(&layer, "a.npy", &[1]).unwrap();
        let try_put = |file: &[u8], inside: &str| {
            let refused = put_file(&layer, "a.npy", inside, file);
            refused.unwrap_err().errno()
        };
        let inside = "group/data";
        let whole = saved(&DType::int(4), &[1], &[0; 4]);
        assert_eq!(try_put(b"text", inside), libc::EINVAL);
        assert_eq!(try_put(&whole[..131], inside), libc::EINVAL);
        assert_eq!(try_put(&whole, "a%2Fb"), libc::EOPNOTSUPP);
        let none = DType::Struct {
            fields: vec![npyfs_base::npy::dtype::Field {
                name: "none".into(),
                offset: 0,
                dtype: DType::int(4),
                shape: vec![0],
            }],
            size: 0,
        };
        assert_eq!(try_put(&saved(&none, &[2], &[]), inside), libc::EOPNOTSUPP);
        let wide = saved(&DType::int(1), &[0; 33], &[]);
        assert_eq!(try_put(&wide, inside), libc::EOPNOTSUPP);
        assert_eq!(content(&layer)["a.npy"], Some(vec![1]));
        assert_eq!(files(&Dir::own(dir.path())).unwrap().len(), 1);
    }

    type LayerStep = fn(&Layer) -> Result<()>;

    const STEPS: [LayerStep; 5] = [
        |layer| put(layer, "a.npy", &[1, 2]).map(drop),
        |layer| put(layer, "b.npy", &[3]).map(drop),
        |layer| put(layer, "a.npy", &[4, 5, 6]).map(drop),
        |layer| layer.remove("b.npy"),
        |layer| put(layer, "b.npy", &[7]).map(drop),
    ];

    /// Every call that changes the disk fails once; the process continues or dies.
    #[test]
    fn whatever_fails_each_step_happens_or_does_not() {
        let mut after = vec![BTreeMap::new()];
        let dir = tempfile::tempdir().unwrap();
        let all = {
            let faulty = Arc::new(Faulty::new(u64::MAX, 0, false));
            let layer = Layer::open(
                &Dir::own(dir.path()),
                faulty.clone(),
                npyfs_worker::creator_here(),
            )
            .unwrap();
            for step in STEPS {
                step(&layer).unwrap();
                after.push(content(&layer));
            }
            faulty.calls()
        };
        assert!(all > 30, "{all}");
        for (at, dead) in (0..all).flat_map(|at| [(at, false), (at, true)]) {
            let errno = if at % 2 == 0 { libc::ENOSPC } else { libc::EIO };
            let dir = tempfile::tempdir().unwrap();
            let mut done = 0;
            let mut failed = false;
            if let Ok(layer) = open(dir.path(), Faulty::new(at, errno, dead)) {
                for step in STEPS {
                    let Err(e) = step(&layer) else {
                        done += 1;
                        continue;
                    };
                    assert_eq!(e.errno(), errno, "{at}: {e}");
                    failed = true;
                    break;
                }
                // Every object that the layer lists is readable.
                assert_eq!(content(&layer), after[done], "{at} {dead}");
            }
            let layer = open(dir.path(), Disk).unwrap();
            let now = content(&layer);
            let half = dead && failed && now == after[done + 1];
            assert!(now == after[done] || half, "{at} {dead}: {now:?}");
            // The layer can be used further.
            put(&layer, "c.npy", &[8]).unwrap();
            assert_eq!(content(&layer)["c.npy"], Some(vec![8]));
        }
    }
}
