//! The directory of a checkout: finished files, the index of what they are, and the lock of who writes.
//!
//! A change is made in this order: new file under a name that nobody looks at, its own name, sync of the file,
//! sync of the directory, line in the index, sync. It happens with that line. Of many changes each kind of sync
//! is done together. Files that no line names are remains of a process that died, and go when the layer is
//! next opened; files of other names are left alone.

mod durable;
mod member;
mod shown;

use std::collections::{BTreeMap, HashSet};
use std::fs::File;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard};
use std::time::{SystemTime, UNIX_EPOCH};

use super::checkouts::LayerFiles;
use super::fit::StoreIdentity;
use super::holder::Holder;
use super::index::{Begun, Incomplete, Index, Record, Store, Stored};
use super::ledger::Ledger;
use super::object::{self, NewFile};
use crate::error::{Error, ErrorKind, Result};
use crate::hdf5::{Creator, NewAttribute};
use crate::io::dir::Dir;
use crate::io::file::handle::allowance;
use crate::io::scratch::Scratch;
use crate::io::storage::Storage;

use shown::Replaced;

pub use member::{Member, name_of_member};

/// Endings of a finished file, of one that is being made, and of a member of an object that is not complete.
const FINISHED: &str = "h5";
const UNFINISHED: &str = "part";
const MEMBER: &str = "member";

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
    ledger: Mutex<Ledger>,
    /// Changes are there that wait, or nobody is to wait for them any more.
    changed: Condvar,
    /// Held by who syncs.
    syncing: Mutex<()>,
    /// Changes wait to be synced.
    deferred: AtomicBool,
    /// Who syncs sleeps until there is a change; it is set while the ledger is locked.
    sleeps: AtomicBool,
    next: AtomicU64,
    replaced: Mutex<Replaced>,
    _holder: Holder,
}

impl Layer {
    /// Opens the layer in `dir`; EBUSY if another process has it.
    pub fn open(dir: &Dir, storage: Arc<dyn Storage>, creator: Creator) -> Result<Self> {
        let about = |e: std::io::Error| Error::from(e).about(dir.path().display());
        let holder = Holder::take(dir)?;
        let files = files(dir).map_err(about)?;
        let has_objects = files
            .iter()
            .any(|file| matches!(file.ending, FINISHED | MEMBER));
        let index = Index::open(dir, storage.clone(), has_objects)?;
        let stored = index.entries().values().flatten();
        let members = index.incomplete().values().flat_map(|o| &o.members);
        let named: HashSet<(u64, &str)> = stored
            .map(|stored| (stored.file, FINISHED))
            .chain(members.map(|member| (member.file, MEMBER)))
            .collect();
        let mut last = named.iter().map(|(file, _)| *file).max().unwrap_or(0);
        for file in files {
            last = last.max(file.number);
            if !named.contains(&(file.number, file.ending)) {
                storage.remove(dir, &file.name).map_err(about)?;
            }
        }
        Ok(Self {
            dir: dir.clone(),
            storage,
            creator,
            ledger: Mutex::new(Ledger::new(index)),
            changed: Condvar::new(),
            syncing: Mutex::default(),
            deferred: AtomicBool::new(false),
            sleeps: AtomicBool::new(false),
            next: AtomicU64::new(last.saturating_add(1)),
            replaced: Mutex::default(),
            _holder: holder,
        })
    }

