//! The directory with the tables and data files of a repository: on this machine, or a prefix of a bucket.
//!
//! Of a repository in a bucket there are copies of its tables, all of one moment; its data files are objects. liblmdb
//! maps the files that it reads, so tables are copied as a whole, into a directory that belongs to this process alone.
//! The tables that define the repository are fetched together, and are used only if their list is the same before and
//! after the fetch. The location of a sample never changes, so data files are looked at again only after a change of
//! the tables.

use std::collections::BTreeMap;
use std::num::NonZeroUsize;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use lru::LruCache;
use parking_lot::Mutex;

use super::BRANCHES;
use crate::dataset::context::Context;
use npyfs_base::error::{Error, ErrorKind, Result};
use npyfs_base::options::{External, RemoteSettings};
use npyfs_base::thread;
use npyfs_io::file::{Ownership, StoreFile};
use npyfs_io::lru::WeightedLru;
use npyfs_io::private_dir::PrivateDir;
use npyfs_io::remote::{Address, Entries, Listing, RemoteObject, Version, copy, store_file};

/// The directory of a repository.
pub struct Folder {
    /// The path, or its address with a `/` at the end.
    pub path: PathBuf,
    pub context: Arc<Context>,
    elsewhere: Option<Elsewhere>,
}

impl Folder {
    /// Makes the folder of a directory on this machine.
    pub fn here(path: &Path, context: &Arc<Context>) -> Arc<Self> {
        Arc::new(Self {
            path: path.to_owned(),
            context: context.clone(),
            elsewhere: None,
        })
    }

    /// Makes the folder of a prefix of a bucket.
    pub fn elsewhere(listing: Listing, context: &Arc<Context>) -> Arc<Self> {
        Arc::new(Self {
            path: PathBuf::from(listing.address().to_string()),
            context: context.clone(),
            elsewhere: Some(Elsewhere::new(listing, context)),
        })
    }

    /// Returns the state of a directory in a bucket; `None` if it is on this machine.
    pub(super) fn far(&self) -> Option<&Elsewhere> {
        self.elsewhere.as_ref()
    }

    /// Fails if the repository is remote, since only a local one is writable.
    pub fn check_writable(&self) -> Result<()> {
        if self.elsewhere.is_none() {
            return Ok(());
        }
        let why = "a Hangar repository keeps what is written in itself, and nothing is written to a bucket: copy it here to write";
        Err(Error::new(ErrorKind::Os(libc::EROFS), why).about(self.path.display()))
    }

    /// Returns the owner and permissions of all entries of the repository.
    pub fn ownership(&self) -> Ownership {
        match &self.elsewhere {
            Some(elsewhere) => elsewhere.ownership(),
            None => {
                let meta = std::fs::metadata(&self.path);
                meta.map_or(Ownership::UNKNOWN, |meta| Ownership::from_metadata(&meta))
            }
        }
    }

    /// Returns true if a table exists.
    pub fn has_table(&self, path: &Path) -> bool {
        match &self.elsewhere {
            Some(elsewhere) => elsewhere.has(path),
            None => path.is_file(),
        }
    }

    /// Returns true if the repository exists.
    pub fn is_there(&self) -> bool {
        self.has_table(&self.path.join(BRANCHES))
    }

    /// Opens a file of the repository. A file that a symbolic link puts outside the directory is refused unless the
    /// mount allows it.
    pub fn open(&self, path: &Path) -> Result<StoreFile> {
        if let Some(elsewhere) = &self.elsewhere {
            return elsewhere.open(path);
        }
        let about = |e: Error| e.about(path.display());
        let real = path.canonicalize().map_err(|e| about(e.into()))?;
        let top = self.path.canonicalize().map_err(|e| about(e.into()))?;
        if !real.starts_with(&top) && self.context.options.external != External::Allow {
            let why = format!("leads out of {} (external=allow reads it)", top.display());
            return Err(about(Error::new(ErrorKind::Denied, why)));
        }
        StoreFile::open(path).map_err(|e| about(e.into()))
    }
}

