//! The files with the samples' bytes, each opened once: HDF5 collections, `.npy` files, LMDB files.
//!
//! A collection may be written to while it is read: rows are only ever added, so a map stays right for the rows
//! it knows. A row it does not know, or whose checksum does not match, is looked up once more in a newer map.

use std::collections::BTreeSet;
use std::num::NonZeroUsize;
use std::path::PathBuf;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

use lru::LruCache;

use super::folder::Folder;
use super::rows::Rows;
use super::table::Table;
use crate::error::{Error, ErrorKind, Result};
use crate::io::file::{Identity, StoreFile, has_hdf5_signature};

/// Collection files that are kept open, one descriptor each.
const FILES: usize = 256;

/// Dataset maps that are kept; one takes some 4 KiB.
const MAPS: usize = 4096;

/// A file of backend `00` or `01`.
pub struct Collection {
    pub file: StoreFile,
    /// Datasets that were mapped one by one. From the second on all of them are mapped together.
    asked: AtomicU64,
    filling: Mutex<()>,
}

/// The data files of one repository.
pub struct DataFiles {
    /// The repository's directory.
    folder: Arc<Folder>,
    collections: Mutex<LruCache<(&'static str, String), Arc<Collection>>>,
    tables: Mutex<LruCache<(&'static str, String), Arc<Table>>>,
    /// The maps by serial number of the file, and dataset.
    maps: Mutex<LruCache<(u64, u32), Arc<Rows>>>,
}

fn cache<K: std::hash::Hash + Eq, V>(size: usize) -> Mutex<LruCache<K, V>> {
    Mutex::new(LruCache::new(
        NonZeroUsize::new(size).unwrap_or(NonZeroUsize::MIN),
    ))
}

fn lock<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    // No lock is held while anything is read.
    mutex.lock().unwrap_or_else(|e| e.into_inner())
}

impl DataFiles {
    /// `folder` is the repository's directory.
    pub fn new(folder: &Arc<Folder>) -> Self {
        Self {
            folder: folder.clone(),
            collections: cache(FILES),
            tables: cache(FILES),
            maps: cache(MAPS),
        }
    }

    /// The path of a data file. `uid` holds letters and digits only.
    pub fn path(&self, backend: &str, uid: &str) -> PathBuf {
        let folder = self.folder.path.join("data").join(backend);
        match backend {
            "10" => folder.join(format!("{uid}.npy")),
            "30" | "31" => folder.join(uid).join("data.mdb"),
            _ => folder.join(format!("{uid}.hdf5")),
        }
    }

    /// Opens a data file; one that is missing says so.
    pub fn open(&self, backend: &str, uid: &str) -> Result<StoreFile> {
        let path = self.path(backend, uid);
        self.folder.open(&path).map_err(|e| {
            match e.kind {
                // The name in the mount is there; what is missing is its data.
                ErrorKind::NotFound => {
                    Error::damaged(format!("the data file is missing: {}", e.message))
                }
                _ => e,
            }
        })
    }

    /// A collection file, opened at most once; again if it lies elsewhere and the tables are other ones since.
    pub fn collection(&self, backend: &'static str, uid: &str) -> Result<Arc<Collection>> {
        let key = (backend, uid.to_owned());
        let open = lock(&self.collections).get(&key).cloned();
        if let Some(open) = open {
            match self.folder.far() {
                Some(elsewhere) if !elsewhere.is_newest(&open.file)? => self.forget(backend, uid),
                _ => return Ok(open),
            }
        }
        let file = self.open(backend, uid)?;
        if !has_hdf5_signature(&file)? {
            let why = format!("{}: not an HDF5 file", file.path.display());
            return Err(Error::damaged(why));
        }
        let open = Arc::new(Collection::new(file));
        let opened = &self.folder.context.stores_opened;
        opened.fetch_add(1, Ordering::Relaxed);
        // Another thread may have been faster: its descriptor counts.
        let mut collections = lock(&self.collections);
        Ok(collections.get_or_insert(key, || open).clone())
    }

    /// Forgets a collection file, which was replaced on disk.
    pub fn forget(&self, backend: &'static str, uid: &str) {
        lock(&self.collections).pop(&(backend, uid.to_owned()));
    }