    fn ledger(&self) -> MutexGuard<'_, Ledger> {
        // It is consistent between any two statements that can panic.
        self.ledger.lock().unwrap_or_else(|e| e.into_inner())
    }

    /// An empty scratch file.
    pub fn scratch(&self) -> Scratch {
        Scratch::new(&self.dir, self.storage.clone())
    }

    pub fn dir(&self) -> &Dir {
        &self.dir
    }

    /// The layer as others see it.
    pub fn files(&self) -> LayerFiles {
        let ledger = self.ledger();
        LayerFiles {
            dir: self.dir.clone(),
            entries: ledger.now().clone(),
            stores: ledger.stores().clone(),
            commit: None,
        }
    }

    /// Every object that was changed, by its path; `None`: it was deleted.
    pub fn entries(&self) -> BTreeMap<String, Option<Stored>> {
        self.ledger().now().clone()
    }

    /// Where the file of an object is.
    pub fn path(&self, stored: &Stored) -> PathBuf {
        self.dir.path().join(stored.name())
    }

    /// Remembers what the changes from now on are made on.
    pub fn begin(&self, begun: Begun) -> Result<()> {
        self.ledger().begin(begun)
    }

    /// Remembers what the store at a key is that objects are written over, at once; nothing if that is known already.
    pub fn know(&self, store: &str, look: impl FnOnce() -> Result<StoreIdentity>) -> Result<()> {
        if self.ledger().stores().contains_key(store) {
            return Ok(());
        }
        let identity = look()?;
        self.ledger().know(Store {
            store: store.to_owned(),
            identity,
        })
    }

    /// Stores an object. Its file gets the attribute `npyfs_time` with the time of writing, in nanoseconds since
    /// 1970.
    ///
    /// On failure the object is what it was, and the error says why: EINVAL and the like if the content is wrong,
    /// EOPNOTSUPP if HDF5 has no form for it.
    pub fn put(&self, path: &str, new: &NewFile, time: SystemTime) -> Result<Stored> {
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
    ) -> Result<Stored> {
        let (stored, file) = self.make(path, new, time)?;
        let mut changes = vec![(path, Some(stored.clone()), Some(file))];
        changes.extend(gone.iter().map(|gone| (gone.as_str(), None, None)));
        self.change_now(changes)?;
        Ok(stored)
    }

    /// Makes the file of an object, which no change names yet.
    fn make(&self, path: &str, new: &NewFile, time: SystemTime) -> Result<(Stored, File)> {
        self.ledger().check()?;
        if self.ledger().waiting() >= most_waiting() {
            self.sync()?;
        }
        let number = self.next.fetch_add(1, Ordering::Relaxed);
        let (part, whole) = (file_name(number, UNFINISHED), file_name(number, FINISHED));
        let storage = &*self.storage;
        let mut new = new.clone();
        new.mark_root(NewAttribute::int(object::TIME, nanoseconds(time)));
        let dir = &self.dir;
        let finished = object::write((dir, &part), &new, &self.creator, storage);
        let finished = finished.and_then(|file| {
            // Not before: a worker of root's has no right to write what belongs to others.
            dir.rights().settle(&file)?;
            storage.rename(dir, &part, &whole)?;
            Ok(file)
        });
        let file = finished.map_err(|e| {
            // What cannot be removed now goes when the layer is next opened.
            let _ = storage.remove(dir, &part);
            let _ = storage.remove(dir, &whole);
            e.about(path)
        })?;
        let stored = Stored {
            file: number,
            time: nanoseconds(time),
            size: new.size,
            against: new.against,
            ..Stored::default()
        };
        Ok((stored, file))
    }

    /// Deletes an object: it is not there any more, whatever the store below says. Durable when it returns, because
    /// no descriptor is left to be synced.
    pub fn remove(&self, path: &str) -> Result<()> {
        self.change_now(vec![(path, None, None)])
    }

    /// Sets the time of an object of this layer; ENOENT for others.
    pub fn set_time(&self, path: &str, time: SystemTime) -> Result<()> {
        let stored = self.ledger().now().get(path).cloned().flatten();
        let stored = stored.ok_or_else(|| Error::new(ErrorKind::NotFound, "no such object"))?;
        let time = nanoseconds(time);
        self.change(path, Some(Stored { time, ..stored }), None)
    }

    fn change(&self, path: &str, stored: Option<Stored>, file: Option<File>) -> Result<()> {
        let record = Record {
            path: path.to_owned(),
            stored,
        };
        if self.deferred.load(Ordering::Acquire) {
            let mut ledger = self.ledger();
            ledger.change(record, file)?;
            // Of those that follow soon it need not hear.
            if self.sleeps.swap(false, Ordering::AcqRel) {
                self.changed.notify_all();
            }
            return Ok(());
        }
        let _one = self.only_one();
        self.ledger().change(record, file)?;
        self.sync_waiting()
    }

    /// Makes changes and waits until they are durable, together with all others that wait. On failure, none of them
    /// happens later.
    fn change_now(&self, changes: Vec<(&str, Option<Stored>, Option<File>)>) -> Result<()> {
        let mut settled = Vec::with_capacity(changes.len());
        {
            let mut ledger = self.ledger();
            ledger.check()?;
            for (path, stored, file) in changes {
                let record = Record {
                    path: path.to_owned(),
                    stored,
                };
                settled.push(ledger.change(record, file)?);
            }
        }
        self.settle(&settled)
    }
}

