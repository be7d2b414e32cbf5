//! The directory of a checkout: complete files, their index, and the writer's lock.
//!
//! A change is made in this order: a new file under a temporary name, rename to its final name, sync of the file, sync
//! of the directory, line in the index, sync of the index. The change takes effect with its line. Many changes share
//! each kind of sync. Files that no line names are leftovers of dead processes, and are removed when the layer is next
//! opened; files with foreign names are left alone.

mod durable;
pub mod lock;
mod member;
pub mod pack;
mod packed;
pub mod pending_changes;
pub mod publications;
mod replaced_files;

use std::collections::{BTreeMap, HashSet};
use std::fs::File;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Weak};
use std::time::SystemTime;

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
use pending_changes::PendingChanges;
use replaced_files::Replaced;

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
    reserve: Mutex<packed::Reserve>,
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
        let all = pending.now().count();
        let deleted = pending.now().filter(|(_, stored)| stored.is_none());
        let deleted = deleted.count();
        let restored = pending.recorded().restored.keys();
        let restored = restored.filter(|key| pending.get(key).is_none()).count();
        (all - deleted + restored, deleted)
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
mod tests;
