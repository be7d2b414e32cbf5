//! The directory of a checkout: finished files, the index of what they are, and the lock of who writes.
//!
//! A change is made in this order: new file under a name that nobody looks at, its own name, sync of the file,
//! sync of the directory, line in the index, sync. It happens with that line. Of many changes each kind of sync
//! is done together. Files that no line names are remains of a process that died, and go when the layer is
//! next opened; files of other names are left alone.

mod durable;
mod member;
mod packed;
mod shown;

use std::collections::{BTreeMap, HashSet};
use std::fs::File;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, Weak};
use std::time::{SystemTime, UNIX_EPOCH};

use super::checkouts::LayerFiles;
use super::fit::StoreIdentity;
use super::index::{Index, KeptObject, LayerBase, ObjectChange, StoreEntry, StoredObject};
use super::layer_lock::LayerLock;
use super::mirror::Upload;
use super::object::{self, NewFile};
use super::pack::PackWriter;
use super::pending_changes::PendingChanges;
use super::publications;
use crate::error::{Error, ErrorKind, Result};
use crate::hdf5::{Creator, NewAttribute};
use crate::io::dir::Dir;
use crate::io::file::handle::allowance;
use crate::io::scratch::Scratch;
use crate::io::storage::Storage;

use shown::Replaced;

pub use member::NewMember;

/// Endings of a finished file, of one that is being made, and of a member of an object that is not complete.
pub(super) const FINISHED: &str = "h5";
const UNFINISHED: &str = "part";
pub(super) const MEMBER: &str = "member";

/// Most changes that wait to be synced; each may hold a file open, and all of them take a part of the descriptors.
fn most_waiting() -> usize {
    const MOST: u64 = 256;
    const PART: u64 = 8;
    usize::try_from((allowance() / PART).min(MOST)).unwrap_or(1)
}

/// A layer that this process writes in. All methods may be called from any thread.
///
/// A change is durable when the call that made it returns; while a `Syncer` lives, only after the next `sync`.
/// If the index could not be written then, the changes wait for another. But a file that could not be synced is
/// lost: the kernel forgets what it could not write, and a second sync would say nothing of it. Then `sync` names
/// the object, now and each time it is called, and there are no other changes until the layer is opened again,
/// which shows what was there before.
pub struct Layer {
    dir: Dir,
    storage: Arc<dyn Storage>,
    creator: Creator,
    pending: Mutex<PendingChanges>,
    /// Changes are there that wait, or nobody is to wait for them any more.
    changed: Condvar,
    /// Held by who syncs.
    syncing: Mutex<()>,
    /// Held by who writes what small objects wait for; taken after `syncing`.
    packing: Mutex<()>,
    /// Room on the disk for them, and this layer for whoever needs their files.
    reserve: Mutex<packed::Reserve>,
    own: Mutex<Option<Weak<dyn PackWriter>>>,
    /// Changes wait to be synced.
    deferred: AtomicBool,
    /// Wakes the thread that syncs when there is a change; it is set while `pending` is locked.
    sleeps: AtomicBool,
    next: AtomicU64,
    replaced: Mutex<Replaced>,
    /// Numbers of files that publications lead to: they stay.
    published: HashSet<u64>,
    /// The upload, if the layer lies in a bucket.
    upload: Option<Mutex<Upload>>,
    /// Changes are on this disk that may not be in the bucket yet.
    behind: AtomicBool,
    _lock: LayerLock,
}