/// The tables that define the repository; a table precedes the tables that refer to it.
const TABLES: [&str; 5] = [
    "hash.lmdb",
    "ref.lmdb",
    "stage_hash.lmdb",
    "stage_ref.lmdb",
    BRANCHES,
];

/// The largest total size in bytes of the copies of these tables; the same limit applies to the tables of text and
/// bytes.
const MOST: u64 = 4 << 30;

/// The number of attempts to fetch tables that are replaced during the fetch.
const TRIES: u32 = 5;

/// The shortest time between two failed attempts.
const PAUSE: Duration = Duration::from_secs(1);

/// The number of data files that are kept open.
const OBJECTS: NonZeroUsize = NonZeroUsize::new(256).unwrap();

/// A table: the version, and a copy of that version.
type Copied = (Version, Arc<StoreFile>);

/// The tables that define the repository, as of one moment.
#[derive(Default)]
struct Tables {
    /// The copies, by name.
    copies: BTreeMap<&'static str, Copied>,
    /// An attempt was made, even if there were no tables.
    is_known: bool,
    /// The time of the last failed attempt.
    failed: Option<Instant>,
}

impl Tables {
    /// Returns true if these are the tables of a list.
    fn are(&self, entries: &Entries) -> bool {
        let same = |name: &str| entries.version(name) == self.copies.get(name).map(|(v, _)| v);
        self.is_known && TABLES.into_iter().all(same)
    }
}

/// The files of a repository in a bucket.
pub(super) struct Elsewhere {
    listing: Listing,
    settings: Arc<RemoteSettings>,
    context: Arc<Context>,
    /// The directory of the copies.
    dir: OnceLock<PrivateDir>,
    tables: Mutex<Tables>,
    /// The number of changes of the tables.
    changes: AtomicU64,
    /// Copies of tables of text and bytes by address, each with the number of its version; a copy weighs its bytes.
    values: Mutex<WeightedLru<PathBuf, (u64, Arc<StoreFile>)>>,
    /// Data files by address, each with the number of changes when it was the newest version.
    objects: Mutex<LruCache<PathBuf, (u64, Arc<RemoteObject>)>>,
}

/// Returns true if two lists name the same versions of the tables.
fn same_tables(one: &Entries, other: &Entries) -> bool {
    TABLES
        .iter()
        .all(|name| one.version(name) == other.version(name))
}

impl Elsewhere {
    /// Prepares for a prefix with tables, without a request.
    pub(super) fn new(listing: Listing, context: &Arc<Context>) -> Self {
        // There are never packs beside the files of a repository.
        let settings = RemoteSettings {
            packs: false,
            ..(*context.options.remote).clone()
        };
        Self {
            listing,
            settings: Arc::new(settings),
            context: context.clone(),
            dir: OnceLock::new(),
            tables: Mutex::default(),
            changes: AtomicU64::new(0),
            values: Mutex::new(WeightedLru::new(MOST)),
            objects: Mutex::new(LruCache::new(OBJECTS)),
        }
    }

    /// Returns the ownership of all entries, with the time of the last change of a table.
    pub(super) fn ownership(&self) -> Ownership {
        self.listing.ownership(None)
    }

    /// Returns true if a table exists; without an answer from the server, the last known state counts.
    pub(super) fn has(&self, table: &Path) -> bool {
        let entries = self.listing.entries();
        entries.map_or(true, |entries| entries.has_object(name_of(table)))
    }

    /// Returns the copy of a table, as of now or a moment ago.
    pub(super) fn table(&self, path: &Path) -> Result<Arc<StoreFile>> {
        let mut tables = self.tables.lock();
        self.refresh(&mut tables)?;
        if !TABLES.contains(&name_of(path)) {
            drop(tables);
            return self.values(path);
        }
        let copied = tables.copies.get(name_of(path));
        let absent = || Error::new(ErrorKind::NotFound, "no such object").about(path.display());
        copied.map(|(_, file)| file.clone()).ok_or_else(absent)
    }