    /// The values of backends `30` and `31`.
    pub fn table(&self, backend: &'static str, uid: &str) -> Arc<Table> {
        let key = (backend, uid.to_owned());
        lock(&self.tables)
            .get_or_insert(key, || {
                Arc::new(Table::new(&self.path(backend, uid), &self.folder))
            })
            .clone()
    }

    /// A dataset of a collection.
    pub fn rows(&self, of: &Collection, dataset: u32) -> Result<Arc<Rows>> {
        let key = (of.file.serial, dataset);
        if let Some(rows) = lock(&self.maps).get(&key) {
            return Ok(rows.clone());
        }
        let asked = of.asked.fetch_add(1, Ordering::Relaxed);
        if asked > 0 {
            let _one = lock(&of.filling);
            if let Some(rows) = lock(&self.maps).get(&key) {
                return Ok(rows.clone());
            }
            self.map(of, Vec::new())?;
            if let Some(rows) = lock(&self.maps).get(&key) {
                return Ok(rows.clone());
            }
        }
        self.newer(of, dataset)
    }

    /// Returns a map of the file as it is now.
    pub fn newer(&self, of: &Collection, dataset: u32) -> Result<Arc<Rows>> {
        let about = |e: Error| e.about(format!("{}: dataset {dataset}", of.file.path.display()));
        self.map(of, vec![dataset.to_string().into_bytes()])
            .map_err(about)?
            .ok_or_else(|| about(Error::damaged("there is no such dataset")))
    }

    /// Maps those of the datasets that are not known yet, in one request. One that is damaged stays unknown.
    pub fn map_together(&self, of: &Collection, datasets: &BTreeSet<u32>) -> Result<()> {
        let maps = lock(&self.maps);
        let new = datasets
            .iter()
            .filter(|&&dataset| !maps.contains(&(of.file.serial, dataset)));
        let names: Vec<_> = new.map(|n| n.to_string().into_bytes()).collect();
        drop(maps);
        if !names.is_empty() {
            self.map(of, names)?;
        }
        Ok(())
    }

    /// Maps datasets, all if none are named; answers the last one.
    fn map(&self, of: &Collection, names: Vec<Vec<u8>>) -> Result<Option<Arc<Rows>>> {
        let many = names.len() != 1;
        let version = of.file.identity_now()?;
        let mut last = None;
        for (name, map) in self.folder.context.h5.maps(&of.file, names)? {
            let text = String::from_utf8_lossy(&name);
            let Ok(dataset) = text.parse::<u32>() else {
                continue;
            };
            let rows = map
                .map_err(Error::damaged)
                .and_then(|map| Rows::new(map, version));
            match rows {
                Ok(rows) => {
                    let rows = Arc::new(rows);
                    lock(&self.maps).put((of.file.serial, dataset), rows.clone());
                    last = Some(rows);
                }
                // One that is damaged costs its own samples only.
                Err(_) if many => {}
                Err(e) => return Err(e),
            }
        }
        Ok(last)
    }
}

impl Collection {
    pub fn new(file: StoreFile) -> Self {
        Self {
            file,
            asked: AtomicU64::new(0),
            filling: Mutex::new(()),
        }
    }

    /// Has the kernel read a file of small samples ahead: much of it is what libhdf5 reads. Of others little is, and
    /// samples are read past the page cache.
    pub fn will_need(&self) {
        const MOST: u64 = 16 << 20;
        if self.file.identity.size <= MOST {
            // Only about speed.
            if let Ok(file) = self.file.file() {
                let _ = rustix::fs::fadvise(&**file, 0, None, rustix::fs::Advice::WillNeed);
            }
        }
    }

    /// Returns whether the path leads to another file now.
    pub fn is_moved(&self) -> bool {
        if self.file.far().is_some() {
            return !self.file.is_current();
        }
        let known = &self.file.identity;
        std::fs::metadata(&self.file.path).is_ok_and(|meta| {
            let now = Identity::of(&meta);
            (now.dev, now.ino) != (known.dev, known.ino)
        })
    }

    /// Returns whether the file was written to since a map was made.
    pub fn is_newer(&self, rows: &Rows) -> bool {
        let now = self.file.identity_now();
        now.is_ok_and(|now| now != rows.version)
    }
}