impl Layer {
    /// Opens the layer in `dir`; EBUSY if another process has it.
    pub fn open(dir: &Dir, storage: Arc<dyn Storage>, creator: Creator) -> Result<Self> {
        let about = |e: std::io::Error| Error::from(e).about(dir.path().display());
        let mut lock = LayerLock::take(dir)?;
        let upload = lock.upload(dir);
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
            _lock: lock,
        })
    }

    fn pending(&self) -> MutexGuard<'_, PendingChanges> {
        // It is consistent between any two statements that can panic.
        self.pending.lock().unwrap_or_else(|e| e.into_inner())
    }

    /// An empty scratch file.
    pub fn scratch(&self) -> Scratch {
        Scratch::new(&self.dir, self.storage.clone())
    }

    /// Returns the layer's directory.
    pub fn dir(&self) -> &Dir {
        &self.dir
    }

    /// The layer as others see it.
    pub fn files(&self) -> LayerFiles {
        let pending = self.pending();
        LayerFiles {
            stores: pending.stores().clone(),
            ..LayerFiles::bare(&self.dir, pending.now().clone())
        }
    }

    /// Every object that was changed, by its path; `None`: it was deleted.
    pub fn entries(&self) -> BTreeMap<String, Option<StoredObject>> {
        self.pending().now().clone()
    }

    /// Returns whether an object was stored here, and not deleted since.
    pub fn has(&self, path: &str) -> bool {
        let pending = self.pending();
        pending
            .now()
            .get(path)
            .is_some_and(|stored| stored.is_some())
    }

    /// Returns the path of an object's file.
    #[cfg(feature = "internals")]
    pub fn path(&self, stored: &StoredObject) -> std::path::PathBuf {
        self.dir.path().join(stored.name())
    }

    /// Remembers what the changes from now on are made on.
    pub fn begin(&self, begun: LayerBase) -> Result<()> {
        self.pending().begin(begun)
    }

    /// Remembers what the store at a key is that objects are written over, at once; nothing if that is known already.
    pub fn know(&self, store: &str, look: impl FnOnce() -> Result<StoreIdentity>) -> Result<()> {
        if self.pending().stores().contains_key(store) {
            return Ok(());
        }
        let identity = look()?;
        self.pending().know(StoreEntry {
            store: store.to_owned(),
            identity,
        })
    }

    /// Stores an object. Its file gets the attribute `npyfs_time` with the time of writing, in nanoseconds since
    /// 1970.
    ///
    /// On failure the object is what it was, and the error says why: EINVAL and the like if the content is wrong,
    /// EOPNOTSUPP if HDF5 has no form for it.
    pub fn put(&self, path: &str, new: &NewFile, time: SystemTime) -> Result<StoredObject> {
        if let Some(stored) = self.pack(path, new, time)? {
            return Ok(stored);
        }
        let (stored, file) = self.make(path, new, time)?;
        self.change(path, Some(stored.clone()), Some(file))?;
        Ok(stored)
    }

    /// Stores an object as `put` does, and deletes others with it: durably when it returns. On failure nothing changed.
    pub fn replace(
        &self,
        path: &str,
        new: &NewFile,
        time: SystemTime,
        gone: &[String],
    ) -> Result<StoredObject> {
        let (stored, file) = self.make(path, new, time)?;
        let mut changes = vec![(path, Some(stored.clone()), Some(file))];
        changes.extend(gone.iter().map(|gone| (gone.as_str(), None, None)));
        self.change_now(changes)?;
        Ok(stored)
    }

    /// Makes the file of an object, which no change names yet.
    fn make(&self, path: &str, new: &NewFile, time: SystemTime) -> Result<(StoredObject, File)> {
        self.pending().check()?;
        self.make_room()?;
        let number = self.next.fetch_add(1, Ordering::Relaxed);
        let mut new = new.clone();
        // A store has none of its own.
        if new.begins.is_none() {
            new.mark_root(NewAttribute::int(object::TIME, nanoseconds(time)));
        }
        let file = self.write(number, &new).map_err(|e| e.about(path))?;
        let stored = StoredObject {
            file: number,
            time: nanoseconds(time),
            size: new.size,
            against: new.against,
            begins: new.begins.map(str::to_owned),
            ..StoredObject::default()
        };
        Ok((stored, file))
    }

    /// Syncs what waits if too many files are open.
    fn make_room(&self) -> Result<()> {
        let are_open = self.pending().open_files();
        match are_open >= most_waiting() {
            true => self.sync(),
            false => Ok(()),
        }
    }

    /// Writes the file of a number, which is not synced. On failure there is none.
    fn write(&self, number: u64, new: &NewFile) -> Result<File> {
        let (part, whole) = (file_name(number, UNFINISHED), file_name(number, FINISHED));
        let (dir, storage) = (&self.dir, &*self.storage);
        let finished = object::write((dir, &part), new, &self.creator, storage);
        let finished = finished.and_then(|file| {
            // Not before: a worker of root's has no right to write what belongs to others.
            dir.rights().settle(&file)?;
            storage.rename(dir, &part, &whole)?;
            Ok(file)
        });
        finished.inspect_err(|_| {
            // What cannot be removed now goes when the layer is next opened.
            let _ = storage.remove(dir, &part);
            let _ = storage.remove(dir, &whole);
        })
    }

    /// Deletes an object: it is not there any more, whatever the store below says. Durable when it returns, because
    /// no descriptor is left to be synced.
    pub fn remove(&self, path: &str) -> Result<()> {
        self.change_now(vec![(path, None, None)])
    }

    /// Sets the time of an object of this layer; ENOENT for others.
    pub fn set_time(&self, path: &str, time: SystemTime) -> Result<()> {
        let stored = self.pending().now().get(path).cloned().flatten();
        let stored = stored.ok_or_else(|| Error::new(ErrorKind::NotFound, "no such object"))?;
        let time = nanoseconds(time);
        self.change(path, Some(StoredObject { time, ..stored }), None)
    }

    fn change(&self, path: &str, stored: Option<StoredObject>, file: Option<File>) -> Result<()> {
        let record = ObjectChange::new(path, stored);
        if self.deferred.load(Ordering::Acquire) {
            let mut pending = self.pending();
            pending.change(record, file)?;
            self.wake_syncer();
            return Ok(());
        }
        let _one = self.only_one();
        self.pending().change(record, file)?;
        self.sync_waiting()
    }

    /// Tells the thread that syncs of a change, while `pending` is locked.
    fn wake_syncer(&self) {
        // Of those that follow soon it need not hear.
        if self.sleeps.swap(false, Ordering::AcqRel) {
            self.changed.notify_all();
        }
    }

    /// Makes changes and waits until they are durable, together with all others that wait. On failure, none of them
    /// happens later.
    fn change_now(&self, changes: Vec<(&str, Option<StoredObject>, Option<File>)>) -> Result<()> {
        let mut settled = Vec::with_capacity(changes.len());
        {
            let mut pending = self.pending();
            pending.check()?;
            for (path, stored, file) in changes {
                let record = ObjectChange::new(path, stored);
                settled.push(pending.change(record, file)?);
            }
        }
        self.settle(&settled)
    }
}