    /// Fetches the tables if they have changed. If that fails, the previously fetched tables are shown.
    fn refresh(&self, tables: &mut Tables) -> Result<()> {
        let entries = self.listing.entries()?;
        for note in self.listing.take_notes() {
            let address = self.listing.address();
            self.context.journal.add(&format!("{address}: {note}"));
        }
        let pause = self.settings.check.max(PAUSE);
        let just_failed = tables.failed.is_some_and(|at| at.elapsed() < pause);
        if tables.are(&entries) || (tables.is_known && just_failed) {
            return Ok(());
        }
        match self.fetch(tables, entries) {
            Ok(copies) => {
                *tables = Tables {
                    copies,
                    is_known: true,
                    failed: None,
                };
                self.changes.fetch_add(1, Ordering::AcqRel);
                Ok(())
            }
            Err(e) if !tables.is_known => Err(e),
            Err(e) => {
                let line = format!("{}; the last known state is shown", e.message);
                self.context.journal.add(&line);
                tables.failed = Some(Instant::now());
                Ok(())
            }
        }
    }

    /// Returns copies of the tables of a list, or of a newer list; copies that are known already are kept.
    fn fetch(
        &self,
        known: &Tables,
        mut entries: Arc<Entries>,
    ) -> Result<BTreeMap<&'static str, Copied>> {
        let address = self.listing.address();
        for _ in 0..TRIES {
            let there = TABLES.map(|name| Some((name, entries.version(name)?)));
            let bytes = there.iter().flatten().map(|(_, version)| version.size);
            if bytes.fold(0, u64::saturating_add) > MOST {
                let why = format!("its tables have more than {} GiB: copy it", MOST >> 30);
                return Err(Error::new(ErrorKind::TooLarge, why).about(address));
            }
            let is_new = |name: &str, version: &Version| {
                known.copies.get(name).is_none_or(|(v, _)| v != version)
            };
            let wanted = there.into_iter().flatten();
            let wanted: Vec<_> = wanted.filter(|(name, v)| is_new(name, v)).collect();
            let fetched = self.fetch_together(&wanted);
            let now = self.listing.entries_now()?;
            if !same_tables(&now, &entries) {
                entries = now;
                continue;
            }
            // Either all copies are named or none.
            let fetched: Vec<_> = fetched.into_iter().collect::<Result<_>>()?;
            let mut copies = known.copies.clone();
            copies.retain(|name, _| entries.has_object(name));
            for ((name, version), scratch) in wanted.into_iter().zip(fetched) {
                let file = self.keep(scratch, name)?;
                copies.insert(name, (version.clone(), file));
            }
            return Ok(copies);
        }
        let why = "its tables are replaced again and again while they are fetched";
        Err(Error::new(ErrorKind::Os(libc::EBUSY), why).about(address))
    }

    /// Fetches tables, all at the same time.
    fn fetch_together(&self, wanted: &[(&str, &Version)]) -> Vec<Result<Scratch>> {
        let fetch = |name: &str, version: &Version| {
            let object =
                RemoteObject::open(&self.listing.address().below(name, false), &self.settings)?;
            if object.size() != version.size {
                let why = "another version is there now";
                return Err(Error::new(ErrorKind::Stale, why).about(object.address()));
            }
            self.copy(&object)
        };
        let fetch = &fetch;
        thread::scope(|scope| {
            let running: Vec<_> = wanted
                .iter()
                .map(|(name, version)| scope.spawn(move || fetch(name, version)))
                .collect();
            let failed = |_| Err(Error::damaged("fetching a table panicked"));
            let ended = running.into_iter().map(|thread| thread.join());
            ended
                .map(|fetched| fetched.unwrap_or_else(failed))
                .collect()
        })
    }

    /// Returns the directory of the copies.
    fn dir(&self) -> Result<&Path> {
        if let Some(dir) = self.dir.get() {
            return Ok(dir.path());
        }
        let made = PrivateDir::new("npyfs-tables-")
            .map_err(|e| Error::from(e).about(std::env::temp_dir().display()))?;
        // If another thread was faster, its directory is used.
        Ok(self.dir.get_or_init(|| made).path())
    }

    /// Copies a table as a whole.
    fn copy(&self, object: &Arc<RemoteObject>) -> Result<Scratch> {
        let about = |e: std::io::Error| Error::from(e).about(object.address());
        let mut scratch = tempfile::NamedTempFile::new_in(self.dir()?).map_err(about)?;
        copy(&store_file(object), scratch.as_file_mut(), &|_| {})?;
        let time = object.modified();
        scratch.as_file().set_modified(time).map_err(about)?;
        Ok(scratch)
    }

    /// Gives a copy its name and replaces an older copy. Workers that start later may open it.
    fn keep(&self, scratch: Scratch, name: &str) -> Result<Arc<StoreFile>> {
        let path = self.dir()?.join(name);
        scratch.persist(&path).map_err(|e| Error::from(e.error))?;
        let file = Arc::new(StoreFile::open(&path)?);
        self.context.h5.will_ask(&file);
        Ok(file)
    }

    /// Returns the copy of a table of text or bytes.
    fn values(&self, path: &Path) -> Result<Arc<StoreFile>> {
        let object = self.object(path)?;
        // One table is fetched at a time; a thread that waits for the same table then finds it.
        let mut values = self.values.lock();
        if let Some((number, file)) = values.get(path)
            && *number == object.number()
        {
            return Ok(file.clone());
        }
        let size = object.size();
        if size > MOST {
            let why = format!("has more than {} GiB: copy the repository", MOST >> 30);
            return Err(Error::new(ErrorKind::TooLarge, why).about(object.address()));
        }
        let scratch = self.copy(&object)?;
        while let Some((_, old)) = values.pop_excess(size) {
            // A copy that is being read is removed together with the directory.
            if Arc::strong_count(&old) == 1 {
                let _ = std::fs::remove_file(&old.path);
            }
        }
        let folders = path.components().rev().skip(1).take(2);
        let mut names: Vec<_> = folders
            .map(|name| name.as_os_str().to_string_lossy())
            .collect();
        names.reverse();
        let file = self.keep(scratch, &names.join("-"))?;
        values.put(path.to_owned(), (object.number(), file.clone()), size);
        Ok(file)
    }

    /// Returns a data file, which is opened once for each state of the tables.
    fn object(&self, path: &Path) -> Result<Arc<RemoteObject>> {
        let changes = self.changes.load(Ordering::Acquire);
        let known = self.objects.lock().get(path).cloned();
        if let Some((at, object)) = &known
            && *at == changes
            && object.is_unchanged()
        {
            return Ok(object.clone());
        }
        let no_address = || Error::damaged("no address").about(path.display());
        let address = Address::parse(path).and_then(|address| address.ok());
        let object = RemoteObject::open(&address.ok_or_else(no_address)?, &self.settings)?;
        let same = known.map(|(_, known)| known);
        let same = same.filter(|known| known.number() == object.number() && known.is_unchanged());
        let object = same.unwrap_or(object);
        let entry = (changes, object.clone());
        self.objects.lock().put(path.to_owned(), entry);
        Ok(object)
    }

    /// Opens a data file.
    pub(super) fn open(&self, path: &Path) -> Result<StoreFile> {
        Ok(store_file(&self.object(path)?))
    }

    /// Returns true if a data file that is open is the newest version of it.
    pub(super) fn is_newest(&self, file: &StoreFile) -> Result<bool> {
        Ok(self.object(&file.path)?.number() == file.identity.ino)
    }
}

/// A copy that has no name yet.
type Scratch = tempfile::NamedTempFile;

/// Returns the last part of an address.
fn name_of(path: &Path) -> &str {
    let name = path.file_name().and_then(|name| name.to_str());
    name.unwrap_or_default()
}
