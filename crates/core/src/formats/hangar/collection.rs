//! The files with the samples' bytes, each opened once: HDF5 collections, `.npy` files, LMDB files.
//!
//! A collection may be written while it is read: rows are only ever added, so a map stays valid for the rows that it
//! knows. A row that the map does not know, or whose checksum does not match, is looked up once more in a newer map.
//! No mutex is held during a read.

use std::collections::BTreeSet;
use std::num::NonZeroUsize;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use lru::LruCache;
use parking_lot::Mutex;

use super::folder::Folder;
use super::rows::Rows;
use super::table::Table;
use npyfs_base::error::{Error, ErrorKind, Result};
use npyfs_io::file::{Identity, StoreFile, has_hdf5_signature};

/// The number of collection files that are kept open, with one descriptor each.
const FILES: usize = 256;

/// The number of dataset maps that are kept; one takes about 4 KiB.
const MAPS: usize = 4096;

/// A file of backend `00` or `01`.
pub struct Collection {
    pub file: StoreFile,
    /// The number of datasets that were mapped one by one. From the second on, all datasets are mapped together.
    asked: AtomicU64,
    filling: Mutex<()>,
}

/// The data files of one repository.
pub struct DataFiles {
    /// The repository's directory.
    folder: Arc<Folder>,
    collections: Mutex<LruCache<(&'static str, String), Arc<Collection>>>,
    tables: Mutex<LruCache<(&'static str, String), Arc<Table>>>,
    /// The maps by serial number of the file and number of the dataset.
    maps: Mutex<LruCache<(u64, u32), Arc<Rows>>>,
}

fn cache<K: std::hash::Hash + Eq, V>(size: usize) -> Mutex<LruCache<K, V>> {
    Mutex::new(LruCache::new(
        NonZeroUsize::new(size).unwrap_or(NonZeroUsize::MIN),
    ))
}

impl DataFiles {
    /// Makes the data files of a repository; `folder` is its directory.
    pub fn new(folder: &Arc<Folder>) -> Self {
        Self {
            folder: folder.clone(),
            collections: cache(FILES),
            tables: cache(FILES),
            maps: cache(MAPS),
        }
    }

    /// Returns the path of a data file. `uid` consists of letters and digits.
    pub fn path(&self, backend: &str, uid: &str) -> PathBuf {
        let folder = self.folder.path.join("data").join(backend);
        match backend {
            "10" => folder.join(format!("{uid}.npy")),
            "30" | "31" => folder.join(uid).join("data.mdb"),
            _ => folder.join(format!("{uid}.hdf5")),
        }
    }

    /// Opens a data file; the error for a missing file says that its data is missing.
    pub fn open(&self, backend: &str, uid: &str) -> Result<StoreFile> {
        let path = self.path(backend, uid);
        self.folder.open(&path).map_err(|e| {
            match e.kind {
                // The name in the mount exists; its data is missing.
                ErrorKind::NotFound => {
                    Error::damaged(format!("the data file is missing: {}", e.message))
                }
                _ => e,
            }
        })
    }

    /// Returns a collection file, which is opened only once. A remote file is opened again after a change of the
    /// tables.
    pub fn collection(&self, backend: &'static str, uid: &str) -> Result<Arc<Collection>> {
        let key = (backend, uid.to_owned());
        let open = self.collections.lock().get(&key).cloned();
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
        // If another thread was faster, its descriptor is used.
        let mut collections = self.collections.lock();
        Ok(collections.get_or_insert(key, || open).clone())
    }

    /// Forgets a collection file that was replaced on disk.
    pub fn forget(&self, backend: &'static str, uid: &str) {
        self.collections.lock().pop(&(backend, uid.to_owned()));
    }

    /// Returns the table with the values of backend `30` or `31`.
    pub fn table(&self, backend: &'static str, uid: &str) -> Arc<Table> {
        let key = (backend, uid.to_owned());
        self.tables
            .lock()
            .get_or_insert(key, || {
                Arc::new(Table::new(&self.path(backend, uid), &self.folder))
            })
            .clone()
    }

    /// Returns a dataset of a collection.
    pub fn rows(&self, of: &Collection, dataset: u32) -> Result<Arc<Rows>> {
        let key = (of.file.serial, dataset);
        if let Some(rows) = self.maps.lock().get(&key) {
            return Ok(rows.clone());
        }
        let asked = of.asked.fetch_add(1, Ordering::Relaxed);
        if asked > 0 {
            let _one = of.filling.lock();
            if let Some(rows) = self.maps.lock().get(&key) {
                return Ok(rows.clone());
            }
            self.map(of, Vec::new())?;
            if let Some(rows) = self.maps.lock().get(&key) {
                return Ok(rows.clone());
            }
        }
        self.newer(of, dataset)
    }

    /// Returns a map of the present file.
    pub fn newer(&self, of: &Collection, dataset: u32) -> Result<Arc<Rows>> {
        let about = |e: Error| e.about(format!("{}: dataset {dataset}", of.file.path.display()));
        self.map(of, vec![dataset.to_string().into_bytes()])
            .map_err(about)?
            .ok_or_else(|| about(Error::damaged("there is no such dataset")))
    }

    /// Maps those of the datasets that have no map yet, in one request. A damaged dataset stays without a map.
    pub fn map_together(&self, of: &Collection, datasets: &BTreeSet<u32>) -> Result<()> {
        let maps = self.maps.lock();
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

    /// Maps datasets, or all if none are named; returns the last one.
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
                    self.maps
                        .lock()
                        .put((of.file.serial, dataset), rows.clone());
                    last = Some(rows);
                }
                // A damaged dataset affects only its own samples.
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

    /// Asks the kernel to read ahead a file of small samples, since libhdf5 reads much of such a file. libhdf5 reads
    /// little of other files, whose samples are read past the page cache.
    pub fn will_need(&self) {
        const MOST: u64 = 16 << 20;
        if self.file.identity.size <= MOST {
            // A failure affects only speed.
            if let Ok(file) = self.file.file() {
                let _ = rustix::fs::fadvise(&**file, 0, None, rustix::fs::Advice::WillNeed);
            }
        }
    }

    /// Returns true if the path leads to another file now.
    pub fn is_moved(&self) -> bool {
        if self.file.far().is_some() {
            return !self.file.is_current();
        }
        let known = &self.file.identity;
        std::fs::metadata(&self.file.path).is_ok_and(|meta| {
            let now = Identity::from_metadata(&meta);
            (now.dev, now.ino) != (known.dev, known.ino)
        })
    }

    /// Returns true if the file was written since a map was made.
    pub fn is_newer(&self, rows: &Rows) -> bool {
        let now = self.file.identity_now();
        now.is_ok_and(|now| now != rows.version)
    }
}