impl StoredObject {
    /// The name of the object's file in its layer.
    pub fn name(&self) -> String {
        file_name(self.file, FINISHED)
    }

    /// Returns how many bytes of its file are its own, about; `file`: all of them.
    pub fn bytes_of(&self, file: u64) -> u64 {
        self.size.filter(|_| self.packed).unwrap_or(file)
    }
}

fn file_name(number: u64, ending: &str) -> String {
    format!("{number:016}.{ending}")
}

/// A time as the index keeps it: from 1678 to 2262, others become the nearest.
pub fn nanoseconds(time: SystemTime) -> i64 {
    match time.duration_since(UNIX_EPOCH) {
        Ok(after) => i64::try_from(after.as_nanos()).unwrap_or(i64::MAX),
        Err(before) => i64::try_from(before.duration().as_nanos()).map_or(i64::MIN, |n| -n),
    }
}

/// A file with a name as layers give them.
pub(super) struct NumberedFile {
    name: String,
    pub(super) number: u64,
    pub(super) ending: &'static str,
}

/// Returns the numbers and endings of the files of a layer that its index names.
pub(super) fn named(
    entries: &BTreeMap<String, Option<StoredObject>>,
    incomplete: &BTreeMap<String, KeptObject>,
) -> HashSet<(u64, &'static str)> {
    let stored = entries.values().flatten();
    let members = incomplete.values().flat_map(|object| &object.members);
    stored
        .map(|stored| (stored.file, FINISHED))
        .chain(members.map(|member| (member.file, MEMBER)))
        .collect()
}

/// Returns the file that a name in a layer stands for.
pub(super) fn numbered(name: &str) -> Option<NumberedFile> {
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
mod tests;