impl Stored {
    /// The name of the object's file in its layer.
    pub fn name(&self) -> String {
        file_name(self.file, FINISHED)
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
struct Numbered {
    name: String,
    number: u64,
    ending: &'static str,
}

fn files(dir: &Dir) -> std::io::Result<Vec<Numbered>> {
    let mut files = Vec::new();
    for (name, _) in dir.names()? {
        let Some((stem, ending)) = name.to_str().and_then(|name| name.split_once('.')) else {
            continue;
        };
        let ours = stem.len() >= 16 && stem.bytes().all(|b| b.is_ascii_digit());
        let endings = [FINISHED, UNFINISHED, MEMBER, object::HEAD];
        if let Ok(number) = stem.parse()
            && ours
            && let Some(ending) = endings.into_iter().find(|known| *known == ending)
        {
            files.push(Numbered {
                name: format!("{stem}.{ending}"),
                number,
                ending,
            });
        }
    }
    Ok(files)
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;
    use crate::checkout::encode::store::{dataset, saved};
    use crate::hdf5::{H5, Member, Resolved, Source};
    use crate::io::file::StoreFile;
    use crate::io::storage::Disk;
    use crate::io::storage::faulty::Faulty;
    use crate::npy::dtype::DType;

    fn open(dir: &Path, storage: impl Storage + 'static) -> Result<Layer> {
        Layer::open(&Dir::own(dir), Arc::new(storage), Creator::Local)
    }

    /// Stores an `.npy` file as the object `group/data`.
    fn put_file(layer: &Layer, path: &str, inside: &str, file: &[u8]) -> Result<Stored> {
        let new = dataset(inside, file)?;
        layer.put(path, &new, UNIX_EPOCH)
    }

    /// Stores an array of 4-byte integers.
    fn put(layer: &Layer, path: &str, values: &[i32]) -> Result<Stored> {
        let payload: Vec<u8> = values
            .iter()
            .flat_map(|value| value.to_le_bytes())
            .collect();
        let file = saved(&DType::int(4), &[values.len() as u64], &payload);
        put_file(layer, path, "group/data", &file)
    }

    /// The integers that libhdf5 finds in the file of an object.
    fn values(layer: &Layer, stored: &Stored) -> Vec<i32> {
        let file = StoreFile::open(&layer.path(stored)).unwrap();
        let h5 = H5::local();
        let root = h5.root(&file).unwrap();
        let found = h5.resolve(&file, root, b"group/data").unwrap();
        let Resolved::Member(Member::Dataset(dataset)) = found else {
            panic!("{found:?}");
        };
        let map = h5.map(&file, dataset.addr).unwrap();
        if map.shape == [0] {
            return Vec::new();
        }
        let Source::Contiguous { addr } = map.source else {
            panic!("{:?}", map.source);
        };
        let mut bytes = vec![0; 4 * usize::try_from(map.shape[0]).unwrap()];
        file.read_exact_at(&mut bytes, addr).unwrap();
        bytes
            .chunks(4)
            .map(|b| i32::from_le_bytes(b.try_into().unwrap()))
            .collect()
    }

    /// What the layer holds, each object read back.
    fn content(layer: &Layer) -> BTreeMap<String, Option<Vec<i32>>> {
        let read = |stored: Stored| values(layer, &stored);
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
            fields: vec![crate::npy::dtype::Field {
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

    type Step = fn(&Layer) -> Result<()>;

    const STEPS: [Step; 5] = [
        |layer| put(layer, "a.npy", &[1, 2]).map(drop),
        |layer| put(layer, "b.npy", &[3]).map(drop),
        |layer| put(layer, "a.npy", &[4, 5, 6]).map(drop),
        |layer| layer.remove("b.npy"),
        |layer| put(layer, "b.npy", &[7]).map(drop),
    ];

    /// Every call that changes the disk fails once, with the process going on or dead.
    #[test]
    fn whatever_fails_each_step_happens_or_does_not() {
        let mut after = vec![BTreeMap::new()];
        let dir = tempfile::tempdir().unwrap();
        let all = {
            let faulty = Arc::new(Faulty::new(u64::MAX, 0, false));
            let layer = Layer::open(&Dir::own(dir.path()), faulty.clone(), Creator::Local).unwrap();
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
                // What it says of itself, readers can read.
                assert_eq!(content(&layer), after[done], "{at} {dead}");
            }
            let layer = open(dir.path(), Disk).unwrap();
            let now = content(&layer);
            let half = dead && failed && now == after[done + 1];
            assert!(now == after[done] || half, "{at} {dead}: {now:?}");
            // And it goes on from there.
            put(&layer, "c.npy", &[8]).unwrap();
            assert_eq!(content(&layer)["c.npy"], Some(vec![8]));
        }
    }
}
